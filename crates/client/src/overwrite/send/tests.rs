//! Overwrites against a cluster in memory: what is sent, fail-over, refusals, outcomes.
use super::*;
use crate::fake::FakeCluster;
use crate::file_writer::WriteOptions;
use cairn_types::{PgId, Scheme};

const BLOCK: usize = BLOCK_SIZE;
const R3: Scheme = Scheme::Replicated(3);

fn data(seed: u8, blocks: usize) -> SharedBuf {
    SharedBuf::from_owner((0..blocks * BLOCK).map(|i| seed ^ (i / 61) as u8).collect::<Vec<u8>>())
}

fn write(chunk: ChunkId, block: u64, seed: u8, blocks: usize) -> BlockWrite {
    BlockWrite { chunk, offset: block * BLOCK as u64, data: data(seed, blocks) }
}

/// A file of zeros and the chunk that it is in, from its beginning.
async fn file(volume: &Volume, path: &str, blocks: usize) -> ChunkId {
    let layout = "r3".parse().expect("a layout");
    let options = WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None };
    let mut writer = volume.write(path.as_bytes(), options).await.expect("begun");
    for part in vec![0u8; blocks * BLOCK].chunks(1 << 20) {
        writer.push(SharedBuf::from_owner(part.to_vec())).await.expect("pushed");
    }
    let made = writer.finish().await.expect("written");
    let extents = volume.all_extents(made.inode).await.expect("extents");
    assert!(extents.iter().all(|e| (e.chunk, e.chunk_offset) == (extents[0].chunk, e.file_offset)), "one chunk");
    extents[0].chunk
}

async fn contents(volume: &Volume, path: &str) -> Vec<u8> {
    let mut reader = volume.read(path.as_bytes(), 0, u64::MAX).await.expect("opened");
    let mut all = Vec::new();
    while let Some(piece) = reader.next().await.expect("read") {
        all.extend_from_slice(&piece.data);
    }
    all
}

/// Blocks would go to the wrong places, in too many requests or in too large ones.
#[test]
fn writes_are_cut_into_requests() {
    let (a, b) = (ChunkId { pg: PgId(1), index: 2 }, ChunkId { pg: PgId(1), index: 3 });
    type Shape = (ChunkId, Vec<(u32, u32)>, Vec<usize>);
    let shape = |writes: &[BlockWrite]| -> Vec<Shape> {
        let batches = batches(writes).expect("sound");
        let runs = |batch: &Batch| batch.vectors.iter().map(|v| (v.block, v.blocks)).collect();
        for batch in &batches {
            let bytes: usize = batch.pieces.iter().map(|piece| piece.len()).sum();
            assert_eq!(bytes, batch.crcs.len() / 4 * BLOCK);
        }
        batches.iter().map(|batch| (batch.chunk, runs(batch), batch.of.clone())).collect()
    };
    let scattered = [write(b, 9, 1, 1), write(a, 4, 2, 2), write(a, 1, 3, 1), write(a, 6, 4, 1)];
    let wanted = [(a, vec![(1, 1), (4, 3)], vec![2, 1, 3]), (b, vec![(9, 1)], vec![0])];
    assert_eq!(shape(&scattered), wanted);
    let large = [write(a, 0, 1, 300), write(a, 400, 2, 300)];
    let wanted =
        [(a, vec![(0, 256)], vec![0]), (a, vec![(256, 44), (400, 212)], vec![0, 1]), (a, vec![(612, 88)], vec![1])];
    assert_eq!(shape(&large), wanted);
    for bad in [
        vec![write(a, 1, 1, 2), write(a, 2, 1, 1)],
        vec![write(a, 16_384, 1, 1)],
        vec![BlockWrite { offset: 7, ..write(a, 0, 1, 1) }],
        vec![BlockWrite { data: SharedBuf::from_owner(vec![1; 100]), ..write(a, 0, 1, 1) }],
    ] {
        assert!(batches(&bad).is_err_and(|error| error.errno() == 22));
    }
}

/// A request under way would be refused as over, or the servers would remember all for ever.
#[test]
fn floors_follow_the_oldest_request() {
    let of = Arc::new(Overwrites::default());
    let (first, second) = (Number::new(&of), Number::new(&of));
    assert_eq!((first.number, second.number, second.floor()), (1, 2, 1));
    drop(first);
    assert_eq!((second.floor(), Number::new(&of).floor()), (2, 2));
}

/// Bytes would not arrive, or not on all members.
#[tokio::test(start_paused = true)]
async fn blocks_are_overwritten_in_place() {
    let cluster = FakeCluster::local(3, &[R3; 2]);
    let client = cluster.connect_local().await;
    let volume = client.volume("default").await.expect("the volume");
    let chunk = file(&volume, "/f", 700).await;
    let writes = [write(chunk, 3, 1, 1), write(chunk, 100, 2, 500), write(chunk, 1, 3, 2)];
    let outcomes = volume.overwrite(&writes).await.expect("done");
    assert_eq!(outcomes, vec![Overwritten::InPlace; 3]);
    let mut wanted = vec![0; 700 * BLOCK];
    for write in &writes {
        let at = write.offset as usize;
        wanted[at..at + write.data.len()].copy_from_slice(&write.data);
    }
    assert!(contents(&volume, "/f").await == wanted);
    assert_eq!(cluster.fake.state.lock().overwrites, 2);
}

/// What is refused in place would be an error of the file, or be tried for ever.
#[tokio::test(start_paused = true)]
async fn what_is_refused_goes_to_new_space() {
    let cluster = FakeCluster::local(3, &[R3; 2]);
    let client = cluster.connect_local().await;
    let volume = client.volume("default").await.expect("the volume");
    let chunk = file(&volume, "/f", 10).await;
    let gone = ChunkId { index: chunk.index + 50, ..chunk };
    let outcomes = volume.overwrite(&[write(gone, 0, 1, 1), write(chunk, 0, 2, 1)]).await.expect("known");
    assert!(matches!(&outcomes[0], Overwritten::NewSpace { why } if why.contains("Missing")), "{outcomes:?}");
    assert_eq!(outcomes[1], Overwritten::InPlace);
    cluster.fake.state.lock().saturated = true;
    let outcomes = volume.overwrite(&[write(chunk, 5, 1, 1)]).await.expect("known");
    assert!(matches!(&outcomes[0], Overwritten::NewSpace { why } if why.contains("journal")), "{outcomes:?}");
}

/// A member that stands still would hold up every writer for seconds, one that comes back would end the file.
#[tokio::test(start_paused = true)]
async fn members_that_fail_are_done_without() {
    for disk in 1..=3 {
        let cluster = FakeCluster::local(3, &[R3]);
        let client = cluster.connect_local().await;
        let volume = client.volume("default").await.expect("the volume");
        let chunk = file(&volume, "/f", 10).await;
        cluster.stop(disk);
        let began = tokio::time::Instant::now();
        let outcomes = volume.overwrite(&[write(chunk, 2, 7, 1)]).await.expect("done by the others");
        let took = began.elapsed();
        println!("d{disk}: {took:?}, {} reports", cluster.fake.state.lock().reports);
        assert_eq!(outcomes, [Overwritten::InPlace]);
        assert!(took < Duration::from_secs(2), "{took:?}");
        cluster.until("a report", |state| state.reports > 0).await;
        assert_eq!(contents(&volume, "/f").await[2 * BLOCK..3 * BLOCK], data(7, 1)[..]);
    }
}

/// One failure would be an error of the write, or a failure without end hold it for ever.
#[tokio::test(start_paused = true)]
async fn failures_are_tried_again_until_the_patience_ends() {
    let cluster = FakeCluster::local(3, &[R3]);
    let client = cluster.connect_local().await;
    let volume = client.volume("default").await.expect("the volume");
    let chunk = file(&volume, "/f", 10).await;
    cluster.fake.state.lock().flaky = 5;
    assert_eq!(volume.overwrite(&[write(chunk, 0, 1, 1)]).await.expect("done"), [Overwritten::InPlace]);
    assert_eq!(cluster.fake.state.lock().flaked, 5);
    cluster.fake.state.lock().flaky = u32::MAX;
    let began = tokio::time::Instant::now();
    let error = volume.overwrite(&[write(chunk, 0, 2, 1)]).await.expect_err("never");
    assert!(error.is_unknown(), "{error}");
    assert!(began.elapsed() <= PATIENCE_MAX + Duration::from_secs(1), "{:?}", began.elapsed());
    let found = contents(&volume, "/f").await[..BLOCK].to_vec();
    assert!(found == data(1, 1)[..] || found == data(2, 1)[..], "the old one or the new one");
}
