//! The corpus of the fuzz targets: one of each format, cut at every byte and with every byte changed.
use super::*;
use crate::journal_overwrite::{OverwriteRecord, OverwriteVector};
use crate::journal_record::{CreateRecord, JournalRecord};
use crate::label::LabelKind;
use crate::overwrite_number::OverwriteNumber;
use crate::pg_state::PgStateMember;
use crate::wal_record::WalEntry;
use cairn_types::{
    ChunkId, ClusterId, DiskId, DiskUuid, Epoch, GroupId, MemberState, NodeId, PgId, Scheme, SessionId, VolumeId,
    WallTime,
};

const CHUNK: ChunkId = ChunkId { pg: PgId(3), index: 9 };

/// Feeds it, cut and changed; for long ones not at every byte.
fn mutations(target: fn(&[u8]) -> usize, seed: &[u8]) {
    assert!(target(seed) > 0, "the seed itself decodes");
    let mut decoded = 0;
    let step = seed.len().div_ceil(600).max(1);
    for at in (0..seed.len().min(300)).chain((300..seed.len()).step_by(step)) {
        decoded += target(&seed[..at]);
        for value in [0, 1, 2, 0x7f, 0x80, 0xff] {
            let mut bytes = seed.to_vec();
            bytes[at] = value;
            decoded += target(&bytes);
        }
    }
    assert!(decoded > 0, "no mutation got beyond the checksums");
    // Anything at all, from a fixed seed.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for length in 0..300 {
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        target(&std::iter::repeat_with(next).take(length).collect::<Vec<_>>());
    }
}

/// A chunk file that a failing device changed would stop its node.
#[test]
fn chunk_corpus_and_its_mutations() {
    let header = ChunkHeader {
        cluster: ClusterId([1; 16]),
        chunk: CHUNK,
        scheme: Scheme::Erasure { k: 3, m: 2 },
        shard: 4,
        volume: VolumeId(1),
        creation_epoch: Epoch(5),
        session: SessionId(6),
    };
    mutations(fuzz_chunk, &header.encode());
    let state = ChunkState {
        chunk: CHUNK,
        length: 70_000,
        sealed: true,
        punched_blocks: 2,
        punched_crc: 3,
        table_crc: 4,
        row_crc: 5,
        overwrite: OverwriteNumber { epoch: Epoch(2), count: 9 },
    };
    mutations(fuzz_chunk, &state.encode());
    mutations(fuzz_chunk, &[7; 2048]);
}

/// A log whose last bytes are anything must not stop what replays it.
#[test]
fn log_corpus_and_its_mutations() {
    for length in [None, Some(64 << 20)] {
        mutations(fuzz_log, &SegmentHeader { log: DiskUuid([2; 16]), number: 7, length }.encode());
    }
    let mark = WalMark { log: DiskUuid([2; 16]), sequence: 9, segment: 7, batch: 8, end: 8192, chain: 3 };
    mutations(fuzz_log, &mark.encode());
    let entry = |index, data| WalEntry { term: 2, index, kind: 1, data };
    let records = [
        WalRecord::Entries(vec![entry(5, b"one"), entry(6, b"")]),
        WalRecord::HardState { term: 2, vote: 3, commit: 4 },
        WalRecord::Truncate { index: 1, term: 2 },
        WalRecord::Reset { index: 1, term: 2 },
        WalRecord::Tombstone,
        WalRecord::Bootstrap { index: 1, term: 1, voters: vec![1, 2, 3] },
        WalRecord::Fetched { index: 1, term: 2 },
    ];
    let mut all = vec![0; BATCH_HEADER_LEN];
    for record in &records {
        let mut one = Vec::new();
        record.encode(GroupId(4), &mut one);
        mutations(fuzz_log, &one);
        all.extend(one);
    }
    let used = (all.len() - BATCH_HEADER_LEN) as u32;
    all.resize(all.len().next_multiple_of(4096), 0);
    BatchHeader::seal(&mut all, DiskUuid([2; 16]), 7, 8, used, records.len() as u32, 0);
    mutations(fuzz_log, &all);
}

/// A checkpoint comes from another member as well: it must not stop who receives it.
#[test]
fn checkpoint_corpus_and_its_mutations() {
    let header = CheckpointHeader {
        cluster: ClusterId([1; 16]),
        group: GroupId(2),
        index: 3,
        term: 4,
        time: WallTime(5),
        voters: vec![1, 2, 3],
        learners: vec![4],
    };
    mutations(fuzz_checkpoint, &header.encode());
    mutations(fuzz_checkpoint, &CheckpointFooter { pages: 1, bytes: 2, index: 3, pages_crc: 4 }.encode());
    let mut page = vec![0; PAGE_HEADER_LEN + 100];
    PageHeader::seal(&mut page, 90, 1, 3, GroupId(2));
    mutations(fuzz_checkpoint, &page);
}

/// Whatever a power failure left of a journal must not stop its disk.
#[test]
fn journal_corpus_and_its_mutations() {
    let header = JournalHeader { disk: DiskUuid([1; 16]), journal: DiskUuid([2; 16]), ring_blocks: 100 };
    mutations(fuzz_journal, &header.encode());
    let create = CreateRecord {
        chunk: CHUNK,
        scheme: Scheme::Replicated(3),
        shard: 1,
        volume: VolumeId(1),
        creation_epoch: Epoch(2),
        session: SessionId(3),
    };
    let mut batch = vec![0; JOURNAL_BATCH_LEN];
    let punched = [0xf0; 512];
    let (data, crcs) = ([7; 4096], vec![1; 6]);
    let overwrite = OverwriteRecord {
        chunk: CHUNK,
        number: OverwriteNumber { epoch: Epoch(2), count: 5 },
        length: 20_480,
        durable: 20_480,
        sealed: true,
        vectors: vec![OverwriteVector { block: 4, crcs_first: 0, crcs, data: &data }],
    };
    for record in [
        JournalRecord::Overwrite(overwrite),
        JournalRecord::Create(create),
        JournalRecord::Punch { chunk: CHUNK, first_sector: 1, bits: &punched },
        JournalRecord::Delete { chunk: CHUNK },
    ] {
        let mut one = Vec::new();
        record.encode(&mut one);
        mutations(fuzz_journal, &one);
        batch.extend(one);
    }
    let used = batch.len() - JOURNAL_BATCH_LEN;
    batch.resize(JournalBatch::blocks_for(used) * 4096, 0);
    let header = JournalBatch {
        journal: DiskUuid([2; 16]),
        sequence: 9,
        block: 4,
        blocks: JournalBatch::blocks_for(used) as u32,
        used: used as u32,
        tail_block: 2,
        tail_sequence: 7,
    };
    header.seal(&mut batch);
    mutations(fuzz_journal, &batch);
}

/// A node would not start and not say why.
#[test]
fn label_and_list_corpus_and_its_mutations() {
    let label = Label {
        kind: LabelKind::Disk,
        cluster: ClusterId([1; 16]),
        uuid: DiskUuid([2; 16]),
        node: NodeId(3),
        disk: DiskId(4),
        created: WallTime(5),
    };
    mutations(fuzz_lists, &label.encode());
    let member = |n| PgStateMember { disk: DiskId(n), node: NodeId(n), state: MemberState::Serving };
    let state = PgStateRecord {
        cluster: ClusterId([1; 16]),
        pg: PgId(3),
        volume: VolumeId(1),
        disk: DiskId(1),
        high_water: 9,
        epoch: Epoch(5),
        creation_epoch: Epoch(2),
        term: 3,
        scheme: Scheme::Replicated(3),
        retired: false,
        comparing: false,
        older_epoch: Epoch(0),
        members: (1..=3).map(member).collect(),
    };
    mutations(fuzz_lists, &state.encode());
    mutations(fuzz_lists, &ScrubState { pass: 3, ..ScrubState::new(DiskUuid([5; 16])) }.encode());
    let mut lineage = cairn_types::generation::Lineage { runs: Vec::new(), confirmed: 2 };
    (0..3).for_each(|nonce| lineage.start(nonce));
    mutations(fuzz_lists, &GenerationRecord { disk: DiskUuid([5; 16]), lineage }.encode());
    let blocks = (0..3).map(|block| (cairn_types::ChunkId { pg: PgId(2), index: 4 }, block)).collect();
    mutations(fuzz_lists, &BadBlocks { disk: DiskUuid([5; 16]), blocks }.encode());
    let disks = [("/a".to_owned(), DiskUuid([5; 16])), ("/b/c".to_owned(), DiskUuid([6; 16]))];
    mutations(fuzz_lists, &DiskList { node: DiskUuid([1; 16]), disks: disks.into() }.encode());
    mutations(fuzz_lists, &PartitionList { node: DiskUuid([1; 16]), entries: Vec::new() }.encode());
    let mark = crate::marks::MarkEntry { group: GroupId(7), node: NodeId(1), term: 3, index: 9 };
    mutations(fuzz_lists, &MarkList { node: DiskUuid([1; 16]), entries: vec![mark] }.encode());
}
