//! Directories that are listed.
use crate::border::{at, done, guard, hand_out, invalid, path, put, take};
use crate::layout::CDirent;
use crate::volume::{CVolume, of};
use cairn_sdk::{Directory, Result};
use libc::{c_char, c_int};
use std::sync::{Mutex, MutexGuard};

/// `cairn_dir`. Threads that share it share its entries, each of which one of them gets.
pub struct CDir(Mutex<Directory>);

/// # Safety
/// As of the header.
unsafe fn open<'a>(dir: *const CDir) -> Result<MutexGuard<'a, Directory>> {
    // SAFETY: as above.
    let dir = unsafe { at(dir, "cairn_dir") }?;
    dir.0.lock().map_err(|_| invalid("cairn_dir", "a call of another thread ended with a defect"))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_opendir(volume: *mut CVolume, path: *const c_char, opened: *mut *mut CDir) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { hand_out(opened, || Ok(CDir(Mutex::new(of(volume)?.open_directory(self::path(path)?)?)))) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_readdir(dir: *mut CDir, entry: *mut CDirent) -> c_int {
    // SAFETY: the header's. The value is 0 or 1, or an errno.
    guard(|| unsafe {
        match open(dir)?.next_entry()? {
            Some(next) => put(entry, "struct cairn_dirent", CDirent::of(&next)).map(|()| 1),
            None => Ok(0),
        }
    }) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_rewinddir(dir: *mut CDir) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { open(dir) }.map(|mut dir| dir.rewind()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_closedir(dir: *mut CDir) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { take(dir, "cairn_dir") }.map(drop))
}
