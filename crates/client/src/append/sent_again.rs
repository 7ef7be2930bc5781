//! What comes back from a chunk that failed is made durable, also when everything that was written after it is durable
//! already, the part that asks for the sync of them all among it: nobody would ask for theirs, and their writer would
//! wait for ever.
use crate::append::part::{Bytes, Part, Placed};
use crate::append::retry::Retry;
use crate::append::segment::block_crcs;
use crate::append::stream::WriteStream;
use crate::error::Result;
use crate::fake::FakeCluster;
use cairn_env::buf::SharedBuf;
use cairn_types::{Scheme, Stripe};
use std::time::Duration;
use tokio::sync::oneshot;

const MIB: usize = 1 << 20;
const RS: Scheme = Scheme::Erasure { k: 3, m: 2 };
const R1: Scheme = Scheme::Replicated(1);
/// Far more than anything here takes; what hangs hangs for ever.
const HANGS: Duration = Duration::from_secs(20);

type Answer = oneshot::Receiver<Result<Placed>>;

async fn placed(answer: Answer) -> Placed {
    let answer = tokio::time::timeout(HANGS, answer).await.expect("nobody made it durable");
    answer.expect("the stream lives").expect("written")
}

async fn push_segment(stream: &WriteStream, data: &SharedBuf, sync: bool) -> Answer {
    let permit = stream.reserve(data.len()).await.expect("room");
    let (done, answer) = oneshot::channel();
    let bytes = Bytes::Segment { data: data.clone(), lead: 0, crcs: block_crcs(data) };
    let part = Part { bytes, sync, done, show: None, retry: Retry::default(), _permit: permit };
    stream.push(part).await.expect("taken");
    answer
}

/// A chunk that fails while it waits for its end, when the next one has taken and synced the end of the file.
#[tokio::test(start_paused = true)]
async fn segments_that_come_back_behind_the_last_one_are_synced() {
    let cluster = FakeCluster::local(2, &[R1, R1]);
    let only = |pg: u32| {
        let mut state = cluster.fake.state.lock();
        state.pgs.values_mut().for_each(|group| group.retired = group.pg != pg);
    };
    only(1);
    let client = cluster.connect_local().await;
    let volume = client.volume("default").await.expect("the volume");
    let stream = volume.stream(R1, 0, None).await.expect("a stream");
    let data = SharedBuf::from_owner(vec![7u8; MIB]);
    // All of the first chunk but its last four MiB.
    let mut before = Vec::new();
    for i in 0..60 {
        before.push(push_segment(&stream, &data, i == 59).await);
    }
    for answer in before {
        placed(answer).await;
    }
    // The next chunk is to be in the other group.
    only(2);
    tokio::time::sleep(Duration::from_secs(2)).await;
    volume.cluster().refresh().await.expect("the map");
    assert!(!volume.cluster().view().pgs[&1].writable);
    cluster.stop(cluster.members(1)[0]);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(push_segment(&stream, &data, false).await);
    }
    let last = placed(push_segment(&stream, &data, true).await).await;
    assert_eq!(last.chunk.pg.0, 2, "the end of the file is in the next chunk");
    assert!(held.iter_mut().all(|answer| answer.try_recv().is_err()), "the fault came too late");
    for answer in held {
        assert_eq!(placed(answer).await.chunk, last.chunk);
    }
    cluster.until("a report", |state| state.reports > 0).await;
}

async fn push_rows(stream: &WriteStream, stripe: Stripe, sync: bool) -> Answer {
    let permit = stream.reserve(stripe.row() as usize).await.expect("room");
    let (done, answer) = oneshot::channel();
    let unit = SharedBuf::from_owner(vec![3u8; stripe.unit() as usize]);
    let units = vec![unit; usize::from(stripe.columns())];
    let bytes = Bytes::Units(units);
    let part = Part { bytes, sync, done, show: None, retry: Retry::default(), _permit: permit };
    stream.push(part).await.expect("taken");
    answer
}

/// Row groups are encoded before they are sent: the last one may be ready when those before it come back to be encoded
/// again. Here the only thread that encodes is busy meanwhile.
#[test]
fn rows_that_come_back_behind_the_last_ones_are_synced() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(1).build().expect("a runtime");
    runtime.block_on(async {
        let cluster = FakeCluster::local(5, &[RS]);
        let client = cluster.connect_local().await;
        let volume = client.volume("default").await.expect("the volume");
        let stripe = Stripe::new(3, 4096).expect("valid");
        let stream = volume.striped_stream(RS, stripe).await.expect("a stream");
        let first = placed(push_rows(&stream, stripe, true).await).await;
        cluster.stop(cluster.members(1)[4]);
        let appends = || cluster.fake.state.lock().calls.get("Append").copied().unwrap_or_default();
        // As many as may be unanswered.
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(push_rows(&stream, stripe, false).await);
        }
        while appends() < 5 * 5 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let last = push_rows(&stream, stripe, true).await;
        while stream.has_waiting() {
            tokio::task::yield_now().await;
        }
        // Behind the encoding of the last rows, before that of any that come back.
        let (release, held_up) = std::sync::mpsc::channel::<()>();
        let (begun, busy) = oneshot::channel();
        let thread = tokio::task::spawn_blocking(move || {
            let _begun = begun.send(());
            let _released = held_up.recv();
        });
        busy.await.expect("begun");
        let last = placed(last).await;
        assert_ne!(last.chunk, first.chunk, "the fault did not end the chunk");
        assert!(held.iter_mut().all(|answer| answer.try_recv().is_err()), "they were not behind");
        drop(release);
        thread.await.expect("released");
        for answer in held {
            assert_eq!(placed(answer).await.chunk, last.chunk);
        }
        cluster.until("a report", |state| state.reports > 0).await;
    });
}

/// Small files that are closed as visible would make every row that is under way sync on all its members.
#[tokio::test(start_paused = true)]
async fn what_was_shown_is_synced_without_rows() {
    let cluster = FakeCluster::local(5, &[RS, R1]);
    let client = cluster.connect_local().await;
    let volume = client.volume("default").await.expect("the volume");
    let stripe = Stripe::new(3, 4096).expect("valid");
    let (rows, segments) =
        (volume.striped_stream(RS, stripe).await.expect("rows"), volume.stream(R1, 0, None).await.expect("segments"));
    let mut row = push_rows(&rows, stripe, false).await;
    let segment = push_segment(&segments, &SharedBuf::from_owner(vec![7u8; 100]), false).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    volume.sync_streams();
    placed(segment).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(row.try_recv().is_err(), "nobody waits for it");
    placed(push_rows(&rows, stripe, true).await).await;
    placed(row).await;
}
