//! [`PgFiles`]: what the disk knows of its placement groups, one file each, replaced as a whole.
//!
//! Invariants: a state is durable before [`PgFiles::save`] returns; epoch and high-water mark never fall; a state that
//! cannot be read is never taken for "nothing known": its group is reported, and its indices go on far above.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_env::{AlignedBuf, Disk, DiskError, OpenOptions};
use cairn_format::pg_state::{PG_STATE_LEN, PgStateRecord};
use cairn_types::PgId;
use parking_lot::Mutex;

use super::paths;

/// Indices skipped when the high-water mark of a group was lost: more than can have been reserved since.
pub const LOST_MARK_SKIP: u32 = 1 << 20;

/// A group whose state cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgTrouble {
    /// The group.
    pub pg: PgId,
    /// Directory, file and cause.
    pub what: String,
}

/// States of placement groups on a disk.
pub struct PgFiles {
    disk: Arc<dyn Disk>,
    states: Mutex<BTreeMap<PgId, Arc<PgStateRecord>>>,
    troubles: Mutex<Vec<PgTrouble>>,
    /// One change of a group at a time.
    saving: Mutex<()>,
}

impl PgFiles {
    /// Reads what is there.
    pub(crate) fn load(disk: Arc<dyn Disk>) -> Result<Self, DiskError> {
        let (mut states, mut troubles) = (BTreeMap::new(), Vec::new());
        for entry in list_or_none(disk.as_ref(), paths::PGS)? {
            let Some(pg) = entry.name.parse().ok().map(PgId).filter(|_| entry.is_dir) else { continue };
            match read_state(disk.as_ref(), pg)? {
                Ok(Some(state)) => {
                    states.insert(pg, Arc::new(state));
                }
                Ok(None) => {}
                Err(what) => troubles.push(PgTrouble { pg, what }),
            }
        }
        Ok(Self { disk, states: Mutex::new(states), troubles: Mutex::new(troubles), saving: Mutex::default() })
    }

    /// All groups.
    pub fn all(&self) -> Vec<Arc<PgStateRecord>> {
        self.states.lock().values().cloned().collect()
    }

    /// One group.
    pub fn get(&self, pg: PgId) -> Option<Arc<PgStateRecord>> {
        self.states.lock().get(&pg).cloned()
    }

    /// Groups whose states could not be read and were not told anew since.
    pub fn troubles(&self) -> Vec<PgTrouble> {
        self.troubles.lock().clone()
    }

    /// Whether the group's state could not be read.
    pub fn is_troubled(&self, pg: PgId) -> bool {
        self.troubles.lock().iter().any(|trouble| trouble.pg == pg)
    }

    /// Makes a change of the group's state durable, then visible. `change` gets the present state and returns the new
    /// one, or `None` to leave it. Returns what holds now.
    pub fn update(
        &self,
        pg: PgId,
        change: impl FnOnce(Option<&PgStateRecord>) -> Option<PgStateRecord>,
    ) -> Result<Option<Arc<PgStateRecord>>, DiskError> {
        let _one = self.saving.lock();
        let present = self.get(pg);
        let Some(new) = change(present.as_deref()) else { return Ok(present) };
        if let Some(present) = &present {
            assert!(
                new.epoch >= present.epoch && new.high_water >= present.high_water,
                "epoch and high-water mark of {pg} never fall"
            );
        }
        self.write(&new)?;
        let new = Arc::new(new);
        self.states.lock().insert(pg, new.clone());
        self.troubles.lock().retain(|trouble| trouble.pg != pg);
        Ok(Some(new))
    }

    fn write(&self, state: &PgStateRecord) -> Result<(), DiskError> {
        let (temp, path) = (paths::pg_state_temp(state.pg), paths::pg_state(state.pg));
        let dir = paths::pg_dir(state.pg);
        let file = match self.disk.open(&temp, OpenOptions::CREATE) {
            Err(DiskError::NotFound { .. }) => {
                self.disk.create_dir_all(&dir)?;
                self.disk.open(&temp, OpenOptions::CREATE)?
            }
            other => other?,
        };
        let mut block = AlignedBuf::unpooled(PG_STATE_LEN);
        block.extend_from_slice(&state.encode());
        file.set_len(0)?;
        file.write_at(&block, 0)?;
        file.sync_all()?;
        self.disk.rename(&temp, &path)?;
        self.disk.sync_dir(&dir)
    }
}

/// The state of a group; the inner error says what is wrong with the file.
fn read_state(disk: &dyn Disk, pg: PgId) -> Result<Result<Option<PgStateRecord>, String>, DiskError> {
    let path = paths::pg_state(pg);
    let file = match disk.open(&path, OpenOptions::READ) {
        Err(DiskError::NotFound { .. }) => return Ok(Ok(None)),
        other => other?,
    };
    let mut block = [0; PG_STATE_LEN];
    let name = format!("{}/{path}", disk.name());
    if file.len()? != PG_STATE_LEN as u64 {
        return Ok(Err(format!("{name}: it has {} bytes instead of {PG_STATE_LEN}", file.len()?)));
    }
    if let Err(error) = file.read_exact_at(&mut block, 0) {
        return Ok(Err(error.to_string()));
    }
    Ok(match PgStateRecord::decode(&block) {
        Ok(state) if state.pg == pg => Ok(Some(state)),
        Ok(state) => Err(format!("{name}: it is the state of {}", state.pg)),
        Err(error) => Err(format!("{name}: {error}")),
    })
}

/// The names in a directory; none when it does not exist.
pub(super) fn list_or_none(disk: &dyn Disk, dir: &str) -> Result<Vec<cairn_env::DirEntry>, DiskError> {
    match disk.list(dir) {
        Err(DiskError::NotFound { .. }) => Ok(Vec::new()),
        other => other,
    }
}
