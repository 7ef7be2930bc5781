//! Entries taken out of pages, to be packed anew: for splits, merges and changes of the shared prefix.
//!
//! Invariant: entries are pushed in key order. This is the only code that chooses a page's prefix.

use std::ops::Range;

use super::edit::{low_half, write_entry};
use super::{
    AT_COUNT, AT_HEAP_LEN, AT_PREFIX_LEN, HEADER, Page, SLOT, capacity_for, common_prefix_len, entry_len, head_of,
    write_u16, write_u32,
};
use crate::PAGE_MAX;
use crate::image::stamp_header;

/// A list of entries with full keys, in one buffer.
#[derive(Default)]
pub(crate) struct Flat {
    bytes: Vec<u8>,
    items: Vec<Item>,
}

#[derive(Clone, Copy)]
struct Item {
    at: usize,
    key_len: usize,
    value_len: usize,
}

impl Flat {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.items.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.items.push(Item { at, key_len: key.len(), value_len: value.len() });
    }

    pub(crate) fn push_page(&mut self, page: Page<'_>, entries: Range<usize>) {
        for i in entries {
            let at = self.bytes.len();
            page.append_key(i, &mut self.bytes);
            let key_len = self.bytes.len() - at;
            let value = page.value(i);
            self.bytes.extend_from_slice(value);
            self.items.push(Item { at, key_len, value_len: value.len() });
        }
    }

    pub(crate) fn key(&self, i: usize) -> &[u8] {
        let item = self.items[i];
        &self.bytes[item.at..item.at + item.key_len]
    }

    fn value(&self, i: usize) -> &[u8] {
        let item = self.items[i];
        &self.bytes[item.at + item.key_len..][..item.value_len]
    }

    fn prefix_len(&self, range: &Range<usize>) -> usize {
        if range.is_empty() { 0 } else { common_prefix_len(self.key(range.start), self.key(range.end - 1)) }
    }

    /// Bytes that a page of these entries uses.
    pub(crate) fn encoded_len(&self, range: Range<usize>) -> usize {
        let prefix_len = self.prefix_len(&range);
        let entries = self.items[range].iter();
        HEADER + prefix_len + entries.map(|i| SLOT + entry_len(i.key_len - prefix_len, i.value_len)).sum::<usize>()
    }

    /// Packs the entries of `range` into a page in `out`, with the gap of its size class.
    pub(crate) fn encode(&self, range: Range<usize>, out: &mut Vec<u8>) {
        let prefix_len = self.prefix_len(&range);
        let used = self.encoded_len(range.clone());
        out.clear();
        out.resize(capacity_for(used), 0);
        stamp_header(out);
        write_u16(out, AT_COUNT, range.len());
        write_u16(out, AT_PREFIX_LEN, prefix_len);
        if let Some(first) = range.clone().next() {
            out[HEADER..HEADER + prefix_len].copy_from_slice(&self.key(first)[..prefix_len]);
        }
        let (mut slot_at, mut end, len) = (HEADER + prefix_len, out.len(), out.len());
        for i in range {
            let (suffix, value) = (&self.key(i)[prefix_len..], self.value(i));
            let slot = u32::from(head_of(suffix)) << 16 | low_half(len - end);
            out[slot_at..slot_at + SLOT].copy_from_slice(&slot.to_le_bytes());
            slot_at += SLOT;
            let start = end - entry_len(suffix.len(), value.len());
            write_entry(&mut out[start..end], suffix, value);
            end = start;
        }
        write_u32(out, AT_HEAP_LEN, len - end);
    }

    /// Cuts all entries into runs that fit a page (or are a single entry), beginning with a cut at `first_cut` or, when
    /// `None`, at the middle by bytes. Returns the index of the first entry of each run but the first.
    pub(crate) fn cuts(&self, first_cut: Option<usize>) -> Vec<usize> {
        let mut cuts = Vec::with_capacity(2);
        let mut open = vec![(0..self.len(), first_cut)];
        while let Some((run, wanted)) = open.pop() {
            if run.len() < 2 || (wanted.is_none() && !run.is_empty() && self.encoded_len(run.clone()) <= PAGE_MAX) {
                continue;
            }
            let cut = wanted.unwrap_or_else(|| self.middle(&run));
            cuts.push(cut);
            open.push((run.start..cut, None));
            open.push((cut..run.end, None));
        }
        cuts.sort_unstable();
        cuts
    }

    /// The cut that makes both sides about the same size; both sides get at least one entry.
    pub(crate) fn middle(&self, run: &Range<usize>) -> usize {
        let size = |i: &Item| i.key_len + i.value_len + SLOT;
        let total: usize = self.items[run.clone()].iter().map(size).sum();
        let mut before = 0;
        for i in run.clone() {
            let this = size(&self.items[i]);
            if 2 * before + this >= total {
                return i.clamp(run.start + 1, run.end - 1);
            }
            before += this;
        }
        run.end - 1
    }

    /// The shortest key that is greater than entry `i - 1` and not greater than entry `i`.
    pub(crate) fn separator(&self, i: usize) -> &[u8] {
        let (left, right) = (self.key(i - 1), self.key(i));
        &right[..common_prefix_len(left, right) + 1]
    }
}
