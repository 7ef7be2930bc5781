//! Operations on names: mkdir, create, symlink, link, unlink, rmdir, remove_tree, rename.
use crate::contents::{Piece, check_pieces, check_writer, write_pieces};
use crate::node::{Body, Node};
use crate::operation::Create;
use crate::state::{Model, ROOT, Request};
use cairn_types::{ErrorCode, Layout};
use std::collections::BTreeMap;

type Done = Result<(), ErrorCode>;

pub(crate) fn check_name(name: &[u8]) -> Done {
    if name.len() > 255 {
        return Err(ErrorCode::NameTooLong);
    }
    let bad = name.is_empty() || name == b"." || name == b".." || name.contains(&0) || name.contains(&b'/');
    if bad { Err(ErrorCode::InvalidArgument) } else { Ok(()) }
}

pub(crate) fn check_layout(layout: u64) -> Done {
    if layout == 0 || Layout::from_bits(layout).is_some() { Ok(()) } else { Err(ErrorCode::BadLayout) }
}

impl Model {
    /// A node as it is made in a directory: owner, group and mode by inode_init_owner.
    pub(crate) fn fresh(&self, request: &Request, parent: u64, mode: u32, layout: u64, body: Body) -> Node {
        let directory = &self.nodes[&parent];
        let (mut mode, mut gid) = (mode, request.caller.gid);
        if directory.mode & 0o2000 != 0 {
            gid = directory.gid;
            if matches!(body, Body::Directory { .. }) {
                mode |= 0o2000;
            } else if mode & 0o2010 == 0o2010 && !request.caller.is_root() && !request.caller.is_member(gid) {
                mode &= !0o2000;
            }
        }
        Node {
            mode,
            uid: request.caller.uid,
            gid,
            atime: request.now,
            mtime: request.now,
            ctime: request.now,
            btime: request.now,
            layout: if layout == 0 { directory.layout } else { layout },
            generation: 1,
            data_version: u64::from(!matches!(body, Body::Directory { .. } | Body::Symlink(_))),
            body,
            xattrs: BTreeMap::new(),
            linkable: false,
        }
    }

    pub(crate) fn add(&mut self, node: Node) -> u64 {
        let inode = self.next_inode;
        self.next_inode += 1;
        self.nodes.insert(inode, node);
        inode
    }

    fn add_named(&mut self, request: &Request, parent: u64, name: &[u8], node: Node) -> u64 {
        let inode = self.add(node);
        self.set_entry(parent, name, inode);
        self.node(parent).modified(request.now);
        inode
    }

    /// The checks for making a new entry.
    fn check_new(&self, request: &Request, parent: u64, name: &[u8]) -> Done {
        let directory = self.searchable(parent, &request.caller)?;
        if self.entry(parent, name).is_some() {
            return Err(ErrorCode::Exists);
        }
        request.caller.may_add(directory)
    }

    pub(crate) fn mkdir(
        &mut self,
        request: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        layout: u64,
        umask: u32,
    ) -> Result<u64, ErrorCode> {
        check_name(name)?;
        check_layout(layout)?;
        self.check_new(request, parent, name)?;
        let body = Body::Directory { parent, entries: BTreeMap::new() };
        let mut node = self.fresh(request, parent, 0o040_000 | mode & 0o1777, layout, body);
        node.inherit_acl(&self.nodes[&parent], umask);
        Ok(self.add_named(request, parent, name, node))
    }

    pub(crate) fn symlink(
        &mut self,
        request: &Request,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> Result<u64, ErrorCode> {
        check_name(name)?;
        match target {
            [] => return Err(ErrorCode::NotFound),
            _ if target.len() > 4095 => return Err(ErrorCode::NameTooLong),
            _ if target.contains(&0) => return Err(ErrorCode::InvalidArgument),
            _ => {}
        }
        self.check_new(request, parent, name)?;
        let node = self.fresh(request, parent, 0o120_777, 0, Body::Symlink(target.to_vec()));
        Ok(self.add_named(request, parent, name, node))
    }

    pub(crate) fn create(&mut self, request: &Request, create: &Create) -> Result<u64, ErrorCode> {
        check_name(&create.name)?;
        let kind = check_create(request, create)?;
        let directory = self.searchable(create.parent, &request.caller)?;
        if let Some(there) = self.entry(create.parent, &create.name) {
            if !create.replace || create.exclusive {
                return self.open_existing(request, create, there);
            }
            let victim = &self.nodes[&there];
            request.caller.may_take_away(directory, victim)?;
            if victim.is_directory() {
                return Err(ErrorCode::IsDirectory);
            }
            if !victim.is_file() {
                return Err(ErrorCode::Exists);
            }
            self.node(there).changed(request.now);
        } else {
            request.caller.may_add(directory)?;
        }
        let body = match kind {
            0o100_000 => {
                let mut bytes = Vec::new();
                write_pieces(&mut bytes, &create.pieces);
                bytes.resize(bytes.len().max(create.size as usize), None);
                Body::File(bytes)
            }
            0o020_000 | 0o060_000 => Body::Special { rdev: create.rdev },
            _ => Body::Special { rdev: 0 },
        };
        let mut node = self.fresh(request, create.parent, kind | create.mode & 0o7777, create.layout, body);
        node.inherit_acl(&self.nodes[&create.parent], create.umask);
        if let Some((uid, gid)) = create.owner {
            (node.uid, node.gid) = (uid, gid);
        }
        if create.mtime != 0 {
            (node.atime, node.mtime) = (create.mtime, create.mtime);
        }
        let inode = self.add_named(request, create.parent, &create.name, node);
        self.sweep();
        if create.hold {
            self.holds.insert((request.session, inode), true);
        }
        Ok(inode)
    }

    fn open_existing(&mut self, request: &Request, create: &Create, there: u64) -> Result<u64, ErrorCode> {
        if create.exclusive || create.size > 0 || !create.pieces.is_empty() {
            return Err(ErrorCode::Exists);
        }
        let node = &self.nodes[&there];
        if node.is_directory() {
            return Err(ErrorCode::IsDirectory);
        }
        if create.hold && !node.is_symlink() {
            let write = request.caller.can_write(node);
            if !write && !request.caller.can_read(node) && !request.caller.can_execute(node) {
                return Err(ErrorCode::PermissionDenied);
            }
            self.note_hold(request.session, there, write);
        }
        Ok(there)
    }

    pub(crate) fn link(&mut self, request: &Request, inode: u64, parent: u64, name: &[u8], replace: bool) -> Done {
        check_name(name)?;
        let node = self.existing(inode)?;
        let directory = self.searchable(parent, &request.caller)?;
        let there = self.entry(parent, name);
        match there {
            Some(_) if !replace => return Err(ErrorCode::Exists),
            Some(there) if there == inode => return Ok(()),
            Some(there) => {
                request.caller.may_take_away(directory, &self.nodes[&there])?;
                if self.nodes[&there].is_directory() {
                    return Err(ErrorCode::IsDirectory);
                }
            }
            None => request.caller.may_add(directory)?,
        }
        if node.is_directory() {
            return Err(ErrorCode::NotPermitted);
        }
        if self.links(inode) == 0 && !node.linkable {
            return Err(ErrorCode::NotFound);
        }
        if let Some(there) = there {
            self.node(there).changed(request.now);
        }
        self.set_entry(parent, name, inode);
        self.node(inode).changed(request.now);
        self.node(inode).linkable = false;
        self.node(parent).modified(request.now);
        self.sweep();
        Ok(())
    }

    /// The entry to be removed, when the caller may.
    fn victim(&self, request: &Request, parent: u64, name: &[u8]) -> Result<u64, ErrorCode> {
        check_name(name)?;
        let directory = self.searchable(parent, &request.caller)?;
        let inode = self.entry(parent, name).ok_or(ErrorCode::NotFound)?;
        request.caller.may_take_away(directory, &self.nodes[&inode])?;
        Ok(inode)
    }

    fn take_away(&mut self, request: &Request, parent: u64, name: &[u8], inode: u64) {
        self.drop_entry(parent, name);
        self.node(parent).modified(request.now);
        self.orphan(request.now, inode);
        self.sweep();
    }

    /// A name of a node went away.
    fn orphan(&mut self, now: u64, inode: u64) {
        let node = self.node(inode);
        node.changed(now);
        if let Body::Directory { parent, .. } = &mut node.body {
            *parent = 0;
        }
    }

    pub(crate) fn unlink(&mut self, request: &Request, parent: u64, name: &[u8]) -> Done {
        let inode = self.victim(request, parent, name)?;
        if self.nodes[&inode].is_directory() {
            return Err(ErrorCode::IsDirectory);
        }
        self.take_away(request, parent, name, inode);
        Ok(())
    }

    pub(crate) fn rmdir(&mut self, request: &Request, parent: u64, name: &[u8]) -> Done {
        let inode = self.victim(request, parent, name)?;
        if !self.nodes[&inode].is_directory() {
            return Err(ErrorCode::NotDirectory);
        }
        if !self.nodes[&inode].entries().is_empty() {
            return Err(ErrorCode::NotEmpty);
        }
        self.take_away(request, parent, name, inode);
        Ok(())
    }

    pub(crate) fn remove_tree(&mut self, request: &Request, parent: u64, name: &[u8]) -> Done {
        let inode = self.victim(request, parent, name)?;
        if !self.nodes[&inode].is_directory() {
            return Err(ErrorCode::NotDirectory);
        }
        if !request.caller.owns(&self.nodes[&inode]) {
            return Err(ErrorCode::NotPermitted);
        }
        let doomed = if self.nodes[&inode].entries().is_empty() { Vec::new() } else { self.empty(request.now, inode) };
        self.drop_entry(parent, name);
        self.node(parent).modified(request.now);
        self.orphan(request.now, inode);
        // Directories below and the root of the tree are not kept for readers.
        for directory in doomed {
            if !self.is_held(directory) {
                self.nodes.remove(&directory);
                self.locks.retain(|(locked, _, _), _| *locked != directory);
            }
        }
        self.sweep();
        Ok(())
    }

    /// Removes all that is below a directory; gives it and the directories below.
    fn empty(&mut self, now: u64, directory: u64) -> Vec<u64> {
        let mut directories = vec![directory];
        for (name, child) in self.nodes[&directory].entries() {
            if self.nodes[&child].is_directory() {
                directories.extend(self.empty(now, child));
            }
            self.drop_entry(directory, &name);
            self.orphan(now, child);
        }
        directories
    }

    /// True when `above` is `below` or on its way to the root.
    fn is_on_path(&self, above: u64, below: u64) -> bool {
        let mut at = below;
        loop {
            if at == above {
                return true;
            }
            match &self.nodes[&at].body {
                Body::Directory { parent, .. } if at != ROOT => at = *parent,
                _ => return false,
            }
        }
    }

    pub(crate) fn rename(&mut self, request: &Request, old: (u64, &[u8]), new: (u64, &[u8]), flags: u32) -> Done {
        if flags > 2 {
            return Err(ErrorCode::InvalidArgument);
        }
        let (no_replace, exchange) = (flags == 1, flags == 2);
        check_name(old.1)?;
        check_name(new.1)?;
        let caller = &request.caller;
        let old_directory = self.searchable(old.0, caller)?;
        let new_directory = self.searchable(new.0, caller)?;
        let inode = self.entry(old.0, old.1).ok_or(ErrorCode::NotFound)?;
        let there = self.entry(new.0, new.1);
        if no_replace && there.is_some() {
            return Err(ErrorCode::Exists);
        }
        if exchange && there.is_none() {
            return Err(ErrorCode::NotFound);
        }
        let moves = old.0 != new.0;
        if moves && self.is_on_path(inode, new.0) {
            return Err(ErrorCode::InvalidArgument);
        }
        if moves && there.is_some_and(|there| self.is_on_path(there, old.0)) {
            return Err(if exchange { ErrorCode::InvalidArgument } else { ErrorCode::NotEmpty });
        }
        if there == Some(inode) {
            return Ok(());
        }
        let node = &self.nodes[&inode];
        let other = there.map(|there| &self.nodes[&there]);
        caller.may_take_away(old_directory, node)?;
        match other {
            None => caller.may_add(new_directory)?,
            Some(other) => {
                caller.may_take_away(new_directory, other)?;
                if !exchange {
                    match (node.is_directory(), other.is_directory()) {
                        (true, false) => return Err(ErrorCode::NotDirectory),
                        (false, true) => return Err(ErrorCode::IsDirectory),
                        _ => {}
                    }
                }
            }
        }
        let locked = |node: &Node| node.is_directory() && !caller.can_write(node);
        if moves && (locked(node) || exchange && other.is_some_and(locked)) {
            return Err(ErrorCode::PermissionDenied);
        }
        if !exchange && other.is_some_and(|other| !other.entries().is_empty()) {
            return Err(ErrorCode::NotEmpty);
        }
        self.carry_out(request.now, old, new, inode, there, exchange);
        Ok(())
    }

    fn carry_out(
        &mut self,
        now: u64,
        old: (u64, &[u8]),
        new: (u64, &[u8]),
        inode: u64,
        there: Option<u64>,
        exchange: bool,
    ) {
        self.drop_entry(old.0, old.1);
        self.set_entry(new.0, new.1, inode);
        self.reparent(now, inode, new.0);
        match there {
            Some(there) if exchange => {
                self.set_entry(old.0, old.1, there);
                self.reparent(now, there, old.0);
            }
            Some(there) => self.orphan(now, there),
            None => {}
        }
        self.node(new.0).modified(now);
        if old.0 != new.0 {
            self.node(old.0).modified(now);
        }
        self.sweep();
    }

    fn reparent(&mut self, now: u64, inode: u64, directory: u64) {
        let node = self.node(inode);
        node.changed(now);
        if let Body::Directory { parent, .. } = &mut node.body {
            *parent = directory;
        }
    }
}

/// What does not depend on the tree; gives the type bits.
fn check_create(request: &Request, create: &Create) -> Result<u32, ErrorCode> {
    let kind = match create.mode & !0o7777 {
        0 => 0o100_000,
        kind @ (0o010_000 | 0o020_000 | 0o060_000 | 0o100_000 | 0o140_000) => kind,
        0o040_000 => return Err(ErrorCode::NotPermitted),
        _ => return Err(ErrorCode::InvalidArgument),
    };
    if matches!(kind, 0o020_000 | 0o060_000) && !request.caller.is_root() {
        return Err(ErrorCode::NotPermitted);
    }
    check_layout(create.layout)?;
    if let Some((uid, gid)) = create.owner {
        let own = uid == request.caller.uid && request.caller.is_member(gid);
        if !request.caller.is_root() && !own {
            return Err(ErrorCode::NotPermitted);
        }
    }
    let has_contents = create.size > 0 || !create.pieces.is_empty() || create.replace;
    if has_contents && kind != 0o100_000 {
        return Err(ErrorCode::InvalidArgument);
    }
    if create.size > i64::MAX as u64 {
        return Err(ErrorCode::FileTooLarge);
    }
    check_pieces(&create.pieces)?;
    check_writer(create.written_by, &create.pieces, request)?;
    debug_assert!(create.pieces.iter().all(|piece: &Piece| piece.length > 0), "checked above");
    Ok(kind)
}
