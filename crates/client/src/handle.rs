//! An open file: reads and writes at any offset, appends, truncation. For fronts that change existing files.
//!
//! [`FileHandle`] is one handle on its own; mounts share a [`FileData`] among all handles of a file. Writes gather in
//! memory, at most [`DIRTY_MAX`] bytes and one write more; `sync` and `close` write them to new space by the file's
//! layout and publish exactly the bytes written. Others see them after `sync` (close-to-open); between handles that
//! write the same bytes the last sync wins.
mod ahead;
pub mod budget;
mod dirty;
mod extents;
pub mod file_data;
mod in_doubt;
mod range_read;
mod tail;
mod write_out;

use crate::attributes::Attributes;
use crate::changes::SetAttributes;
use crate::error::{ClientError, Result};
use crate::meta::volume::{Volume, shown};
use crate::opened::Opened;
use budget::Budget;
use cairn_env::buf::SharedBuf;
use cairn_types::ErrorCode;
use file_data::{FileData, Writer};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of writes that a handle keeps before it writes them.
pub const DIRTY_MAX: usize = 24 << 20;
/// A sync tells the metadata of changes in place that are so old; others do not depend on it to see them.
const TELL_AFTER: Duration = Duration::from_secs(4);

/// A file opened for reading and writing. Close it: what was not synced is lost when it is dropped.
pub struct FileHandle {
    volume: Volume,
    data: Arc<FileData>,
    budget: Arc<Budget>,
}

impl Volume {
    /// Opens an existing regular file; symbolic links are followed. The session holds it until it is closed.
    pub async fn open(&self, path: &[u8]) -> Result<FileHandle> {
        let found = self.stat(path, true).await?;
        self.open_handle(found.inode, path).await
    }
    /// Opens a file by its inode; `shown_as` is its name in errors.
    pub async fn open_handle(&self, inode: u64, shown_as: &[u8]) -> Result<FileHandle> {
        let found = self.hold_inode(inode, shown_as, true).await?;
        let budget = Arc::new(Budget::unlimited());
        let opened = Opened::without_extents(found);
        let data = match found.is_regular() {
            true => FileData::new(self, shown_as, &opened, budget.clone()),
            false => {
                let text = "only regular files can be opened for writing";
                Err(ClientError::remote(&shown(shown_as), ErrorCode::InvalidArgument, text))
            }
        };
        match data {
            Ok(data) => Ok(FileHandle { volume: self.clone(), data, budget }),
            Err(error) => {
                self.release_inode(inode).await?;
                Err(error)
            }
        }
    }
}

impl FileHandle {
    pub fn inode(&self) -> u64 {
        self.data.inode()
    }
    /// Attributes with what was written here and is not yet synced taken into account.
    pub async fn attributes(&self) -> Result<Attributes> {
        self.data.refresh().await
    }
    /// Puts bytes into the file, over what is there or beyond its end.
    pub async fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let data = SharedBuf::from_owner(data.to_vec());
        self.budget.reserve(data.len()).await;
        self.data.write(self.writer(), offset, data)?;
        self.bound().await
    }
    /// Puts bytes behind the end of the file. Returns where they begin as far as is known: they go further behind if
    /// somebody else makes the file longer before they are synced.
    pub async fn append(&mut self, data: &[u8]) -> Result<u64> {
        self.data.refresh().await?;
        let data = SharedBuf::from_owner(data.to_vec());
        self.budget.reserve(data.len()).await;
        let at = self.data.append(self.writer(), data)?;
        self.bound().await.map(|()| at)
    }
    fn writer(&self) -> Writer<'_> {
        Writer { volume: &self.volume, mtime_ns: 0, generation: 0 }
    }
    async fn bound(&self) -> Result<()> {
        if self.budget.used() > DIRTY_MAX { self.data.flush().await } else { Ok(()) }
    }
    /// Cuts the file, or makes it longer with zeros that take no space.
    pub async fn truncate(&mut self, size: u64) -> Result<Attributes> {
        self.data.flush().await?;
        self.data.truncate(&self.volume, SetAttributes::to_size(size)).await
    }
    /// Up to `length` bytes from `offset` on; fewer only at the end of the file.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        self.data.refresh().await?;
        let parts = self.data.read(offset, length as u64, None, 0).await?;
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        Ok(bytes)
    }
    /// Makes everything written durable, and visible to whoever opens the file from now on.
    pub async fn sync(&mut self) -> Result<()> {
        self.data.flush().await?;
        let due = self.data.status().untold_age.is_some_and(|age| age >= TELL_AFTER);
        if due { self.data.tell().await } else { Ok(()) }
    }
    /// Syncs, and ends this handle's hold on the file.
    pub async fn close(self) -> Result<()> {
        let synced = self.data.finish().await;
        if let Err(error) = self.data.end_lease().await {
            tracing::debug!(%error, "the overwrite lease goes with the hold");
        }
        let released = self.volume.release_inode(self.data.inode()).await;
        synced.and(released)
    }
}

#[cfg(test)]
mod guard_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod turn_tests;
