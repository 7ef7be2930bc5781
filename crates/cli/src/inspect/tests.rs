//! Tests of inspection: every kind of file is recognised, and damage anywhere is reported, never a panic.
use super::*;
use cairn_format::chunk_header::{ChunkHeader, table_offset};
use cairn_format::chunk_state::ChunkState;
use cairn_format::crc_table::{PunchedBits, encode_crcs, row_tables_crc, table_crc};
use cairn_format::disk_list::DiskList;
use cairn_format::generation::GenerationRecord;
use cairn_format::label::{Label, LabelKind};
use cairn_format::request_log::{RequestEvent, RequestLogHeader, RequestRecord, encode_batch_header};
use cairn_format::wal_batch::BatchHeader;
use cairn_format::wal_mark::WalMark;
use cairn_format::wal_record::WalRecord;
use cairn_format::wal_segment::SegmentHeader;
use cairn_types::generation::{Generation, Lineage};
use cairn_types::{
    ChunkId, ClusterId, DiskId, DiskUuid, Epoch, GroupId, NodeId, PgId, SessionId, VolumeId, WallTime, crc32c,
};

fn inspect(bytes: &[u8]) -> Result<()> {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("file");
    std::fs::write(&path, bytes).expect("write");
    let out = Out::to(true, Box::new(std::io::sink()));
    InspectArgs { files: Vec::new(), verbose: true }.inspect(&out, &path, false)
}

fn exit_of(bytes: &[u8]) -> Exit {
    inspect(bytes).map_or_else(|error| error.exit(), |()| Exit::Done)
}

fn label() -> Vec<u8> {
    let label = Label {
        kind: LabelKind::Disk,
        cluster: ClusterId([1; 16]),
        uuid: DiskUuid([2; 16]),
        node: NodeId(17),
        disk: DiskId(5),
        created: WallTime(99),
    };
    label.encode().to_vec()
}

fn disk_list() -> Vec<u8> {
    let disks = [("/mnt/d1".to_owned(), DiskUuid([3; 16]))].into();
    DiskList { node: DiskUuid([2; 16]), disks }.encode()
}

/// Number of the operation "Read".
const READ: u16 = 0x0306;

/// A log of a request that was answered with an error, and of one that was not answered.
fn request_log() -> Vec<u8> {
    let ask = |id| RequestEvent::Request {
        id,
        trace_id: 0xabc,
        opcode: READ,
        oneway: false,
        of_server: false,
        payload: 0,
        length: 3,
        message: &[1, 2, 3],
    };
    let error = cairn_types::ErrorCode::Missing.code();
    let events = [
        RequestEvent::Connection { peer_kind: 1, node: 0, address: "10.0.0.9:1234" },
        ask(1),
        ask(2),
        RequestEvent::Answer { id: 1, opcode: READ, error, payload: 70_000, length: 9 },
    ];
    let mut records = Vec::new();
    for (time, event) in events.into_iter().enumerate() {
        RequestRecord { connection: 5, time: 1_700_000_000_000_000_000 + time as u64 * 1_000_000, event }
            .encode(&mut records);
    }
    [&RequestLogHeader { begun: 99 }.encode()[..], &encode_batch_header(&records, 2), &records].concat()
}

fn shown(bytes: &[u8], json: bool) -> (String, Exit) {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("file");
    std::fs::write(&path, bytes).expect("write");
    let said = SharedText::default();
    let out = Out::to(json, Box::new(said.clone()));
    let outcome = InspectArgs { files: Vec::new(), verbose: true }.inspect(&out, &path, false);
    out.flush().expect("flushed");
    let text = String::from_utf8(said.0.lock().expect("no panic").clone()).expect("utf-8");
    (text, outcome.map_or_else(|error| error.exit(), |()| Exit::Done))
}

#[derive(Clone, Default)]
struct SharedText(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for SharedText {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Nobody could tell what a node was asked, or a log that a crash cut off not be read.
#[test]
fn a_request_log_is_joined_and_summed_up() {
    let (text, exit) = shown(&request_log(), false);
    assert_eq!(exit, Exit::Done, "{text}");
    for expected in [
        "0000000000000abc",
        "3 B in",
        "70009 B out",
        "2.0 ms",
        "Missing",
        "client 10.0.0.9:1234",
        "2 requests in 3.0 ms, 1 of them without an answer",
        "dropped 2 times",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let (json, _) = shown(&request_log(), true);
    let last: serde_json::Value = serde_json::from_str(json.lines().last().expect("lines")).expect("JSON");
    assert_eq!((&last["requests"], &last["operations"][0]["data"][0]["up_to"]), (&2.into(), &131_072.into()), "{json}");
    let log = request_log();
    let (cut, exit) = shown(&log[..log.len() - 1], false);
    assert!(exit == Exit::Done && cut.contains("cut off"), "{cut}");
    let mut damaged = log;
    damaged[20] ^= 1;
    assert_eq!(shown(&damaged, false).1, Exit::Damaged);
}

/// A segment with batches of one record each.
fn segment(batches: u64) -> Vec<u8> {
    let log = DiskUuid([9; 16]);
    let mut bytes = SegmentHeader { log, number: 4, length: None }.encode().to_vec();
    for number in 1..=batches {
        let mut records = Vec::new();
        WalRecord::HardState { term: number, vote: 1, commit: number }.encode(GroupId(3), &mut records);
        let mut batch = vec![0; 4096];
        batch[64..64 + records.len()].copy_from_slice(&records);
        BatchHeader::seal(&mut batch, log, 4, number, records.len() as u32, 1, 0);
        bytes.extend(batch);
    }
    bytes.resize(bytes.len() + 3 * 4096, 0);
    bytes
}

/// A parity shard of two blocks, with the checksums of the three data shards.
fn parity_shard() -> Vec<u8> {
    let chunk = ChunkId { pg: PgId(1), index: 2 };
    let scheme = "rs-3-2".parse().expect("in the table");
    let header = ChunkHeader {
        cluster: ClusterId([1; 16]),
        chunk,
        scheme,
        shard: 4,
        volume: VolumeId(1),
        creation_epoch: Epoch(1),
        session: SessionId(9),
    };
    let (blocks, rows) = ([[3u8; 4096], [4; 4096]], [[1, 2], [3, 4], [5, 6]]);
    let crcs = blocks.map(|block| crc32c(&block));
    let state = ChunkState {
        chunk,
        length: 8192,
        sealed: true,
        punched_blocks: 0,
        punched_crc: PunchedBits::default().crc(),
        table_crc: table_crc(&crcs),
        row_crc: row_tables_crc(rows.iter().map(|row| &row[..])),
        overwrite: Default::default(),
    };
    let mut bytes = vec![0; header.data_offset() as usize];
    bytes[..512].copy_from_slice(&header.encode());
    bytes[512..1024].copy_from_slice(&state.encode());
    for (number, table) in [crcs].iter().chain(&rows).enumerate() {
        let mut encoded = Vec::new();
        encode_crcs(table, &mut encoded);
        let at = table_offset(number) as usize;
        bytes[at..at + encoded.len()].copy_from_slice(&encoded);
    }
    bytes.extend(blocks.concat());
    bytes
}

/// A backup of one group.
fn manifest() -> Vec<u8> {
    use cairn_format::backup_manifest::{BackupEntry, BackupManifest};
    let (group, node, time) = (GroupId(0), NodeId(1), WallTime(9));
    let entry = BackupEntry { group, node, index: 5, term: 2, time, bytes: 8192, crc: 7, led: true, cut: false };
    BackupManifest { cluster: ClusterId([1; 16]), number: 1, begun: time, ended: time, entries: vec![entry] }.encode()
}

/// A scan of one label.
fn scan() -> Vec<u8> {
    use cairn_format::map_scan::{MapScan, ScanItem, ScanKind};
    let item = ScanItem { kind: ScanKind::Label, path: "/d/label".into(), contents: label() };
    MapScan { items: vec![item] }.encode()
}

/// A sound file would be called damaged.
#[test]
fn sound_files_are_recognised() {
    assert_eq!(exit_of(&label()), Exit::Done);
    assert_eq!(exit_of(&disk_list()), Exit::Done);
    assert_eq!(exit_of(&segment(0)), Exit::Done);
    assert_eq!(exit_of(&segment(3)), Exit::Done);
    assert_eq!(exit_of(&parity_shard()), Exit::Done);
    assert_eq!(exit_of(&manifest()), Exit::Done);
    assert_eq!(exit_of(&scan()), Exit::Done);
}

/// Damage would be printed as if it were contents.
#[test]
fn damage_is_reported() {
    assert_eq!(exit_of(b""), Exit::Damaged);
    assert_eq!(exit_of(b"something else"), Exit::Damaged);
    let mut bad = label();
    bad[60] ^= 1;
    assert_eq!(exit_of(&bad), Exit::Damaged);
    assert_eq!(exit_of(&label()[..100]), Exit::Damaged);
    for mut bad in [manifest(), scan()] {
        bad[20] ^= 1;
        assert_eq!(exit_of(&bad), Exit::Damaged);
    }

    for at in [4096, 69_632 + 4, 69_632 + 2 * 65_536, 69_632 + 3 * 65_536 + 5000] {
        let mut bad = parity_shard();
        bad[at] ^= 1;
        assert_eq!(exit_of(&bad), Exit::Damaged, "a CRC, a row CRC, or a block at {at}");
    }

    // In the middle: corruption. At the end: a batch torn by a crash, which is no damage.
    let (mut middle, mut end) = (segment(3), segment(3));
    middle[4096 + 70] ^= 1;
    end[3 * 4096 + 70] ^= 1;
    assert_eq!((exit_of(&middle), exit_of(&end)), (Exit::Damaged, Exit::Done));
}

/// Hostile bytes behind each magic must not panic or allocate what they say.
#[test]
fn hostile_bytes_never_panic() {
    let mut looked_at = 0;
    for magic in [b"CAIRNLBL", b"CAIRNPGS", b"CAIRNPTL", b"CAIRNWAL", b"CAIRNCKP", b"CAIRNCHK", b"CAIRNJRN"] {
        for (length, fill) in [(8, 0u8), (64, 0xff), (512, 0), (4096, 0xff), (9000, 0x5a), (80_000, 0xff)] {
            let mut bytes = vec![fill; length.max(8)];
            bytes[..8].copy_from_slice(magic);
            assert_eq!(exit_of(&bytes), Exit::Damaged, "{} {length}", magic.escape_ascii());
            looked_at += 1;
        }
    }
    assert_eq!(looked_at, 42);
}

/// Operators would be told that files which every server writes are no files of Cairn.
#[test]
fn generations_and_marks_of_logs_are_known() {
    let lineage = |number| Lineage { runs: vec![Generation { number, nonce: 9 }], confirmed: 1 };
    let record = |number| GenerationRecord { disk: DiskUuid([2; 16]), lineage: lineage(number) };
    let mut file = vec![0; 8192];
    let mut put = |record: GenerationRecord| {
        let at = record.offset() as usize;
        let bytes = record.encode();
        file[at..at + bytes.len()].copy_from_slice(&bytes);
        file.clone()
    };
    assert_eq!(exit_of(&put(record(3))), Exit::Done, "the first slot was never written");
    let mut both = put(record(4));
    assert_eq!(exit_of(&both), Exit::Done);
    both[100] ^= 1;
    assert_eq!(exit_of(&both), Exit::Damaged);
    assert_eq!(exit_of(&both[..4096]), Exit::Damaged);
    let mark = WalMark { log: DiskUuid([5; 16]), sequence: 2, segment: 1, batch: 7, end: 4096, chain: 3 };
    let blocks = [mark.encode(), WalMark { sequence: 1, ..mark }.encode()].concat();
    assert_eq!(exit_of(&blocks), Exit::Done);
    assert_eq!(exit_of(&[&blocks[..5000], &[1], &blocks[5001..]].concat()), Exit::Damaged);
}
