//! A snapshot of a volume with several partitions: each partition's part of it, and whether it counts.
//!
//! The leader of the partition of the root (*home*) has all partitions hold what changes them ([`crate::Gate`]), then
//! cut, home first, and logs last that the snapshot is complete. Nobody relies on it before. What was acknowledged
//! before all held is in every cut: it was proposed before its partition's hold. What was proposed after a cut is in no
//! other cut that depends on it: the others hold until theirs. So the cuts are one moment of the whole volume, and that
//! the moment of one cut may be some milliseconds behind that of another makes no difference.
//!
//! | entry | at | does |
//! |---|---|---|
//! | `QuietSnapshots` | all | no overwrite lease is given for a while; whoever has one is told |
//! | `CutSnapshot` | all | the snapshot is there, *pending*; refused in another term than that of the hold, and while somebody overwrites in place |
//! | `EndCut` | home | it is complete; or void, which is deleted as any other |
//! | `FollowSnapshots` | the others | which are complete, deleted, or called otherwise |
//!
//! An operation across partitions that has locked something when it is cut belongs to the snapshot if it was decided
//! before its decider's cut. Each decision notes the number of its partition's last cut (`TxEffects.after_snapshot`):
//! what a participant does of it later is done as if it had been done before all snapshots with higher numbers. Until
//! then reads of what was locked wait.
//!
//! Invariants: numbers ascend in each partition; what home does not list as pending or complete, and has given before,
//! becomes complete nowhere. Not here: holding, and who asks whom (the `meta` crate).
use crate::encoding::SnapshotRecord;
use crate::error::{OpError, Result};
use crate::message::writer::put_number;
use crate::namespace::{AppliedAt, Namespace};
use crate::snapshots::{
    DIRECTORY_LEVEL, MANY, NO_DIRECTORY, NOT_FOR_DIRECTORIES, SNAPSHOTS_MAX, TOO_MANY_INODES, Waits,
};
use cairn_types::{ErrorCode, InodeId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{CutResponse, CutSnapshot, EndCut, FollowSnapshots, FollowedSnapshot};
use prost::Message;

/// Feature level from which on volumes of several partitions have snapshots.
pub const SEVERAL_LEVEL: u16 = 16;

const NOT_YET: OpError = OpError::new(
    ErrorCode::UnknownOperation,
    "snapshots of volumes with several partitions need feature level 16 of all meta nodes (`cairn admin status` shows it)",
);
/// The leader carries it out with the others.
const NEEDS_CUT: OpError =
    OpError::new(ErrorCode::CrossVolume, "a snapshot is taken by all partitions of the volume together; repeat");
const LATE: OpError =
    OpError::new(ErrorCode::Conflict, "leadership changed while a snapshot was taken; it is void, and is taken again");
const VOID: OpError = OpError::new(ErrorCode::LeaseHeld, "the snapshot was given up meanwhile; repeat");
const NOT_HOME: OpError =
    OpError::new(ErrorCode::BadRequest, "the partition of the root says which snapshots there are");

/// What became of a cut, for the request that is answered by it.
#[derive(Debug, Default)]
pub(crate) struct Completing {
    number: u64,
    waits: Waits,
}

impl Namespace {
    fn check_of_several(&self) -> Result<()> {
        if self.level < SEVERAL_LEVEL { Err(NOT_YET) } else { Ok(()) }
    }

    /// See the module. Answers what is waited for.
    pub(crate) fn quiet_snapshots(&mut self, out: &mut Vec<u8>) -> Result<()> {
        self.check_of_several()?;
        self.be_quiet();
        put_waits(self.waits().unwrap_or_default(), out)
    }

    /// This partition's part of a snapshot.
    pub(crate) fn cut_snapshot(&mut self, at: AppliedAt, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let cut = CutSnapshot::decode(bytes).map_err(|_| OpError::BAD_REQUEST)?;
        self.check_of_several()?;
        if at.term != cut.term {
            return Err(LATE);
        }
        let (number, slot, created_ns) = match cut.number {
            0 if self.is_home() => {
                self.check_snapshot_name(cut.directory, &cut.name)?;
                let number = self.snapshots.state.last.max(cut.above) + 1;
                (number, self.snapshots.free_slot().ok_or(MANY)?, self.time)
            }
            number if !self.is_home() && number > self.snapshots.state.last => {
                let slot = u16::try_from(cut.slot).map_err(|_| OpError::BAD_REQUEST)?;
                (number, slot, cut.created_ns)
            }
            _ => return Err(OpError::BAD_REQUEST),
        };
        if self.has_no_snapshots() {
            return Err(TOO_MANY_INODES);
        }
        if cut.directory != 0 && self.level < DIRECTORY_LEVEL {
            return Err(NOT_FOR_DIRECTORIES);
        }
        // Its own partition knows whether it is there.
        if self.is_gone_directory(cut.directory) {
            return Err(NO_DIRECTORY);
        }
        // Those that are being deleted may be more here than at home.
        if self.snapshots.list.len() >= 2 * SNAPSHOTS_MAX {
            return Err(MANY);
        }
        if let Some(waits) = self.waits() {
            self.be_quiet();
            return put_waits(waits, out);
        }
        let rule = u8::try_from(cut.rule).map_err(|_| OpError::BAD_REQUEST)?;
        let (inode_next, deleting, pending, cut_at, name) = (self.inode_next, false, true, self.applied, cut.name);
        let directory = cut.directory;
        let record =
            SnapshotRecord { slot, created_ns, inode_next, deleting, rule, pending, cut: cut_at, directory, name };
        // What comes back as it went in is a record that a restart can read.
        let mut value = Vec::new();
        record.encode(&mut value);
        SnapshotRecord::decode(&value).ok_or(OpError::BAD_REQUEST)?;
        self.put_snapshot(number, record);
        let (is_home, now) = (self.is_home(), self.time);
        self.change_snapshots(|state| {
            (state.last, state.last_slot, state.no_leases_until_ns) = (number, slot, 0);
            if is_home {
                state.changed_ns = now.max(state.changed_ns + 1);
            }
        });
        let answer = CutResponse { number, slot: slot.into(), created_ns, ..CutResponse::default() };
        answer.encode(out).map_err(|_| OpError::DAMAGED)
    }

    /// It counts, or is void. Answers who asked for it.
    pub(crate) fn end_cut(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> std::result::Result<(), WireError> {
        let end = EndCut::decode(bytes).map_err(|_| OpError::BAD_REQUEST.to_wire())?;
        if !self.is_home() {
            return Err(NOT_HOME.to_wire());
        }
        if !end.complete && end.number != 0 {
            let is_there = self.snapshots.list.get(&end.number).is_some_and(|record| !record.deleting);
            if self.is_pending(end.number) || end.lacks && is_there {
                self.begin_deletion(end.number);
            }
            return Ok(());
        }
        if end.request.is_empty() {
            return self.complete(end.number, end.up_to_ns).map_err(OpError::to_wire);
        }
        let waits = Waits { leases: end.leases, lapsed_ns: end.lapsed_ms.saturating_mul(1_000_000) };
        self.snapshots.completing = Some(Completing { number: end.number, waits });
        let answered = self.apply_once(Opcode::CreateSnapshot, &end.request, out, |_| ());
        self.snapshots.completing = None;
        answered
    }

    fn is_pending(&self, number: u64) -> bool {
        self.snapshots.list.get(&number).is_some_and(|record| record.pending)
    }

    fn complete(&mut self, number: u64, up_to_ns: u64) -> Result<()> {
        let record = self.snapshots.list.get(&number).filter(|record| record.pending).cloned().ok_or(VOID)?;
        if self.snapshots.namesake(record.directory, &record.name).is_some() {
            return Err(crate::snapshots::NAME_TAKEN);
        }
        let (directory, rule) = (record.directory, record.rule);
        self.put_snapshot(number, SnapshotRecord { pending: false, ..record });
        self.note_changed_snapshots(self.time);
        if rule != 0 {
            self.note_scheduled(directory, rule, up_to_ns);
        }
        Ok(())
    }

    /// CreateSnapshot, where the partitions have cut before: `EndCut` has said what came of it.
    pub(crate) fn end_creation(&mut self, directory: u64, name: &[u8], out: &mut Vec<u8>) -> Result<()> {
        if !self.is_home() {
            return Err(OpError::ELSEWHERE);
        }
        self.check_of_several()?;
        let Some(Completing { number, waits }) = self.snapshots.completing.take() else {
            self.check_snapshot_name(directory, name)?;
            return Err(NEEDS_CUT);
        };
        if number == 0 {
            put_number(out, 2, waits.leases);
            put_number(out, 3, waits.lapsed_ns.div_ceil(1_000_000));
            return Ok(());
        }
        if self.snapshots.list.get(&number).is_none_or(|record| record.name != name || record.directory != directory) {
            return Err(VOID);
        }
        self.complete(number, 0)?;
        put_number(out, 1, number);
        Ok(())
    }

    /// What the partition of the root says of snapshots.
    pub(crate) fn follow_snapshots(&mut self, bytes: &[u8]) -> Result<()> {
        let told = FollowSnapshots::decode(bytes).map_err(|_| OpError::BAD_REQUEST)?;
        self.check_of_several()?;
        if self.is_home() {
            return Err(NOT_HOME);
        }
        if told.version <= self.snapshots.state.changed_ns {
            return Ok(());
        }
        let known: Vec<(u64, SnapshotRecord)> = self
            .snapshots
            .list
            .iter()
            .filter(|(number, _)| **number <= told.last)
            .map(|(n, r)| (*n, r.clone()))
            .collect();
        for (number, record) in known.into_iter().filter(|(_, record)| !record.deleting) {
            match told.snapshots.iter().find(|listed| listed.number == number) {
                None => self.mark_deleted(number),
                Some(listed) if listed.pending => {}
                Some(listed) => {
                    let now = SnapshotRecord { pending: false, name: listed.name.clone(), ..record.clone() };
                    if now != record {
                        self.put_snapshot(number, now);
                    }
                }
            }
        }
        // One that has never made an inode was not there: it had nothing at any of them.
        if self.inode_next == self.inode_first {
            for listed in told.snapshots {
                if self.snapshots.list.contains_key(&listed.number) {
                    continue;
                }
                let slot = u16::try_from(listed.slot).map_err(|_| OpError::BAD_REQUEST)?;
                let (created_ns, inode_next, name) = (listed.created_ns, self.inode_next, listed.name);
                let directory = listed.directory;
                let (deleting, rule, pending, cut) = (false, 0, listed.pending, self.applied.max(1));
                let record =
                    SnapshotRecord { slot, created_ns, inode_next, deleting, rule, pending, cut, directory, name };
                self.put_snapshot(listed.number, record);
                let last = self.snapshots.state.last.max(listed.number);
                self.change_snapshots(|state| state.last = last);
            }
        }
        self.change_snapshots(|state| state.changed_ns = told.version);
        Ok(())
    }
}

fn put_waits(waits: Waits, out: &mut Vec<u8>) -> Result<()> {
    let (leases, lapsed_ms) = (waits.leases, waits.lapsed_ns.div_ceil(1_000_000));
    CutResponse { leases, lapsed_ms, ..CutResponse::default() }.encode(out).map_err(|_| OpError::DAMAGED)
}

/// For the server around it.
impl Namespace {
    /// Whether a request to take a snapshot has to be carried out with the other partitions.
    pub fn needs_cut(error: &WireError) -> bool {
        error.code == ErrorCode::CrossVolume && error.message == NEEDS_CUT.text
    }

    /// What others are told of snapshots; nothing if there never was one.
    pub fn snapshots_to_follow(&self) -> Option<FollowSnapshots> {
        let state = self.snapshots.state;
        let list = self.snapshots.list.iter().filter(|(_, record)| !record.deleting);
        let snapshots = list.map(|(number, record)| FollowedSnapshot {
            number: *number,
            name: record.name.clone(),
            created_ns: record.created_ns,
            slot: record.slot.into(),
            pending: record.pending,
            directory: record.directory,
        });
        let told = || FollowSnapshots { version: state.changed_ns, last: state.last, snapshots: snapshots.collect() };
        (self.level >= SEVERAL_LEVEL && state.last > 0).then(told)
    }

    /// Feature level that a list of snapshots needs of who follows it.
    pub fn level_to_follow(told: &FollowSnapshots) -> u32 {
        let of_directory = told.snapshots.iter().any(|snapshot| snapshot.directory != 0);
        u32::from(if of_directory { DIRECTORY_LEVEL } else { SEVERAL_LEVEL })
    }

    /// Version of what this partition was told of snapshots, or tells others.
    pub fn snapshots_version(&self) -> u64 {
        self.snapshots.state.changed_ns
    }

    /// The directory that a snapshot is asked for of, as it is written down: the root's are the volume's, 0.
    pub fn snapshot_directory(&self, asked: u64) -> u64 {
        if asked == InodeId::ROOT.0 { 0 } else { asked }
    }

    /// Number of the last one that was cut here.
    pub fn last_snapshot(&self) -> u64 {
        self.snapshots.state.last
    }

    /// Those of which is not known whether all partitions have them.
    pub fn pending_snapshots(&self) -> Vec<u64> {
        self.snapshots.list.iter().filter(|(_, record)| record.pending).map(|(number, _)| *number).collect()
    }

    /// Complete ones of a list that are not here.
    pub fn lacks_snapshots(&self, told: &FollowSnapshots) -> Vec<u64> {
        let listed = told.snapshots.iter().filter(|listed| !listed.pending).map(|listed| listed.number);
        listed.filter(|number| self.snapshots.list.get(number).is_none_or(|record| record.deleting)).collect()
    }

    /// Files that are overwritten in place, and milliseconds until nothing of one that was can arrive any more.
    pub fn snapshot_waits(&self) -> (u64, u64) {
        let waits = self.waits().unwrap_or_default();
        (waits.leases, waits.lapsed_ns.div_ceil(1_000_000))
    }
}
