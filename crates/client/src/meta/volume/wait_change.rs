//! Waiting for a file to change: a request that is parked at the leader of its partition.
use super::Volume;
use crate::attributes::Attributes;
use crate::error::Result;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::meta::{AttributesResponse, WaitChangeRequest};
use std::time::Duration;

/// One request waits no longer: its deadline has to be behind that.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Servers that cannot wait are asked so often.
const POLL: Duration = Duration::from_secs(1);

impl Volume {
    /// The attributes of a file when its contents or size are not those of that `data_version` any more, or after
    /// `at_most`. Dropping the future ends the wait.
    pub async fn wait_change(&self, inode: u64, data_version: u64, at_most: Duration) -> Result<Attributes> {
        let clock = self.cluster().clock.clone();
        let begun = clock.now();
        loop {
            let left = at_most.saturating_sub(clock.now().since(begun));
            let wait_ms = u32::try_from(left.min(WAIT_MAX).as_millis()).unwrap_or(u32::MAX);
            let request = |header| WaitChangeRequest { header: Some(header), inode, data_version, wait_ms };
            let what = format!("inode {inode}");
            let answer: Result<AttributesResponse> =
                self.caller.read_by(&what, inode, Opcode::WaitChange, request).await;
            let found = match answer {
                Ok(answer) => Attributes::of_answer(answer.attributes).map_err(|odd| odd.of(&what))?,
                Err(error) if error.code() == Some(ErrorCode::UnknownOperation) => {
                    tokio::time::sleep(left.min(POLL)).await;
                    self.getattr(inode).await?
                }
                Err(error) => return Err(error),
            };
            if found.data_version != data_version || clock.now().since(begun) >= at_most {
                return Ok(found);
            }
        }
    }
}
