//! Which inodes an operation names: [`named`].

use cairn_wire::Opcode;

/// Fields of the message that are numbers of inodes, one or a list; `None`: nothing is known of the operation, or it
/// names none.
const fn fields(opcode: Opcode) -> Option<&'static [u64]> {
    Some(match opcode {
        Opcode::Lookup
        | Opcode::Mkdir
        | Opcode::Create
        | Opcode::Symlink
        | Opcode::CreateUnnamed
        | Opcode::Unlink
        | Opcode::Rmdir
        | Opcode::RemoveTree
        | Opcode::Resolve
        | Opcode::Getattr
        | Opcode::Readlink
        | Opcode::Readdir
        | Opcode::GetExtents
        | Opcode::GetXattr
        | Opcode::ListXattr
        | Opcode::Access
        | Opcode::GetattrMany
        | Opcode::GetLock
        | Opcode::WaitLock
        | Opcode::SetLock
        | Opcode::GetQuota
        | Opcode::SetQuota
        | Opcode::Setattr
        | Opcode::SetXattr
        | Opcode::RemoveXattr
        | Opcode::Publish
        | Opcode::PublishVolatile
        | Opcode::Punch
        | Opcode::OverwriteLease
        | Opcode::Hold
        | Opcode::OpenAppend => &[2],
        Opcode::Open | Opcode::Link | Opcode::Release => &[2, 3],
        Opcode::Rename | Opcode::CloneRange => &[2, 4],
        _ => return None,
    })
}

/// Inodes that an operation names, in the order of the message's fields. Empty if that is not known here: the partition
/// refuses what somebody leads.
pub fn named(opcode: Opcode, request: &[u8]) -> Vec<u64> {
    let mut found = Vec::new();
    if opcode == Opcode::PublishAttributes {
        // Both parts are of one file.
        visit(request, |field, value| match value {
            Value::Bytes(publish) if field == 2 => found = named(Opcode::Publish, publish),
            _ => {}
        });
        return found;
    }
    let Some(fields) = fields(opcode) else { return found };
    visit(request, |field, value| {
        if !fields.contains(&field) {
            return;
        }
        match value {
            Value::Varint(0) => {}
            Value::Varint(inode) => found.push(inode),
            // Of Open and Rename a name has no such field.
            Value::Bytes(mut list) => {
                while let Some(inode) = varint(&mut list) {
                    found.push(inode);
                }
            }
        }
    });
    found
}

enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

/// Fields up to the end, or to what is no message.
fn visit<'a>(mut rest: &'a [u8], mut see: impl FnMut(u64, Value<'a>)) {
    while let Some(tag) = varint(&mut rest) {
        let value = match tag & 7 {
            0 => varint(&mut rest).map(Value::Varint),
            2 => varint(&mut rest).and_then(|length| rest.split_at_checked(usize::try_from(length).ok()?)).map(
                |(bytes, behind)| {
                    rest = behind;
                    Value::Bytes(bytes)
                },
            ),
            1 | 5 => match rest.split_at_checked(if tag & 7 == 1 { 8 } else { 4 }) {
                Some((_, behind)) => {
                    rest = behind;
                    continue;
                }
                None => None,
            },
            _ => None,
        };
        let Some(value) = value else { return };
        see(tag >> 3, value);
    }
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::meta::*;
    use prost::Message;

    /// An operation would be executed beside the directory that it names, or recall what its own client leads.
    #[test]
    fn every_inode_of_a_request_is_found() {
        let header = Some(MetaHeader { session: 77, ..MetaHeader::default() });
        let rename =
            RenameRequest { header, parent: 300, name: vec![9; 200], new_parent: 301, ..RenameRequest::default() };
        assert_eq!(named(Opcode::Rename, &rename.encode_to_vec()), [300, 301]);
        let link = LinkRequest { inode: 5, parent: 6, name: b"x".to_vec(), ..LinkRequest::default() };
        assert_eq!(named(Opcode::Link, &link.encode_to_vec()), [5, 6]);
        let release = ReleaseRequest { inode: 5, also: vec![1 << 40, 7], ..ReleaseRequest::default() };
        assert_eq!(named(Opcode::Release, &release.encode_to_vec()), [5, 1 << 40, 7]);
        let open = OpenRequest { parent: 8, name: b"x".to_vec(), ..OpenRequest::default() };
        assert_eq!(named(Opcode::Open, &open.encode_to_vec()), [8]);
        let publish = Some(PublishRequest { inode: 9, ..PublishRequest::default() });
        let both = PublishAttributesRequest { publish, ..PublishAttributesRequest::default() };
        assert_eq!(named(Opcode::PublishAttributes, &both.encode_to_vec()), [9]);
        assert_eq!(named(Opcode::Lookup, &[0xff; 30]), [] as [u64; 0]);
    }
}
