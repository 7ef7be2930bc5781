//! Locks on ranges of files, by fcntl and flock, of all sessions.
//!
//! A lock belongs to a session and to an owner, a number that the session chose (a process, an open file). Ranges of
//! one owner never overlap; a new one replaces what he has in its range, and neighbours of one type are joined, as
//! POSIX has it for fcntl. The two kinds know nothing of each other, as on Linux.
//!
//! Invariants: locks of different owners that overlap are both for reading; the locks of an inode, and those of a
//! session, are bounded; a session's locks go with it (some at its end, the rest by `ReclaimBatch`), an inode's with
//! the inode. Not here: waiting (the leader's memory, in `meta`), deadlocks (nobody looks for them: waits are bounded).
use crate::dead::Budget;
use crate::encoding::varint::Cursor;
use crate::encoding::{LOCK_END, LockRange};
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::limits::{LOCKS_INODE_MAX, LOCKS_SESSION_MAX};
use crate::message::writer::put_varint;
use crate::namespace::Namespace;
use cairn_types::ErrorCode;

const TAG: u8 = 0x10;

const TOO_MANY: OpError =
    OpError::new(ErrorCode::TooManyLocks, "the file or the session has as many locks as it may have; release some");

/// Whose locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    /// 0 fcntl, 1 flock.
    pub kind: u8,
    pub session: u64,
    pub owner: u64,
}

/// A change of what an owner has: a range for reading or writing, or nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub start: u64,
    pub end: u64,
    pub write: Option<bool>,
    pub pid: u32,
}

/// The ranges of an owner after a change, in order. `own` is in order and joined.
pub(crate) fn reshape(own: &[LockRange], change: &Change) -> Vec<LockRange> {
    let mut all = Vec::with_capacity(own.len() + 2);
    for old in own {
        if old.end < change.start || old.start > change.end {
            all.push(*old);
            continue;
        }
        if old.start < change.start {
            all.push(LockRange { end: change.start - 1, ..*old });
        }
        if old.end > change.end {
            all.push(LockRange { start: change.end + 1, ..*old });
        }
    }
    if let Some(write) = change.write {
        all.push(LockRange { start: change.start, end: change.end, write, pid: change.pid });
    }
    all.sort_unstable_by_key(|lock| lock.start);
    all.dedup_by(|next, before| {
        let joins = before.write == next.write && before.end + 1 == next.start;
        if joins {
            before.end = next.end;
            before.pid = if next.start == change.start { next.pid } else { before.pid };
        }
        joins
    });
    all
}

/// Reads the number of locks of a session on an inode.
pub(crate) fn decode_count(value: &[u8]) -> Option<u64> {
    let mut cursor = Cursor::new(value);
    let tag = cursor.byte()?;
    let count = cursor.varint()?;
    cursor.end()?;
    (tag == TAG && count > 0).then_some(count)
}

impl Namespace {
    /// Ranges that are locked, of all sessions.
    pub const fn locks(&self) -> u64 {
        self.locks
    }

    /// Inodes on which a lock was given back since the last call, each once: whoever waits for one may try again.
    pub fn take_released_locks(&mut self) -> Vec<u64> {
        let mut released = std::mem::take(&mut self.released_locks);
        released.sort_unstable();
        released.dedup();
        released
    }

    /// All locks on an inode, in the order of kind, session, owner, first byte.
    pub(crate) fn locks_of(&self, inode: u64) -> Result<Vec<(Owner, LockRange)>> {
        let mut locks = Vec::new();
        if self.locks == 0 {
            return Ok(locks);
        }
        let mut range = self.tree.prefix(key::prefix(inode, Kind::Lock).as_bytes());
        while let Some((found, value)) = range.next() {
            let (_, _, suffix) = key::split(found).ok_or(OpError::DAMAGED)?;
            let (owner, start) = key::lock_parts(suffix).ok_or(OpError::DAMAGED)?;
            locks.push((owner, LockRange::decode(start, value).ok_or(OpError::DAMAGED)?));
        }
        Ok(locks)
    }

    /// The first lock of somebody else that is in the way.
    pub(crate) fn lock_conflict(
        &self,
        inode: u64,
        owner: Owner,
        change: &Change,
    ) -> Result<Option<(Owner, LockRange)>> {
        let Some(write) = change.write else { return Ok(None) };
        let in_the_way = |(other, lock): &(Owner, LockRange)| {
            let overlaps = lock.start <= change.end && lock.end >= change.start;
            other.kind == owner.kind && *other != owner && overlaps && (write || lock.write)
        };
        let mut found = self.locks_of(inode)?;
        found.retain(in_the_way);
        Ok(found.into_iter().min_by_key(|(other, lock)| (lock.start, other.session, other.owner)))
    }

    /// Changes what an owner has locked, if nobody is in the way.
    pub(crate) fn change_lock(&mut self, inode: u64, owner: Owner, change: &Change) -> Result<()> {
        if self.lock_conflict(inode, owner, change)?.is_some() {
            return Err(OpError::new(ErrorCode::Locked, "somebody else holds a lock on a part of the range"));
        }
        let all = self.locks_of(inode)?;
        let own: Vec<LockRange> = all.iter().filter(|(other, _)| *other == owner).map(|(_, lock)| *lock).collect();
        let after = reshape(&own, change);
        if after == own {
            return Ok(());
        }
        let grows = after.len().saturating_sub(own.len());
        let of_session = self.session_locks.get(&owner.session).copied().unwrap_or(0) as usize;
        if grows > 0 && (all.len() + grows > LOCKS_INODE_MAX || of_session + grows > LOCKS_SESSION_MAX) {
            return Err(TOO_MANY);
        }
        for old in &own {
            if !after.iter().any(|lock| lock.start == old.start) {
                self.tree.remove(key::lock(inode, owner, old.start).as_bytes());
            }
        }
        for new in after.iter().filter(|new| !own.contains(new)) {
            let value = &mut self.scratch.value;
            value.clear();
            new.encode(value);
            self.tree.put(key::lock(inode, owner, new.start).as_bytes(), value);
        }
        self.count_locks(inode, owner.session, after.len() as i64 - own.len() as i64)?;
        // A lock that was for writing and is for reading now lets others in as well.
        if own.iter().any(|old| !after.contains(old)) {
            self.released_locks.push(inode);
        }
        Ok(())
    }

    fn count_locks(&mut self, inode: u64, session: u64, change: i64) -> Result<()> {
        let of_inode = key::session_lock(session, inode);
        let count = match self.tree.get(of_inode.as_bytes()) {
            Some(value) => decode_count(value).ok_or(OpError::DAMAGED)?,
            None => 0,
        };
        match count.wrapping_add_signed(change) {
            0 => {
                self.tree.remove(of_inode.as_bytes());
            }
            count => {
                let value = &mut self.scratch.value;
                value.clear();
                value.push(TAG);
                put_varint(value, count);
                self.tree.put(of_inode.as_bytes(), value);
            }
        }
        self.locks = self.locks.wrapping_add_signed(change);
        let of_session = self.session_locks.entry(session).or_default();
        *of_session = of_session.wrapping_add_signed(change);
        if *of_session == 0 {
            self.session_locks.remove(&session);
        }
        Ok(())
    }

    /// Takes back locks of an ended session, inode by inode; true when none are left.
    pub(crate) fn release_locks(&mut self, session: u64, budget: &mut Budget) -> Result<bool> {
        while self.session_locks.contains_key(&session) {
            if budget.is_used_up() {
                return Ok(false);
            }
            let prefix = key::session_locks(session);
            let mut cursor = self.tree.cursor();
            cursor.seek(prefix.as_bytes());
            let suffix = cursor.key().strip_prefix(prefix.as_bytes()).ok_or(OpError::DAMAGED)?;
            let inode = key::number(suffix).ok_or(OpError::DAMAGED)?;
            self.drop_locks(inode, Some(session))?;
            budget.take_inode();
        }
        Ok(true)
    }

    /// The inode goes: so do its locks.
    pub(crate) fn forget_locks(&mut self, inode: u64) -> Result<()> {
        if self.locks > 0 { self.drop_locks(inode, None) } else { Ok(()) }
    }

    fn drop_locks(&mut self, inode: u64, session: Option<u64>) -> Result<()> {
        for (owner, lock) in self.locks_of(inode)? {
            if session.is_none_or(|session| session == owner.session) {
                self.tree.remove(key::lock(inode, owner, lock.start).as_bytes());
                self.count_locks(inode, owner.session, -1)?;
            }
        }
        self.released_locks.push(inode);
        Ok(())
    }

    /// What is not in the checkpoint's header, found again when one is loaded.
    pub(crate) fn recount_locks(&mut self) -> Result<()> {
        let prefix = key::prefix(0, Kind::SessionLock);
        let mut range = self.tree.prefix(prefix.as_bytes());
        while let Some((found, value)) = range.next() {
            let suffix = found.get(prefix.as_bytes().len()..).and_then(|suffix| suffix.first_chunk::<8>());
            let session = suffix.map(|bytes| u64::from_be_bytes(*bytes)).ok_or(OpError::DAMAGED)?;
            let count = decode_count(value).ok_or(OpError::DAMAGED)?;
            self.locks += count;
            *self.session_locks.entry(session).or_default() += count;
        }
        Ok(())
    }
}

/// The range of a request.
pub(crate) fn check_range(kind: u32, lock_type: u32, start: u64, end: u64, pid: u32) -> Result<(u8, Change)> {
    let invalid = |text| Err(OpError::new(ErrorCode::InvalidArgument, text));
    if kind > 1 || lock_type > 2 {
        return invalid("a lock is of the kind 0 (fcntl) or 1 (flock) and of the type 0 (none), 1 (read) or 2 (write)");
    }
    let end = end.min(LOCK_END);
    if start > end {
        return invalid("a lock ends before it begins");
    }
    let write = (lock_type > 0).then_some(lock_type == 2);
    Ok((kind as u8, Change { start, end, write, pid }))
}

#[cfg(test)]
mod tests;
