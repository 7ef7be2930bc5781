//! What is sound by itself but lacks something that was durable: shorter files, older copies, other histories, a log
//! that ends too early; and logs of before there were lengths, chains and marks.

use cairn_env::{AlignedBuf, Disk, OpenOptions};
use cairn_format::wal_batch::{BATCH_HEADER_LEN, BatchHeader};
use cairn_format::wal_segment::SegmentHeader;
use cairn_sim::SimDisk;
use cairn_types::{DiskUuid, GroupId};

use super::fixture::{config, entries, open};
use crate::StoreError;
use crate::wal::Wal;

const SEGMENT: u64 = 64 << 10;
const LOG: DiskUuid = DiskUuid([5; 16]);

fn segment(number: u64) -> String {
    format!("log/seg-{number:020}.wal")
}

/// Appends entries until the log has so many.
fn append(wal: &Wal, entry: std::ops::RangeInclusive<u64>) {
    for index in entry {
        wal.append(vec![entries(1, index, 1, 1, 100)]).unwrap();
    }
}

fn written(batches: u64) -> SimDisk {
    let disk = SimDisk::new(21);
    append(&open(&disk).unwrap().0, 1..=batches);
    disk
}

fn read(disk: &SimDisk, path: &str) -> Vec<u8> {
    let file = disk.open(path, OpenOptions::READ_WRITE).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn put(disk: &SimDisk, path: &str, bytes: &[u8]) {
    let file = disk.open(path, OpenOptions::CREATE).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync_all().unwrap();
    disk.sync_dir("log").unwrap();
}

/// File, offset and text of the refusal.
fn refusal(disk: &SimDisk) -> (String, u64, String) {
    match open(disk).map(|(_, groups)| groups) {
        Err(error @ StoreError::Corrupt { .. }) => {
            let text = error.to_string();
            assert!(text.contains("acknowledged records are missing") && text.contains("Recover"), "{text}");
            let StoreError::Corrupt { file, offset, .. } = error else { unreachable!("matched above") };
            (file, offset, text)
        }
        other => panic!("expected damage to be reported, got {other:?}"),
    }
}

fn count(disk: &SimDisk) -> usize {
    open(disk).unwrap().1.get(&GroupId(1)).map_or(0, |group| group.entries.len())
}

/// Acknowledged records would vanish without a line if a shorter file were taken for a torn tail.
#[test]
fn a_segment_of_any_other_length_is_reported() {
    let disk = written(6);
    let whole = read(&disk, &segment(1));
    assert_eq!(whole.len() as u64, SEGMENT);
    for len in (0..SEGMENT).rev() {
        disk.open(&segment(1), OpenOptions::READ_WRITE).unwrap().set_len(len).unwrap();
        let (file, offset, _) = refusal(&disk);
        assert_eq!((file, offset), (format!("sim/{}", segment(1)), len));
    }
    put(&disk, &segment(1), &[&whole[..], &[0; 4096]].concat());
    assert_eq!(refusal(&disk).1, SEGMENT, "longer than it was made");
    put(&disk, &segment(1), &whole);
    assert_eq!(count(&disk), 6, "nothing was changed");
}

/// The same for a segment in the middle, and for the last one of several.
#[test]
fn any_segment_of_a_log_may_be_the_short_one() {
    for number in 1..=3 {
        for len in [0, 4095, 4096, 4097, 8192, 20_480, SEGMENT - 4096, SEGMENT - 1] {
            let disk = written(40);
            disk.open(&segment(number), OpenOptions::READ_WRITE).unwrap().set_len(len).unwrap();
            assert_eq!(refusal(&disk).0, format!("sim/{}", segment(number)), "{number} {len}");
        }
    }
}

/// A file of the right length may have lost its end as well: zeros, where a device or file system forgot them.
#[test]
fn an_end_of_zeros_is_reported_as_far_as_the_mark_reaches() {
    for number in [1, 2] {
        let batches = if number == 1 { 9 } else { 25 };
        for from in (4096..SEGMENT as usize).step_by(512) {
            let disk = written(batches);
            let mut bytes = read(&disk, &segment(number));
            if bytes[from..].iter().all(|&b| b == 0) {
                break;
            }
            bytes[from..].fill(0);
            put(&disk, &segment(number), &bytes);
            let (file, offset, text) = refusal(&disk);
            let behind = number == 1 && offset > (from as u64).next_multiple_of(4096);
            assert!(file.contains("seg-") && !behind, "{from}: {text}");
        }
    }
}

/// The newest segment may be gone as a whole, or all of them.
#[test]
fn a_missing_last_segment_is_reported() {
    let disk = written(40);
    let newest = (1..).take_while(|&number| disk.exists(&segment(number)).unwrap()).last().unwrap();
    assert!(newest >= 3);
    for number in (1..=newest).rev() {
        disk.remove(&segment(number)).unwrap();
        let (_, _, text) = refusal(&disk);
        assert!(text.contains("was durable"), "{text}");
    }
}

/// A segment may come back as it was before, in its full length: in the middle, and as the newest one.
#[test]
fn an_older_copy_of_a_segment_is_reported() {
    for (kept, number, then) in [(5, 1, 9), (5, 1, 40), (20, 2, 40)] {
        let disk = SimDisk::new(22);
        let (wal, _) = open(&disk).unwrap();
        append(&wal, 1..=kept);
        let older = read(&disk, &segment(number));
        append(&wal, kept + 1..=then);
        drop(wal);
        let newer = read(&disk, &segment(number));
        put(&disk, &segment(number), &older);
        refusal(&disk);
        put(&disk, &segment(number), &newer);
        assert_eq!(count(&disk), then as usize);
    }
}

/// Two histories begin alike: a segment of one must not go on in the other, nor one segment stand in another's place.
#[test]
fn swapped_segments_and_other_histories_are_reported() {
    let disk = written(40);
    let (first, second) = (read(&disk, &segment(1)), read(&disk, &segment(2)));
    put(&disk, &segment(1), &second);
    put(&disk, &segment(2), &first);
    assert!(matches!(open(&disk).map(|_| ()), Err(StoreError::Corrupt { .. })));

    let history = |term: u64| {
        let disk = SimDisk::new(23);
        let (wal, _) = open(&disk).unwrap();
        for index in 1..=40 {
            wal.append(vec![entries(1, index, 1, if index > 5 { term } else { 1 }, 100)]).unwrap();
        }
        drop(wal);
        disk
    };
    let (one, other) = (history(2), history(3));
    for number in [1, 2, 3] {
        let (own, foreign) = (read(&one, &segment(number)), read(&other, &segment(number)));
        put(&one, &segment(number), &foreign);
        let (_, _, text) = refusal(&one);
        assert!(text.contains("another history"), "{text}");
        put(&one, &segment(number), &own);
    }
    assert_eq!(count(&one), 40);
}

/// A mark that is torn, missing or of another log must not refuse a sound log; one of the two places is enough.
#[test]
fn marks_are_believed_only_when_whole() {
    let disk = written(12);
    let mark = read(&disk, "log/mark");
    assert_eq!(mark.len(), 8192);
    for place in [0, 4096] {
        disk.flip_bit("log/mark", place + 50, 1);
        assert_eq!(count(&disk), 12);
        put(&disk, "log/mark", &mark);
    }
    put(&disk, "log/mark", &[]);
    assert_eq!(count(&disk), 12);
    disk.remove("log/mark").unwrap();
    assert_eq!(count(&disk), 12);
    // It is there again, and counts.
    append(&open(&disk).unwrap().0, 13..=13);
    let mut bytes = read(&disk, &segment(1));
    bytes[8192..].fill(0);
    put(&disk, &segment(1), &bytes);
    refusal(&disk);
}

/// A log of version 1 (no lengths, chains or marks), as the version before wrote it.
fn old_log(disk: &SimDisk, batches: u64) {
    disk.create_dir_all("log").unwrap();
    let mut bytes = SegmentHeader { log: LOG, number: 1, length: None }.encode().to_vec();
    for number in 1..=batches {
        let mut records = Vec::new();
        entries(1, number, 1, 1, 100).encode(&mut records);
        let mut batch = AlignedBuf::unpooled(4096);
        batch.resize(BATCH_HEADER_LEN);
        batch.extend_from_slice(&records);
        batch.pad_to_align();
        BatchHeader::seal(&mut batch, LOG, 1, number, records.len() as u32, 1, 0);
        bytes.extend_from_slice(&batch);
    }
    bytes.resize(SEGMENT as usize, 0);
    put(disk, &segment(1), &bytes);
}

/// After an upgrade the log of before is read and continued; what it can lack is noticed from then on.
#[test]
fn a_log_of_version_1_is_read_and_continued() {
    let disk = SimDisk::new(24);
    old_log(&disk, 4);
    append(&open(&disk).unwrap().0, 5..=40);
    assert_eq!(count(&disk), 40);
    let header = |number| SegmentHeader::decode(read(&disk, &segment(number))[..4096].try_into().unwrap()).unwrap();
    assert_eq!((header(1).length, header(2).length), (None, Some(SEGMENT)));
    let whole = read(&disk, &segment(2));
    put(&disk, &segment(2), &whole[..8192]);
    refusal(&disk);

    for len in (0..SEGMENT).step_by(512) {
        let disk = SimDisk::new(25);
        old_log(&disk, 4);
        disk.open(&segment(1), OpenOptions::READ_WRITE).unwrap().set_len(len).unwrap();
        refusal(&disk);
    }
}

/// A log that notes its end while it is idle must do so without being closed.
#[test]
fn an_idle_log_is_marked() {
    let disk = SimDisk::new(26);
    let config = crate::wal::WalConfig { mark_every: std::time::Duration::from_millis(1), ..config() };
    let (wal, _) = Wal::open(std::sync::Arc::new(disk.clone()), config).unwrap();
    append(&wal, 1..=5);
    let marked = || read(&disk, "log/mark").chunks(4096).filter_map(batch_of).max() == Some(5);
    while !marked() {
        std::thread::yield_now();
    }
    drop(wal);
}

fn batch_of(block: &[u8]) -> Option<u64> {
    cairn_format::wal_mark::WalMark::decode(block.try_into().ok()?).ok().map(|mark| mark.batch)
}

/// Versions of the segments of a log, oldest first.
fn versions(disk: &SimDisk) -> Vec<u32> {
    let segments = (1..).map(segment).take_while(|path| disk.exists(path).unwrap());
    segments.map(|path| u32::from_le_bytes(read(disk, &path)[8..12].try_into().unwrap())).collect()
}

/// The program of before could not go on with a log in which it finds what it does not know: until that is allowed, all
/// is of version 1. It knows nothing of marks either, and goes on behind them.
#[test]
fn until_it_is_allowed_the_program_of_before_can_go_on() {
    let disk = SimDisk::new(27);
    let old = crate::wal::WalConfig { chained: false, ..config() };
    let open_old = || Wal::open(std::sync::Arc::new(disk.clone()), old.clone()).unwrap().0;
    let wal = open_old();
    append(&wal, 1..=40);
    drop(wal);
    assert_eq!(versions(&disk), [1, 1, 1]);
    for number in 1..=3 {
        let bytes = read(&disk, &segment(number));
        let batches = bytes[4096..].chunks(4096).filter_map(|block| BatchHeader::decode(block).ok());
        assert!(batches.inspect(|batch| assert_eq!(batch.before, 0)).count() > 5);
    }
    // As if the program of before had appended: the mark lags.
    let mark = read(&disk, "log/mark");
    let wal = open_old();
    append(&wal, 41..=42);
    drop(wal);
    put(&disk, "log/mark", &mark);
    let wal = open_old();
    assert!(!wal.is_chained());
    append(&wal, 43..=43);
    wal.chain();
    append(&wal, 44..=80);
    drop(wal);
    assert_eq!(versions(&disk), [1, 1, 1, 2, 2, 2]);
    assert!(open_old().is_chained(), "there is no way back");
    assert_eq!(count(&disk), 80);
    // What was lost from a log of version 1 is noticed all the same.
    put(&disk, &segment(3), &read(&disk, &segment(3))[..20_480]);
    refusal(&disk);
}
