//! [`CheckpointWriter`] writes one checkpoint file page by page, [`CheckpointFile`] reads and verifies one.

use std::sync::Arc;

use cairn_env::{AlignedBuf, Disk, File, OpenOptions};
use cairn_format::checkpoint::{
    CHECKPOINT_BLOCK, CHECKPOINT_VERSION, CheckpointError, CheckpointFooter, CheckpointHeader, PAGE_DATA_MAX,
    PAGE_HEADER_LEN, PAGE_LEN, PageHeader,
};
use cairn_types::crc32c_append;

use super::{CheckpointSink, CheckpointSource};
use crate::StoreError;

/// Writes a checkpoint's bytes into a file; [`finish`](Self::finish) completes and syncs it.
pub struct CheckpointWriter {
    file: Arc<dyn File>,
    header: CheckpointHeader,
    /// The page being filled, with room for its header.
    page: AlignedBuf,
    offset: u64,
    pages: u64,
    bytes: u64,
    pages_crc: u32,
}

impl CheckpointWriter {
    /// Starts a file (an old one of that name is emptied).
    pub(super) fn create(disk: &dyn Disk, path: &str, header: CheckpointHeader) -> Result<Self, StoreError> {
        let file = disk.open(path, OpenOptions::CREATE.direct())?;
        file.set_len(0)?;
        let mut page = AlignedBuf::unpooled(PAGE_LEN);
        page.extend_from_slice(&header.encode());
        file.write_at(&page, 0)?;
        page.clear();
        page.resize(PAGE_HEADER_LEN);
        Ok(Self { file, header, page, offset: CHECKPOINT_BLOCK as u64, pages: 0, bytes: 0, pages_crc: 0 })
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        let length = self.page.len() - PAGE_HEADER_LEN;
        self.page.pad_to_align();
        let crc = PageHeader::seal(&mut self.page, length, self.pages, self.header.index, self.header.group);
        self.file.write_at(&self.page, self.offset)?;
        self.offset += self.page.len() as u64;
        self.pages += 1;
        self.bytes += length as u64;
        self.pages_crc = crc32c_append(self.pages_crc, &crc.to_le_bytes());
        self.page.clear();
        self.page.resize(PAGE_HEADER_LEN);
        Ok(())
    }

    /// Writes the rest and the footer and syncs; gives the file's length.
    pub(super) fn finish(mut self) -> Result<u64, StoreError> {
        if self.page.len() > PAGE_HEADER_LEN {
            self.flush()?;
        }
        let footer = CheckpointFooter {
            pages: self.pages,
            bytes: self.bytes,
            index: self.header.index,
            pages_crc: self.pages_crc,
        };
        self.page.clear();
        self.page.extend_from_slice(&footer.encode());
        self.file.write_at(&self.page, self.offset)?;
        self.file.sync_all()?;
        Ok(self.offset + CHECKPOINT_BLOCK as u64)
    }
}

impl CheckpointSink for CheckpointWriter {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let part = bytes.len().min(self.page.remaining());
            self.page.extend_from_slice(&bytes[..part]);
            bytes = &bytes[part..];
            if self.page.remaining() == 0 {
                self.flush()?;
            }
        }
        Ok(())
    }
}

/// A checkpoint file opened for reading.
pub struct CheckpointFile {
    file: Arc<dyn File>,
    name: String,
    header: CheckpointHeader,
    footer: CheckpointFooter,
    len: u64,
    page: AlignedBuf,
    /// Read position within the page's data.
    at: usize,
    next_page: u64,
    pages_crc: u32,
}

fn block(file: &dyn File, offset: u64) -> Result<Box<[u8; CHECKPOINT_BLOCK]>, StoreError> {
    let mut buf = AlignedBuf::unpooled(CHECKPOINT_BLOCK);
    buf.resize(CHECKPOINT_BLOCK);
    file.read_exact_at(&mut buf, offset)?;
    let mut out = Box::new([0; CHECKPOINT_BLOCK]);
    out.copy_from_slice(&buf);
    Ok(out)
}

impl CheckpointFile {
    /// Opens a file and verifies header and footer; the pages are verified when they are read.
    pub fn open(disk: &dyn Disk, path: &str) -> Result<Self, StoreError> {
        let name = format!("{}/{path}", disk.name());
        let refuse = |offset: u64, error: CheckpointError| match error {
            CheckpointError::Version(found) => {
                StoreError::Version { file: name.clone(), found, known: CHECKPOINT_VERSION }
            }
            other => StoreError::Corrupt { file: name.clone(), offset, what: other.to_string() },
        };
        let file = disk.open(path, OpenOptions::READ.direct())?;
        let len = file.len()?;
        if len < 2 * CHECKPOINT_BLOCK as u64 || !len.is_multiple_of(CHECKPOINT_BLOCK as u64) {
            return Err(StoreError::Corrupt { file: name, offset: 0, what: format!("it has {len} bytes") });
        }
        let header = CheckpointHeader::decode(&*block(file.as_ref(), 0)?).map_err(|error| refuse(0, error))?;
        let end = len - CHECKPOINT_BLOCK as u64;
        let footer = CheckpointFooter::decode(&*block(file.as_ref(), end)?).map_err(|error| refuse(end, error))?;
        let agrees = footer.index == header.index
            && footer.pages == footer.bytes.div_ceil(PAGE_DATA_MAX as u64)
            && end == pages_end(&footer);
        if !agrees {
            return Err(refuse(end, CheckpointError::Shape));
        }
        let page = AlignedBuf::unpooled(PAGE_LEN);
        Ok(Self { file, name, header, footer, len, page, at: 0, next_page: 0, pages_crc: 0 })
    }

    /// What the state is.
    pub fn header(&self) -> &CheckpointHeader {
        &self.header
    }

    /// Bytes of the whole file.
    pub fn file_len(&self) -> u64 {
        self.len
    }

    /// Directory and name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The open file, for giving it to another node.
    pub(super) fn raw(&self) -> Arc<dyn File> {
        self.file.clone()
    }

    /// Reads and verifies all pages, then starts again at the first.
    pub fn verify(&mut self) -> Result<(), StoreError> {
        self.rewind();
        while self.next_page < self.footer.pages {
            self.load()?;
        }
        self.rewind();
        Ok(())
    }

    fn rewind(&mut self) {
        self.page.clear();
        self.at = 0;
        self.next_page = 0;
        self.pages_crc = 0;
    }

    /// Loads the next page and verifies it; the last one also against the footer.
    fn load(&mut self) -> Result<(), StoreError> {
        let number = self.next_page;
        let offset = CHECKPOINT_BLOCK as u64 + number * PAGE_LEN as u64;
        let length = (self.footer.bytes - number * PAGE_DATA_MAX as u64).min(PAGE_DATA_MAX as u64) as usize;
        let corrupt = |what: String| StoreError::Corrupt { file: self.name.clone(), offset, what };
        self.page.clear();
        self.page.resize((PAGE_HEADER_LEN + length).next_multiple_of(CHECKPOINT_BLOCK));
        self.file.read_exact_at(&mut self.page, offset)?;
        let header = PageHeader::decode(&self.page).map_err(|error| corrupt(format!("page {number}: {error}")))?;
        let expected = (length as u32, number, self.header.index, self.header.group);
        if (header.length, header.number, header.index, header.group) != expected {
            return Err(corrupt(format!("page {number} belongs elsewhere")));
        }
        self.page.truncate(PAGE_HEADER_LEN + length);
        self.at = PAGE_HEADER_LEN;
        self.next_page += 1;
        self.pages_crc = crc32c_append(self.pages_crc, &header.crc.to_le_bytes());
        if self.next_page == self.footer.pages && self.pages_crc != self.footer.pages_crc {
            return Err(corrupt("the pages do not agree with the footer".into()));
        }
        Ok(())
    }
}

/// Where the footer stands.
fn pages_end(footer: &CheckpointFooter) -> u64 {
    let block = CHECKPOINT_BLOCK as u64;
    let last = footer.bytes.checked_rem(PAGE_DATA_MAX as u64).unwrap_or(0);
    let whole = footer.bytes / PAGE_DATA_MAX as u64;
    let tail = if last == 0 { 0 } else { (PAGE_HEADER_LEN as u64 + last).next_multiple_of(block) };
    whole.saturating_mul(PAGE_LEN as u64).saturating_add(block + tail)
}

impl CheckpointSource for CheckpointFile {
    fn len(&self) -> u64 {
        self.footer.bytes
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<usize, StoreError> {
        if self.at == self.page.len() && self.next_page < self.footer.pages {
            self.load()?;
        }
        let part = buf.len().min(self.page.len() - self.at);
        buf[..part].copy_from_slice(&self.page[self.at..self.at + part]);
        self.at += part;
        Ok(part)
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), StoreError> {
        let mut done = 0;
        while done < buf.len() {
            match self.read(&mut buf[done..])? {
                0 => {
                    let what = format!("the state ends {} bytes before it should", buf.len() - done);
                    return Err(StoreError::Corrupt { file: self.name.clone(), offset: self.len, what });
                }
                part => done += part,
            }
        }
        Ok(())
    }
}
