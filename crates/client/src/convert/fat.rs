//! Whether a file of an erasure layout takes more space than it would newly written: after overwrites and small appends what
//! does not fill rows is kept as copies, and rows of which a part is named are held as a whole.
//!
//! Invariant: what a conversion has just written is not fat, or it would be written anew each time. So the space of a new
//! file is computed by the rules of `Body`, which writes it.
use crate::append::SEGMENT_MAX;
use cairn_types::layout::STRIPE_UNIT_MIN;
use cairn_types::{BLOCK_SIZE, ExtentKind, Layout, Stripe};
use cairn_wire::common::Extent;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// A file is fat if it takes a tenth more than it would newly written,
const FAT_PART: u64 = 10;
/// and at least so much more.
const FAT_BYTES: u64 = 64 << 10;

/// Bytes on all disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Space {
    now: u64,
    anew: u64,
}

/// Whether these extents of a file of this layout take much more space than they would newly written. `extents` ascend.
pub(super) fn is_fat(layout: Layout, extents: &[Extent]) -> bool {
    let Some(Space { now, anew }) = space(layout, extents) else { return false };
    let more = now.saturating_sub(anew);
    more >= FAT_BYTES && more >= anew / FAT_PART
}

/// `None`: the layout keeps copies, which take the same space however they were written.
fn space(layout: Layout, extents: &[Extent]) -> Option<Space> {
    let stripe = layout.stripe().filter(|_| !layout.scheme().is_replicated())?;
    let copies = layout.scheme().short_scheme().members() as u64;
    let members = layout.scheme().members() as u64;
    let striped = |bytes: u64| bytes / u64::from(stripe.columns()) * members;
    Some(Space {
        now: held(extents, striped, copies),
        anew: {
            let (rows, blocks) = anew(stripe, extents);
            striped(rows) + blocks * copies
        },
    })
}

/// What is held on disks for these extents: whole blocks, and whole rows.
fn held(extents: &[Extent], striped: impl Fn(u64) -> u64, copies: u64) -> u64 {
    // Chunk, unit of what is held as a whole, range in such units.
    let mut ranges: Vec<(u32, u32, u64, u64, u64)> = Vec::new();
    for extent in extents {
        let whole = match ExtentKind::from_flags(extent.flags) {
            Some(ExtentKind::Erasure(stripe)) => stripe.row(),
            _ => BLOCK,
        };
        let (from, to) = (extent.chunk_offset / whole, (extent.chunk_offset + extent.length).div_ceil(whole));
        ranges.push((extent.pg, extent.index, whole, from, to));
    }
    ranges.sort_unstable();
    let (mut bytes, mut last) = (0, (0, 0, 0));
    let mut end = 0;
    for (pg, index, whole, from, to) in ranges {
        if last != (pg, index, whole) {
            (last, end) = ((pg, index, whole), 0);
        }
        // Parts of a row that several extents name are held once.
        let new = to.saturating_sub(from.max(end)) * whole;
        end = end.max(to);
        bytes += if whole == BLOCK { new * copies } else { striped(new) };
    }
    bytes
}

/// Bytes that would go into rows, and bytes of blocks that would be copied: the rules of `Body`, for each run of data.
fn anew(stripe: Stripe, extents: &[Extent]) -> (u64, u64) {
    let small = u64::from(stripe.columns()) * STRIPE_UNIT_MIN;
    let (mut rows, mut blocks) = (0, 0);
    for (start, end) in runs(extents) {
        let lead = start % BLOCK;
        let head = if lead == 0 { 0 } else { (SEGMENT_MAX as u64 - lead).min(end - start) };
        if head > 0 {
            blocks += (lead + head).next_multiple_of(BLOCK);
        }
        let mut rest = end - start - head;
        let full = rest / stripe.row() * stripe.row();
        rows += full;
        rest -= full;
        // Rows of the smallest unit only where there are others.
        if rows > 0 {
            rows += rest / small * small;
            rest %= small;
        }
        blocks += rest.next_multiple_of(BLOCK);
    }
    (rows, blocks)
}

/// Ranges of the file without holes.
fn runs(extents: &[Extent]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for extent in extents {
        let end = extent.file_offset + extent.length;
        match runs.last_mut() {
            Some((_, last)) if *last == extent.file_offset => *last = end,
            _ => runs.push((extent.file_offset, end)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: u64 = 6 * (64 << 10);

    fn layout() -> Layout {
        "rs-6-3/64k".parse().expect("a layout")
    }

    fn rows(file_offset: u64, length: u64, chunk_offset: u64) -> Extent {
        let flags = ExtentKind::Erasure(Stripe::new(6, 64 << 10).expect("valid")).to_flags();
        Extent { file_offset, length, pg: 1, index: 1, chunk_offset, flags }
    }

    fn copies(file_offset: u64, length: u64) -> Extent {
        let flags = ExtentKind::Plain.to_flags();
        Extent { file_offset, length, pg: 2, index: 1, chunk_offset: file_offset, flags }
    }

    /// Files that are as small as they can be would be written anew each time, or fat ones never.
    #[test]
    fn space_of_rows_and_copies() {
        let is = |extents: &[Extent]| space(layout(), extents).expect("an erasure layout");
        assert_eq!(is(&[rows(0, 4 * ROW, 0)]), Space { now: 6 * ROW, anew: 6 * ROW });
        assert_eq!(is(&[copies(0, 5000)]), Space { now: 4 * 8192, anew: 4 * 8192 });
        // The end of a file in rows of the smallest unit.
        let whole = [rows(0, ROW, 0), copies(ROW, 100_000)];
        assert_eq!(is(&whole), Space { now: ROW / 2 * 3 + 4 * 102_400, anew: (ROW + 98_304) / 2 * 3 + 4 * 4096 });
        // Ten rows, of which the middle was overwritten: its row is held, and what came is kept as copies.
        let torn = [rows(0, 4 * ROW + 65_536, 0), copies(4 * ROW + 65_536, 65_536)];
        let torn = [torn.as_slice(), &[rows(4 * ROW + 131_072, 6 * ROW - 131_072, 4 * ROW + 131_072)]].concat();
        assert_eq!(is(&torn), Space { now: 15 * ROW + 4 * 65_536, anew: 15 * ROW });
        assert!(!is_fat(layout(), &torn), "less than a tenth more");
        let appended: Vec<Extent> = (0..30).map(|i| copies(i * 300_000, 300_000)).collect();
        assert!(is_fat(layout(), &appended));
        assert!(!is_fat("r4".parse().expect("a layout"), &appended));
        assert_eq!(space(layout(), &[]), Some(Space { now: 0, anew: 0 }));
    }

    /// A sparse file is written in runs, the first part of each up to a whole block in copies.
    #[test]
    fn runs_that_begin_within_a_block() {
        let (rows_bytes, blocks) = anew(Stripe::new(6, 64 << 10).expect("valid"), &[copies(100, 2_000_000)]);
        let head = (1 << 20) - 100;
        let rest = 2_000_000 - head;
        assert_eq!(rows_bytes, rest / ROW * ROW + rest % ROW / 24_576 * 24_576);
        assert_eq!(blocks, (1 << 20) + (rest % ROW % 24_576).next_multiple_of(BLOCK));
        assert_eq!(anew(Stripe::new(6, 64 << 10).expect("valid"), &[copies(100, 200)]), (0, BLOCK));
        assert_eq!(runs(&[copies(0, 10), copies(10, 5), copies(20, 1)]), [(0, 15), (20, 21)]);
    }
}
