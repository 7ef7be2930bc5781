//! [`AdminWay`]: changes of the cluster go through a server of this machine, which looks who asks.
//!
//! Which one is told by the servers: each says where its admin socket is, and the path is good if it can be reached
//! here. With the same directories on all machines that is the one of this machine, whoever leads; it passes requests
//! on to whom they are for. Where none can be reached a request goes out as any other: the server decides, and says
//! what it wants. Whoever shows an administrator's key goes out by himself. Not here: who may (the server of the
//! socket, `cairn_rpc::admin_socket`).
use crate::encoded_message::EncodedMessage;
use crate::net::{Net, NetError};
use bytes::Bytes;
use cairn_rpc::admin_socket::{is_reachable, relay};
use cairn_rpc::{CallOptions, Payload};
use cairn_wire::Opcode;
use cairn_wire::common::{Empty, ProcessStatsResponse};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::OnceCell;

/// A server that does not answer is not waited for longer when it is asked for its socket.
const ASK_MAX: Duration = Duration::from_secs(1);

/// How a client sends changes of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AdminVia {
    /// Through this socket and no other way.
    Socket(PathBuf),
    /// Through one that servers name and that can be reached here, if there is one.
    Find,
}

/// The way of one client.
pub(crate) struct AdminWay {
    via: AdminVia,
    /// Who is asked for sockets, after the one that a request is for.
    managers: Vec<String>,
    found: OnceCell<PathBuf>,
}

impl AdminWay {
    pub(crate) fn new(via: AdminVia, managers: Vec<String>) -> Self {
        Self { via, managers, found: OnceCell::new() }
    }

    /// The answer to a change, or why there is none. `None`: no server of this machine is there for it.
    pub(crate) async fn change(
        &self,
        net: &Net,
        address: &str,
        opcode: Opcode,
        request: &EncodedMessage,
        deadline: Duration,
    ) -> Option<Result<Bytes, NetError>> {
        let (socket, given) = match &self.via {
            AdminVia::Socket(path) => (path, true),
            // Who shows an administrator's key needs nobody to speak for him, and is named in the servers' logs.
            AdminVia::Find if net.is_administrator() => return None,
            AdminVia::Find => (self.find(net, address).await?, false),
        };
        match relay(socket, address, opcode, request.to_vec(), deadline).await {
            Ok(outcome) => Some(outcome.map_err(NetError::from)),
            Err(error) if given => {
                let path = socket.display();
                Some(Err(NetError::NotSent(format!(
                    "the admin socket {path}: {error}; is its server running, and are you root or its user?"
                ))))
            }
            // Its server has ended meanwhile.
            Err(_) => None,
        }
    }

    async fn find(&self, net: &Net, address: &str) -> Option<&PathBuf> {
        let search = async {
            for server in std::iter::once(address).chain(self.managers.iter().map(String::as_str)) {
                let options = CallOptions::new(ASK_MAX);
                let told = net.call_with(server, Opcode::ProcessStats, &Empty {}, Payload::None, options).await;
                let told: ProcessStatsResponse = told.map(|(told, _)| told).unwrap_or_default();
                let path = PathBuf::from(told.admin_socket);
                if path.is_absolute() && is_reachable(&path).await {
                    return Ok(path);
                }
            }
            Err(())
        };
        self.found.get_or_try_init(|| search).await.ok()
    }
}
