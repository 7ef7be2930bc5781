//! A meta node whose memory for metadata is used up.
use crate::mount::SMALL;
use crate::support::{Cluster, lines, text};
use crate::trees::noise;
use crate::wait::until;
use std::fs;

/// So many files with names of so many bytes, that have no beginning in common, take several megabytes.
const FILES: usize = 24_000;
const NAME: usize = 180;

/// An import would end with a process that the kernel has ended, and that is ended again with each restart; or with a
/// file system of which nothing can be removed.
#[test]
fn a_full_node_refuses_files_with_a_next_step_and_serves_on() {
    let mut cluster = Cluster::prepare(SMALL);
    cluster.set_in("meta1", "meta", "memory_max_mib", Some("1"));
    cluster.start_all();
    cluster.wait_volume();
    cluster.ok(&["fs", "mkdir", "/kept"]);
    let import = cluster.path("import");
    fs::create_dir(&import).expect("a directory");
    for number in 0..FILES {
        let name: String = noise(NAME / 2, number as u64).iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(import.join(name), b"").expect("a file");
    }
    let put = cluster.cairn(&["fs", "put", "-r", import.to_str().expect("UTF-8"), "/import"]);
    let said = text(&put.stderr);
    assert!(!put.status.success() && said.contains("the memory for metadata of meta node n"), "{said}");
    assert!(said.contains("cairn admin partition move p") && said.contains("memory_max_mib"), "{said}");

    let refused = |cluster: &Cluster| {
        let output = cluster.cairn(&["fs", "mkdir", "/more"]);
        !output.status.success() && text(&output.stderr).contains("the memory for metadata")
    };
    until("that nothing more fits", || refused(&cluster));
    let there = lines(&cluster, &["fs", "ls", "/import"]).len();
    assert!((1_000..FILES).contains(&there), "{there} files");
    cluster.ok(&["fs", "chmod", "700", "/import"]);
    cluster.ok(&["fs", "mv", "/kept", "/moved"]);
    until("a list that says so", || {
        let listed = cluster.ok(&["admin", "partition", "ls"]);
        listed.contains(" full") && listed.contains("takes no new files")
    });
    assert!(lines(&cluster, &["admin", "partition", "ls"]).iter().any(|partition| partition["full_node"] != 0));
    until("a problem in the status", || {
        let status = text(&cluster.cairn(&["admin", "status"]).stdout);
        status.contains("the memory for metadata is used up")
    });
    // A new partition would be of no use there. What a node has in use comes with its heartbeats.
    let (mut tries, mut refused) = (0, String::new());
    until("a new volume is refused", || {
        tries += 1;
        refused = text(&cluster.cairn(&["admin", "volume", "create", &format!("more{tries}")]).stderr);
        refused.contains(" of 1 MiB")
    });
    assert!(refused.contains("Start another meta node") && refused.contains("memory_max_mib"), "{refused}");
    let [used, max] =
        ["cairn_meta_memory_used_bytes", "cairn_meta_memory_max_bytes"].map(|n| cluster.metric("meta1", n));
    // Sessions that have ended give a little back.
    assert!(max == Some(f64::from(1 << 20)) && used >= max.map(|max| max * 0.93), "{used:?} of {max:?}");

    // The log of what was refused is read again with the same outcome.
    cluster.kill("meta1");
    cluster.restart("meta1");
    until("that it serves", || cluster.cairn(&["fs", "ls", "/moved"]).status.success());
    assert_eq!(lines(&cluster, &["fs", "ls", "/import"]).len(), there);

    cluster.ok(&["fs", "rm", "-r", "--skip-trash", "/import"]);
    until("room", || cluster.cairn(&["fs", "mkdir", "/room"]).status.success());
    until("a list without it", || !cluster.ok(&["admin", "partition", "ls"]).contains(" full"));
    until("a status without it", || !text(&cluster.cairn(&["admin", "status"]).stdout).contains("memory for metadata"));
}
