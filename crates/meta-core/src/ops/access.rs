//! Access: whether the mode bits allow what `mask` asks for (r 4, w 2, x 1).
use crate::error::{OpError, Result};
use crate::message::request::{self, Who};
use crate::namespace::Namespace;
use crate::permission::WRITE;
use crate::view::READ_ONLY;
use cairn_types::ErrorCode;

impl Namespace {
    pub(crate) fn access(&self, who: &Who<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::Access::decode(bytes)?;
        let mask = match u16::try_from(request.mask) {
            Ok(mask @ 0..=7) => mask,
            _ => return Err(OpError::new(ErrorCode::InvalidArgument, "the mask has more than the bits r, w, x")),
        };
        let inode = self.live_inode(request.inode)?;
        if self.is_view && mask & WRITE != 0 {
            return Err(READ_ONLY);
        }
        if self.allows(request.inode, &inode, who, mask) { Ok(()) } else { Err(OpError::ACCESS_DENIED) }
    }
}
