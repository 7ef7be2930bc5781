//! The file `scrub` of a disk: how far its scrub came. Nothing depends on it: one that cannot be read is written anew.

use cairn_env::{AlignedBuf, DiskError, OpenOptions};
use cairn_format::scrub_state::{SCRUB_STATE_LEN, ScrubState};

use super::{DiskStore, paths};

impl DiskStore {
    /// What was kept; a disk that was never read through, or whose file is damaged, begins anew.
    pub fn read_scrub_state(&self) -> ScrubState {
        let new = ScrubState::new(self.context.uuid);
        let read = || -> Result<Option<ScrubState>, DiskError> {
            let file = match self.context.disk.open(paths::SCRUB, OpenOptions::READ) {
                Err(DiskError::NotFound { .. }) => return Ok(None),
                other => other?,
            };
            let mut bytes = [0; SCRUB_STATE_LEN];
            file.read_exact_at(&mut bytes, 0)?;
            match ScrubState::decode(&bytes) {
                Ok(state) => Ok(Some(state).filter(|state| state.disk == self.context.uuid)),
                Err(error) => {
                    tracing::warn!(disk = self.name(), %error, "how far the disk was scrubbed is not known; it begins anew");
                    Ok(None)
                }
            }
        };
        match read() {
            Ok(state) => state.unwrap_or(new),
            Err(error) => {
                tracing::warn!(disk = self.name(), %error, "how far the disk was scrubbed cannot be read; it begins anew");
                new
            }
        }
    }

    /// Keeps how far it came, over a crash as well.
    pub fn write_scrub_state(&self, state: &ScrubState) -> Result<(), DiskError> {
        let disk = &self.context.disk;
        let file = disk.open(paths::SCRUB_TEMP, OpenOptions::CREATE)?;
        let mut bytes = AlignedBuf::unpooled(SCRUB_STATE_LEN);
        bytes.extend_from_slice(&state.encode());
        file.set_len(0)?;
        file.write_at(&bytes, 0)?;
        file.sync_all()?;
        disk.rename(paths::SCRUB_TEMP, paths::SCRUB)?;
        disk.sync_dir("")
    }
}
