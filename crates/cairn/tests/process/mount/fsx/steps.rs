//! What a step of `fsx` does, to the file and to the copy.
use super::buffer::{PAGE, Pages};
use super::{Fsx, Way};
use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};
use rustix::io::Errno;
use std::os::unix::fs::FileExt;

/// A kind of step, and how often it comes.
type Weighted = (u64, fn(&mut Fsx));

/// Steps by their weights.
const STEPS: &[Weighted] = &[
    (14, Fsx::read),
    (20, Fsx::write),
    (6, Fsx::small_writes),
    (7, Fsx::map_read),
    (9, Fsx::map_write),
    (8, Fsx::truncate),
    (6, Fsx::punch),
    (4, Fsx::zero_range),
    (3, Fsx::allocate),
    (5, Fsx::copy),
    (5, Fsx::sync),
    (6, Fsx::reopen),
    (3, Fsx::second_handle),
    (3, Fsx::find_data),
    (2, Fsx::read_anew),
];

fn zero(model: &mut [u8], from: u64, to: u64) {
    let (from, to) = ((from as usize).min(model.len()), (to as usize).min(model.len()));
    model[from..to].fill(0);
}

impl Fsx {
    pub(super) fn one_step(&mut self) {
        self.step += 1;
        let all: u64 = STEPS.iter().map(|(weight, _)| weight).sum();
        let mut at = self.rng.below(all);
        for (weight, step) in STEPS {
            if at < *weight {
                step(self);
                break;
            }
            at -= weight;
        }
        let size = self.done("fstat", self.handles[0].file.metadata()).len();
        if size != self.model.len() as u64 {
            self.fail(&format!("the size is {size} instead of {}", self.model.len()));
        }
    }
    fn size(&self) -> u64 {
        self.model.len() as u64
    }
    /// A range below `end`; often small, sometimes beginning with a block.
    fn range(&mut self, end: u64) -> (u64, u64) {
        let most = match self.rng.below(4) {
            0 => 200,
            1 => 9000,
            _ => self.sizes.io,
        };
        let length = 1 + self.rng.below(most);
        let mut offset = self.rng.below(end);
        if self.rng.one_in(3) {
            offset -= offset % PAGE as u64;
        }
        (offset, length.min(end - offset))
    }
    /// Which handle, and a range that it may be used with.
    fn place(&mut self, end: u64) -> (usize, u64, u64) {
        let (handle, (mut offset, mut length)) = (self.rng.index(self.handles.len()), self.range(end));
        if self.handles[handle].way == Way::Direct {
            offset -= offset % PAGE as u64;
            length = length.next_multiple_of(PAGE as u64);
        }
        (handle, offset, length)
    }
    /// Bytes that tell the step that wrote them.
    fn fill(&self, length: usize) -> impl Iterator<Item = u8> + use<> {
        let start = self.step as usize * 41;
        (0..length).map(move |i| (1 + (start + i + i / 251) % 255) as u8)
    }
    /// The copy gets the bytes of this step.
    fn put(&mut self, offset: u64, length: u64) {
        let end = (offset + length) as usize;
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        let bytes: Vec<u8> = self.fill(length as usize).collect();
        self.model[offset as usize..end].copy_from_slice(&bytes);
    }

    fn read(&mut self) {
        let (handle, offset, length) = self.place((self.size() + 5000).min(self.sizes.file));
        self.note("read", format!("{offset}+{length} by {:?}", self.handles[handle].way));
        let mut buffer = Pages::memory(length as usize);
        let mut got = 0;
        while got < buffer.len() {
            match self.done("pread", self.handles[handle].file.read_at(&mut buffer[got..], offset + got as u64)) {
                0 => break,
                count => got += count,
            }
        }
        self.compare("a read", offset as usize, &buffer[..got], (offset + length) as usize);
    }
    fn write(&mut self) {
        let (handle, offset, length) = self.place(self.sizes.file);
        self.note("write", format!("{offset}+{length} by {:?}", self.handles[handle].way));
        let mut buffer = Pages::memory(length as usize);
        buffer.iter_mut().zip(self.fill(length as usize)).for_each(|(to, from)| *to = from);
        self.done("pwrite", self.handles[handle].file.write_all_at(&buffer, offset));
        self.put(offset, length);
    }
    /// Some small ones next to each other, as of a log.
    fn small_writes(&mut self) {
        let offset = self.rng.below(self.sizes.file.min(self.size() + 100_000));
        let handle = self.rng.index(self.handles.len());
        if self.handles[handle].way == Way::Direct {
            return self.write();
        }
        let count = 2 + self.rng.below(12);
        self.note("small", format!("{count} from {offset} on by {:?}", self.handles[handle].way));
        let mut at = offset;
        for _ in 0..count {
            let length = (1 + self.rng.below(900)).min(self.sizes.file.saturating_sub(at));
            let bytes: Vec<u8> = self.fill(length as usize).collect();
            self.done("pwrite", self.handles[handle].file.write_all_at(&bytes, at));
            self.put(at, length);
            at += length;
        }
    }

    fn map_read(&mut self) {
        if self.size() == 0 {
            return;
        }
        let (handle, (offset, length)) = (self.rng.index(self.handles.len()), self.range(self.size()));
        self.note("mapread", format!("{offset}+{length} by {:?}", self.handles[handle].way));
        let start = offset - offset % PAGE as u64;
        let end = (offset + length).next_multiple_of(PAGE as u64);
        let mapped = Pages::of(&self.handles[handle].file, start, (end - start) as usize, !self.rng.one_in(3));
        let pages = self.done("mmap", mapped);
        let known = (end.min(self.size()) - start) as usize;
        self.compare("a mapping", start as usize, &pages[..known], start as usize + known);
        if let Some(bad) = pages[known..].iter().position(|byte| *byte != 0) {
            self.fail(&format!("a mapping has {:#x} {bad} bytes behind the end", pages[known + bad]));
        }
    }
    fn map_write(&mut self) {
        let (handle, (offset, length)) = (self.rng.index(self.handles.len()), self.range(self.sizes.file));
        let sync = self.rng.one_in(2);
        self.note("mapwrite", format!("{offset}+{length} sync {sync} by {:?}", self.handles[handle].way));
        let end = offset + length;
        if end > self.size() {
            self.done("ftruncate", self.handles[handle].file.set_len(end));
            self.model.resize(end as usize, 0);
        }
        let start = offset - offset % PAGE as u64;
        let mut pages = self.done("mmap", Pages::of(&self.handles[handle].file, start, (end - start) as usize, true));
        let bytes = self.fill(length as usize);
        pages[(offset - start) as usize..].iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        if sync {
            self.done("msync", pages.sync());
        }
        self.mapped |= !sync;
        self.put(offset, length);
    }

    fn truncate(&mut self) {
        let size = match self.rng.below(10) {
            0 => 0,
            1..4 => self.rng.below(self.sizes.file),
            _ => self.rng.below(self.size() + 20_000).min(self.sizes.file),
        };
        self.note("truncate", format!("{} to {size}", self.size()));
        let handle = self.rng.index(self.handles.len());
        match self.rng.one_in(3) {
            true => self.done("truncate by name", super::super::truncate(&self.path, size)),
            false => self.done("ftruncate", self.handles[handle].file.set_len(size)),
        }
        self.model.resize(size as usize, 0);
    }
    fn allocate_as(&mut self, what: &str, mode: FallocateFlags, offset: u64, length: u64) -> bool {
        let handle = self.rng.index(self.handles.len());
        match fallocate(&self.handles[handle].file, mode, offset, length) {
            // Not every local file system knows all of them.
            Err(Errno::OPNOTSUPP) if self.sizes.local => false,
            outcome => {
                self.done(what, outcome);
                true
            }
        }
    }
    fn punch(&mut self) {
        let (offset, length) = self.range(self.sizes.file);
        self.note("punch", format!("{offset}+{length}"));
        if self.allocate_as("punch", FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length) {
            zero(&mut self.model, offset, offset + length);
        }
    }
    fn zero_range(&mut self) {
        let (offset, length) = self.range(self.sizes.file);
        let keep = self.rng.one_in(2);
        self.note("zero", format!("{offset}+{length} keep {keep}"));
        let mode = if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        if self.allocate_as("zero range", FallocateFlags::ZERO_RANGE | mode, offset, length) {
            self.longer(offset + length, keep);
            zero(&mut self.model, offset, offset + length);
        }
    }
    fn allocate(&mut self) {
        let (offset, length) = self.range(self.sizes.file);
        let keep = self.rng.one_in(2);
        self.note("allocate", format!("{offset}+{length} keep {keep}"));
        let mode = if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        if self.allocate_as("fallocate", mode, offset, length) {
            self.longer(offset + length, keep);
        }
    }
    fn longer(&mut self, end: u64, keep: bool) {
        if !keep && end > self.size() {
            self.model.resize(end as usize, 0);
        }
    }
    fn copy(&mut self) {
        if self.size() == 0 {
            return;
        }
        let (from, length) = self.range(self.size());
        let to = self.rng.below(self.sizes.file - length + 1);
        if from.abs_diff(to) < length {
            return;
        }
        let (source, target) = (self.rng.index(self.handles.len()), self.rng.index(self.handles.len()));
        if self.sizes.local && self.handles.iter().any(|handle| handle.way == Way::Direct) {
            return;
        }
        self.note("copy", format!("{from}+{length} to {to}"));
        let (mut read, mut written, mut left) = (from, to, length as usize);
        while left > 0 {
            let (input, output) = (&self.handles[source].file, &self.handles[target].file);
            let count =
                self.done("copy_file_range", copy_file_range(input, Some(&mut read), output, Some(&mut written), left));
            if count == 0 {
                self.fail("copy_file_range copies nothing before the end of the source");
            }
            left -= count;
        }
        let bytes = self.model[from as usize..(from + length) as usize].to_vec();
        self.longer(to + length, false);
        self.model[to as usize..(to + length) as usize].copy_from_slice(&bytes);
    }

    fn sync(&mut self) {
        let handle = self.rng.index(self.handles.len());
        let all = self.rng.one_in(2);
        self.note("sync", format!("all {all}"));
        let file = &self.handles[handle].file;
        self.done("fsync", if all { file.sync_all() } else { file.sync_data() });
        self.mapped = false;
    }
    fn way(&mut self) -> Way {
        self.rng.pick(&[Way::Cached, Way::Cached, Way::Direct, Way::Sync])
    }
    fn reopen(&mut self) {
        let way = self.way();
        self.note("reopen", format!("{way:?}"));
        if self.rng.one_in(2) {
            // All closed before one is open again.
            self.handles.clear();
            self.mapped = false;
        }
        let handle = self.open(way);
        self.handles.clear();
        self.handles.push(handle);
    }
    fn second_handle(&mut self) {
        let way = self.way();
        self.note("second", format!("{way:?}"));
        self.handles.truncate(1);
        let handle = self.open(way);
        self.handles.push(handle);
    }
    /// What is said to be a hole has no bytes.
    fn find_data(&mut self) {
        if self.mapped {
            self.sync();
        }
        if self.size() == 0 {
            return;
        }
        let from = self.rng.below(self.size());
        self.note("seek", format!("from {from}"));
        let file = &self.handles[0].file;
        let data = match seek(file, SeekFrom::Data(from)) {
            Err(Errno::NXIO) => self.size(),
            found => self.done("SEEK_DATA", found),
        };
        let hole = self.done("SEEK_HOLE", seek(file, SeekFrom::Hole(from)));
        if data < from || data > self.size() || hole < from || hole > self.size() {
            self.fail(&format!("from {from} on data is at {data}, a hole at {hole}, size {}", self.size()));
        }
        if let Some(bad) = self.model[from as usize..data as usize].iter().position(|byte| *byte != 0) {
            self.fail(&format!("byte {} was written and lies in a hole ({from}..{data})", from as usize + bad));
        }
        if hole < self.size() && self.model[hole as usize] != 0 {
            self.fail(&format!("a hole begins at {hole}, where a byte was written"));
        }
    }
    fn read_anew(&mut self) {
        self.note("anew", String::new());
        let found = self.done("reading by name", std::fs::read(&self.path));
        self.compare("reading by name", 0, &found, self.model.len());
    }
}
