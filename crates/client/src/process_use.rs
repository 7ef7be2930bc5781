//! [`ServerUse`]: what a server used so far.
use crate::connect::Client;
use crate::error::Result;
use cairn_wire::Opcode;
use cairn_wire::common::{Empty, ProcessStatsResponse};
use std::time::Duration;

/// Of a process, which may have several roles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerUse {
    pub pid: u32,
    pub cpu_user_us: u64,
    pub cpu_system_us: u64,
    pub resident_bytes: u64,
}

impl Client {
    /// What the process at an address used so far.
    pub async fn server_use(&self, address: &str) -> Result<ServerUse> {
        let deadline = Duration::from_secs(3);
        let found: ProcessStatsResponse =
            self.call(address, address, Opcode::ProcessStats, &Empty {}, deadline).await?;
        let ProcessStatsResponse { cpu_user_us, cpu_system_us, resident_bytes, pid, .. } = found;
        Ok(ServerUse { pid, cpu_user_us, cpu_system_us, resident_bytes })
    }
}
