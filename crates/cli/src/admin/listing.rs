//! One way to print a list: a JSON value a line with `--json`, else a table.
use crate::context::Context;
use crate::error::Result;
use crate::table::{Align, Table};
use serde_json::Value;

/// Prints rows, each as a value and as the cells of the columns.
pub fn print(
    context: &Context,
    columns: &[(&'static str, Align)],
    rows: impl Iterator<Item = (Value, Vec<String>)>,
) -> Result<()> {
    let out = &context.out;
    if out.is_json() {
        let mut rows = rows;
        return rows.try_for_each(|(value, _)| out.json(&value));
    }
    let mut table = Table::new(columns);
    rows.for_each(|(_, cells)| table.row(cells));
    table.print(out)
}
