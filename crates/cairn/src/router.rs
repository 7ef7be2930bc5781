//! One RPC port for all roles of a process: requests go to the role that serves their range of operations.
//!
//! The port is open before the roles run, since a node has to know its address to register; until then requests are
//! answered `Unavailable`, which callers repeat.
use cairn_env::{Clock, RealClock};
use cairn_rpc::{Payload, Reply, Request, Service};
use cairn_telemetry::ProcessUse;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::{PingResponse, ProcessStatsResponse};
use cairn_wire::error::WireError;
use std::sync::{Arc, OnceLock};

/// A role's share of the operations.
type Slot = OnceLock<Arc<dyn Service>>;

/// Routes by the high byte of the operation: 1 raft, 2 manager, 3 data, 4 and 5 meta, 6 work of data nodes with files.
#[derive(Default)]
pub struct Router {
    pub raft: Slot,
    pub manager: Slot,
    pub data: Slot,
    pub meta: Slot,
    pub jobs: Slot,
    /// Roles that this process will have, to tell "not yet" from "never".
    pub roles: Vec<String>,
}

impl Router {
    fn slot(&self, opcode: u16) -> Option<(&Slot, &'static str)> {
        Some(match opcode >> 8 {
            1 => (&self.raft, "raft"),
            2 => (&self.manager, "manager"),
            3 => (&self.data, "data"),
            4 | 5 => (&self.meta, "meta"),
            6 => (&self.jobs, "data"),
            _ => return None,
        })
    }

    fn process(&self, opcode: u16, reply: Reply) {
        match Opcode::from_code(opcode) {
            Some(Opcode::Ping) => reply.ok(&PingResponse::default(), Payload::None),
            Some(Opcode::ProcessStats) => {
                let used = ProcessUse::now();
                let answer = ProcessStatsResponse {
                    cpu_user_us: used.cpu_user_us,
                    cpu_system_us: used.cpu_system_us,
                    resident_bytes: used.resident_bytes,
                    uptime_ms: 0,
                    version: env!("CARGO_PKG_VERSION").into(),
                    roles: self.roles.clone(),
                    pid: std::process::id(),
                    wall_ns: RealClock.wall().0,
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
        // Only the data service knows how a disk is.
        let of_disk = request.opcode == Opcode::Ping.code() && !request.message.is_empty();
        if let Some(data) = self.data.get().filter(|_| of_disk) {
            return data.call(request, reply);
        }
        let Some((slot, role)) = self.slot(request.opcode) else {
            return self.process(request.opcode, reply);
        };
        match slot.get() {
            Some(service) => service.call(request, reply),
            None if role == "raft" || self.roles.iter().any(|r| r == role) => {
                let text = format!("the {role} role of this process is still starting; repeat in a moment");
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
