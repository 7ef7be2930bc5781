//! The members of a group in one epoch, as every part of the core looks at them.

use cairn_chunk_core::fence;
use cairn_format::pg_state::PgStateRecord;
use cairn_types::{DiskId, Epoch};

use crate::role::Role;

/// One epoch's members, seen by one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roster {
    /// This member.
    pub me: DiskId,
    /// Its role.
    pub role: Role,
    /// The epoch.
    pub epoch: Epoch,
    /// All, each in the place of its shard.
    pub members: Vec<DiskId>,
    /// Who serves, the leader first.
    pub serving: Vec<DiskId>,
    /// All others that take writes, who serves first: the chain of a leader.
    pub receivers: Vec<DiskId>,
    /// Shards of which any k make the others; `None`: copies.
    pub k: Option<usize>,
    /// Members that have to serve for writes.
    pub write_minimum: usize,
    /// All that held everything are older copies of themselves.
    pub comparing: bool,
    /// They were, in this epoch or before.
    pub put_together: bool,
    /// Nothing new is taken.
    pub retired: bool,
}

impl Roster {
    /// Of a state.
    pub fn of(pg: &PgStateRecord, me: DiskId, joins: bool) -> Self {
        let serving: Vec<DiskId> = fence::serving(pg).collect();
        let receivers = serving.iter().copied().chain(fence::syncing(pg)).filter(|disk| *disk != me).collect();
        let shards = !pg.scheme.is_replicated();
        Self {
            me,
            role: Role::of(pg, me, joins),
            epoch: pg.epoch,
            members: pg.members.iter().map(|member| member.disk).collect(),
            serving,
            receivers,
            k: shards.then(|| pg.scheme.read_minimum()),
            write_minimum: pg.scheme.write_minimum(),
            comparing: pg.comparing,
            put_together: pg.older_epoch != Epoch(0),
            retired: pg.retired,
        }
    }

    /// This member's shard.
    pub fn shard(&self) -> u8 {
        let place = self.members.iter().position(|member| *member == self.me).filter(|_| self.k.is_some());
        u8::try_from(place.unwrap_or(0)).unwrap_or(u8::MAX)
    }

    /// Who serves beside this one.
    pub fn others(&self) -> impl Iterator<Item = DiskId> + '_ {
        self.serving.iter().copied().filter(|disk| *disk != self.me)
    }

    /// Whether a member serves.
    pub fn serves(&self, disk: DiskId) -> bool {
        self.serving.contains(&disk)
    }
}
