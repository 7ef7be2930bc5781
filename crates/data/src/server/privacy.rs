//! Volumes whose file data goes through TLS alone: what goes out to other members, and what is taken and answered.
//!
//! Invariants: nothing of a chunk of such a volume is said on a connection that others can read, to whomever, and what
//! comes on one is refused, as far as the map tells; what goes out is private as long as nobody has said that it need
//! not be. Not here: who decides it (the manager's `private_data`), what keeps a connection private (`rpc`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_rpc::Request;
use cairn_types::{ErrorCode, VolumeId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::manager::ClusterMap;
use cairn_wire::protection::Protection;
use parking_lot::RwLock;

use super::Inner;
use super::rights::place;

/// What the manager told of each volume.
#[derive(Default)]
pub(super) struct Privacy {
    volumes: RwLock<BTreeMap<VolumeId, bool>>,
    /// Whether there is one that is private: where there is none, requests are not looked at.
    any: AtomicBool,
}

impl Privacy {
    pub(super) fn apply(&self, change: &ClusterMap) {
        if change.base_version != 0 && change.volumes.is_empty() {
            return;
        }
        let mut volumes = self.volumes.write();
        if change.base_version == 0 {
            volumes.clear();
        }
        for volume in &change.volumes {
            match volume.deleted {
                true => drop(volumes.remove(&VolumeId(volume.id))),
                false => drop(volumes.insert(VolumeId(volume.id), volume.private)),
            }
        }
        self.any.store(volumes.values().any(|private| *private), Ordering::Relaxed);
    }

    /// How what is said of a volume's chunks goes to others.
    pub(super) fn protection(&self, volume: VolumeId) -> Protection {
        match self.volumes.read().get(&volume) {
            Some(false) => Protection::Authenticated,
            Some(true) | None => Protection::Private,
        }
    }

    fn is_private(&self, volume: VolumeId) -> bool {
        self.volumes.read().get(&volume).copied().unwrap_or(false)
    }
}

impl Inner {
    /// Why a request came on a way on which nothing of its chunk may be said, if it did.
    pub(super) fn judge_privacy(&self, request: &Request<'_>) -> Result<(), WireError> {
        if !self.privacy.any.load(Ordering::Relaxed) || request.peer.is_private() {
            return Ok(());
        }
        let opcode = Opcode::from_code(request.opcode).filter(|op| op.protection() == Protection::Authenticated);
        let Some(opcode) = opcode else { return Ok(()) };
        let Some((disk, pg)) = place(opcode, request)? else { return Ok(()) };
        let known = self.disk_store(disk)?.pg_files().get(pg);
        match known.filter(|record| self.privacy.is_private(record.volume)) {
            None => Ok(()),
            Some(_) => Err(WireError::new(
                ErrorCode::NotServing,
                format!(
                    "the volume of {pg} has private data: it goes through TLS alone, with a key, and {} came on another way; repeat with a map \
                     of now, and with a build of feature level 23 or later",
                    opcode.name()
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::manager::Volume;

    fn map(base_version: u64, volumes: &[(u32, bool, bool)]) -> ClusterMap {
        let volume = |&(id, private, deleted): &(u32, bool, bool)| Volume { id, private, deleted, ..Volume::default() };
        ClusterMap { base_version, volumes: volumes.iter().map(volume).collect(), ..ClusterMap::default() }
    }

    /// What a volume holds would go out where others listen: before its setting is known, or after a map that tells of
    /// something else.
    #[test]
    fn what_is_not_said_to_be_open_goes_out_privately() {
        let privacy = Privacy::default();
        let state = |volume| (privacy.protection(VolumeId(volume)), privacy.is_private(VolumeId(volume)));
        let any = || privacy.any.load(Ordering::Relaxed);
        let (unknown, open, private) =
            ((Protection::Private, false), (Protection::Authenticated, false), (Protection::Private, true));
        assert!(state(1) == unknown && !any());
        privacy.apply(&map(0, &[(1, false, false), (2, true, false)]));
        assert!(state(1) == open && state(2) == private && any());
        privacy.apply(&map(7, &[]));
        assert!(state(2) == private && any());
        privacy.apply(&map(7, &[(1, true, false), (2, false, false)]));
        assert!(state(1) == private && state(2) == open && any());
        privacy.apply(&map(8, &[(1, true, true)]));
        assert!(state(1) == unknown && !any());
        privacy.apply(&map(0, &[(3, true, false)]));
        assert!(state(2) == unknown && state(3) == private && any());
    }
}
