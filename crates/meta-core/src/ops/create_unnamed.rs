//! CreateUnnamed: a regular file without a name, held by the session for writing (`O_TMPFILE`). Link gives it a name;
//! if the last holder goes before that, so does the file.
use crate::encoding::{Inode, NodeType};
use crate::error::Result;
use crate::inode_table::layout_or;
use crate::message::request;
use crate::message::writer::put_attributes_response;
use crate::namespace::{Context, Namespace};
use crate::permission::inherit;

impl Namespace {
    pub(crate) fn create_unnamed(&mut self, context: &Context<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::CreateUnnamed::decode(bytes)?;
        layout_or(request.layout, 0, self.level)?;
        let directory = self.searchable(request.parent, &context.who)?;
        self.check_change(request.parent, &directory, &context.who)?;
        let mode = NodeType::Regular as u16 | request.mode as u16 & 0o7777;
        let (gid, mode) = inherit(&directory, &context.who, mode);
        let inherited = self.inherit_acl(request.parent, &directory, mode, request.umask)?;
        let mut inode = Inode {
            mode: inherited.mode,
            nlink: 0,
            uid: context.who.uid,
            gid,
            layout: layout_or(request.layout, directory.layout, self.level)?,
            unnamed: true,
            quota: directory.quota,
            data_version: 1,
            ..Inode::at(context.now)
        };
        self.check_memory()?;
        self.check_quota(directory.quota, 0, 1)?;
        let id = self.next_inode()?;
        Self::note_inherited(&inherited, &mut inode);
        self.add_inode(id, &inode);
        self.put_inherited(id, &inherited, &inode);
        self.add_hold(context.session, id, true);
        put_attributes_response(out, id, &inode);
        Ok(())
    }
}
