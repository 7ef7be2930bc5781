//! Bytes that are visible and not yet durable: published when all serving members had them in memory (`Publish` with
//! `durability` 1), made durable by their writer some seconds later, or never, if it and the members crash before.
//!
//! A file has at most one such range, noted in its attributes with the session that wrote it, and is listed as long as
//! it has one. The writer ends it (`NoteDurable`) when all members answered a sync; if its session ends before, the
//! leader asks the members what they have durably, and cuts the rest off (`EndVolatile`).
//!
//! Invariants: volatile bytes only add to a file: they replace nothing, and lie behind everything that it had. So what
//! was durable once stays, and the end of what a crash took is the end of the file. Nobody else's bytes lie in the
//! range: others may not replace any of it, nor share or move it, and a file with such a range never takes the name of
//! another one. Asking members is not here (`meta`).
use crate::encoding::{Inode, Volatile};
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::message::request;
use crate::namespace::{Context, Namespace};
use crate::session::SessionState;
use cairn_types::{ErrorCode, ExtentKind};

/// `durability` of bytes in the memory of all serving members.
pub(crate) const VOLATILE: u32 = 1;
/// `durability` of bytes that were such and are durable elsewhere.
pub(crate) const VOLATILE_MOVED: u32 = 2;
const LISTED: [u8; 1] = [0x10];
/// Extents of a file that are asked for at once.
const PARTS_MAX: usize = 4096;

/// A file with volatile bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolatileFile {
    pub inode: u64,
    pub session: u64,
    pub from: u64,
    pub to: u64,
}

/// A part of such a range in one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolatilePart {
    pub file_offset: u64,
    pub length: u64,
    pub pg: u32,
    pub index: u32,
    pub chunk_offset: u64,
}

impl Namespace {
    pub(crate) fn count_volatiles(&self) -> u64 {
        let prefix = key::prefix(0, Kind::Volatile);
        let mut range = self.tree.prefix(prefix.as_bytes());
        let mut count = 0;
        while range.next().is_some() {
            count += 1;
        }
        count
    }

    fn set_volatile(&mut self, id: u64, inode: &mut Inode, volatile: Option<Volatile>) {
        inode.volatile = volatile;
        match volatile {
            Some(_) => self.volatiles += u64::from(self.tree.put(key::volatile(id).as_bytes(), &LISTED)),
            None => self.forget_volatile(id),
        }
    }

    /// The file has nothing volatile any more, or goes as a whole.
    pub(crate) fn forget_volatile(&mut self, id: u64) {
        if self.volatiles > 0 {
            self.volatiles -= u64::from(self.tree.remove(key::volatile(id).as_bytes()));
        }
    }

    /// A regular file of which this session has volatile bytes.
    pub(crate) fn volatile_of(&self, id: u64, session: u64) -> Result<Inode> {
        let inode = self.live_inode(id)?;
        match inode.volatile {
            Some(volatile) if volatile.session == session => Ok(inode),
            _ => Err(OpError::CHANGED),
        }
    }

    /// Whether a publish, whose checked extents are in `scratch.incoming`, keeps the rules.
    pub(crate) fn check_volatile(
        &self,
        request: &request::Publish<'_>,
        inode: &Inode,
        context: &Context<'_>,
    ) -> Result<()> {
        let incoming = &self.scratch.incoming;
        let ends = (incoming.first(), incoming.last());
        match (request.durability, inode.volatile) {
            (0, None) => Ok(()),
            (0, Some(volatile)) => {
                let own = volatile.session == context.session && request.layout == 0;
                let meets = |from: u64, to: u64| from < volatile.to && to > volatile.from;
                let replaces = incoming.iter().any(|extent| meets(extent.file_offset, extent.end()));
                if !own && (replaces || request.layout != 0) { Err(OpError::VOLATILE) } else { Ok(()) }
            }
            (VOLATILE, volatile) => {
                let (Some(first), _) = ends else {
                    return Err(OpError::new(ErrorCode::InvalidArgument, "nothing was written that could be volatile"));
                };
                let plain = incoming.iter().all(|extent| extent.kind == ExtentKind::Plain);
                if !plain || request.layout != 0 || request.set_size {
                    let text = "only extents of replicated chunks that are added to a file may be volatile";
                    return Err(OpError::new(ErrorCode::InvalidArgument, text));
                }
                let follows = volatile.is_none_or(|v| v.session == context.session && v.to == inode.size);
                // Under a lease blocks may be overwritten in place, which members do only with durable ones.
                let follows = follows && inode.lease.is_none();
                // Whoever gets this writes it so that it is durable.
                if first.file_offset >= inode.size && follows { Ok(()) } else { Err(OpError::CHANGED) }
            }
            (VOLATILE_MOVED, Some(volatile)) => {
                let within = |(first, last): (u64, u64)| first >= volatile.from && last <= volatile.to;
                let own = ends.0.zip(ends.1).map(|(first, last)| (first.file_offset, last.end()));
                let versioned =
                    request.if_data_version != 0 && request.layout == 0 && !request.set_size && request.size == 0;
                if own.is_some_and(within) && versioned { Ok(()) } else { Err(OpError::CHANGED) }
            }
            _ => Err(OpError::new(
                ErrorCode::InvalidArgument,
                "how durable the extents are is not known to this version",
            )),
        }
    }

    /// What was put at the end of the file is volatile. Its size is the new one.
    pub(crate) fn add_volatile(&mut self, id: u64, inode: &mut Inode, session: u64) {
        let (first, last) = (self.scratch.incoming.first(), self.scratch.incoming.last());
        let (Some(from), Some(to)) = (first.map(|e| e.file_offset), last.map(|e| e.end())) else { return };
        let from = inode.volatile.map_or(from, |before| before.from);
        self.set_volatile(id, inode, Some(Volatile { session, from, to }));
    }

    /// The size has changed: what was cut off is not volatile either.
    pub(crate) fn trim_volatile(&mut self, id: u64, inode: &mut Inode) {
        if let Some(volatile) = inode.volatile.filter(|volatile| volatile.to > inode.size) {
            let left = (volatile.from < inode.size).then_some(Volatile { to: inode.size, ..volatile });
            self.set_volatile(id, inode, left);
        }
    }

    pub(crate) fn note_durable(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let mut files = Vec::new();
        request::NoteDurable::decode(bytes)?.files.visit(|bytes| {
            let file = request::DurableFile::decode(bytes)?;
            files.push((file.inode, file.to));
            Ok(())
        })?;
        if files.iter().any(|(id, _)| self.is_foreign(*id)) {
            return Err(OpError::ELSEWHERE);
        }
        for (id, to) in files {
            let Ok(mut inode) = self.volatile_of(id, context.session) else { continue };
            let left = inode.volatile.filter(|volatile| volatile.to > to);
            let left = left.map(|volatile| Volatile { from: volatile.from.max(to), ..volatile });
            inode.generation = inode.generation.wrapping_add(1);
            self.set_volatile(id, &mut inode, left);
            self.put_inode(id, &inode);
        }
        Ok(())
    }

    pub(crate) fn end_volatile(&mut self, bytes: &[u8]) -> Result<()> {
        let request = request::EndVolatile::decode(bytes)?;
        let Ok(mut inode) = self.live_inode(request.inode) else {
            self.forget_volatile(request.inode);
            return Ok(());
        };
        let asked = Volatile { session: request.session, from: request.from, to: request.to };
        if inode.volatile != Some(asked) || self.sessions.state(request.session) != SessionState::Ended {
            return Ok(());
        }
        // What somebody wrote behind the range and made durable stays, and what is missing before it answers errors.
        let followed = self.has_extents(request.inode, &inode, request.to, u64::MAX)?;
        if request.durable_to < request.to && !followed {
            self.set_size(request.inode, &mut inode, request.durable_to.max(request.from))?;
            inode.touch_contents(self.time);
        } else {
            inode.generation = inode.generation.wrapping_add(1);
        }
        self.set_volatile(request.inode, &mut inode, None);
        self.put_inode(request.inode, &inode);
        Ok(())
    }

    /// Files with volatile bytes of ended sessions: of up to `max` that are listed behind `after`; and the last that
    /// was looked at, `None` at the end of the list.
    pub fn ended_volatile(&self, after: u64, max: usize) -> (Vec<VolatileFile>, Option<u64>) {
        let prefix = key::prefix(0, Kind::Volatile);
        let (mut files, mut looked, mut last) = (Vec::new(), 0, after);
        if self.volatiles == 0 {
            return (files, None);
        }
        let mut cursor = self.tree.cursor();
        let mut found = cursor.seek(key::volatile(after.saturating_add(1)).as_bytes());
        while found {
            let Some(id) = cursor.key().strip_prefix(prefix.as_bytes()).and_then(key::number) else { break };
            if looked == max {
                return (files, Some(last));
            }
            (looked, last) = (looked + 1, id);
            let volatile = self.live_inode(id).ok().and_then(|inode| inode.volatile);
            if let Some(Volatile { session, from, to }) = volatile
                && self.sessions.state(session) == SessionState::Ended
            {
                files.push(VolatileFile { inode: id, session, from, to });
            }
            found = cursor.advance();
        }
        (files, None)
    }

    /// Extents of a volatile range in order, from an offset on, a bounded number.
    pub fn volatile_parts(&self, file: &VolatileFile, from: u64) -> Vec<VolatilePart> {
        let mut parts = Vec::new();
        let read = self.visit_extents(file.inode, from.max(file.from), file.to, |extent| {
            let extent = extent.part(extent.file_offset.max(file.from), extent.end().min(file.to));
            parts.push(VolatilePart {
                file_offset: extent.file_offset,
                length: extent.length,
                pg: extent.pg,
                index: extent.index,
                chunk_offset: extent.chunk_offset,
            });
            parts.len() < PARTS_MAX
        });
        // What cannot be read is found by the check.
        if read.is_err() { Vec::new() } else { parts }
    }

    /// Whether some of the extent at this offset of a file is not known to be durable yet: that members lack it is no
    /// damage.
    pub fn is_volatile(&self, inode: u64, offset: u64) -> bool {
        if self.volatiles == 0 {
            return false;
        }
        let Some(volatile) = self.stored_inode(inode).ok().and_then(|inode| inode.volatile) else { return false };
        let mut meets = false;
        let read = self.visit_extents(inode, offset, offset.saturating_add(1), |extent| {
            meets = extent.file_offset < volatile.to && extent.end() > volatile.from;
            false
        });
        read.is_ok() && meets
    }

    /// Files with volatile bytes.
    pub fn volatile_count(&self) -> u64 {
        self.volatiles
    }
}
