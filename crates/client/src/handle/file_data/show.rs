//! Closing a file before it is durable: it is published when all serving members have it in memory, and made durable
//! behind.
//!
//! Only what is added to a file goes this way: what replaces bytes of it, is appended where others may append, or
//! follows a cut is durable first, so a crash leaves the file of before, a part of what was added, or all of it.
//! Looking after it is the volume's ([`crate::volatile`]).
use super::FileData;
use super::publish::Published;
use crate::error::{ClientError, Result};
use crate::volatile::Shown;
use cairn_types::{ErrorCode, SessionId};
use cairn_wire::common::Extent;
use std::sync::Arc;
use std::time::Duration;

/// Between two questions whether another client's bytes are durable.
const ASK_EVERY: Duration = Duration::from_millis(250);

impl FileData {
    /// Makes everything that was written visible; durable, too, what cannot be made so later.
    pub async fn show(self: &Arc<Self>) -> Result<()> {
        if self.is_settled() {
            return Ok(());
        }
        {
            let _order = self.order.lock().await;
            if self.begin_shown() {
                match self.publish_in_order(u64::MAX).await {
                    Ok(Published::All) => return Ok(()),
                    Ok(Published::WriteAgain) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.finish().await
    }
    /// What the extents name is looked after from now on.
    pub(super) fn were_shown(&self, session: SessionId, extents: &[Extent], shown: Option<Vec<Shown>>) {
        let end = extents.last().map_or(0, |extent| extent.file_offset + extent.length);
        if let Some(shown) = shown {
            self.volume.volatile.add(self.inode, session, end, shown, self.now());
        }
    }
    /// What this client made visible before it was durable becomes durable.
    pub(super) async fn make_durable(&self) -> Result<()> {
        if self.volume.has_volatile(self.inode) {
            self.volume.make_durable(self.inode).await.map_err(|e| self.named(e))?;
        }
        Ok(())
    }
    /// As [`flush`](Self::flush), and what others closed before it was durable has become so.
    pub async fn sync(self: &Arc<Self>) -> Result<()> {
        self.flush().await?;
        if self.state.lock().attributes.volatile_of == 0 {
            return Ok(());
        }
        // Their client makes it durable in some seconds; if it died, the partition cuts off what is lost.
        let (clock, patience) = (&self.volume.cluster().clock, self.volume.cluster().patience);
        let begun = clock.now();
        loop {
            if self.refresh().await?.volatile_of == 0 {
                return Ok(());
            }
            if clock.now().since(begun) > patience {
                let text = "another client closed it before it was durable, and it is not yet; sync it again";
                return Err(ClientError::remote(&self.what(), ErrorCode::DeadlineExceeded, text));
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
}
