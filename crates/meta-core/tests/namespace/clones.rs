//! Ranges that several files name: contents, references, and what is freed, against a plain map of who names what.
use crate::driver::*;
use cairn_meta_core::{Fsck, NamedScan, Suspects};
use cairn_types::{BLOCK_SIZE, EXTENT_SHARED, ErrorCode as E, ExtentKind, Layout, Stripe};
use cairn_wire::common::Extent;
use cairn_wire::meta::{CloneRangeRequest, DiscardRequest, PunchRequest, SetattrRequest};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// All offsets are multiples of it, not of a block.
const UNIT: u64 = 512;
const UNITS: u64 = 200;

fn clone(source: u64, from: u64, inode: u64, to: u64, length: u64) -> CloneRangeRequest {
    CloneRangeRequest { source, source_offset: from, inode, offset: to, length, ..Default::default() }
}

fn shared(extent: Extent) -> Extent {
    Extent { flags: extent.flags | EXTENT_SHARED, ..extent }
}

fn two_files() -> (Driver, u64, u64) {
    let mut d = Driver::new();
    let (a, b) = (d.create(ROOT, "a", 0o644).unwrap().inode, d.create(ROOT, "b", 0o644).unwrap().inode);
    (d, a, b)
}

/// The last of several files that share a block would lose it with the first one, or it would never be freed.
#[test]
fn blocks_are_freed_with_the_last_who_names_them() {
    let (mut d, a, b) = two_files();
    let version = d.publish(a, &[extent(0, 5 * BLOCK + 100, 1, BLOCK)]).unwrap().data_version;
    let answer = d.clone_range(clone(a, 0, b, 0, 5 * BLOCK + 100)).unwrap();
    assert_eq!(answer.length, 5 * BLOCK + 100);
    let (target, source) = (answer.attributes.unwrap(), answer.source.unwrap());
    assert_eq!((target.size, target.stored_bytes), (5 * BLOCK + 100, 5 * BLOCK + 100));
    assert!(source.data_version > version, "clients ask for the extents again: they are shared now");
    let whole = shared(extent(0, 5 * BLOCK + 100, 1, BLOCK));
    assert_eq!((d.extents(a).unwrap(), d.extents(b).unwrap()), (vec![whole], vec![whole]));
    d.check();
    d.truncate(a, 2 * BLOCK + 50).unwrap();
    assert_eq!(d.frees(), []);
    d.unlink(ROOT, "b").unwrap();
    assert_eq!(
        d.frees(),
        [(1, 4, 3)],
        "the first three blocks are the other file's, the first hundred bytes of one too"
    );
    d.check();
    d.unlink(ROOT, "a").unwrap();
    assert_eq!(d.frees(), [(1, 4, 3), (1, 1, 3)]);
    d.check();
}

/// What had a clone once would stay copies for ever, or what a clone has be moved away from it.
#[test]
fn whoever_moves_is_told_what_is_shared_now() {
    let (mut d, a, b) = two_files();
    d.publish(a, &[extent(0, 6 * BLOCK, 1, BLOCK)]).unwrap();
    d.clone_range(clone(a, BLOCK, b, BLOCK, 4 * BLOCK)).unwrap();
    let part = |from: u64, to: u64| extent(from * BLOCK, (to - from) * BLOCK, 1, (from + 1) * BLOCK);
    assert_eq!(d.extents_to_move(a), [part(0, 1), shared(part(1, 5)), part(5, 6)]);
    d.truncate(b, 3 * BLOCK).unwrap();
    // Where flags differ in what is stored, extents are apart.
    assert_eq!(d.extents_to_move(a), [part(0, 1), shared(part(1, 3)), part(3, 5), part(5, 6)]);
    assert_eq!(d.extents(a).unwrap(), [part(0, 1), shared(part(1, 5)), part(5, 6)], "never changed in place any more");
    d.unlink(ROOT, "b").unwrap();
    assert_eq!(d.extents_to_move(a), [part(0, 1), part(1, 5), part(5, 6)]);
    d.check();
}

/// A client could change blocks in place that another file has as well.
#[test]
fn what_is_overwritten_in_place_is_not_cloned_and_the_other_way_round() {
    let (mut d, a, b) = two_files();
    d.publish(a, &[extent(0, 4 * BLOCK, 1, 0)]).unwrap();
    d.hold(a, true).unwrap();
    let (number, _) = d.take_lease(a).unwrap();
    assert_eq!(d.clone_range(clone(a, 0, b, 0, BLOCK)), Err(E::LeaseHeld), "also for the one that has the lease");
    assert_eq!(d.namespace.take_wanted_leases(), [(1, a)]);
    let before = d.give_lease(a, number, false, 0).unwrap().data_version;
    d.clone_range(clone(a, BLOCK, b, BLOCK, BLOCK)).unwrap();
    let (_, granted) = d.take_lease(a).unwrap();
    assert!(granted.data_version > before, "what was known of the extents before is old");
    let flags: Vec<u32> = d.extents(a).unwrap().iter().map(|e| e.flags).collect();
    assert_eq!(flags, [0, EXTENT_SHARED, 0], "only what was cloned");
    d.check();
}

/// A discard that comes late, of what was published after all and cloned since, would destroy the clone.
#[test]
fn what_is_shared_is_not_given_back() {
    let (mut d, a, b) = two_files();
    let written = extent(0, 4 * BLOCK, 1, 0);
    d.publish(a, &[written]).unwrap();
    d.clone_range(clone(a, 0, b, 0, 2 * BLOCK)).unwrap();
    d.truncate(a, 0).unwrap();
    assert_eq!(d.frees(), [(1, 2, 2)]);
    let (header, written_by) = (d.next(), d.session);
    let request = DiscardRequest { header, extents: vec![written], written_by, ..Default::default() };
    d.mutate::<cairn_wire::common::Empty>(cairn_wire::Opcode::Discard, &request).unwrap();
    assert!(d.frees().iter().all(|(_, first, _)| *first >= 2), "{:?}", d.frees());
    d.check();
}

/// The caller would believe that something was copied, or files of another layout get less redundancy than they should.
#[test]
fn what_cannot_be_shared_is_left_to_the_caller() {
    let (mut d, a, b) = two_files();
    d.publish(a, &[extent(0, 4 * BLOCK, 1, 0)]).unwrap();
    let refused = [
        (clone(a, 0, b, 1, BLOCK), E::InvalidArgument),
        (clone(a, 0, b, 0, 0), E::InvalidArgument),
        (clone(a, BLOCK, b, 0, 4 * BLOCK), E::InvalidArgument),
        (clone(a, 0, a, BLOCK, 2 * BLOCK), E::InvalidArgument),
        (clone(a, 0, b, (i64::MAX as u64 + 1) - BLOCK, 2 * BLOCK), E::FileTooLarge),
        (clone(ROOT, 0, b, 0, BLOCK), E::IsDirectory),
        (clone(a, 0, ROOT, 0, BLOCK), E::IsDirectory),
        (clone(a, 0, 99, 0, BLOCK), E::Stale),
        (CloneRangeRequest { if_source_version: 77, ..clone(a, 0, b, 0, BLOCK) }, E::Conflict),
        (CloneRangeRequest { if_data_version: 77, ..clone(a, 0, b, 0, BLOCK) }, E::Conflict),
    ];
    for (request, code) in refused {
        assert_eq!(d.clone_range(request.clone()), Err(code), "{request:?}");
    }
    let layout = Layout::replicated(2).to_bits();
    d.setattr(SetattrRequest { inode: b, valid: 1 << 8, layout, ..Default::default() }).unwrap();
    assert_eq!(d.clone_range(clone(a, 0, b, 0, BLOCK)).unwrap().length, 0);
    assert_eq!(d.extents(b).unwrap(), []);
    d.who = user(5, 5, &[]);
    assert_eq!(d.clone_range(clone(a, 0, b, 0, BLOCK)), Err(E::PermissionDenied));
    d.check();

    // A block that two places of the source name.
    let (mut d, a, b) = two_files();
    d.publish(a, &[extent(0, BLOCK, 2, 0), extent(BLOCK, 100, 1, BLOCK), extent(8 * BLOCK + 200, 100, 1, BLOCK + 200)])
        .unwrap();
    assert_eq!(d.clone_range(clone(a, 0, b, 0, 8 * BLOCK)).unwrap().length, BLOCK);
    d.check();
}

/// A quota would be passed by clones, which take no space on disks but count as what they are.
#[test]
fn clones_count_like_copies() {
    let mut d = Driver::new();
    let directory = d.mkdir(ROOT, "d", 0o755).unwrap().inode;
    d.set_quota(directory, 6 * BLOCK, 0).unwrap();
    let (a, b) = (d.create(directory, "a", 0o644).unwrap().inode, d.create(directory, "b", 0o644).unwrap().inode);
    d.publish(a, &[extent(0, 4 * BLOCK, 1, 0)]).unwrap();
    assert_eq!(d.clone_range(clone(a, 0, b, 0, 3 * BLOCK)), Err(E::QuotaExceeded));
    d.clone_range(clone(a, 0, b, 0, 2 * BLOCK)).unwrap();
    d.clone_range(clone(a, 2 * BLOCK, b, 0, 2 * BLOCK)).unwrap();
    assert_eq!(d.quota(directory).unwrap().bytes_used, 6 * BLOCK);
    d.check();
}

/// A file in very many pieces would make one entry of the log take long.
#[test]
fn a_clone_does_a_bounded_part() {
    let (mut d, a, b) = two_files();
    let many: Vec<Extent> = (0..1500).map(|i| extent(i * BLOCK, BLOCK, 1 + i as u32, 0)).collect();
    d.publish(a, &many).unwrap();
    let mut at = 0;
    let mut calls = 0;
    while at < 1500 * BLOCK {
        at += d.clone_range(clone(a, at, b, at, 1500 * BLOCK - at)).unwrap().length;
        calls += 1;
    }
    assert_eq!((at, calls), (1500 * BLOCK, 2));
    assert_eq!(d.extents(b).unwrap(), d.extents(a).unwrap());
    d.check();
}

/// What a step does depends on the state when it is taken.
#[derive(Clone, Debug)]
struct Step {
    kind: u8,
    numbers: [u16; 5],
}

/// Who names what, in units: the chunk's index and its unit.
type Contents = Vec<Option<(u32, u64)>>;

struct Side {
    d: Driver,
    files: BTreeMap<u64, Contents>,
    next: u32,
    /// Where a file's last write went: chunk, chunk offset minus file offset in units, end.
    tails: BTreeMap<u64, (u32, u64, u64)>,
    /// Row of the chunk in units; a plain one's are blocks.
    kinds: BTreeMap<u32, ExtentKind>,
    written: BTreeSet<(u32, u64)>,
    cloned: u64,
    cloned_out: u64,
    /// What files were when a snapshot was taken, by its name.
    snapshots: BTreeMap<String, BTreeMap<u64, Contents>>,
    taken: u64,
}

impl Side {
    fn new() -> Self {
        let d = Driver::new();
        let (files, tails, kinds, written) = Default::default();
        let snapshots = BTreeMap::new();
        Side { d, files, next: 1, tails, kinds, written, cloned: 0, cloned_out: 0, snapshots, taken: 0 }
    }

    fn file(&self, number: u16) -> Option<u64> {
        let at = usize::from(number) % self.files.len().max(1);
        self.files.keys().nth(at).copied()
    }

    fn publish(&mut self, inode: u64, at: u64, units: u64, chunk: u32, apart: u64) {
        let kind = self.kinds[&chunk];
        let chunk_offset = (at + apart) * UNIT;
        let new = Extent {
            file_offset: at * UNIT,
            length: units * UNIT,
            pg: 7,
            index: chunk,
            chunk_offset,
            flags: kind.to_flags(),
        };
        self.d.publish(inode, &[new]).expect("published");
        let contents = self.files.get_mut(&inode).expect("a file");
        if contents.len() < (at + units) as usize {
            contents.resize((at + units) as usize, None);
        }
        for unit in at..at + units {
            contents[unit as usize] = Some((chunk, unit + apart));
            self.written.insert((chunk, granule(kind, unit + apart)));
        }
        self.tails.insert(inode, (chunk, apart, at + units));
    }

    fn step(&mut self, step: &Step) {
        let n = step.numbers.map(u64::from);
        let Some(inode) = self.file(step.numbers[0]).filter(|_| step.kind >= 12) else { return self.create() };
        let at = n[1] % UNITS;
        match step.kind {
            12..70 => {
                let stripe = Stripe::new(3, BLOCK).expect("valid");
                let kind = if n[3] % 4 == 0 { ExtentKind::Erasure(stripe) } else { ExtentKind::Plain };
                self.next += 1;
                self.kinds.insert(self.next, kind);
                // At the beginning of a row, whatever the file offset.
                let row = kind.stripe().map_or(BLOCK, |s| s.row()) / UNIT;
                let chunk_unit = row * 7 * (BLOCK / UNIT) + at % 8;
                self.publish(inode, at, 1 + n[2] % 40, self.next, chunk_unit.wrapping_sub(at));
            }
            70..100 => {
                let Some((chunk, apart, end)) = self.tails.get(&inode).copied() else { return };
                let last = self.files[&inode].get(end as usize - 1).copied().flatten();
                if last == Some((chunk, (end - 1).wrapping_add(apart))) {
                    self.publish_behind(inode, chunk, apart, end, 1 + n[2] % 12);
                }
            }
            100..190 => self.clone(step, inode, at),
            190..205 => {
                self.d.truncate(inode, at * UNIT).expect("truncated");
                self.files.get_mut(&inode).expect("a file").resize(at as usize, None);
            }
            205..220 => {
                let units = 1 + n[2] % 30;
                let request = PunchRequest { inode, offset: at * UNIT, length: units * UNIT, ..Default::default() };
                self.d.punch(request).expect("punched");
                self.files
                    .get_mut(&inode)
                    .expect("a file")
                    .iter_mut()
                    .skip(at as usize)
                    .take(units as usize)
                    .for_each(|u| *u = None);
            }
            220..235 => {
                self.d.unlink(ROOT, &format!("f{inode}")).expect("unlinked");
                self.files.remove(&inode);
                self.tails.remove(&inode);
            }
            _ => self.d.namespace = self.d.restored(),
        }
    }

    /// Takes snapshots, and deletes them in any order.
    fn snapshot_step(&mut self, step: &Step) {
        let at = usize::from(step.numbers[1]) % self.snapshots.len().max(1);
        match (step.numbers[0] % 3, self.snapshots.keys().nth(at).cloned()) {
            (0, Some(name)) => {
                self.d.delete_snapshot(&name).expect("deleted");
                self.snapshots.remove(&name);
            }
            _ if self.snapshots.len() < 4 => {
                self.taken += 1;
                let name = format!("s{}", self.taken);
                assert!(self.d.create_snapshot(&name).expect("no leases").number > 0);
                self.snapshots.insert(name, self.files.clone());
            }
            _ => {}
        }
    }

    fn publish_behind(&mut self, inode: u64, chunk: u32, apart: u64, end: u64, units: u64) {
        self.publish(inode, end, units, chunk, apart);
    }

    fn create(&mut self) {
        if self.files.len() < 5 {
            let inode = self.d.create(ROOT, "new", 0o644).expect("created").inode;
            self.d.rename(ROOT, "new", ROOT, &format!("f{inode}"), 0).expect("renamed");
            self.files.insert(inode, Vec::new());
        }
    }

    fn clone(&mut self, step: &Step, target: u64, at: u64) {
        let Some(source) = self.file(step.numbers[3]) else { return };
        let size = self.files[&source].len() as u64;
        let from = u64::from(step.numbers[4]) % UNITS / 8 * 8 + at % 8;
        let units = (1 + u64::from(step.numbers[2]) % 60).min(size.saturating_sub(from));
        if units == 0 || source == target && at.abs_diff(from) < units {
            return;
        }
        let done = self.d.clone_range(clone(source, from * UNIT, target, at * UNIT, units * UNIT)).expect("cloned");
        assert_eq!(done.length, units * UNIT, "nothing here that cannot be shared");
        let bytes = self.files[&source][from as usize..(from + units) as usize].to_vec();
        let contents = self.files.get_mut(&target).expect("a file");
        if contents.len() < (at + units) as usize {
            contents.resize((at + units) as usize, None);
        }
        contents[at as usize..(at + units) as usize].copy_from_slice(&bytes);
        self.cloned += 1;
    }

    /// Brings back a part of what a file was, into whatever file: often into that which it has become.
    fn clone_out(&mut self, step: &Step) {
        let n = step.numbers.map(u64::from);
        let at = usize::from(step.numbers[1]) % self.snapshots.len().max(1);
        let Some((name, files)) = self.snapshots.iter().nth(at) else { return };
        let Some((source, then)) = files.iter().nth(usize::from(step.numbers[2]) % files.len().max(1)) else { return };
        let target =
            if n[0] % 3 == 0 && self.files.contains_key(source) { Some(*source) } else { self.file(step.numbers[0]) };
        let Some(target) = target else { return };
        let path = format!(".snapshots/{name}");
        let root = self.d.resolve(ROOT, &path).expect("resolved").attributes.expect("a directory").inode;
        let (size, then) = (then.len() as u64, then.clone());
        let from = n[3] % UNITS / 8 * 8;
        let units = (1 + n[2] % 90).min(size.saturating_sub(from));
        let to = if n[0] % 2 == 0 { from } else { n[4] % UNITS / 8 * 8 };
        if units == 0 {
            return;
        }
        let request = clone(root - ROOT + source, from * UNIT, target, to * UNIT, units * UNIT);
        let done = self.d.clone_range(request).expect("cloned out of a snapshot");
        assert!(done.length.is_multiple_of(UNIT));
        let units = done.length / UNIT;
        if units == 0 {
            return;
        }
        let contents = self.files.get_mut(&target).expect("a file");
        if contents.len() < (to + units) as usize {
            contents.resize((to + units) as usize, None);
        }
        contents[to as usize..(to + units) as usize].copy_from_slice(&then[from as usize..(from + units) as usize]);
        self.cloned_out += 1;
    }

    fn check(&mut self) {
        let mut rounds = 0;
        while !self.d.namespace.reclaimable().is_empty() {
            self.d.reclaim(1, 2);
            self.d.check();
            rounds += 1;
            assert!(rounds < 10_000, "reclaiming comes to an end");
        }
        self.d.check();
        let mut named = BTreeSet::new();
        let mut all: Vec<(u64, &Contents)> = self.files.iter().map(|(inode, contents)| (*inode, contents)).collect();
        for (name, files) in &self.snapshots {
            let path = format!(".snapshots/{name}");
            let root = self.d.resolve(ROOT, &path).expect("resolved").attributes.expect("a directory").inode;
            all.extend(files.iter().map(|(inode, contents)| (root - ROOT + inode, contents)));
        }
        for (inode, contents) in all {
            let mut found: Contents = vec![None; contents.len()];
            for extent in self.d.extents(inode).expect("extents") {
                let (first, count) = (extent.file_offset / UNIT, extent.length / UNIT);
                for unit in 0..count {
                    found[(first + unit) as usize] = Some((extent.index, extent.chunk_offset / UNIT + unit));
                }
            }
            assert_eq!(found, *contents, "contents of {inode}");
            let places = contents.iter().flatten();
            named.extend(places.map(|(chunk, unit)| (*chunk, granule(self.kinds[chunk], *unit))));
        }
        let mut freed = BTreeSet::new();
        for (index, first, blocks) in self.d.frees() {
            for block in first..first + blocks {
                assert!(freed.insert((index, block)), "block {block} of chunk {index} is freed twice");
            }
        }
        assert!(freed.is_disjoint(&named), "a block is freed that a file names");
        let both: BTreeSet<_> = freed.union(&named).copied().collect();
        // What was cloned out of a snapshot may count as older than it is, and be kept until older snapshots go.
        if self.cloned_out == 0 || self.snapshots.is_empty() {
            assert_eq!(both, self.written, "a block that nobody names is freed");
        }
    }

    /// The proof and the collection of garbage know of all this.
    fn prove(&mut self) {
        for part in [1, 1000] {
            let (snapshot, mut fsck) = (self.d.namespace.snapshot(), Fsck::new(part));
            while fsck.step(&snapshot, 7) {}
            assert_eq!(fsck.into_report().findings, []);
        }
        let mut suspects = Suspects::default();
        for chunk in self.kinds.keys() {
            suspects.add(7, *chunk, 1, [(0, 500)]);
        }
        let (snapshot, mut scan) = (self.d.namespace.snapshot(), NamedScan::new());
        while scan.step(&snapshot, 3, |named| suspects.strike(named)).expect("a sound namespace") {}
        let garbage: BTreeSet<(u32, u64)> = suspects
            .into_garbage()
            .flat_map(|r| (r.first_block..r.first_block + r.blocks).map(move |block| (r.index, u64::from(block))))
            .collect();
        assert!(garbage.is_disjoint(&self.written), "what is named or being freed is no garbage");
    }
}

/// The block in the members' files that is freed with a unit.
fn granule(kind: ExtentKind, unit: u64) -> u64 {
    match kind.stripe() {
        None => unit / (BLOCK / UNIT),
        // Units of one block: a row takes one block of each column's file.
        Some(stripe) => unit / (stripe.row() / UNIT),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
    /// A file gets another one's bytes, a block is freed that a file still has, or never, or counted wrong.
    #[test]
    fn clones_are_copies_that_take_no_space(
        steps in prop::collection::vec((any::<u8>(), any::<[u16; 5]>()).prop_map(|(kind, numbers)| Step { kind, numbers }), 1..60)
    ) {
        let mut side = Side::new();
        side.create();
        side.create();
        for step in &steps {
            side.step(step);
            side.check();
        }
        side.prove();
        let mut first = cairn_meta_core::Namespace::new(&config());
        for entry in &side.d.log {
            let _ = first.apply(entry.at, entry.opcode, &entry.request, &mut Vec::new());
        }
        let bytes = |n: &cairn_meta_core::Namespace| n.snapshot().pages(9000).collect::<Vec<_>>();
        prop_assert_eq!(bytes(&first), bytes(&side.d.namespace), "replicas write the same checkpoint");
    }

    /// A block is freed that a snapshot of a file, or of a clone, still has; or never, or counted wrong; or a snapshot
    /// shows other bytes.
    #[test]
    fn snapshots_of_clones_keep_what_they_name(
        steps in prop::collection::vec((any::<u8>(), any::<[u16; 5]>()).prop_map(|(kind, numbers)| Step { kind, numbers }), 1..60)
    ) {
        let mut side = Side::new();
        side.d.set_feature_level(13);
        side.create();
        side.create();
        for step in &steps {
            match step.numbers[4] % 10 {
                0 | 5 => side.snapshot_step(step),
                1 | 6 | 8 => side.clone_out(step),
                _ => side.step(step),
            }
            side.check();
        }
        side.prove();
        let names: Vec<String> = side.snapshots.keys().cloned().collect();
        for name in names {
            side.d.delete_snapshot(&name).expect("deleted");
            side.snapshots.remove(&name);
            side.check();
        }
        prop_assert!(!side.d.namespace.has_snapshots());
        side.prove();
    }
}
