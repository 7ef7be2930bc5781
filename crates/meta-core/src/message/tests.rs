//! The hand-written protobuf against the generated one, and hostile bytes.
use super::reader::Reader;
use super::request::{self, ExtentMessage, Header};
use super::writer::*;
use crate::encoding::{Inode, OverwriteLease, Volatile};
use cairn_wire::common::{Credentials, Extent};
use cairn_wire::meta::*;
use proptest::prelude::*;
use prost::Message;

fn header() -> Option<MetaHeader> {
    let who = Some(Credentials { uid: 1000, gid: 100, groups: vec![4, 300, 70_000] });
    Some(MetaHeader { volume: 9, partition: 8, session: 1 << 40, slot: 255, sequence: 77, who })
}

/// A field read under another number, or not at all.
#[test]
fn requests_read_as_the_generated_code_wrote_them() {
    let name = b"name".to_vec();
    let bytes = RenameRequest {
        header: header(),
        parent: 1,
        name: name.clone(),
        new_parent: 2,
        new_name: b"n".to_vec(),
        flags: 2,
    }
    .encode_to_vec();
    let r = request::Rename::decode(&bytes).unwrap();
    assert_eq!((r.parent, r.name, r.new_parent, r.new_name, r.flags), (1, &b"name"[..], 2, &b"n"[..], 2));

    let extents = vec![Extent { file_offset: 1, length: 2, pg: 3, index: 4, chunk_offset: 5, flags: 6 }; 2];
    let bytes = CreateRequest {
        header: header(),
        parent: 1,
        name: name.clone(),
        mode: 2,
        rdev: 3,
        layout: 4,
        exclusive: true,
        replace: true,
        hold: true,
        size: 5,
        extents: extents.clone(),
        mtime_ns: 6,
        set_owner: true,
        uid: 7,
        gid: 8,
        sets: Vec::new(),
        written_by: 9,
        umask: 0o22,
    }
    .encode_to_vec();
    let r = request::Create::decode(&bytes).unwrap();
    assert_eq!(
        (r.parent, r.name, r.mode, r.rdev, r.layout, r.size, r.mtime_ns, r.uid, r.gid, r.written_by),
        (1, &b"name"[..], 2, 3, 4, 5, 6, 7, 8, 9)
    );
    assert_eq!(r.umask, 0o22);
    assert!(r.exclusive && r.replace && r.hold && r.set_owner && !r.extents.is_empty);
    let mut seen = Vec::new();
    r.extents
        .visit(|bytes| {
            seen.push(ExtentMessage::decode(bytes)?);
            Ok(())
        })
        .unwrap();
    let expected = ExtentMessage { file_offset: 1, length: 2, pg: 3, index: 4, chunk_offset: 5, flags: 6 };
    assert_eq!(seen, [expected, expected]);

    let bytes = SetattrRequest {
        header: header(),
        inode: 1,
        valid: 2,
        mode: 3,
        uid: 4,
        gid: 5,
        size: 6,
        atime_ns: 7,
        mtime_ns: 8,
        layout: 9,
        lease: 10,
    }
    .encode_to_vec();
    let r = request::Setattr::decode(&bytes).unwrap();
    assert_eq!(
        (r.inode, r.valid, r.mode, r.uid, r.gid, r.size, r.atime_ns, r.mtime_ns, r.layout, r.lease),
        (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    );
    let bytes = OverwriteLeaseRequest {
        header: header(),
        inode: 1,
        release: true,
        number: 3,
        changed: true,
        mtime_ns: 5,
        answered: true,
    }
    .encode_to_vec();
    let r = request::OverwriteLease::decode(&bytes).unwrap();
    assert_eq!((r.inode, r.release, r.number, r.changed, r.mtime_ns, r.answered), (1, true, 3, true, 5, true));
    let bytes = CloneRangeRequest {
        header: header(),
        source: 1,
        source_offset: 2,
        inode: 3,
        offset: 4,
        length: 5,
        if_data_version: 6,
        mtime_ns: 7,
        kill_privileges: true,
        lease: 8,
        if_source_version: 9,
    }
    .encode_to_vec();
    let r = request::CloneRange::decode(&bytes).unwrap();
    assert_eq!((r.source, r.source_offset, r.inode, r.offset, r.length), (1, 2, 3, 4, 5));
    assert_eq!((r.if_data_version, r.mtime_ns, r.kill_privileges, r.lease), (6, 7, true, 8));
    assert_eq!(r.if_source_version, 9);
    let bytes = ReaddirRequest {
        header: header(),
        inode: 1,
        after: name.clone(),
        count_max: 3,
        attributes: true,
        shards: false,
    }
    .encode_to_vec();
    let r = request::Readdir::decode(&bytes).unwrap();
    assert_eq!((r.inode, r.after, r.count_max, r.attributes), (1, &b"name"[..], 3, true));
    let bytes = GetExtentsRequest { header: header(), inode: 1, offset: 2, length: 3, count_max: 4, shared_now: true }
        .encode_to_vec();
    let r = request::GetExtents::decode(&bytes).unwrap();
    assert_eq!((r.inode, r.offset, r.length, r.count_max, r.shared_now), (1, 2, 3, 4, true));
    let bytes = PublishRequest {
        header: header(),
        inode: 1,
        extents,
        size: 2,
        set_size: true,
        if_data_version: 3,
        mtime_ns: 4,
        written_by: 5,
        ..Default::default()
    }
    .encode_to_vec();
    let r = request::Publish::decode(&bytes).unwrap();
    assert_eq!((r.inode, r.size, r.set_size, r.if_data_version, r.mtime_ns, r.written_by), (1, 2, true, 3, 4, 5));
    let bytes = SetXattrRequest { header: header(), inode: 1, name: name.clone(), value: b"v".to_vec(), flags: 2 }
        .encode_to_vec();
    let r = request::SetXattr::decode(&bytes).unwrap();
    assert_eq!((r.inode, r.name, r.value, r.flags), (1, &b"name"[..], &b"v"[..], 2));
    let bytes =
        LinkRequest { header: header(), inode: 1, parent: 2, name: name.clone(), replace: true }.encode_to_vec();
    let r = request::Link::decode(&bytes).unwrap();
    assert_eq!((r.inode, r.parent, r.name, r.replace), (1, 2, &b"name"[..], true));
    let bytes = MkdirRequest { header: header(), parent: 1, name, mode: 2, layout: 3, umask: 4, ..Default::default() }
        .encode_to_vec();
    let r = request::Mkdir::decode(&bytes).unwrap();
    assert_eq!((r.parent, r.name, r.mode, r.layout, r.umask), (1, &b"name"[..], 2, 3, 4));
    let bytes = ReclaimBatch { inodes_max: 1, extents_max: 2, deferred_to: 3 }.encode_to_vec();
    let r = request::ReclaimBatch::decode(&bytes).unwrap();
    assert_eq!((r.inodes_max, r.extents_max, r.deferred_to), (1, 2, 3));
}

/// A caller who gets, or loses, the rights of a group.
#[test]
fn credentials_and_groups() {
    let bytes = GetattrRequest { header: header(), inode: 5 }.encode_to_vec();
    let h = Header::find(&bytes).unwrap();
    assert_eq!((h.volume, h.partition, h.session, h.slot, h.sequence), (9, 8, 1 << 40, 255, 77));
    assert_eq!((h.who.uid, h.who.gid), (1000, 100));
    let member = |gid| h.who.in_group(gid);
    assert!(member(100) && member(4) && member(300) && member(70_000) && !member(5) && !member(0));
    // Not packed, as old encoders write it: field 3, one number each.
    let who = [&[0x08, 0x01, 0x18, 0x2a, 0x18, 0x2b][..]].concat();
    let header = [&[0x32, who.len() as u8][..], &who].concat();
    let request = [&[0x0a, header.len() as u8][..], &header].concat();
    let h = Header::find(&request).unwrap();
    assert!(h.who.in_group(42) && h.who.in_group(43) && !h.who.in_group(44));
}

/// A request without credentials that is executed as root's.
#[test]
fn a_header_without_credentials_is_refused() {
    let without = MetaHeader { who: None, ..header().unwrap() };
    let bytes = GetattrRequest { header: Some(without), inode: 5 }.encode_to_vec();
    assert!(Header::find(&bytes).is_err());
    assert!(Header::find(&GetattrRequest { header: None, inode: 5 }.encode_to_vec()).is_err());
}

/// A packed or unpacked list of which a part is lost.
#[test]
fn lists_of_numbers() {
    for bytes in [
        FreeDone { free_ids: vec![1, 300, u64::MAX] }.encode_to_vec(),
        [&[0x08, 1][..], &[0x08, 0xac, 2], &[0x0a, 10], &[0xff; 9], &[1]].concat(),
    ] {
        let mut seen = Vec::new();
        request::FreeDone::decode(&bytes)
            .unwrap()
            .free_ids
            .visit(|id| {
                seen.push(id);
                true
            })
            .unwrap();
        assert_eq!(seen, [1, 300, u64::MAX]);
    }
}

proptest! {
    /// Bytes from the network that panic, loop, or read beyond their end.
    #[test]
    fn hostile_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut reader = Reader::new(&bytes);
        while let Ok(Some(_)) = reader.next() {}
        if let Ok(header) = Header::find(&bytes) {
            let _ = header.who.in_group(7);
        }
        if let Ok(create) = request::Create::decode(&bytes) {
            let _ = create.extents.visit(|bytes| ExtentMessage::decode(bytes).map(|_| ()));
        }
        if let Ok(expire) = request::ExpireSessions::decode(&bytes) {
            let _ = expire.sessions.visit(|_| true);
        }
    }

    /// A cut message that is taken for a whole one gives at most what the generated code would have read.
    #[test]
    fn both_readers_agree_on_damaged_messages(at in 0usize..60, byte in any::<u8>()) {
        let mut bytes = LookupRequest { header: header(), parent: 300, name: b"some name".to_vec() }.encode_to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        let generated = LookupRequest::decode(bytes.as_slice());
        if let (Ok(ours), Ok(generated)) = (request::Lookup::decode(&bytes), generated) {
            prop_assert_eq!(ours.parent, generated.parent);
            prop_assert_eq!(ours.name, generated.name.as_slice());
        }
    }

    /// Attributes that a client decodes as others.
    #[test]
    fn attributes_are_written_as_the_generated_code_does(n in any::<[u64; 8]>(), small in any::<[u32; 4]>(), shift in 0u32..64) {
        let inode = Inode {
            mode: small[0] as u16, nlink: small[1], uid: small[2], gid: small[3], size: n[0] >> shift, atime: n[1], mtime: n[2],
            ctime: n[3] >> shift, btime: n[4], layout: n[5], generation: n[6] >> shift, rdev: small[0], stored: n[7], data_version: n[0],
            unnamed: false, parent: 5, acl: true, default_acl: false, quota: 6,
            shards: (n[6] & 15) as u8, sharded: n[6] & 31 > 16, is_shard: n[6] & 31 == 16,
            lease: (n[1] & 1 != 0 && n[2] != 0).then_some(OverwriteLease { session: n[2], number: 7 }),
            volatile: (n[3] & 1 != 0 && n[4] != 0).then_some(Volatile { session: n[4], from: 1, to: 2 }),
        };
        let mut out = Vec::new();
        put_attributes_response(&mut out, n[7] >> shift, &inode);
        let attributes = Attributes {
            inode: n[7] >> shift, mode: u32::from(inode.mode), uid: inode.uid, gid: inode.gid,
            nlink: inode.nlink - u32::from(inode.shards).min(inode.nlink), size: inode.size - u64::from(inode.shards).min(inode.size),
            atime_ns: inode.atime, mtime_ns: inode.mtime, ctime_ns: inode.ctime, btime_ns: inode.btime, layout: inode.layout,
            generation: inode.generation, rdev: inode.rdev, stored_bytes: inode.stored, data_version: inode.data_version,
            overwriter: inode.lease.map_or(0, |lease| lease.session),
            volatile_of: inode.volatile.map_or(0, |volatile| volatile.session),
            shards: if inode.sharded { inode.shards.into() } else { 0 }, shard_of: if inode.is_shard { 5 } else { 0 },
        };
        prop_assert_eq!(out, AttributesResponse { attributes: Some(attributes), ..Default::default() }.encode_to_vec());
    }

    /// A nested message whose length takes one, two or three bytes.
    #[test]
    fn nested_messages_of_any_length(length in prop::sample::select(vec![0usize, 1, 127, 128, 129, 16_383, 16_384, 70_000])) {
        let mut out = vec![1, 2, 3];
        put_message(&mut out, 5, |out| out.extend(std::iter::repeat_n(7u8, length)));
        let mut reader = Reader::new(&out[3..]);
        prop_assert_eq!(reader.next().unwrap(), Some((5, super::reader::Value::Bytes(&vec![7u8; length]))));
        prop_assert!(reader.is_at_end());
    }
}
