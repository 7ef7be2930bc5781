//! A remote entry as it is printed: a JSON object, or the columns of `ls -l`.
use crate::human;
use crate::mode::{self, mode_text, type_name};
use crate::output::put_name;
use crate::owner::{group_name, user_name};
use cairn_client::RemotePath;
use cairn_types::Layout;
use cairn_wire::meta::Attributes;
use serde_json::{Map, Value, json};

/// The text of layout bits.
pub fn layout_text(bits: u64) -> String {
    Layout::from_bits(bits).map_or_else(|| format!("unknown (0x{bits:x})"), |layout| layout.to_string())
}

/// Bytes on disks for each byte of an extent, times 1,000.
pub fn copies_permille(bits: u64) -> u64 {
    let Some(layout) = Layout::from_bits(bits) else { return 1000 };
    let scheme = layout.scheme();
    let data = scheme.members().saturating_sub(match scheme.is_replicated() {
        true => scheme.members() - 1,
        false => scheme.tolerated_losses(),
    });
    (scheme.members() as u64 * 1000).checked_div(data as u64).unwrap_or(1000)
}

/// Bytes that the contents take on all disks together.
pub fn raw_bytes(attributes: &Attributes) -> u64 {
    (u128::from(attributes.stored_bytes) * u128::from(copies_permille(attributes.layout)) / 1000) as u64
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
        "atime_ns": a.atime_ns, "mtime_ns": a.mtime_ns, "ctime_ns": a.ctime_ns, "btime_ns": a.btime_ns,
        "layout": layout_text(a.layout), "generation": a.generation, "data_version": a.data_version,
    });
    if let Value::Object(rest) = rest {
        object.extend(rest);
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
            human::local_time(attributes.mtime_ns),
        )
    }
}

fn cells(attributes: &Attributes, human_sizes: bool) -> [String; 5] {
    let layout = match mode::is_symlink(attributes.mode) {
        true => "-".to_owned(),
        false => layout_text(attributes.layout),
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
        for (layout, permille) in [("r1", 1000), ("r3", 3000), ("rs-6-3/64k", 1500), ("rs-10-4/64k", 1400)] {
            let layout: Layout = layout.parse().expect("layout");
            assert_eq!(copies_permille(layout.to_bits()), permille);
        }
        let attributes =
            Attributes { stored_bytes: 10, layout: Layout::replicated(3).to_bits(), ..Attributes::default() };
        assert_eq!(raw_bytes(&attributes), 30);
    }
}
