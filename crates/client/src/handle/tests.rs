//! Tests of handles against a cluster in memory: random operations beside a plain vector of bytes, layout by layout.
use super::*;
use crate::connect::Client;
use crate::extent::Extent;
use crate::fake::FakeCluster;
use crate::file_writer::WriteOptions;
use crate::{Conversion, ConversionControl};
use cairn_env::{FastRng, Rng};
use cairn_types::{ExtentKind, Layout, Scheme};
use std::time::Duration;

const RS: Scheme = Scheme::Erasure { k: 3, m: 2 };
const ROW: u64 = 3 * 4096;

async fn make(volume: &Volume, path: &[u8], layout: &str) {
    let layout: Layout = layout.parse().expect("a layout");
    let options = WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None };
    volume.write(path, options).await.expect("begun").finish().await.expect("made");
}

async fn start(layout: &str) -> (FakeCluster, Client, Volume, FileHandle) {
    let groups = [RS, Scheme::Replicated(3), Scheme::Replicated(2), Scheme::Replicated(2), RS];
    let cluster = FakeCluster::start(5, &groups);
    let client = cluster.connect().await;
    let volume = client.volume("default").await.expect("the volume");
    make(&volume, b"/f", layout).await;
    let handle = volume.open(b"/f").await.expect("opened");
    (cluster, client, volume, handle)
}

async fn kinds(volume: &Volume, inode: u64) -> Vec<(u64, u64, bool)> {
    let extents = volume.all_extents(inode).await.expect("extents");
    let striped = |e: &Extent| e.kind != Some(ExtentKind::Plain);
    extents.iter().map(|e| (e.file_offset, e.length, striped(e))).collect()
}

/// A log that grows line by line would cost its copies for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appended_tails_become_rows() {
    let (cluster, _client, volume, mut handle) = start("rs-3-2/4k").await;
    let mut model = Vec::new();
    for i in 0..20u8 {
        let line = vec![i; 2000];
        assert_eq!(handle.append(&line).await.expect("appended"), model.len() as u64);
        model.extend_from_slice(&line);
        handle.sync().await.expect("synced");
    }
    let extents = kinds(&volume, handle.inode()).await;
    let striped: u64 = extents.iter().filter(|e| e.2).map(|e| e.1).sum();
    assert_eq!(striped, model.len() as u64 / ROW * ROW, "{extents:?}");
    assert!(handle.read_at(0, 1 << 20).await.expect("read") == model);
    handle.close().await.expect("closed");
    cluster.check_namespace();
}

/// Bytes of somebody else would be covered by an append that completes rows, which is cut in two, when the file becomes
/// longer while it is looked at what lies before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_that_become_rows_cover_nothing() {
    let (cluster, _client, volume, mut handle) = start("rs-3-2/4k").await;
    let mut other = volume.open(b"/f").await.expect("opened");
    other.append(&[1; 8000]).await.expect("appended");
    other.sync().await.expect("synced");
    // Knows that the file is another one, and not yet what is in it.
    assert_eq!(handle.append(&[2; 6000]).await.expect("appended"), 8000);
    other.append(&[3; 1000]).await.expect("appended");
    other.sync().await.expect("synced");
    handle.sync().await.expect("synced");
    let model = [vec![1; 8000], vec![3; 1000], vec![2; 6000]].concat();
    assert!(other.read_at(0, 1 << 20).await.expect("read") == model, "an append was laid over another one");
    let extents = kinds(&volume, handle.inode()).await;
    assert!(extents.iter().any(|extent| extent.2), "nothing became rows: {extents:?}");
    handle.close().await.expect("closed");
    other.close().await.expect("closed");
    cluster.check_namespace();
}

/// A program that appends much would have one of its writes cut in two by what others append: the first part was
/// published in the background.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_behind_ends_with_a_whole_append() {
    for layout in ["r3", "rs-3-2/4k"] {
        let (cluster, _client, volume, mut handle) = start(layout).await;
        let mut other = volume.open(b"/f").await.expect("opened");
        let (count, record) = (95, 100_001);
        for number in 0..count {
            handle.append(&vec![number; record]).await.expect("appended");
        }
        handle.data.write_behind();
        in_time("a flight", async {
            while !handle.data.publish_durable().await.expect("published") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        let first = other.append(&[200; 10]).await.expect("appended");
        other.sync().await.expect("synced");
        handle.sync().await.expect("synced");
        assert!(first > 0 && first < u64::from(count) * record as u64, "{layout}: nothing, or all, was written behind");
        assert_eq!(first % record as u64, 0, "{layout}: an append was cut in two");
        let bytes = other.read_at(0, 1 << 30).await.expect("read");
        assert_eq!(bytes.len(), usize::from(count) * record + 10);
        handle.close().await.expect("closed");
        other.close().await.expect("closed");
        cluster.check_namespace();
    }
}

/// Overwriting part of a row would change its neighbours or fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overwritten_rows_are_rows_again_where_they_are_whole() {
    let (cluster, _client, volume, mut handle) = start("rs-3-2/4k").await;
    handle.write_at(0, &vec![1; 6 * ROW as usize]).await.expect("written");
    handle.sync().await.expect("synced");
    handle.write_at(ROW - 100, &vec![2; 2 * ROW as usize + 200]).await.expect("written");
    handle.sync().await.expect("synced");
    let extents = kinds(&volume, handle.inode()).await;
    assert!(extents.contains(&(ROW, 2 * ROW, true)), "{extents:?}");
    let bytes = handle.read_at(0, 1 << 20).await.expect("read");
    let edge = ROW as usize - 100;
    assert!(bytes[..edge].iter().all(|b| *b == 1));
    assert!(bytes[edge..3 * ROW as usize + 100].iter().all(|b| *b == 2));
    assert!(bytes[3 * ROW as usize + 100..].iter().all(|b| *b == 1) && bytes.len() == 6 * ROW as usize);
    cluster.check_namespace();
}

/// A write of another handle would be covered by bytes that were read back before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_handles_on_one_file_lose_nothing() {
    let (cluster, _client, volume, mut first) = start("rs-3-2/4k").await;
    let mut second = volume.open(b"/f").await.expect("opened");
    let mut model = vec![0u8; 40_000];
    for i in 0..40usize {
        let (handle, byte) = if i % 2 == 0 { (&mut first, 1) } else { (&mut second, 2) };
        handle.write_at(i as u64 * 1000, &[byte; 1000]).await.expect("written");
        model[i * 1000..(i + 1) * 1000].fill(byte);
        if i % 3 == 0 {
            let (one, other) = tokio::join!(first.sync(), second.sync());
            one.and(other).expect("synced");
        }
    }
    let (one, other) = tokio::join!(first.sync(), second.sync());
    one.and(other).expect("synced");
    assert!(first.read_at(0, 1 << 20).await.expect("read") == model);
    first.close().await.expect("closed");
    second.write_at(5, b"still open").await.expect("written");
    second.close().await.expect("closed");
    cluster.check_namespace();
}

/// Any order of operations would give other bytes than a plain file.
async fn random_operations(layout: &str, seed: u64, span: u64, steps: usize) {
    let (cluster, _client, volume, mut handle) = start(layout).await;
    let (rng, mut model) = (FastRng::seeded(seed), Vec::<u8>::new());
    for step in 0..steps {
        let mut offset = rng.below(span);
        if rng.below(2) == 0 {
            offset -= offset % 4096;
        }
        let length = (rng.below(1 << rng.below(17)) + 1) as usize;
        let data: Vec<u8> = (0..length).map(|i| (i as u64 * 31 + step as u64 * 7 + 1) as u8).collect();
        match rng.below(12) {
            0..=4 => {
                handle.write_at(offset, &data).await.expect("written");
                model.resize(model.len().max(offset as usize + length), 0);
                model[offset as usize..offset as usize + length].copy_from_slice(&data);
            }
            5..=6 => {
                handle.append(&data).await.expect("appended");
                model.extend_from_slice(&data);
            }
            7 => {
                handle.truncate(offset).await.expect("truncated");
                model.resize(offset as usize, 0);
            }
            8..=9 => handle.sync().await.expect("synced"),
            10 => {
                handle.close().await.expect("closed");
                handle = volume.open(b"/f").await.expect("opened");
            }
            _ => {
                let want: &[u8] = model.get(offset as usize..model.len().min(offset as usize + length)).unwrap_or(&[]);
                let have = handle.read_at(offset, length).await.expect("read");
                assert!(have == want, "{layout} seed {seed} step {step}: {length} bytes at {offset}");
            }
        }
        assert_eq!(handle.attributes().await.expect("attributes").size, model.len() as u64);
    }
    assert!(handle.read_at(0, usize::MAX / 2).await.expect("read") == model, "{layout} seed {seed}");
    handle.close().await.expect("closed");
    let handle = volume.open(b"/f").await.expect("opened");
    assert!(handle.read_at(0, usize::MAX / 2).await.expect("read") == model, "{layout} seed {seed}, opened again");
    cluster.check_namespace();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_on_copies() {
    random_operations("r3", 1, 300_000, 150).await;
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_on_rows() {
    for (seed, unit) in [(2, "4k"), (3, "4k"), (4, "16k")] {
        random_operations(&format!("rs-3-2/{unit}"), seed, 300_000, 120).await;
    }
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_on_stripe_sets() {
    for seed in [5, 6] {
        random_operations("r2x3/4k", seed, 300_000, 100).await;
    }
}

/// Bytes by their place, so that any that are moved show.
fn noise(from: u64, length: usize) -> Vec<u8> {
    (from..from + length as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(40), work).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

/// The part up to the first whole block goes its own way, and nobody would ask for its sync: a long write that does not
/// begin with a block would never be durable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_writes_may_begin_within_a_block() {
    for layout in ["r3", "rs-3-2/4k", "rs-3-2/64k", "r2x3/4k", "r2x3/64k"] {
        for (first, second) in [(300_001, 1_500_000), (100, 1_200_000), (4096, 1_500_000), (5000, 64 << 10)] {
            let (cluster, _client, _volume, mut handle) = start(layout).await;
            let what = format!("{layout}: {second} bytes behind {first}");
            handle.write_at(0, &noise(0, first)).await.expect("written");
            in_time(&what, handle.sync()).await.expect("synced");
            handle.write_at(first as u64, &noise(first as u64, second)).await.expect("written");
            in_time(&what, handle.sync()).await.expect("synced");
            let back = handle.read_at(0, usize::MAX / 2).await.expect("read");
            assert!(back == noise(0, first + second), "{what}");
            in_time(&what, handle.close()).await.expect("closed");
            cluster.check_namespace();
        }
    }
}

/// Files that got fat would stay so for ever, or files that are as small as they can be would be written anew each
/// time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_fat_files_are_written_anew_by_the_same_layout() {
    // Overwritten in the middle of rows; with holes, where data begins within a block; grown by small appends.
    for (layout, step, gap, overwritten) in [
        ("rs-3-2/64k", 100_000, 0, 70_000),
        ("rs-3-2/64k", 100_000, 0, 0),
        ("rs-3-2/4k", 40_001, 77_777, 0),
        ("rs-3-2/4k", 40_001, 77_777, 9_000),
    ] {
        let (cluster, _client, volume, mut handle) = start(layout).await;
        let mut model = vec![0; 12 * (step + gap) as usize];
        for i in 0..12 {
            let at = i * (step + gap);
            model[at as usize..(at + step) as usize].copy_from_slice(&noise(at, step as usize));
            handle.write_at(at, &noise(at, step as usize)).await.expect("written");
            handle.sync().await.expect("synced");
        }
        for i in (1..11).filter(|_| overwritten > 0) {
            let at = i * (step + gap) + 5_000;
            model[at as usize..at as usize + overwritten].copy_from_slice(&noise(at + 1, overwritten));
            handle.write_at(at, &noise(at + 1, overwritten)).await.expect("written");
            handle.sync().await.expect("synced");
        }
        let inode = handle.inode();
        handle.close().await.expect("closed");
        let to: Layout = layout.parse().expect("a layout");
        let mut outcomes = Vec::new();
        for _ in 0..3 {
            let control = ConversionControl::default();
            outcomes.push(volume.convert(inode, b"/f", to, &control).await.expect("converted"));
        }
        assert_eq!(outcomes[1..], [Conversion::Kept; 2], "{layout}");
        assert!(overwritten < 70_000 || matches!(outcomes[0], Conversion::Done { .. }), "{layout}: it is fat");
        let handle = volume.open(b"/f").await.expect("opened");
        let back = handle.read_at(0, usize::MAX / 2).await.expect("read");
        assert!(back == model[..back.len()] && back.len() >= model.len() - gap as usize, "{layout}: {}", back.len());
        cluster.check_namespace();
    }
}

/// A cancelled conversion would go on to the end of a file of a terabyte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversion_that_is_told_to_stop_leaves_the_file() {
    let (cluster, _client, volume, mut handle) = start("r3").await;
    handle.write_at(0, &noise(0, 3_000_000)).await.expect("written");
    let inode = handle.inode();
    handle.close().await.expect("closed");
    let (control, to) = (ConversionControl::default(), "rs-3-2/4k".parse().expect("a layout"));
    let other = control.of_another();
    other.stop();
    assert_eq!(volume.convert(inode, b"/f", to, &control).await.expect("stopped"), Conversion::Stopped);
    let control = ConversionControl::default();
    let done = volume.convert(inode, b"/f", to, &control).await.expect("converted");
    assert_eq!((done, control.written(), other.written()), (Conversion::Done { bytes: 3_000_000 }, 3_000_000, 0));
    cluster.check_namespace();
}

/// An open file whose bytes were moved to other chunks could be neither read nor written any more: members that have
/// forgotten what they freed say that it is missing, as if it were lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_finds_its_bytes_where_they_were_moved() {
    for appends in [false, true] {
        let (cluster, _client, volume, mut handle) = start("rs-3-2/4k").await;
        let mut bytes = noise(0, 3 * ROW as usize + 5_000);
        handle.write_at(0, &bytes).await.expect("written");
        handle.sync().await.expect("synced");
        assert!(handle.read_at(0, usize::MAX / 2).await.expect("read") == bytes);
        let inode = handle.inode();
        let before = volume.all_extents(inode).await.expect("extents");
        let (to, control) = ("r3".parse().expect("a layout"), ConversionControl::default());
        volume.convert(inode, b"/f", to, &control).await.expect("converted");
        let after = volume.all_extents(inode).await.expect("extents");
        let is_left = |old: &&Extent| !after.iter().any(|new| new.chunk == old.chunk);
        let left: Vec<&Extent> = before.iter().filter(is_left).collect();
        assert!(!left.is_empty());
        left.into_iter().for_each(|old| cluster.forget_chunk(old.chunk.pg.0, old.chunk.index));
        if appends {
            handle.append(&[7; 3_000]).await.expect("appended");
            bytes.extend([7; 3_000]);
            in_time("a sync", handle.sync()).await.expect("synced");
        }
        assert!(
            in_time("a read", handle.read_at(0, usize::MAX / 2)).await.expect("read") == bytes,
            "appends: {appends}"
        );
        handle.close().await.expect("closed");
        cluster.check_namespace();
    }
}

/// A conversion of a file whose data begins within a block would never end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_with_holes_are_converted_wherever_their_data_begins() {
    for layout in ["rs-3-2/4k", "rs-3-2/64k", "r2x3/64k"] {
        // 64 KiB rows: up to the block, and then whole rows only.
        for (from, length) in [(756_040, 1_800_000), (756_040, 1_720 + 2 * 196_608), (1 << 20, 1_300_000)] {
            let (cluster, _client, volume, mut handle) = start("r3").await;
            let what = format!("{length} bytes at {from} to {layout}");
            handle.write_at(from, &noise(from, length)).await.expect("written");
            handle.sync().await.expect("synced");
            let inode = handle.inode();
            handle.close().await.expect("closed");
            let to = layout.parse().expect("a layout");
            in_time(&what, volume.convert(inode, b"/f", to, &ConversionControl::default())).await.expect("converted");
            let handle = volume.open(b"/f").await.expect("opened");
            let back = handle.read_at(0, usize::MAX / 2).await.expect("read");
            assert!(back[..from as usize].iter().all(|b| *b == 0), "{what}");
            assert!(back[from as usize..] == noise(from, length), "{what}");
            cluster.check_namespace();
        }
    }
}
