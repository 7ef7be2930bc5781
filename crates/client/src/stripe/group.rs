//! The gathering of a file's bytes into stripe units, and how many rows are encoded and sent together.
use crate::append::shape::round_bytes;
use cairn_env::buf::{AlignedBuf, SharedBuf};
use cairn_types::Stripe;
use std::collections::VecDeque;

/// Most bytes of one shard in a row group, unless a single row has more.
const SHARD_BYTES_MAX: u64 = 1 << 20;
/// Most file bytes of a row group, unless a single row has more.
const GROUP_BYTES_MAX: u64 = 8 << 20;

/// Rows that are encoded and sent together.
pub(crate) const fn rows_of_group(stripe: Stripe) -> u64 {
    let by_shard = SHARD_BYTES_MAX / stripe.unit();
    let by_group = GROUP_BYTES_MAX / stripe.row();
    let rows = if by_shard < by_group { by_shard } else { by_group };
    if rows == 0 { 1 } else { rows }
}

/// Bytes that are read together, from a multiple of them on.
pub(crate) const fn read_bytes(stripe: Stripe) -> u64 {
    // Of whole shards what lies in one: the others are asked for as much if that one has to be computed.
    if stripe.is_whole_shards() { SHARD_BYTES_MAX } else { rows_of_group(stripe) * stripe.row() }
}

/// Units of the next round of a stripe set, as many as there are.
pub(crate) fn take_round(gather: &mut Gather, stripe: Stripe) -> Vec<SharedBuf> {
    let (unit, most) = (stripe.unit() as usize, round_bytes(stripe));
    let whole = gather.len().min(most) / unit;
    let mut units = gather.take_units(whole, unit);
    if gather.len() > 0 && gather.len() < unit && units.len() * unit < most {
        units.extend(gather.take_units(1, gather.len()));
    }
    units
}

/// Bytes of a file in their order, from which whole units are cut without copying where they lie in one buffer.
#[derive(Default, Debug)]
pub(crate) struct Gather {
    parts: VecDeque<SharedBuf>,
    bytes: usize,
}

impl Gather {
    pub fn push(&mut self, data: SharedBuf) {
        if !data.is_empty() {
            self.bytes += data.len();
            self.parts.push_back(data);
        }
    }
    pub fn len(&self) -> usize {
        self.bytes
    }
    /// The next `count` units of `unit` bytes.
    ///
    /// # Panics
    /// When there are fewer bytes.
    pub fn take_units(&mut self, count: usize, unit: usize) -> Vec<SharedBuf> {
        (0..count).map(|_| self.take(unit)).collect()
    }
    /// The next bytes, at most `most`, that lie in one buffer.
    pub fn take_part(&mut self, most: usize) -> Option<SharedBuf> {
        let front = self.parts.front_mut()?;
        let part = front.split_to(front.len().min(most));
        if front.is_empty() {
            self.parts.pop_front();
        }
        self.bytes -= part.len();
        Some(part)
    }
    fn take(&mut self, length: usize) -> SharedBuf {
        let first = self.take_part(length).expect("the caller takes no more than there is");
        if first.len() == length {
            return first;
        }
        let mut joined = AlignedBuf::unpooled(length);
        joined.extend_from_slice(&first);
        while joined.len() < length {
            let part = self.take_part(length - joined.len()).expect("the caller takes no more than there is");
            joined.extend_from_slice(&part);
        }
        joined.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of a writer would not be bounded as documented.
    #[test]
    fn groups_stay_within_their_bounds() {
        for (columns, unit, rows) in [(6, 64 << 10, 16), (12, 64 << 10, 10), (3, 4 << 10, 256), (12, 1 << 20, 1)] {
            let stripe = Stripe::new(columns, unit).expect("valid");
            assert_eq!(rows_of_group(stripe), rows, "{stripe:?}");
        }
    }

    /// Units would hold other bytes than the file if buffers were cut wrongly.
    #[test]
    fn units_are_cut_in_order_and_joined_where_they_straddle() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
        let mut gather = Gather::default();
        for (from, to) in [(0, 100), (100, 101), (101, 101), (101, 650), (650, 1000)] {
            gather.push(SharedBuf::from_owner(bytes[from..to].to_vec()));
        }
        let units = gather.take_units(9, 100);
        assert_eq!(units.iter().flat_map(|u| u.to_vec()).collect::<Vec<u8>>(), bytes[..900]);
        assert!(units.iter().all(|u| u.len() == 100));
        assert_eq!(gather.len(), 100);
        let rest = gather.take_part(1 << 20).expect("rest");
        assert_eq!((&rest[..], gather.len()), (&bytes[900..], 0));
        assert!(gather.take_part(1).is_none());
    }
}
