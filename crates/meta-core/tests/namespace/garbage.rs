//! Garbage: what ended sessions wrote and nothing names goes, nothing else does.
use crate::driver::*;
use cairn_meta_core::{GarbageRange, NamedScan, NamespaceSnapshot, SessionState, Suspects};
use cairn_types::{BLOCK_SIZE, ErrorCode, ExtentKind, Stripe, WHOLE_SHARD};
use cairn_wire::Opcode;
use cairn_wire::common::{Extent, StripeSet};
use cairn_wire::meta::{self, CloneRangeRequest, CreateRequest, FreeGarbage, PublishRequest};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Strikes out what a version names, in small steps.
fn judge(mut suspects: Suspects, snapshot: &NamespaceSnapshot) -> Vec<GarbageRange> {
    let mut scan = NamedScan::new();
    while scan.step(snapshot, 3, |named| suspects.strike(named)).expect("a sound namespace") {}
    suspects.into_garbage().collect()
}

fn free_garbage(d: &mut Driver, garbage: &[GarbageRange]) {
    let message = |range: &GarbageRange| meta::GarbageRange {
        pg: range.pg,
        index: range.index,
        first_block: range.first_block,
        blocks: range.blocks,
        session: range.session,
    };
    let request = FreeGarbage { ranges: garbage.iter().map(message).collect() };
    d.mutate::<cairn_wire::common::Empty>(Opcode::FreeGarbage, &request).expect("an internal entry");
    d.check();
}

fn range(index: u32, first_block: u32, blocks: u32) -> GarbageRange {
    GarbageRange { pg: 7, index, first_block, blocks, session: 1 }
}

/// A writer that died would keep its space for ever; one that lives would lose what it is about to publish.
#[test]
fn only_what_ended_sessions_wrote_is_freed() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.publish(file, &[extent(0, 3 * BLOCK + 5, 1, BLOCK)]).unwrap();
    let suspects = || {
        let mut suspects = Suspects::default();
        suspects.add(7, 1, 1, [(0, 10)]);
        suspects.add(7, 2, 1, [(3, 4), (6, 8)]);
        suspects
    };
    let all = [range(1, 0, 1), range(1, 5, 5), range(2, 3, 1), range(2, 6, 2)];
    assert_eq!(judge(suspects(), &d.namespace.snapshot()), all);
    free_garbage(&mut d, &all);
    assert_eq!(d.frees(), [], "the session lives");
    d.expire(&[1]);
    free_garbage(&mut d, &all);
    let freed: Vec<(u32, u64, u64)> =
        all.iter().map(|r| (r.index, u64::from(r.first_block), u64::from(r.blocks))).collect();
    assert_eq!(d.frees(), freed);
    assert_eq!(judge(suspects(), &d.namespace.snapshot()), [], "what is being freed is not found again");
    d.check();
    assert_eq!(d.namespace.session_state(1), SessionState::Ended);
    assert_eq!(d.extents(file).unwrap(), [extent(0, 3 * BLOCK + 5, 1, BLOCK)]);
}

/// An entry of the log could free what is no block, or without a bound.
#[test]
fn ranges_are_checked() {
    let mut d = Driver::new();
    d.expire(&[1]);
    let one = |first_block, blocks| meta::GarbageRange { pg: 7, index: 1, first_block, blocks, session: 1 };
    for ranges in [vec![one(0, 0)], vec![one(16_384, 1)], vec![one(u32::MAX, u32::MAX)], vec![one(0, 1); 4097]] {
        let request = FreeGarbage { ranges };
        let refused = d.mutate::<cairn_wire::common::Empty>(Opcode::FreeGarbage, &request);
        assert_eq!(refused, Err(ErrorCode::BadRequest));
    }
    assert_eq!(d.frees(), []);
}

/// Rows of a striped chunk and columns of a stripe set would be taken for garbage.
#[test]
fn rows_and_columns_are_named() {
    let mut d = Driver::new();
    let stripe = Stripe::new(3, BLOCK).expect("valid");
    let (erasure, set) = (ExtentKind::Erasure(stripe).to_flags(), ExtentKind::Set(stripe).to_flags());
    // Rows 2 and 3 of one chunk; row 1 of a set of three.
    let rows = Extent { file_offset: 0, length: 6 * BLOCK, pg: 7, index: 1, chunk_offset: 6 * BLOCK, flags: erasure };
    let columns = Extent { file_offset: 6 * BLOCK, length: 100, pg: 7, index: 5, chunk_offset: 3 * BLOCK, flags: set };
    let sets = vec![StripeSet { pg: 7, index: 5, column_pgs: vec![7, 7, 8], column_indices: vec![5, 6, 5] }];
    let request = CreateRequest { size: 6 * BLOCK + 100, extents: vec![rows, columns], sets, ..Default::default() };
    let create = CreateRequest { parent: ROOT, name: b"f".to_vec(), mode: 0o100_644, exclusive: true, ..request };
    d.create_with(create).unwrap();
    d.expire(&[1]);
    let mut suspects = Suspects::default();
    for (pg, index) in [(7, 1), (7, 5), (7, 6), (8, 5), (8, 6)] {
        suspects.add(pg, index, 1, [(0, 6)]);
    }
    let garbage = judge(suspects, &d.namespace.snapshot());
    let expected = [
        (7, 1, 0, 2),
        (7, 1, 4, 2),
        (7, 5, 0, 1),
        (7, 5, 2, 4),
        (7, 6, 0, 1),
        (7, 6, 2, 4),
        (8, 5, 0, 1),
        (8, 5, 2, 4),
        (8, 6, 0, 6),
    ];
    let found: Vec<_> = garbage.iter().map(|r| (r.pg, r.index, r.first_block, r.blocks)).collect();
    assert_eq!(found, expected);
    free_garbage(&mut d, &garbage);
}

/// Blocks that other files need to be decoded would be freed with one file; or those that nobody needs any more stay
/// for ever. Clones and snapshots count in whole shards as everywhere.
#[test]
fn in_whole_shards_a_block_goes_when_no_shard_needs_it() {
    let mut d = Driver::new();
    let stripe = Stripe::new(4, WHOLE_SHARD).expect("valid");
    let flags = ExtentKind::Erasure(stripe).to_flags();
    let in_shard = |shard: u16, block: u64, blocks: u64| {
        let chunk_offset = stripe.logical(shard, block * BLOCK);
        Extent { file_offset: 0, length: blocks * BLOCK, pg: 7, index: 1, chunk_offset, flags }
    };
    let make = |d: &mut Driver, name: &str, extent: Extent| {
        let file = d.create(ROOT, name, 0o644).unwrap().inode;
        d.publish(file, &[extent]).unwrap();
        file
    };
    d.set_feature_level(19);
    let file = d.create(ROOT, "early", 0o644).unwrap().inode;
    let refused = d.publish(file, &[in_shard(0, 0, 4)]).expect_err("a member of before does not know the flags");
    assert_eq!(refused, ErrorCode::InvalidArgument);
    d.set_feature_level(20);
    // Three shards have something in blocks 2 and 3, one in block 4.
    let first = make(&mut d, "first", in_shard(0, 0, 4));
    make(&mut d, "second", in_shard(1, 2, 2));
    make(&mut d, "third", in_shard(3, 2, 3));
    assert_eq!(d.extents(first).unwrap(), [in_shard(0, 0, 4)]);
    d.check();
    let copy = d.create(ROOT, "copy", 0o644).unwrap().inode;
    let clone = CloneRangeRequest { source: first, inode: copy, length: 4 * BLOCK, ..Default::default() };
    assert_eq!(d.clone_range(clone).unwrap().length, 4 * BLOCK);
    d.check();
    let garbage = |d: &mut Driver| {
        let mut suspects = Suspects::default();
        suspects.add(7, 1, 1, [(0, 8)]);
        let found = judge(suspects, &d.namespace.snapshot());
        found.iter().map(|r| (r.first_block, r.blocks)).collect::<Vec<(u32, u32)>>()
    };
    assert_eq!(garbage(&mut d), [(5, 3)]);
    // One file goes, a part of another: nothing is freed by itself.
    d.unlink(ROOT, "first").unwrap();
    d.truncate(copy, 2 * BLOCK).unwrap();
    d.unlink(ROOT, "second").unwrap();
    d.check();
    assert_eq!((d.frees(), garbage(&mut d)), (vec![], vec![(5, 3)]), "the third file needs blocks 2 to 4");
    d.create_snapshot("before").unwrap();
    d.unlink(ROOT, "third").unwrap();
    d.check();
    assert_eq!((d.frees(), garbage(&mut d)), (vec![], vec![(5, 3)]), "a snapshot has them");
    d.namespace = d.restored();
    d.delete_snapshot("before").unwrap();
    d.reclaim(100, 100);
    d.check();
    assert_eq!((d.frees(), garbage(&mut d)), (vec![], vec![(2, 6)]));
    d.unlink(ROOT, "copy").unwrap();
    d.check();
    d.expire(&[1]);
    let mut suspects = Suspects::default();
    suspects.add(7, 1, 1, [(0, 8)]);
    let all = judge(suspects, &d.namespace.snapshot());
    free_garbage(&mut d, &all);
    assert_eq!(d.frees(), [(1, 0, 8)]);
}

/// Memory is bounded: what does not fit is left to the next pass, and what stays is judged as ever.
#[test]
fn what_does_not_fit_is_left_out() {
    let mut suspects = Suspects::default();
    (0..1000).for_each(|index| suspects.add(7, index, 1, [(0, 10)]));
    suspects.shrink_to(10_000);
    assert!(suspects.len() > 50 && suspects.len() < 1000, "{}", suspects.len());
    let garbage = judge(suspects, &Driver::new().namespace.snapshot());
    assert_eq!(garbage[0], range(0, 0, 10));
}

/// Chunks as data nodes have them, writers that write, pause, publish, die; passes that take long.
#[derive(Default)]
struct World {
    /// By index: session, blocks that are there.
    chunks: BTreeMap<u32, (u64, BTreeSet<u32>)>,
    /// Of each live session: its chunk, blocks in it, and what it wrote and may yet publish.
    writers: BTreeMap<u64, Writer>,
    next_chunk: u32,
    next_session: u64,
    files: Vec<u64>,
    pass: Pass,
    freed: usize,
}

struct Writer {
    index: u32,
    blocks: u32,
    unpublished: Vec<Extent>,
}

/// Index, session, runs of blocks.
type ListedChunk = (u32, u64, Vec<(u32, u32)>);

#[derive(Default)]
enum Pass {
    #[default]
    Idle,
    Listed(Vec<ListedChunk>),
    Judged(Vec<GarbageRange>),
}

impl World {
    fn begin_session(&mut self) {
        self.next_session += 1;
        self.next_chunk += 1;
        let writer = Writer { index: self.next_chunk, blocks: 0, unpublished: Vec::new() };
        self.writers.insert(self.next_session, writer);
    }

    fn session(&self, pick: u8) -> Option<u64> {
        self.writers.keys().nth(usize::from(pick) % self.writers.len().max(1)).copied()
    }

    fn write(&mut self, pick: u8, amount: u8) {
        let Some(session) = self.session(pick) else { return };
        let writer = self.writers.get_mut(&session).expect("picked");
        if writer.blocks > 40 {
            self.next_chunk += 1;
            (writer.index, writer.blocks) = (self.next_chunk, 0);
        }
        let (first, blocks) = (writer.blocks, 1 + u32::from(amount % 5));
        writer.blocks += blocks;
        self.chunks.entry(writer.index).or_insert((session, BTreeSet::new())).1.extend(first..first + blocks);
        // The last block is filled in part.
        let length = u64::from(blocks) * BLOCK - u64::from(amount) % 7;
        writer.unpublished.push(extent(0, length, writer.index, u64::from(first) * BLOCK));
    }

    fn publish(&mut self, d: &mut Driver, pick: u8, place: u8) {
        let Some(session) = self.session(pick) else { return };
        let writer = self.writers.get_mut(&session).expect("picked");
        if writer.unpublished.is_empty() {
            return;
        }
        let written = writer.unpublished.remove(usize::from(place) % writer.unpublished.len());
        d.session = session;
        if self.files.len() < 4 {
            let name = format!("f{}", d.log.len());
            self.files.push(d.create(ROOT, &name, 0o644).expect("created").inode);
        }
        let file = self.files[usize::from(place) % self.files.len()];
        let file_offset = u64::from(place) / 16 * BLOCK;
        d.publish(file, &[Extent { file_offset, ..written }]).expect("published");
    }

    /// A writer dies, and what it wrote may no longer be published by anybody.
    fn die(&mut self, d: &mut Driver, pick: u8) {
        let Some(session) = self.session(pick) else { return };
        let writer = self.writers.remove(&session).expect("picked");
        d.expire(&[session]);
        if let (Some(late), Some(file)) = (writer.unpublished.first(), self.files.first()) {
            d.session = session;
            assert_eq!(d.publish(*file, &[*late]), Err(ErrorCode::SessionEnded));
            d.session = self.next_session + 1000;
            let other =
                PublishRequest { inode: *file, extents: vec![*late], written_by: session, ..Default::default() };
            assert_eq!(d.publish_with(other), Err(ErrorCode::WrongSession));
        }
    }

    fn unlink(&mut self, d: &mut Driver, pick: u8) {
        if self.files.is_empty() {
            return;
        }
        self.files.swap_remove(usize::from(pick) % self.files.len());
        d.session = self.next_session + 1000;
        let names = d.names(ROOT);
        let gone = names.iter().find(|name| {
            let inode = d.lookup(ROOT, name).expect("there").inode;
            !self.files.contains(&inode)
        });
        let gone = gone.expect("one is left out").clone();
        d.unlink(ROOT, &gone).expect("unlinked");
    }

    /// The next step of the pass that is under way.
    fn collect(&mut self, d: &mut Driver) {
        self.pass = match std::mem::take(&mut self.pass) {
            Pass::Idle => {
                let ended = |session: u64| d.namespace.session_state(session) == SessionState::Ended;
                let listed = self.chunks.iter().filter(|(_, (session, _))| ended(*session));
                let runs = |blocks: &BTreeSet<u32>| blocks.iter().map(|block| (*block, *block + 1)).collect();
                Pass::Listed(listed.map(|(index, (session, blocks))| (*index, *session, runs(blocks))).collect())
            }
            Pass::Listed(listed) => {
                let mut suspects = Suspects::default();
                listed.into_iter().for_each(|(index, session, runs)| suspects.add(7, index, session, runs));
                Pass::Judged(judge(suspects, &d.namespace.snapshot()))
            }
            Pass::Judged(garbage) => {
                free_garbage(d, &garbage);
                Pass::Idle
            }
        };
    }

    /// Data nodes free what the log says.
    fn free(&mut self, d: &mut Driver) {
        let records = d.namespace.pending_frees(0, 1000);
        for record in &records {
            let blocks = record.first_block as u32..(record.first_block + record.blocks) as u32;
            for writer in self.writers.values() {
                for waiting in writer.unpublished.iter().filter(|waiting| waiting.index == record.index) {
                    let first = (waiting.chunk_offset / BLOCK) as u32;
                    let end = (waiting.chunk_offset + waiting.length).div_ceil(BLOCK) as u32;
                    assert!(end <= blocks.start || blocks.end <= first, "a writer lives and would publish {waiting:?}");
                }
            }
            if let Some((_, there)) = self.chunks.get_mut(&record.index) {
                blocks.for_each(|block| self.freed += usize::from(there.remove(&block)));
            }
        }
        d.free_done(&records.iter().map(|record| record.id).collect::<Vec<_>>());
    }

    /// Blocks that files name.
    fn named(&self, d: &Driver) -> BTreeSet<(u32, u32)> {
        let mut named = BTreeSet::new();
        for file in &self.files {
            for e in d.extents(*file).expect("a file") {
                let blocks = e.chunk_offset / BLOCK..(e.chunk_offset + e.length).div_ceil(BLOCK);
                named.extend(blocks.map(|block| (e.index, block as u32)));
            }
        }
        named
    }

    fn there(&self) -> BTreeSet<(u32, u32)> {
        self.chunks.iter().flat_map(|(index, (_, blocks))| blocks.iter().map(|block| (*index, *block))).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// A file would lose bytes, a writer that is slow or paused would lose what it is about to publish, or what dead
    /// writers left would stay for ever, whatever happens between the steps of a pass.
    #[test]
    fn passes_take_garbage_and_nothing_else(steps in prop::collection::vec((0u8..16, any::<u8>(), any::<u8>()), 20..250)) {
        let (mut d, mut world) = (Driver::new(), World::default());
        world.begin_session();
        for (what, pick, amount) in steps {
            match what {
                0 => world.begin_session(),
                1..=5 => world.write(pick, amount),
                6..=8 => world.publish(&mut d, pick, amount),
                9 => world.die(&mut d, pick),
                10 => world.unlink(&mut d, pick),
                11..=13 => world.collect(&mut d),
                _ => world.free(&mut d),
            }
            let (named, there) = (world.named(&d), world.there());
            prop_assert!(named.is_subset(&there), "a file names what was freed: {:?}", named.difference(&there).next());
        }
        while !world.writers.is_empty() {
            world.die(&mut d, 0);
        }
        for _ in 0..6 {
            world.collect(&mut d);
        }
        d.reclaim(0, 0);
        world.free(&mut d);
        d.check();
        prop_assert_eq!(world.named(&d), world.there());
    }
}
