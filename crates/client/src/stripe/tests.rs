//! Tests of striped files against a cluster in memory: what was written comes back, whatever fails meanwhile.
use crate::ConversionControl;
use crate::changes::{SetAttributes, SetTime};
use crate::connect::Client;
use crate::convert::Conversion;
use crate::fake::FakeCluster;
use crate::file_writer::{FileWriter, WriteOptions};
use crate::meta::volume::Volume;
use cairn_env::buf::SharedBuf;
use cairn_types::{ExtentKind, Layout, Scheme};
use std::time::{Duration, Instant};

const RS: Scheme = Scheme::Erasure { k: 3, m: 2 };
const R3: Scheme = Scheme::Replicated(3);
const R2: Scheme = Scheme::Replicated(2);
const MIB: usize = 1 << 20;

fn options(layout: &str) -> WriteOptions {
    let layout: Layout = layout.parse().expect("a layout");
    WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None }
}

/// Bytes of which each block is different.
fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) as u8).collect()
}

async fn volume(client: &Client) -> Volume {
    client.volume("default").await.expect("the volume")
}

async fn push(writer: &mut FileWriter, data: &[u8]) {
    for part in data.chunks(MIB) {
        writer.push(SharedBuf::from_owner(part.to_vec())).await.expect("pushed");
    }
}

async fn write(volume: &Volume, path: &str, layout: &str, data: &[u8]) {
    let mut writer = volume.write(path.as_bytes(), options(layout)).await.expect("begun");
    push(&mut writer, data).await;
    writer.finish().await.expect("written");
}

async fn read(volume: &Volume, path: &str, offset: u64, length: u64) -> crate::error::Result<Vec<u8>> {
    let mut reader = volume.read(path.as_bytes(), offset, length).await?;
    let mut all = Vec::new();
    while let Some(piece) = reader.next().await? {
        assert_eq!(piece.offset, offset + all.len() as u64, "pieces follow each other");
        all.extend_from_slice(&piece.data);
    }
    Ok(all)
}

async fn assert_reads(volume: &Volume, path: &str, data: &[u8]) {
    let back = read(volume, path, 0, u64::MAX).await.expect("read");
    assert!(back == data, "{path}: {} bytes, {} were written", back.len(), data.len());
}

/// Whole rows would cost three copies, or short ones a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_rows_are_striped_and_the_rest_is_replicated() {
    let cluster = FakeCluster::start(5, &[RS, R3]);
    let client = cluster.connect().await;
    let volume = volume(&client).await;
    let row = 3 * 16 * 1024;
    for (i, length) in [0, 1, row - 1, row, row + 1, 5 * row + 777, 3 * MIB + 5, 11 * MIB + 5].into_iter().enumerate() {
        let (path, data) = (format!("/f{i}"), bytes(length));
        write(&volume, &path, "rs-3-2/16k", &data).await;
        assert_reads(&volume, &path, &data).await;
        let found = volume.stat(path.as_bytes(), true).await.expect("stat");
        let extents = volume.all_extents(found.inode).await.expect("extents");
        let striped: u64 = extents.iter().filter(|e| e.kind != Some(ExtentKind::Plain)).map(|e| e.length).sum();
        // The end of what has rows is cut into rows of the smallest unit; a small file has none.
        let small = 3 * 4096;
        let end = if length < row { 0 } else { length % row / small * small };
        assert_eq!(striped, (length / row * row + end) as u64, "{length} bytes");
        assert_eq!(extents.iter().map(|e| e.length).sum::<u64>(), length as u64);
        let kinds = extents.iter().filter_map(|e| e.kind?.stripe());
        assert!(kinds.into_iter().all(|s| s.columns() == 3 && matches!(s.unit(), 4096 | 16_384)));
        for (offset, part) in [(0, 10), (row / 2, row), (length / 2, 4097), (length.saturating_sub(9), 100)] {
            let end = (offset + part).min(length);
            let part = read(&volume, &path, offset as u64, part as u64).await.expect("read");
            assert!(part == data[offset.min(end)..end], "{path} at {offset}");
        }
    }
    cluster.check_namespace();
}

/// Bytes of a file would be lost with m members, or come out wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_members_may_be_missing() {
    let data = bytes(3 * MIB + 12345);
    for (first, second) in [(0, 1), (0, 3), (2, 4), (3, 4)] {
        let cluster = FakeCluster::start(5, &[RS, R3]);
        let client = cluster.connect().await;
        let volume = volume(&client).await;
        write(&volume, "/f", "rs-3-2/64k", &data).await;
        let members = cluster.members(1);
        cluster.corrupt(members[first]);
        cluster.stop(members[second]);
        assert_reads(&volume, "/f", &data).await;
        // Who answers late is done without, and members are told of bad blocks behind the read.
        let fired = || {
            let state = cluster.fake.state.lock();
            first > 2 || state.corrupted > 0 && state.bad_blocks > 0
        };
        let begun = Instant::now();
        while !fired() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the fault did not fire");
            assert_reads(&volume, "/f", &data).await;
        }
    }
}

/// A read would stand still because of one stopped member.
#[tokio::test(start_paused = true)]
async fn a_stopped_member_stalls_no_read_for_long() {
    let cluster = FakeCluster::local(5, &[RS, R3]);
    let client = cluster.connect_local().await;
    let volume = volume(&client).await;
    let data = bytes(6 * MIB);
    write(&volume, "/f", "rs-3-2/64k", &data).await;
    assert_reads(&volume, "/f", &data).await;
    let stopped = cluster.members(1)[1];
    cluster.stop(stopped);
    assert_reads(&volume, "/f", &data).await;
    // Now it is known to be slow: many more reads, none of which waits for it.
    let started = tokio::time::Instant::now();
    for _ in 0..5 {
        assert_reads(&volume, "/f", &data).await;
    }
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

/// An unreadable file would come out as something else than an error that names what is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_shards_are_an_error_that_names_them() {
    let cluster = FakeCluster::start(5, &[RS, R3]);
    let client = cluster.connect().await;
    let volume = volume(&client).await;
    write(&volume, "/f", "rs-3-2/16k", &bytes(MIB)).await;
    let members = cluster.members(1);
    members[1..4].iter().for_each(|disk| cluster.corrupt(*disk));
    let error = read(&volume, "/f", 0, u64::MAX).await.expect_err("three of five are gone").to_string();
    assert!(members[1..4].iter().all(|disk| error.contains(&format!("disk d{disk}"))), "{error}");
}

/// A write would fail, stand still, or publish what a member lacks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_stops_or_dies_does_not_fail_the_write() {
    for (number, dies) in [(0, false), (2, true), (4, false)] {
        let mut cluster = FakeCluster::start(5, &[RS, R3, RS]);
        let client = cluster.connect().await;
        let volume = volume(&client).await;
        let data = bytes(40 * MIB + 99);
        let mut writer = volume.write(b"/f", options("rs-3-2/64k")).await.expect("begun");
        push(&mut writer, &data[..20 * MIB]).await;
        let member = cluster.members(1)[number];
        match dies {
            true => cluster.kill(member),
            false => cluster.stop(member),
        }
        let started = Instant::now();
        push(&mut writer, &data[20 * MIB..]).await;
        writer.finish().await.expect("written");
        // However busy the machine is.
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
        cluster.until("a report", |state| state.reports > 0).await;
        assert_reads(&volume, "/f", &data).await;
        cluster.check_namespace();
        // What was published before is still readable without one more.
        let other = cluster.members(1)[(number + 1) % 5];
        cluster.corrupt(other);
        assert_reads(&volume, "/f", &data).await;
    }
}

/// Units would lie on other columns than readers look at, or a small file on as many chunks as a large one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stripe_sets_come_back_whole() {
    let cluster = FakeCluster::start(5, &[R2, R2, R2, R2]);
    let client = cluster.connect().await;
    let volume = volume(&client).await;
    for (i, length) in [0, 100, 8192, 8193, 3 * 8192 + 5, 40 * 8192, 19 * MIB + 4097].into_iter().enumerate() {
        let (path, data) = (format!("/f{i}"), bytes(length));
        write(&volume, &path, "r2x7/8k", &data).await;
        assert_reads(&volume, &path, &data).await;
        let inode = volume.stat(path.as_bytes(), true).await.expect("stat").inode;
        let extents = volume.extents(inode, 0, u64::MAX).await.expect("extents");
        let columns: Vec<usize> = extents.sets.iter().map(|s| s.column_pgs.len()).collect();
        let want = match length {
            0..8192 => vec![],
            _ => vec![length.div_ceil(8192).clamp(2, 7)],
        };
        assert_eq!(columns, want, "{length} bytes");
        for (offset, part) in [(0, 10), (8191, 2), (length / 2, 100_000), (length.saturating_sub(9), 100)] {
            let (from, end) = (offset.min(length), (offset + part).min(length));
            let part = read(&volume, &path, offset as u64, part as u64).await.expect("read");
            assert!(part == data[from..end], "{path} at {offset}");
        }
    }
    cluster.check_namespace();
}

/// The write of a broadcast file would fail with one of its many members.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_ends_where_a_member_fails_and_another_goes_on() {
    let cluster = FakeCluster::start(5, &[R2, R2, R2, R2, R2]);
    let client = cluster.connect().await;
    let volume = volume(&client).await;
    let data = bytes(50 * MIB + 777);
    let mut writer = volume.write(b"/f", options("r2x4/64k")).await.expect("begun");
    // More than the window: some of it is durable, so that the set has begun.
    push(&mut writer, &data[..45 * MIB]).await;
    for pg in 1..=5 {
        let disk = cluster.members(pg)[pg as usize % 2];
        cluster.fake.state.lock().set_member(pg, disk, cairn_types::MemberState::Offline);
    }
    push(&mut writer, &data[45 * MIB..]).await;
    writer.finish().await.expect("written");
    assert_reads(&volume, "/f", &data).await;
    // 13 rounds of 4 columns, of which every second one has a sync; some are sent twice.
    let synced = cluster.fake.state.lock().synced_appends;
    assert!(synced <= 4 * 13, "{synced} appends were synced");
    let inode = volume.stat(b"/f", true).await.expect("stat").inode;
    let extents = volume.all_extents(inode).await.expect("extents");
    assert!(extents.len() > 1, "the fault did not fire: {extents:?}");
    cluster.check_namespace();
    // What the first set had beyond what was durable is given back, column by column, and nothing else.
    let published: u64 = extents.iter().map(|e| e.length).sum();
    assert_eq!(published, data.len() as u64);
    let discarded = cluster.fake.state.lock().discarded.clone();
    assert!(!discarded.is_empty(), "space of the failed set would be lost until the garbage scan");
    assert!(discarded.iter().all(|e| e.flags == ExtentKind::Plain.to_flags() && e.length > 0), "{discarded:?}");
    assert_reads(&volume, "/f", &data).await;
}

/// A conversion would put back the time that the file had when it began.
#[tokio::test(start_paused = true)]
async fn a_time_that_is_set_during_a_conversion_stays() {
    let cluster = FakeCluster::local(5, &[RS, R3]);
    let client = cluster.connect_local().await;
    let volume = volume(&client).await;
    let data = bytes(2 * MIB);
    write(&volume, "/f", "r3", &data).await;
    let inode = volume.stat(b"/f", true).await.expect("stat").inode;
    cluster.fake.state.lock().slow = (1..=5).map(|disk| (disk, Duration::from_millis(1500))).collect();
    let layout: Layout = "rs-3-2/64k".parse().expect("a layout");
    let touch = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let request = SetAttributes { mtime: Some(SetTime::At(12_345)), ..Default::default() };
        volume.setattr(inode, b"/f", request).await.expect("touched")
    };
    let control = ConversionControl::default();
    let (converted, touched) = tokio::join!(volume.convert(inode, b"/f", layout, &control), touch);
    assert!(matches!(converted, Ok(Conversion::Done { .. })), "{converted:?}");
    assert_ne!(touched.layout, layout.to_bits(), "it was touched in the middle");
    let now = volume.stat(b"/f", true).await.expect("stat");
    assert_eq!((now.mtime_ns, now.layout), (12_345, layout.to_bits()));
    cluster.fake.state.lock().slow.clear();
    assert_reads(&volume, "/f", &data).await;
}
