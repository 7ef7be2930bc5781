//! A packed page: sorted entries under one shared prefix, read side.
//!
//! ```text
//! | header 16 | prefix | slots: 4 bytes an entry, ascending | gap | entry n-1 | … | entry 1 | entry 0 |
//! ```
//! A slot is a little-endian u32: the first two bytes of the key's suffix (its head, big-endian, zero-padded) in the
//! upper half, and the distance from the end of the page to the end of the entry in the lower half. An entry is the
//! length of the key's suffix (one byte, or 0xFF and two bytes), the suffix without its head, and the value. So a
//! search reads the front of the page in one sweep and touches one entry, and the head costs no extra space.
//! Entries grow downwards from the end, so an insertion moves only what sorts behind it, an append moves nothing.
//!
//! Invariants: entries strictly ascend by (head, rest, suffix length); the prefix starts every key of the page; the gap
//! is all that is neither header, prefix, slot nor entry. Leaves and the separators of inner nodes use the same layout.

mod edit;
mod flat;

pub(crate) use edit::{PageBuf, Scratch, insert_entry, remove_entry, replace_value};
pub(crate) use flat::Flat;

use std::cmp::Ordering;
use std::ops::Range;

/// Bytes of the header.
pub(crate) const HEADER: usize = 16;
/// Bytes of a slot.
pub(crate) const SLOT: usize = 4;
/// Offset of the entry count (u16).
pub(crate) const AT_COUNT: usize = 4;
/// Offset of the prefix length (u16).
pub(crate) const AT_PREFIX_LEN: usize = 6;
/// Offset of the length of all entries (u32).
pub(crate) const AT_HEAP_LEN: usize = 8;
/// Offset of the insertion hint (u16, in memory) or of the checksum (u32, in an image).
pub(crate) const AT_HINT: usize = 12;

/// Page size class step: allocations stay multiples of it, so freed pages fit new ones.
const CAPACITY_STEP: usize = 256;
/// Reference counts (16) and the allocator's word (8) that come on top of a page's bytes.
const ALLOCATION_OVERHEAD: usize = 24;

/// A read view of a page with its header decoded.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a> {
    bytes: &'a [u8],
    count: usize,
    prefix_len: usize,
    heap_len: usize,
}

/// One decoded entry. The key is page prefix ‖ head (at most two bytes) ‖ rest.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub head: u16,
    pub suffix_len: usize,
    pub rest: &'a [u8],
    pub value: &'a [u8],
}

impl Entry<'_> {
    /// First eight bytes of the key's suffix, as [`head8_of`] gives them.
    pub(crate) fn head8(&self) -> u64 {
        let mut head = [0; 8];
        head[..2].copy_from_slice(&self.head.to_be_bytes());
        let rest = &self.rest[..self.rest.len().min(6)];
        head[2..2 + rest.len()].copy_from_slice(rest);
        u64::from_be_bytes(head)
    }
}

impl<'a> Page<'a> {
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8]) -> Page<'a> {
        Page {
            bytes,
            count: read_u16(bytes, AT_COUNT),
            prefix_len: read_u16(bytes, AT_PREFIX_LEN),
            heap_len: read_u32(bytes, AT_HEAP_LEN),
        }
    }

    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    #[inline(always)]
    pub(crate) fn prefix(&self) -> &'a [u8] {
        &self.bytes[HEADER..HEADER + self.prefix_len]
    }

    /// Bytes in use: all but the gap.
    #[inline(always)]
    pub(crate) fn used(&self) -> usize {
        HEADER + self.prefix_len + SLOT * self.count + self.heap_len
    }

    /// The part before the gap.
    pub(crate) fn front(&self) -> &'a [u8] {
        &self.bytes[..HEADER + self.prefix_len + SLOT * self.count]
    }

    /// The part behind the gap.
    pub(crate) fn heap(&self) -> &'a [u8] {
        &self.bytes[self.bytes.len() - self.heap_len..]
    }

    #[inline(always)]
    fn slots(&self) -> &'a [[u8; SLOT]] {
        let at = HEADER + self.prefix_len;
        self.bytes[at..at + SLOT * self.count].as_chunks().0
    }

    /// Distance from the end of the page to the end of entry `i`; for `i == count` to the start of the last entry.
    #[inline(always)]
    pub(crate) fn distance(&self, i: usize) -> usize {
        match self.slots().get(i) {
            Some(slot) => (u32::from_le_bytes(*slot) & 0xFFFF) as usize,
            None => self.heap_len,
        }
    }

    /// Head of entry `i`.
    #[inline(always)]
    pub(crate) fn head(&self, i: usize) -> u16 {
        (u32::from_le_bytes(self.slots()[i]) >> 16) as u16
    }

    #[inline(always)]
    pub(crate) fn entry(&self, i: usize) -> Entry<'a> {
        let len = self.bytes.len();
        let raw = &self.bytes[len - self.distance(i + 1)..len - self.distance(i)];
        let (suffix_len, at) = decode_suffix_len(raw);
        let (rest, value) = raw[at..].split_at(suffix_len.saturating_sub(2));
        Entry { head: self.head(i), suffix_len, rest, value }
    }

    /// Where in the page the value of entry `i` lies.
    pub(crate) fn value_span(&self, i: usize) -> Range<usize> {
        let end = self.bytes.len() - self.distance(i);
        end - self.value(i).len()..end
    }

    #[inline]
    pub(crate) fn value(&self, i: usize) -> &'a [u8] {
        self.entry(i).value
    }

    /// Replaces what follows the prefix in `key` by the suffix of entry `i`; `key` must start with the page's prefix.
    #[inline]
    pub(crate) fn set_suffix(&self, i: usize, key: &mut Vec<u8>) -> &'a [u8] {
        let entry = self.entry(i);
        key.truncate(self.prefix_len);
        let head = entry.head.to_be_bytes();
        key.extend_from_slice(&head[..entry.suffix_len.min(2)]);
        key.extend_from_slice(entry.rest);
        entry.value
    }

    /// Appends the full key of entry `i` to `out`.
    pub(crate) fn append_key(&self, i: usize, out: &mut Vec<u8>) {
        let entry = self.entry(i);
        out.extend_from_slice(self.prefix());
        out.extend_from_slice(&entry.head.to_be_bytes()[..entry.suffix_len.min(2)]);
        out.extend_from_slice(entry.rest);
    }

    /// The full key of entry `i`.
    pub(crate) fn key(&self, i: usize) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.prefix_len + self.entry(i).suffix_len);
        self.append_key(i, &mut key);
        key
    }

    /// `Ok(i)`: entry `i` has this key. `Err(i)`: it would be inserted before entry `i`.
    #[inline]
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix();
        if !starts_with(key, prefix) {
            return Err(if key < prefix { 0 } else { self.count });
        }
        let suffix = &key[prefix.len()..];
        let head = head_of(suffix);
        let slots = self.slots();
        let low = count_heads_below(slots, head);
        if slots.get(low).is_none_or(|slot| slot_head(*slot) != head) {
            return Err(low);
        }
        let high = if slots.get(low + 1).is_none_or(|slot| slot_head(*slot) != head) {
            low + 1
        } else {
            low + slots[low..].partition_point(|slot| slot_head(*slot) == head)
        };
        self.search_between(suffix, low, high)
    }

    /// Searches entries `low..high`, whose heads are all equal to that of `suffix`.
    #[inline]
    pub(crate) fn search_between(&self, suffix: &[u8], mut low: usize, mut high: usize) -> Result<usize, usize> {
        let rest = suffix.get(2..).unwrap_or_default();
        while low < high {
            let middle = low.midpoint(high);
            let entry = self.entry(middle);
            match compare(entry.rest, rest).then(entry.suffix_len.cmp(&suffix.len())) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// First entry whose key is at least `key`.
    #[inline]
    pub(crate) fn lower_bound(&self, key: &[u8]) -> usize {
        self.search(key).unwrap_or_else(|at| at)
    }

    /// Where the last insertion ended: the index behind it, 0 when unknown.
    pub(crate) fn hint(&self) -> usize {
        read_u16(self.bytes, AT_HINT)
    }
}

/// Records that the last insertion ended before entry `hint`.
pub(crate) fn set_hint(bytes: &mut [u8], hint: usize) {
    write_u16(bytes, AT_HINT, hint);
}

/// Capacity given to a page that uses `used` bytes.
#[inline]
pub(crate) fn capacity_for(used: usize) -> usize {
    (used + ALLOCATION_OVERHEAD).next_multiple_of(CAPACITY_STEP) - ALLOCATION_OVERHEAD
}

/// First two bytes of a suffix, big-endian, zero-padded.
#[inline(always)]
pub(crate) fn head_of(suffix: &[u8]) -> u16 {
    match suffix {
        [a, b, ..] => u16::from_be_bytes([*a, *b]),
        [a] => u16::from_be_bytes([*a, 0]),
        [] => 0,
    }
}

/// First eight bytes of a suffix, big-endian, zero-padded.
#[inline(always)]
pub(crate) fn head8_of(suffix: &[u8]) -> u64 {
    match suffix.first_chunk() {
        Some(head) => u64::from_be_bytes(*head),
        None => suffix
            .iter()
            .zip([56, 48, 40, 32, 24, 16, 8])
            .fold(0, |head, (&byte, shift)| head | u64::from(byte) << shift),
    }
}

/// Bytes of an entry without its slot.
#[inline]
pub(crate) fn entry_len(suffix_len: usize, value_len: usize) -> usize {
    (if suffix_len < 0xFF { 1 } else { 3 }) + suffix_len.saturating_sub(2) + value_len
}

/// Suffix length at the start of an entry, and where the rest of the suffix begins.
#[inline(always)]
pub(crate) fn decode_suffix_len(raw: &[u8]) -> (usize, usize) {
    match raw[0] {
        0xFF => (read_u16(raw, 1), 3),
        len => (usize::from(len), 1),
    }
}

#[inline]
fn slot_head(slot: [u8; SLOT]) -> u16 {
    u16::from_le_bytes([slot[2], slot[3]])
}

/// Entries with a smaller head. All but large pages are counted through: the loads do not wait for each other (a cold
/// page costs one memory latency) and there is no branch to mispredict.
#[inline]
fn count_heads_below(slots: &[[u8; SLOT]], head: u16) -> usize {
    const COUNTED_AT_ONCE: usize = 256;
    if slots.len() > COUNTED_AT_ONCE {
        return slots.partition_point(|slot| slot_head(*slot) < head);
    }
    let head = i32::from(head);
    slots.iter().map(|slot| i32::from(((u32::from_le_bytes(*slot) >> 16) as i32) < head)).sum::<i32>() as usize
}

/// Reads a byte of each of the first lines of a page, so that a cold page's header and slots come from memory at once
/// and not one after the other.
#[inline(always)]
pub(crate) fn warm(bytes: &[u8]) {
    if let Some(front) = bytes.first_chunk::<512>() {
        let touched =
            front[64] ^ front[128] ^ front[192] ^ front[256] ^ front[320] ^ front[384] ^ front[448] ^ front[511];
        std::hint::black_box(touched);
    }
}

/// Same as the method of slices, in line: prefixes are short, and a call costs more than the comparison.
#[inline(always)]
pub(crate) fn starts_with(key: &[u8], prefix: &[u8]) -> bool {
    let Some(start) = key.get(..prefix.len()) else { return false };
    let (a, b) = (start.as_chunks::<8>(), prefix.as_chunks::<8>());
    a.0.iter().zip(b.0).all(|(x, y)| x == y) && a.1.iter().zip(b.1).fold(true, |same, (x, y)| same & (x == y))
}

/// Same as `a.cmp(b)`, in line.
#[inline(always)]
fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let ((a_chunks, a_tail), (b_chunks, b_tail)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    for (x, y) in a_chunks.iter().zip(b_chunks) {
        if x != y {
            return u64::from_be_bytes(*x).cmp(&u64::from_be_bytes(*y));
        }
    }
    if a_chunks.len() == b_chunks.len() {
        return compare_short(a_tail, b_tail);
    }
    let done = 8 * a_chunks.len().min(b_chunks.len());
    a[done..].cmp(&b[done..])
}

/// Compares two strings of less than 8 bytes.
#[inline(always)]
fn compare_short(a: &[u8], b: &[u8]) -> Ordering {
    for (x, y) in a.iter().zip(b) {
        if x != y {
            return x.cmp(y);
        }
    }
    a.len().cmp(&b.len())
}

/// Length of the common prefix of two strings.
pub(crate) fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[inline(always)]
pub(crate) fn read_u16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

#[inline(always)]
pub(crate) fn read_u32(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
}

#[inline]
pub(crate) fn write_u16(bytes: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).expect("page fields are bounded by the page size");
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

#[inline]
pub(crate) fn write_u32(bytes: &mut [u8], at: usize, value: usize) {
    let value = u32::try_from(value).expect("page fields are bounded by the value limit");
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
