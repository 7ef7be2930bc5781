//! Open files.
use crate::border::{at, buffer, bytes, done, guard, hand_out, path, put, take};
use crate::layout::CStat;
use crate::volume::{CVolume, of};
use cairn_sdk::{File, OpenOptions, Result};
use libc::{c_char, c_int, c_void, mode_t, size_t, ssize_t};

/// `cairn_file`.
pub struct CFile(File);

/// # Safety
/// As of the header.
unsafe fn open<'a>(file: *const CFile) -> Result<&'a File> {
    // SAFETY: as above.
    unsafe { at(file, "cairn_file") }.map(|file| &file.0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_open(
    volume: *mut CVolume,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    opened: *mut *mut CFile,
) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe {
        let options = OpenOptions::from_flags(flags, mode);
        hand_out(opened, || of(volume)?.open(self::path(path)?, options).map(CFile))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_pread(file: *mut CFile, buffer: *mut c_void, size: size_t, offset: u64) -> ssize_t {
    // SAFETY: the header's.
    guard(|| unsafe { open(file)?.read_at(self::buffer(buffer.cast(), size)?, offset) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_pwrite(file: *mut CFile, data: *const c_void, size: size_t, offset: u64) -> ssize_t {
    // SAFETY: the header's.
    guard(|| unsafe { open(file)?.write_at(bytes(data.cast(), size)?, offset).map(|()| size) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_pwrite_noted(
    file: *mut CFile,
    data: *const c_void,
    size: size_t,
    offset: u64,
    outcome: *mut ssize_t,
) -> ssize_t {
    // SAFETY: the header's.
    let answer = unsafe { cairn_pwrite(file, data, size, offset) };
    if !outcome.is_null() {
        // SAFETY: the header's.
        unsafe { outcome.write(answer) };
    }
    answer
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_flush(file: *mut CFile) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { open(file) }?.flush())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_fsync(file: *mut CFile) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { open(file) }?.sync())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_fstat(file: *mut CFile, found: *mut CStat) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { put(found, "struct cairn_stat", CStat::of(&open(file)?.metadata()?)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_ftruncate(file: *mut CFile, size: u64) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { open(file) }?.set_size(size))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_close(file: *mut CFile) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { take(file, "cairn_file") }?.0.close())
}
