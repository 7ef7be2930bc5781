//! Answers of several values, as bytes in little-endian order: the Java class `Record` reads them. Both come in one
//! jar.
use cairn_sdk::{DirEntry, DirPage, FileKind, Metadata, OwnKey, Place, Quota, Space};

/// Bytes of [`metadata`].
pub const METADATA: usize = 64;

/// inode, size, version, accessed, modified (64 bits each), mode, links, uid, gid, copies, 0 (32 bits each).
pub fn metadata(found: &Metadata) -> Vec<u8> {
    let mut record = Vec::with_capacity(METADATA);
    for wide in [found.inode, found.size, found.version, found.accessed as u64, found.modified as u64] {
        record.extend_from_slice(&wide.to_le_bytes());
    }
    for narrow in [found.mode, found.links, found.uid, found.gid, found.copies, 0] {
        record.extend_from_slice(&narrow.to_le_bytes());
    }
    record
}

/// Length of the name (16 bits), kind (8: 0 file, 1 directory, 2 symbolic link, 3 other), whether metadata follows (8),
/// metadata, name.
pub fn entry(entry: &DirEntry, to: &mut Vec<u8>) {
    let kind = match entry.kind {
        FileKind::File => 0,
        FileKind::Directory => 1,
        FileKind::Symlink => 2,
        FileKind::Other => 3,
    };
    to.extend_from_slice(&(entry.name.len() as u16).to_le_bytes());
    to.extend_from_slice(&[kind, u8::from(entry.metadata.is_some())]);
    if let Some(found) = &entry.metadata {
        to.extend_from_slice(&metadata(found));
    }
    to.extend_from_slice(&entry.name);
}

/// Length of where the next part begins (32 bits), or −1 at the end; that; entries.
pub fn page(page: &DirPage) -> Vec<u8> {
    let mut record = match &page.next {
        Some(next) => [&(next.len() as u32).to_le_bytes()[..], next].concat(),
        None => (-1i32).to_le_bytes().to_vec(),
    };
    page.entries.iter().for_each(|one| entry(one, &mut record));
    record
}

fn text(text: &str, to: &mut Vec<u8>) {
    let length = text.len().min(usize::from(u16::MAX));
    to.extend_from_slice(&(length as u16).to_le_bytes());
    to.extend_from_slice(&text.as_bytes()[..length]);
}

/// Number (32 bits); of each offset, length (64), number of hosts (32), and of each of those name, address, rack
/// (16-bit length and bytes).
pub fn places(places: &[Place]) -> Vec<u8> {
    let mut record = (places.len() as u32).to_le_bytes().to_vec();
    for place in places {
        record.extend_from_slice(&place.offset.to_le_bytes());
        record.extend_from_slice(&place.length.to_le_bytes());
        record.extend_from_slice(&(place.hosts.len() as u32).to_le_bytes());
        for host in &place.hosts {
            for part in [&host.name, &host.address, &host.rack] {
                text(part, &mut record);
            }
        }
    }
    record
}

/// When it was made and when it ends (64 bits each), its name (16-bit length and bytes), its text.
pub fn own_key(own: &OwnKey) -> Vec<u8> {
    let mut record = [own.made.to_le_bytes(), own.until.to_le_bytes()].concat();
    text(&own.name, &mut record);
    record.extend_from_slice(own.key.secret());
    record
}

/// bytes, free bytes, files, free files (64 bits each).
pub fn space(space: &Space) -> Vec<u8> {
    [space.bytes, space.bytes_free, space.files, space.files_free].map(u64::to_le_bytes).concat()
}

/// Limits of bytes and inodes, −1 without one, and what is used of them (64 bits each); nothing where there is no
/// quota.
pub fn quota(quota: Option<&Quota>) -> Vec<u8> {
    let Some(quota) = quota else { return Vec::new() };
    let limit = |max: Option<u64>| max.unwrap_or(u64::MAX);
    [limit(quota.bytes_max), limit(quota.inodes_max), quota.bytes_used, quota.inodes_used]
        .map(u64::to_le_bytes)
        .concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_sdk::Host;

    /// Java would read other numbers than were written (`Record.java`).
    #[test]
    fn records_are_as_java_reads_them() {
        let found = Metadata {
            inode: 1,
            size: 2,
            version: 3,
            accessed: -4,
            modified: 5,
            mode: 6,
            links: 7,
            uid: 8,
            gid: 9,
            copies: 3,
            ..Metadata::default()
        };
        let record = metadata(&found);
        assert_eq!(record.len(), METADATA);
        assert_eq!((record[0], record[8], record[16], record[24], record[32]), (1, 2, 3, 252, 5));
        assert_eq!((record[40], record[44], record[48], record[52], record[56]), (6, 7, 8, 9, 3));
        let mut listed = Vec::new();
        entry(&DirEntry { name: b"ab".to_vec(), inode: 1, kind: FileKind::Symlink, metadata: None }, &mut listed);
        assert_eq!(listed, [2, 0, 2, 0, b'a', b'b']);
        let host = Host { name: "h".into(), address: "h:1".into(), rack: String::new() };
        let told = places(&[Place { offset: 1, length: 2, hosts: vec![host] }]);
        assert_eq!(told.len(), 4 + 16 + 4 + 3 + 5 + 2);
        assert_eq!((told[0], told[4], told[12], told[20], told[24], told[26]), (1, 1, 2, 1, 1, b'h'));
        assert_eq!(quota(None), Vec::<u8>::new());
        assert_eq!(
            quota(Some(&Quota { bytes_max: Some(1), ..Quota::default() }))[..16],
            [1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]
        );
    }
}
