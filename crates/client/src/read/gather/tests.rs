//! Tests of striped reads whose rows have lost blocks on different members, against a cluster in memory.
use crate::error::ClientError;
use crate::fake::FakeCluster;
use crate::meta::volume::Volume;
use crate::read::tests::{LENGTH, data, read, written, written_by};
use cairn_types::{MemberState, Scheme};

/// Blocks of each shard: seven rows of units of four blocks; the rest of the file is in copies.
const BLOCKS: u64 = 28;
const UNIT: usize = 16_384;
const ROW: usize = 6 * UNIT;
/// Shards with damage, of which each row has one; and those whose members are away.
const DAMAGED: [usize; 3] = [0, 4, 7];
const AWAY: [usize; 2] = [2, 6];

async fn damaged(readable: impl Fn(u64) -> bool) -> (FakeCluster, Vec<u32>, Volume) {
    let cluster = FakeCluster::start(9, &[Scheme::Erasure { k: 6, m: 3 }, Scheme::Replicated(4)]);
    let volume = written(&cluster, "rs-6-3/16k").await;
    let members = cluster.members(1);
    for block in 0..BLOCKS {
        cluster.damage(members[DAMAGED[(block % 3) as usize]], block, readable(block));
    }
    (cluster, members, volume)
}

/// Bytes, faults that fired, and requests for reads.
async fn read_all(cluster: &FakeCluster, volume: &Volume) -> (u64, u64) {
    let counts = || {
        let state = cluster.fake.state.lock();
        (state.corrupted, state.reads.values().sum::<u64>())
    };
    let before = counts();
    let (all, error) = read(volume, 0, LENGTH).await;
    assert!(error.is_none() && all == data(), "{} bytes, {error:?}", all.len());
    let after = counts();
    (after.0 - before.0, after.1 - before.1)
}

/// Data would be unreachable, or after so many requests that nobody waits for it, although each row has k good blocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_bad_in_different_rows_are_read_with_two_members_away() {
    for killed in [true, false] {
        // Wrong bytes from one kind of disk, no answer at all from the other, and both.
        let kinds: [fn(u64) -> bool; 3] = [|_| true, |_| false, |block| block % 2 == 0];
        for (kind, readable) in kinds.into_iter().enumerate() {
            let most = if kind == 0 { 60 } else { 60 + 2 * 2 * BLOCKS * 3 };
            let mut tries = 0;
            loop {
                let (mut cluster, members, volume) = damaged(readable).await;
                for shard in AWAY {
                    if killed { cluster.kill(members[shard]) } else { cluster.stop(members[shard]) }
                }
                let (faults, requests) = read_all(&cluster, &volume).await;
                eprintln!("killed {killed}, kind {kind}: {faults} faults, {requests} requests");
                cluster.until("word to the members", |state| kind == 1 || state.bad_blocks > 0).await;
                if faults >= BLOCKS && requests <= most {
                    break;
                }
                // A busy machine may take members for slow, and ask others as well.
                tries += 1;
                assert!(tries < 5, "{faults} faults, {requests} requests");
            }
        }
    }
}

/// A row with blocks to spare would be lost with those that have none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_members_to_spare_every_row_is_read() {
    for away in 0..=2 {
        let (mut cluster, members, volume) = damaged(|block| block % 2 == 0).await;
        AWAY[..away].iter().for_each(|shard| cluster.kill(members[*shard]));
        let (faults, _) = read_all(&cluster, &volume).await;
        assert!(faults > 0, "no fault fired");
    }
}

/// A healthy read would cost more than its columns. The clock stands still, so that nobody is slow.
#[tokio::test(start_paused = true)]
async fn a_healthy_read_asks_for_no_parity() {
    let cluster = FakeCluster::local(9, &[Scheme::Erasure { k: 6, m: 3 }, Scheme::Replicated(4)]);
    let volume = written_by(&cluster.connect_local().await, "rs-6-3/16k").await;
    let healthy = LENGTH / ROW * ROW;
    let (all, error) = read(&volume, 0, healthy).await;
    assert!(error.is_none() && all == data()[..healthy]);
    let members = cluster.members(1);
    let state = cluster.fake.state.lock();
    assert!(members[6..].iter().all(|disk| !state.reads.contains_key(disk)), "{:?}", state.reads);
}

/// One row that is lost would take the file along, or nobody could say which row it is and what it lacks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_with_too_few_good_blocks_is_named_and_the_others_are_read() {
    for (readable, killed) in [(true, true), (false, true), (true, false)] {
        let (mut cluster, members, volume) = damaged(|_| readable).await;
        for shard in AWAY {
            if killed { cluster.kill(members[shard]) } else { cluster.stop(members[shard]) }
        }
        // Shard 4 is bad there already: five of six are left.
        cluster.damage(members[0], 13, readable);
        let lost = 3 * ROW + 4096;
        let (before, error) = read(&volume, 0, LENGTH).await;
        assert!(before == data()[..lost], "{} bytes before {lost}: {error:?}", before.len());
        let Some(ClientError::Unavailable { what, offset, length, detail, away }) = error else { panic!("{error:?}") };
        assert_eq!(away.len(), AWAY.len(), "{away:?}");
        assert_eq!((what.as_str(), offset, length), ("/f", lost as u64, 4096));
        assert!(detail.contains("row 3, block 13 of each shard: 5 of 6"), "{detail}");
        for shard in [0, 2, 4, 6] {
            assert!(detail.contains(&format!("shard {shard} on disk d{}", members[shard])), "{detail}");
        }
        assert!(!detail.contains("shard 7"), "{detail}");
        for (from, to) in
            [(lost + 4096, 3 * ROW + 2 * UNIT), (3 * ROW + 3 * UNIT, 3 * ROW + 4 * UNIT), (4 * ROW, LENGTH)]
        {
            let (part, error) = read(&volume, from, to - from).await;
            assert!(error.is_none() && part == data()[from..to], "{from}..{to}: {} bytes, {error:?}", part.len());
        }
    }
}

/// One member away and two in `state`, with damage on others: five of six blocks of each row are on serving members.
async fn with_two(state: MemberState, readable: bool) -> (FakeCluster, Vec<u32>, Volume) {
    let (mut cluster, members, volume) = damaged(|_| readable).await;
    cluster.kill(members[AWAY[0]]);
    for shard in [5, AWAY[1]] {
        cluster.fake.state.lock().set_member(1, members[shard], state);
    }
    (cluster, members, volume)
}

/// After a restart of everything reads would wait for members to catch up that have what is wanted, and for ever for
/// one that cannot begin to, since its group lacks others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_do_not_serve_are_the_last_resort() {
    for (state, readable) in [(MemberState::Syncing, true), (MemberState::Syncing, false), (MemberState::Offline, true)]
    {
        let (cluster, members, volume) = with_two(state, readable).await;
        let (faults, _) = read_all(&cluster, &volume).await;
        assert!(faults > 0, "no fault fired");
        let state = cluster.fake.state.lock();
        // One of both is enough; a busy machine may take the second for slow.
        assert!([5, AWAY[1]].iter().any(|shard| state.reads.contains_key(&members[*shard])));
    }
}

/// A member that was away while indices were given again would have its old chunk read as the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_chunks_of_the_same_number_are_not_read() {
    let (cluster, members, volume) = with_two(MemberState::Syncing, true).await;
    [5, AWAY[1]].into_iter().for_each(|shard| cluster.replace_chunks(members[shard]));
    let (before, error) = read(&volume, 0, LENGTH).await;
    assert!(data().starts_with(&before), "other bytes came");
    let Some(ClientError::Unavailable { detail, .. }) = error else { panic!("{error:?}") };
    assert!(detail.contains("another chunk has its index"), "{detail}");
}
