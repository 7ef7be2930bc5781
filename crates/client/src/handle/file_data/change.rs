//! Changes of the size and holes, in the order of the publishes.
use super::publish::Published;
use super::{By, FileData, TRIES};
use crate::attributes::Attributes;
use crate::changes::SetAttributes;
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use cairn_wire::meta::{PublishRequest, PunchRequest};
use std::sync::Arc;

impl FileData {
    /// Changes attributes, the size among them: cuts the file, or makes it longer with zeros that take no space.
    /// Answers what is published then.
    pub async fn truncate(self: &Arc<Self>, volume: &Volume, set: SetAttributes) -> Result<Attributes> {
        self.send_later().await?;
        let _order = self.order.lock().await;
        let size = set.size.unwrap_or(0);
        let floats = self.state.lock().appended_from.is_some();
        if size == 0 {
            // Nothing of it will be seen.
            self.with(0, |state| {
                state.dirty.truncate(0);
                state.flights.clear();
                state.settle();
            });
        } else if floats {
            self.flush_in_order().await?;
        }
        self.with(0, |state| {
            state.dirty.truncate(size);
            state.settle();
        });
        self.settle_flights().await?;
        let answer = volume.setattr_under(self.inode, &self.shown_as, set, self.lease_number()).await?;
        let now = self.now();
        self.with(0, |state| {
            let before = state.attributes.size;
            state.was_cut |= size < before;
            state.newer_mtime(&answer);
            if state.learn(answer, now, By::Own) {
                state.extents.punch(size.min(before), u64::MAX);
                state.blocks.cut(size.min(before), u64::MAX);
            }
        });
        Ok(answer)
    }
    /// Waits until no flight is under way; what has to be written again is.
    async fn settle_flights(self: &Arc<Self>) -> Result<()> {
        for _ in 0..TRIES {
            let Some(last) = self.last_flight() else { return Ok(()) };
            if self.publish_in_order(last).await? == Published::All {
                return Ok(());
            }
            self.begin_all();
        }
        Err(ClientError::Changed { what: self.what() })
    }
    /// Cuts a range out; `extend`: the file becomes at least as long as its end.
    pub async fn punch(self: &Arc<Self>, volume: &Volume, offset: u64, length: u64, extend: bool) -> Result<()> {
        self.send_later().await?;
        let _order = self.order.lock().await;
        let end = offset + length;
        let floats = self.state.lock().appended_from.is_some();
        if floats || !extend && end > self.state.lock().attributes.size {
            // The size that the file has by what is dirty stays.
            self.flush_in_order().await?;
        }
        self.with(0, |state| {
            state.dirty.cut(offset, end);
            state.settle();
        });
        self.settle_flights().await?;
        let request = PunchRequest { offset, length, extend, lease: self.lease_number(), ..Default::default() };
        let answer = volume.punch(self.inode, &self.shown_as, request).await?;
        let now = self.now();
        self.with(0, |state| {
            state.newer_mtime(&answer);
            if state.learn(answer, now, By::Own) {
                state.extents.punch(offset, end);
                state.blocks.cut(offset, end);
            }
        });
        Ok(())
    }
    /// Makes the file at least so long.
    pub async fn extend(self: &Arc<Self>, volume: &Volume, size: u64) -> Result<()> {
        self.send_later().await?;
        let _order = self.order.lock().await;
        if self.state.lock().appended_from.is_some() {
            self.flush_in_order().await?;
        }
        if self.state.lock().attributes.size >= size {
            return Ok(());
        }
        let request = PublishRequest { size, ..Default::default() };
        let answer = volume.publish(self.inode, &self.shown_as, request).await?;
        let now = self.now();
        self.with(0, |state| {
            let before = state.attributes.size;
            if state.learn(answer, now, By::Own) {
                state.extents.punch(before, u64::MAX);
                state.blocks.cut(before, u64::MAX);
            }
        });
        Ok(())
    }
}
