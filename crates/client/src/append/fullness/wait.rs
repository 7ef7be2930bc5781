//! [`Fullness`]: how long a writer waits for room in a volume that takes nothing more: as long as space is being freed,
//! but not for ever.
//!
//! A program that writes, syncs and closes meets a full volume at each step. Bounds: [`FULL_PATIENCE`] for the first
//! step, [`SETTLE`] if nothing is being freed; once that was told to somebody no time at all. Not here: who has room
//! (`open`).
use crate::append::target::Target;
use crate::cluster::Cluster;
use crate::meta::call::MetaCaller;
use cairn_types::Time;
use std::sync::Arc;
use std::time::Duration;

/// A full volume in which space is being freed is tried so long.
pub(crate) const FULL_PATIENCE: Duration = Duration::from_secs(12);
/// So long after the last was freed managers know of the room.
const SETTLE: Duration = Duration::from_millis(1500);
/// Between two questions for what is being freed, and the deadline of one.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// One attempt to get room.
pub(crate) struct Fullness {
    /// Since when nobody had any.
    since: Option<Time>,
    /// When something was still being freed, and how much when that was asked last.
    freed_at: Time,
    asked: Option<(Time, u64)>,
}

impl Fullness {
    pub(crate) fn new() -> Self {
        Self { since: None, freed_at: Time(0), asked: None }
    }

    /// Nobody has room. True: that is the answer; false: try again soon.
    pub(crate) async fn is_final(&mut self, cluster: &Arc<Cluster>, target: Target) -> bool {
        let begun = cluster.clock.now();
        if cluster.full.is_known(target, begun) {
            cluster.full.told(target, begun);
            return true;
        }
        let since = *self.since.get_or_insert(begun);
        if self.since == Some(begun) {
            self.freed_at = begun;
        }
        let freeing = match self.asked {
            Some((at, freeing)) if begun.since(at) < ASK_EVERY => freeing,
            _ => being_freed(cluster, target.volume).await,
        };
        let now = cluster.clock.now();
        if self.asked.is_none_or(|(_, before)| before != freeing) {
            tracing::debug!(volume = target.volume, class = %target.class, freeing, "nobody has room");
        }
        self.asked = Some((now, freeing));
        if freeing > 0 {
            self.freed_at = now;
        }
        let patience = cluster.patience.min(FULL_PATIENCE);
        let over = now.since(self.freed_at) > SETTLE || now.since(since) > patience;
        if over {
            cluster.full.told(target, now);
        }
        over
    }
}

/// What the volume's partitions are giving back. One that does not answer may be giving back something.
async fn being_freed(cluster: &Arc<Cluster>, volume: u32) -> u64 {
    let caller = MetaCaller::new(cluster.clone(), volume, Default::default());
    match tokio::time::timeout(ASK_EVERY, caller.counts("what is being freed", false)).await {
        Ok(Ok(answer)) => answer.freeing,
        Ok(Err(_)) | Err(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeCluster;
    use crate::file_writer::WriteOptions;
    use crate::meta::volume::Volume;
    use cairn_env::buf::SharedBuf;
    use cairn_types::{ErrorCode, Layout, Scheme};

    /// Writes a file; how long that took and whether there was room.
    async fn put(volume: &Volume, name: &[u8]) -> (Duration, bool) {
        let started = tokio::time::Instant::now();
        let layout = Layout::replicated(3);
        let options = WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None };
        let mut writer = volume.write(name, options).await.expect("begun");
        let pushed = writer.push(SharedBuf::from_owner(vec![7u8; 20_000])).await;
        let outcome = match pushed {
            Ok(()) => writer.finish().await.map(|_| ()),
            Err(error) => Err(error),
        };
        if let Err(error) = &outcome {
            assert_eq!(error.code(), Some(ErrorCode::NoSpace), "{error}");
        }
        (started.elapsed(), outcome.is_ok())
    }

    async fn start() -> (FakeCluster, Volume) {
        let cluster = FakeCluster::local(3, &[Scheme::Replicated(3); 3]);
        let client = cluster.connect_local_for(Duration::from_secs(60)).await;
        let volume = client.volume("default").await.expect("the volume");
        (cluster, volume)
    }

    /// Each step of a program would wait anew before it hears that the volume is full.
    #[tokio::test(start_paused = true)]
    async fn a_full_volume_is_told_soon_and_then_at_once() {
        let (cluster, volume) = start().await;
        cluster.fake.state.lock().full = true;
        let (took, stored) = put(&volume, b"/a").await;
        assert!(!stored && took < Duration::from_secs(2), "{took:?}");
        for name in [b"/b", b"/c"] {
            let (took, stored) = put(&volume, name).await;
            assert!(!stored && took < Duration::from_millis(300), "{took:?}");
        }
        cluster.fake.state.lock().full = false;
        let (took, stored) = put(&volume, b"/d").await;
        assert!(stored && took < Duration::from_millis(300), "room is found at once: {took:?}");
    }

    /// Who removes something and writes again would hear that there is no room, though it comes back within seconds; or
    /// who writes while others remove would wait again and again.
    #[tokio::test(start_paused = true)]
    async fn what_is_being_freed_is_waited_for_once() {
        let (cluster, volume) = start().await;
        for name in [b"/x", b"/y"] {
            assert!(put(&volume, name).await.1);
        }
        let client = cluster.connect_local_for(Duration::from_secs(60)).await;
        let volume = client.volume("default").await.expect("the volume, without open chunks");
        cluster.fake.state.lock().full = true;
        assert!(!put(&volume, b"/a").await.1);
        // Nobody frees in this cluster: what is removed waits.
        volume.unlink(b"/x").await.expect("removed");
        let (took, stored) = put(&volume, b"/b").await;
        assert!(!stored, "nothing came of it");
        assert!(took > Duration::from_secs(5) && took < Duration::from_secs(13), "{took:?}");
        let (took, stored) = put(&volume, b"/c").await;
        assert!(!stored && took < Duration::from_millis(300), "that is known by now: {took:?}");
        volume.unlink(b"/y").await.expect("removed");
        let room = async {
            tokio::time::sleep(Duration::from_secs(4)).await;
            cluster.fake.state.lock().full = false;
        };
        let ((took, stored), ()) = tokio::join!(put(&volume, b"/d"), room);
        assert!(stored && took < Duration::from_secs(5), "{took:?}");
    }
}
