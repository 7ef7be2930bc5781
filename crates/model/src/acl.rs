//! Access control lists, from acl(5): entries of tag, permissions, id. Kept as the bytes of their extended attributes.
use crate::caller::Caller;
use crate::node::Node;
use crate::state::{Model, Request};
use cairn_types::ErrorCode;

pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Tag, permissions, id. Tags: owner 1, user 2, owning group 4, group 8, mask 16, others 32.
pub type AclEntry = (u16, u16, u32);

/// The kernel's format.
pub fn acl_bytes(entries: &[AclEntry]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn entries(bytes: &[u8]) -> Vec<AclEntry> {
    let two = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    bytes[4..].chunks(8).map(|e| (two(e), two(&e[2..]), u32::from_le_bytes([e[4], e[5], e[6], e[7]]))).collect()
}

/// A list that can be set; no entries: remove it.
fn parse(bytes: &[u8]) -> Result<Vec<AclEntry>, ErrorCode> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    if bytes.len() < 4 {
        return Err(ErrorCode::InvalidArgument);
    }
    if bytes[..4] != 2u32.to_le_bytes() {
        return Err(ErrorCode::NotSupported);
    }
    if bytes.len() % 8 != 4 {
        return Err(ErrorCode::InvalidArgument);
    }
    let mut list = entries(bytes);
    if list.is_empty() {
        return Ok(list);
    }
    let tags: Vec<u16> = list.iter().map(|e| e.0).collect();
    let count = |tag| tags.iter().filter(|t| **t == tag).count();
    let named = count(2) + count(8) > 0;
    let sound = list.iter().all(|(tag, perm, id)| {
        *perm < 8 && [1, 2, 4, 8, 16, 32].contains(tag) && !([2, 8].contains(tag) && *id == u32::MAX)
    });
    let in_order = tags.windows(2).all(|pair| pair[0] <= pair[1]);
    let once = count(1) == 1 && count(4) == 1 && count(32) == 1 && count(16) <= 1 && (!named || count(16) == 1);
    if !sound || !in_order || !once {
        return Err(ErrorCode::InvalidArgument);
    }
    for entry in list.iter_mut().filter(|e| ![2, 8].contains(&e.0)) {
        entry.2 = u32::MAX;
    }
    Ok(list)
}

fn perm(list: &[AclEntry], tag: u16) -> Option<u32> {
    list.iter().find(|e| e.0 == tag).map(|e| u32::from(e.1))
}

fn mode_of(list: &[AclEntry]) -> u32 {
    let get = |tag| perm(list, tag).unwrap_or(0);
    get(1) << 6 | perm(list, 16).unwrap_or(get(4)) << 3 | get(32)
}

fn with_mode(list: &mut [AclEntry], mode: u32) {
    let group = if perm(list, 16).is_some() { 16 } else { 4 };
    for entry in list {
        match entry.0 {
            1 => entry.1 = (mode >> 6 & 7) as u16,
            32 => entry.1 = (mode & 7) as u16,
            tag if tag == group => entry.1 = (mode >> 3 & 7) as u16,
            _ => {}
        }
    }
}

/// ACCESS CHECK ALGORITHM of acl(5), for a process without capabilities; `None` without a list.
pub(crate) fn check(caller: &Caller, node: &Node, wanted: u32) -> Option<bool> {
    let list = entries(node.xattrs.get(ACCESS)?);
    let mask = perm(&list, 16).unwrap_or(7);
    let grants = |perm: u32| perm & wanted == wanted;
    if caller.uid == node.uid {
        return Some(grants(perm(&list, 1)?));
    }
    if let Some(user) = list.iter().find(|e| e.0 == 2 && e.2 == caller.uid) {
        return Some(grants(u32::from(user.1) & mask));
    }
    let groups: Vec<u32> = list
        .iter()
        .filter(|e| e.0 == 4 && caller.is_member(node.gid) || e.0 == 8 && caller.is_member(e.2))
        .map(|e| u32::from(e.1))
        .collect();
    if groups.is_empty() {
        return Some(grants(perm(&list, 32)?));
    }
    Some(groups.into_iter().any(|perm| grants(perm & mask)))
}

impl Node {
    /// OBJECT CREATION AND DEFAULT ACLs of acl(5): what a new node gets from the directory that it is made in.
    pub(crate) fn inherit_acl(&mut self, directory: &Node, umask: u32) {
        let Some(default) = directory.xattrs.get(DEFAULT) else {
            self.mode &= !(umask & 0o777);
            return;
        };
        let mut list = entries(default);
        let mode = mode_of(&list) & self.mode;
        with_mode(&mut list, mode);
        self.mode = self.mode & !0o777 | mode;
        if list.len() > 3 {
            self.xattrs.insert(ACCESS.to_vec(), acl_bytes(&list));
        }
        if self.is_directory() {
            self.xattrs.insert(DEFAULT.to_vec(), default.clone());
        }
    }

    /// chmod(2) changes the list as well.
    pub(crate) fn chmod_acl(&mut self) {
        let mode = self.mode;
        if let Some(bytes) = self.xattrs.get_mut(ACCESS) {
            let mut list = entries(bytes);
            with_mode(&mut list, mode);
            *bytes = acl_bytes(&list);
        }
    }
}

impl Model {
    pub(crate) fn set_acl(
        &mut self,
        request: &Request,
        inode: u64,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), ErrorCode> {
        let list = parse(value)?;
        let node = self.existing(inode)?;
        if node.is_symlink() {
            return Err(ErrorCode::NotSupported);
        }
        if name == DEFAULT && !node.is_directory() {
            return if list.is_empty() { Ok(()) } else { Err(ErrorCode::PermissionDenied) };
        }
        if !request.caller.owns(node) {
            return Err(ErrorCode::NotPermitted);
        }
        let keeps_setgid = request.caller.is_root() || request.caller.is_member(node.gid);
        let node = self.node(inode);
        node.changed(request.now);
        node.xattrs.remove(name);
        if list.is_empty() {
            return Ok(());
        }
        if name == ACCESS {
            node.mode = node.mode & !0o777 | mode_of(&list);
            if !keeps_setgid {
                node.mode &= !0o2000;
            }
        }
        if name == DEFAULT || list.len() > 3 {
            node.xattrs.insert(name.to_vec(), acl_bytes(&list));
        }
        Ok(())
    }
}
