//! The holder's side of a delegation: a namespace that has its top and what was made below, and nothing else.
//!
//! Invariants: it is changed by [`Namespace::run_own_item`] alone; after item k it is what the partition has of the
//! delegation after item k; inodes that the delegation does not cover are refused as if another client led them. It
//! gives no blocks back: what it finds free is the partition's to free. Not here: what waits to be stored, and when it
//! is sent (the client).
use crate::dead::Budget;
use crate::delegation::DELEGATION_LEVEL;
use crate::encoding::{DelegatedIds, DelegationRecord, Inode};
use crate::error::{OpError, Result};
use crate::inode_table::NO_NUMBERS;
use crate::key::{self, Kind};
use crate::namespace::Namespace;
use crate::run_item::{Item, NO_DELEGATION, NO_ITEM};
use cairn_types::{ErrorCode, FEATURE_LEVEL, PartitionId, VolumeId, WallTime};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::Delegation;
use std::ops::RangeInclusive;

/// Of dead inodes, at a time.
const BUDGET: Budget = Budget { inodes: 256, extents: 4096 };

const NOT_SOUND: OpError =
    OpError::new(ErrorCode::BadRequest, "what a partition says of a delegation is not what any version says");
const TOO_NEW: OpError = OpError::new(
    ErrorCode::UnknownOperation,
    "the partition has a newer feature level than this program: upgrade it, or work without delegations",
);

impl Namespace {
    /// The part of a partition that a session leads.
    pub fn of_delegation(
        volume: VolumeId,
        partition: PartitionId,
        session: u64,
        told: &Delegation,
    ) -> std::result::Result<Namespace, WireError> {
        Self::from_told(volume, partition, session, told).map_err(OpError::to_wire)
    }

    fn from_told(volume: VolumeId, partition: PartitionId, session: u64, told: &Delegation) -> Result<Namespace> {
        if told.level > FEATURE_LEVEL {
            return Err(TOO_NEW);
        }
        let top = Inode::decode(&told.inode).ok_or(NOT_SOUND)?;
        let level = u16::try_from(told.level).ok().filter(|level| *level >= DELEGATION_LEVEL).ok_or(NOT_SOUND)?;
        let (first, last) = (told.inode_first, told.inode_last);
        let is_range = first <= told.number && told.number < told.last && told.last <= last && told.last < u64::MAX;
        if !is_range || !top.is_dir() || top.nlink == 0 || top.size > 0 || session == 0 || told.number == 0 {
            return Err(NOT_SOUND);
        }
        let mut part = Namespace::empty(volume.0, partition.0, first, last);
        (part.inode_next, part.level, part.time) = (told.last + 1, level, told.time_ns);
        part.put_inode(told.number, &top);
        part.counters.inodes = 1;
        part.counters.directories = 1;
        part.sessions.make_live(session);
        let ids = DelegatedIds::new(told.number..=told.last);
        let record = DelegationRecord { session, token: told.token, level, next: 0, time: told.time_ns, ids };
        part.delegations.put(told.number, record);
        part.store_delegation(told.number);
        part.delegations.act(told.number);
        Ok(part)
    }

    /// Executes an operation in it; the answer's bytes are appended to `out`. An error means that nothing was changed,
    /// and that it is no item: it is the answer, unless it [is for the partition](Self::is_for_the_partition) or says
    /// that there are [no numbers](Self::lacks_numbers).
    pub fn run_own_item(
        &mut self,
        opcode: Opcode,
        time: WallTime,
        request: &[u8],
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), WireError> {
        let number = self.delegations.acting().ok_or(NO_DELEGATION).map_err(OpError::to_wire)?;
        self.run_item(number, &Item { opcode, time, request }, out).map_err(OpError::to_wire)
    }

    /// Whether an error means that the partition is to be asked when the delegation has ended.
    pub fn is_for_the_partition(error: &WireError) -> bool {
        let all = [NO_ITEM, OpError::DELEGATED, OpError::FOREIGN, OpError::ELSEWHERE];
        all.iter().any(|known| known.code == error.code && known.text == error.message)
    }

    /// Whether an error means that there are no numbers left for new inodes, until a batch has brought some.
    pub fn lacks_numbers(error: &WireError) -> bool {
        (error.code, error.message.as_str()) == (NO_NUMBERS.code, NO_NUMBERS.text)
    }

    fn own_record(&self) -> Option<&DelegationRecord> {
        self.delegations.get(self.delegations.acting()?)
    }

    /// Items that were executed here.
    pub fn own_items(&self) -> u64 {
        self.own_record().map_or(0, |record| record.next)
    }

    /// Numbers that are left for new inodes.
    pub fn own_ids_left(&self) -> u64 {
        self.own_record().map_or(0, |record| record.ids.left())
    }

    /// The partition has given more numbers. False: they are none that it could give.
    pub fn add_own_ids(&mut self, ids: RangeInclusive<u64>) -> bool {
        let Some(number) = self.delegations.acting() else { return false };
        let is_own = self.is_own(*ids.start()) && self.is_own(*ids.end());
        let end = ids.end().saturating_add(1);
        let Some(record) = self.delegations.get_mut(number).filter(|_| is_own) else { return false };
        if !record.ids.extend(ids) {
            return false;
        }
        let record = record.clone();
        self.delegations.put(number, record);
        self.inode_next = end;
        true
    }

    /// Nothing is answered from it any more, and it takes no memory.
    pub fn forget_all(&mut self) {
        *self = Self::empty(self.volume, self.partition, self.inode_first, self.inode_last);
    }

    /// Forgets what only the partition has work with; false: there is more.
    pub fn tidy_own(&mut self) -> bool {
        self.take_grown();
        self.huge_directories();
        // What cannot be read is found by the partition, too.
        let _ = self.reclaim(BUDGET, 0);
        let prefix = key::prefix(0, Kind::FreeRecord);
        self.counters.free_records -= self.tree.remove_prefix(prefix.as_bytes());
        self.counters.dead_inodes == 0
    }
}
