//! Writing a manager's state that was made anew into the directory of the manager that begins with it.
use crate::backup_set::BackupSet;
use crate::error::{RescueError, Result};
use crate::node_dir::{NodeDir, Place};
use cairn_format::backup_manifest::BackupManifest;
use cairn_manager_core::{State, checkpoint};
use cairn_types::{GroupId, NodeId, WallTime};
use std::path::Path;

/// Where the state goes, and what it may replace.
pub struct MapOrder<'a> {
    pub manager: NodeId,
    pub dir: &'a Path,
    /// The backup that names and settings came from.
    pub base: Option<&'a BackupManifest>,
    /// Also over a manager's state that is there.
    pub over_newer: bool,
    pub now: WallTime,
}

/// The manager's state in a backup, with its manifest.
pub fn base(set: &BackupSet, number: Option<u64>) -> Result<(BackupManifest, State)> {
    let manifest = set.manifest(number)?;
    if let Some(error) = set.verify(&manifest).into_iter().next() {
        return Err(error);
    }
    let state = set.manager_state(&manifest)?;
    Ok((manifest, state))
}

/// Writes it; where the manager's group goes on.
pub fn write(state: &State, order: &MapOrder<'_>) -> Result<Place> {
    let cluster = state.cluster().ok_or_else(|| RescueError::Refused("the new state belongs to no cluster".into()))?.id;
    let dir = NodeDir::open(order.dir, cluster, order.manager, order.now)?;
    let group = GroupId::MANAGER;
    if !order.over_newer && dir.has(group)?.is_some() {
        return Err(RescueError::Refused(format!(
            "{} has a state of the manager: start the manager with it, or, if it is really to be given up, say \
             --over-newer-state; nothing was changed",
            order.dir.display()
        )));
    }
    let entry = order.base.and_then(|manifest| manifest.entry(group));
    let of = entry.map_or(Place { index: 0, term: 0 }, |entry| Place { index: entry.index, term: entry.term });
    dir.put(group, of, order.now, order.now, |sink| checkpoint::write(state, |piece| sink.write(piece)))
}
