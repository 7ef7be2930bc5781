//! Calls to whoever leads a group, and to its other members while that one is [late], over the connections of the
//! client.
//!
//! Such a repeat goes under the number of the call, so nothing is executed twice. Not here: who is asked first, and
//! what follows from an answer (`meta/call.rs`, `cluster.rs`).
use crate::net::{Net, NetError};
use cairn_rpc::late::{self, Failure};
pub(crate) use cairn_rpc::late::{Members, Questions};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use std::time::Duration;

/// What came of a call.
pub(crate) type Answer<A> = late::Answer<A, NetError>;

impl Failure for NetError {
    fn remote(&self) -> Option<&WireError> {
        match self {
            Self::Remote(error) => Some(error),
            _ => None,
        }
    }
    fn not_sent(&self) -> bool {
        matches!(self, Self::NotSent(_))
    }
}

/// A network, and what was asked around in it.
pub(crate) struct Asking<'a> {
    pub(crate) net: &'a Net,
    pub(crate) questions: &'a Questions,
}

impl Asking<'_> {
    /// Calls `first`, and others while it is late, until the deadline of the first call.
    pub(crate) async fn call<A: prost::Message + Default>(
        &self,
        first: &str,
        members: &impl Members,
        opcode: Opcode,
        request: &impl prost::Message,
        deadline: Duration,
    ) -> Answer<A> {
        let ask = |address: String, deadline: Duration| async move {
            self.net.call::<A>(&address, opcode, request, deadline).await
        };
        late::call(self.questions, members, first, deadline, ask).await
    }
}

#[cfg(test)]
mod tests;
