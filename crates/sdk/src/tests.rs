//! Volumes of a cluster in memory.
use crate::{ConnectOptions, Error, File, OpenOptions, Rename, Volume};
use cairn_client::fake::FakeCluster;
use cairn_types::Scheme;
use libc::{O_APPEND, O_CREAT, O_TRUNC, O_WRONLY};
use std::path::Path;
use tokio::runtime::Runtime;

struct Cluster {
    fake: FakeCluster,
    /// Where its servers run.
    _runtime: Runtime,
}

impl Cluster {
    fn start() -> Cluster {
        let runtime = Runtime::new().expect("threads");
        let fake = {
            let _within = runtime.enter();
            FakeCluster::start(3, &[Scheme::Replicated(3)])
        };
        Cluster { fake, _runtime: runtime }
    }
    fn connect(&self) -> Volume {
        let cluster = Some(self.fake.manager());
        Volume::connect(&ConnectOptions { cluster, ..ConnectOptions::default() }, "default").expect("connected")
    }
}

fn fenced(volume: &Volume, path: &str, flags: i32) -> File {
    volume.open(path, OpenOptions::from_flags(O_WRONLY | flags, 0o644).fenced()).expect("opened")
}

fn read(volume: &Volume, path: &str) -> Vec<u8> {
    let mut bytes = vec![0; volume.stat(path).expect("there").size as usize];
    let read = volume.open(path, OpenOptions::reading()).expect("opened").read_at(&mut bytes, 0);
    assert_eq!(read, Ok(bytes.len()));
    bytes
}

fn is_refused(outcome: Result<(), Error>, why: &str) {
    let error = outcome.expect_err("it was acknowledged");
    assert!(error.errno == libc::ESTALE && error.cause.contains(why), "{error}");
}

/// A write-ahead log that somebody took over would lose what he added, or get lines of the one who was given up.
#[test]
fn who_is_fenced_out_adds_nothing() {
    let cluster = Cluster::start();
    let (old, heir) = (cluster.connect(), cluster.connect());
    for flags in [O_CREAT, O_CREAT | O_APPEND] {
        let path = format!("/log{flags}");
        let file = fenced(&old, &path, flags);
        file.write_at(&[b'A'; 100], 0).expect("written");
        file.flush().expect("flushed");
        file.write_at(&[b'B'; 50], 100).expect("written");
        heir.fence(&path, b"mark").expect("shut out");
        let more = fenced(&heir, &path, O_APPEND);
        more.write_at(&[b'C'; 70], 0).expect("written");
        more.close().expect("closed");
        is_refused(file.flush(), "recovered the file");
        is_refused(file.write_at(b"late", 150), "recovered the file");
        is_refused(file.set_size(10), "recovered the file");
        is_refused(file.close(), "recovered the file");
        assert_eq!(read(&heir, &path), [vec![b'A'; 100], vec![b'C'; 70]].concat());
    }
    // Whoever had nothing to write lost nothing.
    let idle = fenced(&old, &format!("/log{O_CREAT}"), O_APPEND);
    heir.fence(format!("/log{O_CREAT}"), b"another").expect("shut out");
    idle.close().expect("closed");
}

/// A file that somebody makes anew would have the attributes of the old one, and what its old writer still writes.
#[test]
fn a_file_that_is_made_anew_is_another_one() {
    let cluster = Cluster::start();
    let (old, new) = (cluster.connect(), cluster.connect());
    let first = fenced(&old, "/f", O_CREAT);
    first.write_at(&[b'A'; 300], 0).expect("written");
    first.flush().expect("flushed");
    old.set_xattr("/f", b"user.old", b"1", 0).expect("set");
    let reader = old.open("/f", OpenOptions::reading()).expect("opened");
    let options = OpenOptions::from_flags(O_WRONLY | O_CREAT | O_TRUNC, 0o600).fenced().replacing();
    let second = new.open("/f", options).expect("made");
    second.write_at(&[b'C'; 200], 0).expect("written");
    second.close().expect("closed");
    first.write_at(&[b'A'; 300], 300).expect("written");
    is_refused(first.flush(), "removed or replaced");
    is_refused(first.close(), "removed or replaced");
    assert_eq!(read(&new, "/f"), vec![b'C'; 200]);
    let found = new.stat("/f").expect("there");
    assert_eq!((found.mode & 0o777, new.list_xattrs("/f")), (0o600, Ok(Vec::new())));
    let mut all = [0; 300];
    assert_eq!((reader.read_at(&mut all, 0), all), (Ok(300), [b'A'; 300]));
    // Where nothing is, one is made; a directory is left alone.
    new.open("/g", options).expect("made").close().expect("closed");
    new.make_directory("/d", 0o755).expect("made");
    assert_eq!(new.open("/d", options).map(|_| ()).map_err(|error| error.errno), Err(libc::EISDIR));
    // Of a link the file that it leads to is cut.
    new.symlink("/f", "/link").expect("made");
    new.open("/link", options).expect("opened").close().expect("closed");
    assert!(new.lstat("/link").expect("there").inode != found.inode && read(&new, "/f").is_empty());
}

/// Whoever may rename what is below a directory would lead its remover elsewhere.
#[test]
fn removing_entry_by_entry_follows_no_links() {
    let cluster = Cluster::start();
    let volume = cluster.connect();
    for directory in ["/keep", "/top", "/top/sub", "/top/sub/below"] {
        volume.make_directory(directory, 0o755).expect("made");
    }
    for file in ["/keep/precious", "/top/one", "/top/sub/below/two"] {
        fenced(&volume, file, O_CREAT).close().expect("made");
    }
    volume.symlink("/keep", "/top/sub/link").expect("made");
    volume.symlink("/keep", "/link").expect("made");
    let each = |path: &str| {
        volume.remove_each(Path::new(path), &crate::path::absolute(Path::new(path)).expect("a path").remote)
    };
    assert_eq!(each("/link").map_err(|error| error.errno), Err(libc::ENOTDIR));
    assert_eq!(each("/top"), Ok(()));
    assert!(volume.lstat("/top").is_err_and(|error| error.is_not_found()));
    assert!(volume.stat("/keep/precious").is_ok(), "what a link leads to was removed");
}

/// A number that overflows would end the program, or read from somewhere else.
#[test]
fn offsets_behind_every_file_are_refused() {
    let cluster = Cluster::start();
    let volume = cluster.connect();
    fenced(&volume, "/f", O_CREAT).close().expect("made");
    let file = volume.open("/f", OpenOptions::reading()).expect("opened");
    for offset in [u64::MAX, 1 << 63] {
        assert_eq!(file.read_at(&mut [0; 3], offset).map_err(|error| error.errno), Err(libc::EINVAL));
    }
    assert_eq!(file.read_at(&mut [0; 3], (1 << 63) - 1), Ok(0));
}

/// Whoever keeps nothing between the parts of a listing would miss entries, or see them twice.
#[test]
fn directories_are_listed_part_by_part() {
    let cluster = Cluster::start();
    let volume = cluster.connect();
    let count = 1500;
    for number in 0..count {
        volume.make_directory(format!("/{number:04}"), 0o755).expect("made");
    }
    let root = volume.directory("/").expect("there").inode;
    let (mut names, mut after, mut parts) = (Vec::new(), Some(Vec::new()), 0);
    while let Some(from) = after {
        let page = volume.list(root, &from).expect("listed");
        names.extend(page.entries.into_iter().map(|entry| entry.name));
        after = page.next;
        parts += 1;
    }
    names.sort_unstable();
    assert_eq!(names, (0..count).map(|number| format!("{number:04}").into_bytes()).collect::<Vec<_>>());
    assert!(parts > 1, "all came at once");
}

/// A program that removes `DIR/` would lose a file of that name, and who makes `NAME/` would get a file.
#[test]
fn a_slash_at_the_end_asks_for_a_directory() {
    let cluster = Cluster::start();
    let volume = cluster.connect();
    volume.make_directory("/d/", 0o755).expect("made");
    fenced(&volume, "/f", O_CREAT).close().expect("made");
    volume.symlink("d", "/ld").expect("made");
    assert!(volume.lstat("/ld/").expect("found").is_directory());
    assert!(!volume.lstat("/ld").expect("found").is_directory());
    let open = |path, flags| volume.open(path, OpenOptions::from_flags(flags, 0o644)).map(|_| ());
    for (outcome, errno) in [
        (volume.remove_file("/f/"), libc::ENOTDIR),
        (volume.remove_file("/d/"), libc::EISDIR),
        (volume.remove_file("/ld/"), libc::EISDIR),
        (volume.stat("/f/.").map(|_| ()), libc::ENOTDIR),
        (open("/g/", O_WRONLY | O_CREAT), libc::EISDIR),
        (open("/f/", O_WRONLY), libc::ENOTDIR),
        (open("/f", libc::O_DIRECTORY), libc::ENOTDIR),
        (open("/d", libc::O_DIRECTORY), libc::EISDIR),
        (open("/d", libc::O_TMPFILE | O_WRONLY), libc::EOPNOTSUPP),
        (volume.rename("/f/", "/g", Rename::Replace), libc::ENOTDIR),
        (volume.rename("/f", "/g/", Rename::Replace), libc::ENOTDIR),
        (volume.rename("/ld/", "/g", Rename::Replace), libc::ENOTDIR),
        (volume.symlink("d", "/g/"), libc::ENOENT),
        (volume.hard_link("/f", "/g/"), libc::ENOENT),
    ] {
        assert_eq!(outcome.expect_err("refused").errno, errno);
    }
    volume.rename("/d/", "/e/", Rename::Replace).expect("moved");
    volume.stat("/f").expect("it is still there");
    volume.remove_directory("/e/").expect("removed");
}

/// Who reads the error would look at a file that is not in the way.
#[test]
fn a_rename_that_is_refused_names_what_is_in_the_way() {
    let cluster = Cluster::start();
    let volume = cluster.connect();
    volume.make_directories("/d/sub", 0o755).expect("made");
    volume.make_directory("/other", 0o755).expect("made");
    fenced(&volume, "/f", O_CREAT).close().expect("made");
    for (from, to, how, what) in [
        ("/f", "/d", Rename::Replace, "/d"),
        ("/f", "/d/sub", Rename::Replace, "/d/sub"),
        ("/other", "/f", Rename::Replace, "/f"),
        ("/other", "/d", Rename::Replace, "/d"),
        ("/f", "/d", Rename::NoReplace, "/d"),
        ("/none", "/d", Rename::Replace, "/none"),
        ("/f/x", "/d", Rename::Replace, "/f/x"),
        ("/f", "/none/x", Rename::Replace, "/none/x"),
    ] {
        assert_eq!(volume.rename(from, to, how).expect_err("refused").what, what, "{from} to {to}");
    }
}
