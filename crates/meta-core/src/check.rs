//! All that must hold between two operations, checked by reading everything. For tests and for `fsck`.
use crate::appending::LANE_SHIFT;
use crate::check_found::{Found, collect_entry};
use crate::counters::Counters;
use crate::encoding::{Extent, Inode, NodeType, QuotaRecord, ShareRecord};
use crate::key;
use crate::namespace::Namespace;
use crate::shares::places;
use crate::staged::waits_for_encoding;
use crate::waiting::Waiting;
use cairn_types::shard::shard_name;
use cairn_types::{ExtentKind, InodeId};
use std::collections::{BTreeMap, BTreeSet};

/// A broken invariant: which one, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("inode {inode}: {rule}")]
pub struct Violation {
    pub inode: u64,
    pub rule: String,
}

impl Namespace {
    /// Checks every invariant. Reads all entries.
    pub fn check_invariants(&self) -> Result<(), Violation> {
        let found = self.collect()?;
        self.check_names(&found)?;
        self.check_deaths(&found)?;
        check_extents(&found)?;
        self.check_shares(&found)?;
        self.check_locks(&found)?;
        self.check_quotas(&found)?;
        self.check_txs(&found)?;
        self.check_waiting(&found)?;
        self.check_delegations(&found)?;
        self.check_snapshots_found(&found.snapshots, &found.inodes, &found.extents, &found.free)?;
        self.check_kept(&found.snapshots, &found.extents, &found.shares)?;
        self.check_counters(&found)
    }

    fn collect(&self) -> Result<Found, Violation> {
        let mut found = Found::default();
        let mut range = self.tree.iter();
        while let Some((bytes, value)) = range.next() {
            let (inode, kind, suffix) = key::split(bytes).ok_or_else(|| broken(0, format!("key {bytes:?}")))?;
            collect_entry(&mut found, inode, kind, suffix, value)
                .ok_or_else(|| broken(inode, format!("entry {bytes:?} has the value {value:?}")))?;
        }
        Ok(found)
    }

    fn check_names(&self, found: &Found) -> Result<(), Violation> {
        for (&id, inode) in &found.inodes {
            let names = found.names.get(&id).map_or(&[] as &[u64], Vec::as_slice);
            ensure(id < self.inode_next || self.inode_next == 0, id, "has an id that was not given yet")?;
            if let Some(rule) = self.acl_violation(id, inode) {
                return Err(broken(id, rule.into()));
            }
            if !inode.is_dir() {
                // Some of its names may be in other partitions.
                let some = self.is_one_of_several() && names.len() < inode.nlink as usize;
                ensure(some || inode.nlink as usize == names.len(), id, "nlink is not the number of its names")?;
                ensure(!inode.unnamed || inode.nlink == 0, id, "has a name and counts as unnamed")?;
                ensure(found.targets.contains(&id) == inode.is_symlink(), id, "links have targets, others have none")?;
                continue;
            }
            let below = found.subdirectories.get(&id).copied().unwrap_or(0);
            ensure(inode.size == found.entries.get(&id).copied().unwrap_or(0), id, "size is not its entries")?;
            if id == InodeId::ROOT.0 {
                ensure(names.is_empty() && inode.parent == id, id, "the root has a name or another parent")?;
            } else if inode.nlink == 0 {
                ensure(names.is_empty() && inode.parent == 0, id, "a removed directory has a name or a parent")?;
                continue;
            } else if !self.is_own(inode.parent) || self.delegations.acting() == Some(id) {
                ensure(names.is_empty(), id, "a directory of another partition's directory has a name here")?;
            } else {
                ensure(names == [inode.parent], id, "a directory has one name, in its parent")?;
            }
            ensure(u64::from(inode.nlink) == 2 + below, id, "nlink is not 2 + subdirectories")?;
            self.check_shard(id, inode, found)?;
        }
        for (id, parents) in &found.names {
            ensure(found.inodes.contains_key(id) || !self.is_own(*id), *id, "has a name and no attributes")?;
            let all_dirs = parents.iter().all(|p| found.inodes.get(p).is_some_and(Inode::is_dir));
            ensure(all_dirs, *id, "has a name in what is no directory")?;
        }
        self.check_no_cycles(found)
    }

    fn check_shard(&self, id: u64, inode: &Inode, found: &Found) -> Result<(), Violation> {
        let shards = found.entry_inodes.range((id, b"/".to_vec())..(id, b"0".to_vec()));
        let shards: Vec<_> = shards.map(|((_, name), shard)| (name.as_slice(), *shard)).collect();
        let named = shards.iter().zip(0..).all(|((name, _), index)| *name == shard_name(index));
        ensure(named && shards.len() == usize::from(inode.shards), id, "shards are not those that are noted")?;
        let is_shard =
            |shard: &u64| !self.is_own(*shard) || found.inodes.get(shard).is_some_and(|inode| inode.is_shard);
        ensure(shards.iter().all(|(_, shard)| is_shard(shard)), id, "has as a shard what is none")?;
        let here = !inode.is_shard || !self.is_own(inode.parent);
        let listed = || found.entry_inodes.range((inode.parent, b"/".to_vec())..(inode.parent, b"0".to_vec()));
        ensure(here || listed().any(|(_, shard)| *shard == id), id, "is no shard of its parent")
    }

    fn check_no_cycles(&self, found: &Found) -> Result<(), Violation> {
        let directories = found.inodes.iter().filter(|(_, inode)| inode.is_dir()).count();
        for (&id, inode) in found.inodes.iter().filter(|(_, inode)| inode.is_dir() && inode.nlink > 0) {
            let (mut at, mut steps, mut above) = (id, 0, inode);
            while at != InodeId::ROOT.0 && above.nlink > 0 && self.delegations.acting() != Some(at) {
                at = above.parent;
                if !self.is_own(at) {
                    break;
                }
                steps += 1;
                ensure(steps <= directories, id, "is in a cycle of directories")?;
                above = found.inodes.get(&at).ok_or_else(|| broken(id, "its parent does not exist".into()))?;
            }
        }
        Ok(())
    }

    fn check_deaths(&self, found: &Found) -> Result<(), Violation> {
        for (id, inode) in &found.inodes {
            let is_held = found.holds.range((*id, 0)..=(*id, u64::MAX)).next().is_some();
            let is_dead = found.dead.contains_key(id);
            let is_deferred = found.deferrals.range((*id, 0)..=(*id, u64::MAX)).next().is_some();
            let is_locked = self.txs.is_locked(*id);
            ensure(
                inode.nlink > 0 || is_held || is_dead || is_deferred || is_locked,
                *id,
                "has no name, no holder, and is not reclaimed",
            )?;
            ensure(!is_deferred || (inode.nlink == 0 && !is_dead), *id, "is deferred and has a name, or is reclaimed")?;
            ensure(!is_dead || inode.nlink == 0, *id, "is to be reclaimed and has a name")?;
            let may_be_held = inode.is_dir() || !is_dead || !is_held;
            ensure(may_be_held, *id, "is held and to be reclaimed")?;
        }
        for (id, is_dir) in &found.dead {
            let agrees = found.inodes.get(id).is_some_and(|inode| inode.is_dir() == *is_dir);
            ensure(agrees, *id, "is to be reclaimed and is gone or of another type")?;
        }
        for id in &found.owners {
            ensure(found.inodes.contains_key(id), *id, "has keys and no attributes")?;
        }
        for id in found.cuts.keys() {
            let is_file = found.inodes.get(id).is_some_and(Inode::is_regular);
            ensure(
                is_file && !found.dead.contains_key(id),
                *id,
                "is being cut and is no file, or is reclaimed as a whole",
            )?;
        }
        for (id, inode) in &found.inodes {
            let Some(lease) = inode.lease else { continue };
            let held = found.writers.contains(&(*id, lease.session)) && inode.is_regular();
            ensure(held, *id, "may be overwritten in place by a session that does not hold it for writing")?;
            ensure(lease.number <= inode.generation, *id, "has a lease with a number that was not given yet")?;
        }
        for (id, inode) in
            found.inodes.iter().filter(|(id, inode)| inode.volatile.is_some() && !found.dead.contains_key(id))
        {
            let to = inode.volatile.map_or(0, |volatile| volatile.to);
            ensure(found.volatile.contains(id), *id, "has volatile bytes that nobody will look after")?;
            ensure(inode.is_regular() && to <= inode.size, *id, "has volatile bytes behind its end")?;
        }
        for id in &found.volatile {
            let is_file = found.inodes.get(id).is_some_and(|inode| inode.volatile.is_some());
            ensure(is_file, *id, "is listed as volatile and is not")?;
        }
        for id in &found.staged {
            let waits = found.inodes.get(id).is_some_and(waits_for_encoding);
            ensure(waits, *id, "is listed as waiting to be encoded and does not wait")?;
        }
        ensure(self.staged == found.staged.len() as u64, 0, "files that wait to be encoded are counted wrong")?;
        ensure(self.volatiles == found.volatile.len() as u64, 0, "volatile files are counted wrong")?;
        for listed in &found.appending {
            let is_open = found.open_appends.contains(listed) && !found.dead.contains_key(&listed.0);
            ensure(is_open, listed.0, "an append is listed as open and is not")?;
        }
        ensure(self.appending == found.appending.len() as u64, 0, "open appends are counted wrong")?;
        let lanes = found.open_appends.iter().map(|(inode, number)| (*inode, number >> LANE_SHIFT));
        let lanes: BTreeSet<(u64, u64)> = lanes.collect();
        ensure(lanes.len() == found.open_appends.len(), 0, "two appends of a lane are open")?;
        ensure(found.holds == found.session_holds, 0, "holds by inode and by session differ")?;
        for (_, session) in &found.holds {
            let known = self.sessions.state(*session) == crate::SessionState::Live;
            ensure(known || found.dead_sessions.contains(session), 0, "a hold of a session that is not live")?;
        }
        Ok(())
    }

    /// Records of shared blocks are what shared extents name, and nothing else names those blocks.
    fn check_shares(&self, found: &Found) -> Result<(), Violation> {
        ensure(self.shares == found.shares.len() as u64, 0, "records of shared blocks are counted wrong")?;
        let mut changes: BTreeMap<(u32, u32), BTreeMap<u64, i64>> = BTreeMap::new();
        for extents in found.extents.values() {
            for place in places(extents.iter().filter(|extent| extent.shared)) {
                let chunk = changes.entry((place.pg, place.index)).or_default();
                *chunk.entry(place.first).or_default() += 1;
                *chunk.entry(place.end).or_default() -= 1;
            }
        }
        let mut counted = Vec::new();
        for ((pg, index), chunk) in changes {
            let (mut references, mut first_block) = (0, 0);
            for (block, change) in chunk.into_iter().filter(|(_, change)| *change != 0) {
                if references > 0 {
                    let blocks = block - first_block;
                    let references = references as u64;
                    counted.push(ShareRecord { pg, index, first_block, blocks, references, kept: 0 });
                }
                (references, first_block) = (references + change, block);
            }
        }
        let mut recorded: Vec<ShareRecord> = Vec::new();
        for record in found.shares.iter().filter(|record| record.references > 0) {
            match recorded.last_mut() {
                // Those that differ only in what snapshots keep are one here.
                Some(last)
                    if (last.pg, last.index, last.end_block(), last.references)
                        == (record.pg, record.index, record.first_block, record.references) =>
                {
                    last.blocks += record.blocks;
                }
                _ => recorded.push(ShareRecord { kept: 0, ..*record }),
            }
        }
        let text = format!("shared blocks are recorded as {recorded:?}, named {counted:?}");
        ensure(counted == recorded, 0, &text)?;
        for (id, extents) in &found.extents {
            for extent in extents.iter().filter(|e| !e.shared && !matches!(e.kind, ExtentKind::Set(_))) {
                let (first, end) = extent.blocks();
                let own = |r: &&ShareRecord| (r.pg, r.index) == (extent.pg, extent.index);
                let hit = found.shares.iter().filter(own).any(|r| r.first_block < end && first < r.end_block());
                ensure(!hit, *id, "an extent names shared blocks and does not say so")?;
            }
        }
        Ok(())
    }

    fn check_quotas(&self, found: &Found) -> Result<(), Violation> {
        let limits = found.volume_quota.map(|record| (record.bytes_max, record.inodes_max));
        ensure(limits == self.volume_quota, 0, "the volume's limits are kept wrong")?;
        ensure(self.holds_lending(), 0, "what is lent of the volume's limit is kept wrong")?;
        ensure(self.quotas == found.quotas.len() as u64, 0, "quotas are counted wrong")?;
        ensure(self.recounts == found.recounts.len() as u64, 0, "directories to be counted over are counted wrong")?;
        let mut counted: BTreeMap<u64, QuotaRecord> = BTreeMap::new();
        for (quota, record) in &found.quotas {
            let root = found.inodes.get(quota).filter(|inode| inode.is_dir() && inode.quota == *quota);
            ensure(
                root.is_some() != record.removed,
                *quota,
                "has a quota and does not say so, or the other way round",
            )?;
            ensure(!record.removed || record.references > 0, *quota, "has a removed quota that counts nothing")?;
            if record.outer != 0 {
                counted.entry(record.outer).or_default().references += 1;
            }
        }
        for (id, inode) in found.inodes.iter().filter(|(_, inode)| inode.quota != 0) {
            let first = if inode.is_dir() && inode.quota == *id {
                found.quotas.get(id).map(|record| record.outer)
            } else {
                Some(inode.quota)
            };
            let first = first.ok_or_else(|| broken(*id, "has no quota and says it has".into()))?;
            let mut at = first;
            while at != 0 {
                let record =
                    found.quotas.get(&at).ok_or_else(|| broken(*id, "is counted by what is no quota".into()))?;
                let sum = counted.entry(at).or_default();
                sum.bytes += inode.stored;
                sum.inodes += 1;
                sum.references += u64::from(at == first);
                at = record.outer;
            }
        }
        for (quota, record) in &found.quotas {
            let sum = counted.get(quota).copied().unwrap_or_default();
            let sums = |r: &QuotaRecord| (r.bytes, r.inodes, r.references);
            let rule =
                format!("its quota says {:?} (bytes, inodes, references), counted {:?}", sums(record), sums(&sum));
            ensure(sums(&sum) == sums(record), *quota, &rule)?;
        }
        if found.recounts.is_empty() { check_counted_by_directory(found) } else { Ok(()) }
    }

    fn check_txs(&self, found: &Found) -> Result<(), Violation> {
        ensure(self.txs.holds(&found.tx_locks), 0, "locks of operations across partitions are kept wrong")?;
        ensure(self.txs.guests.is_empty(), 0, "inodes of other partitions were left here")?;
        for id in found.inodes.keys().chain(&found.owners) {
            ensure(self.is_own(*id), *id, "is of another partition")?;
        }
        Ok(())
    }

    fn check_waiting(&self, found: &Found) -> Result<(), Violation> {
        let (entries, directories) = (found.waiting.len() as u64, found.waiting_directories.len() as u64);
        ensure(self.waiting == Waiting { entries, directories }, 0, "what reclaiming waits for is counted wrong")?;
        for (entry, inode) in &found.waiting {
            ensure(found.inodes.contains_key(&entry.0), entry.0, "has an entry that waits, and is gone")?;
            let is_dead = found.dead.contains_key(&entry.0);
            let agrees = !is_dead || found.entry_inodes.get(entry) == Some(inode);
            ensure(agrees, entry.0, "waits for an entry that is not there")?;
        }
        for ((directory, name), inode) in &found.entry_inodes {
            let first = (*directory, Vec::new());
            let last = found.waiting.range(first..=(*directory, vec![0xff; 256])).next_back();
            let is_passed = last.is_some_and(|((_, last), _)| name <= last) && found.dead.contains_key(directory);
            let is_noted = found.waiting.get(&(*directory, name.clone())) == Some(inode);
            let has_to_be = is_passed || found.waiting_directories.contains(directory);
            ensure(is_noted || !has_to_be, *directory, "reclaiming has passed over an entry and does not wait for it")?;
        }
        for id in &found.waiting_directories {
            let size = found.inodes.get(id).map_or(0, |inode| inode.size);
            ensure(size > 0, *id, "waits for entries and has none")?;
        }
        Ok(())
    }

    fn check_locks(&self, found: &Found) -> Result<(), Violation> {
        let (mut total, mut listed) = (0, BTreeMap::<(u64, u64), u64>::new());
        for (id, locks) in &found.locks {
            for (at, (owner, lock)) in locks.iter().enumerate() {
                total += 1;
                *listed.entry((owner.session, *id)).or_default() += 1;
                let live = self.sessions.state(owner.session) == crate::SessionState::Live;
                ensure(
                    live || found.dead_sessions.contains(&owner.session),
                    *id,
                    "a lock of a session that is not live",
                )?;
                for (other, second) in &locks[at + 1..] {
                    let overlap = lock.start <= second.end && second.start <= lock.end && owner.kind == other.kind;
                    let both_read = owner != other && !lock.write && !second.write;
                    ensure(!overlap || both_read, *id, "locks that exclude each other")?;
                }
            }
        }
        ensure(listed == found.session_locks, 0, "locks by inode and by session differ")?;
        let mut by_session = BTreeMap::<u64, u64>::new();
        listed.iter().for_each(|((session, _), count)| *by_session.entry(*session).or_default() += count);
        ensure(total == self.locks && by_session == self.session_locks, 0, "locks are counted wrong")
    }

    fn check_counters(&self, found: &Found) -> Result<(), Violation> {
        let regular = || found.inodes.values().filter(|inode| inode.is_regular());
        let counted = Counters {
            inodes: found.inodes.len() as u64,
            directories: found.inodes.values().filter(|inode| inode.is_dir()).count() as u64,
            file_bytes: regular().map(|inode| inode.size).sum(),
            stored_bytes: regular().map(|inode| inode.stored).sum(),
            holds: found.holds.len() as u64,
            dead_inodes: found.dead.len() as u64,
            dead_directories: found.dead.values().filter(|is_dir| **is_dir).count() as u64,
            dead_sessions: found.dead_sessions.len() as u64,
            free_records: found.free_records,
        };
        ensure(self.cuts == found.cuts.len() as u64, 0, "files that are being cut are counted wrong")?;
        ensure(found.deferrals == found.deferred, 0, "deferred deaths by inode and by number differ")?;
        ensure(self.deferred == found.deferred.len() as u64, 0, "deferred deaths are counted wrong")?;
        ensure(self.deferring == found.deferring, 0, "whether deaths are deferred is kept wrong")?;
        let last = found.deferred.iter().map(|(_, number)| *number).max().unwrap_or(0);
        ensure(last <= self.death_position(), 0, "a death was numbered ahead")?;
        ensure(counted == self.counters, 0, &format!("counted {counted:?}, kept {:?}", self.counters))
    }
}

/// What has one name is counted by the quota of its directory.
fn check_counted_by_directory(found: &Found) -> Result<(), Violation> {
    for (id, inode) in &found.inodes {
        let Some([parent]) = found.names.get(id).map(Vec::as_slice) else { continue };
        let Some(parent) = found.inodes.get(parent).filter(|parent| parent.nlink > 0) else { continue };
        let by = if inode.is_dir() && inode.quota == *id { found.quotas[id].outer } else { inode.quota };
        // Of several names it may have lost the one that it is counted by.
        let counted = by == parent.quota || !inode.is_dir();
        ensure(counted, *id, "is not counted by the quota of its directory")?;
    }
    Ok(())
}

fn check_extents(found: &Found) -> Result<(), Violation> {
    for (id, inode) in &found.inodes {
        let extents = found.extents.get(id).map_or(&[] as &[Extent], Vec::as_slice);
        if NodeType::of_mode(inode.mode) != Some(NodeType::Regular) {
            ensure(extents.is_empty(), *id, "has extents and is no regular file")?;
            continue;
        }
        ensure(inode.stored == extents.iter().map(|e| e.length).sum::<u64>(), *id, "stored bytes are not its extents")?;
        let mark = found.cuts.get(id).copied().unwrap_or(u64::MAX);
        ensure(inode.size <= mark, *id, "the size goes beyond the mark of its cut")?;
        for extent in extents {
            let part_or_stale = extent.end() <= inode.size || extent.file_offset >= mark;
            ensure(part_or_stale, *id, "an extent goes beyond the size, or crosses the mark of a cut")?;
        }
        for pair in extents.windows(2) {
            ensure(pair[0].end() <= pair[1].file_offset, *id, "extents overlap")?;
            ensure(!pair[0].is_continued_by(&pair[1]), *id, "neighbours that could be one extent")?;
        }
        for extent in extents {
            check_free(found, *id, extent)?;
        }
    }
    Ok(())
}

/// Nothing that an extent names is to be freed, on any of its columns.
fn check_free(found: &Found, id: u64, extent: &Extent) -> Result<(), Violation> {
    let (first, end) = extent.blocks();
    // No block in a whole shard is freed by its file.
    if crate::whole_shards::is_in_whole_shards(first) {
        for (from, until) in crate::whole_shards::in_files(first, end) {
            let freed = found.free.range((extent.pg, extent.index, from)..(extent.pg, extent.index, until)).next();
            ensure(freed.is_none(), id, "a block of a whole shard that an extent names is to be freed")?;
        }
        return Ok(());
    }
    let mut chunks = vec![(extent.pg, extent.index)];
    if let ExtentKind::Set(stripe) = extent.kind {
        let columns = found.sets.get(&(id, extent.pg, extent.index)).cloned().unwrap_or_default();
        ensure(columns.len() == usize::from(stripe.columns()), id, "an extent lacks its stripe set")?;
        ensure(columns[0] == chunks[0], id, "a stripe set is not named by its first chunk")?;
        chunks = columns;
    }
    for (pg, index) in chunks {
        let freed = found.free.range((pg, index, first)..(pg, index, end)).next();
        ensure(freed.is_none(), id, "a block that an extent names is to be freed")?;
    }
    Ok(())
}

fn broken(inode: u64, rule: String) -> Violation {
    Violation { inode, rule }
}

pub(crate) fn ensure(holds: bool, inode: u64, rule: &str) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(broken(inode, rule.into())) }
}
