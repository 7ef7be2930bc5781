//! Getattr: attributes of an inode. Whoever has its number came through its directories; no permission is needed.
use crate::error::Result;
use crate::message::request;
use crate::message::writer::put_attributes_response;
use crate::namespace::Namespace;

impl Namespace {
    pub(crate) fn getattr(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Getattr::decode(bytes)?;
        let inode = self.live_inode(request.inode)?;
        put_attributes_response(out, request.inode, &inode);
        Ok(())
    }
}
