//! A member: one disk's part in one placement group, with what is known of it only in memory, and the fences that every
//! request passes.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_chunk_core::fence::{self, Fence};
use cairn_chunk_core::indices::IndexAllocator;
use cairn_chunk_core::striped;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_format::pg_state::{PgStateMember, PgStateRecord};
use cairn_replica_core::deleted::Deleted;
use cairn_replica_core::reconcile::Now;
use cairn_rpc::Reply;
use cairn_types::{ChunkId, DiskId, Epoch, ErrorCode, MemberState, PgId, Time};
use cairn_wire::data::{ChunkHeader, MemberStamp};
use cairn_wire::error::WireError;
use parking_lot::Mutex;

use super::Inner;
use super::leaver::Ways;
use super::overwrite_memory::OverwriteMemory;
use super::told::Told;
use crate::disk::DiskStore;

/// What a member keeps in memory about its group.
#[derive(Default)]
pub(crate) struct PgRuntime {
    pub(crate) state: Mutex<PgMemory>,
    pub(super) overwrites: Mutex<OverwriteMemory>,
    /// Held while an overwrite gets its number and is passed on; taken before `overwrites`.
    pub(super) overwrite_order: Mutex<()>,
    pub(super) told: Told,
}

/// Everything here belongs to one epoch, except for what is to be looked at, and what was freed.
#[derive(Default)]
pub(crate) struct PgMemory {
    pub(crate) epoch: Epoch,
    /// The member's state in it.
    pub(crate) role: Option<MemberState>,
    /// The member takes writes: it is durably in the epoch; as primary: every receiver is.
    pub(crate) entered: bool,
    pub(crate) allocator: Option<IndexAllocator>,
    /// Requests for indices that wait for a reservation.
    pub(crate) waiting: Vec<(u32, Reply)>,
    pub(crate) reserving: bool,
    /// As syncing member: it was put in the place of another one and was never complete.
    pub(crate) filling: bool,
    /// As a disk that joins an erasure group: the member in whose place.
    pub(super) leaver: Option<PgStateMember>,
    /// How fast what that has comes.
    pub(super) ways: Ways,
    /// The manager said that no disk that was a member may still have something of the group that is needed; until it
    /// has said so under this epoch, one may have.
    pub(crate) no_formers: bool,
    /// As syncing member: verified equal to the primary.
    pub(crate) caught_up: bool,
    /// As serving member: it caught up or has started, and has not yet looked once more at what others have.
    pub(crate) to_look: bool,
    /// That is because its process has started.
    pub(crate) started_anew: bool,
    /// As syncing member: what the others lack, so that it cannot go on.
    pub(crate) waits_for: String,
    /// Since when.
    pub(crate) waits_since: Option<Time>,
    /// A task of the epoch was started.
    pub(crate) started: bool,
    deleted: Deleted,
    /// Chunks that are being freed, and by how many requests.
    freeing: BTreeMap<u32, u32>,
    /// To be reported with the next heartbeat.
    pub(crate) changed: bool,
}

impl PgMemory {
    /// Moves on to an epoch; `false` when it is there already.
    pub(crate) fn move_to(&mut self, epoch: Epoch) -> bool {
        if self.epoch == epoch {
            return false;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let Self { to_look, started_anew, .. } = *self;
        let (mut deleted, freeing) = (std::mem::take(&mut self.deleted), std::mem::take(&mut self.freeing));
        deleted.next_epoch();
        *self = Self { epoch, changed: true, to_look, started_anew, deleted, freeing, ..Self::default() };
        let error = || WireError::stale_epoch(epoch, "the placement group moved on; refresh the cluster map");
        waiting.into_iter().for_each(|(_, reply)| reply.err(error()));
        true
    }

    /// A chunk is gone, all of which was freed up to `length`: a late repeat of its first append must not make it
    /// again, nor a copy of somebody who has not heard of it.
    pub(crate) fn note_deleted(&mut self, index: u32, length: u64) {
        self.deleted.note(index, length);
    }

    /// What was freed in this epoch and before.
    pub(crate) fn deleted(&self) -> &Deleted {
        &self.deleted
    }

    pub(crate) fn begin_free(&mut self, index: u32) {
        *self.freeing.entry(index).or_default() += 1;
    }

    pub(crate) fn end_free(&mut self, index: u32) {
        if let Some(count) = self.freeing.get_mut(&index) {
            *count -= 1;
            if *count == 0 {
                self.freeing.remove(&index);
            }
        }
    }

    /// What is known of frees of a chunk, for [`cairn_replica_core::reconcile`].
    pub(super) fn now(&self, index: u32) -> Now {
        let (freed_up_to, freeing) = (self.deleted.freed_up_to(index), self.freeing.contains_key(&index));
        Now { skipped: OverwriteNumber::NONE, freed_up_to, freeing }
    }
}

/// The answer where a disk has no part in a group, and to whom it is none of his.
pub(super) fn unknown_pg(disk: DiskId, pg: PgId) -> WireError {
    WireError::new(ErrorCode::UnknownPg, format!("{disk} knows nothing of {pg}; this node asks the manager, repeat"))
}

/// A member that passed the first fences.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) disk: DiskId,
    pub(crate) store: Arc<DiskStore>,
    pub(crate) pg: Arc<PgStateRecord>,
    /// What was told, is newer and not on the disk.
    pub(crate) told: Option<Arc<PgStateRecord>>,
    pub(crate) runtime: Arc<PgRuntime>,
}

impl Inner {
    /// The store of a disk of this node.
    pub(crate) fn disk_store(&self, disk: DiskId) -> Result<Arc<DiskStore>, WireError> {
        let slot = self.slot(disk).ok_or_else(|| {
            WireError::new(ErrorCode::NotServing, format!("{disk} is not on this node; refresh the cluster map"))
        })?;
        let store = slot.store().ok_or_else(|| {
            let problem = slot.problem().unwrap_or_else(|| format!("{disk} is not open"));
            WireError::new(ErrorCode::DiskFailed, problem)
        })?;
        store.check().map_err(|error| error.to_wire())?;
        Ok(store)
    }

    /// The member that a request names; `epoch` 0 is not checked.
    pub(crate) fn member(&self, disk: u32, pg: u32, epoch: u64) -> Result<Member, WireError> {
        let (disk, pg) = (DiskId(disk), PgId(pg));
        let store = self.disk_store(disk)?;
        let known = self.runtimes.lock().get(&(disk, pg)).cloned();
        let runtime = match known {
            Some(runtime) => runtime,
            // Else whoever names any numbers would fill the memory.
            None if store.pg_files().get(pg).is_none() => {
                self.poke();
                return Err(unknown_pg(disk, pg));
            }
            None => self.runtime(disk, pg),
        };
        // Before the other one: what is not among what was told any more is on the disk.
        let told = runtime.told.record();
        let Some(record) = store.pg_files().get(pg) else {
            self.poke();
            return Err(unknown_pg(disk, pg));
        };
        let told = told.filter(|told| told.epoch > record.epoch);
        if epoch != 0 {
            let asked = Epoch(epoch);
            fence::check_epoch(&record, asked).map_err(|fence| self.refuse(fence))?;
            if let Some(told) = &told {
                return Err(self.refuse(Fence::Stale { pg, current: told.epoch, asked }));
            }
        }
        Ok(Member { disk, store, pg: record, told, runtime })
    }

    /// The member that a chunk request names. `any_epoch`: epoch 0 is not checked.
    pub(crate) fn chunk_member(
        &self,
        header: Option<&ChunkHeader>,
        any_epoch: bool,
    ) -> Result<(Member, ChunkId), WireError> {
        let header = header.ok_or_else(|| bad_request("the request names no chunk"))?;
        if header.epoch == 0 && !any_epoch {
            return Err(bad_request("the request names no epoch"));
        }
        let member = self.member(header.disk, header.pg, header.epoch)?;
        Ok((member, ChunkId { pg: PgId(header.pg), index: header.index }))
    }

    pub(crate) fn runtime(&self, disk: DiskId, pg: PgId) -> Arc<PgRuntime> {
        self.runtimes.lock().entry((disk, pg)).or_default().clone()
    }

    /// What a fence means on the wire. A member that is behind asks the manager.
    pub(crate) fn refuse(&self, fence: Fence) -> WireError {
        let text = fence.to_string();
        match fence {
            Fence::Stale { current, .. } => WireError::stale_epoch(current, text),
            Fence::Behind { current, .. } => {
                self.poke();
                WireError::new(ErrorCode::NotServing, text).in_epoch(current)
            }
            Fence::WrongChain { epoch, .. } => WireError::new(ErrorCode::NotServing, text).in_epoch(epoch),
            Fence::NotMember { .. } | Fence::NotServing { .. } => WireError::new(ErrorCode::NotServing, text),
            Fence::NotPrimary { epoch, .. } => WireError::new(ErrorCode::NotPrimary, text).in_epoch(epoch),
            Fence::Comparing { .. } => WireError::new(ErrorCode::Overloaded, text),
            Fence::BelowMinimum { .. } => WireError::new(ErrorCode::BelowMinimum, text),
            Fence::Retired { .. } => WireError::new(ErrorCode::PgFull, text),
            Fence::Over { .. } => WireError::new(ErrorCode::ChunkSealed, text),
            Fence::OtherSession { .. } | Fence::NoChain { .. } => WireError::new(ErrorCode::BadRequest, text),
        }
    }

    pub(crate) fn stamp(&self, disk: DiskId) -> MemberStamp {
        MemberStamp { disk: disk.get(), incarnation: self.incarnation().get() }
    }
}

impl Member {
    /// The shard that it holds; 0 in replicated groups.
    pub(crate) fn shard(&self) -> u8 {
        striped::shard_of(&self.pg, self.disk).unwrap_or(0)
    }

    /// Refuses who means another shard (0: whichever; else the shard and one): it goes by members of before, and
    /// checksums would match although the bytes are another shard's.
    pub(crate) fn check_place(&self, asked: u32) -> Result<(), WireError> {
        let place = u32::from(self.shard());
        if asked == 0 || asked == place + 1 || !self.is_striped() {
            return Ok(());
        }
        let (disk, pg, epoch) = (self.disk, self.pg.pg, self.pg.epoch);
        let text = format!("{disk} has shard {place} of {pg} in {epoch}, not {}; refresh the cluster map", asked - 1);
        Err(WireError::new(ErrorCode::NotServing, text).in_epoch(epoch))
    }

    /// Refuses a chunk of an erasure group that is another shard than the member's place says: it is from a time when
    /// the disk was another member, and its checksums match although its bytes are others.
    pub(crate) fn check_shard(&self, id: ChunkId) -> Result<(), WireError> {
        if !self.is_striped() {
            return Ok(());
        }
        let wanted = self.shard();
        let Some(found) = self.store.chunk(id).map(|chunk| chunk.shard()).filter(|found| *found != wanted) else {
            return Ok(());
        };
        let text = format!(
            "{id} on {} is shard {found}, but the disk is member {wanted} of the group; it is not read",
            self.disk
        );
        Err(WireError::new(ErrorCode::Missing, text))
    }

    /// Refuses while the disk stands still.
    pub(crate) fn check_moving(&self) -> Result<(), WireError> {
        self.store.check_moving().map_err(|error| error.to_wire())
    }

    /// Whether the members hold shards.
    pub(crate) fn is_striped(&self) -> bool {
        !self.pg.scheme.is_replicated()
    }

    /// Whether the disk is still in the epoch: an answer that was begun in it must not be given after it.
    pub(crate) fn check_still_in(store: &DiskStore, pg: &PgStateRecord) -> Result<(), WireError> {
        match store.pg_files().get(pg.pg) {
            Some(now) if now.epoch != pg.epoch => {
                let text = format!("{} moved on to {} before this was done; refresh the cluster map", pg.pg, now.epoch);
                Err(WireError::stale_epoch(now.epoch, text))
            }
            _ => Ok(()),
        }
    }

    /// Refuses new data until all receivers are durably in the epoch.
    pub(crate) fn check_entered(&self) -> Result<(), WireError> {
        let state = self.runtime.state.lock();
        if state.epoch == self.pg.epoch && state.entered {
            return Ok(());
        }
        let text = format!("{} is entering {}; repeat in a moment", self.pg.pg, self.pg.epoch);
        Err(WireError::new(ErrorCode::Overloaded, text))
    }
}

pub(crate) fn bad_request(text: impl Into<String>) -> WireError {
    WireError::new(ErrorCode::BadRequest, text)
}
