//! Small mistakes on the command line: what they get said, and the exit codes.
use crate::support::{Cluster, Shape, binary, free_ports, text};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const SMALL: Shape = Shape { managers: 1, metas: 1, datas: 1, racks: 1 };

/// A command that silently does nothing, a wrong class for scripts, or a next step that cannot help.
#[test]
fn small_mistakes_are_told_as_they_are() {
    let cluster = Cluster::start(SMALL);
    let tree = cluster.path("tree");
    fs::create_dir(&tree).expect("tree");
    fs::write(tree.join("file"), b"contents").expect("file");
    std::os::unix::fs::symlink("file", tree.join("link")).expect("link");
    let tree = tree.to_str().expect("utf-8");
    cluster.ok(&["fs", "put", "-l", "r1", tree, "/tree"]);

    // Two names of one file, and a file onto itself: rename does nothing, so the command says it.
    cluster.ok(&["fs", "ln", "/tree/file", "/tree/second"]);
    for target in ["/tree/second", "/tree/file"] {
        let said = cluster.fails(&["fs", "mv", "/tree/file", target], 2);
        assert!(said.contains("same file"), "{said}");
    }
    assert_eq!(cluster.ok(&["fs", "cat", "/tree/second"]), "contents");

    let said = cluster.fails(&["fs", "ln", "/tree", "/further"], 14);
    assert!(said.contains("/tree is a directory") && said.contains("ln -s"), "{said}");
    let said = cluster.fails(&["fs", "put", "-", "/"], 14);
    assert!(said.contains("such as /name"), "{said}");
    let said = cluster.fails(&["fs", "put", "-", "/nowhere/file"], 3);
    assert!(said.contains("mkdir -p /nowhere"), "{said}");
    // Nothing of a tree whose directory cannot be made was done, nor left as it was.
    let said = cluster.fails(&["fs", "put", tree, "/tree/file"], 14);
    assert!(!said.contains("left as they were"), "{said}");
    let said = cluster.fails(&["fs", "cp", "-r", "/tree", "/tree/file"], 2);
    assert!(said.contains("within it"), "{said}");
    cluster.ok(&["fs", "touch", "/other"]);
    let said = cluster.fails(&["fs", "cp", "-r", "/tree", "/other"], 14);
    assert!(!said.contains("left as they were"), "{said}");

    // Mistakes of the command line itself are JSON as well.
    for args in [&["--json", "fs", "put", "--nonsense"][..], &["fs", "ls", "--json", "--nonsense"]] {
        let said = cluster.fails(args, 2);
        let start = said.trim_start();
        assert!(start.starts_with('{') && said.contains("\"usage\"") && said.contains("--nonsense"), "{said}");
    }
}

fn dev(dir: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(["dev", "--racks", "1", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir).args(more);
    // No place for a key, as none is to be left behind.
    command.env_remove("XDG_CONFIG_HOME").env_remove("HOME");
    command.output().expect("the binary starts")
}

/// Files of somebody would end up in the middle of a cluster; scripts could not tell a port in use from a defect.
#[test]
fn a_cluster_is_not_begun_where_it_cannot_be() {
    let dir = tempfile::tempdir().expect("dir");
    fs::write(dir.path().join("holiday.jpg"), b"x").expect("file");
    let refused = dev(dir.path(), &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("holiday.jpg"), "{}", text(&refused.stderr));
    assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1, "something was made beside it");

    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    let refused = dev(&dir.path().join("new"), &["--nodes", "1", "--http", &address]);
    let said = text(&refused.stderr);
    assert!(said.contains(&address), "{said}");
    assert_eq!(said.matches("ddress already in use").count(), 1, "{said}");
    assert_eq!(refused.status.code(), Some(20), "{said}");
    assert_eq!(dev(dir.path(), &["--nodes", "0"]).status.code(), Some(2));
}

/// A server with the configuration of another machine would be started again and again, without a word of what to do.
#[test]
fn a_directory_of_another_member_is_a_mistake_of_the_configuration() {
    let dir = tempfile::tempdir().expect("dir");
    let ports = free_ports(2);
    let addresses = [format!("1@127.0.0.1:{}", ports[0]), format!("2@127.0.0.1:{}", ports[1])];
    let config = |member: usize| {
        let path = dir.path().join(format!("{member}.toml"));
        let (node, listen) = (dir.path().join("node"), &addresses[member - 1][2..]);
        let text = format!(
            "[node]\ndir = {node:?}\nlisten = {listen:?}\nhttp = \"127.0.0.1:0\"\n[manager]\nmembers = {:?}\nmember = {member}\n",
            &addresses[..member]
        );
        fs::write(&path, text).expect("configuration");
        path
    };
    let server = |member: usize| {
        let mut command = Command::new(binary());
        command.args(["server", "--config"]).arg(config(member));
        command
    };
    let mut first = server(1).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary starts");
    let mut ready = String::new();
    BufReader::new(first.stdout.take().expect("a pipe")).read_line(&mut ready).expect("a line");
    first.kill().and_then(|()| first.wait()).expect("it ends");
    assert!(ready.starts_with("ready"), "{ready}");
    let second = server(2).output().expect("the binary starts");
    let said = text(&second.stderr);
    assert_eq!(second.status.code(), Some(11), "{said}");
    assert!(said.contains("belongs to node n1") && said.contains("put that of n1 back"), "{said}");
}
