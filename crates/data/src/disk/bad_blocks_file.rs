//! The file `bad-blocks` of a disk: blocks that are bad and could not be healed yet. A reminder: one that cannot be
//! read is as good as none, readers and the scrub find its blocks again.

use cairn_env::{AlignedBuf, DiskError, OpenOptions};
use cairn_format::bad_blocks::{BAD_BLOCKS_LEN_MAX, BadBlocks};
use cairn_types::{ChunkId, DiskUuid};

use super::{DiskStore, paths};

impl DiskStore {
    /// Whose disk it is.
    pub fn uuid(&self) -> DiskUuid {
        self.context.uuid
    }

    /// What was kept; nothing if that cannot be read.
    pub fn read_bad_blocks(&self) -> Vec<(ChunkId, u32)> {
        let read = || -> Result<Vec<(ChunkId, u32)>, DiskError> {
            let file = match self.context.disk.open(paths::BAD_BLOCKS, OpenOptions::READ) {
                Err(DiskError::NotFound { .. }) => return Ok(Vec::new()),
                other => other?,
            };
            let length = usize::try_from(file.len()?).unwrap_or(usize::MAX).min(BAD_BLOCKS_LEN_MAX + 1);
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, 0)?;
            match BadBlocks::decode(&bytes) {
                Ok(list) if list.disk == self.context.uuid => Ok(list.blocks),
                Ok(_) => Ok(Vec::new()),
                Err(error) => {
                    tracing::warn!(disk = self.name(), %error, "the list of bad blocks is not known; the scrub finds them again");
                    Ok(Vec::new())
                }
            }
        };
        read().unwrap_or_else(|error| {
            tracing::warn!(disk = self.name(), %error, "the list of bad blocks cannot be read; the scrub finds them again");
            Vec::new()
        })
    }

    /// Keeps the list, over a crash as well.
    pub fn write_bad_blocks(&self, list: &BadBlocks) -> Result<(), DiskError> {
        let disk = &self.context.disk;
        let encoded = list.encode();
        let file = disk.open(paths::BAD_BLOCKS_TEMP, OpenOptions::CREATE)?;
        let mut bytes = AlignedBuf::unpooled(encoded.len());
        bytes.extend_from_slice(&encoded);
        file.set_len(0)?;
        file.write_at(&bytes, 0)?;
        file.sync_all()?;
        disk.rename(paths::BAD_BLOCKS_TEMP, paths::BAD_BLOCKS)?;
        disk.sync_dir("")
    }
}
