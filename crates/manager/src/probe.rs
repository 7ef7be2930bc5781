//! Probes: whether a node answers, whether a member of a placement group does.
//!
//! Probes of one disk are shared: thousands of clients that report the same member cause one. Not here: what follows
//! from an outcome (`ops/report.rs`, `duties/watch.rs`).
use crate::manager::Manager;
use cairn_manager_core::liveness::ProbeOutcome;
use cairn_rpc::{CallError, CallOptions, NotSent};
use cairn_types::{DiskId, ErrorCode, PgId};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::data::ListChunksRequest;
use cairn_wire::error::WireError;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

/// Longest pause before the second attempt of a probe.
const RECONNECT_PAUSE_MAX: Duration = Duration::from_millis(300);

/// Probes of disks under way.
pub(crate) type Probes = BTreeMap<DiskId, Arc<OnceCell<ProbeOutcome>>>;

impl Manager {
    /// Whether the process at `address` answers.
    pub(crate) async fn probe_node(&self, address: &str, deadline: Duration) -> ProbeOutcome {
        self.metrics.probes.add(1);
        let outcome = match self.reach(address, Opcode::Ping, &Empty {}, deadline).await {
            Ok(()) | Err(Unreached::Refusal(_)) => ProbeOutcome::Alive,
            Err(Unreached::Silent) => ProbeOutcome::Silent,
            Err(Unreached::Nobody) => ProbeOutcome::Refused,
        };
        self.count(outcome)
    }

    /// Whether the member of `pg` on `disk`, at `address`, answers as a healthy one does.
    pub(crate) async fn probe_member(&self, address: &str, pg: PgId, disk: DiskId, deadline: Duration) -> ProbeOutcome {
        let cell = self.probes.lock().entry(disk).or_default().clone();
        let outcome = *cell.get_or_init(|| self.ask_member(address, pg, disk, deadline)).await;
        let mut probes = self.probes.lock();
        if probes.get(&disk).is_some_and(|present| Arc::ptr_eq(present, &cell)) {
            probes.remove(&disk);
        }
        outcome
    }

    async fn ask_member(&self, address: &str, pg: PgId, disk: DiskId, deadline: Duration) -> ProbeOutcome {
        self.metrics.probes.add(1);
        let request = ListChunksRequest {
            disk: disk.get(),
            pg: pg.get(),
            from_start: true,
            count_max: 1,
            ..ListChunksRequest::default()
        };
        let outcome = match self.reach(address, Opcode::ListChunks, &request, deadline).await {
            Ok(()) => ProbeOutcome::Alive,
            Err(Unreached::Refusal(error)) => match error.code {
                // The process lives, but this disk does not serve.
                ErrorCode::DiskFailed | ErrorCode::Internal => ProbeOutcome::Silent,
                ErrorCode::Unavailable => ProbeOutcome::Starting,
                _ => ProbeOutcome::Alive,
            },
            Err(Unreached::Silent) => ProbeOutcome::Silent,
            Err(Unreached::Nobody) => ProbeOutcome::Refused,
        };
        self.count(outcome)
    }

    /// One call. The client waits between attempts to connect and fails calls meanwhile: then this looks for itself
    /// whether somebody listens, and calls again if so.
    async fn reach(
        &self,
        address: &str,
        opcode: Opcode,
        request: &impl prost::Message,
        deadline: Duration,
    ) -> Result<(), Unreached> {
        for last in [false, true] {
            let call = self.client.call(address, opcode.code(), request, (), CallOptions::new(deadline));
            let pause = match call.await {
                Ok(_) => return Ok(()),
                Err(CallError::Remote(error)) => return Err(Unreached::Refusal(error)),
                Err(CallError::NotSent { cause: NotSent::Connect { retry_in, .. }, .. }) if !last => retry_in,
                Err(CallError::NotSent { cause: NotSent::Disconnected { .. }, .. }) if !last => Duration::ZERO,
                Err(_) => return Err(Unreached::Silent),
            };
            match tokio::time::timeout(deadline, TcpStream::connect(address)).await {
                Ok(Ok(_)) => tokio::time::sleep(pause.min(RECONNECT_PAUSE_MAX)).await,
                Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => return Err(Unreached::Nobody),
                _ => return Err(Unreached::Silent),
            }
        }
        Err(Unreached::Silent)
    }

    fn count(&self, outcome: ProbeOutcome) -> ProbeOutcome {
        if matches!(outcome, ProbeOutcome::Silent | ProbeOutcome::Refused) {
            self.metrics.probes_failed.add(1);
        }
        outcome
    }
}

/// Why a probe was not answered as it should.
enum Unreached {
    /// With an error: the process lives.
    Refusal(WireError),
    /// Not in time.
    Silent,
    /// Nobody listens at the address.
    Nobody,
}
