//! Directory listings: entries one after another, each padded to 8 bytes.
use super::attr::EntryOut;
use super::sizes;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Followed by the name.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Dirent {
    pub ino: u64,
    /// Where to go on behind this entry.
    pub off: u64,
    pub namelen: u32,
    /// `DT_*`.
    pub kind: u32,
}

sizes!(Dirent = 24);

/// Adds an entry; false if it does not fit into `limit` bytes. With `plus` the entry comes before the name.
pub fn push(out: &mut Vec<u8>, limit: usize, plus: Option<&EntryOut>, head: Dirent, name: &[u8]) -> bool {
    let plain = size_of::<Dirent>() + name.len();
    let length = plus.map_or(0, |_| size_of::<EntryOut>()) + plain;
    let padded = length.next_multiple_of(8);
    if out.len() + padded > limit {
        return false;
    }
    if let Some(entry) = plus {
        out.extend_from_slice(entry.as_bytes());
    }
    out.extend_from_slice(Dirent { namelen: name.len() as u32, ..head }.as_bytes());
    out.extend_from_slice(name);
    out.resize(out.len() + padded - length, 0);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel would read entries at wrong places, or beyond the end of its buffer.
    #[test]
    fn entries_are_padded_and_stay_below_the_limit() {
        let mut out = Vec::new();
        let head = Dirent { ino: 7, off: 1, namelen: 0, kind: 8 };
        assert!(push(&mut out, 64, None, head, b"abc"));
        assert_eq!(out.len(), 32);
        assert_eq!(&out[16..20], 3u32.to_ne_bytes());
        assert!(push(&mut out, 64, None, head, b"12345678"));
        assert_eq!(out.len(), 64);
        assert!(!push(&mut out, 64, None, head, b"x"));
        let mut plus = Vec::new();
        assert!(push(&mut plus, 160, Some(&EntryOut::default()), head, b"abc"));
        assert_eq!(plus.len(), 160);
    }
}
