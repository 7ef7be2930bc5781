//! POSIX access control lists (acl(5), IEEE 1003.1e draft 17), in the kernel's format of `system.posix_acl_access` and
//! `system.posix_acl_default`: version 2 (u32), then entries of tag (u16), permission (u16), id (u32), little-endian.
//!
//! They are stored as extended attributes of these names. Invariants: a stored list is valid; the file mode's bits are
//! those of the owner, of the mask (of the group where there is none) and of others in the access list; a list that
//! says no more than the mode is not stored; an inode says in its attributes whether it has lists, so the others pay
//! nothing.
use crate::encoding::Inode;
use crate::error::{OpError, Result};
use crate::key;
use crate::limits::ACL_ENTRIES_MAX;
use crate::message::request::Who;
use crate::namespace::Namespace;
use cairn_types::ErrorCode;

pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// First byte of a stored value, as of every extended attribute.
const TAG: u8 = 0x10;
const VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid access control list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Acl {
    entries: Vec<Entry>,
}

fn invalid<T>(text: &'static str) -> Result<T> {
    Err(OpError::new(ErrorCode::InvalidArgument, text))
}

impl Acl {
    /// Reads and checks the kernel's format; `None` for a list without entries, which stands for no list.
    pub fn decode(bytes: &[u8]) -> Result<Option<Acl>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let Some((version, rest)) = bytes.split_first_chunk::<4>() else {
            return invalid("an access control list is cut off");
        };
        if u32::from_le_bytes(*version) != VERSION {
            return Err(OpError::new(ErrorCode::NotSupported, "an access control list of a version other than 2"));
        }
        let (entries, []) = rest.as_chunks::<8>() else {
            return invalid("an access control list is cut off");
        };
        if entries.len() > ACL_ENTRIES_MAX {
            return Err(OpError::new(ErrorCode::NoSpace, "an access control list has at most 1024 entries"));
        }
        let entries: Vec<Entry> = entries
            .iter()
            .map(|e| Entry {
                tag: u16::from_le_bytes([e[0], e[1]]),
                perm: u16::from_le_bytes([e[2], e[3]]),
                id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
            })
            .collect();
        if entries.is_empty() {
            return Ok(None);
        }
        let mut acl = Acl { entries };
        acl.check()?;
        for entry in acl.entries.iter_mut().filter(|entry| !matches!(entry.tag, USER | GROUP)) {
            entry.id = NO_ID;
        }
        Ok(Some(acl))
    }

    /// As `posix_acl_valid` of Linux: tags in order, the three of the mode once each, a mask where there are names.
    fn check(&self) -> Result<()> {
        let count = |tag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let known =
            |entry: &Entry| matches!(entry.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER) && entry.perm <= 7;
        if !self.entries.iter().all(known) || !self.entries.is_sorted_by_key(|entry| entry.tag) {
            return invalid("an access control list has entries that are unknown or out of order");
        }
        if [USER_OBJ, GROUP_OBJ, OTHER].into_iter().any(|tag| count(tag) != 1) || count(MASK) > 1 {
            return invalid("an access control list lacks an entry of the mode, or has one twice");
        }
        let named = self.entries.iter().any(|entry| matches!(entry.tag, USER | GROUP));
        if named && count(MASK) == 0 {
            return invalid("an access control list with named users or groups has a mask");
        }
        if self.entries.iter().any(|entry| matches!(entry.tag, USER | GROUP) && entry.id == NO_ID) {
            return invalid("a named entry of an access control list has no id");
        }
        Ok(())
    }

    /// The stored value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(5 + 8 * self.entries.len());
        value.push(TAG);
        value.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            value.extend_from_slice(&entry.tag.to_le_bytes());
            value.extend_from_slice(&entry.perm.to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    fn perm(&self, tag: u16) -> Option<u16> {
        self.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    fn set_perm(&mut self, tag: u16, perm: u16) {
        self.entries.iter_mut().filter(|entry| entry.tag == tag).for_each(|entry| entry.perm = perm);
    }

    /// The entry that the group bits of the mode stand for.
    fn group_class(&self) -> u16 {
        if self.perm(MASK).is_some() { MASK } else { GROUP_OBJ }
    }

    /// Permission bits of the mode that goes with this list.
    pub fn mode_bits(&self) -> u16 {
        let perm = |tag| self.perm(tag).unwrap_or(0);
        perm(USER_OBJ) << 6 | perm(self.group_class()) << 3 | perm(OTHER)
    }

    /// True when it says no more than the mode does.
    pub fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// chmod: owner, mask (or group) and others follow the mode.
    pub fn set_mode_bits(&mut self, mode: u16) {
        self.set_perm(USER_OBJ, mode >> 6 & 7);
        self.set_perm(self.group_class(), mode >> 3 & 7);
        self.set_perm(OTHER, mode & 7);
    }

    /// A default list as the access list of what is made with `mode`: no more than either gives.
    fn mask_by(&mut self, mode: u16) {
        self.set_mode_bits(self.mode_bits() & mode);
    }

    /// The algorithm of acl(5) for whoever is not root.
    fn allows(&self, inode: &Inode, who: &Who<'_>, mask: u16) -> bool {
        let limit = self.perm(MASK).unwrap_or(7);
        let has = |perm: u16| perm & mask == mask;
        if who.uid == inode.uid {
            return has(self.perm(USER_OBJ).unwrap_or(0));
        }
        if let Some(named) = self.entries.iter().find(|entry| entry.tag == USER && entry.id == who.uid) {
            return has(named.perm & limit);
        }
        let mut is_member = false;
        for entry in &self.entries {
            let matches = match entry.tag {
                GROUP_OBJ => who.in_group(inode.gid),
                GROUP => who.in_group(entry.id),
                _ => false,
            };
            if matches && has(entry.perm & limit) {
                return true;
            }
            is_member |= matches;
        }
        !is_member && has(self.perm(OTHER).unwrap_or(0))
    }
}

/// What a new inode gets from its directory.
pub(crate) struct Inherited {
    pub mode: u16,
    access: Option<Acl>,
    /// Stored value of the default list, for a directory.
    default: Option<Vec<u8>>,
}

/// Whether an attribute of this name is an access control list.
pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

impl Namespace {
    #[cold]
    pub(crate) fn acl_allows(&self, id: u64, inode: &Inode, who: &Who<'_>, mask: u16) -> bool {
        // A list that cannot be read gives nothing.
        self.stored_acl(id, ACCESS).is_ok_and(|acl| acl.allows(inode, who, mask))
    }

    fn stored_acl(&self, id: u64, name: &[u8]) -> Result<Acl> {
        match self.tree.get(key::xattr(id, name).as_bytes()) {
            Some([TAG, bytes @ ..]) => Acl::decode(bytes)?.ok_or(OpError::DAMAGED),
            _ => Err(OpError::DAMAGED),
        }
    }

    /// Mode and lists of what is made in a directory: by its default list, else by the umask.
    #[inline]
    pub(crate) fn inherit_acl(&self, id: u64, directory: &Inode, mode: u16, umask: u32) -> Result<Inherited> {
        if !directory.default_acl {
            return Ok(Inherited { mode: mode & !(umask as u16 & 0o777), access: None, default: None });
        }
        let mut acl = self.stored_acl(id, DEFAULT)?;
        let default = Some(acl.encode());
        acl.mask_by(mode & 0o777);
        let mode = mode & !0o777 | acl.mode_bits();
        Ok(Inherited { mode, access: Some(acl).filter(|acl| !acl.is_minimal()), default })
    }

    /// Notes in the new inode what it inherits.
    pub(crate) fn note_inherited(inherited: &Inherited, inode: &mut Inode) {
        inode.acl = inherited.access.is_some();
        inode.default_acl = inode.is_dir() && inherited.default.is_some();
    }

    /// Stores the lists of a new inode.
    #[inline]
    pub(crate) fn put_inherited(&mut self, id: u64, inherited: &Inherited, inode: &Inode) {
        if let Some(acl) = &inherited.access {
            self.tree.put(key::xattr(id, ACCESS).as_bytes(), &acl.encode());
        }
        if let Some(default) = inherited.default.as_ref().filter(|_| inode.is_dir()) {
            self.tree.put(key::xattr(id, DEFAULT).as_bytes(), default);
        }
    }

    /// After chmod: the access list follows the mode.
    pub(crate) fn chmod_acl(&mut self, id: u64, inode: &Inode) -> Result<()> {
        if !inode.acl {
            return Ok(());
        }
        let mut acl = self.stored_acl(id, ACCESS)?;
        acl.set_mode_bits(inode.mode);
        self.tree.put(key::xattr(id, ACCESS).as_bytes(), &acl.encode());
        Ok(())
    }

    /// Sets or removes the access list; the mode follows. `keeps_setgid`: root, or in the file's group.
    pub(crate) fn set_access_acl(&mut self, id: u64, inode: &mut Inode, acl: Option<&Acl>, keeps_setgid: bool) {
        if let Some(acl) = acl {
            inode.mode = inode.mode & !0o777 | acl.mode_bits();
            if !keeps_setgid {
                inode.mode &= !crate::permission::SETGID;
            }
        }
        match acl.filter(|acl| !acl.is_minimal()) {
            Some(acl) => {
                self.tree.put(key::xattr(id, ACCESS).as_bytes(), &acl.encode());
                inode.acl = true;
            }
            None if inode.acl => {
                self.tree.remove(key::xattr(id, ACCESS).as_bytes());
                inode.acl = false;
            }
            None => {}
        }
    }

    /// Sets or removes the default list of a directory.
    pub(crate) fn set_default_acl(&mut self, id: u64, inode: &mut Inode, acl: Option<&Acl>) {
        match acl {
            Some(acl) => {
                self.tree.put(key::xattr(id, DEFAULT).as_bytes(), &acl.encode());
            }
            None if inode.default_acl => {
                self.tree.remove(key::xattr(id, DEFAULT).as_bytes());
            }
            None => {}
        }
        inode.default_acl = acl.is_some();
    }

    /// For the check of invariants: what an inode says of its lists, and what is stored.
    pub(crate) fn acl_violation(&self, id: u64, inode: &Inode) -> Option<&'static str> {
        let stored = |name| self.tree.contains_key(key::xattr(id, name).as_bytes());
        if inode.acl != stored(ACCESS) || inode.default_acl != stored(DEFAULT) {
            return Some("says wrongly whether it has access control lists");
        }
        if inode.default_acl && self.stored_acl(id, DEFAULT).is_err() {
            return Some("has a default access control list that cannot be read");
        }
        if !inode.acl {
            return None;
        }
        match self.stored_acl(id, ACCESS) {
            Err(_) => Some("has an access control list that cannot be read"),
            Ok(acl) if acl.is_minimal() => Some("has an access control list that says no more than its mode"),
            Ok(acl) => (acl.mode_bits() != inode.mode & 0o777).then_some("has a mode beside its access control list"),
        }
    }
}
