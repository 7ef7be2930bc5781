//! Who may change the cluster: root and the user of a server, on a machine of a server.
use crate::private::{OTHER_USER, is_root};
use crate::support::{Cluster, Shape, lines, text};
use crate::wait::until_told;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Output;

const PERMISSION: i32 = 5;

fn socket(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.path("nodes").join(name).join("admin.sock")
}

fn as_other(cluster: &Cluster, args: &[&str]) -> Output {
    cluster.command(args).uid(OTHER_USER).gid(OTHER_USER).output().expect("the binary starts")
}

fn refused(output: &Output) -> String {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(PERMISSION), "{said}");
    said
}

fn open(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o777)).expect("a mode");
}

/// Anybody with an account on a machine that reaches the managers could delete every volume.
#[test]
fn only_root_and_the_servers_user_change_the_cluster() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 2, racks: 2 });
    cluster.ok(&["admin", "volume", "create", "v2", "--layout", "r2"]);
    let names = |cluster: &Cluster| -> Vec<String> {
        let all = lines(cluster, &["admin", "volume", "ls"]);
        all.iter().map(|volume| volume["name"].as_str().expect("a name").to_owned()).collect()
    };
    let delete = ["admin", "volume", "delete", "v2", "--force"];
    if is_root() {
        // To look is anybody's.
        assert!(text(&as_other(&cluster, &["admin", "volume", "ls"]).stdout).contains("v2"));
        for change in [
            &delete[..],
            &["admin", "volume", "create", "mine"],
            &["admin", "config", "set", "node_timeout=9s"],
            &["admin", "drain", "start", "disk", "d1"],
            &["admin", "disk", "remove", "d1"],
        ] {
            let said = refused(&as_other(&cluster, change));
            assert!(said.contains("root") && said.contains("admin.sock") && said.contains("admin_over_tcp"), "{said}");
        }
        // Not even where somebody opened the directories, nor the socket itself.
        let at = socket(&cluster, "manager1");
        for path in [cluster.dir.path(), &cluster.path("nodes"), &cluster.path("nodes").join("manager1")] {
            open(path);
        }
        refused(&as_other(&cluster, &delete));
        open(&at);
        let said = refused(&as_other(&cluster, &delete));
        assert!(said.contains(&format!("not from uid {OTHER_USER}")), "{said}");
    }
    assert!(names(&cluster).contains(&"v2".to_owned()), "{:?}", names(&cluster));

    // Over TCP not even root, for a server cannot see who that is. Every node's socket is as good as the manager's.
    let given = socket(&cluster, "data1").display().to_string();
    cluster.ok(&["--admin-socket", &given, "admin", "config", "set", "node_timeout=9s"]);
    let nowhere = cluster.path("nowhere.sock").display().to_string();
    let said =
        cluster.fails(&["--timeout", "2", "--admin-socket", &nowhere, "admin", "config", "set", "node_timeout=8s"], 7);
    assert!(said.contains(&nowhere), "{said}");
    fs::remove_file(socket(&cluster, "manager1")).expect("the socket");
    let said = cluster.fails(&delete, PERMISSION);
    assert!(said.contains("DeleteVolume changes the cluster"), "{said}");
    assert!(names(&cluster).contains(&"v2".to_owned()));

    // Where the configuration says so, everybody may.
    cluster.stop("manager1");
    cluster.set_in_node("manager1", "admin_over_tcp", Some("true"));
    cluster.restart("manager1");
    let made = || match is_root() {
        true => as_other(&cluster, &["admin", "volume", "create", "mine", "--layout", "r1"]),
        false => cluster.cairn(&["admin", "volume", "create", "mine", "--layout", "r1"]),
    };
    until_told(
        "a volume",
        || made().status.success() || names(&cluster).contains(&"mine".to_owned()),
        || text(&made().stderr),
    );
}

/// The machine that somebody is logged in on is not always that of the leader: changes would be refused, or be lost on
/// the way.
#[test]
fn changes_come_in_anywhere_and_go_to_who_leads() {
    let mut cluster = Cluster::start(Shape { managers: 3, metas: 1, datas: 1, racks: 1 });
    let value = |cluster: &Cluster| {
        let all = lines(cluster, &["admin", "config", "get"]);
        let found = all.iter().find(|item| item["key"] == "node_timeout").expect("the setting").clone();
        found["value"].as_str().expect("text").to_owned()
    };
    for (name, wanted) in
        [("manager1", "11s"), ("manager2", "12s"), ("manager3", "13s"), ("meta1", "14s"), ("data1", "15s")]
    {
        let path = socket(&cluster, name).display().to_string();
        cluster.ok(&["--admin-socket", &path, "admin", "config", "set", &format!("node_timeout={wanted}")]);
        assert_eq!(value(&cluster), wanted, "by the socket of {name}");
    }
    // The leader is gone, and with it the socket that is found first.
    let leader = lines(&cluster, &["admin", "status"])[0]["leader_node"].as_u64().expect("a number");
    cluster.kill(&format!("manager{leader}"));
    cluster.ok(&["admin", "config", "set", "node_timeout=16s"]);
    assert_eq!(value(&cluster), "16s");
    // What a killed process left of its socket is replaced.
    cluster.restart(&format!("manager{leader}"));
    let path = socket(&cluster, &format!("manager{leader}")).display().to_string();
    cluster.ok(&["--admin-socket", &path, "admin", "config", "set", "node_timeout=17s"]);
    assert_eq!(value(&cluster), "17s");
}
