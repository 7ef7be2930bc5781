//! Conformance of reading, writing, sizes and space.

use std::io::IoSlice;

use cairn_env::disk::{Disk, DiskError, DiskOp, OpenOptions};

use super::{aligned, content, create};
use crate::rng::SimRng;

/// Bytes written are read back, also over each other and over page borders, and after syncs.
pub(super) fn write_then_read(disk: &dyn Disk, dir: &str) {
    let file = create(disk, dir, "f");
    assert!(file.is_empty().unwrap_or(false), "a new file is empty");
    file.write_at(b"hello world", 4090).expect("a write over a page border");
    file.write_at(b"HE", 4090).expect("an overwrite");
    file.write_at(b"", 1 << 20).expect("an empty write");
    file.sync_data().expect("sync_data");
    file.sync_all().expect("sync_all");
    let bytes = content(&*file);
    assert_eq!(bytes.len(), 4101, "an empty write does not extend the file");
    assert_eq!(&bytes[4090..], b"HEllo world");
    let again = disk.open(&format!("{dir}/f"), OpenOptions::READ).expect("open again");
    assert_eq!(content(&*again), bytes, "another handle sees the same");
    assert_eq!(again.path(), format!("{dir}/f"));
}

/// What was never written within the size is zeros.
pub(super) fn holes_read_as_zeros(disk: &dyn Disk, dir: &str) {
    let file = create(disk, dir, "f");
    file.write_at(b"x", 100_000).expect("a write far behind the end");
    let bytes = content(&*file);
    assert_eq!(bytes.len(), 100_001);
    assert!(bytes[..100_000].iter().all(|&b| b == 0));
}

/// A read gives fewer bytes only where the file ends.
pub(super) fn reads_stop_at_the_end(disk: &dyn Disk, dir: &str) {
    let file = create(disk, dir, "f");
    file.write_at(&[1; 5000], 0).expect("write");
    let mut buf = [0; 100];
    assert_eq!(file.read_at(&mut buf, 4950), Ok(50));
    assert_eq!(file.read_at(&mut buf, 5000), Ok(0));
    assert_eq!(file.read_at(&mut buf, 1 << 40), Ok(0));
    let path = format!("{dir}/f");
    let short = DiskError::UnexpectedEnd { path, offset: 4950, wanted: 100, got: 50 };
    assert_eq!(file.read_exact_at(&mut buf, 4950), Err(short));
    assert_eq!(file.read_exact_at(&mut buf, 4900), Ok(()));
}

/// Cutting forgets, growing adds zeros.
pub(super) fn cut_and_grow(disk: &dyn Disk, dir: &str) {
    let file = create(disk, dir, "f");
    file.write_at(&[7; 10_000], 0).expect("write");
    file.set_len(5_000).expect("cut");
    file.set_len(9_000).expect("grow");
    let bytes = content(&*file);
    assert_eq!(bytes.len(), 9_000);
    assert!(bytes[..5_000].iter().all(|&b| b == 7), "what is before the cut stays");
    assert!(bytes[5_000..].iter().all(|&b| b == 0), "what was cut off does not come back");
    file.set_len(0).expect("cut to nothing");
    assert_eq!(file.len(), Ok(0));
}

/// Slices land one behind the other, empty ones too.
pub(super) fn vectored_writes(disk: &dyn Disk, dir: &str) {
    let file = create(disk, dir, "f");
    let big = vec![9; 70_000];
    let slices = [&b"ab"[..], b"", &big, b"cd"].map(IoSlice::new);
    file.write_vectored_at(&slices, 10).expect("vectored write");
    file.write_vectored_at(&[], 1 << 20).expect("no slices");
    let bytes = content(&*file);
    assert_eq!(bytes.len(), 70_014);
    assert_eq!(&bytes[..13], b"\0\0\0\0\0\0\0\0\0\0ab\x09");
    assert_eq!(&bytes[70_012..], b"cd");
}

/// Direct and buffered handles see one content; direct ones take aligned calls alone.
pub(super) fn direct_io(disk: &dyn Disk, dir: &str) {
    let path = format!("{dir}/f");
    let file = disk.open(&path, OpenOptions::CREATE_NEW.direct()).expect("open direct");
    let data = aligned(&[5; 8192]);
    file.write_at(&data, 4096).expect("an aligned write");
    let plain = disk.open(&path, OpenOptions::READ_WRITE).expect("open buffered");
    assert!(!plain.is_direct());
    assert_eq!(content(&*plain)[4096..], [5; 8192]);
    plain.write_at(b"tail", 12_288).expect("an unaligned buffered write");
    plain.sync_data().expect("sync");
    let mut back = aligned(&[0; 8192]);
    assert_eq!(file.read_at(&mut back, 8192), Ok(4100), "a direct read stops at the end");
    assert_eq!(&back[4096..4100], b"tail");
    if file.is_direct() {
        let refused = DiskError::Misaligned { path: path.clone(), op: DiskOp::Write, offset: 1, len: 8192 };
        assert_eq!(file.write_at(&data, 1), Err(refused));
        let refused = DiskError::Misaligned { path: path.clone(), op: DiskOp::Read, offset: 0, len: 100 };
        assert_eq!(file.read_at(&mut back[..100], 0), Err(refused));
        let slices = [IoSlice::new(&data[..4096]), IoSlice::new(&data[4096..4100])];
        assert!(matches!(file.write_vectored_at(&slices, 0), Err(DiskError::Misaligned { .. })));
        let memory = &data[512..4608];
        assert!(matches!(file.write_at(memory, 0), Err(DiskError::Misaligned { .. })), "memory must be aligned");
    }
}

/// Reserved space counts, punched space does not, sizes stay.
pub(super) fn space_is_counted(disk: &dyn Disk, dir: &str) {
    const MIB: u64 = 1 << 20;
    let file = create(disk, dir, "f");
    assert_eq!(file.allocated_bytes(), Ok(0));
    let data: Vec<u8> = (0..MIB).map(|i| (i % 250) as u8 + 1).collect();
    file.write_at(&data, 0).expect("write");
    file.sync_data().expect("sync");
    let full = file.allocated_bytes().expect("allocated");
    assert!((MIB..=MIB + 65_536).contains(&full), "{full}");
    if file.allocate(0, 4 * MIB).expect("allocate") {
        assert_eq!(file.len(), Ok(MIB), "a reservation does not change the size");
        let reserved = file.allocated_bytes().expect("allocated");
        assert!((4 * MIB..=4 * MIB + 65_536).contains(&reserved), "{reserved}");
        file.set_len(MIB).expect("cutting to the present size is allowed");
    }
    if file.punch_hole(4000, 500_000).expect("punch") {
        file.sync_data().expect("sync");
        assert_eq!(file.len(), Ok(MIB), "a hole does not change the size");
        let bytes = content(&*file);
        assert!(bytes[4000..504_000].iter().all(|&b| b == 0), "a hole reads as zeros");
        assert_eq!(bytes[..4000], data[..4000]);
        assert_eq!(bytes[504_000..], data[504_000..]);
        assert_eq!(file.punch_hole(0, 8 * MIB), Ok(true), "punching over the end is allowed");
        assert_eq!(file.len(), Ok(MIB));
        file.sync_data().expect("sync");
        let left = file.allocated_bytes().expect("allocated");
        assert!(left <= 65_536, "{left}");
    }
    assert_eq!(file.allocate(0, 0).and(file.punch_hole(0, 0)).map(|_| ()), Ok(()), "nothing is fine");
    let space = disk.space().expect("space");
    assert!(space.free > 0 && space.free <= space.total);
}

/// A handle opened for reading refuses to change anything.
pub(super) fn read_only_handles(disk: &dyn Disk, dir: &str) {
    create(disk, dir, "f").write_at(b"abc", 0).expect("write");
    let file = disk.open(&format!("{dir}/f"), OpenOptions::READ).expect("open");
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.set_len(0).is_err());
    assert_eq!(content(&*file), b"abc");
}

/// Any mix of writes, cuts, holes and reads gives what a plain byte array gives.
pub(super) fn random_io_against_an_oracle(disk: &dyn Disk, dir: &str) {
    const SIZE_MAX: u64 = 60_000;
    let file = create(disk, dir, "f");
    let rng = SimRng::seeded(42);
    let mut oracle: Vec<u8> = Vec::new();
    for step in 0..600u64 {
        let at = rng.range(0..SIZE_MAX);
        let len = rng.range(0..(SIZE_MAX - at).min(9_000) + 1);
        let (from, to) = (at as usize, (at + len) as usize);
        match rng.range(0..8) {
            0..=3 => {
                let data = vec![step as u8 | 1; len as usize];
                file.write_at(&data, at).expect("write");
                if len > 0 {
                    oracle.resize(oracle.len().max(to), 0);
                    oracle[from..to].copy_from_slice(&data);
                }
            }
            4 => {
                file.set_len(at).expect("set_len");
                oracle.resize(from, 0);
            }
            5 => {
                if file.punch_hole(at, len).expect("punch") {
                    let end = to.min(oracle.len());
                    oracle[from.min(end)..end].fill(0);
                }
            }
            6 => file.sync_data().expect("sync"),
            _ => {
                let mut got = vec![0; len as usize];
                let count = file.read_at(&mut got, at).expect("read");
                let end = to.min(oracle.len());
                assert_eq!(&got[..count], &oracle[from.min(end)..end], "step {step}");
            }
        }
        assert_eq!(file.len(), Ok(oracle.len() as u64), "step {step}");
    }
    assert_eq!(content(&*file), oracle);
}
