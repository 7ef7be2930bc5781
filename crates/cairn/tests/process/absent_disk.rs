//! A disk whose device is not mounted: its empty mount point is not taken for a new disk.
use crate::support::{Cluster, Shape, text};
use crate::trees::noise;
use crate::wait::until_told;
use std::fs;

const SMALL: Shape = Shape { managers: 1, metas: 1, datas: 3, racks: 3 };

/// The uuid in the label of a node's disk.
pub fn uuid_of(cluster: &Cluster, disk: &str) -> String {
    let label = cluster.disk(disk).join("label");
    let printed = cluster.ok(&["inspect", "--json", label.to_str().expect("utf-8")]);
    let (_, rest) = printed.split_once("\"uuid\":").expect("a uuid");
    rest.split('"').nth(1).expect("a text").to_owned()
}

/// Files would go to the file system of the machine, in a new directory where a device is mounted otherwise; and nobody
/// would know.
#[test]
fn a_disk_whose_parent_is_missing_is_left_out_and_named() {
    let mut cluster = Cluster::prepare(SMALL);
    cluster.allow_error("is not there; mount");
    let (config, device) = (cluster.path("data1.toml"), cluster.path("device"));
    let text = fs::read_to_string(&config).expect("configuration");
    let mut two = device.join("disk").display().to_string();
    two = format!("disks = [{two:?}, ");
    fs::write(&config, text.replace("disks = [", &two)).expect("configuration");
    cluster.start_all();
    cluster.wait_volume();
    let status = || cluster.ok(&["admin", "status"]);
    let named = format!("{} is not there; mount the disk's device", device.display());
    until_told("the disk to be named", || status().contains(&named), status);
    assert!(!device.exists(), "something was made where nothing is mounted");
    // Nothing else: it does not start.
    let alone = cluster.path("alone.toml");
    let text = text.replace("nodes/data1", "nodes/alone");
    fs::write(&alone, text.replace(&cluster.disk("data1").display().to_string(), "/nowhere/at/all")).expect("file");
    let said = cluster.fails(&["server", "--config", alone.to_str().expect("utf-8")], 1);
    assert!(said.contains("/nowhere/at is not there; mount"), "{said}");
}

/// A device that is not mounted would take the metadata of its node along, which is on another disk.
#[test]
fn a_node_whose_only_disk_is_missing_goes_on_with_its_other_roles() {
    let mut cluster = Cluster::prepare(SMALL);
    cluster.allow_error("is not there; mount");
    let (config, device) = (cluster.path("meta1.toml"), cluster.path("device"));
    let mut both = fs::read_to_string(&config).expect("configuration");
    both.push_str(&format!("\n[data]\ndisks = [{:?}]\n", device.join("disk").display().to_string()));
    fs::write(&config, both).expect("configuration");
    cluster.start_all();
    // Its partition is on that node.
    cluster.wait_volume();
    let status = || cluster.ok(&["admin", "status"]);
    let named = format!("{} is not there; mount the disk's device", device.display());
    until_told("the disk to be named", || status().contains(&named), status);
    assert!(cluster.read_log("meta1").contains(&named), "the log does not name it");
    let local = cluster.path("local");
    fs::write(&local, "bytes").expect("file");
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), "/file"]);
    assert_eq!(cluster.ok(&["fs", "cat", "/file"]), "bytes");
    assert!(!device.exists(), "something was made where nothing is mounted");
    // Mounted: it is a disk like any other.
    cluster.kill("meta1");
    fs::create_dir(&device).expect("mounted");
    cluster.restart("meta1");
    let status = || cluster.ok(&["admin", "status"]);
    until_told("the disk to be there", || device.join("disk/label").exists() && !status().contains(&named), status);
    assert_eq!(cluster.ok(&["fs", "cat", "/file"]), "bytes");
}

/// The empty directory below an unmounted disk would become a new disk: the real one would count as lost, and new
/// chunks would fill the file system of the machine.
#[test]
fn an_unmounted_disk_is_not_replaced_by_its_mount_point() {
    let mut cluster = Cluster::start(SMALL);
    cluster.allow_error("was here");
    let local = cluster.path("local");
    let bytes = noise(3_000_000, 5);
    fs::write(&local, &bytes).expect("file");
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), "/file"]);
    let uuid = uuid_of(&cluster, "data1");
    let (disk, device) = (cluster.disk("data1"), cluster.path("device"));

    // What umount shows: an empty directory.
    cluster.kill("data1");
    fs::rename(&disk, &device).expect("unmounted");
    fs::create_dir(&disk).expect("mount point");
    cluster.restart("data1");
    let log = cluster.read_log("data1");
    for wanted in [disk.to_str().expect("utf-8"), &uuid, "mount its device", "replaced_disks"] {
        assert!(log.contains(wanted), "{wanted:?} is not in the log: {log}");
    }
    assert_eq!(fs::read_dir(&disk).expect("listed").count(), 0, "something was made in the mount point");
    let read = cluster.cairn(&["fs", "cat", "/file"]);
    assert!(read.status.success() && read.stdout == bytes, "{}", text(&read.stderr));

    // Mounted again: it is the disk that it was.
    cluster.kill("data1");
    fs::remove_dir(&disk).expect("mount point");
    fs::rename(&device, &disk).expect("mounted");
    cluster.restart("data1");
    assert_eq!(uuid_of(&cluster, "data1"), uuid);

    // Lost for good, and declared so: a new disk.
    cluster.kill("data1");
    fs::remove_dir_all(&disk).expect("lost");
    let config = cluster.path("data1.toml");
    let mut lines = fs::read_to_string(&config).expect("configuration");
    lines.push_str(&format!("replaced_disks = [{uuid:?}]\n"));
    fs::write(&config, lines).expect("configuration");
    cluster.restart("data1");
    assert_ne!(uuid_of(&cluster, "data1"), uuid);
}
