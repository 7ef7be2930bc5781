//! Pages of directories: [`DirPage`], [`DirEntry`].
use crate::attributes::{Attributes, FileKind};
use crate::malformed::Malformed;
use cairn_wire::meta;

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    pub name: Vec<u8>,
    pub inode: u64,
    pub kind: FileKind,
    /// Where they were asked for and are known.
    pub attributes: Option<Attributes>,
    /// It had no extended attributes then; false: nobody said so.
    pub no_xattrs: bool,
    /// A listing goes on behind it.
    pub cookie: Vec<u8>,
}

/// Entries of a directory, in its order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DirPage {
    pub entries: Vec<DirEntry>,
    /// There are no more behind them.
    pub end: bool,
    /// With `end`: further entries are in so many shards.
    pub(crate) shards: u32,
}

impl DirEntry {
    fn of_wire(found: meta::DirEntry) -> Result<Self, Malformed> {
        let meta::DirEntry { name, inode, kind, attributes, cookie, no_xattrs } = found;
        Ok(Self {
            name,
            inode,
            kind: FileKind::of_wire(kind)?,
            attributes: attributes.map(Attributes::of_wire),
            no_xattrs,
            cookie,
        })
    }
}

impl DirPage {
    /// The strings are moved.
    pub(crate) fn of_wire(found: meta::ReaddirResponse) -> Result<Self, Malformed> {
        let meta::ReaddirResponse { entries, end, shards } = found;
        let entries = entries.into_iter().map(DirEntry::of_wire).collect::<Result<_, _>>()?;
        Ok(Self { entries, end, shards })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of a server that says something else would end a program, or show a thing as another.
    #[test]
    fn a_page_is_as_it_came_or_refused() {
        let entry = |kind| meta::DirEntry { name: b"a".to_vec(), inode: 7, kind, ..Default::default() };
        let page = |kind| meta::ReaddirResponse { entries: vec![entry(4), entry(kind)], end: true, shards: 0 };
        let good = DirPage::of_wire(page(8)).expect("a page");
        let kinds: Vec<FileKind> = good.entries.iter().map(|entry| entry.kind).collect();
        assert_eq!((kinds, good.end), (vec![FileKind::Directory, FileKind::Regular], true));
        let odd = Malformed::UnknownCode { part: "type of an entry", code: 9 };
        assert_eq!(DirPage::of_wire(page(9)), Err(odd));
    }
}
