//! PublishAttributes: a publish of a file that was just made, and what was set of it before. All or nothing: one entry
//! of the log instead of two, one behind the other.
use super::setattr::{ATIME, GID, MODE, MTIME, UID};
use crate::error::{OpError, Result};
use crate::message::request;
use crate::namespace::{Context, Namespace};
use crate::volatile::VOLATILE_MOVED;
use cairn_types::ErrorCode;

/// What can be set along with contents: nothing that depends on them, or that they depend on.
const ALLOWED: u32 = MODE | UID | GID | ATIME | MTIME;

impl Namespace {
    pub(crate) fn publish_attributes(&mut self, context: &Context<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::PublishAttributes::decode(bytes)?;
        let publish = request::Publish::decode(request.publish)?;
        let set = request::Setattr::decode(request.attributes)?;
        let plain = publish.layout == 0 && publish.durability != VOLATILE_MOVED;
        if set.inode != publish.inode || set.valid & !ALLOWED != 0 || !plain {
            return Err(OpError::new(ErrorCode::InvalidArgument, "these attributes cannot be set along with contents"));
        }
        // Before anything is changed; a publish changes nothing that this depends on.
        self.check_setattr(&set, context)?;
        let start = out.len();
        self.publish(context, request.publish, out, publish.durability != 0)?;
        out.truncate(start);
        self.setattr(context, request.attributes, out)
    }
}
