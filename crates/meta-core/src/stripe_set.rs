//! Stripe sets: the chunks that a file striped over replicated chunks lies on. Values of the keys (inode, stripe set,
//! placement group and index of the first chunk, part): at most [`PART_COLUMNS`] columns each.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10 |
//! | 1 | varints | for each column: placement group, index of the chunk |
//!
//! Invariants: an extent of a stripe set has its record, with as many columns as the extent says; a record is never
//! changed; it goes with the last extent that names it (or with the file, where finding that out would take too long).
use crate::encoding::Extent;
use crate::encoding::varint::Cursor;
use crate::error::{OpError, Result};
use crate::key;
use crate::limits::{SET_COLUMNS_PUBLISH_MAX, SHARED_BLOCK_SCAN_MAX};
use crate::message::reader::{Reader, RepeatedMessages, RepeatedNumbers};
use crate::message::writer::{put_message, put_number, put_varint};
use crate::namespace::Namespace;
use cairn_tree::Tree;
use cairn_types::{ErrorCode, ExtentKind};

const TAG: u8 = 0x10;
/// Columns of one record: it stays small beside a page of the tree.
const PART_COLUMNS: usize = 64;

/// Chunks of the columns, in order: placement group and index.
pub(crate) type Columns = Vec<(u32, u32)>;

/// Appends the value of one part.
pub(crate) fn encode_part(columns: &[(u32, u32)], out: &mut Vec<u8>) {
    out.push(TAG);
    for (pg, index) in columns {
        put_varint(out, u64::from(*pg));
        put_varint(out, u64::from(*index));
    }
}

/// Reads the value of one part; `None` if no version wrote it.
pub(crate) fn decode_part(value: &[u8], columns: &mut Columns) -> Option<()> {
    let mut cursor = Cursor::new(value);
    if cursor.byte()? != TAG {
        return None;
    }
    while cursor.end().is_none() {
        columns.push((cursor.varint_u32()?, cursor.varint_u32()?));
    }
    Some(())
}

/// Columns of an extent of a stripe set.
fn width(extent: &Extent) -> Option<usize> {
    match extent.kind {
        ExtentKind::Set(stripe) => Some(usize::from(stripe.columns())),
        _ => None,
    }
}

fn decode_set(bytes: &[u8]) -> Result<Columns> {
    let (mut pg, mut index) = (0, 0);
    let mut numbers = [RepeatedNumbers::new(bytes, 3, true), RepeatedNumbers::new(bytes, 4, true)];
    let mut reader = Reader::new(bytes);
    while let Some((field, value)) = reader.next()? {
        match field {
            1 => pg = value.u32()?,
            2 => index = value.u32()?,
            3 | 4 => numbers[field as usize - 3].is_empty = false,
            _ => {}
        }
    }
    let mut lists = [Vec::new(), Vec::new()];
    for (numbers, list) in numbers.iter().zip(&mut lists) {
        numbers.visit(|number| {
            list.push(u32::try_from(number).ok());
            list.len() <= SET_COLUMNS_PUBLISH_MAX
        })?;
    }
    let [pgs, indices] = lists;
    let columns: Option<Columns> = pgs.iter().zip(&indices).map(|(pg, index)| Some(((*pg)?, (*index)?))).collect();
    match columns {
        Some(columns) if pgs.len() == indices.len() && columns.first() == Some(&(pg, index)) => Ok(columns),
        _ => invalid("the columns of a stripe set do not fit together"),
    }
}

fn invalid<T>(text: &'static str) -> Result<T> {
    Err(OpError::new(ErrorCode::InvalidArgument, text))
}

impl Namespace {
    /// Checks the stripe sets of a request against its checked extents in `scratch.incoming`; leaves them in
    /// `scratch.sets`. Sets that the file has already (`inode`) need not be sent again.
    pub(crate) fn check_sets(&mut self, messages: &RepeatedMessages<'_>, inode: Option<u64>) -> Result<()> {
        let mut sets: Vec<Columns> = Vec::new();
        let mut total = 0;
        messages.visit(|bytes| {
            let columns = decode_set(bytes)?;
            total += columns.len();
            if total > SET_COLUMNS_PUBLISH_MAX {
                return invalid("at most 8192 columns of stripe sets in one request");
            }
            sets.push(columns);
            Ok(())
        })?;
        sets.sort_unstable();
        if sets.windows(2).any(|pair| pair[0][0] == pair[1][0]) {
            return invalid("a stripe set is named twice");
        }
        let mut named = vec![false; sets.len()];
        for extent in &self.scratch.incoming {
            let Some(width) = width(extent) else { continue };
            let sent = sets.binary_search_by_key(&(extent.pg, extent.index), |columns| columns[0]);
            let columns = match (sent, inode) {
                (Ok(at), _) => {
                    named[at] = true;
                    sets[at].len()
                }
                (Err(_), Some(inode)) => self.set_columns(inode, extent.pg, extent.index)?.len(),
                (Err(_), None) => 0,
            };
            if columns != width {
                return invalid("an extent names a stripe set that is unknown or has another number of columns");
            }
        }
        if named.contains(&false) {
            return invalid("a stripe set that no extent names");
        }
        for columns in &sets {
            let known = inode.map(|inode| self.set_columns(inode, columns[0].0, columns[0].1)).transpose()?;
            if known.is_some_and(|known| !known.is_empty() && known != *columns) {
                return invalid("a stripe set is known with other columns");
            }
        }
        self.scratch.sets = sets;
        Ok(())
    }

    /// Stores the checked sets of a request.
    pub(crate) fn put_sets(&mut self, inode: u64) {
        for columns in std::mem::take(&mut self.scratch.sets) {
            let (pg, index) = columns[0];
            for (part, columns) in columns.chunks(PART_COLUMNS).enumerate() {
                let value = &mut self.scratch.value;
                value.clear();
                encode_part(columns, value);
                self.tree.put(key::stripe_set(inode, pg, index, part as u16).as_bytes(), value);
            }
        }
    }

    /// Columns of a set; empty if the file has no such set.
    pub(crate) fn set_columns(&self, inode: u64, pg: u32, index: u32) -> Result<Columns> {
        let mut range = self.tree.prefix(key::stripe_set_prefix(inode, pg, index).as_bytes());
        let mut columns = Columns::new();
        while let Some((_, value)) = range.next() {
            decode_part(value, &mut columns).ok_or(OpError::DAMAGED)?;
        }
        Ok(columns)
    }

    /// Removes the records of sets that pieces taken from the file named and nothing in it names any more.
    pub(crate) fn drop_unused_sets(&mut self, inode: u64, pieces: &[Extent]) -> Result<()> {
        let mut candidates: Columns =
            pieces.iter().filter(|piece| width(piece).is_some()).map(|piece| (piece.pg, piece.index)).collect();
        candidates.sort_unstable();
        candidates.dedup();
        if candidates.is_empty() {
            return Ok(());
        }
        let mut scanned = 0;
        self.visit_extents(inode, 0, u64::MAX, |extent| {
            candidates.retain(|set| *set != (extent.pg, extent.index));
            scanned += 1;
            scanned <= SHARED_BLOCK_SCAN_MAX && !candidates.is_empty()
        })?;
        if scanned > SHARED_BLOCK_SCAN_MAX {
            return Ok(());
        }
        for (pg, index) in candidates {
            self.tree.remove_prefix(key::stripe_set_prefix(inode, pg, index).as_bytes());
        }
        Ok(())
    }

    /// Appends the sets that extents of an answer name, as field `field`.
    pub(crate) fn answer_sets(&self, inode: u64, field: u32, mut named: Columns, out: &mut Vec<u8>) -> Result<()> {
        named.sort_unstable();
        named.dedup();
        for (pg, index) in named {
            let columns = self.set_columns(inode, pg, index)?;
            put_message(out, field, |out| {
                put_number(out, 1, u64::from(pg));
                put_number(out, 2, u64::from(index));
                put_message(out, 3, |out| columns.iter().for_each(|column| put_varint(out, u64::from(column.0))));
                put_message(out, 4, |out| columns.iter().for_each(|column| put_varint(out, u64::from(column.1))));
            });
        }
        Ok(())
    }
}

/// Columns of a set of a file; empty if it has no such set.
pub(crate) fn columns_in(tree: &Tree, inode: u64, pg: u32, index: u32) -> Result<Columns> {
    let prefix = key::stripe_set_prefix(inode, pg, index);
    let mut columns = Columns::new();
    let mut range = tree.prefix(prefix.as_bytes());
    while let Some((_, value)) = range.next() {
        decode_part(value, &mut columns).ok_or(OpError::DAMAGED)?;
    }
    Ok(columns)
}

/// The set that an extent names, if it is striped over one.
pub(crate) fn set_of(extent: &Extent) -> Option<(u32, u32)> {
    width(extent).map(|_| (extent.pg, extent.index))
}

#[cfg(test)]
mod tests;
