//! Which partition a request goes to: the one that has the inode by which it comes, by the map, and by the next map
//! when that was old.
//!
//! A partition says `UnknownPartition` of an inode outside of its range, and has done nothing. The request is sent to
//! another one as a new one, under that one's slot. Invariant: it goes on at the same partition, for as long as any
//! request does, unless a newer map names another one.
use super::call::MetaCaller;
use super::delegations::way::Led as Outcome;
use super::session::{Session, SlotLease};
use super::shards::Places;
use crate::encoded_message::{Coming, EncodedMessage};
use crate::error::{ClientError, Result};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::meta::*;
use std::sync::Arc;

/// Partitions that a request is sent to, one after the other.
pub(crate) const ROUTES_MAX: u32 = 8;

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To<'a> {
    pub(crate) partition: u32,
    /// Inodes by which it goes there; none: it is about the partition.
    pub(crate) by: &'a [u64],
}

impl From<u32> for To<'_> {
    fn from(partition: u32) -> Self {
        Self { partition, by: &[] }
    }
}

/// A request with a header.
pub(crate) trait Addressed {
    fn address(&mut self, header: MetaHeader);
}

/// A request that changes something, of any kind.
pub(crate) trait Mutation: Addressed + Places + Send {
    fn encoded(&self) -> EncodedMessage;
}

impl<R: prost::Message + Addressed + Places> Mutation for R {
    fn encoded(&self) -> EncodedMessage {
        EncodedMessage::of(self)
    }
}

macro_rules! addressed {
    ($($request:ident)*) => { $(
        impl Addressed for $request {
            fn address(&mut self, header: MetaHeader) {
                self.header = Some(header);
            }
        }
    )* };
}

addressed! {
    MkdirRequest CreateRequest SymlinkRequest CreateUnnamedRequest LinkRequest UnlinkRequest RmdirRequest RemoveTreeRequest
    RenameRequest SetattrRequest SetXattrRequest RemoveXattrRequest PublishRequest PublishAttributesRequest PunchRequest
    OverwriteLeaseRequest CloneRangeRequest SetLockRequest SetQuotaRequest HoldRequest ReleaseRequest DiscardRequest
    NoteDurableRequest OpenAppendRequest PublishAppendRequest CreateSnapshotRequest DeleteSnapshotRequest RenameSnapshotRequest SetSnapshotScheduleRequest
}

/// Who has done something.
pub(crate) struct DoneBy {
    pub(crate) partition: u32,
    /// Under which it did; `None`: this client itself, which leads what was changed.
    pub(crate) session: Option<Arc<Session>>,
}

/// A slot of a session at a partition, for one request.
struct Slot {
    partition: u32,
    session: Arc<Session>,
    lease: SlotLease,
}

impl MetaCaller {
    /// A read at the partition that has an inode.
    pub(crate) async fn read_by<A: prost::Message + Default, R: prost::Message>(
        &self,
        what: &str,
        inode: u64,
        opcode: Opcode,
        request: impl Fn(MetaHeader) -> R + Send + Sync,
    ) -> Result<A> {
        let make = |header| EncodedMessage::of(&request(header));
        self.read_of_any(what, inode, opcode, &make).await?.answer(what)
    }

    fn read_of_any<'a>(
        &'a self,
        what: &'a str,
        inode: u64,
        opcode: Opcode,
        make: &'a (dyn Fn(MetaHeader) -> EncodedMessage + Send + Sync),
    ) -> Coming<'a, Result<EncodedMessage>> {
        Box::pin(self.read_encoded_by(what, inode, opcode, make))
    }

    async fn read_encoded_by(
        &self,
        what: &str,
        inode: u64,
        opcode: Opcode,
        make: &(dyn Fn(MetaHeader) -> EncodedMessage + Send + Sync),
    ) -> Result<EncodedMessage> {
        if self.delegations().is_any() {
            // An open that a partition answers is kept alive by it.
            let answers = opcode != Opcode::Open;
            if let Some(answer) = self.read_led(what, (opcode, answers), make).await? {
                return Ok(answer);
            }
        }
        let by = [inode];
        let mut to = To { partition: self.partition_of(inode).await?, by: &by };
        let mut routes = 1;
        loop {
            let request = make(self.read_header(to.partition));
            let outcome = self.read_at(what, to, opcode, request).await;
            match self.elsewhere(&outcome, to).await {
                Some(partition) if routes < ROUTES_MAX => (to.partition, routes) = (partition, routes + 1),
                _ => return outcome,
            }
        }
    }

    /// A mutation at the partition that has an inode: exactly once under a slot and sequence number.
    pub(crate) async fn mutate<A: prost::Message + Default, R: Mutation>(
        self: &Arc<Self>,
        what: &str,
        inode: u64,
        opcode: Opcode,
        make: impl FnOnce(MetaHeader) -> R,
    ) -> Result<A> {
        Ok(self.mutate_where(what, inode, opcode, make).await?.0)
    }

    /// The same, with who has done it.
    pub(crate) async fn mutate_where<A: prost::Message + Default, R: Mutation>(
        self: &Arc<Self>,
        what: &str,
        inode: u64,
        opcode: Opcode,
        make: impl FnOnce(MetaHeader) -> R,
    ) -> Result<(A, DoneBy)> {
        let (answer, by) = if self.delegations().is_any() {
            let mut request = make(self.own_header());
            self.mutate_led(what, inode, opcode, &mut request).await?
        } else {
            let first = self.first_slot(inode).await?;
            let mut request = make(self.header_of(&first));
            self.mutate_any(what, inode, opcode, first, &mut request).await?
        };
        Ok((self.done(what, answer)?, by))
    }

    fn header_of(&self, slot: &Slot) -> MetaHeader {
        self.header(slot.partition, slot.session.id, slot.lease.slot, slot.lease.sequence)
    }

    /// A mutation of a client that leads directories.
    fn mutate_led<'a>(
        self: &'a Arc<Self>,
        what: &'a str,
        inode: u64,
        opcode: Opcode,
        request: &'a mut dyn Mutation,
    ) -> Coming<'a, Result<(EncodedMessage, DoneBy)>> {
        Box::pin(async move {
            let led = self.lead(what, opcode, request.encoded()).await?;
            if let Outcome::Answered(answer, partition) = led {
                return Ok((answer, DoneBy { partition, session: None }));
            }
            let first = self.first_slot(inode).await?;
            request.address(self.header_of(&first));
            let outcome = self.mutate_encoded(what, inode, opcode, first, request).await;
            if let Outcome::Removes(removal) = led {
                removal.told(&outcome);
            }
            outcome
        })
    }

    fn first_slot(self: &Arc<Self>, inode: u64) -> Coming<'_, Result<Slot>> {
        Box::pin(async move {
            let partition = self.partition_of(inode).await?;
            let (session, lease) = self.slot(partition).await?;
            Ok(Slot { partition, session, lease })
        })
    }

    fn mutate_any<'a>(
        self: &'a Arc<Self>,
        what: &'a str,
        inode: u64,
        opcode: Opcode,
        first: Slot,
        request: &'a mut dyn Mutation,
    ) -> Coming<'a, Result<(EncodedMessage, DoneBy)>> {
        Box::pin(self.mutate_encoded(what, inode, opcode, first, request))
    }

    async fn mutate_encoded(
        self: &Arc<Self>,
        what: &str,
        inode: u64,
        opcode: Opcode,
        first: Slot,
        request: &mut dyn Mutation,
    ) -> Result<(EncodedMessage, DoneBy)> {
        let mut by = [inode];
        let Slot { mut partition, mut session, mut lease } = first;
        match self.to_shards(request, false).await {
            Ok(None) => {}
            sent_on => {
                lease.unused();
                by = [sent_on?.unwrap_or(inode)];
                partition = self.partition_of(by[0]).await?;
                (session, lease) = self.slot(partition).await?;
                request.address(self.header(partition, session.id, lease.slot, lease.sequence));
            }
        }
        let mut routes = 1;
        loop {
            let to = To { partition, by: &by };
            let outcome = self.send_in(&session, lease, what, to, opcode, request.encoded()).await;
            let is_sharded = outcome.as_ref().err().and_then(ClientError::code) == Some(ErrorCode::Sharded);
            routes += 1;
            match self.elsewhere(&outcome, to).await {
                Some(other) if routes <= ROUTES_MAX => partition = other,
                None if is_sharded && routes <= ROUTES_MAX => {
                    by = [self.to_shards(request, true).await?.unwrap_or(by[0])];
                    partition = self.partition_of(by[0]).await?;
                }
                _ => return Ok((outcome?, DoneBy { partition, session: Some(session) })),
            }
            (session, lease) = self.slot(partition).await?;
            request.address(self.header(partition, session.id, lease.slot, lease.sequence));
        }
    }

    /// Whether the map names another partition for one of the inodes. What it says now was learned after this was
    /// asked, unless it says so already.
    pub(super) async fn is_elsewhere(&self, to: To<'_>) -> bool {
        let names_another = || {
            let view = self.cluster.view();
            let other = |inode: &u64| view.partition_of(self.volume, *inode).is_some_and(|p| p.id != to.partition);
            to.by.iter().any(other)
        };
        if to.by.is_empty() || names_another() {
            return !to.by.is_empty();
        }
        self.cluster.refresh_quietly().await;
        names_another()
    }

    /// Where a request by one inode goes instead, which a partition said that it does not have.
    async fn elsewhere(&self, outcome: &Result<EncodedMessage>, to: To<'_>) -> Option<u32> {
        let code = outcome.as_ref().err().and_then(|error| error.code());
        if code != Some(ErrorCode::UnknownPartition) || !self.is_elsewhere(to).await {
            return None;
        }
        self.cluster.view().partition_of(self.volume, to.by[0]).map(|partition| partition.id)
    }
}

#[cfg(test)]
mod tests;
