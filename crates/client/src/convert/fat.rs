//! Whether a file of an erasure layout takes more space than it would newly written: after overwrites and small appends
//! what does not fill rows is kept as copies, and rows of which a part is named are held as a whole.
//!
//! Invariant: what a conversion has just written is not fat, or it would be written anew each time. So the space of a
//! new file is computed by the rules of `Body`, which writes it.
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
pub(crate) struct Space {
    pub now: u64,
    pub anew: u64,
}

impl Space {
    /// What it would take less.
    pub(crate) fn saved(self) -> u64 {
        self.now.saturating_sub(self.anew)
    }
    /// Whether it takes much more than it would newly written.
    pub(crate) fn is_fat(self) -> bool {
        let more = self.now.saturating_sub(self.anew);
        more >= FAT_BYTES && more >= self.anew / FAT_PART
    }
}

/// Adds up, page by page, what a file's extents take and would take. Memory: two pages. What several extents name
/// together is counted once if they are at most a page apart: in a file that is as small as it can be none do.
pub(crate) struct SpaceCount {
    /// Of whole rows; `None`: the layout keeps copies.
    stripe: Option<Stripe>,
    members: u64,
    /// Of what does not fill rows: as it would be, and as it is.
    copies: u64,
    copies_now: u64,
    now: u64,
    /// Bytes that would go into rows, and bytes of blocks that would be copied.
    rows: u64,
    blocks: u64,
    /// The range without holes that the last page ended in.
    run: Option<(u64, u64)>,
    before: Vec<Extent>,
}

impl SpaceCount {
    pub(crate) fn new(layout: Layout) -> Self {
        let scheme = layout.scheme();
        let stripe = layout.stripe().filter(|_| !scheme.is_replicated());
        let (members, copies) = (scheme.members() as u64, scheme.short_scheme().members() as u64);
        Self { stripe, members, copies, copies_now: copies, now: 0, rows: 0, blocks: 0, run: None, before: Vec::new() }
    }

    /// What does not lie in rows is kept as so many copies now.
    pub(crate) fn with_copies_now(self, copies_now: u64) -> Self {
        Self { copies_now, ..self }
    }

    /// The next extents in the order of the file.
    pub(crate) fn push(&mut self, page: &[Extent]) {
        let known = self.before.len();
        self.before.extend_from_slice(page);
        self.now += self.held(&self.before) - self.held(&self.before[..known]);
        self.before.drain(..known);
        for extent in page {
            let end = extent.file_offset + extent.length;
            match &mut self.run {
                Some((_, last)) if *last == extent.file_offset => *last = end,
                run => {
                    let done = run.replace((extent.file_offset, end));
                    self.end_run(done);
                }
            }
        }
    }

    pub(crate) fn finish(mut self) -> Space {
        let last = self.run.take();
        self.end_run(last);
        let rows = self.stripe.map_or(0, |stripe| self.striped(stripe, self.rows));
        Space { now: self.now, anew: rows + self.blocks * self.copies }
    }

    fn striped(&self, stripe: Stripe, bytes: u64) -> u64 {
        bytes / u64::from(stripe.columns()) * self.members
    }

    /// A run as [`Body`](crate::file_writer::body::Body) writes it.
    fn end_run(&mut self, run: Option<(u64, u64)>) {
        let Some((start, end)) = run else { return };
        let lead = start % BLOCK;
        let Some(stripe) = self.stripe else {
            self.blocks += (lead + end - start).next_multiple_of(BLOCK);
            return;
        };
        let small = u64::from(stripe.columns()) * STRIPE_UNIT_MIN;
        let head = if lead == 0 { 0 } else { (SEGMENT_MAX as u64 - lead).min(end - start) };
        if head > 0 {
            self.blocks += (lead + head).next_multiple_of(BLOCK);
        }
        let mut rest = end - start - head;
        let full = rest / stripe.row() * stripe.row();
        self.rows += full;
        rest -= full;
        // Rows of the smallest unit only where there are others.
        if self.rows > 0 {
            self.rows += rest / small * small;
            rest %= small;
        }
        self.blocks += rest.next_multiple_of(BLOCK);
    }

    /// What is held on disks for these extents: whole blocks, and whole rows.
    fn held(&self, extents: &[Extent]) -> u64 {
        // Chunk, unit of what is held as a whole, whether parity is kept of it, range in such units.
        let mut ranges: Vec<(u32, u32, u64, bool, u64, u64)> = Vec::new();
        for extent in extents {
            let (whole, coded) = match ExtentKind::from_flags(extent.flags) {
                // A block of a whole shard may go when others of its row do not.
                Some(ExtentKind::Erasure(stripe)) if stripe.is_whole_shards() => (BLOCK, true),
                Some(ExtentKind::Erasure(stripe)) => (stripe.row(), true),
                _ => (BLOCK, false),
            };
            let (from, to) = (extent.chunk_offset / whole, (extent.chunk_offset + extent.length).div_ceil(whole));
            ranges.push((extent.pg, extent.index, whole, coded, from, to));
        }
        ranges.sort_unstable();
        let (mut bytes, mut last) = (0, (0, 0, 0));
        let mut end = 0;
        for (pg, index, whole, coded, from, to) in ranges {
            if last != (pg, index, whole) {
                (last, end) = ((pg, index, whole), 0);
            }
            // Parts of a row that several extents name are held once.
            let new = to.saturating_sub(from.max(end)) * whole;
            end = end.max(to);
            bytes += match self.stripe {
                Some(stripe) if coded => self.striped(stripe, new),
                _ => new * self.copies_now,
            };
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: u64 = 6 * (64 << 10);

    fn space(layout: &str, extents: &[Extent]) -> Space {
        let mut count = SpaceCount::new(layout.parse().expect("a layout"));
        count.push(extents);
        count.finish()
    }

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
        let is = |extents: &[Extent]| space("rs-6-3/64k", extents);
        assert_eq!(is(&[rows(0, 4 * ROW, 0)]), Space { now: 6 * ROW, anew: 6 * ROW });
        assert_eq!(is(&[copies(0, 5000)]), Space { now: 4 * 8192, anew: 4 * 8192 });
        // The end of a file in rows of the smallest unit.
        let whole = [rows(0, ROW, 0), copies(ROW, 100_000)];
        assert_eq!(is(&whole), Space { now: ROW / 2 * 3 + 4 * 102_400, anew: (ROW + 98_304) / 2 * 3 + 4 * 4096 });
        // Ten rows, of which the middle was overwritten: its row is held, and what came is kept as copies.
        let torn = [rows(0, 4 * ROW + 65_536, 0), copies(4 * ROW + 65_536, 65_536)];
        let torn = [torn.as_slice(), &[rows(4 * ROW + 131_072, 6 * ROW - 131_072, 4 * ROW + 131_072)]].concat();
        assert_eq!(is(&torn), Space { now: 15 * ROW + 4 * 65_536, anew: 15 * ROW });
        assert!(!is(&torn).is_fat(), "less than a tenth more");
        let appended: Vec<Extent> = (0..30).map(|i| copies(i * 300_000, 300_000)).collect();
        assert!(is(&appended).is_fat());
        assert!(!space("r4", &appended).is_fat());
        assert_eq!(is(&[]), Space { now: 0, anew: 0 });
    }

    /// A sparse file is written in runs, the first part of each up to a whole block in copies.
    #[test]
    fn runs_that_begin_within_a_block() {
        let anew = |extents: &[Extent]| {
            let mut count = SpaceCount::new(layout());
            count.push(extents);
            let last = count.run.take();
            count.end_run(last);
            (count.rows, count.blocks)
        };
        let head = (1 << 20) - 100;
        let rest = 2_000_000 - head;
        let rows = rest / ROW * ROW + rest % ROW / 24_576 * 24_576;
        let blocks = (1 << 20) + (rest % ROW % 24_576).next_multiple_of(BLOCK);
        assert_eq!(anew(&[copies(100, 2_000_000)]), (rows, blocks));
        assert_eq!(anew(&[copies(100, 200)]), (0, BLOCK));
        assert_eq!(anew(&[copies(0, 10), copies(10, 5), copies(20, 1)]), (0, 2 * BLOCK));
    }

    /// The memory of a conversion would grow with the extents of a file; or pages would count what they share twice.
    #[test]
    fn pages_come_to_the_same_as_all_at_once() {
        let torn: Vec<Extent> = (0..3000)
            .map(|i| {
                let at = i * 65_536;
                if i % 3 == 0 { copies(at, 65_536) } else { rows(at, 65_536, at) }
            })
            .collect();
        let whole = space("rs-6-3/64k", &torn);
        for page in [6, 60, 1024, 1500] {
            let mut count = SpaceCount::new(layout());
            for extents in torn.chunks(page) {
                count.push(extents);
                assert!(count.before.len() <= page);
            }
            assert_eq!(count.finish(), whole, "pages of {page}");
        }
        assert!(whole.is_fat());
    }
}
