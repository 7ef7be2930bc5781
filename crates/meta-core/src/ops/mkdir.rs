//! Mkdir: a directory. Its `..` is a link to the parent. The session may ask to lead it: see `delegation`.
use crate::delegation::{DELEGATION_LEVEL, Grant};
use crate::encoding::{DelegationRecord, Dentry, Inode, NodeType};
use crate::error::{OpError, Result};
use crate::inode_table::layout_or;
use crate::limits::{DELEGATION_IDS_STEP, LINKS_MAX};
use crate::message::request;
use crate::message::writer::{put_attributes_response, put_bytes, put_message, put_number};
use crate::namespace::{Context, Namespace};
use crate::permission::inherit;
use crate::trash::is_trash;
use crate::view::check_new_name;

impl Namespace {
    pub(crate) fn mkdir(&mut self, context: &Context<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Mkdir::decode(bytes)?;
        check_new_name(self, request.name)?;
        layout_or(request.layout, 0, self.level)?;
        let is_trash = is_trash(request.parent, request.name);
        if !self.may_be_elsewhere(request.parent, request.name) {
            self.txs.new_guest = 0;
        }
        let directory = match is_trash {
            // Whoever needs it first makes it, as root would.
            true => self.directory_for_trash(context)?,
            false => self.directory_for_new(request.parent, request.name, context)?,
        };
        if directory.nlink >= LINKS_MAX {
            return Err(OpError::TOO_MANY_LINKS);
        }
        // As Linux: setuid and setgid are not taken from the request.
        let mode = NodeType::Directory as u16 | request.mode as u16 & 0o1777;
        let (gid, mode) = inherit(&directory, &context.who, mode);
        let inherited = self.inherit_acl(request.parent, &directory, mode, request.umask)?;
        let mut inode = Inode {
            mode: inherited.mode,
            nlink: 2,
            uid: context.who.uid,
            gid,
            layout: layout_or(request.layout, directory.layout, self.level)?,
            parent: request.parent,
            quota: directory.quota,
            ..Inode::at(context.now)
        };
        if is_trash {
            (inode.mode, inode.uid, inode.gid) = (NodeType::Directory as u16 | 0o1777, 0, 0);
        }
        Self::note_inherited(&inherited, &mut inode);
        let grant = if is_trash || request.ask.is_empty() { None } else { self.grant(&request, &inode, context)? };
        let id = self.add_named(request.parent, directory, request.name, &inode, context)?;
        self.put_inherited(id, &inherited, &inode);
        put_attributes_response(out, id, &inode);
        if let Some(record) = grant.and_then(|grant| self.delegate(id, context.session, grant).cloned()) {
            self.put_delegation(id, &inode, &record, out);
        }
        Ok(())
    }

    /// What the session gets that asks to lead the new directory, if it can.
    fn grant(&self, request: &request::Mkdir<'_>, new: &Inode, context: &Context<'_>) -> Result<Option<Grant>> {
        if self.level < DELEGATION_LEVEL {
            // Members of before do not look at it.
            return Ok(None);
        }
        let ask = request::DelegationAsk::decode(request.ask)?;
        // The holder executes by itself what this level says.
        let understands = u64::from(self.level) <= u64::from(ask.level);
        let is_plain = new.quota == 0 && !new.acl && !new.default_acl && !self.is_the_trash(request.parent);
        let may = understands && is_plain && (2..=DELEGATION_IDS_STEP).contains(&ask.ids);
        let grant = Grant { ids: ask.ids.into(), token: ask.token };
        Ok((may && self.may_delegate(context.session)).then_some(grant))
    }

    /// Tells the holder of what it leads.
    fn put_delegation(&self, top: u64, inode: &Inode, record: &DelegationRecord, out: &mut Vec<u8>) {
        let mut stored = Vec::new();
        inode.encode(&mut stored);
        let last = record.ids.ranges()[0].end();
        put_message(out, 3, |out| {
            put_number(out, 1, top);
            put_number(out, 2, *last);
            put_number(out, 3, self.inode_first);
            put_number(out, 4, self.inode_last);
            put_number(out, 5, record.level.into());
            put_number(out, 6, record.time);
            put_bytes(out, 7, &stored);
            put_number(out, 8, record.token);
        });
    }

    /// Whether a new directory may be in another partition than its parent. Not the trash and what is directly in it,
    /// where expiry looks; nor what is counted by a quota, or may come to be counted.
    pub fn may_be_elsewhere(&self, parent: u64, name: &[u8]) -> bool {
        let counted = self.stored_inode(parent).is_ok_and(|directory| directory.quota != 0);
        !counted && !self.may_come_to_a_quota() && !is_trash(parent, name) && !self.is_the_trash(parent)
    }

    /// The directory for a new entry: searchable, without an entry of this name, and `who` may change it.
    pub(crate) fn directory_for_new(&self, id: u64, name: &[u8], context: &Context<'_>) -> Result<Inode> {
        let directory = self.searchable(id, &context.who)?;
        if self.entry(id, &directory, name)?.is_some() {
            return Err(OpError::EXISTS);
        }
        self.check_change(id, &directory, &context.who)?;
        self.check_memory_for(id)?;
        self.check_quota(directory.quota, 0, 1)?;
        Ok(directory)
    }

    /// Stores a new inode under a name that is free, and updates its directory. Only a lack of inode ids can fail.
    pub(crate) fn add_named(
        &mut self,
        parent: u64,
        mut directory: Inode,
        name: &[u8],
        inode: &Inode,
        context: &Context<'_>,
    ) -> Result<u64> {
        let id = self.next_inode()?;
        self.put_dentry(parent, name, Dentry { inode: id, d_type: inode.d_type() });
        self.add_inode(id, inode);
        directory.size += 1;
        directory.nlink += u32::from(inode.is_dir());
        directory.touch_contents(context.now);
        self.update_directory(parent, &directory);
        Ok(id)
    }
}
