//! Pings that name a disk: whether it stands still, so that whoever waits for it finds out without waiting longer. The
//! process answers them by itself, whatever its disks do.

use std::time::Duration;

use cairn_rpc::{Reply, Request};
use cairn_types::DiskId;
use cairn_wire::common::{PingRequest, PingResponse};

use super::{Inner, Refused};

/// A disk that has completed nothing for less is not worth another look.
const NOT_YET: Duration = Duration::from_millis(100);

impl Inner {
    pub(super) fn ping(&self, request: &Request<'_>, reply: Reply) -> Result<(), Refused> {
        let asked: PingRequest = match request.decode() {
            Ok(asked) => asked,
            Err(error) => return Err((reply, error)),
        };
        reply.ok(&self.how_is(DiskId(asked.disk)), ());
        Ok(())
    }

    fn how_is(&self, disk: DiskId) -> PingResponse {
        let Some(store) = self.slot(disk).and_then(|slot| slot.store()) else { return PingResponse::default() };
        let (still, limit) = (store.still_for(), store.config.stall_after);
        let left = limit.saturating_sub(still);
        let ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1);
        let stalled = left.is_zero();
        PingResponse { stalled, stalls_in_ms: if stalled || still < NOT_YET { 0 } else { ms } }
    }
}
