//! Extended attributes: set, get, list, remove. Namespaces and permissions as in Linux (fs/xattr.c): `user.` on regular
//! files and directories by mode bits, `trusted.` for root, `security.` written by root, the two of access control
//! lists (`acl`) by the owner; others are refused.
use crate::acl::{self, Acl};
use crate::encoding::Inode;
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::limits::{XATTR_NAMES_MAX, XATTR_TOTAL_MAX};
use crate::message::request::{self, Who};
use crate::message::writer::{put_bytes, put_element};
use crate::namespace::{Context, Namespace};
use crate::permission::{READ, STICKY, WRITE, check_owner};
use cairn_types::ErrorCode;
use cairn_types::name::{XATTR_NAME_MAX, XATTR_VALUE_MAX};

/// What a program may do beyond its caller.
const CAPABILITY: &[u8] = b"security.capability";
/// First byte of a value.
const TAG: u8 = 0x10;
const CREATE: u32 = 1;
const REPLACE: u32 = 2;

const NO_ATTRIBUTE: OpError = OpError::new(ErrorCode::NoAttribute, "no extended attribute of this name");

impl Namespace {
    pub(crate) fn set_xattr(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::SetXattr::decode(bytes)?;
        if request.flags > REPLACE {
            return Err(OpError::new(ErrorCode::InvalidArgument, "one of the flags create, replace"));
        }
        if request.value.len() > XATTR_VALUE_MAX {
            return Err(OpError::new(ErrorCode::AttributeTooLarge, "an extended attribute has at most 64 KiB"));
        }
        check_xattr_name(request.name)?;
        if is_acl(request.name) {
            return self.set_acl(context, request.inode, request.name, request.value);
        }
        let mut inode = self.live_inode(request.inode)?;
        self.check_xattr_write(request.name, request.inode, &inode, &context.who)?;
        let there = self.tree.get(key::xattr(request.inode, request.name).as_bytes()).map(<[u8]>::len);
        if there.is_some() && request.flags == CREATE {
            return Err(OpError::new(ErrorCode::Exists, "there is an extended attribute of this name"));
        }
        if there.is_none() && request.flags == REPLACE {
            return Err(NO_ATTRIBUTE);
        }
        self.check_memory_of_xattr(there, request.value)?;
        let (names, total) = self.xattr_sizes(request.inode)?;
        let (names, total) = match there {
            Some(length) => (names, total - length + 1 + request.value.len()),
            None => (names + request.name.len() + 1, total + request.name.len() + 1 + request.value.len()),
        };
        if names > XATTR_NAMES_MAX || total > XATTR_TOTAL_MAX {
            return Err(OpError::new(ErrorCode::NoSpace, "the inode's extended attributes take too much space"));
        }
        let mut value = Vec::with_capacity(1 + request.value.len());
        value.push(TAG);
        value.extend_from_slice(request.value);
        self.tree.put(key::xattr(request.inode, request.name).as_bytes(), &value);
        inode.touch(context.now);
        self.put_inode(request.inode, &inode);
        Ok(())
    }

    pub(crate) fn remove_xattr(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::RemoveXattr::decode(bytes)?;
        check_xattr_name(request.name)?;
        if is_acl(request.name) {
            return self.set_acl(context, request.inode, request.name, &[]);
        }
        let mut inode = self.live_inode(request.inode)?;
        self.check_xattr_write(request.name, request.inode, &inode, &context.who)?;
        if !self.tree.remove(key::xattr(request.inode, request.name).as_bytes()) {
            return Err(NO_ATTRIBUTE);
        }
        inode.touch(context.now);
        self.put_inode(request.inode, &inode);
        Ok(())
    }

    pub(crate) fn get_xattr(&self, who: &Who<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::GetXattr::decode(bytes)?;
        check_xattr_name(request.name)?;
        let inode = self.live_inode(request.inode)?;
        if request.name.starts_with(b"user.") {
            if !inode.is_regular() && !inode.is_dir() {
                return Err(NO_ATTRIBUTE);
            }
            if !self.allows(request.inode, &inode, who, READ) {
                return Err(OpError::READ_DENIED);
            }
        }
        if request.name.starts_with(b"trusted.") && !who.is_root() {
            return Err(NO_ATTRIBUTE);
        }
        match self.tree.get(key::xattr(request.inode, request.name).as_bytes()) {
            Some([TAG, value @ ..]) => put_bytes(out, 1, value),
            Some(_) => return Err(OpError::DAMAGED),
            None => return Err(NO_ATTRIBUTE),
        }
        Ok(())
    }

    pub(crate) fn list_xattr(&self, who: &Who<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::ListXattr::decode(bytes)?;
        self.live_inode(request.inode)?;
        self.visit_xattrs(request.inode, |name, _| {
            if who.is_root() || !name.starts_with(b"trusted.") {
                put_element(out, 1, name);
            }
        });
        Ok(())
    }

    /// Sets an access control list, or removes it with an empty value.
    fn set_acl(&mut self, context: &Context<'_>, id: u64, name: &[u8], value: &[u8]) -> Result<()> {
        let acl = Acl::decode(value)?;
        let mut inode = self.live_inode(id)?;
        if inode.is_symlink() {
            return Err(OpError::new(ErrorCode::NotSupported, "a symbolic link has no access control list"));
        }
        if name == acl::DEFAULT && !inode.is_dir() {
            let text = "only directories have default access control lists";
            return if acl.is_some() { Err(OpError::new(ErrorCode::PermissionDenied, text)) } else { Ok(()) };
        }
        check_owner(&inode, &context.who)?;
        self.check_shards(id, &inode)?;
        if acl.is_some() {
            let there = self.tree.get(key::xattr(id, name).as_bytes()).map(<[u8]>::len);
            self.check_memory_of_xattr(there, value)?;
        }
        if name == acl::DEFAULT {
            self.set_default_acl(id, &mut inode, acl.as_ref());
        } else {
            let keeps_setgid = context.who.is_root() || context.who.in_group(inode.gid);
            self.set_access_acl(id, &mut inode, acl.as_ref(), keeps_setgid);
        }
        inode.touch(context.now);
        self.put_inode(id, &inode);
        if inode.shards > 0 { self.change_shards(id, &inode, false) } else { Ok(()) }
    }

    /// Who writes to a program, or changes its owner, takes its capabilities away. What nobody may execute has none
    /// that matter, and is not looked at.
    pub(crate) fn drop_capability(&mut self, id: u64, inode: &Inode) {
        if inode.is_regular() && inode.mode & 0o111 != 0 {
            self.tree.remove(key::xattr(id, CAPABILITY).as_bytes());
        }
    }

    /// Whether there is room for a value in place of one with so many bytes, its tag among them.
    fn check_memory_of_xattr(&self, there: Option<usize>, value: &[u8]) -> Result<()> {
        let grows = there.is_none_or(|length| value.len() + 1 > length);
        if grows { self.check_memory() } else { Ok(()) }
    }

    fn check_xattr_write(&self, name: &[u8], id: u64, inode: &Inode, who: &Who<'_>) -> Result<()> {
        if !name.starts_with(b"user.") {
            return if who.is_root() { Ok(()) } else { Err(OpError::NOT_ROOT) };
        }
        if !inode.is_regular() && !inode.is_dir() {
            return Err(OpError::new(ErrorCode::NotPermitted, "only files and directories have user attributes"));
        }
        if inode.is_dir() && inode.mode & STICKY != 0 && !who.is_root() && who.uid != inode.uid {
            return Err(OpError::NOT_OWNER);
        }
        if self.allows(id, inode, who, WRITE) { Ok(()) } else { Err(OpError::WRITE_DENIED) }
    }

    /// Bytes of the names with one each, and of names and values with their tags.
    fn xattr_sizes(&self, inode: u64) -> Result<(usize, usize)> {
        let (mut names, mut total) = (0, 0);
        self.visit_xattrs(inode, |name, value| {
            names += name.len() + 1;
            total += name.len() + value.len();
        });
        Ok((names, total))
    }

    /// Access control lists are among them.
    pub(crate) fn has_xattrs(&self, inode: u64) -> bool {
        let prefix = key::prefix(inode, Kind::Xattr);
        let mut cursor = self.tree.cursor();
        cursor.seek(prefix.as_bytes()) && cursor.key().starts_with(prefix.as_bytes())
    }

    fn visit_xattrs(&self, inode: u64, mut f: impl FnMut(&[u8], &[u8])) {
        let prefix = key::prefix(inode, Kind::Xattr);
        let mut cursor = self.tree.cursor();
        let mut found = cursor.seek(prefix.as_bytes());
        while found {
            let Some(name) = cursor.key().strip_prefix(prefix.as_bytes()) else { break };
            f(name, cursor.value());
            found = cursor.advance();
        }
    }
}

fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return Err(OpError::new(ErrorCode::OutOfRange, "the name of an extended attribute has 1 to 255 bytes"));
    }
    if is_acl(name) {
        return Ok(());
    }
    let known = [b"user.".as_slice(), b"trusted.", b"security."];
    let Some(prefix) = known.iter().find(|prefix| name.starts_with(prefix)) else {
        return Err(OpError::new(
            ErrorCode::NotSupported,
            "extended attributes are named user.…, trusted.… or security.…; of system.… there are access control lists",
        ));
    };
    if name.len() > prefix.len() && !name.contains(&0) {
        Ok(())
    } else {
        Err(OpError::new(ErrorCode::InvalidArgument, "the name of an extended attribute is empty or contains NUL"))
    }
}

fn is_acl(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}
