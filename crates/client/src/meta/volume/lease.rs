//! Taking and giving back the lease under which a file is overwritten in place.
use super::{Volume, shown};
use crate::attributes::Attributes;
use crate::error::Result;
use crate::meta::keep_alive::renew;
use crate::meta::lease::Lease;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::meta::{MetaHeader, OverwriteLeaseRequest, OverwriteLeaseResponse};
use std::sync::Arc;

impl Volume {
    /// Asks for a file's lease; the session has to hold the file for writing. `None` if somebody has it, who is told
    /// that it is wanted. The attributes are those of the grant: nobody else takes extents out of the file after it.
    pub(crate) async fn take_lease(&self, inode: u64, shown_as: &[u8]) -> Result<Option<(Arc<Lease>, Attributes)>> {
        let mut asked = 0;
        let make = |header: MetaHeader| {
            asked = header.session;
            OverwriteLeaseRequest { header: Some(header), inode, ..Default::default() }
        };
        let what = shown(shown_as);
        let answer: OverwriteLeaseResponse = self.caller.mutate(&what, inode, Opcode::OverwriteLease, make).await?;
        let partition = self.caller.partition_of(inode).await?;
        let session = self.caller.session().await?;
        if answer.number == 0 || session.id.0 != asked {
            // With another session open, the one that asked has ended, and the lease with it.
            return Ok(None);
        }
        let attributes = Attributes::of_answer(answer.attributes).map_err(|odd| odd.of(&what))?;
        let lease = Lease::new(session.clone(), partition, inode, answer.number);
        if !session.leases.enter(&lease) {
            return Ok(None);
        }
        if !self.confirm_lease(&lease).await {
            self.give_lease(&lease, false, 0, true).await?;
            return Ok(None);
        }
        Ok(Some((lease, attributes)))
    }
    /// Whether nobody else can have had the lease up to now; asks the partition if that is not known.
    pub(crate) async fn confirm_lease(&self, lease: &Arc<Lease>) -> bool {
        let clock = &self.cluster().clock;
        if lease.is_good(clock.now()) {
            return true;
        }
        let patience = self.cluster().patience;
        match renew(&self.caller, &lease.session, lease.partition, patience).await {
            Ok(()) => lease.is_good(clock.now()),
            Err(error) => {
                if error.code() == Some(ErrorCode::SessionEnded) {
                    lease.session.mark_ended();
                }
                tracing::debug!(inode = lease.inode, %error, "an overwrite lease could not be confirmed");
                false
            }
        }
    }
    /// Gives a lease back. `changed`: blocks were changed since the last publish, at that time (0: now). `answered`:
    /// all that was sent under it.
    pub(crate) async fn give_lease(
        &self,
        lease: &Lease,
        changed: bool,
        mtime_ns: u64,
        answered: bool,
    ) -> Result<Attributes> {
        lease.end();
        let (inode, number) = (lease.inode, lease.number);
        let make = |header| OverwriteLeaseRequest {
            header: Some(header),
            inode,
            release: true,
            number,
            changed,
            mtime_ns,
            answered,
        };
        let what = format!("giving back the overwrite lease of inode {inode}");
        let answer: OverwriteLeaseResponse =
            self.caller.mutate_under(&lease.session, &what, lease.partition, Opcode::OverwriteLease, make).await?;
        Attributes::of_answer(answer.attributes).map_err(|odd| odd.of(&what))
    }
}
