//! Changing a page: in place where its buffer is not shared and has room, else in a fresh buffer of the right size.
//!
//! Invariant: after each function the page is well formed and its buffer is at most one size class larger than needed
//! (removals leave up to [`SLACK_MAX`]). Whether a page may hold another entry at all is for the caller to decide.

use super::{
    AT_COUNT, AT_HEAP_LEN, AT_HINT, Flat, HEADER, Page, SLOT, capacity_for, entry_len, head_of, write_u16, write_u32,
};

/// A page with a larger gap than this after a removal is copied into a smaller buffer.
const SLACK_MAX: usize = 768;

/// Owner of a page's buffer.
pub(crate) trait PageBuf {
    fn bytes(&self) -> &[u8];
    /// True when nobody else can see the buffer.
    fn is_unique(&self) -> bool;
    /// The buffer for writing; only after [`PageBuf::is_unique`] said yes, or after [`PageBuf::replace`].
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Puts a copy of `bytes` in place of the buffer.
    fn replace(&mut self, bytes: &[u8]);
}

/// Buffers that are reused from one edit to the next.
#[derive(Default)]
pub(crate) struct Scratch {
    pub page: Vec<u8>,
    pub flat: Flat,
}

/// Inserts a new entry at `pos`. The key must sort there.
pub(crate) fn insert_entry<B: PageBuf>(buf: &mut B, pos: usize, key: &[u8], value: &[u8], scratch: &mut Scratch) {
    let page = Page::new(buf.bytes());
    let prefix_len = page.prefix().len();
    if !key.starts_with(page.prefix()) || page.count() == 0 {
        let count = page.count();
        let flat = &mut scratch.flat;
        flat.clear();
        flat.push_page(page, 0..pos);
        flat.push(key, value);
        flat.push_page(page, pos..count);
        flat.encode(0..count + 1, &mut scratch.page);
        write_u16(&mut scratch.page, AT_HINT, pos + 1);
        buf.replace(&scratch.page);
        return;
    }
    let suffix = &key[prefix_len..];
    let bytes = make_room(buf, SLOT + entry_len(suffix.len(), value.len()), scratch);
    insert_in_place(bytes, pos, suffix, value);
}

/// Removes entry `pos`; gives memory back when the gap grew large.
pub(crate) fn remove_entry<B: PageBuf>(buf: &mut B, pos: usize, scratch: &mut Scratch) {
    let bytes = make_room(buf, 0, scratch);
    remove_in_place(bytes, pos);
    shrink_if_slack(buf, scratch);
}

/// Gives entry `pos` another value.
pub(crate) fn replace_value<B: PageBuf>(buf: &mut B, pos: usize, value: &[u8], scratch: &mut Scratch) {
    let old_len = Page::new(buf.bytes()).value(pos).len();
    let bytes = make_room(buf, value.len().saturating_sub(old_len), scratch);
    replace_in_place(bytes, pos, value);
    if value.len() < old_len {
        shrink_if_slack(buf, scratch);
    }
}

/// Copies the page into a smaller buffer when its gap is large.
fn shrink_if_slack<B: PageBuf>(buf: &mut B, scratch: &mut Scratch) {
    let page = Page::new(buf.bytes());
    if buf.bytes().len() > page.used() + SLACK_MAX {
        copy_with_capacity(page, capacity_for(page.used()), &mut scratch.page);
        buf.replace(&scratch.page);
    }
}

/// The buffer for writing, not shared and with a gap of at least `need` bytes.
fn make_room<'b, B: PageBuf>(buf: &'b mut B, need: usize, scratch: &mut Scratch) -> &'b mut [u8] {
    let page = Page::new(buf.bytes());
    let wanted = page.used() + need;
    if wanted > buf.bytes().len() {
        copy_with_capacity(page, capacity_for(wanted), &mut scratch.page);
        buf.replace(&scratch.page);
    } else if !buf.is_unique() {
        scratch.page.clear();
        scratch.page.extend_from_slice(buf.bytes());
        buf.replace(&scratch.page);
    }
    buf.bytes_mut()
}

/// The same page in a buffer of `capacity` bytes.
fn copy_with_capacity(page: Page<'_>, capacity: usize, out: &mut Vec<u8>) {
    assert!(capacity >= page.used(), "a page must fit its buffer");
    out.clear();
    out.reserve(capacity);
    out.extend_from_slice(page.front());
    out.resize(capacity - page.heap().len(), 0);
    out.extend_from_slice(page.heap());
}

fn insert_in_place(bytes: &mut [u8], pos: usize, suffix: &[u8], value: &[u8]) {
    let page = Page::new(bytes);
    let (count, heap_len, slots_at) = (page.count(), page.heap_len, HEADER + page.prefix_len);
    let distance = page.distance(pos);
    let grow = entry_len(suffix.len(), value.len());
    let len = bytes.len();

    bytes.copy_within(len - heap_len..len - distance, len - heap_len - grow);
    write_entry(&mut bytes[len - distance - grow..len - distance], suffix, value);

    bytes.copy_within(slots_at + SLOT * pos..slots_at + SLOT * count, slots_at + SLOT * (pos + 1));
    let slot = u32::from(head_of(suffix)) << 16 | low_half(distance);
    bytes[slots_at + SLOT * pos..][..SLOT].copy_from_slice(&slot.to_le_bytes());
    assert!(heap_len < 1 << 16 || pos == count, "distances of a page with several entries fit 16 bits");
    shift_distances(&mut bytes[slots_at + SLOT * (pos + 1)..slots_at + SLOT * (count + 1)], grow as u32);
    write_u16(bytes, AT_COUNT, count + 1);
    write_u32(bytes, AT_HEAP_LEN, heap_len + grow);
    write_u16(bytes, AT_HINT, pos + 1);
}

fn remove_in_place(bytes: &mut [u8], pos: usize) {
    let page = Page::new(bytes);
    let (count, heap_len, slots_at) = (page.count(), page.heap_len, HEADER + page.prefix_len);
    let (distance, next) = (page.distance(pos), page.distance(pos + 1));
    let len = bytes.len();

    bytes.copy_within(len - heap_len..len - next, len - heap_len + (next - distance));
    bytes.copy_within(slots_at + SLOT * (pos + 1)..slots_at + SLOT * count, slots_at + SLOT * pos);
    let shift = ((next - distance) as u32).wrapping_neg();
    shift_distances(&mut bytes[slots_at + SLOT * pos..slots_at + SLOT * (count - 1)], shift);
    write_u16(bytes, AT_COUNT, count - 1);
    write_u32(bytes, AT_HEAP_LEN, heap_len - (next - distance));
    write_u16(bytes, AT_HINT, 0);
}

fn replace_in_place(bytes: &mut [u8], pos: usize, value: &[u8]) {
    let page = Page::new(bytes);
    let (count, heap_len, slots_at) = (page.count(), page.heap_len, HEADER + page.prefix_len);
    let (distance, next) = (page.distance(pos), page.distance(pos + 1));
    let old_len = page.value(pos).len();
    let len = bytes.len();

    if old_len != value.len() {
        // What sorts behind, and the key of this entry, move down or up; the value ends where it ended before.
        let moved = len - heap_len..len - distance - old_len;
        bytes.copy_within(moved, len + old_len - heap_len - value.len());
        let shift = (value.len() as u32).wrapping_sub(old_len as u32);
        shift_distances(&mut bytes[slots_at + SLOT * (pos + 1)..slots_at + SLOT * count], shift);
        write_u32(bytes, AT_HEAP_LEN, heap_len + value.len() - old_len);
        debug_assert!(next >= distance);
    }
    bytes[len - distance - value.len()..len - distance].copy_from_slice(value);
}

/// Adds `shift` to the distance in each slot. Heads stay as they are: a distance neither overflows nor goes below zero.
#[inline]
fn shift_distances(slots: &mut [u8], shift: u32) {
    for slot in slots.as_chunks_mut::<SLOT>().0 {
        let old = u32::from_le_bytes(*slot);
        *slot = ((old & 0xFFFF_0000) | (old.wrapping_add(shift) & 0xFFFF)).to_le_bytes();
    }
}

/// Writes an entry into exactly its bytes.
#[inline]
pub(super) fn write_entry(out: &mut [u8], suffix: &[u8], value: &[u8]) {
    let at = if suffix.len() < 0xFF {
        out[0] = suffix.len() as u8;
        1
    } else {
        out[0] = 0xFF;
        write_u16(out, 1, suffix.len());
        3
    };
    let rest = suffix.get(2..).unwrap_or_default();
    out[at..at + rest.len()].copy_from_slice(rest);
    out[at + rest.len()..].copy_from_slice(value);
}

/// A distance as the lower half of a slot.
#[inline]
pub(super) fn low_half(distance: usize) -> u32 {
    u32::from(u16::try_from(distance).expect("distances of a page with several entries fit 16 bits"))
}
