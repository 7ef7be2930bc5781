//! Encoding of several files together against a cluster in memory: what becomes of their bytes, and of files when
//! something is in the way at each step.
use super::*;
use crate::append::SEGMENT_MAX;
use crate::connect::Client;
use crate::convert::ConversionControl;
use crate::fake::FakeCluster;
use crate::file_writer::WriteOptions;
use cairn_types::{Layout, Stage};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const STAGED: &str = "r3>rs-3-2@2s";
/// Three columns, the erasure group whose disks 5, 1, 2 have copies of pg2, pg3 and pg1 (see `FakeCluster::start`), and
/// a group of copies for what fills no row.
pub(super) const GROUPS: [Scheme; 5] = [
    Scheme::Replicated(3),
    Scheme::Replicated(3),
    Scheme::Replicated(3),
    Scheme::Erasure { k: 3, m: 2 },
    Scheme::Replicated(3),
];
pub(super) const POSITIONS: [(u32, u32); 3] = [(1, 2), (2, 0), (3, 1)];
pub(super) const SHARDS: u32 = 4;

pub(super) fn noise(length: usize, seed: u64) -> Vec<u8> {
    (0..length).map(|i| (i as u64 * 31 + seed * 17 + (i as u64 >> 8)) as u8).collect()
}

struct World {
    cluster: FakeCluster,
    _client: Client,
    volume: Volume,
    /// Inode, name and contents.
    files: Vec<(u64, Vec<u8>, Vec<u8>)>,
}

impl World {
    /// Files in all columns, each written by a client of its own.
    async fn new() -> World {
        let mut world = World::empty().await;
        while world.files.len() < 60 && (world.files.len() < 6 || !world.all_columns_have_some().await) {
            world.put(300_000 + 4_099 * world.files.len()).await;
        }
        assert!(world.all_columns_have_some().await, "writers choose among the columns");
        world
    }

    async fn empty() -> World {
        let cluster = FakeCluster::start(5, &GROUPS);
        cluster.raise_level();
        {
            let mut state = cluster.fake.state.lock();
            (state.columns, state.shards) = (POSITIONS.into_iter().collect(), SHARDS);
        }
        let client = cluster.connect_for(Duration::from_secs(5)).await;
        let volume = client.volume("default").await.expect("the volume");
        World { cluster, _client: client, volume, files: Vec::new() }
    }

    async fn all_columns_have_some(&self) -> bool {
        let mut found = BTreeSet::new();
        for (inode, _, _) in &self.files {
            found.extend(self.places(*inode).await.into_iter().map(|(pg, _)| pg));
        }
        found.len() == POSITIONS.len()
    }

    async fn put(&mut self, length: usize) {
        let client = self.cluster.connect_for(Duration::from_secs(5)).await;
        let volume = client.volume("default").await.expect("the volume");
        self.put_by(&volume, length).await;
        volume.close().await;
    }

    async fn put_by(&mut self, volume: &Volume, length: usize) {
        let (path, data) = (format!("/f{}", self.files.len()).into_bytes(), noise(length, self.files.len() as u64));
        let layout = STAGED.parse::<Layout>().expect("a layout");
        let options = WriteOptions { mode: 0o644, mtime_ns: 77, layout, exclusive: false, owner: None };
        let mut writer = volume.write(&path, options).await.expect("begun");
        for part in data.chunks(SEGMENT_MAX) {
            writer.push(part.to_vec().into()).await.expect("pushed");
        }
        writer.finish().await.expect("finished");
        let inode = volume.stat(&path, true).await.expect("there").inode;
        self.files.push((inode, path, data));
    }

    /// Group and kind of each extent.
    async fn places(&self, inode: u64) -> Vec<(u32, Option<ExtentKind>)> {
        let extents = self.volume.all_extents(inode).await.expect("extents");
        extents.iter().map(|e| (e.chunk.pg.0, e.kind)).collect()
    }

    fn inodes(&self) -> Vec<u64> {
        self.files.iter().map(|(inode, _, _)| *inode).collect()
    }

    async fn encode_all(&self) -> Result<u64> {
        self.encode_and_count().await.map(|done| done.moved)
    }

    async fn encode_and_count(&self) -> Result<EncodedPart> {
        let mut sum = EncodedPart::nothing(EncodeOutcome::NotWaiting);
        loop {
            let done = self.volume.encode_together(&self.inodes(), false).await?;
            (sum.moved, sum.files) = (sum.moved + done.moved, sum.files + done.files);
            if done.outcome != EncodeOutcome::More(0) {
                return Ok(sum);
            }
        }
    }

    async fn stage(&self, path: &[u8]) -> Stage {
        let attributes = self.volume.stat(path, true).await.expect("there");
        Layout::from_bits(attributes.layout).expect("a layout").stage()
    }

    /// All files read as they were written.
    async fn check(&self) {
        for (_, path, data) in &self.files {
            let mut reader = self.volume.read(path, 0, u64::MAX).await.expect("a reader");
            let mut all = Vec::new();
            while let Some(piece) = reader.next().await.expect("read") {
                all.extend_from_slice(&piece.data);
            }
            assert!(all == *data, "{}", String::from_utf8_lossy(path));
        }
        self.cluster.check_namespace();
    }

    async fn bytes_in_shards(&self) -> u64 {
        let mut bytes = 0;
        for inode in self.inodes() {
            let extents = self.volume.all_extents(inode).await.expect("extents");
            bytes += extents.iter().filter(|e| e.chunk.pg.0 == SHARDS).map(|e| e.length).sum::<u64>();
        }
        bytes
    }
}

/// Bytes would be lost or mixed up when copies become shards, or could not be computed without a member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_become_shards_and_are_decoded() {
    let world = World::new().await;
    let moved = world.encode_all().await.expect("encoded");
    assert!(moved > 0 && moved == world.bytes_in_shards().await, "{moved}");
    assert!(world.cluster.fake.state.lock().sums >= 5, "all disks read what they have");
    let whole = ExtentKind::Erasure(Stripe::new(3, WHOLE_SHARD).expect("valid"));
    for inode in world.inodes() {
        let places = world.places(inode).await;
        assert!(places.iter().all(|(pg, kind)| (*kind == Some(whole)) == (*pg == SHARDS)), "{places:?}");
    }
    world.check().await;
    for disk in [5, 2] {
        world.cluster.stop(disk);
        world.check().await;
    }
    let attributes = world.volume.stat(&world.files[0].1, true).await.expect("there");
    assert_eq!(attributes.mtime_ns, 77, "nothing else changes");
}

/// What one client wrote would lie in few columns, so that it is encoded by file, across racks; and small files stay
/// copies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_client_writes_is_encoded_together() {
    for lengths in [vec![20_000 + 7; 60], vec![16 * SEGMENT_MAX + 5], (0..40).map(|i| 3_000 + 60_001 * i).collect()] {
        let mut world = World::empty().await;
        let client = world.cluster.connect_for(Duration::from_secs(5)).await;
        let volume = client.volume("default").await.expect("the volume");
        for length in &lengths {
            world.put_by(&volume, *length).await;
        }
        volume.close().await;
        let (bytes, moved) = (lengths.iter().sum::<usize>() as u64, world.encode_all().await.expect("encoded"));
        assert!(moved * 100 >= bytes * 93, "{moved} of {bytes} bytes were encoded together");
        assert_eq!(moved, world.bytes_in_shards().await);
        let kept = async |inode: u64| world.volume.all_extents(inode).await.expect("extents").len();
        let first = kept(world.files[0].0).await;
        assert!(first <= 1 + lengths[0] / SEGMENT_MAX, "{first} extents");
        world.check().await;
        world.cluster.stop(1);
        world.check().await;
    }
}

/// Files of which all or a part became shards would stay copies in name, and be looked at for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_over_is_encoded_by_file() {
    let world = World::new().await;
    let done = world.encode_and_count().await.expect("encoded");
    let mut encoded = 0;
    for (_, path, _) in &world.files {
        encoded += u32::from(world.stage(path).await == Stage::Encoded);
    }
    assert!(done.moved > 0 && done.files > 0 && done.files == encoded, "{} counted, {encoded} are", done.files);
    for (inode, path, _) in &world.files {
        if world.stage(path).await == Stage::Encoded {
            continue;
        }
        let (mut from, mut tries) = (0, 0);
        let outcome = loop {
            match world.volume.encode_part(*inode, from).await.expect("worked on").outcome {
                EncodeOutcome::More(next) => from = next,
                EncodeOutcome::Left if tries < 20 => tries += 1,
                outcome => break outcome,
            }
        };
        assert_eq!(outcome, EncodeOutcome::Done, "{}", String::from_utf8_lossy(path));
        assert_eq!(world.stage(path).await, Stage::Encoded);
    }
    world.check().await;
    assert_eq!(
        world.volume.encode_together(&world.inodes(), false).await.expect("nothing waits").outcome,
        EncodeOutcome::NotWaiting
    );
}

/// A small file that could be put together with others would stay copies for ever, because somebody asked for it when
/// it could not; or one that was left over, because nobody looks at it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_kept_may_be_put_together_later() {
    let mut world = World::empty().await;
    let client = world.cluster.connect_for(Duration::from_secs(5)).await;
    let volume = client.volume("default").await.expect("the volume");
    for _ in 0..40 {
        world.put_by(&volume, 20_000).await;
    }
    volume.close().await;
    let control = ConversionControl::default();
    let (inode, path, _) = world.files[0].clone();
    let asked = world.volume.encode(inode, &path, &control).await.expect("asked for");
    assert_eq!((asked.outcome, world.stage(&path).await), (EncodeOutcome::Kept, Stage::Copies));
    let left = world.volume.encode_part(inode, 0).await.expect("its time came");
    assert_eq!((left.outcome, world.stage(&path).await), (EncodeOutcome::Kept, Stage::Kept));
    // The servers of this cluster encode nothing by themselves.
    let files = [world.volume.stat(&path, true).await.expect("there")];
    assert!(world.volume.encode_with_others(&files, &control).await.expect("asked for").is_empty());
    assert_eq!(world.stage(&path).await, Stage::Copies);
    let moved = world.encode_all().await.expect("encoded");
    assert!(moved >= 39 * 20_000, "{moved} bytes were encoded together");
    assert_eq!(world.stage(&path).await, Stage::Encoded);
    world.check().await;
}

/// Copies would be given up for shards that are not on the disks; or a disk that has something else there make a shard
/// of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_names_what_was_not_read_back_or_is_something_else() {
    let world = World::new().await;
    for disk in 1..=5 {
        world.cluster.fake.state.lock().rotten = Some(disk);
        let error = world.encode_all().await.expect_err("a disk reads something else");
        assert!(matches!(error, ClientError::NotAtRest { .. }), "{error}");
        assert_eq!(world.bytes_in_shards().await, 0);
    }
    world.cluster.fake.state.lock().rotten = None;
    // The copy of column 0 on the disk of shard 0 is another one than in the core rack.
    let spoil = || world.cluster.fake.state.lock().spoil_copies(5, 2);
    spoil();
    let error = world.encode_all().await.expect_err("it is not what parity is computed of");
    assert!(matches!(error, ClientError::NotAtRest { .. }), "{error}");
    assert_eq!(world.bytes_in_shards().await, 0);
    spoil();
    assert!(world.encode_all().await.expect("encoded") > 0);
    world.check().await;
}

/// A newer write would be covered by what was read before it, or keep the others from being encoded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_changes_meanwhile_keeps_what_it_has() {
    let mut world = World::new().await;
    let view = world.volume.cluster().view();
    let groups = groups_here(&view, world.volume.id(), "");
    let (files, pieces, _) = world.volume.collect(&view, &groups, &world.inodes()).await.expect("collected");
    let (id, columns) = groups.first_key_value().expect("a stripe group");
    let together = Together::of(&pieces[id]).expect("enough");
    let named = together.files();
    let (changed, removed) = (named[0], named[named.len() - 1]);
    assert_ne!(changed, removed);
    let (_, path, data) = &mut world.files[changed];
    *data = noise(data.len() / 2, 99);
    let mut handle = world.volume.open(path).await.expect("opened");
    handle.write_at(0, data).await.expect("written");
    handle.truncate(data.len() as u64).await.expect("cut");
    handle.close().await.expect("closed");
    world.volume.unlink(&world.files[removed].1).await.expect("removed");
    let inode = world.files[changed].0;
    world.files.remove(removed);
    let done = world.volume.encode_chunk(*id, columns, &files, (together, false)).await.expect("encoded");
    assert!(done.moved > 0, "the others are");
    assert!(world.places(inode).await.iter().all(|(pg, _)| *pg != SHARDS));
    world.check().await;
}

/// What somebody overwrites in place would be lost, in a shard that has what was there before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_overwritten_in_place_keeps_its_copies() {
    let mut world = World::new().await;
    let client = world.cluster.connect_for(Duration::from_secs(5)).await;
    let volume = client.volume("default").await.expect("the volume");
    for _ in 0..6 {
        world.put_by(&volume, 200_000).await;
    }
    let inode = world.files[0].0;
    let mut handle = volume.open(&world.files[0].1).await.expect("opened");
    for round in 0..6u8 {
        handle.write_at(20_480, &[round; 4096]).await.expect("written");
        handle.sync().await.expect("synced");
    }
    assert!(world.cluster.fake.state.lock().overwrites > 0, "it is overwritten in place");
    assert!(world.encode_all().await.expect("the others are encoded") > 0);
    assert!(world.places(inode).await.iter().all(|(pg, _)| *pg != SHARDS));
    handle.write_at(20_480, &[99; 4096]).await.expect("written");
    handle.close().await.expect("closed");
    world.files[0].2[20_480..24_576].fill(99);
    world.check().await;
}

/// What is left of one shard alone would keep the rows of all the others for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_unevenly_is_written_anew_by_file() {
    let mut world = World::new().await;
    assert!(world.encode_all().await.expect("encoded") > 0);
    // By the shard in which all of a file lies; clients begin in any column.
    let (mut indices, mut by_shard, mut gone) = (BTreeSet::new(), BTreeMap::<u64, Vec<_>>::new(), Vec::new());
    for (inode, path, data) in std::mem::take(&mut world.files) {
        let extents = world.volume.all_extents(inode).await.expect("extents");
        let in_shards = |e: &&crate::extent::Extent| e.chunk.pg.0 == SHARDS;
        indices.extend(extents.iter().filter(in_shards).map(|e| e.chunk.index));
        let shards: BTreeSet<u64> = extents.iter().filter(in_shards).map(|e| e.chunk_offset / WHOLE_SHARD).collect();
        match shards.first() {
            Some(shard) if shards.len() == 1 && extents.iter().all(|e| in_shards(&e)) => {
                by_shard.entry(*shard).or_default().push((inode, path, data));
            }
            _ => gone.push(path),
        }
    }
    let most = by_shard.iter().max_by_key(|(_, files)| files.len()).map(|(shard, _)| *shard).expect("a shard");
    world.files = by_shard.remove(&most).expect("its files");
    gone.extend(by_shard.into_values().flatten().map(|(_, path, _)| path));
    for path in gone {
        world.volume.unlink(&path).await.expect("removed");
    }
    assert!(!world.files.is_empty() && !indices.is_empty());
    let (files, bytes) = world.volume.compact_shards(SHARDS, &indices, &world.inodes()).await.expect("moved");
    assert_eq!((files as usize, bytes > 0), (world.files.len(), true));
    for inode in world.inodes() {
        let extents = world.volume.all_extents(inode).await.expect("extents");
        assert!(!extents.iter().any(|e| e.chunk.pg.0 == SHARDS && indices.contains(&e.chunk.index)), "{extents:?}");
    }
    world.check().await;
}

/// A stripe group without its copy in this rack would be read across racks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_with_all_copies_in_the_core_rack() {
    let world = World::new().await;
    let view = world.volume.cluster().view();
    assert_eq!(groups_here(&view, world.volume.id(), "").len(), 1);
    assert_eq!(groups_here(&view, world.volume.id(), "other").len(), 0);
    assert_eq!(groups_here(&view, world.volume.id() + 1, "").len(), 0);
    let mut lacking = (*view).clone();
    let pg = lacking.pgs.get_mut(&2).expect("a column");
    pg.members.iter_mut().for_each(|(_, state)| *state = MemberState::Syncing);
    assert_eq!(groups_here(&lacking, world.volume.id(), "").len(), 0);
    let done = world.volume.encode_together(&[], false).await.expect("nothing to do");
    assert_eq!(done, EncodedPart::nothing(EncodeOutcome::NotWaiting));
}
