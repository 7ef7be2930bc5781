//! Entries of directories whose inodes other partitions have: what is known of them where the directory is are number
//! and type, the rest is asked for where they are.
//!
//! Invariants: nobody is shown attributes that are not known; a page of a directory costs a call for each partition and
//! 256 entries, not one for each entry. An entry may go between both answers: then its name is looked up again.
use super::Volume;
use super::totals::AT_ONCE;
use crate::attributes::{Attributes, FileKind};
use crate::encoded_message::EncodedMessage;
use crate::error::Result;
use crate::listing::{DirEntry, DirPage};
use crate::meta::route::{ROUTES_MAX, To};
use crate::stage_status::StageStatus;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::meta::*;
use futures_util::stream::{self, StreamExt as _};
use std::collections::BTreeMap;
use std::time::Duration;

/// Inodes of one request.
pub const GETATTR_MANY_MAX: usize = 256;
/// Lookups of a name that goes and comes.
pub(super) const LOOKUPS_MAX: u32 = 4;
/// What is said of a name that leads to nothing each time.
pub(crate) const NO_INODE: &str = "the name is there and its inode is not, each time that it was looked up: repeat if others work on it; \
     else `cairn admin fsck --repair` takes the name away";
/// What entries of a listing may take for their attributes: an election, and an answer that may be old.
const MOMENT: Duration = Duration::from_secs(4);
/// x: may look up names.
const SEARCH: u32 = 1;

impl Volume {
    /// The partition that has an inode.
    pub async fn partition_of(&self, inode: u64) -> Result<u32> {
        self.caller.partition_of(inode).await
    }

    /// All partitions of the volume, the root directory's first.
    pub async fn partitions(&self) -> Result<Vec<u32>> {
        self.caller.partitions().await
    }

    /// How encoding of files with a later scheme goes on in each partition.
    pub async fn stage_status(&self) -> Result<Vec<(u32, StageStatus)>> {
        let mut all = Vec::new();
        for partition in self.caller.partitions().await? {
            let what = format!("encoding in volume {}, partition p{partition}", self.name());
            let request = StageStatusRequest { header: Some(self.caller.read_header(partition)) };
            let status = self.caller.read(&what, partition, Opcode::StageStatus, request).await?;
            all.push((partition, StageStatus::of_wire(status)));
        }
        Ok(all)
    }

    /// Attributes of an entry of which its directory's partition may have told number and type alone. `None`: it went
    /// meanwhile, it is to be looked up again.
    pub(super) async fn whole(&self, what: &str, found: Attributes) -> Result<Option<Attributes>> {
        if !found.is_placeholder() {
            return Ok(Some(self.with_shards(found).await?));
        }
        match self.getattr(found.inode).await {
            Ok(found) => Ok((found.nlink > 0).then_some(found)),
            Err(error) if error.code() == Some(ErrorCode::Stale) => Ok(None),
            Err(error) => Err(error.named(what)),
        }
    }

    /// Attributes of inodes, in their order; those that are gone are left out.
    pub async fn getattr_many(&self, inodes: &[u64]) -> Result<Vec<Attributes>> {
        let (mut found, locked) = self.getattr_unlocked(inodes).await?;
        let sharded: Vec<u64> = found.values().filter(|one| one.shards > 0).map(|one| one.inode).collect();
        let asked: Vec<_> = locked.into_iter().chain(sharded).map(|inode| self.getattr(inode)).collect();
        let mut answers = stream::iter(asked).buffer_unordered(AT_ONCE);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(one) => drop(found.insert(one.inode, one)),
                Err(error) if error.code() == Some(ErrorCode::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(inodes.iter().filter_map(|inode| found.get(inode).copied()).collect())
    }

    /// The same of those that no operation across partitions has locked, and those that one has.
    async fn getattr_unlocked(&self, inodes: &[u64]) -> Result<(BTreeMap<u64, Attributes>, Vec<u64>)> {
        let mut locked = Vec::new();
        let mut found: BTreeMap<u64, Attributes> = BTreeMap::new();
        let mut open = inodes.to_vec();
        for round in 1.. {
            // By delegation, too: a request is for one of them, or for none.
            let mut parts: BTreeMap<(u32, Option<u64>), Vec<u64>> = BTreeMap::new();
            for inode in std::mem::take(&mut open) {
                let place = (self.caller.partition_of(inode).await?, self.caller.led_by(inode));
                parts.entry(place).or_default().push(inode);
            }
            let parts = parts
                .iter()
                .flat_map(|((partition, _), all)| all.chunks(GETATTR_MANY_MAX).map(|part| (*partition, part)));
            let asked: Vec<_> = parts.map(|(partition, part)| self.getattr_part(partition, part.to_vec())).collect();
            let mut answers = stream::iter(asked).buffer_unordered(AT_ONCE);
            while let Some((partition, part, answer)) = answers.next().await {
                match answer {
                    Ok(answer) => {
                        found.extend(answer.attributes.into_iter().map(|one| (one.inode, Attributes::of_wire(one))));
                        locked.extend(answer.locked);
                    }
                    Err(error) => {
                        let is_elsewhere = error.code() == Some(ErrorCode::UnknownPartition)
                            && self.caller.is_elsewhere(To { partition, by: &part }).await;
                        if !is_elsewhere || round == ROUTES_MAX {
                            return Err(error);
                        }
                        open.extend(part);
                    }
                }
            }
            if open.is_empty() {
                break;
            }
        }
        Ok((found, locked))
    }

    async fn getattr_part(&self, partition: u32, part: Vec<u64>) -> (u32, Vec<u64>, Result<GetattrManyResponse>) {
        let make = |header| {
            EncodedMessage::of(&GetattrManyRequest { header: Some(header), inodes: part.clone(), apart: true })
        };
        let what = format!("{} inodes of partition p{partition}", part.len());
        match self.caller.answered_here(&what, Opcode::GetattrMany, &make).await {
            Ok(None) => {}
            led => {
                let answer = led.and_then(|answer| answer.unwrap_or_default().answer(&what));
                return (partition, part, answer);
            }
        }
        let request = make(self.caller.read_header(partition));
        let answer = self.caller.read_at(&what, To { partition, by: &part }, Opcode::GetattrMany, request).await;
        (partition, part, answer.and_then(|answer| answer.answer(&what)))
    }

    /// Asks for the attributes that a page of a directory lacks because other partitions have the inodes. What does not
    /// answer in a moment is left out: who needs it asks by himself. Entries that went meanwhile are taken out.
    pub(super) async fn complete_page(&self, directory: u64, page: &mut DirPage) -> Result<()> {
        // What a sharded directory says of itself is not all.
        page.entries
            .iter_mut()
            .filter(|e| e.attributes.is_some_and(|a| a.shards > 0))
            .for_each(|e| e.attributes = None);
        let lacks: Vec<u64> = page.entries.iter().filter(|e| e.attributes.is_none()).map(|e| e.inode).collect();
        if lacks.is_empty() || !self.may_search(directory, page).await? {
            return Ok(());
        }
        let mut parts: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for inode in lacks {
            parts.entry(self.caller.partition_of(inode).await?).or_default().push(inode);
        }
        // Each for itself: one that does not answer keeps nothing of the others.
        let asked: Vec<_> = parts.into_values().map(|part| self.getattr_in_a_moment(part)).collect();
        let answers: Vec<_> = stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
        let (mut found, mut gone) = (BTreeMap::new(), Vec::new());
        for (part, answer) in answers {
            let Some(answer) = answer else { continue };
            found.extend(answer.into_iter().filter(|one| one.nlink > 0).map(|one| (one.inode, one)));
            gone.extend(part.into_iter().filter(|inode| !found.contains_key(inode)));
        }
        for entry in page.entries.iter_mut().filter(|entry| entry.attributes.is_none()) {
            entry.attributes = found.get(&entry.inode).copied();
        }
        self.look_up_gone(directory, page, &gone).await
    }

    /// Without those of which nothing can be said in time.
    async fn getattr_in_a_moment(&self, mut part: Vec<u64>) -> (Vec<u64>, Option<Vec<Attributes>>) {
        let until = tokio::time::Instant::now() + MOMENT;
        let (mut found, locked) = match tokio::time::timeout_at(until, self.getattr_unlocked(&part)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                tracing::debug!(%error, "entries are listed without their attributes");
                return (part, None);
            }
            Err(_) => return (part, None),
        };
        let sharded: Vec<u64> = found.values().filter(|one| one.shards > 0).map(|one| one.inode).collect();
        found.retain(|_, one| one.shards == 0);
        let locked = locked.into_iter().chain(sharded);
        let of_locked = |inode| async move { (inode, tokio::time::timeout_at(until, self.getattr(inode)).await) };
        let asked: Vec<_> = locked.map(of_locked).collect();
        let answers: Vec<_> = stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
        for (inode, answer) in answers {
            match answer {
                Ok(Ok(one)) => drop(found.insert(inode, one)),
                Ok(Err(error)) if error.code() == Some(ErrorCode::Stale) => {}
                Ok(Err(_)) | Err(_) => part.retain(|asked| *asked != inode),
            }
        }
        (part, Some(found.into_values().collect()))
    }

    /// Whether the caller may see what is behind the names of a directory, of which the page tells if it has any entry
    /// of the directory's own partition.
    async fn may_search(&self, directory: u64, page: &DirPage) -> Result<bool> {
        if self.who().uid == 0 || page.entries.iter().any(|entry| entry.attributes.is_some()) {
            return Ok(true);
        }
        let (own, view) = (self.caller.partition_of(directory).await?, self.cluster().view());
        let is_own = |entry: &DirEntry| view.partition_of(self.id(), entry.inode).is_some_and(|p| p.id == own);
        if page.entries.iter().all(is_own) {
            return Ok(false);
        }
        match self.access_inode(directory, SEARCH).await {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some(ErrorCode::PermissionDenied) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What was gone when its attributes were asked for has another inode by now, or is no entry any more. A name that
    /// leads to nothing each time keeps no attributes: it keeps nobody from the others.
    async fn look_up_gone(&self, directory: u64, page: &mut DirPage, gone: &[u64]) -> Result<()> {
        if gone.is_empty() {
            return Ok(());
        }
        let mut kept = Vec::with_capacity(page.entries.len());
        for mut entry in std::mem::take(&mut page.entries) {
            if entry.attributes.is_none() && gone.contains(&entry.inode) {
                match self.lookup(directory, &entry.name, &entry.name).await {
                    Ok(now) => {
                        let kind = FileKind::of_mode(now.mode).unwrap_or(entry.kind);
                        (entry.inode, entry.kind, entry.attributes) = (now.inode, kind, Some(now));
                    }
                    Err(error) if error.is_not_found() => continue,
                    Err(error) if error.code() == Some(ErrorCode::Stale) => {}
                    Err(error) => return Err(error),
                }
            }
            kept.push(entry);
        }
        page.entries = kept;
        Ok(())
    }
}
