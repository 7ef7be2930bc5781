//! Every decoder of this crate on hostile bytes, for the fuzz targets: none may panic, loop or allocate more than the
//! input allows, and what decodes must encode to the same bytes. Each tells how much it decoded.
//!
//! Chance does not find checksums, so everything is decoded once more with them put right. Not here: the targets
//! (`fuzz/`), which need libFuzzer; the corpus and its mutations go through these functions in the tests below.
use crate::backup_manifest::BackupManifest;
use crate::bad_blocks::BadBlocks;
use crate::checkpoint::{CHECKPOINT_BLOCK, CheckpointFooter, CheckpointHeader, PAGE_HEADER_LEN, PageHeader};
use crate::chunk_header::{CHUNK_HEADER_LEN, ChunkHeader};
use crate::chunk_state::{CHUNK_STATE_LEN, ChunkState};
use crate::crc_table::{PunchedBits, decode_crcs, encode_crcs};
use crate::disk_list::DiskList;
use crate::generation::{GENERATION_LEN, GenerationRecord};
use crate::journal_batch::{JOURNAL_BATCH_LEN, JournalBatch};
use crate::journal_header::{JOURNAL_HEADER_LEN, JournalHeader};
use crate::journal_record::decode_record;
use crate::label::{LABEL_LEN, Label};
use crate::le::u32_at;
use crate::map_scan::MapScan;
use crate::marks::MarkList;
use crate::partition_list::PartitionList;
use crate::pg_state::{PG_STATE_LEN, PgStateRecord};
use crate::request_log::{
    REQUEST_BATCH_HEADER, REQUEST_LOG_HEADER, RequestLogHeader, encode_batch_header, split_batch, split_record,
};
use crate::scrub_state::{SCRUB_STATE_LEN, ScrubState};
use crate::wal_batch::{BATCH_HEADER_LEN, BatchHeader};
use crate::wal_mark::{WAL_MARK_LEN, WalMark};
use crate::wal_record::{RECORD_HEADER_LEN, RECORD_PAYLOAD_MAX, WalRecord};
use crate::wal_segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use cairn_types::crc32c;

/// The bytes as a block of fixed size: cut, or filled up with zeros.
fn block<const N: usize>(data: &[u8]) -> [u8; N] {
    let mut block = [0; N];
    let length = data.len().min(N);
    block[..length].copy_from_slice(&data[..length]);
    block
}

/// Puts the checksum of what is `covered` at `at`.
fn put_crc(bytes: &mut [u8], at: usize, covered: std::ops::RangeFrom<usize>) {
    if bytes.len() >= at + 4 && bytes.len() >= covered.start {
        let crc = crc32c(&bytes[covered]);
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// With the checksum at 12 put right, in which it counts as zero.
fn put_crc_at_12(bytes: &mut [u8]) {
    if bytes.len() >= 16 {
        bytes[12..16].fill(0);
        put_crc(bytes, 12, 0..);
    }
}

/// Header, state and tables of a chunk file.
#[doc(hidden)]
pub fn fuzz_chunk(data: &[u8]) -> usize {
    let mut decoded = 0;
    let mut header = block::<CHUNK_HEADER_LEN>(data);
    for _ in 0..2 {
        if let Ok(found) = ChunkHeader::decode(&header) {
            decoded += 1;
            assert!(found.encode() == header && found.data_offset() >= crate::chunk_header::DATA_OFFSET);
        }
        put_crc_at_12(&mut header);
    }
    let mut state = block::<CHUNK_STATE_LEN>(data);
    for _ in 0..2 {
        if let Ok(found) = ChunkState::decode(&state) {
            decoded += 1;
            assert_eq!(found.encode(), state);
        }
        put_crc(&mut state, 8, 12..);
    }
    if let Some(crcs) = decode_crcs(data) {
        decoded += 1;
        let mut bytes = Vec::new();
        encode_crcs(&crcs, &mut bytes);
        assert_eq!(bytes, data);
    }
    if let Some(bits) = PunchedBits::from_bytes(data) {
        decoded += 1;
        assert!(bits.bytes().starts_with(data) || data.starts_with(bits.bytes()));
    }
    decoded
}

/// Segments, marks, batches and records of the log.
#[doc(hidden)]
pub fn fuzz_log(data: &[u8]) -> usize {
    let mut decoded = 0;
    let mut segment = block::<SEGMENT_HEADER_LEN>(data);
    for _ in 0..2 {
        if let Ok(found) = SegmentHeader::decode(&segment) {
            decoded += 1;
            assert_eq!(found.encode(), segment);
        }
        put_crc_at_12(&mut segment);
    }
    let mut mark = block::<WAL_MARK_LEN>(data);
    for _ in 0..2 {
        if let Ok(found) = WalMark::decode(&mark) {
            decoded += 1;
            assert_eq!(found.encode(), mark);
        }
        put_crc_at_12(&mut mark);
    }
    decoded += wal_batch(data);
    let mut batch = data.to_vec();
    put_crc(&mut batch, 12, BATCH_HEADER_LEN..);
    if let Some(header) = batch.get_mut(..BATCH_HEADER_LEN) {
        put_crc(header, 8, 12..);
    }
    decoded += wal_batch(&batch);
    decoded += wal_records(data);
    let mut record = data.to_vec();
    if data.len() >= RECORD_HEADER_LEN {
        let end = RECORD_HEADER_LEN.saturating_add(u32_at(data, 4) as usize);
        if let Some(record) = record.get_mut(..end) {
            put_crc(record, 0, 4..);
        }
    }
    decoded += wal_records(&record);
    decoded
}

fn wal_batch(data: &[u8]) -> usize {
    let Ok(header) = BatchHeader::decode(data) else { return 0 };
    assert_eq!(header.encode(), data[..BATCH_HEADER_LEN]);
    1 + header.body(data).map_or(0, wal_records)
}

fn wal_records(mut data: &[u8]) -> usize {
    let mut decoded = 0;
    while let Ok((group, record, taken)) = WalRecord::decode(data) {
        assert!((RECORD_HEADER_LEN..=RECORD_HEADER_LEN + RECORD_PAYLOAD_MAX + 8).contains(&taken));
        let mut bytes = Vec::new();
        record.encode(group, &mut bytes);
        assert_eq!(bytes, data[..taken]);
        data = &data[taken..];
        decoded += 1;
    }
    decoded
}

/// Header, pages and footer of a checkpoint.
#[doc(hidden)]
pub fn fuzz_checkpoint(data: &[u8]) -> usize {
    let mut decoded = 0;
    let mut whole = block::<CHECKPOINT_BLOCK>(data);
    for _ in 0..2 {
        if let Ok(found) = CheckpointHeader::decode(&whole) {
            decoded += 1;
            assert_eq!(found.encode(), whole);
        }
        if let Ok(found) = CheckpointFooter::decode(&whole) {
            decoded += 1;
            assert_eq!(found.encode(), whole);
        }
        put_crc_at_12(&mut whole);
    }
    let mut page = data.to_vec();
    for _ in 0..2 {
        if let Ok(found) = PageHeader::decode(&page) {
            decoded += 1;
            let mut again = page.clone();
            let crc = PageHeader::seal(&mut again, found.length as usize, found.number, found.index, found.group);
            assert!(again == page && crc == found.crc);
        }
        if data.len() >= PAGE_HEADER_LEN {
            let end = PAGE_HEADER_LEN.saturating_add(u32_at(data, 4) as usize);
            if let Some(page) = page.get_mut(..end) {
                put_crc(page, 0, 4..);
            }
        }
    }
    decoded
}

/// Header, batches and records of a disk's journal.
#[doc(hidden)]
pub fn fuzz_journal(data: &[u8]) -> usize {
    let mut decoded = 0;
    let mut header = block::<JOURNAL_HEADER_LEN>(data);
    for _ in 0..2 {
        if let Ok(found) = JournalHeader::decode(&header) {
            decoded += 1;
            assert_eq!(found.encode(), header);
        }
        put_crc_at_12(&mut header);
    }
    decoded += journal_batch(data);
    let mut batch = data.to_vec();
    if batch.len() >= JOURNAL_BATCH_LEN {
        let end = JOURNAL_BATCH_LEN.saturating_add(u32_at(data, 32) as usize);
        if let Some(batch) = batch.get_mut(..end) {
            put_crc(batch, 12, JOURNAL_BATCH_LEN..);
        }
        put_crc(&mut batch[..JOURNAL_BATCH_LEN], 8, 12..);
    }
    decoded += journal_batch(&batch);
    decoded + journal_records(data)
}

fn journal_batch(data: &[u8]) -> usize {
    let Some(header) = JournalBatch::decode(data) else { return 0 };
    assert!(JournalBatch::blocks_for(header.used as usize) == header.blocks as usize);
    1 + header.records(data).map_or(0, journal_records)
}

fn journal_records(mut data: &[u8]) -> usize {
    let mut decoded = 0;
    loop {
        let before = data;
        let Ok(record) = decode_record(&mut data) else { return decoded };
        decoded += 1;
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(bytes, before[..before.len() - data.len()]);
    }
}

/// A batch of a request log, and records.
fn requests(data: &[u8]) -> usize {
    let mut decoded = 0;
    if let Ok((records, dropped, _)) = split_batch(data) {
        decoded += 1;
        assert_eq!(encode_batch_header(records, dropped), data[..REQUEST_BATCH_HEADER]);
    }
    let mut rest = data;
    while let Ok((record, after)) = split_record(rest) {
        let mut again = Vec::new();
        record.encode(&mut again);
        // Longer messages than are written may be cut.
        if again.len() == rest.len() - after.len() {
            assert_eq!(again, rest[..again.len()]);
        }
        decoded += 1;
        rest = after;
    }
    decoded
}

/// Labels, states of placement groups and of scrubs, generations of disks, and the lists of a node's disks and
/// partitions and of bad blocks.
#[doc(hidden)]
pub fn fuzz_lists(data: &[u8]) -> usize {
    let mut decoded = requests(data);
    let mut label = block::<LABEL_LEN>(data);
    let mut state = block::<PG_STATE_LEN>(data);
    let mut scrub = block::<SCRUB_STATE_LEN>(data);
    let mut generation = block::<GENERATION_LEN>(data);
    let mut list = data.to_vec();
    for _ in 0..2 {
        if let Ok(found) = Label::decode(&label) {
            decoded += 1;
            assert_eq!(found.encode(), label);
        }
        if let Ok(found) = PgStateRecord::decode(&state) {
            decoded += 1;
            assert_eq!(found.encode(), state);
        }
        if let Ok(found) = ScrubState::decode(&scrub) {
            decoded += 1;
            assert_eq!(found.encode(), scrub);
        }
        if let Ok(found) = GenerationRecord::decode(&generation) {
            decoded += 1;
            assert_eq!(found.encode(), generation);
        }
        if let Ok(found) = DiskList::decode(&list) {
            decoded += 1;
            assert_eq!(found.encode(), list);
        }
        if let Ok(found) = BadBlocks::decode(&list) {
            decoded += 1;
            assert_eq!(found.encode(), list);
        }
        if let Ok(found) = BackupManifest::decode(&list) {
            decoded += 1;
            assert_eq!(found.encode(), list);
        }
        if let Ok(found) = RequestLogHeader::decode(&list) {
            decoded += 1;
            assert_eq!(found.encode(), list[..REQUEST_LOG_HEADER]);
        }
        if let Ok(found) = MapScan::decode(&list) {
            decoded += 1;
            assert_eq!(found.encode(), list);
        }
        if let Ok(found) = MarkList::decode(&list) {
            decoded += 1;
            assert_eq!(found.encode(), list);
        }
        if let Ok(found) = PartitionList::decode(&list) {
            decoded += 1;
            assert_eq!(found.encode(), list);
        }
        put_crc_at_12(&mut label);
        put_crc_at_12(&mut state);
        put_crc_at_12(&mut scrub);
        put_crc_at_12(&mut generation);
        put_crc_at_12(&mut list);
    }
    decoded
}

#[cfg(test)]
mod tests;
