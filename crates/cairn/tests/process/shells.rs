//! The tab key: scripts of `cairn completion` in the shells that this machine has, with a cluster that is asked.
use crate::support::{Cluster, Shape, binary, text};
use std::fs;
use std::process::Command;

fn has(shell: &str) -> bool {
    let found = Command::new(shell).arg("--version").output().is_ok();
    if !found {
        println!("skipped: {shell} is not installed");
    }
    found
}

/// A cluster with /data/one.txt, /data/other/ and /data/two words.
fn cluster_with_names() -> Cluster {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 1, racks: 1 });
    cluster.ok(&["fs", "mkdir", "-p", "/data/other"]);
    cluster.ok(&["fs", "touch", "/data/one.txt", "/data/two words", "/data/.hidden"]);
    cluster
}

/// What the program answers to the scripts for a line whose last word is completed.
fn words(cluster: &Cluster, line: &[&str]) -> Vec<String> {
    let output = Command::new(binary())
        .arg("--")
        .args(line)
        .env("CAIRN_COMPLETE", "bash")
        .env("CAIRN_CLUSTER", &cluster.address)
        .env("_CLAP_IFS", "\n")
        .env("_CLAP_COMPLETE_INDEX", (line.len() - 1).to_string())
        .output()
        .expect("the binary starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    text(&output.stdout).lines().map(str::to_owned).filter(|word| !word.starts_with('-')).collect()
}

/// Somebody who types a remote path would get no help, or a wrong one.
#[test]
fn remote_paths_are_completed() {
    let cluster = cluster_with_names();
    assert_eq!(words(&cluster, &["cairn", "fs", "ls", "/d"]), ["/data/"]);
    assert_eq!(words(&cluster, &["cairn", "fs", "cat", "/data/o"]), ["/data/one.txt", "/data/other/"]);
    assert_eq!(words(&cluster, &["cairn", "fs", "stat", "default:/data/one"]), ["default:/data/one.txt"]);
    assert_eq!(words(&cluster, &["cairn", "fs", "rm", "/data/."]), ["/data/.hidden"]);
    assert_eq!(words(&cluster, &["cairn", "admin", "volume", "delete", "de"]), ["default"]);
    assert_eq!(words(&cluster, &["cairn", "fs", "ls", "/no/such/"]), [""; 0]);
    assert_eq!(words(&cluster, &["cairn", "--cluster", "127.0.0.1:1", "fs", "ls", "/d"]), [""; 0]);
}

/// Bash takes words apart at colons: a path of another volume would be completed wrongly.
#[test]
fn the_script_of_bash_works_in_bash() {
    if !has("bash") {
        return;
    }
    let cluster = cluster_with_names();
    let bin = cluster.path("bin");
    fs::create_dir(&bin).expect("directory");
    std::os::unix::fs::symlink(binary(), bin.join("cairn")).expect("link");
    let ask = |line: &str, last: &str| {
        let script = format!(
            "source <(cairn completion bash)\nCOMP_LINE={line:?} COMP_POINT={} COMP_WORDS=() COMP_CWORD=0\n\
             compopt() {{ :; }}\n_cairn cairn {last:?} x\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
            line.len()
        );
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        let output = Command::new("bash")
            .args(["-euc", &script])
            .env("PATH", path)
            .env("CAIRN_CLUSTER", &cluster.address)
            .output()
            .expect("bash");
        assert!(output.stderr.is_empty(), "{output:?}");
        text(&output.stdout).trim().to_owned()
    };
    assert_eq!(ask("cairn fs cat /data/on", "/data/on"), "/data/one.txt");
    // Bash holds what is before the colon, or the sign of an option, for another word.
    assert_eq!(ask("cairn fs cat default:/data/on", "/data/on"), "/data/one.txt");
    assert_eq!(ask("cairn fs put --layout=rs-3", "rs-3"), "rs-3-2");
    assert_eq!(ask("cairn fs trunc", "trunc"), "truncate");
}

/// A script with a mistake would be an error in every new shell.
#[test]
fn scripts_are_read_by_their_shells() {
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "-n")] {
        if !has(shell) {
            continue;
        }
        let dir = tempfile::Builder::new().prefix("cairn-test-").tempdir().expect("dir");
        let file = dir.path().join("script");
        let output = Command::new(binary()).args(["completion", shell]).output().expect("the binary starts");
        assert!(output.status.success() && !output.stdout.is_empty(), "{output:?}");
        fs::write(&file, &output.stdout).expect("script");
        let output = Command::new(shell).arg(check).arg(&file).output().expect("the shell starts");
        assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {output:?}");
    }
}
