//! One RPC port for all roles of a process: requests go to the role that serves their range of operations.
//!
//! The port is open before the roles run, since a node has to know its address to register; until then requests are
//! answered `Unavailable`, which callers repeat.
use cairn_env::{Clock, RealClock};
use cairn_rpc::admin_socket::SOCKET_FILE;
use cairn_rpc::{Payload, Reply, Request, Service};
use cairn_telemetry::ProcessUse;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::audience::Caller;
use cairn_wire::common::{PingResponse, ProcessStatsResponse};
use cairn_wire::error::WireError;
use cairn_wire::hello::PeerKind;
use cairn_wire::holder::Holder;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// A role's share of the operations.
type Slot = OnceLock<Arc<dyn Service>>;

/// Routes by the high byte of the operation: 1 raft, 2 manager, 3 data, 4 and 5 meta, 6 work of data nodes with files,
/// 7 manager.
#[derive(Default)]
pub struct Router {
    pub raft: Slot,
    pub manager: Slot,
    pub data: Slot,
    pub meta: Slot,
    pub jobs: Slot,
    /// Roles that this process will have, to tell "not yet" from "never".
    pub roles: Vec<String>,
    /// Changes of the cluster are taken from anybody, not from other servers alone.
    pub admin_over_tcp: bool,
    /// Where they come in on this machine.
    pub admin_socket: OnceLock<PathBuf>,
}

impl Router {
    fn slot(&self, opcode: u16) -> Option<(&Slot, &'static str)> {
        Some(match opcode >> 8 {
            1 => (&self.raft, "raft"),
            2 => (&self.manager, "manager"),
            3 => (&self.data, "data"),
            4 | 5 => (&self.meta, "meta"),
            7 => (&self.manager, "manager"),
            6 => (&self.jobs, "data"),
            _ => return None,
        })
    }

    /// Why a change of the cluster is not taken here from this peer, if it is not. A server passes on what came in on
    /// its socket.
    fn admin_refusal(&self, opcode: u16, peer: PeerKind, holder: Option<&Holder>) -> Option<WireError> {
        let change = Opcode::from_code(opcode).filter(|opcode| opcode.is_admin_change())?;
        let is_admin = holder.is_some_and(|holder| holder.caller == Caller::Admin);
        if self.admin_over_tcp || peer == PeerKind::Server || is_admin {
            return None;
        }
        let socket = match self.admin_socket.get() {
            Some(path) => format!("here {}", path.display()),
            None => format!("{SOCKET_FILE} in its directory"),
        };
        let text = format!(
            "{} changes the cluster: servers take it from root and from their own user (uid {}), on a socket of their machine ({socket}); run the \
             command on a machine of the cluster's servers as one of them (sudo), or set node.admin_over_tcp = true: then everybody who \
             reaches the port may change the cluster",
            change.name(),
            rustix::process::geteuid().as_raw()
        );
        Some(WireError::new(ErrorCode::NotPermitted, text))
    }

    /// `is_tenant`: where to change the cluster is none of his.
    fn process(&self, opcode: u16, is_tenant: bool, reply: Reply) {
        match Opcode::from_code(opcode) {
            Some(Opcode::Ping) => reply.ok(&PingResponse::default(), Payload::None),
            Some(Opcode::ProcessStats) => {
                let used = ProcessUse::now();
                let socket = self.admin_socket.get().filter(|_| !is_tenant);
                let answer = ProcessStatsResponse {
                    cpu_user_us: used.cpu_user_us,
                    cpu_system_us: used.cpu_system_us,
                    resident_bytes: used.resident_bytes,
                    uptime_ms: 0,
                    version: env!("CARGO_PKG_VERSION").into(),
                    roles: self.roles.clone(),
                    pid: std::process::id(),
                    wall_ns: RealClock.wall().0,
                    admin_socket: socket.map(|path| path.display().to_string()).unwrap_or_default(),
                };
                reply.ok(&answer, Payload::None);
            }
            _ => reply.err(refusal(opcode)),
        }
    }
}

fn refusal(opcode: u16) -> WireError {
    let name = Opcode::from_code(opcode).map_or("an operation of a later version", Opcode::name);
    WireError::new(ErrorCode::UnknownOperation, format!("{name} ({opcode:#06x}) is not served by this process"))
}

impl Service for Router {
    fn call(&self, request: Request<'_>, reply: Reply) {
        if let Some(error) = self.admin_refusal(request.opcode, request.peer.hello.kind, request.peer.holder.as_ref()) {
            return reply.err(error);
        }
        // Only the data service knows how a disk is.
        let of_disk = request.opcode == Opcode::Ping.code() && !request.message.is_empty();
        if let Some(data) = self.data.get().filter(|_| of_disk) {
            return data.call(request, reply);
        }
        let Some((slot, role)) = self.slot(request.opcode) else {
            return self.process(request.opcode, request.peer.limits().is_some(), reply);
        };
        match slot.get() {
            Some(service) => service.call(request, reply),
            None if role == "raft" || self.roles.iter().any(|r| r == role) => {
                let begins = if role == "manager" { "; a new cluster begins when all its managers answer" } else { "" };
                let text = format!("the {role} role of this process is still starting{begins}; repeat in a moment");
                reply.err(WireError::new(ErrorCode::Unavailable, text));
            }
            None => reply.err(refusal(request.opcode)),
        }
    }

    fn batch_end(&self) {
        for slot in [&self.raft, &self.manager, &self.data, &self.meta, &self.jobs] {
            if let Some(service) = slot.get() {
                service.batch_end();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any user of any machine that reaches a server could delete volumes; or servers, and what they pass on, be
    /// refused.
    #[test]
    fn changes_of_the_cluster_are_taken_over_tcp_from_servers_alone() {
        let closed = Router::default();
        let open = Router { admin_over_tcp: true, ..Router::default() };
        for opcode in Opcode::ALL {
            for (peer, wanted) in [
                (PeerKind::Client, opcode.is_admin_change()),
                (PeerKind::Tool, opcode.is_admin_change()),
                (PeerKind::Server, false),
            ] {
                let refused = closed.admin_refusal(opcode.code(), peer, None);
                assert_eq!(refused.is_some(), wanted, "{} from {peer:?}", opcode.name());
                assert!(refused.is_none_or(|error| error.code == ErrorCode::NotPermitted));
                assert!(open.admin_refusal(opcode.code(), peer, None).is_none(), "where the configuration says so");
            }
        }
        assert!(closed.admin_refusal(0x7fff, PeerKind::Client, None).is_none(), "what nobody knows is refused as that");
    }
}
