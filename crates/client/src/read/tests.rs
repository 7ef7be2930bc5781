//! Tests of reading against a cluster in memory whose members have damage.
use crate::connect::Client;
use crate::error::ClientError;
use crate::fake::FakeCluster;
use crate::file_writer::WriteOptions;
use crate::meta::volume::Volume;
use crate::read::piece::{Piece, read_piece};
use cairn_env::buf::SharedBuf;
use cairn_types::{Layout, MemberState, Scheme};
use std::time::Duration;

pub(super) const LENGTH: usize = 700_000;

pub(super) fn data() -> Vec<u8> {
    (0..LENGTH).map(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 31) as u8).collect()
}

/// The volume as one sees it who soon gives up; it was written with more patience.
pub(super) async fn written(cluster: &FakeCluster, layout: &str) -> Volume {
    written_by(&cluster.connect().await, layout).await;
    patient(cluster, Duration::from_secs(2)).await
}

pub(super) async fn written_by(client: &Client, layout: &str) -> Volume {
    let volume = client.volume("default").await.expect("the volume");
    let layout: Layout = layout.parse().expect("a layout");
    let options = WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None };
    let mut writer = volume.write(b"/f", options).await.expect("begun");
    writer.push(SharedBuf::from_owner(data())).await.expect("pushed");
    writer.finish().await.expect("written");
    volume
}

/// What came before the end or an error, and the error.
pub(super) async fn read(volume: &Volume, offset: usize, length: usize) -> (Vec<u8>, Option<ClientError>) {
    let mut reader = volume.read(b"/f", offset as u64, length as u64).await.expect("opened");
    let mut all = Vec::new();
    loop {
        match reader.next().await {
            Ok(Some(piece)) => all.extend_from_slice(&piece.data),
            Ok(None) => return (all, None),
            Err(error) => return (all, Some(error)),
        }
    }
}

async fn assert_lost(volume: &Volume, from: usize, to: usize) {
    let (before, error) = read(volume, 0, LENGTH).await;
    assert!(before == data()[..from], "{} bytes before the damage at {from}", before.len());
    match error {
        Some(ClientError::Unreadable { what, offset, length, .. }) => {
            assert_eq!((what.as_str(), offset, length), ("/f", from as u64, (to - from) as u64));
        }
        other => panic!("{other:?}"),
    }
    let (after, error) = read(volume, to, LENGTH - to).await;
    assert!(error.is_none() && after == data()[to..], "{} bytes after it, {error:?}", after.len());
}

/// One bad block would take the whole piece around it along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_blocks_that_are_bad_everywhere_are_unreadable() {
    for readable in [true, false] {
        let cluster = FakeCluster::start(3, &[Scheme::Replicated(3)]);
        let volume = written(&cluster, "r3").await;
        // Each member has damage, and no two in the same block.
        (1..=3).for_each(|disk| cluster.damage(disk, u64::from(disk) * 40, readable));
        let (all, error) = read(&volume, 0, LENGTH).await;
        assert!(error.is_none() && all == data(), "{} bytes, {error:?}", all.len());
        (1..=3).for_each(|disk| cluster.damage(disk, 100, readable));
        assert_lost(&volume, 100 * 4096, 101 * 4096).await;
        let corrupted = cluster.fake.state.lock().corrupted;
        assert!(corrupted > 6, "{corrupted} faults");
        cluster.until("word to the members", |state| !readable || state.bad_blocks > 0).await;
    }
}

/// The same for rows of shards, and for the columns of a stripe set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_of_striped_files_is_named_exactly() {
    let cluster = FakeCluster::start(5, &[Scheme::Erasure { k: 3, m: 2 }, Scheme::Replicated(3)]);
    let volume = written(&cluster, "rs-3-2/16k").await;
    // Three of five shards in block 5; others in other blocks, of which two at most are bad.
    let members = cluster.members(1);
    (0..3).for_each(|shard| cluster.damage(members[shard], 5, true));
    (0..5).for_each(|shard| cluster.damage(members[shard], 20 + shard as u64, shard % 2 == 0));
    let lost = 3 * 16384 + 4096;
    assert_lost_first(&volume, lost, 4096).await;
    let (after, error) = read(&volume, 2 * 3 * 16384, LENGTH - 6 * 16384).await;
    assert!(error.is_none() && after == data()[6 * 16384..], "{} bytes after it, {error:?}", after.len());

    let cluster = FakeCluster::start(5, &[Scheme::Replicated(2); 4]);
    let volume = written(&cluster, "r2x4/16k").await;
    (1..=5).for_each(|disk| cluster.damage(disk, 5, true));
    assert_lost_first(&volume, 4 * 16384 + 4096, 4096).await;
    let (after, error) = read(&volume, 8 * 16384, LENGTH - 8 * 16384).await;
    assert!(error.is_none() && after == data()[8 * 16384..], "{} bytes after it, {error:?}", after.len());
}

async fn assert_lost_first(volume: &Volume, from: usize, lost: u64) {
    let (before, error) = read(volume, 0, LENGTH).await;
    assert!(before == data()[..from], "{} bytes before the damage at {from}: {error:?}", before.len());
    match error {
        Some(ClientError::Unreadable { offset, length, .. }) => assert_eq!((offset, length), (from as u64, lost)),
        other => panic!("{other:?}"),
    }
}

/// Blocks as they were before somebody overwrote them would be read from a member that was removed and does not know
/// it; or, while no manager runs, nothing at all could be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_not_sure_are_asked_last() {
    let cluster = FakeCluster::start(3, &[Scheme::Replicated(3)]);
    let volume = written(&cluster, "r3").await;
    let members = cluster.members(1);
    for sure in &members {
        let unsure = members.iter().copied().filter(|disk| disk != sure);
        cluster.fake.state.lock().unsure = unsure.collect();
        cluster.fake.state.lock().reads.clear();
        let (all, error) = read(&volume, 0, LENGTH).await;
        assert!(error.is_none() && all == data(), "{error:?}");
        let asked: Vec<u32> = cluster.fake.state.lock().reads.keys().copied().collect();
        assert_eq!(asked, [*sure]);
    }
    // Removed, while the others do not know how things stand: it is the epoch that tells.
    let removed = members[0];
    {
        let mut state = cluster.fake.state.lock();
        let known = state.pgs[&1].epoch;
        state.unsure = members.iter().copied().collect();
        state.behind.insert(removed, known);
        state.set_member(1, removed, cairn_types::MemberState::Offline);
    }
    let (all, error) = read(&volume, 0, LENGTH).await;
    assert!(error.is_none() && all == data(), "{error:?}");
    assert_eq!(cluster.fake.state.lock().old_reads, 0, "who was removed is not asked under the newest epoch");
    // No manager at all: whoever is there is believed.
    let inode = volume.stat(b"/f", true).await.expect("there").inode;
    let extent = volume.all_extents(inode).await.expect("extents")[0];
    {
        let mut state = cluster.fake.state.lock();
        state.starting = u32::MAX;
        state.behind.clear();
    }
    let (chunk, length) = (extent.chunk, extent.length);
    let piece = Piece { chunk, offset: extent.chunk_offset, length, epoch: 0 };
    let got = read_piece(volume.cluster(), &volume.read_latency(), piece).await;
    assert!(got.failed.is_none() && got.data[..] == data()[..length as usize], "{:?}", got.failed);
}

async fn patient(cluster: &FakeCluster, patience: Duration) -> Volume {
    let client: Client = cluster.connect_for(patience).await;
    client.volume("default").await.expect("the volume")
}

/// A tree with many lost files would be copied for hours, half a minute for each answer that every member has given at
/// once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_what_is_certainly_lost() {
    for (layout, members) in [("r3", 3), ("rs-3-2/16k", 5), ("r2x4/16k", 5)] {
        let schemes = [Scheme::Erasure { k: 3, m: 2 }, Scheme::Replicated(3), Scheme::Replicated(2)];
        let mut cluster = FakeCluster::start(members, if layout == "r3" { &schemes[1..2] } else { &schemes });
        written(&cluster, layout).await;
        (1..=members).for_each(|disk| cluster.damage(disk, 5, true));
        if layout.starts_with("rs") {
            // A member that is away would not help: the other four are bad.
            let away = cluster.members(1)[4];
            cluster.kill(away);
        }
        let volume = patient(&cluster, Duration::from_secs(3600)).await;
        let read = tokio::time::timeout(Duration::from_secs(120), read(&volume, 0, LENGTH));
        let (_, error) = read.await.unwrap_or_else(|_| panic!("{layout}: it waits for its patience"));
        let text = error.expect("lost").to_string();
        assert!(text.contains("cannot be read from any copy") && text.contains("disk d"), "{layout}: {text}");
    }
}

/// A read that waits for a silent member, and has heard of no other, would fail although another serves meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_waits_hears_of_other_members() {
    let schemes = [Scheme::Erasure { k: 3, m: 2 }, Scheme::Replicated(3)];
    // The file is in the first group.
    for (layout, schemes) in [("r3", &schemes[1..]), ("rs-3-2/16k", &schemes[..])] {
        let cluster = FakeCluster::start(5, schemes);
        written(&cluster, layout).await;
        let members = cluster.members(1);
        let (away, silent) = (&members[..2], members[2]);
        let set = |disk: u32, to: MemberState| cluster.fake.state.lock().set_member(1, disk, to);
        away.iter().for_each(|disk| set(*disk, MemberState::Offline));
        // Less than a request to a member may take.
        let volume = patient(&cluster, Duration::from_secs(4)).await;
        cluster.stop(silent);
        let reading = read(&volume, 0, LENGTH);
        let returns = async {
            while cluster.fake.state.lock().unanswered == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            set(away[0], MemberState::Serving);
        };
        let ((all, error), ()) = tokio::join!(reading, returns);
        assert!(error.is_none() && all == data(), "{layout}: {} bytes, {error:?}", all.len());
    }
}

/// A file whose members are all down for a moment would be called damaged; or one that is lost only away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_reached_is_not_damaged() {
    let mut cluster = FakeCluster::start(3, &[Scheme::Replicated(3)]);
    let volume = written(&cluster, "r3").await;
    let members = cluster.members(1);
    (0..3).for_each(|shard| cluster.damage(members[shard], 5, shard > 0));
    let (_, error) = read(&volume, 0, LENGTH).await;
    assert!(matches!(error, Some(ClientError::Unreadable { .. })), "{error:?}");
    cluster.kill(members[1]);
    let (_, error) = read(&volume, 0, LENGTH).await;
    let text = error.as_ref().map(|error| error.to_string()).unwrap_or_default();
    let Some(ClientError::Unavailable { away, .. }) = &error else { panic!("{error:?}") };
    assert!(away.len() == 1 && away[0].contains(&format!("disk d{}", members[1])), "{away:?}");
    assert!(text.contains("cannot be read now") && text.contains("cairn admin status"), "{text}");
    [0, 2].into_iter().for_each(|shard| cluster.kill(members[shard]));
    let (_, error) = read(&volume, 0, LENGTH).await;
    assert!(matches!(&error, Some(ClientError::Unavailable { away, .. }) if away.len() == 3), "{error:?}");
}

/// A file of which one member is away for a moment would be called lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_away_are_waited_for() {
    let schemes = [Scheme::Erasure { k: 3, m: 2 }, Scheme::Replicated(3)];
    let mut cluster = FakeCluster::start(5, &schemes);
    written(&cluster, "rs-3-2/16k").await;
    let members = cluster.members(1);
    (0..2).for_each(|shard| cluster.damage(members[shard], 5, true));
    cluster.kill(members[2]);
    let volume = patient(&cluster, Duration::from_secs(4)).await;
    let begun = std::time::Instant::now();
    let (_, error) = read(&volume, 0, LENGTH).await;
    let Some(ClientError::Unavailable { away, .. }) = error else { panic!("{error:?}") };
    assert!(away.len() == 1 && away[0].contains(&format!("disk d{}", members[2])), "{away:?}");
    assert!(begun.elapsed() >= Duration::from_secs(4), "it gave up after {:?}", begun.elapsed());
}
