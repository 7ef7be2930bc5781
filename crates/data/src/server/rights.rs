//! What keys of clients may do here: the groups of their volumes, and nothing else.
//!
//! Invariants: asked before anything is done for a client whose key has rights; a group whose volume is not known here
//! is nobody's. That a volume is not the key's is told as if the disk knew nothing of the group. Not here: who may ask
//! for which operation at all (`wire::audience`), modes and owners of files (the volume's partitions).

use std::collections::BTreeMap;

use cairn_rpc::Request;
use cairn_types::{DiskId, ErrorCode, PgId, VolumeId};
use cairn_wire::Opcode;
use cairn_wire::audience::Reach;
use cairn_wire::data::{AllocateRequest, ChunkHeader, ListChunksRequest};
use cairn_wire::error::WireError;
use cairn_wire::manager::ClusterMap;
use cairn_wire::rights::{Access, Rights};
use parking_lot::RwLock;

use super::Inner;
use super::member::unknown_pg;

/// Names of volumes, as the manager told them.
#[derive(Default)]
pub(super) struct VolumeNames(RwLock<BTreeMap<VolumeId, String>>);

impl VolumeNames {
    pub(super) fn apply(&self, change: &ClusterMap) {
        let mut names = self.0.write();
        if change.base_version == 0 {
            names.clear();
        }
        for volume in &change.volumes {
            match volume.deleted {
                true => drop(names.remove(&VolumeId(volume.id))),
                false => drop(names.insert(VolumeId(volume.id), volume.name.clone())),
            }
        }
    }

    /// What the rights allow in a volume; an error where nobody has said what it is called.
    fn allowed(&self, rights: &Rights, volume: VolumeId) -> Option<Option<Access>> {
        // Names are not needed where all are the same.
        rights.of("").map(Some).or_else(|| self.0.read().get(&volume).map(|name| rights.of(name)))
    }
}

/// The part that all requests about a chunk begin with.
#[derive(Clone, PartialEq, prost::Message)]
struct OfChunk {
    #[prost(message, optional, tag = "1")]
    chunk: Option<ChunkHeader>,
}

/// The disk and the group that a request of a client is about; `None`: none.
pub(super) fn place(opcode: Opcode, request: &Request<'_>) -> Result<Option<(DiskId, PgId)>, WireError> {
    let (disk, pg) = match opcode {
        Opcode::Allocate => request.decode().map(|asked: AllocateRequest| (asked.disk, asked.pg))?,
        Opcode::ListChunks => request.decode().map(|asked: ListChunksRequest| (asked.disk, asked.pg))?,
        // What they tell is cut down, or is of no volume.
        Opcode::Ping | Opcode::BadBlocks => return Ok(None),
        _ => {
            let chunk = request.decode::<OfChunk>()?.chunk;
            let text = "the request names no chunk";
            chunk.map(|chunk| (chunk.disk, chunk.pg)).ok_or_else(|| WireError::new(ErrorCode::BadRequest, text))?
        }
    };
    Ok(Some((DiskId(disk), PgId(pg))))
}

impl Inner {
    /// Why a request is not for the holder of a key with these rights, if it is not.
    pub(super) fn judge_rights(&self, holder: &str, rights: &Rights, request: &Request<'_>) -> Result<(), WireError> {
        let Some(opcode) = Opcode::from_code(request.opcode) else { return Ok(()) };
        let Some((disk, pg)) = place(opcode, request)? else { return Ok(()) };
        let known = self.disk_store(disk)?.pg_files().get(pg);
        let Some(volume) = known.map(|record| record.volume) else {
            self.poke();
            return Err(unknown_pg(disk, pg));
        };
        let Some(access) = self.volume_names.allowed(rights, volume) else {
            // A volume that has just been made.
            self.poke();
            let text = format!("{disk} has not heard yet which volume {pg} belongs to; repeat");
            return Err(WireError::new(ErrorCode::Overloaded, text));
        };
        let changes = opcode.audience().reach() != Some(Reach::Read);
        match access {
            None => Err(unknown_pg(disk, pg)),
            Some(Access::Read) if changes => Err(read_only(holder, opcode)),
            Some(_) => Ok(()),
        }
    }

    /// Whether somebody may hear of a group.
    pub(super) fn may_hear_of(&self, limits: Option<(&str, &Rights)>, disk: DiskId, pg: PgId) -> bool {
        let Some((_, rights)) = limits else { return true };
        let store = self.slot(disk).and_then(|slot| slot.store());
        let record = store.and_then(|store| store.pg_files().get(pg));
        record.is_some_and(|record| self.volume_names.allowed(rights, record.volume).flatten().is_some())
    }
}

fn read_only(holder: &str, opcode: Opcode) -> WireError {
    let text = format!(
        "{} changes a volume that the key of {holder} may only read; who runs the cluster makes another one with cairn key client --volume \
         VOLUME:rw",
        opcode.name()
    );
    WireError::new(ErrorCode::KeyForbids, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::manager::Volume;
    use cairn_wire::rights::Users;

    fn map(base_version: u64, volumes: &[(u32, &str, bool)]) -> ClusterMap {
        let volume = |(id, name, deleted): &(u32, &str, bool)| Volume {
            id: *id,
            name: (*name).to_owned(),
            deleted: *deleted,
            ..Volume::default()
        };
        ClusterMap { base_version, volumes: volumes.iter().map(volume).collect(), ..ClusterMap::default() }
    }

    /// A key would open a volume that is gone, or that has not been named to this node, under a name that it was given
    /// for.
    #[test]
    fn names_are_those_of_the_map() {
        let rights = Rights::in_volumes(vec![("docs".to_owned(), Access::Read)], Users::NoRoot).expect("rights");
        let names = VolumeNames::default();
        assert_eq!(names.allowed(&rights, VolumeId(1)), None, "nothing was told yet");
        names.apply(&map(0, &[(1, "docs", false), (2, "other", false)]));
        assert_eq!(names.allowed(&rights, VolumeId(1)), Some(Some(Access::Read)));
        assert_eq!(names.allowed(&rights, VolumeId(2)), Some(None));
        // The name goes to another volume.
        names.apply(&map(5, &[(1, "docs", true), (3, "docs", false)]));
        assert_eq!(names.allowed(&rights, VolumeId(1)), None);
        assert_eq!(names.allowed(&rights, VolumeId(3)), Some(Some(Access::Read)));
        names.apply(&map(0, &[(2, "other", false)]));
        assert_eq!(names.allowed(&rights, VolumeId(3)), None, "a whole map has all there are");
        let all = Rights::in_every_volume(Access::Write, Users::NoRoot);
        assert_eq!(names.allowed(&all, VolumeId(9)), Some(Some(Access::Write)));
    }
}
