//! Snapshots of a volume: which there are; taking, renaming and deleting them.
//!
//! Taking one writes down its number and which inode is made next; what changes from then on leaves its image
//! (`layers`). Deleting one marks it; `ReclaimBatch` then works off what it has (`kept`).
//!
//! Invariants: no block that a snapshot names is overwritten in place: while there is one no overwrite lease is given,
//! and none is taken while there is a lease, or until one that lapsed is too long ago for its holder's requests.
//! Numbers of snapshots ascend and are never given twice. Not here: which blocks they keep (`kept`); reading at one
//! (`view`); taking one of several partitions (`cut_across`).
use crate::at_snapshot::At;
use crate::cut_across::Completing;
use crate::encoding::{KeptRecord, SnapshotRecord, SnapshotState};
use crate::error::{OpError, Result};
use crate::key::{self, INODE_BITS, Kind};
use crate::layers::Layer;
use crate::message::request;
use crate::message::writer::{put_bytes, put_message, put_number};
use crate::namespace::{Context, Namespace};
use crate::schedule::Rule;
use crate::view::{check_new_name, is_apart};
use cairn_types::{ErrorCode, InodeId};
use cairn_wire::Opcode;
use std::collections::{BTreeMap, BTreeSet};

/// Feature level from which on there are snapshots.
pub const SNAPSHOT_LEVEL: u16 = 10;
/// Feature level from which on there are snapshots and schedules of directories.
pub const DIRECTORY_LEVEL: u16 = 18;
/// Snapshots of a volume, with those that are being deleted.
pub const SNAPSHOTS_MAX: usize = 1000;
/// Slots are 1 to this one; one above it is no snapshot's.
pub(crate) const SLOT_MAX: u16 = 0x7ffe;
/// How long no overwrite lease is given to let one be taken.
const QUIET_NS: u64 = 30_000_000_000;
/// How long ago the last overwrite lease must have lapsed. Its holder stops before it lapses, by a clock that goes on
/// while the machine sleeps, and no request of it lives as long as that.
pub const LAPSED_NS: u64 = 60_000_000_000;

pub(crate) const TOO_MANY_INODES: OpError = OpError::new(
    ErrorCode::NotSupported,
    "a partition that has given out numbers of inodes with more than 48 bits has no snapshots; copy its files to a new volume",
);
pub(crate) const NOT_ALLOWED: OpError =
    OpError::new(ErrorCode::NotPermitted, "only root and the owner of the volume's root directory manage snapshots");
pub(crate) const MANY: OpError = OpError::new(
    ErrorCode::NoSpace,
    "a volume has at most 1000 snapshots, with those that are being deleted; delete some",
);
pub(crate) const NO_SUCH: OpError = OpError::new(
    ErrorCode::NotFound,
    "the volume has no snapshot of this name; `cairn fs snapshot ls` shows which it has",
);
pub(crate) const NAME_TAKEN: OpError = OpError::new(
    ErrorCode::Exists,
    "the volume or the directory has a snapshot of this name, and a directory shows both; delete or rename it, or take another name",
);
pub(crate) const NOT_FOR_DIRECTORIES: OpError = OpError::new(
    ErrorCode::UnknownOperation,
    "snapshots of directories need feature level 18 of all meta nodes (`cairn admin status` shows it)",
);
pub(crate) const NO_DIRECTORY: OpError =
    OpError::new(ErrorCode::NotFound, "the directory that the snapshot is to be of is not there any more");

/// What is known of a volume's snapshots.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    pub(crate) list: BTreeMap<u64, SnapshotRecord>,
    /// Blocks that are kept under a snapshot's number. Counted when a checkpoint is loaded.
    pub(crate) kept: BTreeMap<u64, u64>,
    pub state: SnapshotState,
    /// Files of which a session has the overwrite lease. Found again when a checkpoint is loaded.
    pub leases: BTreeSet<u64>,
    /// When some are taken by themselves, by the directory (0: of the volume), in the order of periods.
    pub schedules: BTreeMap<u64, Vec<Rule>>,
    /// What became of a cut over several partitions, while it is applied. No state.
    pub completing: Option<Completing>,
}

/// Why none was taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waits {
    /// Files that somebody overwrites in place, and directories that somebody leads.
    pub leases: u64,
    /// How long yet until nothing can arrive of a client that did so and fell silent.
    pub lapsed_ns: u64,
}

/// A snapshot, for the server around.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    pub number: u64,
    pub name: Vec<u8>,
    pub created_ns: u64,
    pub deleting: bool,
    /// Not known yet to be cut in all partitions.
    pub pending: bool,
    /// The schedule took it, by the rule of this code; 0: somebody did.
    pub rule: u8,
    /// Inode of the directory in which it is shown; 0: in all.
    pub directory: u64,
    /// Blocks that no file names any more and no newer snapshot.
    pub kept_blocks: u64,
}

impl Snapshots {
    /// Those for which images are kept, oldest first.
    fn live(&self) -> impl DoubleEndedIterator<Item = (u64, &SnapshotRecord)> {
        self.list.iter().filter(|(_, record)| !record.deleting).map(|(number, record)| (*number, record))
    }

    /// Of these, those of which is known that all partitions have them.
    fn complete(&self) -> impl DoubleEndedIterator<Item = (u64, &SnapshotRecord)> {
        self.live().filter(|(_, record)| !record.pending)
    }

    pub fn newest(&self) -> Option<Layer> {
        self.up_to(u64::MAX)
    }

    /// The newest one with a number that is not above another.
    pub fn up_to(&self, number: u64) -> Option<Layer> {
        let mut older = self.live().filter(|(other, _)| *other <= number);
        older.next_back().map(|(number, record)| Layer { number, inode_next: record.inode_next })
    }

    /// Whether one of this name may be there in a directory, as far as is known here.
    pub fn may_be(&self, directory: u64, name: &[u8]) -> bool {
        self.live().any(|(_, record)| record.pending && record.name == name && is_shown(record, directory))
    }

    /// The newest one that is older than another.
    pub(crate) fn before(&self, number: u64) -> Option<Layer> {
        self.up_to(number.checked_sub(1)?)
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How one that a directory shows is read. Of two of one name there is none in any directory.
    pub fn at(&self, directory: u64, name: &[u8]) -> Option<At> {
        self.complete().rfind(|(_, record)| record.name == name && is_shown(record, directory)).map(at)
    }

    /// Whoever has a slot has it from a partition that knows that all have the snapshot.
    pub fn at_slot(&self, slot: u64) -> Option<At> {
        self.live().rfind(|(_, record)| u64::from(record.slot) == slot).map(at)
    }

    pub fn at_number(&self, number: u64) -> Option<At> {
        self.live().find(|(other, _)| *other == number).map(at)
    }

    /// Numbers from one on and below another, also of those that are being deleted, whose images are still there; the
    /// newest first.
    pub fn numbers(&self, from: u64, below: u64) -> impl Iterator<Item = u64> {
        self.list.range(from..below).rev().map(|(number, _)| *number)
    }

    pub fn created_ns(&self, number: u64) -> u64 {
        self.list.get(&number).map_or(0, |record| record.created_ns)
    }

    /// Names that a directory shows and how they are read, in the order of names.
    pub fn by_name(&self, directory: u64) -> BTreeMap<&[u8], At> {
        let shown = self.complete().filter(|(_, record)| is_shown(record, directory));
        shown.map(|(number, record)| (record.name.as_slice(), at((number, record)))).collect()
    }

    pub fn count(&self, directory: u64) -> u64 {
        self.complete().filter(|(_, record)| is_shown(record, directory)).count() as u64
    }

    /// Those that a rule of a schedule took and that are there, oldest first.
    pub fn taken_by(&self, directory: u64, rule: u8) -> Vec<u64> {
        let is_of = |record: &SnapshotRecord| (record.directory, record.rule) == (directory, rule);
        self.complete().filter(|(_, record)| is_of(record)).map(|(number, _)| number).collect()
    }

    /// One of the volume, by its name; or any by its number.
    fn find(&self, name: &[u8], number: u64) -> Option<u64> {
        let is_it = |of: u64, record: &SnapshotRecord| match number {
            0 => record.directory == 0 && record.name == name,
            number => of == number,
        };
        self.complete().find(|(of, record)| is_it(*of, record)).map(|(number, _)| number)
    }

    /// One that some directory would show under the same name as a new one of a directory, or of the volume.
    pub(crate) fn namesake(&self, directory: u64, name: &[u8]) -> Option<u64> {
        let meets = |record: &SnapshotRecord| directory == 0 || is_shown(record, directory);
        self.complete().find(|(_, record)| record.name == name && meets(record)).map(|(number, _)| number)
    }

    pub(crate) fn free_slot(&self) -> Option<u16> {
        let used: BTreeSet<u16> = self.list.values().map(|record| record.slot).collect();
        let mut slot = self.state.last_slot;
        for _ in 0..SLOT_MAX {
            slot = slot % SLOT_MAX + 1;
            if !used.contains(&slot) {
                return Some(slot);
            }
        }
        None
    }
}

/// One of the volume is shown in all directories, one of a directory in that one.
const fn is_shown(record: &SnapshotRecord, directory: u64) -> bool {
    record.directory == 0 || record.directory == directory
}

fn at((number, record): (u64, &SnapshotRecord)) -> At {
    let (inode_next, cut, directory) = (record.inode_next, record.cut, record.directory);
    At { number, inode_next, outward: u64::from(record.slot) << INODE_BITS, cut, directory }
}

fn put_rules(out: &mut Vec<u8>, field: u32, rules: &[Rule]) {
    for rule in rules {
        put_message(out, field, |out| {
            put_number(out, 1, rule.period as u64);
            put_number(out, 2, u64::from(rule.keep));
        });
    }
}

impl Namespace {
    pub(crate) fn create_snapshot(&mut self, context: &Context<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::CreateSnapshot::decode(bytes)?;
        self.check_snapshots(context)?;
        let directory = self.directory_of_snapshots(request.directory)?;
        if self.is_one_of_several() {
            return self.end_creation(directory, request.name, out);
        }
        match self.take_snapshot(directory, request.name.to_vec(), 0)? {
            Ok(number) => put_number(out, 1, number),
            Err(waits) => {
                put_number(out, 2, waits.leases);
                put_number(out, 3, waits.lapsed_ns.div_ceil(1_000_000));
            }
        }
        Ok(())
    }

    /// A directory of which snapshots are asked for; 0: the volume.
    pub(crate) fn directory_of_snapshots(&self, directory: u64) -> Result<u64> {
        if directory == 0 || directory == InodeId::ROOT.0 {
            return Ok(0);
        }
        if self.level < DIRECTORY_LEVEL {
            return Err(NOT_FOR_DIRECTORIES);
        }
        if is_apart(directory) {
            let text = "a directory as it was has no snapshots of its own; name the directory of now";
            return Err(OpError::new(ErrorCode::InvalidArgument, text));
        }
        if self.is_gone_directory(directory) { Err(NO_DIRECTORY) } else { Ok(directory) }
    }

    /// Whether it is certain here that there is no such directory.
    pub(crate) fn is_gone_directory(&self, directory: u64) -> bool {
        match self.stored_inode(directory) {
            Ok(inode) => !inode.is_dir() || inode.nlink == 0,
            Err(_) => directory != 0 && self.is_own(directory),
        }
    }

    /// With inode numbers of which snapshots need the upper bits.
    pub(crate) const fn has_no_snapshots(&self) -> bool {
        self.inode_next == 0 || self.inode_next >> INODE_BITS != 0
    }

    /// Whether one can be taken under this name.
    pub(crate) fn check_snapshot_name(&self, directory: u64, name: &[u8]) -> Result<()> {
        if self.has_no_snapshots() {
            return Err(TOO_MANY_INODES);
        }
        check_new_name(self, name)?;
        if self.snapshots.namesake(directory, name).is_some() {
            return Err(NAME_TAKEN);
        }
        if self.snapshots.list.len() >= SNAPSHOTS_MAX { Err(MANY) } else { Ok(()) }
    }

    /// What keeps one from being taken: blocks that somebody may overwrite in place, and what is not stored here yet.
    pub(crate) fn waits(&self) -> Option<Waits> {
        let quiet_from = match self.snapshots.state.lapsed_ns {
            0 => 0,
            lapsed => lapsed.saturating_add(LAPSED_NS),
        };
        // What is made with numbers that were given before it would be taken for what was there.
        let leases = self.snapshots.leases.len() as u64 + self.delegation_count();
        let now = self.time;
        (leases > 0 || now < quiet_from).then(|| Waits { leases, lapsed_ns: quiet_from.saturating_sub(now) })
    }

    /// Whoever overwrites files in place, or leads directories, is told to stop, and nobody begins to for a while.
    pub(crate) fn be_quiet(&mut self) {
        self.give_no_leases();
        self.want_all_leases();
        self.delegations.want_all();
    }

    /// For a while.
    pub(crate) fn give_no_leases(&mut self) {
        let until = self.time.saturating_add(QUIET_NS);
        self.change_snapshots(|state| state.no_leases_until_ns = until);
    }

    /// Takes one, or says what is in the way; who overwrites files in place is told to stop then. `directory`: 0 for
    /// the volume. `rule`: of the schedule, else 0.
    pub(crate) fn take_snapshot(
        &mut self,
        directory: u64,
        name: Vec<u8>,
        rule: u8,
    ) -> Result<std::result::Result<u64, Waits>> {
        self.check_snapshot_name(directory, &name)?;
        if let Some(waits) = self.waits() {
            self.be_quiet();
            return Ok(Err(waits));
        }
        let now = self.time;
        let slot = self.snapshots.free_slot().ok_or(MANY)?;
        let (number, inode_next) = (self.snapshots.state.last + 1, self.inode_next);
        let (pending, cut, deleting) = (false, 0, false);
        self.put_snapshot(
            number,
            SnapshotRecord { slot, created_ns: now, inode_next, deleting, rule, pending, cut, directory, name },
        );
        self.change_snapshots(|state| {
            (state.last, state.last_slot, state.changed_ns) = (number, slot, now.max(state.changed_ns + 1));
            state.no_leases_until_ns = 0;
        });
        Ok(Ok(number))
    }

    pub(crate) fn delete_snapshot(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::DeleteSnapshot::decode(bytes)?;
        self.check_snapshots(context)?;
        let number = self.snapshots.find(request.name, request.number).ok_or(NO_SUCH)?;
        self.begin_deletion(number);
        Ok(())
    }

    /// Of one that is there. What it holds is freed behind.
    pub(crate) fn begin_deletion(&mut self, number: u64) {
        self.mark_deleted(number);
        self.note_changed_snapshots(self.time);
    }

    pub(crate) fn mark_deleted(&mut self, number: u64) {
        let record = SnapshotRecord { deleting: true, pending: false, ..self.snapshots.list[&number].clone() };
        self.put_snapshot(number, record);
    }

    pub(crate) fn rename_snapshot(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::RenameSnapshot::decode(bytes)?;
        self.check_snapshots(context)?;
        check_new_name(self, request.new_name)?;
        let number = self.snapshots.find(request.name, request.number).ok_or(NO_SUCH)?;
        let directory = self.snapshots.list[&number].directory;
        if request.new_name == self.snapshots.list[&number].name {
            return Ok(());
        }
        if self.snapshots.namesake(directory, request.new_name).is_some() {
            return Err(NAME_TAKEN);
        }
        // Whoever names it wants to keep it.
        let name = request.new_name.to_vec();
        let record = SnapshotRecord { name, rule: 0, ..self.snapshots.list[&number].clone() };
        self.put_snapshot(number, record);
        self.note_changed_snapshots(context.now);
        Ok(())
    }

    /// Answers all of them; there are at most [`SNAPSHOTS_MAX`].
    pub(crate) fn list_snapshots(&self, out: &mut Vec<u8>) {
        for info in self.snapshots().into_iter().filter(|info| !info.pending) {
            put_message(out, 1, |out| {
                put_number(out, 1, info.number);
                put_bytes(out, 2, &info.name);
                put_number(out, 3, info.created_ns);
                put_number(out, 4, u64::from(info.deleting));
                put_number(out, 5, info.kept_blocks);
                put_number(out, 11, u64::from(info.rule));
                put_number(out, 12, info.directory);
            });
        }
        for (directory, rules) in &self.snapshots.schedules {
            match directory {
                0 => put_rules(out, 11, rules),
                _ => put_message(out, 13, |out| {
                    put_number(out, 1, *directory);
                    put_rules(out, 2, rules);
                }),
            }
        }
        put_number(out, 12, u64::from(self.level >= DIRECTORY_LEVEL));
    }

    pub(crate) fn check_snapshots(&self, context: &Context<'_>) -> Result<()> {
        if self.level < SNAPSHOT_LEVEL {
            return Err(OpError::new(ErrorCode::UnknownOperation, "snapshots are of feature level 10"));
        }
        let owns = self.stored_inode(InodeId::ROOT.0).is_ok_and(|root| root.uid == context.who.uid);
        if context.who.is_root() || owns { Ok(()) } else { Err(NOT_ALLOWED) }
    }

    pub(crate) fn put_snapshot(&mut self, number: u64, record: SnapshotRecord) {
        let value = &mut self.scratch.value;
        value.clear();
        record.encode(value);
        self.tree.put(key::snapshot(number).as_bytes(), value);
        self.snapshots.list.insert(number, record);
        self.save_newest();
    }

    fn save_newest(&mut self) {
        self.tree.set_first(self.inode_first);
        self.tree.set_newest(self.snapshots.newest());
    }

    pub(crate) fn change_snapshots(&mut self, change: impl FnOnce(&mut SnapshotState)) {
        change(&mut self.snapshots.state);
        let value = &mut self.scratch.value;
        value.clear();
        self.snapshots.state.encode(value);
        self.tree.put(key::snapshots().as_bytes(), value);
    }

    pub(crate) fn note_changed_snapshots(&mut self, now: u64) {
        self.change_snapshots(|state| state.changed_ns = now.max(state.changed_ns + 1));
    }

    /// Whoever changes files in place is told that this is in the way.
    fn want_all_leases(&mut self) {
        for inode in self.snapshots.leases.clone() {
            let lease = self.stored_inode(inode).ok().and_then(|inode| inode.lease);
            self.wanted_leases.extend(lease.map(|lease| (lease.session, inode)));
        }
    }

    /// Whether files may be overwritten in place, as far as snapshots are concerned.
    pub(crate) fn may_give_leases(&self, now: u64) -> bool {
        self.snapshots.newest().is_none() && now >= self.snapshots.state.no_leases_until_ns
    }

    /// An overwrite lease ended, and nobody said that all was answered: what its holder sent may still be under way.
    pub(crate) fn note_lapsed(&mut self) {
        if self.level >= SNAPSHOT_LEVEL {
            let now = self.time;
            self.change_snapshots(|state| state.lapsed_ns = now);
        }
    }

    /// What is not in the checkpoint's header, found again when one is loaded.
    pub(crate) fn load_snapshots(&mut self) -> Result<()> {
        let mut snapshots = Snapshots::default();
        if let Some(value) = self.tree.get(key::snapshots().as_bytes()) {
            snapshots.state = SnapshotState::decode(value).ok_or(OpError::DAMAGED)?;
        }
        let prefix = key::prefix(0, Kind::Snapshot);
        let mut range = self.tree.prefix(prefix.as_bytes());
        while let Some((entry, value)) = range.next() {
            let number = key::number(&entry[prefix.as_bytes().len()..]).ok_or(OpError::DAMAGED)?;
            snapshots.list.insert(number, SnapshotRecord::decode(value).ok_or(OpError::DAMAGED)?);
        }
        let prefix = key::prefix(0, Kind::Kept);
        let mut range = self.tree.prefix(prefix.as_bytes());
        while let Some((entry, value)) = range.next() {
            let (number, _) = key::deferred_death(&entry[prefix.as_bytes().len()..]).ok_or(OpError::DAMAGED)?;
            let record = KeptRecord::decode(value).ok_or(OpError::DAMAGED)?;
            *snapshots.kept.entry(number).or_default() += record.blocks;
        }
        // Who has an overwrite lease holds the file.
        let prefix = key::prefix(0, Kind::SessionHold);
        let mut range = self.tree.prefix(prefix.as_bytes());
        while let Some((entry, _)) = range.next() {
            let (session, inode) = key::deferred_death(&entry[prefix.as_bytes().len()..]).ok_or(OpError::DAMAGED)?;
            if self.overwrite_lease_of(session, inode).is_some() {
                snapshots.leases.insert(inode);
            }
        }
        snapshots.schedules = self.load_schedules()?;
        self.snapshots = snapshots;
        self.save_newest();
        Ok(())
    }

    /// Those that wait for `ReclaimBatch`.
    pub(crate) fn dying_snapshots(&self) -> u64 {
        self.snapshots.list.values().filter(|record| record.deleting).count() as u64
    }
}

/// For the server around it.
impl Namespace {
    /// Feature level that a request needs. Members of before would take one about a directory for one about the volume.
    pub fn needed_level(opcode: Opcode, message: &[u8]) -> u32 {
        let of_directory = match opcode {
            Opcode::CreateSnapshot => request::CreateSnapshot::decode(message).map(|request| request.directory),
            Opcode::SetSnapshotSchedule => {
                request::SetSnapshotSchedule::decode(message).map(|request| request.directory)
            }
            Opcode::DeleteSnapshot => request::DeleteSnapshot::decode(message).map(|request| request.number),
            Opcode::RenameSnapshot => request::RenameSnapshot::decode(message).map(|request| request.number),
            _ => Ok(0),
        };
        match of_directory {
            Ok(0) | Err(_) => opcode.feature_level(),
            Ok(_) => DIRECTORY_LEVEL.into(),
        }
    }

    /// Whether there is a snapshot, be it one that is being deleted.
    pub fn has_snapshots(&self) -> bool {
        !self.snapshots.is_empty()
    }

    /// All of them, oldest first.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let info = |(number, record): (&u64, &SnapshotRecord)| SnapshotInfo {
            number: *number,
            name: record.name.clone(),
            created_ns: record.created_ns,
            deleting: record.deleting,
            pending: record.pending,
            rule: record.rule,
            directory: record.directory,
            kept_blocks: self.snapshots.kept.get(number).copied().unwrap_or(0),
        };
        self.snapshots.list.iter().map(info).collect()
    }
}
