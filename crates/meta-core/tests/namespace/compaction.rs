//! Compaction: whatever happens between the steps of a move, files keep their bytes, nothing that lives is freed, and
//! in the end packs are not mostly dead.
use crate::driver::*;
use cairn_meta_core::{NamedScan, PackUse, Packs, is_mostly_dead};
use cairn_types::{BLOCK_SIZE, ErrorCode as E};
use cairn_wire::common::Extent;
use cairn_wire::meta::{CloneRangeRequest, PublishRequest, PunchRequest, SetattrRequest};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: u64 = BLOCK_SIZE as u64;
const TABLES: u64 = 69_632;
/// Blocks of a file.
const BLOCKS: u64 = 24;

/// What data nodes have, what the files should have, and moves that are under way.
#[derive(Default)]
struct World {
    /// Contents of a block by chunk and block. No two writes have the same.
    store: BTreeMap<(u32, u64), u64>,
    next_token: u64,
    /// Where the writer and the mover are: chunk, next block.
    at: [(u32, u64); 2],
    next_chunk: u32,
    /// Inode, name, contents by block of the file.
    files: Vec<(u64, String, BTreeMap<u64, u64>)>,
    /// Places that are to be moved: chunk, inode, offset.
    plan: Vec<(u32, u64, u64)>,
    /// Read and written anew, not published.
    copied: Option<(u64, u64, Vec<Extent>)>,
    moved: usize,
    lost_races: usize,
    cloned: bool,
}

impl World {
    /// Space for so many blocks in the open chunk of the writer (0) or mover (1); a new one if it is full.
    fn space(&mut self, whose: usize, blocks: u64) -> (u32, u64) {
        if self.at[whose].0 == 0 || self.at[whose].1 + blocks > 120 {
            self.next_chunk += 1;
            self.at[whose] = (self.next_chunk, 0);
        }
        let place = self.at[whose];
        self.at[whose].1 += blocks;
        place
    }

    fn file(&mut self, d: &mut Driver, pick: u8) -> usize {
        if self.files.len() < 5 {
            let name = format!("f{}", d.log.len());
            let inode = d.create(ROOT, &name, 0o644).expect("created").inode;
            self.files.push((inode, name, BTreeMap::new()));
        }
        usize::from(pick) % self.files.len()
    }

    fn write(&mut self, d: &mut Driver, pick: u8, place: u8) {
        let file = self.file(d, pick);
        let (first, blocks) = (u64::from(place) % BLOCKS, 1 + u64::from(pick) % 4);
        let (index, at) = self.space(0, blocks);
        for block in 0..blocks {
            self.next_token += 1;
            self.store.insert((index, at + block), self.next_token);
            self.files[file].2.insert(first + block, self.next_token);
        }
        d.publish(self.files[file].0, &[extent(first * BLOCK, blocks * BLOCK, index, at * BLOCK)]).expect("published");
    }

    fn punch(&mut self, d: &mut Driver, pick: u8, place: u8) {
        let file = self.file(d, pick);
        let (first, blocks) = (u64::from(place) % BLOCKS, 1 + u64::from(pick) % 3);
        let (inode, offset, length) = (self.files[file].0, first * BLOCK, blocks * BLOCK);
        d.punch(PunchRequest { inode, offset, length, ..Default::default() }).expect("punched");
        self.files[file].2.retain(|block, _| !(first..first + blocks).contains(block));
    }

    fn clone(&mut self, d: &mut Driver, pick: u8, other: u8) {
        let (source, target) = (self.file(d, pick), self.file(d, other));
        if source == target {
            return;
        }
        let (inode, length) = (self.files[target].0, BLOCKS * 2 * BLOCK);
        let request = CloneRangeRequest { source: self.files[source].0, inode, length, ..Default::default() };
        let Ok(done) = d.clone_range(request) else { return };
        let end = done.length.div_ceil(BLOCK);
        let from: Vec<(u64, u64)> = self.files[source].2.range(..end).map(|(block, token)| (*block, *token)).collect();
        self.files[target].2.retain(|block, _| *block >= end);
        self.files[target].2.extend(from);
        self.cloned = true;
    }

    fn remove(&mut self, d: &mut Driver, pick: u8) {
        if !self.files.is_empty() {
            let (_, name, _) = self.files.swap_remove(usize::from(pick) % self.files.len());
            d.unlink(ROOT, &name).expect("unlinked");
        }
    }

    /// Lists packs, walks through a version of the namespace, plans.
    fn choose(&mut self, d: &Driver) {
        let mut packs = Packs::default();
        for index in (1..=self.next_chunk).filter(|index| self.at.iter().all(|(open, _)| open != index)) {
            let used: Vec<(u32, u32)> =
                self.store.range((index, 0)..(index + 1, 0)).map(|((_, at), _)| (*at as u32, *at as u32 + 1)).collect();
            let held = TABLES + used.len() as u64 * BLOCK;
            packs.consider(&PackUse { pg: 7, index, scheme: 1, copies: 1, held, used });
        }
        packs.keep_worthwhile();
        let (snapshot, mut scan) = (d.namespace.snapshot(), NamedScan::new());
        while scan.step(&snapshot, 3, |named| packs.visit(named)).expect("a sound namespace") {}
        let places = packs.into_plan().into_iter().flat_map(|pack| {
            let index = pack.index;
            pack.places.into_iter().map(move |(inode, offset)| (index, inode, offset))
        });
        self.plan = places.collect();
    }

    /// Reads what is to be moved and writes it anew.
    fn copy(&mut self, d: &Driver) {
        let Some((index, inode, offset)) = self.plan.pop() else { return };
        let (Ok(found), Ok(extents)) = (d.getattr(inode), d.extents(inode)) else { return };
        let Some(old) = extents.iter().find(|e| e.index == index && e.file_offset == offset) else { return };
        let blocks = old.length.div_ceil(BLOCK);
        let tokens: Vec<u64> =
            (0..blocks).map(|block| self.store[&(index, old.chunk_offset / BLOCK + block)]).collect();
        let (to, at) = self.space(1, blocks);
        self.store.extend((at..).zip(tokens).map(|(at, token)| ((to, at), token)));
        let new = extent(old.file_offset, old.length, to, at * BLOCK);
        self.copied = Some((inode, found.data_version, vec![new]));
    }

    /// Publishes it, if nobody changed the file meanwhile.
    fn swap(&mut self, d: &mut Driver) {
        let Some((inode, if_data_version, extents)) = self.copied.take() else { return };
        let before = d.getattr(inode);
        let layout = before.as_ref().map_or(1, |found| found.layout);
        let request = PublishRequest { inode, if_data_version, keep_mtime: true, layout, ..Default::default() };
        match d.publish_with(PublishRequest { extents: extents.clone(), ..request }) {
            Ok(now) => {
                let before = before.expect("there");
                let times = |a: &cairn_wire::meta::Attributes| (a.mtime_ns, a.ctime_ns, a.mode, a.size, a.stored_bytes);
                assert_eq!(times(&now), times(&before), "nothing but the place changes");
                self.moved += 1;
            }
            Err(error) => {
                assert!(matches!(error, E::Conflict | E::NotFound | E::Stale), "{error:?}");
                self.drop_copies(&extents);
                self.lost_races += 1;
            }
        }
    }

    /// What a mover wrote and did not publish, it discards, or it is garbage of its session.
    fn drop_copies(&mut self, extents: &[Extent]) {
        for e in extents {
            let first = e.chunk_offset / BLOCK;
            for at in first..first + e.length.div_ceil(BLOCK) {
                self.store.remove(&(e.index, at));
            }
        }
    }

    /// Mover and leader die; the namespace starts again from what it has on disk.
    fn crash(&mut self, d: &mut Driver) {
        self.plan.clear();
        if let Some((_, _, extents)) = self.copied.take() {
            self.drop_copies(&extents);
        }
        d.namespace = d.restored();
    }

    fn free(&mut self, d: &mut Driver) {
        d.reclaim(0, 0);
        let records = d.namespace.pending_frees(0, 10_000);
        for record in &records {
            for at in record.first_block..record.first_block + record.blocks {
                self.store.remove(&(record.index, at));
            }
        }
        d.free_done(&records.iter().map(|record| record.id).collect::<Vec<_>>());
    }

    /// Every file has its bytes.
    fn compare(&self, d: &Driver) {
        for (inode, name, model) in &self.files {
            let mut found = BTreeMap::new();
            for e in d.extents(*inode).expect("a file") {
                for block in 0..e.length.div_ceil(BLOCK) {
                    let place = (e.index, e.chunk_offset / BLOCK + block);
                    let token =
                        self.store.get(&place).unwrap_or_else(|| panic!("{name} names {place:?}, which is freed"));
                    found.insert(e.file_offset / BLOCK + block, *token);
                }
            }
            assert_eq!(&found, model, "{name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// A file would lose bytes or change, or packs would stay mostly dead, whatever happens between the steps.
    #[test]
    fn files_keep_their_bytes_and_packs_shrink(steps in prop::collection::vec((0u8..32, any::<u8>(), any::<u8>()), 50..400)) {
        let (mut d, mut world) = (Driver::new(), World::default());
        for (what, pick, place) in steps {
            match what {
                0..=7 => world.write(&mut d, pick, place),
                8..=10 => world.punch(&mut d, pick, place),
                11 => world.clone(&mut d, pick, place),
                12..=13 => world.remove(&mut d, pick),
                14..=16 => world.choose(&d),
                17..=21 => world.copy(&d),
                22..=26 => world.swap(&mut d),
                27 => world.crash(&mut d),
                _ => world.free(&mut d),
            }
            world.compare(&d);
        }
        world.swap(&mut d);
        // Nobody writes any more.
        for round in 0.. {
            world.free(&mut d);
            world.at = [(0, 0); 2];
            world.choose(&d);
            if world.plan.is_empty() {
                break;
            }
            prop_assert!(round < 8, "it does not come to an end");
            while !world.plan.is_empty() {
                world.copy(&d);
                world.swap(&mut d);
            }
            world.compare(&d);
        }
        d.check();
        let chunks: BTreeSet<u32> = world.store.keys().map(|(index, _)| *index).collect();
        let live = world.store.len() as u64 * BLOCK;
        let held = chunks.len() as u64 * TABLES + live;
        // As few as can be, or little dead space in them.
        let fewest = live.div_ceil(120 * BLOCK);
        prop_assert!(world.cloned || chunks.len() as u64 <= fewest.max(1) * 3 || !is_mostly_dead(live, held),
            "{} packs for {live} bytes, {} moved, {} lost races", chunks.len(), world.moved, world.lost_races);
    }
}

/// Whoever sees a file would take a move for a change of it; its capability would be gone.
#[test]
fn a_move_changes_nothing_but_the_place() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o755).unwrap().inode;
    d.publish(file, &[extent(0, 3 * BLOCK, 1, 0)]).unwrap();
    d.set_xattr(file, "security.capability", b"x", 0).unwrap();
    let before = d.setattr(SetattrRequest { inode: file, valid: 1, mode: 0o6755, ..Default::default() }).unwrap();
    let request = PublishRequest {
        inode: file,
        extents: vec![extent(0, 3 * BLOCK, 2, 8 * BLOCK)],
        if_data_version: before.data_version,
        keep_mtime: true,
        layout: before.layout,
        ..Default::default()
    };
    d.now += 1000;
    let after = d.publish_with(request.clone()).unwrap();
    assert_eq!((after.mode, after.ctime_ns, after.mtime_ns), (before.mode, before.ctime_ns, before.mtime_ns));
    assert_eq!(d.get_xattr(file, "security.capability").unwrap(), b"x");
    assert_eq!(d.frees(), [(1, 0, 3)]);
    // On top of what was not read it is refused, also while somebody may be changing blocks in place.
    assert_eq!(d.publish_with(request.clone()), Err(E::Conflict));
    d.hold(file, true).unwrap();
    let (number, now) = d.take_lease(file).unwrap();
    assert_ne!(number, 0);
    let moved = PublishRequest { if_data_version: now.data_version, ..request };
    assert_eq!(d.publish_with(moved), Err(E::LeaseHeld));
    d.check();
}

/// Writers of a full volume would not wait for what is just coming back, or would wait when nothing is.
#[test]
fn statfs_tells_what_is_being_freed() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.publish(file, &[extent(0, 3 * BLOCK, 1, 0)]).unwrap();
    assert_eq!(d.statfs().freeing, 0);
    d.set_deferral(true);
    d.unlink(ROOT, "f").unwrap();
    assert_eq!(d.statfs().freeing, 1, "it may be open somewhere");
    d.set_deferral(false);
    d.reclaim_to(u64::MAX);
    assert_eq!(d.statfs().freeing, 1, "its blocks");
    let records: Vec<u64> = d.namespace.pending_frees(0, 10).iter().map(|record| record.id).collect();
    d.free_done(&records);
    assert_eq!(d.statfs().freeing, 0);
}
