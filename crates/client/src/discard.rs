//! What is to be given back because no file will name it: places of what was sent again elsewhere because a chunk
//! failed, and the discards that are on their way.
//!
//! Bounds: [`ABANDONED_MAX`] places wait for the next discard, the oldest are forgotten. Not here: what is given back
//! (`send`).
pub(crate) mod send;

use cairn_types::{ChunkId, ExtentKind, SessionId};
use cairn_wire::common::Extent;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::task::JoinSet;

/// Places that wait to be discarded.
const ABANDONED_MAX: usize = 4096;
/// The end of a session waits so long for its discards.
pub(crate) const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// Places in chunks that failed: their bytes were sent again.
#[derive(Default)]
pub(crate) struct Abandoned(Mutex<VecDeque<(SessionId, Extent)>>);

impl Abandoned {
    pub(crate) fn add(&self, session: SessionId, chunk: ChunkId, kind: ExtentKind, offset: u64, length: u64) {
        let mut list = self.0.lock();
        let (pg, index, flags) = (chunk.pg.0, chunk.index, kind.to_flags());
        if let Some((owner, last)) = list.back_mut()
            && (*owner, last.pg, last.index) == (session, pg, index)
            && last.chunk_offset + last.length == offset
        {
            last.length += length;
            return;
        }
        if list.len() == ABANDONED_MAX {
            list.pop_front();
        }
        list.push_back((session, Extent { file_offset: 0, length, pg, index, chunk_offset: offset, flags }));
    }
    fn take(&self, session: SessionId) -> Vec<Extent> {
        let mut list = self.0.lock();
        let (own, others): (Vec<_>, Vec<_>) = list.drain(..).partition(|(owner, _)| *owner == session);
        list.extend(others);
        own.into_iter().map(|(_, extent)| extent).collect()
    }
    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// Discards of a volume that are on their way.
#[derive(Default)]
pub(crate) struct Discards(Mutex<JoinSet<bool>>);

impl Discards {
    /// Waits for all, but no longer than that. False: something was left to the garbage scan.
    pub(crate) async fn finish(&self, patience: Duration) -> bool {
        let mut tasks = std::mem::take(&mut *self.0.lock());
        let all = async {
            let mut all_done = true;
            while let Some(done) = tasks.join_next().await {
                all_done &= done.unwrap_or(false);
            }
            all_done
        };
        let done = tokio::time::timeout(patience, all).await.unwrap_or(false);
        if !done {
            tracing::debug!("space of failed writes was left to the garbage scan");
        }
        done
    }
    fn are_under_way(&self) -> bool {
        !self.0.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::PgId;

    /// The list would grow without bound, or give one session's places to another.
    #[test]
    fn abandoned_places_join_and_belong_to_a_session() {
        let abandoned = Abandoned::default();
        let chunk = ChunkId { pg: PgId(3), index: 4 };
        for i in 0..4 {
            abandoned.add(SessionId(1), chunk, ExtentKind::Plain, i * 4096, 4096);
        }
        abandoned.add(SessionId(2), chunk, ExtentKind::Plain, 1 << 20, 10);
        assert_eq!(abandoned.take(SessionId(1)).iter().map(|e| e.length).collect::<Vec<_>>(), [4 * 4096]);
        for i in 0..2 * ABANDONED_MAX as u64 {
            abandoned.add(SessionId(1), chunk, ExtentKind::Plain, i * 8192, 4096);
        }
        assert!(abandoned.take(SessionId(1)).len() <= ABANDONED_MAX);
        assert!(abandoned.take(SessionId(1)).is_empty());
    }
}
