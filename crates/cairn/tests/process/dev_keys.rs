//! `cairn dev` with keys: whoever started it is served without naming one, strangers are not, and no key of anybody is
//! lost, left behind or taken from where others can put it.
use crate::dev::Dev;
use crate::private::{OTHER_USER, is_root};
use crate::support::{free_base, text};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

const PERMISSION: i32 = 5;

fn temporary() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("cairn-dev-keys-").tempdir().expect("temporary directory")
}

fn address() -> String {
    format!("127.0.0.1:{}", free_base(1))
}

/// Where keys are put.
fn place(dir: &Path) -> PathBuf {
    dir.join("config/cairn")
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("listed").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o7777
}

/// What a user without this one's keys is told.
fn stranger(dev: &Dev, dir: &Path) -> String {
    let output =
        dev.command(&["fs", "ls", "/"]).env("XDG_CONFIG_HOME", dir.join("elsewhere")).output().expect("it runs");
    assert_eq!(output.status.code(), Some(PERMISSION), "{}", text(&output.stderr));
    text(&output.stderr)
}

/// Everybody on the machine would read and change what somebody tries out; or he would have to name his key, or lose it
/// to the next cluster.
#[test]
fn a_new_cluster_serves_who_started_it_and_nobody_else() {
    let dir = temporary();
    let at = address();
    let one = Dev::start_with(dir.path(), "one", &["--listen", &at]);
    one.ok(&["fs", "mkdir", "/of-one"]);
    one.ok(&["admin", "events"]);
    let said = stranger(&one, dir.path());
    assert!(said.contains("--key") && said.contains("keys/client.key"), "{said}");
    let key = dir.path().join("one/keys/client.key");
    let named = one.command(&["--key", key.to_str().expect("UTF-8"), "fs", "ls", "/"]);
    let output = { named }.env("XDG_CONFIG_HOME", dir.path().join("elsewhere")).output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let local = at.replace("127.0.0.1", "localhost");
    one.ok(&["--cluster", &local, "fs", "ls", "/"]);
    assert_eq!((mode(&place(dir.path())), mode(&place(dir.path()).join(&at))), (0o700, 0o600));
    assert_eq!((mode(&dir.path().join("one/keys")), mode(&key)), (0o700, 0o600));

    // Another one of the same user.
    let two = Dev::start_with(dir.path(), "two", &["--listen", "127.0.0.1:0"]);
    two.ok(&["fs", "mkdir", "/of-two"]);
    let listed = one.ok(&["fs", "ls", "/"]);
    assert!(listed.contains("of-one") && !listed.contains("of-two"), "{listed}");
    assert_eq!(two.terminate(), Some(0));
    one.ok(&["fs", "ls", "/"]);
    assert_eq!(names(&place(dir.path())), [at.clone(), local.clone()], "only the keys of the one that runs");

    // A kill leaves them; the next cluster at the address has its own.
    one.kill();
    let three = Dev::start_with(dir.path(), "three", &["--listen", &at]);
    three.ok(&["fs", "mkdir", "/of-three"]);
    three.kill();
    let one = Dev::start_with(dir.path(), "one", &["--listen", &at]);
    assert!(one.ok(&["fs", "ls", "/"]).contains("of-one"));
    assert_eq!(one.terminate(), Some(0));
    // Who listens there meanwhile is told nothing.
    assert_eq!(names(&place(dir.path())), [at.clone(), local]);
    let listener = std::net::TcpListener::bind(&at).expect("the port is free");
    let mut command = std::process::Command::new(crate::support::binary());
    command.args(["--timeout", "5", "--cluster", &at, "fs", "ls", "/secret-name"]).env_remove("CAIRN_KEY");
    let mut asking = command.env("XDG_CONFIG_HOME", dir.path().join("config")).spawn().expect("it runs");
    let (mut stranger, _) = listener.accept().expect("it connects");
    let mut first = [0; 5];
    std::io::Read::read_exact(&mut stranger, &mut first).expect("it begins");
    assert_eq!(first[0], 0x16, "a handshake, and nothing before it");
    drop((stranger, listener));
    assert!(!asking.wait().expect("it ends").success());
}

/// With `sudo` the owner of a cluster could not use it; or root would take keys that anybody may have put somewhere.
#[test]
fn root_takes_a_key_of_the_user_who_called_it() {
    if !is_root() {
        println!("skipped: needs root");
        return;
    }
    let dir = temporary();
    let dev = Dev::start(dir.path());
    let key = dir.path().join("cluster/keys/client.key");
    chown(&key, Some(OTHER_USER), None).expect("given away");
    for (caller, code) in [(None, PERMISSION), (Some("1"), PERMISSION), (Some("x"), PERMISSION), (Some("65534"), 0)] {
        let mut command = dev.command(&["--key", key.to_str().expect("UTF-8"), "fs", "ls", "/"]);
        match caller {
            Some(uid) => command.env("SUDO_UID", uid),
            None => command.env_remove("SUDO_UID"),
        };
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(code), "{caller:?}: {}", text(&output.stderr));
    }
}

/// A cluster that somebody has could not be used any more, or he would not learn how to protect it; or a key that an
/// earlier one left would keep him out.
#[test]
fn a_cluster_without_keys_goes_on_without_until_it_is_given_some() {
    let dir = temporary();
    let at = address();
    Dev::start_with(dir.path(), "other", &["--listen", &at]).kill();
    assert_eq!(names(&place(dir.path())).len(), 2, "it left its keys");
    let dev = Dev::start_with(dir.path(), "old", &["--listen", &at, "--insecure"]);
    assert_eq!(names(&place(dir.path())), Vec::<String>::new());
    dev.ok(&["fs", "mkdir", "/kept"]);
    assert_eq!(dev.terminate(), Some(0));

    let dev = Dev::start_with(dir.path(), "old", &["--listen", &at]);
    assert!(dev.ok(&["fs", "ls", "/"]).contains("kept"));
    assert!(dev.said().contains("begun without keys") && dev.said().contains("--secure"), "{}", dev.said());
    assert!(!dir.path().join("old/keys").exists());
    assert_eq!(dev.terminate(), Some(0));

    let dev = Dev::start_with(dir.path(), "old", &["--listen", &at, "--secure"]);
    assert!(dev.ok(&["fs", "ls", "/"]).contains("kept"));
    stranger(&dev, dir.path());
    dev.kill();
    // From then on without being told.
    let dev = Dev::start_with(dir.path(), "old", &["--listen", &at]);
    stranger(&dev, dir.path());
    assert!(dev.ok(&["fs", "ls", "/"]).contains("kept"));
    assert_eq!(dev.terminate(), Some(0));
    let dev = Dev::start_with(dir.path(), "old", &["--listen", &at, "--insecure"]);
    let output = dev.command(&["fs", "ls", "/"]).env("XDG_CONFIG_HOME", dir.path().join("elsewhere")).output();
    assert!(output.expect("it runs").status.success());
}

/// A key would be written to where somebody else leads it, or over a key that may be the only one; and whoever starts
/// the cluster would not know how to use it.
#[test]
fn a_key_is_not_put_where_others_have_a_hand_in_it() {
    let dir = temporary();
    let (at, config) = (address(), dir.path().join("config"));
    let trap = dir.path().join("trap");
    fs::create_dir(&trap).expect("a directory");
    fs::create_dir(&config).expect("a directory");
    let refused = |why: &str| {
        let dev = Dev::start_with(dir.path(), "cluster", &["--listen", &at]);
        let said = dev.said();
        let key = dir.path().join("cluster/keys/client.key").display().to_string();
        assert!(said.contains(why) && said.contains(&format!("cairn --key {key}")), "{why}: {said}");
        let mut named = dev.command(&["--key", &key, "fs", "ls", "/"]);
        let output = named.output().expect("it runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(dev.terminate(), Some(0));
        fs::remove_file(dir.path().join("cluster.log")).expect("a log");
    };
    symlink(&trap, place(dir.path())).expect("a link");
    refused("is a link or no directory");
    assert_eq!(names(&trap), Vec::<String>::new());
    fs::remove_file(place(dir.path())).expect("removed");

    fs::create_dir(place(dir.path())).expect("a directory");
    fs::set_permissions(place(dir.path()), Permissions::from_mode(0o777)).expect("a mode");
    refused("others can write in");
    fs::set_permissions(place(dir.path()), Permissions::from_mode(0o700)).expect("a mode");
    if is_root() {
        chown(place(dir.path()), Some(OTHER_USER), None).expect("given away");
        refused("belongs to uid 65534");
        chown(place(dir.path()), Some(0), None).expect("taken back");
    }
    assert_eq!(names(&place(dir.path())), Vec::<String>::new());

    // Somebody's key, and a link.
    let (theirs, linked) = (place(dir.path()).join(&at), place(dir.path()).join(at.replace("127.0.0.1", "localhost")));
    fs::write(&theirs, "the only key of a cluster").expect("written");
    refused("did not write is there, and stays");
    assert_eq!(fs::read_to_string(&theirs).expect("read"), "the only key of a cluster");
    fs::remove_file(&theirs).expect("removed");
    fs::remove_file(&linked).expect("it was put there");
    symlink(trap.join("file"), &linked).expect("a link");
    refused("it is a link, and is not followed");
    assert_eq!(names(&trap), Vec::<String>::new());
}

/// A cluster would take its keys from where another user put them.
#[test]
fn keys_that_others_can_reach_are_not_taken() {
    let dir = temporary();
    let start = || {
        let mut command = std::process::Command::new(crate::support::binary());
        command.args(["dev", "--nodes", "1", "--racks", "1", "--listen", "127.0.0.1:0", "--data-dir"]);
        command.arg(dir.path().join("cluster")).env("XDG_CONFIG_HOME", dir.path().join("config"));
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    assert_eq!(Dev::start(dir.path()).terminate(), Some(0));
    let (keys, moved) = (dir.path().join("cluster/keys"), dir.path().join("moved"));
    fs::set_permissions(&keys, Permissions::from_mode(0o755)).expect("a mode");
    assert!(start().contains("chmod 700"));
    fs::set_permissions(&keys, Permissions::from_mode(0o700)).expect("a mode");
    fs::rename(&keys, &moved).expect("moved");
    symlink(&moved, &keys).expect("a link");
    assert!(start().contains("is no directory"));
    fs::remove_file(&keys).expect("removed");
    // Lost: everybody would be served, and nobody told.
    let said = start();
    assert!(said.contains("is gone") && said.contains("--secure") && said.contains("--insecure"), "{said}");
    fs::rename(&moved, &keys).expect("moved back");
    // Whoever can change the directory decides what is a cluster without keys.
    let (cluster, head) = (dir.path().join("cluster"), dir.path().join("cluster/node1"));
    for path in [&cluster, &head] {
        fs::set_permissions(path, Permissions::from_mode(0o777)).expect("a mode");
        assert!(start().contains("everybody on this machine can write in"));
        fs::set_permissions(path, Permissions::from_mode(0o700)).expect("a mode");
        if is_root() {
            chown(path, Some(OTHER_USER), None).expect("given away");
            assert!(start().contains("belongs to uid 65534"));
            chown(path, Some(0), None).expect("taken back");
        }
    }
    let dev = Dev::start(dir.path());
    dev.ok(&["fs", "ls", "/"]);
}

/// A key that was given to somebody would open the cluster for ever.
#[test]
fn a_key_is_taken_away() {
    let dir = temporary();
    let dev = Dev::start(dir.path());
    let (authority, key) = (dir.path().join("cluster/keys/authority"), dir.path().join("bob.key"));
    let (authority, file) = (authority.to_str().expect("UTF-8"), key.to_str().expect("UTF-8"));
    dev.ok(&["key", "client", "bob", "--ca", authority, "--all-volumes", "--out", file]);
    dev.ok(&["--key", file, "fs", "ls", "/"]);
    fs::write(dir.path().join("cluster/keys/revoked"), "bob\n").expect("written");
    crate::wait::until("bob is refused", || {
        let output = dev.command(&["--key", file, "fs", "ls", "/"]).output().expect("it runs");
        output.status.code() == Some(PERMISSION)
    });
    dev.ok(&["fs", "ls", "/"]);
}
