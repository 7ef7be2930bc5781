//! The manager's state in and out of checkpoint files.
use crate::error::{RescueError, Result};
use cairn_manager_core::{State, checkpoint};
use cairn_store::{CheckpointFile, CheckpointSource};

const PIECE: usize = 256 << 10;

/// Reads a state; every page and record is verified.
pub fn read(mut file: CheckpointFile) -> Result<State> {
    let name = file.name().to_owned();
    let unusable =
        |error: checkpoint::CheckpointError| RescueError::ManagerState { file: name.clone(), what: error.to_string() };
    let mut reader = checkpoint::Reader::new();
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => break,
            got => reader.feed(&piece[..got]).map_err(unusable)?,
        }
    }
    reader.finish().map_err(unusable)
}
