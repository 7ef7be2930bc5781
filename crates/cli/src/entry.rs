//! A remote entry as it is printed: a JSON object, or the columns of `ls -l`.
use crate::human;
use crate::mode::{self, mode_text, type_name};
use crate::output::put_name;
use crate::owner::{group_name, user_name};
use crate::redundancy::raw_bytes_of;
use cairn_client::RemotePath;
use cairn_client::attributes::Attributes;
use cairn_types::{Layout, Stage};
use serde_json::{Map, Value, json};

/// The text of layout bits.
pub fn layout_text(bits: u64) -> String {
    Layout::from_bits(bits).map_or_else(|| format!("unknown (0x{bits:x})"), |layout| layout.to_string())
}

/// The same of a file with a later scheme, with its stage: `r3>rs-6-3:encoded`.
pub fn staged_text(attributes: &Attributes) -> String {
    match stage_of(attributes) {
        Some(layout) => format!("{layout}:{}", layout.stage().name()),
        None => layout_text(attributes.layout),
    }
}

/// The layout of a regular file with a later scheme.
pub fn stage_of(attributes: &Attributes) -> Option<Layout> {
    let layout = Layout::from_bits(attributes.layout).filter(|layout| layout.staged().is_some());
    layout.filter(|_| mode::is_regular(attributes.mode))
}

/// Bytes that the contents take on all disks together, as the layout says: of an erasure layout whole rows with their
/// parity and the rest as copies. Less than a row that is encoded lies in shards together with other files. Exact
/// unless the file grew in many small steps; its extents say it exactly.
pub fn raw_bytes(attributes: &Attributes) -> u64 {
    let stored = attributes.stored_bytes;
    let Some(layout) = Layout::from_bits(attributes.layout) else { return stored };
    let scheme = layout.scheme();
    let rows = match layout.stripe() {
        Some(stripe) if !scheme.is_replicated() => stored - stored % stripe.row(),
        _ => 0,
    };
    let is_in_shards = rows == 0 && layout.staged().is_some() && layout.stage() == Stage::Encoded;
    let short = if is_in_shards { scheme } else { scheme.short_scheme() };
    raw_bytes_of(scheme, rows) + raw_bytes_of(short, stored - rows)
}

/// The shape that docs/reference/cli.md calls "entry".
pub fn entry_json(at: &RemotePath, attributes: &Attributes, link: Option<&[u8]>) -> Value {
    let mut object = Map::new();
    put_name(&mut object, "path", &at.path);
    object.insert("volume".into(), json!(at.volume));
    let a = attributes;
    let rest = json!({
        "type": type_name(a.mode), "mode": format!("{:04o}", a.mode & 0o7777), "inode": a.inode, "nlink": a.nlink,
        "uid": a.uid, "gid": a.gid, "size": a.size, "stored_bytes": a.stored_bytes, "raw_bytes": raw_bytes(a),
        "atime_ns": a.atime_ns as u64, "mtime_ns": a.mtime_ns as u64, "ctime_ns": a.ctime_ns as u64,
        "btime_ns": a.btime_ns as u64,
        "layout": layout_text(a.layout), "generation": a.generation, "data_version": a.data_version,
    });
    if let Value::Object(rest) = rest {
        object.extend(rest);
    }
    if let Some(layout) = stage_of(a) {
        object.insert("stage".into(), json!(layout.stage().name()));
        object.insert("stage_after_s".into(), json!(layout.stage_after().duration().as_secs()));
    }
    if a.shards > 0 {
        object.insert("shards".into(), json!(a.shards));
    }
    if let Some(link) = link {
        put_name(&mut object, "target", link);
    }
    Value::Object(object)
}

/// Columns of `ls -l` with the widths so far, which grow as wider values come.
#[derive(Default)]
pub struct LongColumns {
    widths: [usize; 5],
}

impl LongColumns {
    /// Makes room for an entry, where all are known before the first is printed.
    pub fn widen(&mut self, attributes: &Attributes, human_sizes: bool) {
        for (width, cell) in self.widths.iter_mut().zip(cells(attributes, human_sizes)) {
            *width = (*width).max(cell.chars().count());
        }
    }
    /// The columns before the name.
    pub fn text(&mut self, attributes: &Attributes, human_sizes: bool) -> String {
        self.widen(attributes, human_sizes);
        let cells = cells(attributes, human_sizes);
        let [w_links, w_user, w_group, w_layout, w_size] = self.widths;
        let [links, user, group, layout, size] = &cells;
        format!(
            "{} {links:>w_links$} {user:<w_user$} {group:<w_group$} {layout:<w_layout$} {size:>w_size$} {} ",
            mode_text(attributes.mode),
            human::local_time(attributes.mtime_ns as u64),
        )
    }
}

fn cells(attributes: &Attributes, human_sizes: bool) -> [String; 5] {
    let layout = match mode::is_symlink(attributes.mode) {
        true => "-".to_owned(),
        false => staged_text(attributes),
    };
    [
        attributes.nlink.to_string(),
        user_name(attributes.uid),
        group_name(attributes.gid),
        layout,
        human::size(attributes.size, human_sizes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `du` would say that three copies take the space of one.
    #[test]
    fn raw_bytes_count_all_copies() {
        for (layout, stored, raw) in [
            ("r1", 1000, 1000),
            ("r3", 1000, 3000),
            ("r2x128/64k", 1000, 2000),
            ("rs-6-3/64k", 6 << 16, 9 << 16),
            ("rs-6-3/64k", (6 << 16) + 10, (9 << 16) + 40),
            ("rs-10-4/4k", 1000, 5000),
        ] {
            let layout: Layout = layout.parse().expect("layout");
            let attributes = Attributes { stored_bytes: stored, layout: layout.to_bits(), ..Attributes::default() };
            assert_eq!(raw_bytes(&attributes), raw, "{layout}");
        }
        let of = |layout: Layout| Attributes { stored_bytes: 10, layout: layout.to_bits(), ..Attributes::default() };
        assert_eq!(raw_bytes(&of(Layout::replicated(3))), 30);
        let staged: Layout = "r3>rs-6-3".parse().expect("layout");
        let by_stage = [(Stage::Copies, 30), (Stage::Kept, 30), (Stage::Encoded, 15), (Stage::Changed, 40)];
        for (stage, raw) in by_stage {
            assert_eq!(raw_bytes(&of(staged.in_stage(stage))), raw, "{stage:?}");
        }
    }
}
