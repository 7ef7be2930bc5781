//! CloneRange out of a snapshot: a range of a file comes to name the same bytes as a range of what a file was.
//!
//! Each granule of the range is one of three: files share it already; the file as it is now names it, alone; or no file
//! names it any more, so that only a record of what snapshots keep has it. (There is no fourth: what a snapshot names
//! that no file names is kept, and what several places name is recorded as shared.) The second kind becomes shared as
//! by a clone of now, the third lives again (`lives`).
//!
//! Invariants: nothing is named by the target whose owners were not counted before; what the target loses in the same
//! entry was counted for it until then, so that nothing is freed and named again. The snapshot itself is not changed.
//! Not here: stripe sets, and files of other partitions: they are not shared, clients copy those.
use crate::encoding::Extent;
use crate::error::{OpError, Result};
use crate::extent_map::{BlockRange, joined};
use crate::key::INODE_BITS;
use crate::limits::{CLONE_EXTENTS_MAX, REPLACED_EXTENTS_MAX};
use crate::message::request;
use crate::message::writer::{put_attributes, put_number};
use crate::namespace::{Context, Namespace};
use crate::ops::clone_range::Part;
use crate::shares::Place;
use crate::stripe_set::set_of;
use crate::view::NOT_SHARED;
use cairn_types::Layout;

/// Feature level from which on files are cloned out of snapshots.
pub const CLONE_THEN_LEVEL: u16 = 13;

/// What a clone out of a snapshot is going to name.
#[derive(Default)]
struct Then {
    /// End in the source.
    end: u64,
    /// Cut to the range, and to parts whose granules are all of one kind.
    extents: Vec<Extent>,
    /// Those that the file of now names alone.
    own: Vec<Extent>,
    /// Blocks that no file names.
    gone: Vec<BlockRange>,
}

/// Who names a part of an extent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Places of files, maybe none any more.
    Shared {
        is_named: bool,
    },
    Own,
    Gone,
}

impl Namespace {
    pub(crate) fn clone_then(
        &mut self,
        context: &Context<'_>,
        request: &request::CloneRange,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        if self.level < CLONE_THEN_LEVEL {
            return Err(NOT_SHARED);
        }
        let mut view = self.view_of(request.source)?;
        let source = view.clone_source(request, context)?;
        let mut inode = self.writable_file(request.inode, context)?;
        if request.if_data_version != 0 && request.if_data_version != inode.data_version {
            return Err(OpError::CHANGED);
        }
        if inode.volatile.is_some() {
            return Err(OpError::VOLATILE);
        }
        let to = request.offset + request.length;
        if self.has_extents(request.inode, &inode, request.offset, to)? {
            self.check_lease(request.inode, &inode, context.session, request.lease)?;
        }
        if inode.stored == 0 && (inode.layout ^ source.layout) & !Layout::STAGE_BITS == 0 {
            // As with a clone of now: what is shared is of the scheme that the source was in.
            inode.layout = source.layout;
        }
        let then = match inode.holds_alike(&source) {
            true => self.shareable_then(&view, request)?,
            false => Then { end: request.source_offset, ..Then::default() },
        };
        drop(view);
        let length = then.end - request.source_offset;
        if length > 0 {
            let to = request.offset + length;
            let part = Part { end: then.end, extents: then.extents };
            self.check_growth(request, &inode, &part, to)?;
            let own = Part { end: then.end, extents: then.own };
            let now = request.source & ((1 << INODE_BITS) - 1);
            let newly = self.mark_source(now, &own)?;
            then.gone.into_iter().for_each(|range| self.note_return(range));
            // The target may be the last that names some of it, and is about to lose that.
            let mut blocks: Vec<BlockRange> = part.extents.iter().map(block_range).collect();
            let blocks = joined(&mut blocks);
            blocks.iter().for_each(|range| drop(self.change_references(*range, |references| references + 1)));
            let end = inode.size.max(to);
            self.clear_stale(request.inode, &mut inode, end)?;
            self.put_clone(request, &mut inode, part, to, context)?;
            blocks.iter().for_each(|range| drop(self.change_references(*range, |references| references - 1)));
            if newly && now != request.inode {
                // One that is about to be taken apart nobody reads any more.
                if let Ok(mut source) = self.stored_inode(now) {
                    source.data_version += 1;
                    source.generation = source.generation.wrapping_add(1);
                    self.put_inode(now, &source);
                }
            }
        }
        put_number(out, 1, length);
        put_attributes(out, 2, request.inode, &inode);
        put_attributes(out, 3, request.source, &source);
        Ok(())
    }

    /// What can be shared of the range, from its beginning on.
    fn shareable_then(&self, view: &Namespace, request: &request::CloneRange) -> Result<Then> {
        let (from, to) = (request.source_offset, request.source_offset + request.length);
        let none = Then { end: from, ..Then::default() };
        let now = request.source & ((1 << INODE_BITS) - 1);
        let target = (request.offset, request.offset + request.length);
        if self.stored_inode(now).is_ok_and(|inode| inode.volatile.is_some())
            || self.is_being_cut(now)?
            || view.is_being_cut(request.source)?
            || self.few_extents(request.inode, target.0, target.1, REPLACED_EXTENTS_MAX)?.is_none()
        {
            return Ok(none);
        }
        let mut found = Vec::new();
        view.visit_extents(request.source, from, to, |extent| {
            found.push(extent);
            found.len() <= CLONE_EXTENTS_MAX
        })?;
        let (mut then, mut proofs) = (Then { end: to, ..none }, 0);
        for whole in found {
            let extent = whole.part(whole.file_offset.max(from), whole.end().min(to));
            let is_full = then.extents.len() >= CLONE_EXTENTS_MAX;
            let kinds = match is_full || set_of(&extent).is_some() {
                true => None,
                false => self.kinds_of(now, &whole, &extent, &mut proofs)?,
            };
            let Some(kinds) = kinds else {
                then.end = extent.file_offset;
                break;
            };
            for (piece, kind) in kinds {
                then.add(piece, kind, self.birth());
            }
        }
        Ok(then)
    }

    /// An extent of a snapshot in parts of one kind; `None` if that would take too long to find out, or blocks that it
    /// has in part only are named by another place of the file too.
    fn kinds_of(
        &self,
        now: u64,
        whole: &Extent,
        extent: &Extent,
        proofs: &mut usize,
    ) -> Result<Option<Vec<(Extent, Kind)>>> {
        let place = Place::of(extent);
        let (from, to) = place.file_range();
        let Some(named) = self.few_extents(now, from, to, CLONE_EXTENTS_MAX)? else { return Ok(None) };
        let mut ranges: Vec<(u64, u64, Kind)> = Vec::new();
        for record in self.share_records(extent.pg, extent.index, place.first, place.end) {
            ranges.push((record.first_block, record.end_block(), Kind::Shared { is_named: record.references > 0 }));
        }
        let alone = named.iter().filter(|other| !other.shared && place.has(other)).map(Extent::blocks);
        ranges.extend(alone.map(|(first, end)| (first, end, Kind::Own)));
        let mut cuts: Vec<u64> = ranges.iter().flat_map(|(first, end, _)| [*first, *end]).collect();
        cuts.extend([place.first, place.end]);
        cuts.retain(|block| (place.first..=place.end).contains(block));
        cuts.sort_unstable();
        cuts.dedup();
        let mut parts: Vec<(Extent, Kind)> = Vec::new();
        for pair in cuts.windows(2) {
            let of = ranges.iter().find(|(first, end, _)| *first <= pair[0] && pair[1] <= *end);
            let kind = of.map_or(Kind::Gone, |(_, _, kind)| *kind);
            let offset = |block: u64| place.file_offset(block).clamp(extent.file_offset, extent.end());
            match parts.last_mut() {
                Some((last, before)) if *before == kind => last.length = offset(pair[1]) - last.file_offset,
                _ => parts.push((extent.part(offset(pair[0]), offset(pair[1])), kind)),
            }
        }
        let is_counted = |(_, kind): &(Extent, Kind)| matches!(kind, Kind::Shared { .. });
        let whole = Extent { shared: false, ..*whole };
        if !parts.iter().all(is_counted) && !self.is_alone(now, &whole, proofs)? {
            return Ok(None);
        }
        Ok(Some(parts))
    }
}

impl Then {
    /// What no file names begins a life of its own, after the newest snapshot.
    fn add(&mut self, piece: Extent, kind: Kind, birth: u64) {
        match kind {
            Kind::Shared { is_named: true } => self.extents.push(piece),
            Kind::Shared { is_named: false } => self.extents.push(Extent { birth, ..piece }),
            Kind::Own => {
                self.extents.push(piece);
                self.own.push(Extent { shared: false, ..piece });
            }
            Kind::Gone => {
                self.gone.push(block_range(&piece));
                self.extents.push(Extent { birth, ..piece });
            }
        }
    }
}

fn block_range(extent: &Extent) -> BlockRange {
    let (first, end) = extent.blocks();
    (extent.pg, extent.index, first, end)
}
