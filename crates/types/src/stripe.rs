//! Striping: how a run of file bytes lies on columns (the k data shards of an erasure chunk, or the chunks of a stripe
//! set), and how an extent says so.
//!
//! A striped chunk has a *logical* space: row 0 unit of column 0, of column 1, … of the last column, row 1 of column 0,
//! … Column c has unit r of its own file at offset r × unit. So a logical offset that begins a row is `columns` times
//! the offset in every column, whatever the unit.
//!
//! With the unit [`WHOLE_SHARD`] a chunk has one row: what belongs together lies in one shard. So do bytes that became
//! a shard where a copy of them was. In such a chunk nothing else is by rows: parity covers the same blocks of all
//! shards, which may belong to different files.
//!
//! Flags of an extent on the wire: bit 0 appending (reserved), bits 1–3 kind (0 plain, 1 erasure, 2 stripe set), bit 4
//! [`EXTENT_SHARED`], bits 8–15 log2 of the unit, bits 16–31 columns; the others zero.
use crate::layout::{STRIPE_UNIT_MAX, STRIPE_UNIT_MIN, STRIPE_WIDTH_MAX};
use crate::units::CHUNK_SIZE_MAX;

/// The unit of chunks that have one row: all that a shard can hold.
pub const WHOLE_SHARD: u64 = CHUNK_SIZE_MAX;

/// Columns and unit. Fields are private so that every value is a valid one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stripe {
    columns: u16,
    unit_log2: u8,
}

/// Part of one column that holds part of a logical range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColumnPart {
    pub column: u16,
    /// Offset in the column's file.
    pub offset: u64,
    pub length: u64,
}

impl Stripe {
    /// `None` unless the unit is a power of two from 4 KiB to 1 MiB, or [`WHOLE_SHARD`], and there are 2 to 512
    /// columns.
    pub const fn new(columns: u16, unit: u64) -> Option<Stripe> {
        let fits = columns >= 2 && columns <= STRIPE_WIDTH_MAX && unit.is_power_of_two();
        if !fits || unit < STRIPE_UNIT_MIN || unit > STRIPE_UNIT_MAX && unit != WHOLE_SHARD {
            return None;
        }
        Some(Stripe { columns, unit_log2: unit.trailing_zeros() as u8 })
    }
    pub const fn columns(self) -> u16 {
        self.columns
    }
    /// Whether each run of bytes lies in one shard, and no row belongs to one file.
    pub const fn is_whole_shards(self) -> bool {
        self.unit() == WHOLE_SHARD
    }
    /// Bytes that lie together in one column.
    pub const fn unit(self) -> u64 {
        1 << self.unit_log2
    }
    /// Bytes of one unit of every column.
    pub const fn row(self) -> u64 {
        self.columns as u64 * self.unit()
    }
    /// Logical bytes of a full striped chunk.
    pub const fn capacity(self) -> u64 {
        self.columns as u64 * CHUNK_SIZE_MAX
    }
    /// Column and offset in it of a logical offset.
    pub const fn locate(self, logical: u64) -> (u16, u64) {
        let (row, in_row) = (logical / self.row(), logical % self.row());
        ((in_row / self.unit()) as u16, row * self.unit() + in_row % self.unit())
    }
    /// Logical offset of an offset in a column.
    pub const fn logical(self, column: u16, offset: u64) -> u64 {
        offset / self.unit() * self.row() + column as u64 * self.unit() + offset % self.unit()
    }
    /// The one run of a column that holds its bytes of `from..to`, if it has any. (Units of one column that follow each
    /// other lie side by side.)
    pub const fn part(self, column: u16, from: u64, to: u64) -> Option<ColumnPart> {
        let start = self.column_offset_at(column, from);
        let end = self.column_offset_at(column, to);
        if end <= start {
            return None;
        }
        Some(ColumnPart { column, offset: start, length: end - start })
    }
    /// Bytes of the column before a logical offset.
    const fn column_offset_at(self, column: u16, logical: u64) -> u64 {
        let (row, in_row) = (logical / self.row(), logical % self.row());
        let before = column as u64 * self.unit();
        let within = in_row.saturating_sub(before);
        row * self.unit() + if within < self.unit() { within } else { self.unit() }
    }
    /// The range of every column's file that whole rows around `from..to` take.
    pub const fn rows_around(self, from: u64, to: u64) -> (u64, u64) {
        if self.is_whole_shards() {
            // Of its one row the blocks that the range has, in whichever shards.
            let (block, unit) = (crate::units::BLOCK_SIZE as u64, self.unit());
            let same = to > from && from / unit == (to - 1) / unit;
            let end = (to - from / unit * unit).div_ceil(block) * block;
            return if same { (from % unit / block * block, end) } else { (0, unit) };
        }
        (from / self.row() * self.unit(), to.div_ceil(self.row()) * self.unit())
    }
}

/// Bit of an extent's flags: other places may name its blocks too, so they are never changed where they are.
pub const EXTENT_SHARED: u32 = 1 << 4;

/// What the chunk of an extent is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ExtentKind {
    /// A range of one replicated chunk.
    #[default]
    Plain,
    /// A range of the logical space of an erasure chunk: `columns` is its k.
    Erasure(Stripe),
    /// A range of the logical space of a stripe set, which is named by its first chunk.
    Set(Stripe),
}

impl ExtentKind {
    pub const fn stripe(self) -> Option<Stripe> {
        match self {
            Self::Plain => None,
            Self::Erasure(stripe) | Self::Set(stripe) => Some(stripe),
        }
    }
    /// Flags of an extent on the wire.
    pub const fn to_flags(self) -> u32 {
        match self {
            Self::Plain => 0,
            Self::Erasure(stripe) => 1 << 1 | stripe.bits(),
            Self::Set(stripe) => 2 << 1 | stripe.bits(),
        }
    }
    /// `None` for flags that this version does not know. Whether the blocks are shared is not said here.
    pub const fn from_flags(flags: u32) -> Option<ExtentKind> {
        let flags = flags & !EXTENT_SHARED;
        if flags == 0 {
            return Some(Self::Plain);
        }
        let unit_log2 = (flags >> 8) as u8;
        if flags & 0xf1 != 0 || unit_log2 > 26 {
            return None;
        }
        let Some(stripe) = Stripe::new((flags >> 16) as u16, 1 << unit_log2) else { return None };
        match flags >> 1 & 7 {
            1 => Some(Self::Erasure(stripe)),
            2 if !stripe.is_whole_shards() => Some(Self::Set(stripe)),
            _ => None,
        }
    }
    /// Largest end of an extent in the space that its chunk offset counts in.
    pub const fn capacity(self) -> u64 {
        match self.stripe() {
            None => CHUNK_SIZE_MAX,
            Some(stripe) => stripe.capacity(),
        }
    }
}

impl Stripe {
    const fn bits(self) -> u32 {
        (self.unit_log2 as u32) << 8 | (self.columns as u32) << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIPE: Stripe = Stripe { columns: 3, unit_log2: 12 };

    /// Readers would fetch bytes of another part of the file if places and their inverse disagreed.
    #[test]
    fn every_place_has_one_logical_offset() {
        for logical in (0..STRIPE.row() * 4).step_by(37) {
            let (column, offset) = STRIPE.locate(logical);
            assert_eq!(STRIPE.logical(column, offset), logical);
        }
        assert_eq!(STRIPE.locate(4096), (1, 0));
        assert_eq!(STRIPE.locate(3 * 4096 + 5), (0, 4096 + 5));
    }

    /// A range would be read twice or not at all if the parts did not cover it exactly.
    #[test]
    fn parts_cover_a_range_exactly() {
        for (from, to) in [(0, 1), (100, 5000), (4096, 8192), (5000, 40_000), (0, 3 * 4096 * 5), (7, 7)] {
            let mut want: Vec<(u16, u64)> = (from..to).map(|logical| STRIPE.locate(logical)).collect();
            want.sort_unstable();
            let mut have = Vec::new();
            for column in 0..3 {
                if let Some(part) = STRIPE.part(column, from, to) {
                    have.extend((part.offset..part.offset + part.length).map(|offset| (column, offset)));
                }
            }
            assert_eq!(have, want, "{from}..{to}");
        }
        assert_eq!(STRIPE.rows_around(4096, 3 * 4096 + 1), (0, 8192));
    }

    /// Bytes that lie together in one shard would be looked for in others, or beyond its end.
    #[test]
    fn a_chunk_of_whole_shards_has_one_row() {
        let stripe = Stripe::new(4, WHOLE_SHARD).expect("valid");
        assert!(stripe.is_whole_shards() && !STRIPE.is_whole_shards());
        assert_eq!((stripe.row(), stripe.capacity()), (4 * CHUNK_SIZE_MAX, 4 * CHUNK_SIZE_MAX));
        let at = stripe.logical(2, 8192 + 5);
        assert_eq!((at, stripe.locate(at)), (2 * CHUNK_SIZE_MAX + 8197, (2, 8197)));
        let part = |column| stripe.part(column, at, at + 100);
        assert_eq!(part(2), Some(ColumnPart { column: 2, offset: 8197, length: 100 }));
        assert!([0, 1, 3].into_iter().all(|column| part(column).is_none()));
        assert_eq!(stripe.rows_around(at, at + 100), (8192, 12_288));
        assert_eq!(stripe.rows_around(at, at + 4096), (8192, 16_384));
        assert_eq!(stripe.rows_around(0, CHUNK_SIZE_MAX), (0, CHUNK_SIZE_MAX));
        assert_eq!(stripe.rows_around(CHUNK_SIZE_MAX - 1, CHUNK_SIZE_MAX + 1), (0, CHUNK_SIZE_MAX));
    }

    #[test]
    fn flags_are_golden_and_closed() {
        let stripe = Stripe::new(6, 64 << 10).expect("valid");
        assert_eq!(ExtentKind::Erasure(stripe).to_flags(), 0x0006_1002);
        assert_eq!(ExtentKind::Set(stripe).to_flags(), 0x0006_1004);
        for kind in [ExtentKind::Plain, ExtentKind::Erasure(stripe), ExtentKind::Set(stripe)] {
            assert_eq!(ExtentKind::from_flags(kind.to_flags()), Some(kind));
            assert_eq!(ExtentKind::from_flags(kind.to_flags() | EXTENT_SHARED), Some(kind));
        }
        let whole = ExtentKind::Erasure(Stripe::new(6, WHOLE_SHARD).expect("valid"));
        assert_eq!((whole.to_flags(), ExtentKind::from_flags(0x0006_1a02)), (0x0006_1a02, Some(whole)));
        for flags in [
            0x0006_1a04,
            0x0006_1902,
            1,
            2,
            0x0006_1000,
            0x0006_1003,
            0x0006_1022,
            0x0001_1002,
            0x0006_0b02,
            0x0006_1502,
            u32::MAX,
        ] {
            assert_eq!(ExtentKind::from_flags(flags), None, "{flags:#x}");
        }
    }
}
