//! [`Table`]: rows of text in aligned columns. Keeps what it prints in memory, so it is for short lists only.
use crate::error::Result;
use crate::output::Out;

/// How a column is aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    Left,
    Right,
}

/// Rows under a heading.
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
    /// The lines, heading first.
    pub fn lines(&self) -> Vec<String> {
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let all = || std::iter::once(&heading).chain(&self.rows);
        let width = |at: usize| all().filter_map(|row| row.get(at)).map(|c| c.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        all().map(|row| self.line(row, &widths)).collect()
    }
    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let pad = widths.get(at).copied().unwrap_or(0).saturating_sub(cell.chars().count());
            let right = self.columns.get(at).is_some_and(|(_, align)| *align == Align::Right);
            if at > 0 {
                line.push_str("  ");
            }
            if right {
                line.extend(std::iter::repeat_n(' ', pad));
            }
            line.push_str(cell);
            if !right && at + 1 < row.len() {
                line.extend(std::iter::repeat_n(' ', pad));
            }
        }
        line
    }
    pub fn print(&self, out: &Out) -> Result<()> {
        self.lines().iter().try_for_each(|line| out.line(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns that do not line up cannot be read or cut by scripts.
    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("ID", Align::Right), ("NAME", Align::Left), ("N", Align::Right)]);
        table.row(vec!["7".into(), "ä".into(), "10".into()]);
        table.row(vec!["123".into(), "longer".into(), "1".into()]);
        assert_eq!(table.lines(), [" ID  NAME     N", "  7  ä       10", "123  longer   1"]);
    }
}
