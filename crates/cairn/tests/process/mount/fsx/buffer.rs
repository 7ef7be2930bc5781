//! Memory for direct reads and writes, and mappings of files.
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, mmap_anonymous, msync, munmap};
use std::fs::File;
use std::ops::{Deref, DerefMut};

pub const PAGE: usize = 4096;

/// Pages: of memory, or of a file.
pub struct Pages {
    start: *mut std::ffi::c_void,
    length: usize,
}

impl Pages {
    /// Zeros that begin with a page.
    pub fn memory(length: usize) -> Pages {
        let length = length.max(1);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags) }.expect("memory");
        Pages { start, length }
    }
    /// A part of a file, which begins with a page and ends before its last page does.
    pub fn of(file: &File, offset: u64, length: usize, shared: bool) -> rustix::io::Result<Pages> {
        let flags = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
        // SAFETY: a new mapping at an address of the kernel's choice; nobody shortens the file while it is there.
        let start =
            unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags, file, offset) }?;
        Ok(Pages { start, length })
    }
    pub fn sync(&self) -> rustix::io::Result<()> {
        // SAFETY: it is the mapping of this value.
        unsafe { msync(self.start, self.length, MsyncFlags::SYNC) }
    }
}

impl Deref for Pages {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is valid until drop; any bytes are valid.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.length) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this value is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value, which nothing refers to any more.
        unsafe { munmap(self.start, self.length) }.expect("it is mapped");
    }
}
