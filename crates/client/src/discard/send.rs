//! Giving back what was written and will never be published: the parts of writers that failed or were dropped.
//!
//! Invariant: only bytes that certainly no file names are discarded. A publish whose outcome is unknown keeps its
//! bytes. What cannot be discarded (the session ended, no partition answers) is garbage that metadata does not name.
use crate::error::Result;
use crate::file_writer::places::Places;
use crate::meta::volume::Volume;
use cairn_types::{BLOCK_SIZE, InodeId, SessionId};
use cairn_wire::Opcode;
use cairn_wire::common::{Empty, Extent, StripeSet};
use cairn_wire::meta::DiscardRequest;

/// Extents of one request.
const EXTENTS_MAX: usize = 1024;

/// What a writer leaves behind.
pub(crate) struct Remains {
    pub session: SessionId,
    pub places: Places,
    /// A file without a name that it made.
    pub unnamed: Option<u64>,
}

impl Volume {
    /// Discards behind the caller's back what a writer left.
    pub(crate) fn discard_later(&self, remains: Remains) {
        // Without a runtime the process ends, and its session with it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let volume = self.clone();
        let mut tasks = self.discards.0.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(
            async move {
                let discarded = volume.discard(remains).await;
                if let Err(error) = &discarded {
                    tracing::debug!(%error, "space of a failed write was left to the garbage scan");
                }
                discarded.is_ok()
            },
            &runtime,
        );
    }
    /// Writers failed or were given up, and what they wrote is on its way to be freed: closing the volume waits for
    /// that.
    pub fn is_freeing(&self) -> bool {
        self.discards.are_under_way()
    }
    /// Discards what chunks that failed left, if there is anything.
    pub(crate) async fn discard_abandoned(&self, session: SessionId) -> Result<()> {
        if self.cluster().abandoned.is_empty() {
            return Ok(());
        }
        let abandoned = self.cluster().abandoned.take(session);
        self.send_discards(session, abandoned, &[]).await
    }

    async fn discard(&self, mut remains: Remains) -> Result<()> {
        let session = remains.session;
        if let Some(inode) = remains.unnamed {
            self.release(inode).await?;
        }
        while remains.places.awaited() > 0 {
            // What failed left its place in the list of abandoned ones.
            let _failed = remains.places.take_one("a failed write").await;
        }
        let extents = std::mem::take(&mut remains.places.extents);
        let sets = remains.places.sets_of(&extents);
        self.send_discards(session, extents, &sets).await?;
        self.discard_abandoned(session).await
    }

    async fn send_discards(&self, session: SessionId, extents: Vec<Extent>, sets: &[StripeSet]) -> Result<()> {
        for part in extents.chunks(EXTENTS_MAX) {
            if self.caller.session().await?.id != session {
                return Ok(());
            }
            let named = |set: &&StripeSet| part.iter().any(|e| (e.pg, e.index) == (set.pg, set.index));
            let sets = sets.iter().filter(named).cloned().collect();
            let request = DiscardRequest { header: None, extents: side_by_side(part), sets, written_by: session.0 };
            let make = |header| DiscardRequest { header: Some(header), ..request };
            self.mutate::<Empty, _>(b"space of a failed write", InodeId::ROOT.0, Opcode::Discard, make).await?;
        }
        Ok(())
    }
}

/// Of several files, so their offsets in the file say nothing: they are laid side by side.
fn side_by_side(extents: &[Extent]) -> Vec<Extent> {
    let block = BLOCK_SIZE as u64;
    let mut at = 0;
    let mut laid = Vec::with_capacity(extents.len());
    for extent in extents {
        let file_offset = at + extent.chunk_offset % block;
        at = (file_offset + extent.length).next_multiple_of(block);
        laid.push(Extent { file_offset, ..*extent });
    }
    laid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeCluster;
    use crate::file_writer::WriteOptions;
    use cairn_env::buf::SharedBuf;
    use cairn_types::Scheme;
    use std::time::Duration;

    /// What a writer had written when it was interrupted at its end would be gone for the ten minutes of the garbage
    /// scan.
    #[tokio::test(start_paused = true)]
    async fn a_writer_that_is_dropped_while_it_waits_gives_back_all_that_it_wrote() {
        const PART: usize = 1 << 20;
        let groups = [3, 2, 2, 2, 2, 2].map(Scheme::Replicated);
        for layout in ["r3", "r2x4/64k"] {
            let cluster = FakeCluster::local(5, &groups);
            let client = cluster.connect_local().await;
            let volume = client.volume("default").await.expect("the volume");
            let layout_of_file = layout.parse().expect("a layout");
            let options =
                WriteOptions { mode: 0o644, mtime_ns: 0, layout: layout_of_file, exclusive: false, owner: None };
            let mut writer = volume.write(b"/f", options).await.expect("begun");
            for _ in 0..6 {
                writer.push(SharedBuf::from_owner(vec![7; PART])).await.expect("pushed");
            }
            cluster.fake.state.lock().slow = (1..=5).map(|disk| (disk, Duration::from_millis(1500))).collect();
            let finished = tokio::time::timeout(Duration::from_millis(500), writer.finish()).await;
            assert!(finished.is_err(), "{layout}: it ended before it could be interrupted");
            assert!(volume.is_freeing());
            assert!(volume.close_within(Duration::from_secs(60)).await, "{layout}: not all was given back");
            let freed: u64 = cluster.fake.state.lock().discarded.iter().map(|extent| extent.length).sum();
            assert_eq!(freed, 6 * PART as u64, "{layout}");
        }
    }

    /// A partition refuses extents that overlap or are not congruent, and then nothing is freed.
    #[test]
    fn places_of_several_files_fit_in_one_request() {
        let extent = |chunk_offset, length| Extent { chunk_offset, length, pg: 1, index: 1, ..Default::default() };
        let laid = side_by_side(&[extent(4096 + 5, 10), extent(0, 5000), extent(7, 1)]);
        let places: Vec<_> = laid.iter().map(|e| (e.file_offset, e.length)).collect();
        assert_eq!(places, [(5, 10), (4096, 5000), (12_288 + 7, 1)]);
    }
}
