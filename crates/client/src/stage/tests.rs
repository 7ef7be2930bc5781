//! Tests of encoding against a cluster in memory: what becomes of files, writers in the middle of it, and members that
//! fail.
use super::*;
use crate::changes::CloneRange;
use crate::connect::Client;
use crate::convert::Conversion;
use crate::extent::Extent;
use crate::fake::FakeCluster;
use crate::file_writer::WriteOptions;
use cairn_types::{MemberState, StageAfter};
use std::time::Duration;

const STAGED: &str = "r3>rs-3-2@2s";
/// The groups of copies are pg1 and pg2, that of rows pg3: see `FakeCluster::start`.
const GROUPS: [Scheme; 3] = [Scheme::Replicated(3), Scheme::Replicated(3), Scheme::Erasure { k: 3, m: 2 }];
const MIB: usize = 1 << 20;

fn layout(text: &str) -> Layout {
    text.parse().expect("a layout")
}

fn noise(length: usize, seed: u64) -> Vec<u8> {
    (0..length).map(|i| (i as u64 * 31 + seed * 17 + (i as u64 >> 8)) as u8).collect()
}

async fn start() -> (FakeCluster, Client, Volume) {
    let cluster = FakeCluster::start(5, &GROUPS);
    cluster.raise_level();
    let client = cluster.connect_for(Duration::from_secs(3)).await;
    let volume = client.volume("default").await.expect("the volume");
    (cluster, client, volume)
}

async fn put(volume: &Volume, path: &[u8], by: &str, data: &[u8]) -> Attributes {
    let options = WriteOptions { mode: 0o644, mtime_ns: 77, layout: layout(by), exclusive: false, owner: None };
    let mut writer = volume.write(path, options).await.expect("begun");
    for part in data.chunks(SEGMENT_MAX) {
        writer.push(part.to_vec().into()).await.expect("pushed");
    }
    writer.finish().await.expect("finished");
    volume.stat(path, true).await.expect("there")
}

async fn contents(volume: &Volume, path: &[u8]) -> Vec<u8> {
    let mut reader = volume.read(path, 0, u64::MAX).await.expect("a reader");
    let mut all = Vec::new();
    while let Some(piece) = reader.next().await.expect("read") {
        all.extend_from_slice(&piece.data);
    }
    all
}

async fn stage(volume: &Volume, path: &[u8]) -> Stage {
    Layout::from_bits(volume.stat(path, true).await.expect("there").layout).expect("a layout").stage()
}

/// Bytes in rows, and as copies.
async fn kinds(volume: &Volume, inode: u64) -> (u64, u64) {
    let extents = volume.all_extents(inode).await.expect("extents");
    let of = |plain: bool| {
        let is = |e: &&Extent| (e.kind == Some(ExtentKind::Plain)) == plain;
        extents.iter().filter(is).map(|e| e.length).sum()
    };
    (of(false), of(true))
}

async fn encode_all(volume: &Volume, inode: u64) -> EncodedPart {
    let (mut from, mut sum) = (0, EncodedPart::nothing(EncodeOutcome::Left));
    // What a busy machine does not do in time is left, and done later.
    let mut tries = 20;
    loop {
        let part = match volume.encode_part(inode, from).await {
            Err(ClientError::NoWritableGroup { .. }) if tries > 0 => EncodedPart::nothing(EncodeOutcome::Left),
            part => part.expect("worked on"),
        };
        (sum.moved, sum.freed, sum.outcome) = (sum.moved + part.moved, sum.freed + part.freed, part.outcome);
        match part.outcome {
            EncodeOutcome::More(next) if next > from => from = next,
            EncodeOutcome::Left if tries > 0 => tries -= 1,
            _ => return sum,
        }
    }
}

/// A file would lose bytes or attributes by being encoded, take no less space, or be encoded again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_keeps_all_but_its_copies() {
    let (cluster, _client, volume) = start().await;
    for length in [MIB, 70 * MIB + 12_345, 3 * 65_536] {
        let data = noise(length, 1);
        let before = put(&volume, b"/f", STAGED, &data).await;
        assert_eq!(kinds(&volume, before.inode).await, (0, length as u64), "written as copies");
        let done = encode_all(&volume, before.inode).await;
        assert_eq!((done.outcome, done.moved), (EncodeOutcome::Done, length as u64));
        let after = volume.stat(b"/f", true).await.expect("there");
        let same = |a: Attributes| Attributes { data_version: 0, generation: 0, layout: 0, ..a };
        assert_eq!(same(after), same(before), "nothing else changes, not even a time");
        let (rows, copies) = kinds(&volume, before.inode).await;
        assert!(rows + copies == length as u64 && copies < 12_288, "{rows} in rows, {copies} as copies");
        assert!(done.freed >= length as u64 * 5 / 4 && done.freed <= length as u64 * 4 / 3 + 1, "{}", done.freed);
        assert!(contents(&volume, b"/f").await == data);
        let is = Layout::from_bits(after.layout).expect("a layout");
        assert_eq!((is.stage(), is.to_string()), (Stage::Encoded, STAGED.into()));
        assert_eq!(is.stage_after(), "2s".parse::<StageAfter>().expect("a time"));
        assert_eq!(encode_all(&volume, before.inode).await, EncodedPart::nothing(EncodeOutcome::NotWaiting));
        cluster.check_namespace();
    }
}

/// Small files would take more space than before; or be looked at for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_would_take_no_less_stays_copies() {
    let (cluster, _client, volume) = start().await;
    let small = put(&volume, b"/s", STAGED, &noise(50_000, 1)).await;
    assert_eq!(encode_all(&volume, small.inode).await, EncodedPart::nothing(EncodeOutcome::Kept));
    assert_eq!((stage(&volume, b"/s").await, kinds(&volume, small.inode).await), (Stage::Kept, (0, 50_000)));
    assert_eq!(encode_all(&volume, small.inode).await.outcome, EncodeOutcome::NotWaiting);
    // It grows.
    let mut handle = volume.open(b"/s").await.expect("opened");
    handle.write_at(50_000, &noise(MIB, 2)).await.expect("written");
    handle.close().await.expect("closed");
    assert_eq!(stage(&volume, b"/s").await, Stage::Copies);
    assert_eq!(encode_all(&volume, small.inode).await.outcome, EncodeOutcome::Done);
    assert!(contents(&volume, b"/s").await == [noise(50_000, 1), noise(MIB, 2)].concat());
    // What has no later scheme, and what is empty.
    let plain = put(&volume, b"/p", "r3", &noise(MIB, 1)).await;
    let empty = put(&volume, b"/e", STAGED, b"").await;
    for inode in [plain.inode, empty.inode, 1, 999_999] {
        assert_eq!(volume.encode_part(inode, 0).await.expect("looked at").outcome, EncodeOutcome::NotWaiting);
    }
    cluster.check_namespace();
}

/// What is written to an encoded file would be lost, kept as copies for ever, or the file be written anew as a whole
/// for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_to_an_encoded_file_are_encoded_too() {
    let (cluster, _client, volume) = start().await;
    let mut model = noise(8 * MIB, 1);
    let file = put(&volume, b"/f", STAGED, &model).await;
    // Opened before it was encoded, so by the layout of before.
    let mut early = volume.open(b"/f").await.expect("opened");
    assert_eq!(encode_all(&volume, file.inode).await.outcome, EncodeOutcome::Done);
    for (handle, at, length) in [(None, 8 * MIB, 2 * MIB), (Some(&mut early), MIB + 5, 100_000)] {
        let data = noise(length, at as u64);
        model.resize(model.len().max(at + length), 0);
        model[at..at + length].copy_from_slice(&data);
        let mut own = volume.open(b"/f").await.expect("opened");
        let handle = handle.unwrap_or(&mut own);
        handle.write_at(at as u64, &data).await.expect("written");
        handle.sync().await.expect("synced");
        assert_eq!(stage(&volume, b"/f").await, Stage::Changed);
        let done = encode_all(&volume, file.inode).await;
        assert_eq!(done.outcome, EncodeOutcome::Done);
        assert!(done.moved <= 3 * MIB as u64, "{} bytes were written anew", done.moved);
        assert!(contents(&volume, b"/f").await == model);
    }
    early.close().await.expect("closed");
    // Cut to nothing, it is written as copies again.
    let mut handle = volume.open(b"/f").await.expect("opened");
    handle.truncate(0).await.expect("cut");
    handle.close().await.expect("closed");
    assert_eq!(stage(&volume, b"/f").await, Stage::Copies);
    cluster.check_namespace();
}

/// A newer write would be covered by what was read before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_write_is_never_covered() {
    let (cluster, _client, volume) = start().await;
    let other = cluster.connect().await;
    let writing = other.volume("default").await.expect("the volume");
    let mut model = noise(6 * MIB, 1);
    let file = put(&volume, b"/f", STAGED, &model).await;
    let mut handle = writing.open(b"/f").await.expect("opened");
    for round in 0..12u64 {
        let at = (round as usize * 499_979) % (5 * MIB);
        let data = noise(30_000, 100 + round);
        model[at..at + data.len()].copy_from_slice(&data);
        let write = async {
            handle.write_at(at as u64, &data).await.expect("written");
            handle.sync().await.expect("synced");
        };
        let (part, ()) = tokio::join!(volume.encode_part(file.inode, 0), write);
        part.expect("worked on");
        assert!(contents(&writing, b"/f").await == model, "round {round}");
    }
    handle.close().await.expect("closed");
    // In the last round it may have got to the end behind the write.
    let ended = encode_all(&volume, file.inode).await.outcome;
    assert!(matches!(ended, EncodeOutcome::Done | EncodeOutcome::NotWaiting), "{ended:?}");
    assert_eq!(stage(&volume, b"/f").await, Stage::Encoded);
    assert!(contents(&volume, b"/f").await == model);
    cluster.check_namespace();
}

/// Copies would be given up for rows that are not on the disks as they should be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_stay_until_all_members_have_the_rows() {
    // The last data shard, the first and the last parity shard.
    for shard in [2, 3, 4] {
        let (cluster, _client, volume) = start().await;
        let data = noise(3 * MIB, 1);
        let file = put(&volume, b"/f", STAGED, &data).await;
        let disk = cluster.members(3)[shard];
        cluster.damage(disk, 1, true);
        let error = volume.encode_part(file.inode, 0).await.expect_err("bad on a disk");
        assert!(matches!(&error, ClientError::NotAtRest { .. }), "{error}");
        assert!(error.to_string().contains("the file stays as it is"), "{error}");
        assert_eq!((stage(&volume, b"/f").await, kinds(&volume, file.inode).await.0), (Stage::Copies, 0));
        cluster.mend();
        // Not there at all: written, but with less redundancy than copies had.
        cluster.fake.state.lock().set_member(3, disk, MemberState::Offline);
        volume.cluster().refresh().await.expect("a new map");
        let outcome = volume.encode_part(file.inode, 0).await;
        assert!(outcome.is_err() || outcome.is_ok_and(|part| part.outcome == EncodeOutcome::Left));
        assert_eq!(kinds(&volume, file.inode).await, (0, data.len() as u64));
        cluster.fake.state.lock().set_member(3, disk, MemberState::Serving);
        assert!(contents(&volume, b"/f").await == data);
        cluster.check_namespace();
    }
}

/// What clones share would be there twice; or a clone of an encoded file be taken for copies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clones_go_on_sharing() {
    let (cluster, _client, volume) = start().await;
    let data = noise(4 * MIB, 1);
    let source = put(&volume, b"/s", STAGED, &data).await;
    let clone = async |path: &[u8]| {
        let made = put(&volume, path, STAGED, b"").await;
        let request =
            CloneRange { source: source.inode, inode: made.inode, length: data.len() as u64, ..Default::default() };
        let cloned = volume.clone_range(path, request).await.expect("cloned").expect("shared");
        assert_eq!(cloned.length, data.len() as u64);
        made.inode
    };
    let first = clone(b"/a").await;
    for inode in [source.inode, first] {
        assert_eq!(encode_all(&volume, inode).await, EncodedPart::nothing(EncodeOutcome::Shared));
        assert_eq!((kinds(&volume, inode).await.0, stage(&volume, b"/s").await), (0, Stage::Copies), "it waits on");
    }
    // Nothing shares it any more.
    volume.unlink(b"/s").await.expect("removed");
    let done = encode_all(&volume, first).await;
    assert_eq!((done.outcome, done.moved), (EncodeOutcome::Done, data.len() as u64));
    assert!(done.freed >= data.len() as u64 && contents(&volume, b"/a").await == data);
    // One block is not shared any more: that much would become its own.
    let own = put(&volume, b"/o", STAGED, &data).await;
    assert_eq!(encode_all(&volume, own.inode).await.outcome, EncodeOutcome::Done);
    let made = put(&volume, b"/c", STAGED, b"").await;
    let request = CloneRange { source: own.inode, inode: made.inode, length: data.len() as u64, ..Default::default() };
    assert_eq!(volume.clone_range(b"/c", request).await.expect("cloned").expect("shared").length, data.len() as u64);
    assert_eq!(stage(&volume, b"/c").await, Stage::Changed, "rows, to be looked at");
    let looked = encode_all(&volume, made.inode).await;
    assert_eq!((looked.outcome, looked.moved), (EncodeOutcome::Done, 0), "they are right where they are");
    assert!(contents(&volume, b"/c").await == data && contents(&volume, b"/a").await == data);
    cluster.check_namespace();
}

/// A conversion would copy what may stay where it is, or leave rows in a file of copies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversions_to_and_from_staged_layouts() {
    let (cluster, _client, volume) = start().await;
    let data = noise(4 * MIB, 1);
    let inode = put(&volume, b"/f", "r3", &data).await.inode;
    let control = ConversionControl::default();
    let convert = async |to: &str| volume.convert(inode, b"/f", layout(to), &control).await.expect("converted");
    let nothing = Conversion::Done { bytes: 0 };
    assert_eq!((convert(STAGED).await, stage(&volume, b"/f").await), (nothing, Stage::Copies));
    assert_eq!(convert(STAGED).await, Conversion::Kept);
    assert_eq!(encode_all(&volume, inode).await.outcome, EncodeOutcome::Done);
    assert_eq!(convert(STAGED).await, Conversion::Kept, "in whatever stage");
    assert_eq!((convert("r3>rs-3-2").await, stage(&volume, b"/f").await), (nothing, Stage::Encoded), "another time");
    assert_eq!(convert("r3").await, Conversion::Done { bytes: data.len() as u64 });
    assert_eq!(kinds(&volume, inode).await, (0, data.len() as u64));
    // Somebody asks for it, whatever was thought of it.
    convert(STAGED).await;
    let asked = volume.encode(inode, b"/f", &control).await.expect("encoded");
    assert_eq!((asked.outcome, asked.moved), (EncodeOutcome::Done, data.len() as u64));
    control.stop();
    assert_eq!(volume.encode(inode, b"/f", &control).await.expect("stopped").outcome, EncodeOutcome::Left);
    assert!(contents(&volume, b"/f").await == data);
    cluster.check_namespace();
}

/// All behind a hole that ends anywhere would be kept as copies, and be written anew by each conversion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_behind_a_hole_lies_in_rows_after_a_conversion() {
    let (cluster, _client, volume) = start().await;
    let (at, tail) = (849_667, noise(4 * MIB, 1));
    let inode = put(&volume, b"/f", "r3", b"x").await.inode;
    let mut handle = volume.open(b"/f").await.expect("opened");
    handle.write_at(at, &tail).await.expect("written");
    handle.close().await.expect("closed");
    let control = ConversionControl::default();
    let convert = async || volume.convert(inode, b"/f", layout("rs-3-2"), &control).await.expect("converted");
    assert_eq!(convert().await, Conversion::Done { bytes: 1 + tail.len() as u64 });
    let (rows, copies) = kinds(&volume, inode).await;
    assert!(rows >= 3 * MIB as u64 && copies <= 2 * MIB as u64, "{rows} bytes in rows, {copies} as copies");
    assert_eq!(convert().await, Conversion::Kept);
    let mut expected = vec![0; at as usize];
    expected[0] = b'x';
    expected.extend_from_slice(&tail);
    assert!(contents(&volume, b"/f").await == expected);
    cluster.check_namespace();
}
