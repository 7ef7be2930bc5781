//! Typed calls over RPC: a message goes out, a message comes back, errors keep their three outcomes apart.
use crate::admin_way::AdminWay;
use crate::encoded_message::{Coming, EncodedMessage};
use crate::error::ClientError;
use crate::refusal::Refusal;
use cairn_env::buf::AlignedBuf;
use cairn_rpc::{CallError, CallOptions, Client, Lane, NotSent, Payload, next_trace_id};
use cairn_types::{ChunkId, ErrorCode};
use cairn_wire::Opcode;
use cairn_wire::audience::Caller;
use cairn_wire::error::WireError;
use cairn_wire::hello::HelloError;
use std::sync::Arc;
use std::time::Duration;

/// Why a call gave no answer message.
#[derive(Debug, Clone)]
pub(crate) enum NetError {
    /// Certainly not done.
    NotSent(String),
    /// May have been done.
    Unknown(String),
    /// The server answered with an error.
    Remote(WireError),
    /// It takes no connection of this client, and waiting does not mend it; certainly not done.
    Refused(WireError),
}

impl NetError {
    /// As an error of the library, about the thing `what`.
    pub(crate) fn into_client(self, what: &str, address: &str, deadline: Duration) -> ClientError {
        let (what, seconds) = (what.to_owned(), deadline.as_secs());
        match self {
            Self::Remote(error) | Self::Refused(error) => ClientError::Remote { what, error: Refusal::of_wire(error) },
            Self::NotSent(last) => ClientError::Unreachable { what, tried: address.into(), seconds, last },
            Self::Unknown(last) => ClientError::OutcomeUnknown { what, seconds, last, again: None },
        }
    }
    /// There is no room, as opposed to nobody who answers.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Remote(error) if matches!(error.code, ErrorCode::NoSpace | ErrorCode::PgFull))
    }
    pub(crate) fn text(&self) -> String {
        match self {
            Self::NotSent(text) | Self::Unknown(text) => text.clone(),
            Self::Remote(error) | Self::Refused(error) => error.to_string(),
        }
    }
}

/// The process's connections.
#[derive(Clone)]
pub(crate) struct Net {
    way: Way,
    /// How changes of the cluster go out; none: as everything else.
    admin: Option<Arc<AdminWay>>,
}

#[derive(Clone)]
enum Way {
    Rpc(Client),
    /// Servers in the same process, without sockets, so that a test can stop the clock.
    #[cfg(any(test, feature = "test-support"))]
    Local(Arc<dyn LocalServers>),
}

/// An answer on its way.
enum Pending {
    Rpc(cairn_rpc::Call),
    #[cfg(any(test, feature = "test-support"))]
    Local(LocalCall),
}

#[cfg(any(test, feature = "test-support"))]
pub(crate) type LocalCall = std::pin::Pin<Box<dyn Future<Output = Result<cairn_rpc::Response, CallError>> + Send>>;

/// Servers that a test brings. What a call changes is changed when it is made.
#[cfg(any(test, feature = "test-support"))]
pub(crate) trait LocalServers: Send + Sync {
    fn call(&self, address: &str, opcode: u16, message: &[u8], payload: &[u8], deadline: Duration) -> LocalCall;
}

impl Net {
    pub(crate) fn new(client: Client) -> Self {
        Self { way: Way::Rpc(client), admin: None }
    }
    /// Changes of the cluster go out through a server of this machine.
    pub(crate) fn with_admin(self, way: AdminWay) -> Self {
        Self { admin: Some(Arc::new(way)), ..self }
    }
    #[cfg(any(test, feature = "test-support"))]
    pub(crate) fn local(servers: Arc<dyn LocalServers>) -> Self {
        Self { way: Way::Local(servers), admin: None }
    }

    /// It shows the key of an administrator.
    pub(crate) fn is_administrator(&self) -> bool {
        match &self.way {
            Way::Rpc(client) => client.identity().tls().is_some_and(|tls| tls.holder().caller == Caller::Admin),
            #[cfg(any(test, feature = "test-support"))]
            Way::Local(_) => false,
        }
    }

    /// What a map says of a node: whose key it has at its address.
    pub(crate) fn learn_key(&self, node: &cairn_wire::manager::Node) {
        match &self.way {
            Way::Rpc(client) => client.identity().node_keys().learn(node),
            #[cfg(any(test, feature = "test-support"))]
            Way::Local(_) => {}
        }
    }

    /// A call without payloads.
    pub(crate) async fn call<A: prost::Message + Default>(
        &self,
        address: &str,
        opcode: Opcode,
        request: &impl prost::Message,
        deadline: Duration,
    ) -> Result<A, NetError> {
        let answer = self.call_any(address, opcode, EncodedMessage::of(request), deadline).await?;
        answer.read().map_err(|why| NetError::Unknown(format!("{address}: {why}")))
    }

    fn call_any<'a>(
        &'a self,
        address: &'a str,
        opcode: Opcode,
        request: EncodedMessage,
        deadline: Duration,
    ) -> Coming<'a, Result<EncodedMessage, NetError>> {
        Box::pin(self.call_encoded(address, opcode, request, deadline))
    }

    async fn call_encoded(
        &self,
        address: &str,
        opcode: Opcode,
        request: EncodedMessage,
        deadline: Duration,
    ) -> Result<EncodedMessage, NetError> {
        cairn_rpc::client::near::handed_on().await;
        if opcode.is_admin_change()
            && let Some(admin) = &self.admin
            && let Some(outcome) = admin.change(self, address, opcode, &request, deadline).await
        {
            return outcome.map(EncodedMessage::from);
        }
        let options = CallOptions { lane: Lane::Small, ..CallOptions::new(deadline) };
        self.call_with(address, opcode, &request, Payload::None, options).await.map(|(answer, _)| answer)
    }

    /// A call that may carry payloads both ways. It is queued before this returns, so calls of one stream arrive in the
    /// order in which they are made here, whenever their futures are polled.
    pub(crate) fn call_with<A: prost::Message + Default, R: prost::Message>(
        &self,
        address: &str,
        opcode: Opcode,
        request: &R,
        payload: Payload,
        options: CallOptions,
    ) -> impl Future<Output = Result<(A, Option<AlignedBuf>), NetError>> + Send + use<A, R> {
        let trace_id = next_trace_id();
        let call = match &self.way {
            Way::Rpc(client) => {
                Pending::Rpc(client.call(address, opcode.code(), request, payload, options.trace(trace_id)))
            }
            #[cfg(any(test, feature = "test-support"))]
            Way::Local(servers) => {
                let bytes = joined(&payload);
                let message = request.encode_to_vec();
                Pending::Local(servers.call(address, opcode.code(), &message, &bytes, options.deadline))
            }
        };
        async move {
            let answered = match call {
                Pending::Rpc(call) => call.await,
                #[cfg(any(test, feature = "test-support"))]
                Pending::Local(call) => call.await,
            };
            let outcome = answered.and_then(|response| Ok((response.decode()?, response.payload)));
            outcome.map_err(|error| {
                let trace = format_args!("{trace_id:016x}");
                tracing::debug!(%trace, operation = opcode.name(), %error, "a call failed");
                NetError::from(error)
            })
        }
    }
}

#[cfg(any(test, feature = "test-support"))]
fn joined(payload: &Payload) -> Vec<u8> {
    match payload {
        Payload::None => Vec::new(),
        Payload::One(piece) => piece.to_vec(),
        Payload::Many(pieces) => pieces.iter().flat_map(|piece| piece.to_vec()).collect(),
        Payload::Piped(_) => unreachable!("clients send from memory"),
    }
}

/// Number that keeps the calls about one chunk in order.
pub(crate) fn stream_of(chunk: ChunkId) -> u32 {
    chunk.pg.0.wrapping_mul(31).wrapping_add(chunk.index)
}

impl From<CallError> for NetError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Remote(error) => Self::Remote(error),
            // Waiting does not mend it; the same code whichever side noticed.
            CallError::NotSent { cause: NotSent::Refused(refusal), .. }
                if matches!(refusal.code, ErrorCode::WrongCluster | ErrorCode::NotPermitted) =>
            {
                Self::Refused(refusal)
            }
            CallError::NotSent { ref addr, cause: NotSent::Hello(ref hello @ HelloError::WrongCluster { .. }) } => {
                Self::Refused(WireError::new(ErrorCode::WrongCluster, format!("{addr}: {hello}")))
            }
            CallError::NotSent { .. } => Self::NotSent(error.to_string()),
            CallError::Unknown { .. } => Self::Unknown(error.to_string()),
        }
    }
}
