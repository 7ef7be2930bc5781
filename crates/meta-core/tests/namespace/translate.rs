//! Between the model's operations and the protocol's messages, and the comparison of whole trees.
use crate::driver::{Driver, ROOT};
use cairn_meta_core::Namespace;
use cairn_model as model;
use cairn_model::{Model, Operation, Reply};
use cairn_types::{EXTENT_SHARED, ErrorCode};
use cairn_wire::Opcode;
use cairn_wire::common::{Credentials, Extent};
use cairn_wire::meta::*;
use prost::Message;
use std::collections::BTreeSet;

pub fn extents(pieces: &[model::Piece]) -> Vec<Extent> {
    pieces
        .iter()
        .map(|p| Extent {
            file_offset: p.file_offset,
            length: p.length,
            pg: p.pg,
            index: p.index,
            chunk_offset: p.chunk_offset,
            flags: 0,
        })
        .collect()
}

/// The message of an operation.
pub fn request(request: &model::Request, who: Credentials, operation: &Operation) -> (Opcode, Vec<u8>) {
    request_to(1, request, who, operation)
}

/// The same for a partition.
pub fn request_to(
    partition: u32,
    request: &model::Request,
    who: Credentials,
    operation: &Operation,
) -> (Opcode, Vec<u8>) {
    let header = Some(MetaHeader {
        volume: 1,
        partition,
        session: request.session,
        slot: request.slot,
        sequence: request.sequence,
        who: Some(who),
    });
    match operation.clone() {
        Operation::Mkdir { parent, name, mode, layout, umask } => {
            let request = MkdirRequest { header, parent, name, mode, layout, umask, ..Default::default() };
            (Opcode::Mkdir, request.encode_to_vec())
        }
        Operation::Create(create) => (Opcode::Create, create_request(header, create).encode_to_vec()),
        Operation::Symlink { parent, name, target } => {
            (Opcode::Symlink, SymlinkRequest { header, parent, name, target }.encode_to_vec())
        }
        Operation::CreateUnnamed { parent, mode, layout, umask } => {
            (Opcode::CreateUnnamed, CreateUnnamedRequest { header, parent, mode, layout, umask }.encode_to_vec())
        }
        Operation::Link { inode, parent, name, replace } => {
            (Opcode::Link, LinkRequest { header, inode, parent, name, replace }.encode_to_vec())
        }
        Operation::Unlink { parent, name } => (Opcode::Unlink, UnlinkRequest { header, parent, name }.encode_to_vec()),
        Operation::Rmdir { parent, name } => (Opcode::Rmdir, RmdirRequest { header, parent, name }.encode_to_vec()),
        Operation::RemoveTree { parent, name } => {
            (Opcode::RemoveTree, RemoveTreeRequest { header, parent, name }.encode_to_vec())
        }
        Operation::Rename { parent, name, new_parent, new_name, flags } => {
            let message = RenameRequest { header, parent, name, new_parent, new_name, flags };
            (Opcode::Rename, message.encode_to_vec())
        }
        Operation::Setattr(set) => (Opcode::Setattr, setattr_request(header, &set).encode_to_vec()),
        Operation::SetXattr { inode, name, value, flags } => {
            (Opcode::SetXattr, SetXattrRequest { header, inode, name, value, flags }.encode_to_vec())
        }
        Operation::RemoveXattr { inode, name } => {
            (Opcode::RemoveXattr, RemoveXattrRequest { header, inode, name }.encode_to_vec())
        }
        Operation::Publish(publish) => {
            let message = PublishRequest {
                header,
                inode: publish.inode,
                extents: extents(&publish.pieces),
                size: publish.size,
                set_size: publish.set_size,
                if_data_version: publish.if_data_version,
                mtime_ns: publish.mtime,
                written_by: publish.written_by,
                check_size: publish.if_size.is_some(),
                if_size: publish.if_size.unwrap_or(0),
                kill_privileges: publish.kill_privileges,
                ..Default::default()
            };
            (Opcode::Publish, message.encode_to_vec())
        }
        Operation::SetQuota { inode, limited } => {
            let (bytes_max, inodes_max) = if limited { (1 << 60, 1 << 50) } else { (0, 0) };
            let message = SetQuotaRequest { header, inode, bytes_max, inodes_max, remove: !limited };
            (Opcode::SetQuota, message.encode_to_vec())
        }
        Operation::SetLock(lock) => {
            let lock_type = lock.write.map_or(0, |write| 1 + u32::from(write));
            let message = SetLockRequest {
                header,
                inode: lock.inode,
                owner: lock.owner,
                kind: lock.flock.into(),
                r#type: lock_type,
                start: lock.start,
                end: lock.end,
                pid: 0,
            };
            (Opcode::SetLock, message.encode_to_vec())
        }
        Operation::Punch(punch) => {
            let model::Punch { inode, offset, length, extend, if_data_version, kill_privileges } = punch;
            let message =
                PunchRequest { header, inode, offset, length, extend, if_data_version, kill_privileges, lease: 0 };
            (Opcode::Punch, message.encode_to_vec())
        }
        Operation::Hold { inode, write } => (Opcode::Hold, HoldRequest { header, inode, write }.encode_to_vec()),
        Operation::Release { inode } => {
            (Opcode::Release, ReleaseRequest { header, inode, also: Vec::new() }.encode_to_vec())
        }
    }
}

fn create_request(header: Option<MetaHeader>, create: model::Create) -> CreateRequest {
    let (uid, gid) = create.owner.unwrap_or((0, 0));
    CreateRequest {
        header,
        parent: create.parent,
        name: create.name,
        mode: create.mode,
        rdev: create.rdev,
        layout: create.layout,
        exclusive: create.exclusive,
        replace: create.replace,
        hold: create.hold,
        size: create.size,
        extents: extents(&create.pieces),
        mtime_ns: create.mtime,
        set_owner: create.owner.is_some(),
        uid,
        gid,
        written_by: create.written_by,
        umask: create.umask,
        ..Default::default()
    }
}

fn setattr_request(header: Option<MetaHeader>, set: &model::Setattr) -> SetattrRequest {
    let bits = [
        set.mode.is_some(),
        set.uid.is_some(),
        set.gid.is_some(),
        set.size.is_some(),
        set.atime.is_some(),
        set.mtime.is_some(),
        set.atime_now,
        set.mtime_now,
        set.layout.is_some(),
        set.kill_privileges,
    ];
    SetattrRequest {
        header,
        inode: set.inode,
        valid: bits.iter().enumerate().map(|(i, set)| u32::from(*set) << i).sum(),
        mode: set.mode.unwrap_or(0),
        uid: set.uid.unwrap_or(0),
        gid: set.gid.unwrap_or(0),
        size: set.size.unwrap_or(0),
        atime_ns: set.atime.unwrap_or(0),
        mtime_ns: set.mtime.unwrap_or(0),
        layout: set.layout.unwrap_or(0),
        lease: 0,
    }
}

/// The core's answer in the model's words.
pub fn reply(opcode: Opcode, answer: &Result<Vec<u8>, ErrorCode>) -> Reply {
    let bytes = answer.as_ref().map_err(|code| *code)?;
    if opcode.messages().1 != "meta::AttributesResponse" {
        assert!(bytes.is_empty(), "{opcode:?} answers nothing");
        return Ok(None);
    }
    let answer = AttributesResponse::decode(bytes.as_slice()).expect("the answer is protobuf");
    Ok(Some(attributes(&answer.attributes.expect("attributes are answered"))))
}

pub fn attributes(a: &Attributes) -> model::Attributes {
    model::Attributes {
        inode: a.inode,
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        size: a.size,
        atime: a.atime_ns,
        mtime: a.mtime_ns,
        ctime: a.ctime_ns,
        btime: a.btime_ns,
        layout: a.layout,
        generation: a.generation,
        rdev: a.rdev,
        stored: a.stored_bytes,
        data_version: a.data_version,
    }
}

/// Reads everything of a namespace, as root, and holds it against the model.
pub fn compare_trees(namespace: &Namespace, model: &Model, done_frees: &BTreeSet<(u32, u32, u64)>) {
    let mut pages = namespace.snapshot().pages(1 << 20).collect::<Vec<_>>();
    let reader = Driver::on(crate::driver::restore(&pages));
    pages.clear();
    for inode in 0..=model.next_inode {
        let Some(node) = model.nodes.get(&inode) else {
            assert_eq!(reader.getattr(inode), Err(ErrorCode::Stale), "inode {inode} is gone in the model");
            continue;
        };
        assert_eq!(attributes(&reader.getattr(inode).unwrap()), model.attributes(inode), "attributes of {inode}");
        let names: Vec<String> = node.xattrs.keys().map(|n| String::from_utf8_lossy(n).into_owned()).collect();
        assert_eq!(reader.list_xattr(inode).unwrap(), names);
        for (name, value) in names.iter().zip(node.xattrs.values()) {
            assert_eq!(reader.get_xattr(inode, name).as_ref(), Ok(value));
        }
        if node.is_directory() {
            compare_directory(&reader, model, inode);
        } else if node.is_file() {
            assert_eq!(joined(&reader.extents(inode).unwrap()), extents(&node.pieces()), "extents of {inode}");
        } else {
            assert_eq!(reader.extents(inode), Err(ErrorCode::InvalidArgument));
        }
    }
    compare_locks(&reader, model);
    let listed: BTreeSet<u64> = reader.quotas().iter().map(|quota| quota.inode).collect();
    let live = |inode: &u64| *inode == 0 || model.nodes.contains_key(inode);
    assert_eq!(listed, model.quotas.iter().copied().filter(live).collect(), "quotas");
    let totals = reader.statfs();
    let all: Vec<model::Attributes> = model.nodes.keys().map(|i| model.attributes(*i)).collect();
    let files: Vec<&model::Attributes> = all.iter().filter(|a| a.mode & 0o170_000 == 0o100_000).collect();
    assert_eq!(totals.inodes, all.len() as u64);
    assert_eq!(totals.directories, model.nodes.values().filter(|n| n.is_directory()).count() as u64);
    assert_eq!(totals.file_bytes, files.iter().map(|a| a.size).sum::<u64>());
    assert_eq!(totals.stored_bytes, files.iter().map(|a| a.stored).sum::<u64>());
    let mut free = done_frees.clone();
    for record in namespace.pending_frees(0, usize::MAX) {
        free.extend((record.first_block..record.first_block + record.blocks).map(|b| (record.pg, record.index, b)));
    }
    assert_eq!(free, model.free, "blocks that nobody uses any more");
}

/// Extents without seams between births, and between what is shared and what is not: what clients read is the same.
pub fn joined(extents: &[Extent]) -> Vec<Extent> {
    let mut joined: Vec<Extent> = Vec::new();
    for next in extents {
        let next = Extent { flags: next.flags & !EXTENT_SHARED, ..*next };
        match joined.last_mut() {
            Some(last)
                if (last.pg, last.index, last.flags) == (next.pg, next.index, next.flags)
                    && last.file_offset + last.length == next.file_offset
                    && last.chunk_offset + last.length == next.chunk_offset =>
            {
                last.length += next.length;
            }
            _ => joined.push(next),
        }
    }
    joined
}

/// Whoever asks for a byte to write is told of its first owner.
fn compare_locks(reader: &Driver, model: &Model) {
    for ((inode, flock, byte), owners) in &model.locks {
        let found = reader.get_lock(*inode, *flock, *byte).expect("locked inodes are there");
        let owner = owners.first_key_value().map(|((session, owner), write)| (*session, *owner, *write));
        let told = (found.r#type != 0).then_some((found.session, found.owner, found.r#type == 2));
        assert_eq!(told.is_some(), owner.is_some(), "byte {byte} of inode {inode}");
        let known = told.is_none_or(|(session, owner, write)| owners.get(&(session, owner)) == Some(&write));
        assert!(known, "byte {byte} of inode {inode}: {told:?} of {owners:?}");
    }
}

fn compare_directory(reader: &Driver, model: &Model, inode: u64) {
    if model.links(inode) == 0 {
        assert_eq!(reader.readdir(inode), Err(ErrorCode::NotFound), "directory {inode} was removed");
        return;
    }
    let listed = reader.readdir(inode).unwrap();
    let entries: Vec<(Vec<u8>, u64)> = listed.iter().map(|e| (e.name.clone(), e.inode)).collect();
    let expected: Vec<(Vec<u8>, u64)> = model.nodes[&inode].entries().into_iter().collect();
    assert_eq!(entries, expected, "entries of {inode}");
    for entry in &listed {
        let attributes_ = attributes(entry.attributes.as_ref().expect("attributes were asked for"));
        assert_eq!(attributes_, model.attributes(entry.inode));
        assert_eq!(entry.kind, attributes_.mode >> 12);
        assert_eq!(reader.lookup(inode, &String::from_utf8_lossy(&entry.name)).is_ok(), entry.name[0] != 0xff);
    }
    assert!(reader.getattr(ROOT).is_ok());
}
