//! OpenAppend, PublishAppend, CloseAppend, GetAppend: the chunk to which all that append records to a file write, and
//! what of it the file gets.
//!
//! Writers may be spread over *lanes*, each with appends of its own, one behind the other; what the file gets of one
//! goes behind what it got of the others.
//!
//! Invariants: a lane has at most one open append, its last one. The file gets the chunk's bytes in their order, each
//! once, at its end, in whole blocks while the append is open, so a block that the file has is never written again; and
//! nothing of a chunk after its append was closed. Repeating either is harmless, whoever does it. What the file got are
//! ordinary extents: they may be cut, moved, and shared. Not here: which bytes are whole records and durable (whoever
//! publishes knows that from the chunk's primary, or from a sealed chunk).
use crate::appending::{APPENDING_LEVEL, LANE_SHIFT, TOGETHER_LEVEL};
use crate::encoding::{AppendRecord, Extent, Inode};
use crate::error::{OpError, Result};
use crate::extent_map::UNBORN;
use crate::key::{self, Kind};
use crate::lend::AtLimit;
use crate::limits::FILE_SIZE_MAX;
use crate::message::request;
use crate::message::writer::{put_bytes, put_message, put_number, put_varint};
use crate::namespace::{Context, Namespace};
use crate::permission::mode_after_write;
use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX, ErrorCode, ExtentKind};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Closed appends of a file that are known: who wrote to one of them and was away meanwhile has to learn where it
/// ended.
const CLOSED_MAX: u64 = 64;
/// Lanes of a file.
const LANES_MAX: u32 = 16;

impl Namespace {
    pub(crate) fn get_append(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::GetAppend::decode(bytes)?;
        let inode = self.live_inode(request.inode)?;
        let found = match request.number {
            0 => self.last_append(request.inode, self.lane(request.lane)?)?,
            number => Some((number, self.append(request.inode, number)?)),
        };
        put_append(out, found, &inode);
        if request.number == 0 {
            let mut groups = Vec::new();
            self.visit_appending_of(request.inode, |_, append| put_varint(&mut groups, append.pg.into()));
            put_bytes(out, 3, &groups);
        }
        Ok(())
    }

    pub(crate) fn open_append(&mut self, context: &Context<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::OpenAppend::decode(bytes)?;
        let inode = self.writable_file(request.inode, context)?;
        let lane = self.lane(request.lane)?;
        let last = self.last_append(request.inode, lane)?;
        if let Some((_, append)) = last
            && append.open
        {
            put_append(out, last, &inode);
            return Ok(());
        }
        if last.map_or(0, |(number, _)| number) != request.after {
            return Err(OpError::CHANGED);
        }
        // What is written to the chunk is not refused any more: there is to be room for it, and for as much in each
        // other lane.
        let most = FILE_SIZE_MAX - u64::from(LANES_MAX) * CHUNK_SIZE_MAX;
        if self.level >= TOGETHER_LEVEL && inode.size.next_multiple_of(BLOCK) > most {
            let text =
                "records are appended to files of less than 2^63 - 2^30 bytes; truncate this one, or append to another";
            return Err(OpError::new(ErrorCode::FileTooLarge, text));
        }
        self.check_quota(inode.quota, CHUNK_SIZE_MAX, 0).map_err(|error| self.explain_quota(error))?;
        let before = request.after & ((1 << LANE_SHIFT) - 1);
        let number = lane << LANE_SHIFT | (before + 1);
        let append = AppendRecord {
            open: true,
            pg: request.pg,
            index: request.index,
            creation_epoch: request.creation_epoch,
            published: 0,
        };
        self.put_append_record(request.inode, number, &append);
        self.list_appending(request.inode, number, true);
        if let Some(old) = before.checked_sub(CLOSED_MAX) {
            self.tree.remove(key::append(request.inode, lane << LANE_SHIFT | old).as_bytes());
        }
        put_append(out, Some((number, append)), &inode);
        Ok(())
    }

    /// A quota may have room for the records that somebody means to append, and not for what they go to.
    fn explain_quota(&self, error: OpError) -> OpError {
        const TEXT: &str = "records go to the file in chunks of 64 MiB, and a quota around it has less than that free; remove files, or have \
                            it raised";
        let is_used_up = error.code == ErrorCode::QuotaExceeded && self.lending.at_limit != Some(AtLimit::Unreached);
        if is_used_up && self.level >= TOGETHER_LEVEL { OpError::new(error.code, TEXT) } else { error }
    }

    /// `close`: it came as `CloseAppend`.
    pub(crate) fn publish_append(
        &mut self,
        context: &Context<'_>,
        bytes: &[u8],
        out: &mut Vec<u8>,
        close: bool,
    ) -> Result<()> {
        let request = request::PublishAppend::decode(bytes)?;
        let mut inode = self.writable_file(request.inode, context)?;
        let more = self.published_with(&request, close)?;
        let all: Vec<(u64, u64)> = std::iter::once((request.number, request.to)).chain(more).collect();
        // All of it or nothing.
        let mut room = FILE_SIZE_MAX.saturating_sub(inode.size.next_multiple_of(BLOCK));
        for (number, to) in &all {
            let append = self.append(request.inode, *number)?;
            if append.open && (*to > CHUNK_SIZE_MAX || !close && !to.is_multiple_of(BLOCK)) {
                let text = "an open append is published in whole blocks of a chunk";
                return Err(OpError::new(ErrorCode::InvalidArgument, text));
            }
            if append.open {
                let length = to.saturating_sub(append.published);
                room = room.checked_sub(length).ok_or(OpError::FILE_TOO_LARGE)?;
            }
        }
        let mut appends = Vec::with_capacity(all.len());
        for (number, to) in all {
            let mut append = self.append(request.inode, number)?;
            if append.open {
                if to > append.published {
                    self.grow_by(request.inode, &mut inode, &append, to, context)?;
                    append.published = to;
                }
                append.open = !close;
                self.put_append_record(request.inode, number, &append);
                self.list_appending(request.inode, number, append.open);
            }
            appends.push((number, append));
        }
        put_append(out, Some(appends[0]), &inode);
        appends[1..].iter().for_each(|append| put_message(out, 4, |out| put_fields(out, *append)));
        Ok(())
    }

    /// The others that are to be published with it, of those that there are.
    fn published_with(&self, request: &request::PublishAppend<'_>, close: bool) -> Result<Vec<(u64, u64)>> {
        let mut more = Vec::new();
        if close || self.level < TOGETHER_LEVEL {
            return Ok(more);
        }
        request.more.visit(|bytes| {
            let other = request::PublishTo::decode(bytes)?;
            if more.len() + 1 >= LANES_MAX as usize {
                let text = "a file has open appends in 16 lanes, so 15 are published with one of them";
                return Err(OpError::new(ErrorCode::InvalidArgument, text));
            }
            if self.stored_append(request.inode, other.number).is_some() {
                more.push((other.number, other.to));
            }
            Ok(())
        })?;
        Ok(more)
    }

    /// Puts the chunk's bytes up to `to` at the end of the file.
    fn grow_by(
        &mut self,
        id: u64,
        inode: &mut Inode,
        append: &AppendRecord,
        to: u64,
        context: &Context<'_>,
    ) -> Result<()> {
        assert!(append.published.is_multiple_of(BLOCK), "while an append is open it is published in whole blocks");
        let file_offset = inode.size.next_multiple_of(BLOCK);
        let length = to - append.published;
        if file_offset > FILE_SIZE_MAX - length {
            return Err(OpError::FILE_TOO_LARGE);
        }
        let extent = Extent {
            file_offset,
            length,
            pg: append.pg,
            index: append.index,
            chunk_offset: append.published,
            kind: ExtentKind::Plain,
            shared: false,
            birth: UNBORN,
        };
        self.clear_stale(id, inode, extent.end())?;
        self.scratch.incoming.clear();
        self.scratch.incoming.push(extent);
        if inode.stored == 0 {
            self.put_first_extents(id);
        } else {
            self.replace_extents(id)?;
        }
        self.gain_stored(inode, length);
        let version = inode.data_version;
        self.set_size(id, inode, extent.end())?;
        inode.data_version = version + 1;
        inode.mode = mode_after_write(inode, &context.who);
        self.drop_capability(id, inode);
        inode.touch_contents(context.now);
        self.put_inode(id, inode);
        Ok(())
    }

    fn append(&self, inode: u64, number: u64) -> Result<AppendRecord> {
        let value = self.tree.get(key::append(inode, number).as_bytes());
        let value = value.ok_or(OpError::new(
            ErrorCode::NotFound,
            "the file has no open append of that number; its last 64 are known",
        ))?;
        AppendRecord::decode(value).ok_or(OpError::DAMAGED)
    }

    /// The lane that is meant.
    fn lane(&self, asked: u32) -> Result<u64> {
        if asked >= LANES_MAX {
            return Err(OpError::new(ErrorCode::InvalidArgument, "a file has open appends in 16 lanes"));
        }
        // Members of before know one.
        Ok(if self.level < APPENDING_LEVEL { 0 } else { u64::from(asked) })
    }

    fn last_append(&self, inode: u64, lane: u64) -> Result<Option<(u64, AppendRecord)>> {
        let prefix = key::prefix(inode, Kind::Append);
        let mut cursor = self.tree.cursor();
        if !cursor.seek_before(key::append(inode, (lane + 1) << LANE_SHIFT).as_bytes()) {
            return Ok(None);
        }
        let Some(suffix) = cursor.key().strip_prefix(prefix.as_bytes()) else { return Ok(None) };
        let found = key::number(suffix).zip(AppendRecord::decode(cursor.value()));
        let found = found.ok_or(OpError::DAMAGED)?;
        Ok(Some(found).filter(|(number, _)| number >> LANE_SHIFT == lane))
    }

    fn put_append_record(&mut self, inode: u64, number: u64, append: &AppendRecord) {
        let value = &mut self.scratch.value;
        value.clear();
        append.encode(value);
        self.tree.put(key::append(inode, number).as_bytes(), value);
    }
}

/// An `OpenAppendResponse`.
fn put_append(out: &mut Vec<u8>, append: Option<(u64, AppendRecord)>, inode: &Inode) {
    if let Some((number, append)) = append {
        put_message(out, 1, |out| put_fields(out, (number, append)));
    }
    put_number(out, 2, inode.size);
}

/// An `OpenAppend`.
fn put_fields(out: &mut Vec<u8>, (number, append): (u64, AppendRecord)) {
    put_number(out, 1, number);
    put_number(out, 2, u64::from(append.pg));
    put_number(out, 3, u64::from(append.index));
    put_number(out, 4, append.creation_epoch);
    put_number(out, 5, append.published);
    put_number(out, 6, u64::from(append.open));
}
