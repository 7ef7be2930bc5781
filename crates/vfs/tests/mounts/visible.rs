//! Mounts whose closes make files visible before they are durable: what it costs, and what crashes leave.
use crate::*;
use cairn_env::{FastRng, Rng};
use cairn_vfs::SetAttr;
use std::collections::BTreeMap;

const ALL: [u32; 5] = [1, 2, 3, 4, 5];

fn visible() -> VfsOptions {
    VfsOptions { close_visible: true, ..options() }
}
/// One that makes nothing durable by itself.
async fn lazy_mount(cluster: &FakeCluster) -> Vfs {
    let lazy = VfsOptions { durable_after: Duration::from_secs(3600), ..visible() };
    mount_with(cluster, Duration::from_secs(8), lazy).await
}
async fn put(vfs: &Vfs, name: &str, data: &[u8]) -> u64 {
    let (ino, handle) = create(vfs, name, WRONLY).await;
    write(vfs, handle, 0, data).await;
    close(vfs, handle).await;
    ino
}
/// Client and members crash at the same moment, and everything is settled. How many bytes of members that took.
fn crash_all(cluster: &FakeCluster) -> u64 {
    let lost = cluster.crash(&ALL);
    cluster.expire_sessions();
    cluster.settle_volatile();
    cluster.check_namespace();
    lost
}

/// It would cost as much as being durable, or files would never become so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_files_need_few_syncs() {
    const FILES: u64 = 100;
    let mut syncs = Vec::new();
    for options in [options(), VfsOptions { durable_after: Duration::from_secs(3600), ..visible() }] {
        let cluster = cluster();
        let vfs = mount_with(&cluster, Duration::from_secs(8), options).await;
        put(&vfs, "first", b"opens the session and a chunk").await;
        vfs.syncfs().await.expect("synced");
        let before = cluster.syncs();
        cluster.take_calls();
        for i in 0..FILES {
            put(&vfs, &format!("f{i}"), &[7; 4096]).await;
        }
        let calls = cluster.take_calls();
        for call in ["Create", "Append"] {
            assert_eq!(calls.get(call), Some(&FILES), "{calls:?}");
        }
        let publishes = ["Publish", "PublishVolatile"].iter().filter_map(|call| calls.get(call)).sum::<u64>();
        assert_eq!(publishes, FILES, "{calls:?}");
        vfs.syncfs().await.expect("synced");
        assert_eq!(vfs.status().volatile_files, 0);
        syncs.push(cluster.syncs() - before);
        let noted = cluster.take_calls().get("NoteDurable").copied().unwrap_or_default();
        let noted = noted + calls.get("NoteDurable").copied().unwrap_or_default();
        assert!(noted <= FILES / 4, "{noted} entries in the log");
        assert_eq!(crash_all(&cluster), 0, "all of it was durable");
    }
    assert!(syncs[0] >= FILES && syncs[1] <= FILES / 4, "{syncs:?}");
}

/// A file would have wrong bytes or a hole, one that was synced would be short, or readers would meet errors for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_all_leaves_what_was_synced() {
    let cluster = cluster();
    let vfs = lazy_mount(&cluster).await;
    let synced = put(&vfs, "synced", &[1; 10_000]).await;
    let handle = open(&vfs, synced, RDONLY).await;
    vfs.fsync(handle, false).await.expect("synced by another descriptor");
    close(&vfs, handle).await;
    let closed = put(&vfs, "closed", &[2; 10_000]).await;
    let (longer, handle) = create(&vfs, "longer", RDWR).await;
    write(&vfs, handle, 0, &[3; 5000]).await;
    vfs.fsync(handle, false).await.expect("synced");
    write(&vfs, handle, 5000, &[4; 5000]).await;
    close(&vfs, handle).await;
    let other = mount(&cluster).await;
    assert_eq!(contents(&other, closed).await, [2; 10_000], "others see it at once");
    assert!(crash_all(&cluster) > 0, "nothing was lost: it was durable");
    let after = mount(&cluster).await;
    assert_eq!(contents(&after, synced).await, [1; 10_000]);
    assert_eq!(contents(&after, closed).await, [0; 0]);
    assert_eq!(contents(&after, longer).await, [3; 5000]);
}

/// What was closed would be lost with one member's memory, or be named where it is no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_members_is_made_good_by_the_client() {
    let cluster = cluster();
    let vfs = lazy_mount(&cluster).await;
    let files: Vec<(u64, u8)> = {
        let mut files = Vec::new();
        for i in 0..10u8 {
            files.push((put(&vfs, &format!("f{i}"), &vec![i + 1; 30_000]).await, i + 1));
        }
        files
    };
    assert!(cluster.crash(&ALL) > 0, "nothing was lost: it was durable");
    vfs.syncfs().await.expect("sent again, and named there");
    assert_eq!(vfs.status().volatile_files, 0);
    assert_eq!(crash_all(&cluster), 0);
    let after = mount(&cluster).await;
    for (ino, byte) in files {
        assert_eq!(contents(&after, ino).await, vec![byte; 30_000]);
    }
}

/// A program that replaces its file by writing a new one would find neither after a crash; or what it cut off and wrote
/// anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_replaces_something_is_durable_first() {
    let cluster = cluster();
    let vfs = lazy_mount(&cluster).await;
    let old = put(&vfs, "f", &[1; 9000]).await;
    let rewritten = put(&vfs, "rewritten", &[1; 9000]).await;
    let changed = put(&vfs, "changed", &[1; 9000]).await;
    vfs.syncfs().await.expect("synced");
    let new = put(&vfs, "new", &[2; 8000]).await;
    vfs.lookup(&root(), ROOT, b"f").await.expect("as the kernel does");
    vfs.rename(&root(), (ROOT, b"new"), (ROOT, b"f"), 0).await.expect("renamed");
    let handle = open(&vfs, rewritten, WRONLY | TRUNC).await;
    write(&vfs, handle, 0, &[3; 100]).await;
    close(&vfs, handle).await;
    let handle = open(&vfs, changed, WRONLY).await;
    write(&vfs, handle, 10, &[4; 100]).await;
    write(&vfs, handle, 9000, &[4; 100]).await;
    close(&vfs, handle).await;
    put(&vfs, "lost", &[5; 100]).await;
    assert!(crash_all(&cluster) > 0, "nothing was lost");
    let after = mount(&cluster).await;
    let found = after.lookup(&root(), ROOT, b"f").await.expect("there").attr.ino;
    assert!(found == new && found != old);
    assert_eq!(contents(&after, new).await, [2; 8000]);
    assert_eq!(contents(&after, rewritten).await, [3; 100]);
    let bytes = contents(&after, changed).await;
    assert!(bytes.len() == 9100 && bytes[10..110] == [4; 100] && bytes[110..9000].iter().all(|byte| *byte == 1));
}

/// Another machine would be told that a file is durable which is not, or never be let near it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_mount_waits_until_it_is_durable() {
    let cluster = cluster();
    let patient = |options| VfsOptions { timeout: Duration::from_secs(120), ..options };
    let vfs = mount_with(&cluster, Duration::from_secs(60), patient(visible())).await;
    let other = mount_with(&cluster, Duration::from_secs(60), patient(options())).await;
    let ino = put(&vfs, "f", &[1; 9000]).await;
    put(&other, "old", &[9; 10]).await;
    let handle = open(&other, ino, RDWR).await;
    write(&other, handle, 10, &[2; 10]).await;
    other.fsync(handle, false).await.expect("waits for the first one");
    assert_eq!(cluster.crash(&ALL), 0, "something was not durable");
    close(&other, handle).await;
    let next = put(&vfs, "next", &[3; 9000]).await;
    other.rename(&root(), (ROOT, b"next"), (ROOT, b"old"), 0).await.expect("waits as well");
    assert_eq!(crash_all(&cluster), 0, "something was not durable");
    let after = mount(&cluster).await;
    assert_eq!(after.lookup(&root(), ROOT, b"old").await.expect("there").attr.ino, next);
    assert!(contents(&after, ino).await[..30] == [[1; 10], [2; 10], [1; 10]].concat());
    assert_eq!(contents(&after, next).await, [3; 9000]);
}

/// What files are expected to have after a crash.
#[derive(Default)]
struct Model {
    /// All that was written, and how much of that has to be there.
    files: BTreeMap<u64, (Vec<u8>, usize)>,
}

impl Model {
    async fn check(&self, after: &Vfs, seed: u64) {
        for (ino, (whole, synced)) in &self.files {
            let found = contents(after, *ino).await;
            assert!(
                found.len() >= *synced,
                "seed {seed}: {ino} has {} of {synced} bytes that were synced",
                found.len()
            );
            assert!(found[..] == whole[..found.len()], "seed {seed}: {ino} has other bytes");
        }
    }
}

/// Any order of closes, syncs and crashes would leave bytes that nobody wrote there, or lose some that were synced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_crashes_leave_beginnings() {
    let mut lost = 0;
    for seed in 0..12u64 {
        let cluster = cluster();
        let rng = FastRng::seeded(seed);
        let mut model = Model::default();
        for life in 0..3u8 {
            let vfs = lazy_mount(&cluster).await;
            for step in 0..25u8 {
                let byte = 1 + step + 50 * life;
                let data = vec![byte; 1 + rng.below(if rng.below(4) == 0 { 200_000 } else { 6000 }) as usize];
                match rng.below(8) {
                    0..=3 => {
                        let ino = put(&vfs, &format!("{life}-{step}"), &data).await;
                        model.files.insert(ino, (data, 0));
                    }
                    kind if !model.files.is_empty() => {
                        let at = rng.below(model.files.len() as u64) as usize;
                        let (ino, (whole, synced)) = model.files.iter_mut().nth(at).expect("some");
                        let handle = open(&vfs, *ino, RDWR).await;
                        if kind != 7 {
                            write(&vfs, handle, whole.len() as u64, &data).await;
                            whole.extend(&data);
                        }
                        if kind >= 6 {
                            vfs.fsync(handle, false).await.expect("synced");
                            *synced = whole.len();
                        }
                        close(&vfs, handle).await;
                    }
                    _ => {
                        cluster.crash(&[1 + rng.below(5) as u32]);
                    }
                }
            }
            if rng.below(3) == 0 {
                lost += cluster.crash(&ALL);
                vfs.syncfs().await.expect("the client has it all");
                model.files.values_mut().for_each(|(whole, synced)| *synced = whole.len());
            }
            lost += crash_all(&cluster);
            model.check(&mount(&cluster).await, seed).await;
            // What is gone is gone: later lives go on behind it.
            let after = mount(&cluster).await;
            for (ino, (whole, _)) in &mut model.files {
                *whole = contents(&after, *ino).await;
            }
        }
    }
    assert!(lost > 0, "no crash took anything");
}

/// While a cluster begins, or is upgraded, closing a file would fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_partition_gets_durable_bytes() {
    let cluster = cluster();
    let vfs = lazy_mount(&cluster).await;
    cluster.set_older_build(true);
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let mut inodes = Vec::new();
    for (name, early, sync) in [("a", false, false), ("b", true, false), ("c", true, true)] {
        let (ino, handle) = create(&vfs, name, WRONLY).await;
        write(&vfs, handle, 0, &[7; 10_000]).await;
        if early {
            vfs.setattr(&root(), ino, Some(handle), mode).await.expect("set");
        }
        if sync {
            vfs.fsync(handle, false).await.expect("synced");
        }
        close(&vfs, handle).await;
        inodes.push(ino);
    }
    assert_eq!(vfs.status().volatile_files, 0);
    crash_all(&cluster);
    for ino in inodes {
        assert_eq!(contents(&mount(&cluster).await, ino).await, [7; 10_000], "it was closed before it was durable");
    }
}
