//! Overwriting in place against a cluster in memory: what is sent where, and clients that meet on one file.
use super::*;
use crate::connect::Client;
use crate::convert::Conversion;
use crate::fake::FakeCluster;
use crate::file_writer::WriteOptions;
use crate::handle::FileHandle;
use crate::{ConversionControl, Volume};
use cairn_types::{Layout, Scheme};
use cairn_wire::common::Extent;

const B: usize = BLOCK_SIZE;

struct Side {
    cluster: FakeCluster,
    client: Client,
    volume: Volume,
    model: Vec<u8>,
}

const GROUPS: [Scheme; 3] = [Scheme::Replicated(3), Scheme::Replicated(2), Scheme::Replicated(3)];

/// A file `/f` of 32 blocks.
async fn start() -> Side {
    let cluster = FakeCluster::start(5, &GROUPS);
    let client = cluster.connect().await;
    start_on(cluster, client).await
}

async fn start_on(cluster: FakeCluster, client: Client) -> Side {
    let volume = client.volume("default").await.expect("the volume");
    let layout: Layout = "r3".parse().expect("a layout");
    let options = WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None };
    let mut writer = volume.write(b"/f", options).await.expect("begun");
    let model = vec![7; 32 * B];
    writer.push(SharedBuf::from_owner(model.clone())).await.expect("pushed");
    writer.finish().await.expect("made");
    Side { cluster, client, volume, model }
}

impl Side {
    async fn put(&mut self, handle: &mut FileHandle, at: usize, data: &[u8]) {
        handle.write_at(at as u64, data).await.expect("written");
        handle.sync().await.expect("synced");
        self.model[at..at + data.len()].copy_from_slice(data);
    }
    /// Until writes go in place.
    async fn warm(&mut self, handle: &mut FileHandle) {
        for round in 0..=FLUSHES as u8 {
            self.put(handle, 5 * B, &[round; B]).await;
        }
        assert!(handle.data.has_lease());
    }
    fn overwrites(&self) -> u64 {
        self.cluster.fake.state.lock().overwrites
    }
    async fn check(&self, when: &str) {
        let reader = self.cluster.connect().await;
        let volume = reader.volume("default").await.expect("the volume");
        let mut reader = volume.read(b"/f", 0, u64::MAX).await.expect("opened");
        let mut all = Vec::new();
        while let Some(piece) = reader.next().await.expect("read") {
            all.extend_from_slice(&piece.data);
        }
        let at = all.iter().zip(&self.model).position(|(have, want)| have != want);
        assert!(at.is_none() && all.len() == self.model.len(), "{when}: {} bytes, other at {at:?}", all.len());
    }
}

/// Blocks would be written where the file does not name all of them.
#[test]
fn only_blocks_of_one_extent_are_targets() {
    let (block, extent) = (BLOCK, |file_offset, length, index| Extent {
        file_offset,
        length,
        pg: 1,
        index,
        chunk_offset: (8 << 20) + file_offset,
        flags: 0,
    });
    let mut extents = ExtentCache::default();
    let size = 10 * block + 100;
    let all = [extent(0, 3 * block, 1), extent(3 * block, block / 2, 2), extent(7 * block / 2, 3 * block / 2, 3)];
    extents.learn(0, size, &all, &[]);
    extents.put(&[extent(6 * block, 4 * block + 100, 4)], &[]);
    let targets = |from: u64, to: u64| {
        let found = targets_of(&extents, Area { from: from * block, to: to * block }, size);
        found.map(|all| all.iter().map(|t| (t.chunk.index, t.from / block, t.to)).collect::<Vec<_>>())
    };
    assert_eq!(targets(1, 3), Some(vec![(1, 1, 3 * block)]));
    assert_eq!(targets(3, 4), None, "half of it is in another chunk");
    assert_eq!(targets(4, 5), Some(vec![(3, 4, 5 * block)]));
    assert_eq!(targets(4, 6), None, "a hole");
    assert_eq!(targets(9, 11), Some(vec![(4, 9, size)]), "the last block ends with the file");
    assert_eq!(targets_of(&extents, Area { from: 0, to: block }, size).map(|t| t[0].offset), Some(8 << 20));
}

/// Two open files of one client share a session, and would overwrite what the other has moved away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handles_of_one_client_are_kept_apart() {
    let mut side = start().await;
    let mut first = side.volume.open(b"/f").await.expect("opened");
    let mut second = side.volume.open(b"/f").await.expect("opened");
    side.warm(&mut first).await;
    for i in 0..6usize {
        let handle = if i % 2 == 0 { &mut second } else { &mut first };
        side.put(handle, (5 + i % 3) * B + i, &[i as u8 + 50; 1000]).await;
        side.check("after each sync").await;
    }
    first.close().await.expect("closed");
    second.close().await.expect("closed");
    side.check("closed").await;
    side.cluster.check_namespace();
}

/// A conversion would swap in bytes that it read before they were overwritten, or wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversions_get_the_lease_back() {
    let mut side = start().await;
    let mut handle = side.volume.open(b"/f").await.expect("opened");
    side.warm(&mut handle).await;
    for (round, layout) in ["r2", "r3"].into_iter().enumerate() {
        handle.write_at(9, &[round as u8 + 90; 5000]).await.expect("written");
        side.model[9..5009].fill(round as u8 + 90);
        let layout = layout.parse().expect("a layout");
        let other = side.cluster.connect().await.volume("default").await.expect("the volume");
        // By the same session once, by another one the other time.
        let converting = if round == 0 { side.volume.clone() } else { other };
        let control = ConversionControl::default();
        let (converted, synced) =
            tokio::join!(converting.convert(handle.inode(), b"/f", layout, &control), handle.sync());
        synced.expect("synced");
        assert!(matches!(converted.expect("converted"), Conversion::Done { .. }));
        side.check("converted").await;
    }
    handle.close().await.expect("closed");
    side.cluster.check_namespace();
}

/// A file would be blocked for everybody by a handle that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_handle_gives_its_lease_back() {
    let mut side = start().await;
    let mut handle = side.volume.open(b"/f").await.expect("opened");
    side.warm(&mut handle).await;
    drop(handle);
    let other = side.cluster.connect().await;
    let volume = other.volume("default").await.expect("the volume");
    let mut handle = volume.open(b"/f").await.expect("opened");
    side.put(&mut handle, 3 * B, &[1; 100]).await;
    side.check("by another client").await;
    handle.close().await.expect("closed");
    // Nobody waits for the answer to this one.
    let inode = volume.stat(b"/f", true).await.expect("there").inode;
    volume.hold(inode, b"/f").await.expect("held");
    let (lease, _) = volume.take_lease(inode, b"/f").await.expect("asked").expect("granted");
    drop(lease);
    let mut handle = side.volume.open(b"/f").await.expect("opened");
    side.put(&mut handle, 5 * B, &[2; B]).await;
    side.check("after a lease of which nobody knows").await;
    handle.close().await.expect("closed");
    drop(side.client);
    side.cluster.check_namespace();
}

/// More refused blocks than a publish may name would never be stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_refused_blocks_go_to_new_space() {
    let mut side = start().await;
    let mut handle = side.volume.open(b"/f").await.expect("opened");
    let blocks = 5000;
    side.model = vec![3; blocks * B];
    let all = side.model.clone();
    side.put(&mut handle, 0, &all).await;
    side.warm(&mut handle).await;
    side.cluster.fake.state.lock().saturated = true;
    let publishes = |side: &Side| side.cluster.fake.state.lock().calls.get("Publish").copied().unwrap_or(0);
    let before = publishes(&side);
    for block in (0..blocks).step_by(2) {
        handle.write_at((block * B) as u64, &[block as u8; B]).await.expect("written");
        side.model[block * B..(block + 1) * B].fill(block as u8);
    }
    handle.sync().await.expect("synced");
    // A publish that names more than 2,048 is refused; the writer may publish in between by itself.
    assert!(publishes(&side) - before >= 2, "{} publishes", publishes(&side) - before);
    side.check("refused").await;
    handle.close().await.expect("closed");
    side.cluster.check_namespace();
}

/// Partial blocks would lose their neighbours, or cost new space each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_blocks_are_filled_up() {
    let mut side = start().await;
    let mut handle = side.volume.open(b"/f").await.expect("opened");
    side.warm(&mut handle).await;
    let before = side.overwrites();
    for i in 10..20usize {
        side.put(&mut handle, i * B + 100 * i, &vec![i as u8; B + i]).await;
        let bytes = handle.read_at(0, 1 << 20).await.expect("read");
        assert!(bytes == side.model, "{i}");
    }
    assert_eq!(side.overwrites() - before, 10);
    side.check("partial").await;
    handle.close().await.expect("closed");
    side.cluster.check_namespace();
}

/// Blocks that somebody else had overwritten and synced would be overwritten with what they were before, for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_never_filled_up_with_what_a_removed_member_has() {
    for place in 0..3 {
        let mut side = start().await;
        // Knows the members as they are now for the whole test.
        let other = side.cluster.connect().await;
        let volume = other.volume("default").await.expect("the volume");
        let mut late = volume.open(b"/f").await.expect("opened");
        let extents = volume.all_extents(late.inode()).await.expect("extents");
        let pg = extents[0].chunk.pg.0;
        assert!(extents.iter().all(|extent| extent.chunk.pg.0 == pg));
        let removed = side.cluster.members(pg)[place];
        {
            let mut state = side.cluster.fake.state.lock();
            let known = state.pgs[&pg].epoch;
            state.behind.insert(removed, known);
            state.set_member(pg, removed, cairn_types::MemberState::Offline);
        }
        let mut handle = side.volume.open(b"/f").await.expect("opened");
        side.warm(&mut handle).await;
        let before = side.overwrites();
        let all: Vec<u8> = (0..32 * B).map(|i| (i / B) as u8 ^ 0x5a).collect();
        for (block, data) in all.chunks(B).enumerate().step_by(2) {
            handle.write_at((block * B) as u64, data).await.expect("written");
            side.model[block * B..(block + 1) * B].copy_from_slice(data);
        }
        handle.sync().await.expect("synced");
        handle.close().await.expect("closed");
        assert!(side.overwrites() > before, "in place");
        for block in (0..32).step_by(2) {
            let at = block * B + 1000;
            late.write_at(at as u64, &[block as u8 + 100; 100]).await.expect("written");
            side.model[at..at + 100].fill(block as u8 + 100);
        }
        late.sync().await.expect("synced");
        let old_reads = side.cluster.fake.state.lock().old_reads;
        assert!(old_reads > 0, "the removed member was asked");
        assert!(late.data.has_lease(), "in place");
        side.check(&format!("d{removed} was removed")).await;
        late.close().await.expect("closed");
        side.cluster.check_namespace();
    }
}

/// Bytes of a sync that nobody waited for would be nowhere, and the next one say that they are durable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sync_that_was_given_up_leaves_its_bytes_dirty() {
    let mut side = start().await;
    let mut handle = side.volume.open(b"/f").await.expect("opened");
    side.warm(&mut handle).await;
    for more in [false, true] {
        let (seed, at) = (60 + u8::from(more), (9 + 3 * usize::from(more)) * B + 10);
        side.cluster.fake.state.lock().reads_held = true;
        handle.write_at(at as u64, &[seed; 100]).await.expect("written");
        side.model[at..at + 100].fill(seed);
        let given_up = tokio::time::timeout(Duration::from_millis(400), handle.sync()).await;
        assert!(given_up.is_err(), "it waits for what is read back");
        side.cluster.fake.state.lock().reads_held = false;
        if more {
            handle.write_at((20 * B) as u64, &[seed; B]).await.expect("written");
            side.model[20 * B..21 * B].fill(seed);
        }
        handle.sync().await.expect("synced");
        side.check("synced again").await;
        tokio::time::sleep(REFUSED_PAUSE).await;
        side.warm(&mut handle).await;
    }
    handle.close().await.expect("closed");
    side.cluster.check_namespace();
}

/// All who want the lease would wait as long as somebody looks for a member that has bytes of a block.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_back_in_time_goes_to_new_space() {
    let cluster = FakeCluster::local(5, &GROUPS);
    let client = cluster.connect_local_for(Duration::from_secs(300)).await;
    let mut side = start_on(cluster, client).await;
    let mut handle = side.volume.open(b"/f").await.expect("opened");
    side.warm(&mut handle).await;
    side.cluster.fake.state.lock().reads_held = true;
    let began = tokio::time::Instant::now();
    side.put(&mut handle, 9 * B + 10, &[77; 100]).await;
    let took = began.elapsed();
    assert!(took >= CARRY_OUT_MAX && took < CARRY_OUT_MAX + Duration::from_secs(1), "{took:?}");
    side.cluster.fake.state.lock().reads_held = false;
    assert!(handle.read_at(0, 1 << 20).await.expect("read") == side.model);
    handle.close().await.expect("closed");
    side.cluster.check_namespace();
}
