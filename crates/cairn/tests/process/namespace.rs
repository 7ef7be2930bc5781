//! What a mount needs of the namespace, by the client library and the command line against a real cluster: files open
//! without a log entry, locks, quotas.
use crate::support::{Cluster, Shape};
use crate::trees::noise;
use crate::wait::{LIMIT, until};
use cairn_client::locks::{FileLock, LockFamily, LockMode};
use cairn_client::{Client, ConnectOptions, FileWriter, LockWait, Volume, WriteOptions};
use cairn_types::{ErrorCode, Layout};
use std::fs;
use std::time::{Duration, Instant};

const SMALL: Shape = Shape { managers: 1, metas: 1, datas: 3, racks: 3 };

async fn volume(cluster: &Cluster) -> Volume {
    let addresses = cluster.address.split(',').map(str::to_owned).collect();
    let client = Client::connect(ConnectOptions::new(addresses)).await.expect("connected");
    client.volume("default").await.expect("volume")
}

async fn write(volume: &Volume, path: &[u8], bytes: &[u8]) -> u64 {
    let layout = Layout::replicated(3);
    let options = WriteOptions { mode: 0o644, mtime_ns: 1, layout, exclusive: true, owner: None };
    let mut writer = volume.write(path, options).await.expect("begun");
    let mut buffer = FileWriter::buffer();
    buffer.extend_from_slice(bytes);
    writer.push(buffer.freeze()).await.expect("pushed");
    writer.finish().await.expect("finished").inode
}

/// A reader on one machine would lose the file that another machine removes, or its space would never come back.
#[test]
fn a_file_that_is_open_outlives_its_name() {
    let cluster = Cluster::start(SMALL);
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    runtime.block_on(async {
        let (writer, reader) = (volume(&cluster).await, volume(&cluster).await);
        let inode = write(&writer, b"/file", &noise(300_000, 3)).await;
        let opened = reader.open_for_read(inode, 4, 100).await.expect("opened");
        let extents = opened.all_extents().expect("they came along");
        assert!(!extents.is_empty());
        let inodes = writer.statfs().await.expect("statfs").inodes;
        writer.unlink(b"/file").await.expect("unlinked");
        assert!(writer.try_stat(b"/file", true).await.expect("stat").is_none());
        // Longer than it takes until every session has been told.
        tokio::time::sleep(Duration::from_secs(7)).await;
        let found = reader.all_extents(inode).await.expect("readable while it is open");
        assert_eq!(found, extents);
        reader.close_for_read(inode).await.expect("closed");
        let started = Instant::now();
        while writer.statfs().await.expect("statfs").inodes >= inodes {
            assert!(started.elapsed() < LIMIT, "the closed file was not reclaimed");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let gone = reader.all_extents(inode).await.err().and_then(|error| error.code());
        assert_eq!(gone, Some(ErrorCode::Stale));
    });
}

/// Two machines would both hold one lock, or a machine that ended would keep it.
#[test]
fn locks_exclude_other_clients_and_go_with_theirs() {
    let cluster = Cluster::start(SMALL);
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    runtime.block_on(async {
        let (first, second) = (volume(&cluster).await, volume(&cluster).await);
        let inode = write(&first, b"/file", b"x").await;
        let (family, mode) = (LockFamily::Posix, LockMode::Write);
        let lock = FileLock { family, mode, owner: 1, start: 0, end: u64::MAX, pid: 7 };
        first.set_lock(inode, b"/file", lock).await.expect("locked");
        let refused = second.set_lock(inode, b"/file", lock).await.err().and_then(|error| error.code());
        assert_eq!(refused, Some(ErrorCode::Locked));
        assert_eq!(second.get_lock(inode, lock).await.expect("asked").map(|other| other.pid), Some(7));
        // One wait lasts two seconds at most.
        let wait = async {
            let started = Instant::now();
            while second.wait_lock(inode, lock, Duration::from_secs(2)).await.expect("waited") != LockWait::Free {
                assert!(started.elapsed() < LIMIT, "the end of a session gives its locks back");
            }
        };
        let end = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            first.close().await;
        };
        tokio::join!(wait, end);
        second.set_lock(inode, b"/file", lock).await.expect("free");
    });
}

/// A directory would outgrow its limit, or could not be emptied.
#[test]
fn quotas_refuse_what_is_too_much() {
    let cluster = Cluster::start(SMALL);
    fs::write(cluster.path("big"), noise(200_000, 5)).expect("written");
    fs::write(cluster.path("small"), noise(20_000, 6)).expect("written");
    let local = |name: &str| cluster.path(name).to_string_lossy().into_owned();
    cluster.ok(&["fs", "mkdir", "-p", "/home/ann/old"]);
    cluster.ok(&["fs", "quota", "set", "--bytes", "100k", "--inodes", "4", "/home/ann"]);
    // What is there already is counted behind.
    let counted = || cluster.ok(&["fs", "quota", "get", "/home/ann"]).contains("inodes 1 of 4");
    until("what the directory has is counted", counted);
    cluster.ok(&["fs", "put", &local("small"), "/home/ann/a"]);
    let error = cluster.fails(&["fs", "put", &local("big"), "/home/ann/b"], 6);
    assert!(error.contains("quota"), "{error}");
    cluster.ok(&["fs", "mkdir", "/home/ann/c", "/home/ann/d"]);
    cluster.fails(&["fs", "mkdir", "/home/ann/e"], 6);
    let told = cluster.ok(&["fs", "quota", "get", "/home/ann"]);
    assert!(told.contains("bytes 20000 of 102400") && told.contains("inodes 4 of 4"), "{told}");
    let listed = cluster.ok(&["fs", "quota", "ls"]);
    assert!(listed.contains("/home/ann") && listed.contains("102400"), "{listed}");
    cluster.ok(&["fs", "rm", "--skip-trash", "-r", "/home/ann/a", "/home/ann/c"]);
    // So is what is removed for good.
    until("there is room", || cluster.cairn(&["fs", "put", &local("small"), "/home/ann/f"]).status.success());
    cluster.ok(&["fs", "quota", "rm", "/home/ann"]);
    cluster.ok(&["fs", "put", &local("big"), "/home/ann/b"]);
    cluster.fails(&["fs", "quota", "get", "/home/ann"], 3);
}
