//! Tests of what only the real disk does: direct I/O, locks between processes, translation of errors. What every
//! disk does is checked by the conformance suite of the `cairn-sim` crate.

use std::io::IoSlice;

use super::*;
use crate::buf::AlignedBuf;

fn disk() -> (tempfile::TempDir, RealDisk) {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::create(&dir.path().join("a/b")).unwrap();
    (dir, disk)
}

/// Chunks would go through the page cache, or fail with EINVAL, if direct opens, tails or fall-backs were wrong.
#[test]
fn direct_io_where_possible_and_aligned_only() {
    let (_dir, disk) = disk();
    let file = disk.open("f", OpenOptions::CREATE_NEW.direct()).unwrap();
    let mut buf = AlignedBuf::unpooled(8192);
    buf.resize(8192);
    buf.fill(7);
    file.write_at(&buf, 4096).unwrap();
    file.write_vectored_at(&[IoSlice::new(&buf[..4096]), IoSlice::new(&[]), IoSlice::new(&buf[4096..])], 12288)
        .unwrap();
    assert_eq!(file.len().unwrap(), 20480);
    file.set_len(20000).unwrap();
    let mut back = AlignedBuf::unpooled(8192);
    back.resize(8192);
    assert_eq!(file.read_at(&mut back, 16384).unwrap(), 20000 - 16384);
    assert!(back[..20000 - 16384].iter().all(|&b| b == 7));
    if file.is_direct() {
        assert!(matches!(file.write_at(&buf[..100], 0), Err(DiskError::Misaligned { .. })));
        assert!(matches!(file.read_at(&mut back, 1), Err(DiskError::Misaligned { .. })));
        assert!(matches!(file.write_at(&buf[512..4608], 0), Err(DiskError::Misaligned { .. })));
    }
    file.sync_data().unwrap();
}

/// A read that must not wait would wait for the device, or bring fewer bytes than asked.
#[test]
fn what_is_in_memory_is_read_without_waiting() {
    let (_dir, disk) = disk();
    let file = disk.open("f", OpenOptions::CREATE_NEW).unwrap();
    file.write_at(&[5; 5000], 0).unwrap();
    let mut back = [0; 4096];
    assert_eq!(file.read_in_memory(&mut back, 500), Some(()));
    assert_eq!(back, [5; 4096]);
    assert_eq!(file.read_in_memory(&mut back, 1000), None, "behind the end there is nothing");
    let direct = disk.open("f", OpenOptions::READ_WRITE.direct()).unwrap();
    let mut back = AlignedBuf::unpooled(4096);
    back.resize(4096);
    assert!(!direct.is_direct() || direct.read_in_memory(&mut back, 0).is_none());
}

/// A repair would get other bytes than a reader, or less at the end of a file; or a file system that cannot would fail
/// it.
#[test]
fn what_is_read_once_is_the_same() {
    let (_dir, disk) = disk();
    let file = disk.open("f", OpenOptions::CREATE_NEW).unwrap();
    let bytes: Vec<u8> = (0..20_000u32).map(|i| (i * 7 / 3) as u8).collect();
    file.write_at(&bytes, 0).unwrap();
    let mut back = vec![0; 9000];
    // `None` is what kernels before 6.14 and some file systems say.
    if let Some(got) = file.read_once_at(&mut back, 500).unwrap() {
        assert_eq!((got, &back[..]), (9000, &bytes[500..9500]));
        assert_eq!(file.read_once_at(&mut back, 15_000).unwrap(), Some(5000), "up to the end");
        assert_eq!(back[..5000], bytes[15_000..]);
    }
    let processes = RealDisk::open(std::path::Path::new("/proc/self")).unwrap();
    let status = processes.open("status", OpenOptions::READ).unwrap();
    assert!(matches!(status.read_once_at(&mut back[..10], 0), Ok(None | Some(10))));
}

/// A directory on a file system without direct I/O would be unusable.
#[test]
fn direct_falls_back_to_buffered() {
    // /proc/self/fdinfo and the like refuse O_DIRECT; a pipe-like pseudo file is the portable stand-in.
    let disk = RealDisk::open(std::path::Path::new("/proc/self")).unwrap();
    let file = disk.open("status", OpenOptions::READ.direct()).unwrap();
    assert!(!file.is_direct());
    let mut text = vec![0; 100];
    assert_eq!(file.read_at(&mut text, 0).unwrap(), 100);
    assert!(text.starts_with(b"Name:"));
}

/// Two servers would write one directory, or the operator would not learn who holds it.
#[test]
fn lock_excludes_and_names_the_holder() {
    let (_dir, disk) = disk();
    let guard = disk.lock("LOCK").unwrap();
    let holder = Some(std::process::id());
    let refused = disk.lock("LOCK").err().unwrap();
    assert_eq!(refused, DiskError::Locked { path: "LOCK".into(), holder });
    assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
    drop(guard);
    // The file stays; a stale process id in it locks nobody out.
    assert!(disk.exists("LOCK").unwrap());
    drop(disk.lock("LOCK").unwrap());
}

/// More slices than the kernel takes at once would fail with EINVAL.
#[test]
fn very_many_slices_are_written() {
    let (_dir, disk) = disk();
    let file = disk.open("f", OpenOptions::CREATE).unwrap();
    let bytes: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
    let slices: Vec<IoSlice<'_>> = bytes.chunks(2).map(IoSlice::new).collect();
    file.write_vectored_at(&slices, 3).unwrap();
    let mut back = vec![0; 5000];
    file.read_exact_at(&mut back, 3).unwrap();
    assert_eq!(back, bytes);
}

/// The caller would do the wrong thing (retry, quarantine) on a wrongly classed error.
#[test]
fn errors_are_classed_by_what_to_do() {
    let class = |op, errno| DiskError::from_io(op, "p", &std::io::Error::from_raw_os_error(errno));
    assert!(matches!(class(DiskOp::Write, libc::ENOSPC), DiskError::NoSpace { .. }));
    assert!(matches!(class(DiskOp::Write, libc::EDQUOT), DiskError::NoSpace { .. }));
    assert!(matches!(class(DiskOp::Sync, libc::ENODEV), DiskError::Gone { .. }));
    let eio = class(DiskOp::Sync, libc::EIO);
    assert!(eio.is_disk_fault() && !eio.is_refusal());
    assert!(eio.to_string().starts_with("p: sync failed: "), "{eio}");
    for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
        let short = class(DiskOp::Open, errno);
        assert!(short.is_shortage() && !short.is_disk_fault() && !short.is_refusal(), "{short}");
    }
    assert!(class(DiskOp::Open, libc::EMFILE).to_string().contains("LimitNOFILE"));
    assert!(class(DiskOp::Sync, libc::ENOMEM).is_disk_fault(), "a sync that failed is final, whatever the reason");
    assert!(class(DiskOp::Open, libc::ENOENT).is_refusal());
    assert_eq!(class(DiskOp::Open, libc::ENOENT).path(), "p");
    let missing = RealDisk::open(std::path::Path::new("/nonexistent-directory")).err().unwrap();
    assert!(matches!(missing, DiskError::NotFound { .. }));
}
