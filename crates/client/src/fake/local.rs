//! The cluster in memory without sockets: calls are carried out when they are made and answered after as long as
//! servers take, by tokio's clock. With that clock stopped a test of stalls takes no time and is always the same.
use super::{FRONT, Fake, FakeCluster};
use crate::connect::{Client, ConnectOptions};
use crate::net::{LocalCall, LocalServers, Net};
use cairn_env::{AlignedBuf, Clock, FastRng};
use cairn_rpc::{CallError, NotSent, Response, Unknown};
use cairn_types::{ErrorCode, Scheme, Time, WallTime};
use cairn_wire::Opcode;
use cairn_wire::data::AppendRequest;
use prost::Message as _;
use std::sync::Arc;
use std::time::Duration;

/// What a call takes.
const LATENCY: Duration = Duration::from_millis(1);
/// As members and the manager are configured: how long they wait for one that does not answer.
const HOP_DEADLINE: Duration = Duration::from_secs(4);
const SYNC_DEADLINE: Duration = Duration::from_secs(5);
const RESERVE_DEADLINE: Duration = Duration::from_secs(2);
const PROBE_DEADLINE: Duration = Duration::from_millis(300);

/// The clock of tokio, which a test can stop.
struct TokioClock(tokio::time::Instant);

impl Clock for TokioClock {
    fn now(&self) -> Time {
        Time(1_000_000_000 + self.0.elapsed().as_nanos() as u64)
    }
    fn wall(&self) -> WallTime {
        WallTime(1_700_000_000_000_000_000)
    }
}

impl FakeCluster {
    /// As [`FakeCluster::start`], for a test whose clock is stopped.
    pub fn local(disks: u32, groups: &[Scheme]) -> FakeCluster {
        let mut cluster = Self::without_servers(disks, groups);
        for disk in (1..=disks).chain([FRONT]) {
            cluster.fake.state.lock().addresses.insert(disk, format!("local:{disk}"));
        }
        cluster.front = format!("local:{FRONT}");
        cluster
    }
    /// A client without sockets, whose clock is tokio's.
    pub async fn connect_local(&self) -> Client {
        self.connect_local_for(Duration::from_secs(8)).await
    }
    /// One that takes old answers, too.
    #[cfg(test)]
    pub(crate) async fn connect_local_stale(&self, patience: Duration, stale: crate::stale::StaleReads) -> Client {
        let options = ConnectOptions { patience, stale: Some(stale), ..ConnectOptions::new(vec![self.manager()]) };
        let env = (Arc::new(TokioClock(tokio::time::Instant::now())) as _, Arc::new(FastRng::seeded(7)) as _);
        Client::over(Net::local(self.fake.clone()), env, options).await.expect("connected")
    }
    /// One whose calls go through something of the test's own.
    #[cfg(test)]
    pub(crate) async fn connect_through(&self, servers: Arc<dyn LocalServers>) -> Client {
        Self::connect_to(servers, vec![self.manager()]).await
    }
    /// The same, with managers of the test's own.
    #[cfg(test)]
    pub(crate) async fn connect_to(servers: Arc<dyn LocalServers>, managers: Vec<String>) -> Client {
        let options = ConnectOptions { patience: Duration::from_secs(8), ..ConnectOptions::new(managers) };
        Self::try_connect(servers, options).await.expect("connected")
    }
    /// The same, with options of the test's own.
    #[cfg(test)]
    pub(crate) async fn try_connect(servers: Arc<dyn LocalServers>, options: ConnectOptions) -> crate::Result<Client> {
        let env = (Arc::new(TokioClock(tokio::time::Instant::now())) as _, Arc::new(FastRng::seeded(7)) as _);
        Client::over(Net::local(servers), env, options).await
    }
    /// One that tries everything for so long.
    pub async fn connect_local_for(&self, patience: Duration) -> Client {
        let options = ConnectOptions { patience, ..ConnectOptions::new(vec![self.manager()]) };
        let env = (Arc::new(TokioClock(tokio::time::Instant::now())) as _, Arc::new(FastRng::seeded(7)) as _);
        Client::over(Net::local(self.fake.clone()), env, options).await.expect("connected")
    }
}

impl LocalServers for Fake {
    fn call(&self, address: &str, opcode: u16, message: &[u8], payload: &[u8], deadline: Duration) -> LocalCall {
        let addr = address.to_owned();
        let disk = address.strip_prefix("local:").and_then(|n| n.parse().ok());
        let known = disk.filter(|disk| self.state.lock().addresses.contains_key(disk));
        let Some(disk) = known else {
            let cause = NotSent::Connect { why: "nobody listens".into(), retry_in: LATENCY };
            return Box::pin(async move { Err(CallError::NotSent { addr, cause }) });
        };
        let answer = self.answer(disk, opcode, message, payload);
        let slowness = self.state.lock().slow.get(&disk).copied().unwrap_or_default();
        let chain_failed = matches!(&answer, Some(Err(error)) if error.code == ErrorCode::ChainFailed);
        let probed = !self.state.lock().stopped.is_empty() && opcode == Opcode::ReportMember.code();
        let takes = LATENCY
            + match Opcode::from_code(opcode) {
                Some(Opcode::Append) if chain_failed => match AppendRequest::decode(message).map(|r| r.sync) {
                    Ok(true) => SYNC_DEADLINE,
                    _ => HOP_DEADLINE,
                },
                Some(Opcode::Append | Opcode::Sync) if !chain_failed => slowness,
                Some(Opcode::Sync) => SYNC_DEADLINE,
                Some(Opcode::Allocate) if chain_failed => RESERVE_DEADLINE,
                Some(Opcode::ReportMember) if probed => PROBE_DEADLINE,
                _ => Duration::ZERO,
            };
        Box::pin(async move {
            let late = || CallError::Unknown { addr, cause: Unknown::Deadline };
            let Some(answer) = answer.filter(|_| takes <= deadline) else {
                tokio::time::sleep(deadline).await;
                return Err(late());
            };
            tokio::time::sleep(takes).await;
            let (message, bytes) = answer.map_err(CallError::Remote)?;
            let payload = (!bytes.is_empty()).then(|| {
                let mut buffer = AlignedBuf::unpooled(bytes.len());
                buffer.extend_from_slice(&bytes);
                buffer
            });
            Ok(Response { message: message.into(), payload })
        })
    }
}
