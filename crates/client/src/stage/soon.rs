//! Encoding of files for which somebody waits: the leaders of their partitions are asked to have them encoded together,
//! where they lie, and are asked again until they say that this is done, or comes to nothing. What is left then is for
//! whoever waits to encode file by file.
//!
//! Bound: the files of a call. Not here: how they are encoded (`together`), and which are taken (`meta`).
use super::EncodeOutcome::Done;
use super::{Asked, EncodedPart, Waiting, waiting};
use crate::attributes::Attributes;
use crate::convert::{ConversionControl, is_race};
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use cairn_types::{ErrorCode, Layout, Scheme, Stage};
use cairn_wire::Opcode;
use cairn_wire::meta::{EncodeSoonRequest, EncodeSoonResponse};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Files that wait again at a time.
const FILES_AT_ONCE: usize = 16;
/// Files of one question.
const ASKED_MAX: usize = 1024;
const PAUSE: Duration = Duration::from_millis(500);
/// Files of which none was encoded for so long are not waited for any more.
const PATIENCE: Duration = Duration::from_secs(600);

impl Volume {
    /// Has files encoded together as far as that can be; what became of those for which it was. All others are as they
    /// were, but that those that were kept as copies wait again where others may be put together with them.
    pub async fn encode_with_others(
        &self,
        files: &[Attributes],
        control: &ConversionControl,
    ) -> Result<BTreeMap<u64, EncodedPart>> {
        let is_kept = |file: &&Attributes| Layout::from_bits(file.layout).map(Layout::stage) == Some(Stage::Kept);
        let kept: Vec<_> = files.iter().filter(is_kept).map(|file| (self.clone(), *file)).collect();
        let again = kept.into_iter().map(|(volume, file)| async move { volume.wait_again(file).await });
        stream::iter(again).buffer_unordered(FILES_AT_ONCE).try_collect::<()>().await?;
        let mut waiting: Vec<u64> = files.iter().map(|file| file.inode).collect();
        let mut taken = BTreeSet::new();
        let mut progress = Instant::now();
        while !control.is_stopped() && progress.elapsed() < PATIENCE {
            let left = self.encode_soon(&waiting).await?;
            taken.extend(left.iter().copied());
            if left.is_empty() {
                break;
            }
            if left.len() < waiting.len() {
                progress = Instant::now();
            }
            waiting = left;
            sleep(PAUSE).await;
        }
        let taken: Vec<u64> = taken.into_iter().collect();
        let found = self.getattr_many(&taken).await?;
        Ok(found.iter().filter_map(|file| Some((file.inode, encoded(file)?))).collect())
    }

    /// A file that was kept as copies, as encoding it by itself saves too little, waits again if it lies in a column.
    async fn wait_again(&self, found: Attributes) -> Result<()> {
        let Some(file) = waiting(found, Asked::Now) else { return Ok(()) };
        match self.may_be_put_together(&file).await {
            Ok(false) => Ok(()),
            Ok(true) => match self.set_stage(&file, Stage::Copies).await {
                // It was written or removed meanwhile, or is somebody else's.
                Err(error) if is_race(&error) || error.code().is_some() => Ok(()),
                outcome => outcome,
            },
            Err(error) if error.code().is_some() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether some of it lies in a column of its later scheme.
    pub(super) async fn may_be_put_together(&self, file: &Waiting) -> Result<bool> {
        let page = self.extents_to_move(file.found.inode, 0).await?;
        let (view, later) = (self.cluster().view(), file.later.scheme());
        let column = |pg: u32| view.pgs.get(&pg).and_then(|group| group.column.as_ref());
        Ok(page.extents.iter().any(|extent| column(extent.pg).is_some_and(|column| column.later == later)))
    }

    /// Those of the files that are to be waited for.
    async fn encode_soon(&self, inodes: &[u64]) -> Result<Vec<u64>> {
        let mut parts: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for inode in inodes {
            parts.entry(self.partition_of(*inode).await?).or_default().push(*inode);
        }
        let mut waiting = Vec::new();
        for (partition, inodes) in parts {
            for part in inodes.chunks(ASKED_MAX) {
                waiting.extend(self.encode_soon_in(partition, part.to_vec()).await?);
            }
        }
        Ok(waiting)
    }

    async fn encode_soon_in(&self, partition: u32, inodes: Vec<u64>) -> Result<Vec<u64>> {
        let what = format!("encoding of {} files of partition p{partition}", inodes.len());
        let request = EncodeSoonRequest { header: Some(self.caller.read_header(partition)), inodes };
        let answer: Result<EncodeSoonResponse> = self.caller.read(&what, partition, Opcode::EncodeSoon, request).await;
        match answer {
            Ok(answer) => Ok(answer.waiting),
            Err(error) if encodes_by_file(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// Its leader is of a build that encodes by file alone; or the files are in other partitions by now.
fn encodes_by_file(error: &ClientError) -> bool {
    matches!(error.code(), Some(ErrorCode::UnknownOperation | ErrorCode::UnknownPartition))
}

/// What became of a file that was waited for, if it is encoded.
fn encoded(file: &Attributes) -> Option<EncodedPart> {
    let layout = Layout::from_bits(file.layout).filter(|layout| layout.stage() == Stage::Encoded)?;
    let moved = file.stored_bytes;
    Some(EncodedPart { moved, freed: freed(layout, moved), files: 1, ..EncodedPart::nothing(Done) })
}

/// What so many bytes of a file take less on all disks as shards of its later scheme than as the copies of before.
fn freed(layout: Layout, bytes: u64) -> u64 {
    let copies = layout.fresh().scheme().members() as u64;
    match layout.staged() {
        Some(Scheme::Erasure { k, m }) => (bytes * copies).saturating_sub(bytes * u64::from(k + m) / u64::from(k)),
        _ => 0,
    }
}

impl EncodedPart {
    /// With what others have encoded of the file, which was as `before` when it was asked for: who encodes it by itself
    /// finds only the rest.
    pub fn with_others(self, before: &Attributes) -> EncodedPart {
        let layout = Layout::from_bits(before.layout).filter(|layout| layout.stage() == Stage::Copies);
        let Some(layout) = layout.filter(|_| self.outcome == Done) else { return self };
        let others = before.stored_bytes.saturating_sub(self.moved);
        EncodedPart { moved: self.moved + others, freed: self.freed + freed(layout, others), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::EncodeOutcome;

    fn file(layout: &str, stage: Stage) -> Attributes {
        let layout: Layout = layout.parse().expect("a layout");
        Attributes { stored_bytes: 12 << 20, layout: layout.in_stage(stage).to_bits(), ..Attributes::default() }
    }

    #[test]
    fn what_comes_back_is_what_the_copies_of_before_took() {
        for (layout, copies, shards_of_two) in [("r3>rs-6-3", 3, 3), ("r2>rs-4-2", 2, 3), ("r3>rs-10-4", 3, 0)] {
            let part = encoded(&file(layout, Stage::Encoded)).expect("it is encoded");
            let all = 12_u64 << 20;
            let shards = if shards_of_two == 0 { all * 14 / 10 } else { all * shards_of_two / 2 };
            assert_eq!((part.moved, part.freed), (all, all * copies - shards), "{layout}");
        }
        assert_eq!(encoded(&file("r3>rs-6-3", Stage::Kept)), None);
    }

    #[test]
    fn what_others_encoded_of_a_file_counts_with_the_rest() {
        let part = |outcome| EncodedPart { moved: 2 << 20, freed: 3 << 20, ..EncodedPart::nothing(outcome) };
        let whole = part(Done).with_others(&file("r3>rs-6-3", Stage::Copies));
        assert_eq!((whole.moved, whole.freed), (12 << 20, 18 << 20));
        // Of what had been encoded before nothing is known.
        for (outcome, stage) in [(Done, Stage::Changed), (EncodeOutcome::Left, Stage::Copies)] {
            assert_eq!(part(outcome).with_others(&file("r3>rs-6-3", stage)), part(outcome));
        }
    }
}
