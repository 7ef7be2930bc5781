//! CloneRange: a range of a file comes to name the same bytes as a range of another one.
//!
//! Nothing is copied: the source's extents are marked as shared, the target gets the same ones, and the blocks' records
//! count both (`shares`). All or nothing of what the answer's length says; it stops before what cannot be shared, and
//! the caller copies that.
//!
//! Invariants: the source names the bytes in the same entry in which the target comes to name them, so what nobody
//! names any more is never named again, whoever wrote it; nobody may overwrite the source in place meanwhile, and
//! nobody ever will what is shared now (its contents' version is raised, so that clients ask for its extents again).
use crate::encoding::{Extent, Inode};
use crate::error::{OpError, Result};
use crate::extent_map::join;
use crate::limits::{CLONE_EXTENTS_MAX, CLONE_PROOFS_MAX, FILE_SIZE_MAX, REPLACED_EXTENTS_MAX, SHARED_BLOCK_SCAN_MAX};
use crate::message::request;
use crate::message::writer::{put_attributes, put_number};
use crate::namespace::{Context, Namespace};
use crate::permission::{EXEC, READ, check_owner, killed_privileges, mode_after_write};
use crate::shares::places;
use crate::stripe_set::set_of;
use crate::view::is_apart;
use cairn_types::{BLOCK_SIZE, ErrorCode, Layout};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// What is shared of the source.
pub(super) struct Part {
    /// End in the source.
    pub end: u64,
    /// Cut to the range.
    pub extents: Vec<Extent>,
}

impl Namespace {
    pub(crate) fn clone_range(&mut self, context: &Context<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::CloneRange::decode(bytes)?;
        check_range(&request)?;
        if self.has_views() && is_apart(request.source) {
            return self.clone_then(context, &request, out);
        }
        let source = self.clone_source(&request, context)?;
        let mut inode = self.writable_file(request.inode, context)?;
        if request.if_data_version != 0 && request.if_data_version != inode.data_version {
            return Err(OpError::CHANGED);
        }
        if source.volatile.is_some() || inode.volatile.is_some() {
            return Err(OpError::VOLATILE);
        }
        let to = request.offset + request.length;
        if request.source != request.inode && self.has_extents(request.inode, &inode, request.offset, to)? {
            self.check_lease(request.inode, &inode, context.session, request.lease)?;
        }
        if inode.stored == 0 && (inode.layout ^ source.layout) & !Layout::STAGE_BITS == 0 {
            // What is shared is of the scheme that the source is in; it is looked at anew where that is not its own.
            inode.layout = source.layout;
        }
        let part = match inode.holds_alike(&source) {
            true => self.shareable(&request)?,
            false => Part { end: request.source_offset, extents: Vec::new() },
        };
        let length = part.end - request.source_offset;
        let to = request.offset + length;
        if length > 0 {
            self.check_growth(&request, &inode, &part, to)?;
            let end = inode.size.max(to);
            self.clear_stale(request.inode, &mut inode, end)?;
            let newly = self.mark_source(request.source, &part)?;
            self.put_clone(&request, &mut inode, part, to, context)?;
            if newly && request.source != request.inode {
                let mut source = self.inode(request.source)?;
                source.data_version += 1;
                source.generation = source.generation.wrapping_add(1);
                self.put_inode(request.source, &source);
            }
        }
        put_number(out, 1, length);
        put_attributes(out, 2, request.inode, &inode);
        let source = self.inode(request.source)?;
        put_attributes(out, 3, request.source, &source);
        Ok(())
    }

    /// The source, if the caller may read it and nobody may be changing its blocks.
    pub(super) fn clone_source(&mut self, request: &request::CloneRange, context: &Context<'_>) -> Result<Inode> {
        let source = self.live_inode(request.source).map_err(|error| self.apart(error, request.inode))?;
        if source.is_dir() {
            return Err(OpError::IS_DIRECTORY);
        }
        if !source.is_regular() {
            return Err(OpError::new(ErrorCode::InvalidArgument, "only regular files have contents"));
        }
        let may_read = self.allows(request.source, &source, &context.who, READ)
            || self.allows(request.source, &source, &context.who, EXEC)
            || check_owner(&source, &context.who).is_ok()
            || self.hold_of(context.session, request.source).is_some();
        if !may_read {
            return Err(OpError::READ_DENIED);
        }
        if request.source_offset + request.length > source.size {
            return Err(OpError::new(ErrorCode::InvalidArgument, "the range goes beyond the end of the source"));
        }
        if request.if_source_version != 0 && request.if_source_version != source.data_version {
            return Err(OpError::CHANGED);
        }
        self.check_lease(request.source, &source, context.session, 0)?;
        Ok(source)
    }

    /// What can be shared of the range, from its beginning on.
    fn shareable(&self, request: &request::CloneRange) -> Result<Part> {
        let (from, to) = (request.source_offset, request.source_offset + request.length);
        let none = Part { end: from, extents: Vec::new() };
        if self.is_being_cut(request.source)? {
            return Ok(none);
        }
        let target = (request.offset, request.offset + request.length);
        if self.few_extents(request.inode, target.0, target.1, REPLACED_EXTENTS_MAX)?.is_none() {
            return Ok(none);
        }
        let mut found = Vec::new();
        self.visit_extents(request.source, from, to, |extent| {
            found.push(extent);
            found.len() <= CLONE_EXTENTS_MAX
        })?;
        let mut part = Part { end: to, extents: Vec::with_capacity(found.len()) };
        let mut proofs = 0;
        for extent in found {
            let full = part.extents.len() == CLONE_EXTENTS_MAX;
            if full || set_of(&extent).is_some() || !self.is_alone(request.source, &extent, &mut proofs)? {
                part.end = extent.file_offset.max(from);
                break;
            }
            part.extents.push(extent.part(extent.file_offset.max(from), extent.end().min(to)));
        }
        Ok(part)
    }

    /// Whether no other place of the file names the blocks at the ends of an extent that it has in part only. False
    /// when that would take too long to find out.
    pub(super) fn is_alone(&self, inode: u64, extent: &Extent, proofs: &mut usize) -> Result<bool> {
        let granule = extent.granule();
        let whole = extent.chunk_offset.is_multiple_of(granule) && extent.chunk_end().is_multiple_of(granule);
        if whole || extent.shared {
            return Ok(true);
        }
        *proofs += 1;
        if *proofs > CLONE_PROOFS_MAX {
            return Ok(false);
        }
        let (mut alone, mut scanned) = (true, 0);
        let (first, end) = extent.blocks();
        self.visit_extents(inode, 0, u64::MAX, |other| {
            let (from, to) = other.blocks();
            let apart = |e: &Extent| e.file_offset.wrapping_sub(e.chunk_offset);
            let elsewhere = other.is_same_chunk(extent) && apart(&other) != apart(extent);
            alone &= !(elsewhere && from < end && first < to);
            scanned += 1;
            alone && scanned <= SHARED_BLOCK_SCAN_MAX
        })?;
        Ok(alone && scanned <= SHARED_BLOCK_SCAN_MAX)
    }

    pub(super) fn check_growth(
        &self,
        request: &request::CloneRange,
        inode: &Inode,
        part: &Part,
        to: u64,
    ) -> Result<()> {
        self.check_memory()?;
        if !self.has_quota(inode.quota) {
            return Ok(());
        }
        let gained: u64 = part.extents.iter().map(|extent| extent.length).sum();
        let mut lost = 0;
        self.visit_extents(request.inode, request.offset, to, |old| {
            lost += old.end().min(to) - old.file_offset.max(request.offset);
            true
        })?;
        self.check_quota(inode.quota, gained.saturating_sub(lost), 0)
    }

    /// Marks what is shared of the source, by whole blocks; false if all of it was already.
    pub(super) fn mark_source(&mut self, id: u64, part: &Part) -> Result<bool> {
        let shared = places(part.extents.iter().filter(|extent| !extent.shared));
        let Some(from) = shared.iter().map(|place| place.file_range().0).min() else { return Ok(false) };
        let to = shared.iter().map(|place| place.file_range().1).max().unwrap_or(from);
        let (mut before, mut after, mut newly) = (Vec::new(), Vec::new(), Vec::new());
        // Neighbours may be shared already: then they are one extent with what becomes so.
        self.visit_extents(id, from.saturating_sub(1), to.saturating_add(1), |extent| {
            before.push(extent);
            true
        })?;
        for extent in &before {
            let mut at = extent.file_offset;
            let first = shared.partition_point(|place| {
                let apart = extent.file_offset as i64 - extent.chunk_offset as i64;
                (place.pg, place.index, place.apart) < (extent.pg, extent.index, apart)
            });
            let own = shared[first..].iter().take_while(|place| place.has(extent)).filter(|_| !extent.shared);
            for (from, to) in own.map(|place| place.file_range()) {
                let (from, to) = (from.clamp(at, extent.end()), to.clamp(at, extent.end()));
                if from >= to {
                    continue;
                }
                if at < from {
                    after.push(extent.part(at, from));
                }
                newly.push(Extent { shared: true, ..extent.part(from, to) });
                after.extend(newly.last());
                at = to;
            }
            if at < extent.end() {
                after.push(extent.part(at, extent.end()));
            }
        }
        after.dedup_by(|next, before| join(before, next));
        self.gain_references(id, &newly);
        self.swap_entries(id, &before, &after);
        Ok(true)
    }

    /// Puts the shared extents, and the holes between them, in place of what the target has in its range.
    pub(super) fn put_clone(
        &mut self,
        request: &request::CloneRange,
        inode: &mut Inode,
        part: Part,
        to: u64,
        context: &Context<'_>,
    ) -> Result<()> {
        if request.source == request.inode {
            // As it is since the source was marked.
            *inode = self.inode(request.inode)?;
        }
        let version = inode.data_version;
        if inode.stored > 0 {
            let lost = self.cut_range(request.inode, request.offset, to)?;
            self.lose_stored(inode, lost);
        }
        let moved = |extent: Extent| Extent {
            file_offset: extent.file_offset - request.source_offset + request.offset,
            shared: true,
            ..extent
        };
        self.scratch.incoming.clear();
        self.scratch.incoming.extend(part.extents.into_iter().map(moved));
        let gained: u64 = self.scratch.incoming.iter().map(|extent| extent.length).sum();
        if inode.stored == 0 {
            self.put_first_extents(request.inode);
        } else if gained > 0 {
            let change = self.replace_extents(request.inode)?;
            assert_eq!(change, gained as i64, "the target's range was cut out before");
        }
        self.gain_stored(inode, gained);
        self.set_size(request.inode, inode, inode.size.max(to))?;
        inode.data_version = version + 1;
        inode.mode = mode_after_write(inode, &context.who);
        if request.kill_privileges {
            inode.mode = killed_privileges(inode);
        }
        self.drop_capability(request.inode, inode);
        inode.touch_contents(context.now);
        if request.mtime_ns != 0 {
            inode.mtime = request.mtime_ns;
        }
        self.put_inode(request.inode, inode);
        Ok(())
    }
}

fn check_range(request: &request::CloneRange) -> Result<()> {
    let invalid = |text| Err(OpError::new(ErrorCode::InvalidArgument, text));
    let end = |offset: u64| offset.checked_add(request.length).filter(|end| *end <= FILE_SIZE_MAX);
    if request.length == 0 {
        return invalid("the range is empty");
    }
    if end(request.offset).is_none() || end(request.source_offset).is_none() {
        return Err(OpError::FILE_TOO_LARGE);
    }
    if request.offset % BLOCK != request.source_offset % BLOCK {
        return invalid("offsets in source and target differ modulo 4096");
    }
    if request.source == request.inode && request.offset.abs_diff(request.source_offset) < request.length {
        return invalid("the ranges overlap");
    }
    Ok(())
}
