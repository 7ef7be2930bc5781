//! Random writes and cuts of files with many extents, with the leader's batches in between, held against a map of
//! bytes.
use super::*;
use crate::namespace::{AppliedAt, Namespace, NamespaceConfig};
use cairn_types::{Layout, PartitionId, VolumeId, WallTime};
use cairn_wire::Opcode;
use cairn_wire::common::{Credentials, Extent as Message};
use cairn_wire::meta::*;
use proptest::prelude::*;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};

const UNIT: u64 = 1000;
/// Units of the largest file.
const UNITS: u64 = 60;

struct Side {
    namespace: Namespace,
    index: u64,
    sequence: u64,
    inode: u64,
    next_chunk: u32,
    size: u64,
    /// Unit of the file → chunk and bytes.
    units: BTreeMap<u64, (u32, u64)>,
    /// Chunks and their blocks that were ever named.
    ever: BTreeSet<(u32, u64)>,
    refused: u64,
    batches: u64,
}

impl Side {
    fn new() -> Self {
        let config = NamespaceConfig::new(VolumeId(1), PartitionId(1), Layout::replicated(3));
        let mut side = Side {
            namespace: Namespace::new(&config),
            index: 0,
            sequence: 0,
            inode: 0,
            next_chunk: 1,
            size: 0,
            units: BTreeMap::new(),
            ever: BTreeSet::new(),
            refused: 0,
            batches: 0,
        };
        let create = CreateRequest { header: side.header(), parent: 1, name: b"f".to_vec(), ..Default::default() };
        let answer = side.apply(Opcode::Create, &create.encode_to_vec()).expect("created");
        let answer = AttributesResponse::decode(answer.as_slice()).expect("attributes").attributes.expect("some");
        side.inode = answer.inode;
        side
    }

    fn header(&mut self) -> Option<MetaHeader> {
        self.sequence += 1;
        let who = Some(Credentials::default());
        Some(MetaHeader { volume: 1, partition: 1, session: 1, slot: 0, sequence: self.sequence, who })
    }

    fn apply(&mut self, opcode: Opcode, request: &[u8]) -> std::result::Result<Vec<u8>, ErrorCode> {
        self.index += 1;
        let at = AppliedAt { index: self.index, term: 1, time: WallTime(self.index) };
        let mut out = Vec::new();
        let result = self.namespace.apply(at, opcode, request, &mut out).map_err(|error| error.code);
        self.namespace.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
        result.map(|()| out)
    }

    /// As a client does: the same request again while it is told to come again.
    fn repeat(&mut self, opcode: Opcode, request: &[u8]) {
        while let Err(code) = self.apply(opcode, request) {
            assert_eq!(code, ErrorCode::Overloaded);
            self.refused += 1;
            self.reclaim(1);
        }
    }

    fn reclaim(&mut self, extents_max: u32) {
        self.batches += 1;
        self.apply(Opcode::ReclaimBatch, &ReclaimBatch { inodes_max: 1, extents_max, deferred_to: 0 }.encode_to_vec())
            .expect("reclaimed");
    }

    /// Units far apart, or one after the other, each in a chunk of its own.
    fn write(&mut self, from: u64, count: u64, step: u64) {
        let mut extents = Vec::new();
        for unit in (0..count).map(|i| from + i * step).filter(|unit| *unit < UNITS) {
            let index = self.next_chunk;
            self.next_chunk += 1;
            let file_offset = unit * UNIT;
            let chunk_offset = file_offset % 4096;
            extents.push(Message { file_offset, length: UNIT, pg: 1, index, chunk_offset, flags: 0 });
            self.units.insert(unit, (index, UNIT));
            self.ever.extend(blocks(unit, index, UNIT));
            self.size = self.size.max(file_offset + UNIT);
        }
        let (header, inode) = (self.header(), self.inode);
        let request = PublishRequest { header, inode, extents, written_by: 1, ..Default::default() };
        self.repeat(Opcode::Publish, &request.encode_to_vec());
    }

    fn set_size(&mut self, size: u64) {
        self.size = size;
        self.units.retain(|unit, _| unit * UNIT < size);
        self.units.iter_mut().for_each(|(unit, (_, length))| *length = (*length).min(size - unit * UNIT));
        let (header, inode) = (self.header(), self.inode);
        let request = SetattrRequest { header, inode, valid: 1 << 3, size, ..Default::default() };
        self.repeat(Opcode::Setattr, &request.encode_to_vec());
    }

    /// What a reader gets is what was written and not cut off.
    fn compare(&self) {
        let header =
            Some(MetaHeader { volume: 1, partition: 1, who: Some(Credentials::default()), ..Default::default() });
        let request = GetExtentsRequest { header, inode: self.inode, ..Default::default() };
        let mut out = Vec::new();
        self.namespace.read(Opcode::GetExtents, &request.encode_to_vec(), &mut out).expect("extents");
        let answer = GetExtentsResponse::decode(out.as_slice()).expect("the answer is protobuf");
        let expected: Vec<Message> = self
            .units
            .iter()
            .map(|(unit, (index, length))| {
                let file_offset = unit * UNIT;
                Message {
                    file_offset,
                    length: *length,
                    pg: 1,
                    index: *index,
                    chunk_offset: file_offset % 4096,
                    flags: 0,
                }
            })
            .collect();
        assert_eq!((answer.size, answer.extents), (self.size, expected));
    }

    /// When the leader has nothing left to do, all that is not named is free.
    fn settle(&mut self) {
        while !self.namespace.reclaimable().is_empty() {
            self.reclaim(20);
        }
        let records = self.namespace.pending_frees(0, usize::MAX);
        let freed: BTreeSet<(u32, u64)> = records
            .iter()
            .flat_map(|record| {
                (record.first_block..record.first_block + record.blocks).map(|block| (record.index, block))
            })
            .collect();
        assert_eq!(freed.len() as u64, records.iter().map(|record| record.blocks).sum::<u64>(), "freed twice");
        let named = self.units.iter().flat_map(|(unit, (index, length))| blocks(*unit, *index, *length)).collect();
        let expected: BTreeSet<_> = self.ever.difference(&named).copied().collect();
        assert_eq!(freed, expected, "blocks that are given back");
    }

    fn restart(&mut self) {
        let mut builder = crate::NamespaceBuilder::new();
        for page in self.namespace.snapshot().pages(4000) {
            builder.push_page(&page).expect("a page of a checkpoint");
        }
        self.namespace = builder.finish().expect("a whole checkpoint");
    }
}

/// Blocks of the chunk that a unit of the file, or its beginning, lies in.
fn blocks(unit: u64, index: u32, length: u64) -> impl Iterator<Item = (u32, u64)> {
    let from = unit * UNIT % 4096;
    (from / 4096..(from + length).div_ceil(4096)).map(move |block| (index, block))
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, u64),
    Size(u64),
    Reclaim,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..UNITS, 1u64..25, 1u64..4).prop_map(|(from, count, step)| Step::Write(from, count, step)),
        4 => (0..UNITS * UNIT).prop_map(Step::Size),
        2 => Just(Step::Reclaim),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..40)
}

/// Cut off contents that come back when the file grows, extents that are never freed, or freed while they are read; and
/// an entry without a bound.
#[test]
fn what_was_cut_off_never_comes_back() {
    let (refused, batches) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() };
    let run = |steps: Vec<Step>| {
        let mut side = Side::new();
        for step in steps {
            match step {
                Step::Write(from, count, step) => side.write(from, count, step),
                Step::Size(size) => side.set_size(size),
                Step::Reclaim => side.reclaim(1),
                Step::Restart => side.restart(),
            }
            side.compare();
        }
        side.settle();
        side.compare();
        refused.set(refused.get() + side.refused);
        batches.set(batches.get() + side.batches);
        Ok(())
    };
    proptest::test_runner::TestRunner::new(config).run(&steps(), run).unwrap_or_else(|error| panic!("{error}"));
    println!("{} requests were told to come again, {} batches", refused.get(), batches.get());
    assert!(refused.get() > 100 && batches.get() > 1000);
}

/// A file that is removed while it is being cut would be reclaimed twice, or never.
#[test]
fn a_file_being_cut_can_be_removed() {
    for with_hold in [false, true] {
        for blocks in [6, 100] {
            let mut side = Side::new();
            for unit in 0..blocks {
                side.write(unit % UNITS, 1, 1);
            }
            side.set_size(1);
            assert_eq!(side.namespace.reclaimable().cuts, 1);
            let inode = side.inode;
            if with_hold {
                let header = side.header();
                side.apply(Opcode::Hold, &HoldRequest { header, inode, write: true }.encode_to_vec()).expect("held");
            }
            let header = side.header();
            let unlink = UnlinkRequest { header, parent: 1, name: b"f".to_vec() };
            side.apply(Opcode::Unlink, &unlink.encode_to_vec()).expect("removed");
            side.reclaim(1);
            if with_hold {
                let header = side.header();
                side.apply(Opcode::Release, &ReleaseRequest { header, inode, also: Vec::new() }.encode_to_vec())
                    .expect("released");
            }
            side.units.clear();
            side.settle();
            assert_eq!(side.namespace.counters().stored_bytes, 0);
        }
    }
}

/// A request of unlimited cost: the extents of one publish may cover a great many small ones.
#[test]
fn a_publish_replaces_a_bounded_number_of_extents() {
    let mut side = Side::new();
    let small = |i: u64| Extent {
        file_offset: i * 8192,
        length: 4096,
        pg: 1,
        index: 1 + i as u32,
        chunk_offset: 0,
        kind: cairn_types::ExtentKind::Plain,
        shared: false,
        birth: 0,
    };
    let count = crate::limits::REPLACED_EXTENTS_MAX as u64 + 1;
    side.namespace.scratch.incoming = (0..count).map(small).collect();
    side.namespace.put_first_extents(side.inode);
    let mut inode = side.namespace.inode(side.inode).unwrap();
    (inode.stored, inode.size) = (count * 4096, count * 8192);
    side.namespace.put_inode(side.inode, &inode);
    side.namespace.counters.stored_bytes = inode.stored;
    side.namespace.counters.file_bytes = inode.size;
    let large = |length: u64| -> Vec<Message> {
        let parts =
            (0..length.div_ceil(64 << 20)).map(|i| (i * (64 << 20), (64u64 << 20).min(length - i * (64 << 20))));
        parts
            .map(|(file_offset, length)| Message {
                file_offset,
                length,
                pg: 2,
                index: (file_offset >> 26) as u32,
                chunk_offset: 0,
                flags: 0,
            })
            .collect()
    };
    let mut publish = |length: u64| {
        let (header, inode) = (side.header(), side.inode);
        let request = PublishRequest { header, inode, extents: large(length), written_by: 1, ..Default::default() };
        side.apply(Opcode::Publish, &request.encode_to_vec()).map(|_| ())
    };
    assert_eq!(publish(count * 8192), Err(ErrorCode::InvalidArgument));
    assert_eq!(publish(count * 4096), Ok(()));
}
