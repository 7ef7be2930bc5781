//! A file of stamped blocks: who wrote each, and in which order, can be read from its bytes. So it can be said, after
//! any fault, whether what a program was promised is there.
//!
//! A block is what was there when it was last synced, or anything that was tried to write since; torn blocks are
//! neither. Where data that was not synced may be lost, any part of a write may be, in pieces of [`WHOLE`]: parts of a
//! block that meet where such a piece begins may differ in what they are, none is a mixture.
use super::seeds::Rng;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// No piece of so many bytes is ever torn.
const WHOLE: usize = 4096;

/// Blocks that one write covers at most.
const RUN_MAX: u64 = 6;

/// Blocks that one writer has in a file.
#[derive(Clone, Copy)]
pub struct Share {
    pub writer: u64,
    pub writers: u64,
    /// Blocks of the whole file.
    pub blocks: u64,
    /// Bytes of a block; not a multiple of what anybody else calls a block.
    pub bytes: usize,
}

#[derive(Clone, Default)]
struct Block {
    synced: u64,
    tried: Vec<u64>,
}

/// One writer.
pub struct Stamped {
    path: PathBuf,
    share: Share,
    rng: Rng,
    file: File,
    blocks: Vec<Block>,
    last: u64,
    /// What was written last is what is read: nothing may be lost.
    strict: bool,
    pub writes: u64,
    pub syncs: u64,
    /// Syncs that told of a loss.
    pub losses: u64,
}

/// The bytes of a block; stamp 0: never written.
fn content(share: Share, block: u64, stamp: u64) -> Vec<u8> {
    if stamp == 0 {
        return vec![0; share.bytes];
    }
    let mut bytes = Vec::with_capacity(share.bytes + 24);
    let mut at = 0u64;
    while bytes.len() < share.bytes {
        for word in [block << 16 | share.writer, stamp, at] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        at += 1;
    }
    bytes.truncate(share.bytes);
    bytes
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

impl Stamped {
    pub fn new(path: &Path, share: Share, seed: u64, strict: bool) -> Stamped {
        let file = open(path).expect("create");
        let blocks = vec![Block::default(); share.blocks as usize];
        Stamped {
            path: path.to_owned(),
            share,
            rng: Rng::new(seed),
            file,
            blocks,
            last: 0,
            strict,
            writes: 0,
            syncs: 0,
            losses: 0,
        }
    }
    fn is_mine(&self, block: u64) -> bool {
        // Two neighbours each, so that writers share blocks of the disk and have some for themselves.
        block / 2 % self.share.writers == self.share.writer
    }
    /// One round: some writes, a read, and sometimes a sync or a close.
    pub fn round(&mut self) {
        for _ in 0..1 + self.rng.below(6) {
            self.write();
        }
        self.read_one();
        match self.rng.below(8) {
            0..4 => self.sync(),
            4 => {
                self.sync();
                self.file = open(&self.path).expect("open again");
            }
            _ => {}
        }
    }
    fn write(&mut self) {
        let first = self.rng.below(self.share.blocks);
        let run = (first..self.share.blocks).take_while(|block| self.is_mine(*block)).count() as u64;
        let run = run.min(1 + self.rng.below(RUN_MAX));
        if run == 0 {
            return;
        }
        let mut bytes = Vec::new();
        for block in first..first + run {
            self.last += 1;
            bytes.extend_from_slice(&content(self.share, block, self.last));
            self.blocks[block as usize].tried.push(self.last);
        }
        let written = self.file.write_all_at(&bytes, first * self.share.bytes as u64);
        written.unwrap_or_else(|error| panic!("a write failed: {error}"));
        self.writes += 1;
    }
    fn read_one(&mut self) {
        let block = self.rng.below(self.share.blocks);
        if !self.is_mine(block) {
            return;
        }
        let mut bytes = vec![0; self.share.bytes];
        let mut got = 0;
        while got < bytes.len() {
            let at = block * self.share.bytes as u64 + got as u64;
            match self.file.read_at(&mut bytes[got..], at).unwrap_or_else(|error| panic!("a read failed: {error}")) {
                0 => break,
                count => got += count,
            }
        }
        self.check_block(block, &bytes[..got], self.strict);
    }
    /// Syncs; what a loss is told of is written again.
    pub fn sync(&mut self) {
        self.syncs += 1;
        match self.file.sync_all() {
            Ok(()) => self.promised(),
            Err(error) if error.raw_os_error() == Some(5) && !self.strict => {
                self.losses += 1;
                self.write_again();
                self.file.sync_all().unwrap_or_else(|error| panic!("the sync after a loss failed, too: {error}"));
                self.promised();
            }
            Err(error) => panic!("a sync failed: {error}"),
        }
    }
    fn promised(&mut self) {
        for block in &mut self.blocks {
            if let Some(last) = block.tried.last() {
                block.synced = *last;
                block.tried.clear();
            }
        }
    }
    fn write_again(&mut self) {
        for block in 0..self.share.blocks {
            if let Some(stamp) = self.blocks[block as usize].tried.last() {
                let bytes = content(self.share, block, *stamp);
                let written = self.file.write_all_at(&bytes, block * self.share.bytes as u64);
                written.unwrap_or_else(|error| panic!("a write failed: {error}"));
            }
        }
    }
    /// All that this writer wrote is durable, and the file is closed. Its last state.
    pub fn finish(mut self) -> Finished {
        self.sync();
        Finished { share: self.share, blocks: self.blocks }
    }
    fn check_block(&self, block: u64, found: &[u8], strict: bool) {
        check(self.share, &self.blocks[block as usize], block, found, strict);
    }
}

/// What a writer left.
pub struct Finished {
    share: Share,
    blocks: Vec<Block>,
}

impl Finished {
    /// Holds the whole file against it.
    pub fn check(&self, file: &[u8]) {
        for (number, block) in (0u64..).zip(&self.blocks) {
            if block.synced == 0 {
                continue;
            }
            let start = (number as usize * self.share.bytes).min(file.len());
            let end = (start + self.share.bytes).min(file.len());
            check(self.share, block, number, &file[start..end], true);
        }
    }
}

/// Whether each piece of a block is that of the version that was synced, or of one that was tried since.
fn pieces_fit(share: Share, block: &Block, number: u64, found: &[u8]) -> bool {
    let versions: Vec<Vec<u8>> =
        [block.synced].iter().chain(&block.tried).map(|stamp| content(share, number, *stamp)).collect();
    // What lies behind the end of the file was never written.
    let mut found = found.to_vec();
    found.resize(share.bytes, 0);
    let start = number as usize * share.bytes;
    let mut at = 0;
    while at < share.bytes {
        let end = ((start + at + 1).next_multiple_of(WHOLE) - start).min(share.bytes);
        if !versions.iter().any(|version| version[at..end] == found[at..end]) {
            return false;
        }
        at = end;
    }
    true
}

/// Panics unless a block is what it may be; `strict`: what was written last.
fn check(share: Share, block: &Block, number: u64, found: &[u8], strict: bool) {
    let is = |stamp: u64| {
        let wanted = content(share, number, stamp);
        // A block at the end may not be there at all if it was never written.
        wanted == found || stamp == 0 && found.iter().all(|byte| *byte == 0)
    };
    let last = block.tried.last().copied().unwrap_or(block.synced);
    if !is(last) && (strict || !pieces_fit(share, block, number, found)) {
        let word =
            |at: usize| found.get(at..at + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
        let seen: Vec<Option<u64>> = (0..6).map(|at| word(at * 8)).collect();
        panic!(
            "block {number} of writer {}: synced {}, tried since {:?}, found {seen:x?} ({} bytes, strict {strict})",
            share.writer,
            block.synced,
            block.tried,
            found.len(),
        );
    }
}
