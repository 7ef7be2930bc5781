//! ListChanged: which inodes changed between a snapshot and a later state, by the images that were stored since: it
//! looks at what changed, not at what is there.
//!
//! A key that changed while a snapshot was the newest has an image under its number, and an image only ever goes to an
//! older snapshot. So the numbers from the older state on are gone through from the newest to the oldest: one that
//! moves meanwhile is met later, not missed.
//!
//! Invariants: told is every directory that was there before and is there later of which an entry or anything else
//! changed, with all directories above it (up to that of a later snapshot of a directory, which has nothing above it);
//! and everything else that was there before and is there later of which something changed that users see. Not told:
//! what was made since (it is an entry of a directory that changed), what is gone, what only lies elsewhere now. Not in
//! a volume of several partitions: what changed in one of them has directories above it in others. A page looks at
//! [`COUNT_MAX`] inodes at most, and climbs [`CLIMBS_MAX`] directories.
use crate::error::{OpError, Result};
use crate::key::INODE_BITS;
use crate::message::request::{self, Who};
use crate::message::writer::{put_bytes, put_element, put_varint};
use crate::namespace::Namespace;
use crate::snapshots::{NO_SUCH, NOT_ALLOWED, SNAPSHOT_LEVEL};
use cairn_types::{ErrorCode, InodeId};
use std::collections::BTreeSet;

const COUNT_MAX: usize = 4096;
const CLIMBS_MAX: usize = 16 << 10;
const INNER: u64 = (1 << INODE_BITS) - 1;

/// Where a page begins: under a number, from an inode on.
type Place = (u64, u64);

fn place(after: &[u8]) -> Result<Place> {
    let ([number, inode], []) = after.as_chunks::<8>() else { return Err(OpError::BAD_REQUEST) };
    Ok((u64::from_be_bytes(*number), u64::from_be_bytes(*inode)))
}

/// What a page tells.
#[derive(Default)]
struct Page {
    directories: BTreeSet<u64>,
    others: BTreeSet<u64>,
    climbed: usize,
}

impl Namespace {
    pub(crate) fn list_changed(&self, who: &Who<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::ListChanged::decode(bytes)?;
        if self.level < SNAPSHOT_LEVEL {
            return Err(OpError::new(ErrorCode::UnknownOperation, "snapshots are of feature level 10"));
        }
        if self.is_one_of_several() {
            let text = "what is above a directory may be in another partition: all has to be looked at";
            return Err(OpError::new(ErrorCode::UnknownOperation, text));
        }
        let owns = self.stored_inode(InodeId::ROOT.0).is_ok_and(|root| root.uid == who.uid);
        if !who.is_root() && !owns {
            return Err(NOT_ALLOWED);
        }
        let older = self.snapshots.at_number(request.older).ok_or(NO_SUCH)?;
        let newer = match request.newer {
            0 => None,
            number => Some(self.snapshots.at_number(number).filter(|at| at.number > older.number).ok_or(NO_SUCH)?),
        };
        let (then, later) = (self.view(older), newer.map(|at| self.view(at)));
        let (now, outward) = (later.as_ref().unwrap_or(self), newer.map_or(0, |at| at.outward));
        let (mut below, mut from) = (newer.map_or(u64::MAX, |at| at.number), 1);
        if !request.after.is_empty() {
            let (number, inode) = place(request.after)?;
            (below, from) = (below.min(number.saturating_add(1)), inode);
        }
        let mut left = match request.count_max as usize {
            0 => COUNT_MAX,
            count => count.min(COUNT_MAX),
        };
        let since = self.snapshots.created_ns(older.number);
        let mut page = Page::default();
        let mut next: Option<Place> = None;
        'all: for number in self.snapshots.numbers(older.number, below) {
            while let Some(inode) = self.tree.next_changed(number, from) {
                // What was made since comes behind all that was there.
                if inode >= older.inode_next {
                    break;
                }
                if left == 0 || page.climbed >= CLIMBS_MAX {
                    next = Some((number, inode));
                    break 'all;
                }
                left -= 1;
                from = inode + 1;
                self.note_changed(&then, older.outward, (now, outward), (inode, since), &mut page);
            }
            from = 1;
        }
        put_packed(out, 1, &page.directories);
        put_packed(out, 2, &page.others);
        if let Some((number, inode)) = next {
            put_bytes(out, 3, &[number.to_be_bytes(), inode.to_be_bytes()].concat());
        }
        Ok(())
    }

    fn note_changed(
        &self,
        then: &Namespace,
        before: u64,
        (now, outward): (&Namespace, u64),
        (inode, since): (u64, u64),
        page: &mut Page,
    ) {
        // What lost its last name is gone, also where somebody still has it open.
        let Ok(found) = now.live_inode(inode | outward) else { return };
        if found.nlink == 0 {
            return;
        }
        if found.is_dir() {
            // Up to one of which all above are told.
            let (mut at, mut above) = (inode, found.parent);
            while page.directories.insert(at) && at != InodeId::ROOT.0 {
                page.climbed += 1;
                at = above & INNER;
                let Ok(directory) = now.live_inode(at | outward) else { return };
                above = directory.parent;
            }
            return;
        }
        let is_untouched = then
            .live_inode(inode | before)
            .is_ok_and(|was| was.ctime == found.ctime && (was.generation == found.generation || found.ctime < since));
        if !is_untouched {
            page.others.insert(inode);
        }
    }
}

fn put_packed(out: &mut Vec<u8>, field: u32, numbers: &BTreeSet<u64>) {
    if numbers.is_empty() {
        return;
    }
    let mut packed = Vec::new();
    numbers.iter().for_each(|number| put_varint(&mut packed, *number));
    put_element(out, field, &packed);
}
