//! Which bytes before a write are worth being written again as rows together with it. Pure.
use cairn_types::{BLOCK_SIZE, ExtentKind, Stripe};
use cairn_wire::common::Extent;

/// Most bytes that are read back.
pub(crate) const GATHER_MAX: u64 = 16 << 20;

/// Where the rows begin that the write `from..to` completes: the replicated pieces that end where it begins, if they
/// and it are at least a row. `extents`: those of the range before the write, by offset.
pub(crate) fn rows_begin(extents: &[Extent], stripe: Stripe, from: u64, to: u64) -> Option<u64> {
    let mut start = from;
    for extent in extents.iter().rev() {
        let end = extent.file_offset + extent.length;
        let plain = ExtentKind::from_flags(extent.flags) == Some(ExtentKind::Plain);
        if extent.file_offset >= from || !plain || end < start {
            // Beyond the write, striped already, or a hole in between.
            if extent.file_offset >= from {
                continue;
            }
            break;
        }
        start = start.min(extent.file_offset);
    }
    // Rows begin with a block of the file.
    let start = start.max(from.saturating_sub(GATHER_MAX)).next_multiple_of(BLOCK_SIZE as u64);
    (start < from && to - start >= stripe.row()).then_some(start)
}

/// A write cut into what is striped and what is not: rows begin at a row of the file if a whole one fits from there, or
/// else at a block.
pub(crate) fn first_row(stripe: Stripe, from: u64, to: u64) -> Option<u64> {
    let by_row = from.next_multiple_of(stripe.row());
    let by_block = from.next_multiple_of(BLOCK_SIZE as u64);
    [by_row, by_block].into_iter().find(|start| start + stripe.row() <= to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripe() -> Stripe {
        Stripe::new(3, 4096).expect("valid")
    }
    fn extent(file_offset: u64, length: u64, kind: ExtentKind) -> Extent {
        Extent { file_offset, length, pg: 1, index: 1, chunk_offset: file_offset % 4096, flags: kind.to_flags() }
    }

    /// A file that grows by small appends would stay replicated for ever, or a hole would be filled with zeros.
    #[test]
    fn replicated_pieces_before_a_write_are_gathered() {
        let (plain, rows) = (ExtentKind::Plain, ExtentKind::Erasure(stripe()));
        let row = stripe().row();
        let begin = |extents: &[Extent], from, to| rows_begin(extents, stripe(), from, to);
        let grown = [extent(0, row, rows), extent(row, 100, plain), extent(row + 100, 5000, plain)];
        assert_eq!(begin(&grown, row + 5100, row + 6000), None, "not a row yet");
        assert_eq!(begin(&grown, row + 5100, 2 * row), Some(row));
        assert_eq!(begin(&grown, row + 5200, 3 * row), None, "a hole lies between");
        assert_eq!(begin(&grown[..2], row + 100, 9 * row), Some(row));
        assert_eq!(begin(&[extent(50, 9000, plain)], 9050, 9 * row), Some(4096), "rows begin with a block");
        assert_eq!(begin(&[extent(0, row, rows)], row, 3 * row), None, "nothing to gather");
        let long = [extent(0, 64 << 20, plain)];
        assert_eq!(begin(&long, 64 << 20, 65 << 20), Some((64 << 20) - GATHER_MAX));
    }

    /// Parts of rows would be left over when rows of the file are written anew.
    #[test]
    fn rows_begin_with_the_rows_of_the_file() {
        let row = stripe().row();
        assert_eq!(first_row(stripe(), 5, 3 * row), Some(row));
        assert_eq!(first_row(stripe(), 5, row + 5000), Some(4096));
        assert_eq!(first_row(stripe(), 5, row), None);
        assert_eq!(first_row(stripe(), row, 2 * row), Some(row));
    }
}
