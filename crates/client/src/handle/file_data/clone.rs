//! Sharing a range with another open file instead of copying it.
use super::{By, FileData};
use crate::changes::CloneRange;
use crate::error::Result;
use crate::meta::volume::Volume;
use cairn_types::{BLOCK_SIZE, Layout};
use std::sync::Arc;

/// Shorter ranges are copied: that costs as little, and both files stay free to be overwritten in place.
pub const CLONE_MIN: u64 = 64 << 10;

impl FileData {
    /// Whether sharing a range is worth a try.
    pub fn may_clone(&self, source: &FileData, from: u64, to: u64, length: u64) -> bool {
        // One lock at a time: it may be the same file, or a copy in the other direction.
        let own = self.state.lock().attributes.layout;
        let other = source.state.lock().attributes.layout;
        let sets = Layout::from_bits(own).is_none_or(|layout| layout.stripe_width().is_some());
        let block = BLOCK_SIZE as u64;
        length >= CLONE_MIN && own == other && !sets && from % block == to % block
    }

    /// Makes `to..` name the bytes of `from..` of another file (or of this one, apart from it), in both with all that
    /// was written before. Returns how much from the beginning of the range on is done: the rest is to be copied.
    pub async fn clone_from(
        self: &Arc<Self>,
        volume: &Volume,
        source: &Arc<FileData>,
        (from, to, length): (u64, u64, u64),
        mtime_ns: i64,
    ) -> Result<u64> {
        let same = Arc::ptr_eq(self, source);
        // Always in the order of the inodes, whichever is copied to which.
        let (first, second) = if self.inode <= source.inode { (self, source) } else { (source, self) };
        let _first = first.order.lock().await;
        let _second = if same { None } else { Some(second.order.lock().await) };
        source.flush_in_order().await?;
        if !same {
            self.flush_in_order().await?;
        }
        // What a crash may take is not shared.
        source.make_durable().await?;
        self.make_durable().await?;
        if let Err(error) = source.end_lease().await {
            tracing::debug!(inode = source.inode, %error, "the overwrite lease is asked for by the clone");
        }
        let range = CloneRange {
            source: source.inode,
            source_offset: from,
            inode: self.inode,
            offset: to,
            length,
            mtime_ns: Some(mtime_ns),
            ..CloneRange::default()
        };
        let lease = if same { 0 } else { self.lease_number() };
        let Some(cloned) = volume.clone_range_under(&self.shown_as, range, lease).await? else { return Ok(0) };
        let now = self.now();
        self.with(0, |state| {
            state.newer_mtime(&cloned.target);
            state.learn(cloned.target, now, By::Own);
            state.extents.clear();
            state.blocks.cut(to, to + cloned.length);
        });
        if !same {
            source.with(0, |state| {
                // The bytes are the same; that they are shared now is what the extents say.
                state.learn(cloned.source, now, By::Own);
                state.extents.clear();
            });
        }
        Ok(cloned.length)
    }
}
