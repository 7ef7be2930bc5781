//! Which ranges of a file are written anew, from a part of its extents.
//!
//! A file is looked at in *cells* of about 1 MiB, whole rows of an erasure layout. A *seam* is where one extent ends
//! and the next one begins. A cell with more seams than half of what it may have is fragmented; in it all ranges that
//! have a seam are written anew. So what was worked through has at most half of what a file may have, and is not
//! touched again soon.
//!
//! Invariants: holes stay; what is written anew takes at most [`SLACK`] bytes a cell more than the file's own blocks
//! did; of what other files share no more bytes become the file's own than it had there already. Not here: reading and
//! writing.
use crate::append::SEGMENT_MAX;
use crate::convert::fat::SpaceCount;
use crate::moving::{Run, clipped};
use cairn_types::{EXTENT_SHARED, ExtentKind, Layout};
use cairn_wire::common::Extent;

/// Bytes on all disks that a cell may take more than before.
const SLACK: u64 = 64 << 10;
/// Fewer seams are always left: the beginning and the end of a cell that was written anew, and of its rows.
const SEAMS_MIN: u64 = 4;

/// When extents are too short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragmentRules {
    /// Extents of a file may have this length on average.
    pub extent_bytes: u64,
}

impl FragmentRules {
    /// Seams of a cell that are left alone.
    fn seams_max(self, cell: u64) -> u64 {
        (cell / self.extent_bytes.max(1) / 2).max(SEAMS_MIN)
    }
}

/// Bytes of a cell.
pub(crate) fn cell_of(layout: Layout) -> u64 {
    let segment = SEGMENT_MAX as u64;
    match layout.stripe().filter(|_| !layout.scheme().is_replicated()) {
        Some(stripe) => segment.next_multiple_of(stripe.row()),
        None => segment,
    }
}

/// A part of an extent that lies in one cell.
#[derive(Clone, Copy)]
struct Piece {
    extent: Extent,
    /// The extent begins here, where another one ends.
    has_seam: bool,
}

impl Piece {
    fn bytes(&self) -> u64 {
        self.extent.length
    }
    fn is_shared(&self) -> bool {
        self.extent.flags & EXTENT_SHARED != 0
    }
    fn is_movable(&self) -> bool {
        let kind = ExtentKind::from_flags(self.extent.flags);
        matches!(kind, Some(ExtentKind::Plain | ExtentKind::Erasure(_)))
    }
}

/// The runs of these extents, which ascend, that are to be written anew.
pub(super) fn fragmented(layout: Layout, rules: FragmentRules, extents: &[Extent]) -> Vec<Run> {
    let cell = cell_of(layout);
    let pieces = cut(extents, cell);
    let mut runs: Vec<Run> = Vec::new();
    for pieces in pieces.chunk_by(|a, b| a.extent.file_offset / cell == b.extent.file_offset / cell) {
        let seams = pieces.iter().filter(|piece| piece.has_seam).count() as u64;
        if seams <= rules.seams_max(cell) {
            continue;
        }
        let shared: u64 = pieces.iter().filter(|piece| piece.is_shared()).map(Piece::bytes).sum();
        let own = pieces.iter().map(Piece::bytes).sum::<u64>() - shared;
        let found = runs_of(pieces, |piece| piece.is_movable() && (shared <= own || !piece.is_shared()));
        if takes_no_more(layout, &found) {
            found.into_iter().for_each(|run| add(&mut runs, run));
        }
    }
    runs
}

/// Cuts extents at the ends of cells.
fn cut(extents: &[Extent], cell: u64) -> Vec<Piece> {
    let (mut pieces, mut end) = (Vec::with_capacity(extents.len()), None);
    for extent in extents {
        let (mut at, to) = (extent.file_offset, extent.file_offset + extent.length);
        let mut has_seam = end == Some(at);
        end = Some(to);
        while at < to {
            let until = to.min((at / cell + 1).saturating_mul(cell));
            pieces.push(Piece { extent: clipped(extent, at, until), has_seam });
            (at, has_seam) = (until, false);
        }
    }
    pieces
}

/// What is worth writing anew of a cell: ranges of more than one piece.
fn runs_of(pieces: &[Piece], is_taken: impl Fn(&Piece) -> bool) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut goes_on = false;
    for piece in pieces {
        let taken = is_taken(piece);
        if taken && !(goes_on && runs.last_mut().is_some_and(|run| run.push(piece.extent))) {
            let mut run = Run::default();
            run.push(piece.extent);
            runs.push(run);
        }
        goes_on = taken;
    }
    runs.retain(|run| run.extents.len() > 1);
    runs
}

/// Whether these runs of a cell take about what the file's own blocks in them take, or less.
fn takes_no_more(layout: Layout, runs: &[Run]) -> bool {
    let (mut own, mut all) = (SpaceCount::new(layout), SpaceCount::new(layout));
    let is_shared = |e: &Extent| e.flags & EXTENT_SHARED != 0;
    let mut has_shared = false;
    for run in runs {
        all.push(&run.extents);
        let unshared: Vec<Extent> = run.extents.iter().filter(|e| !is_shared(e)).copied().collect();
        has_shared |= unshared.len() < run.extents.len();
        own.push(&unshared);
    }
    let (now, anew) = (own.finish().now, all.finish().anew);
    // Of shared blocks as much as of its own becomes the file's.
    anew <= now.saturating_mul(1 + u64::from(has_shared)) + SLACK
}

/// Adds a run, in one piece with the one before that it continues. Extents that were cut between cells are whole again.
fn add(runs: &mut Vec<Run>, run: Run) {
    let Some(last) = runs.last_mut().filter(|last| last.end() == run.offset) else {
        return runs.push(run);
    };
    for extent in run.extents {
        let continues = last.extents.last_mut().filter(|e| {
            (e.pg, e.index, e.flags) == (extent.pg, extent.index, extent.flags)
                && e.chunk_offset + e.length == extent.chunk_offset
        });
        match continues {
            Some(before) => {
                before.length += extent.length;
                last.bytes += extent.length;
            }
            None => {
                let pushed = last.push(extent);
                assert!(pushed, "it continues the run");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::Stripe;

    const MIB: u64 = 1 << 20;
    const RULES: FragmentRules = FragmentRules { extent_bytes: 64 << 10 };

    fn layout(text: &str) -> Layout {
        text.parse().expect("a layout")
    }

    fn plain(file_offset: u64, length: u64, index: u32) -> Extent {
        Extent { file_offset, length, pg: 1, index, chunk_offset: file_offset % (32 * MIB), flags: 0 }
    }

    fn shared(extent: Extent) -> Extent {
        Extent { flags: extent.flags | EXTENT_SHARED, ..extent }
    }

    /// Extents of so many bytes side by side, each in another chunk than the one before.
    fn pieces(from: u64, to: u64, bytes: u64) -> Vec<Extent> {
        let one = |at: u64| plain(at, bytes.min(to - at), (at / bytes % 2) as u32);
        (0..).map(|i| from + i * bytes).take_while(|at| *at < to).map(one).collect()
    }

    fn ranges(runs: &[Run]) -> Vec<(u64, u64)> {
        for run in runs {
            assert_eq!(run.bytes, run.extents.iter().map(|e| e.length).sum::<u64>());
            assert!(run.extents.windows(2).all(|pair| pair[0].file_offset + pair[0].length == pair[1].file_offset));
        }
        runs.iter().map(|run| (run.offset, run.end())).collect()
    }

    /// Files that are as they should be would be written anew, or fragmented ones not.
    #[test]
    fn cells_with_many_seams_are_written_anew() {
        let r3 = layout("r3");
        let of = |extents: &[Extent]| ranges(&fragmented(r3, RULES, extents));
        assert_eq!(of(&[plain(0, 30 * MIB, 1)]), []);
        assert_eq!(of(&pieces(0, 8 * MIB, MIB)), [], "segments of several writers side by side");
        assert_eq!(of(&pieces(0, 8 * MIB, 128 << 10)), [], "half of what it may have");
        assert_eq!(of(&pieces(0, 8 * MIB, 32 << 10)), [(0, 8 * MIB)]);
        // One cell of three, whose neighbours reach into it.
        let mut torn = pieces(MIB + 8192, 2 * MIB - 8192, 4096);
        torn.insert(0, plain(0, MIB + 8192, 7));
        torn.push(plain(2 * MIB - 8192, MIB + 8192, 8));
        assert_eq!(of(&torn), [(MIB, 2 * MIB)]);
    }

    /// Holes would be filled, or files with many of them be written anew for ever.
    #[test]
    fn holes_stay_and_count_for_nothing() {
        let r3 = layout("r3");
        let islands: Vec<Extent> = (0..2000).map(|i| plain(i * 12_288, 4096, (i % 2) as u32)).collect();
        assert_eq!(ranges(&fragmented(r3, RULES, &islands)), []);
        let mut both = pieces(0, 512 << 10, 4096);
        both.extend(pieces(520 << 10, MIB, 4096));
        both.push(plain(2 * MIB, 4096, 9));
        assert_eq!(ranges(&fragmented(r3, RULES, &both)), [(0, 512 << 10), (520 << 10, MIB)]);
    }

    /// A clone of which little was written would lose what it shares, or one of which most was written never be
    /// compact.
    #[test]
    fn shared_bytes_become_own_ones_only_where_most_is_own() {
        let r3 = layout("r3");
        let with = |is_own: fn(u64) -> bool| {
            let all = pieces(0, MIB, 4096).into_iter();
            let all = all.map(|e| if is_own(e.file_offset / 4096) { e } else { shared(e) });
            ranges(&fragmented(r3, RULES, &all.collect::<Vec<_>>()))
        };
        assert_eq!(with(|block| block % 2 == 0), [(0, MIB)]);
        assert_eq!(with(|block| block % 4 == 0), []);
        // What is the file's own side by side is put together all the same.
        assert_eq!(with(|block| block < 16), [(0, 16 * 4096)]);
    }

    /// Rows would be torn in two, or space be lost.
    #[test]
    fn rows_are_written_anew_whole() {
        let rs = layout("rs-6-3/64k");
        let row = 6 * (64 << 10);
        assert_eq!(cell_of(rs), 3 * row);
        let stripe = ExtentKind::Erasure(Stripe::new(6, 64 << 10).expect("valid")).to_flags();
        let rows = |from: u64, to: u64| Extent { flags: stripe, ..plain(from, to - from, 3) };
        // Every sixteenth block of the second cell was overwritten.
        let (from, to) = (3 * row, 6 * row);
        let mut torn = vec![rows(0, from)];
        for at in (from..to).step_by(65_536) {
            torn.extend([plain(at, 4096, 4), rows(at + 4096, at + 65_536)]);
        }
        torn.push(rows(to, 20 * row));
        assert_eq!(ranges(&fragmented(rs, RULES, &torn)), [(from, to)]);
        // Short runs of it would become copies.
        let holes: Vec<Extent> = torn.iter().filter(|e| e.index != 4).copied().collect();
        assert_eq!(ranges(&fragmented(rs, RULES, &holes)), []);
        // Two blocks of a row in the wrong order, and a hole.
        let swapped = |at: u64| {
            let [first, second] = [rows(at, at + 4096), rows(at + 4096, at + 8192)];
            [Extent { chunk_offset: at + 4096, ..first }, Extent { chunk_offset: at, ..second }]
        };
        let short: Vec<Extent> = (0..80).flat_map(|i| swapped(i * 12_288)).collect();
        assert_eq!(ranges(&fragmented(rs, RULES, &short)), [], "four copies of what has one and a half");
    }
}
