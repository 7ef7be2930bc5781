//! Ranges of files that name the same bytes as others.
use super::{Volume, attributes, shown};
use crate::attributes::Attributes;
use crate::changes::CloneRange;
use crate::error::{ClientError, Result};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::meta::{AttributesResponse, CloneRangeRequest, CloneRangeResponse};

/// What a clone did.
#[derive(Clone, Copy, Debug)]
pub struct Cloned {
    /// From the beginning of the range on. 0: nothing was changed.
    pub length: u64,
    pub target: Attributes,
    pub source: Attributes,
}

impl Volume {
    /// Makes a range of `inode` name the bytes of a range of another file, as far as that goes. `None` if it cannot be
    /// done here and copying may.
    pub async fn clone_range(&self, shown_as: &[u8], range: CloneRange) -> Result<Option<Cloned>> {
        self.clone_range_under(shown_as, range, 0).await
    }
    /// The same by who may have the overwrite lease of that number on the file that gets them; 0: nobody has.
    pub(crate) async fn clone_range_under(
        &self,
        shown_as: &[u8],
        range: CloneRange,
        lease: u64,
    ) -> Result<Option<Cloned>> {
        let request = CloneRangeRequest { lease, ..range.to_wire() };
        let make = |header| CloneRangeRequest { header: Some(header), ..request };
        let answer: Result<CloneRangeResponse> = self.mutate(shown_as, range.inode, Opcode::CloneRange, make).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if is_only_for_clones(&error) => {
                tracing::debug!(inode = range.inode, %error, "a range is copied instead of shared");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let of = |found| attributes(AttributesResponse { attributes: found, ..AttributesResponse::default() });
        let cloned = Cloned { length: answer.length, target: of(answer.attributes)?, source: of(answer.source)? };
        if cloned.length > range.length {
            return Err(ClientError::protocol(&shown(shown_as), "more was cloned than was asked for"));
        }
        Ok((cloned.length > 0).then_some(cloned))
    }
}

/// Reading and writing may work, or fail with an error that says more. Two partitions share nothing.
fn is_only_for_clones(error: &ClientError) -> bool {
    use ErrorCode as E;
    let code = error.code();
    matches!(
        code,
        Some(
            E::InvalidArgument
                | E::PermissionDenied
                | E::UnknownOperation
                | E::LeaseHeld
                | E::Conflict
                | E::CrossVolume
        )
    )
}
