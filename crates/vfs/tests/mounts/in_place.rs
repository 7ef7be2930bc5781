//! Small writes into existing files: blocks are overwritten where they are, under the file's lease.
use crate::*;
use cairn_env::{FastRng, Rng};
use std::collections::BTreeMap;

const BLOCK: usize = 4096;

/// Calls that cost somebody something, without background work.
fn counts(cluster: &FakeCluster) -> BTreeMap<&'static str, u64> {
    let mut calls = cluster.take_calls();
    for background in ["KeepAlive", "GetMap", "Release", "Seal", "Ping", "Discard"] {
        calls.remove(background);
    }
    calls
}

/// A file of so many blocks, each with its number, and a handle for both; the lease is taken.
async fn file(cluster: &FakeCluster, vfs: &Vfs, blocks: usize) -> (u64, Handle, Vec<u8>) {
    let (ino, handle) = create(vfs, "f", RDWR).await;
    let mut model: Vec<u8> = (0..blocks * BLOCK).map(|i| (i / BLOCK) as u8).collect();
    for (i, part) in model.chunks(1 << 20).enumerate() {
        write(vfs, handle, (i << 20) as u64, part).await;
    }
    vfs.fsync(handle, false).await.expect("synced");
    for round in 0..3u8 {
        put(vfs, handle, &mut model, 7 * BLOCK, &[round; BLOCK]).await;
        vfs.fsync(handle, false).await.expect("synced");
    }
    assert!(cluster.overwrites() > 0, "from some flush on small writes go in place");
    counts(cluster);
    (ino, handle, model)
}

async fn put(vfs: &Vfs, handle: Handle, model: &mut Vec<u8>, at: usize, data: &[u8]) {
    write(vfs, handle, at as u64, data).await;
    model.resize(model.len().max(at + data.len()), 0);
    model[at..at + data.len()].copy_from_slice(data);
}

/// A synced block of a database would cost a log entry of the metadata and an extent each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn synced_blocks_cost_an_overwrite_each_and_no_metadata() {
    let cluster = cluster();
    let vfs = still_mount(&cluster).await;
    let (ino, handle, mut model) = file(&cluster, &vfs, 512).await;
    let rng = FastRng::seeded(5);
    for i in 0..50u8 {
        let block = rng.below(512) as usize;
        put(&vfs, handle, &mut model, block * BLOCK, &[i; BLOCK]).await;
        vfs.fsync(handle, false).await.expect("synced");
    }
    let calls = counts(&cluster);
    assert_eq!(calls.get("Overwrite"), Some(&50), "{calls:?}");
    let metadata: u64 = ["Publish", "OverwriteLease", "Setattr", "Getattr"].iter().filter_map(|op| calls.get(op)).sum();
    assert!(metadata <= 1 && !calls.contains_key("Append"), "{calls:?}");
    // Many at once go in vectors.
    for i in 0..200u8 {
        put(&vfs, handle, &mut model, 2 * usize::from(i) * BLOCK, &[i; BLOCK]).await;
    }
    vfs.fsync(handle, false).await.expect("synced");
    let calls = counts(&cluster);
    assert!(calls["Overwrite"] <= 4 && !calls.contains_key("Append"), "{calls:?}");
    let extents =
        cluster.connect().await.volume("default").await.expect("volume").all_extents(ino).await.expect("extents");
    assert!(extents.len() <= 8, "{} extents", extents.len());
    let other = mount(&cluster).await;
    assert!(contents(&other, ino).await == model);
    close(&vfs, handle).await;
    cluster.check_namespace();
}

/// Whoever opens a file after a sync would see old bytes, in the kernel's pages or in what was read ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_opens_elsewhere_see_what_was_synced() {
    let cluster = cluster();
    let (one, two) = (mount(&cluster).await, mount(&cluster).await);
    let (ino, handle, mut model) = file(&cluster, &one, 64).await;
    assert!(contents(&two, ino).await == model);
    for round in 10..13u8 {
        put(&one, handle, &mut model, 20 * BLOCK, &[round; BLOCK]).await;
        one.fsync(handle, false).await.expect("synced");
        let opened = two.open(&root(), ino, RDONLY).await.expect("opened");
        assert!(!opened.keep_cache, "pages may be older than what was synced");
        assert!(read_all(&two, opened.handle).await == model);
        close(&two, opened.handle).await;
    }
    let before = two.getattr(&root(), ino, None).await.expect("attributes").0.mtime;
    put(&one, handle, &mut model, 21 * BLOCK, &[99; BLOCK]).await;
    close(&one, handle).await;
    let opened = two.open(&root(), ino, RDONLY).await.expect("opened");
    assert!(!opened.keep_cache);
    assert!(read_all(&two, opened.handle).await == model);
    close(&two, opened.handle).await;
    assert!(two.getattr(&root(), ino, None).await.expect("attributes").0.mtime > before, "a closed file has its time");
    for _ in 0..100 {
        // The lease is given back behind the close.
        let again = two.open(&root(), ino, RDONLY).await.expect("opened");
        close(&two, again.handle).await;
        if again.keep_cache {
            return cluster.check_namespace();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("pages are never kept again");
}

/// Bytes of one mount would be lost in blocks that another has moved away from.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_mounts_overwrite_one_file() {
    let cluster = cluster();
    let (one, two) = (mount(&cluster).await, mount(&cluster).await);
    let (ino, first, mut model) = file(&cluster, &one, 64).await;
    let second = open(&two, ino, RDWR).await;
    for i in 0..12usize {
        let (vfs, handle) = if i % 3 == 0 { (&two, second) } else { (&one, first) };
        put(vfs, handle, &mut model, (i % 5) * BLOCK + (i % 2) * 100, &vec![i as u8 + 100; BLOCK - 200]).await;
        vfs.fsync(handle, false).await.expect("synced");
        let (reader, reading) = if i % 2 == 0 { (&two, second) } else { (&one, first) };
        // As after a lock was taken.
        let fresh = open(reader, ino, RDONLY).await;
        assert!(read_all(reader, fresh).await == model, "round {i}");
        close(reader, fresh).await;
        let _same = reading;
    }
    let third = mount(&cluster).await;
    assert!(contents(&third, ino).await == model);
    // What takes extents out waits for the lease, whoever has it.
    third.setattr(&root(), ino, None, size(10 * BLOCK as u64)).await.expect("cut");
    model.truncate(10 * BLOCK);
    put(&one, first, &mut model, 9 * BLOCK, &[1; BLOCK]).await;
    one.fsync(first, false).await.expect("synced");
    assert!(contents(&third, ino).await == model);
    close(&one, first).await;
    close(&two, second).await;
    cluster.check_namespace();
}

/// A block that cannot be changed in place would not be written at all, or twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_go_in_place_goes_to_new_space() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (ino, handle, mut model) = file(&cluster, &vfs, 64).await;
    cluster.saturate(true);
    put(&vfs, handle, &mut model, 3 * BLOCK, &[200; BLOCK]).await;
    vfs.fsync(handle, false).await.expect("synced");
    let calls = counts(&cluster);
    assert!(calls["Overwrite"] == 1 && calls["Publish"] == 1, "{calls:?}");
    cluster.saturate(false);
    let before = cluster.overwrites();
    // Beyond the end, over it, in a hole, over the edge of two chunks: by pieces, some in place and some not.
    put(&vfs, handle, &mut model, 80 * BLOCK, &[1; 100]).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    vfs.fsync(handle, false).await.expect("synced");
    for (at, length) in [(70 * BLOCK, 10), (80 * BLOCK + 50, 100), (3 * BLOCK - 10, 20), (5 * BLOCK, 1), (0, 3 * BLOCK)]
    {
        put(&vfs, handle, &mut model, at, &vec![at as u8 | 1; length]).await;
        vfs.fsync(handle, false).await.expect("synced");
        assert!(read_all(&vfs, handle).await == model, "at {at}");
    }
    assert!(cluster.overwrites() > before);
    let other = mount(&cluster).await;
    assert!(contents(&other, ino).await == model);
    close(&vfs, handle).await;
    cluster.check_namespace();
}

/// What was on its way when the session ended would count as stored, or be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_session_loses_nothing_in_place() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (ino, handle, mut model) = file(&cluster, &vfs, 64).await;
    for round in 0..3u8 {
        for block in [1usize, 9, 30] {
            put(&vfs, handle, &mut model, block * BLOCK + 5, &[round + 50; 3000]).await;
        }
        assert!(cluster.expire_sessions() > 0);
        vfs.fsync(handle, false).await.expect("synced");
        let other = mount(&cluster).await;
        assert!(contents(&other, ino).await == model, "round {round}");
    }
    close(&vfs, handle).await;
    cluster.check_namespace();
}

/// Random writes of any size would mix with each other, with cuts and holes, or lose their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_writes_beside_a_vector() {
    let cluster = cluster();
    for seed in 0..6 {
        let vfs = mount(&cluster).await;
        let rng = FastRng::seeded(seed);
        let (ino, handle) = create(&vfs, &format!("r{seed}"), RDWR).await;
        let mut model = Vec::new();
        put(&vfs, handle, &mut model, 0, &vec![9; 90_000]).await;
        for step in 0..150u64 {
            let at = rng.below(100_000) as usize;
            let length = 1 + rng.below(if rng.below(4) == 0 { 20_000 } else { 5000 }) as usize;
            match rng.below(20) {
                0..=12 => put(&vfs, handle, &mut model, at, &vec![step as u8; length]).await,
                13 => {
                    model.resize(at, 0);
                    vfs.setattr(&root(), ino, Some(handle), size(at as u64)).await.expect("cut");
                }
                14 => {
                    let end = (at + length).min(model.len());
                    if at < end {
                        model[at..end].fill(0);
                    }
                    vfs.fallocate(handle, PUNCH, (at as u64, length as u64), &[]).await.expect("punched");
                }
                15 => assert!(read_all(&vfs, handle).await == model, "seed {seed} step {step}"),
                _ => vfs.fsync(handle, false).await.expect("synced"),
            }
        }
        vfs.fsync(handle, false).await.expect("synced");
        let other = mount(&cluster).await;
        assert!(contents(&other, ino).await == model, "seed {seed}");
        close(&vfs, handle).await;
    }
    assert!(cluster.overwrites() > 20, "{} overwrites in place", cluster.overwrites());
    cluster.check_namespace();
}

/// Keep-size and punch-hole.
const PUNCH: i32 = 3;

fn size(bytes: u64) -> cairn_vfs::SetAttr {
    cairn_vfs::SetAttr { size: Some(bytes), ..Default::default() }
}
