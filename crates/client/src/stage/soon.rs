//! Encoding of files for which somebody waits: the leaders of their partitions are asked to have them encoded together,
//! where they lie, and are asked again until they say that this is done, or comes to nothing. What is left then is for
//! whoever waits to encode file by file.
//!
//! Bound: the files of a call. Not here: how they are encoded (`together`), and which are taken (`meta`).
use super::EncodeOutcome::Done;
use super::EncodedPart;
use crate::attributes::Attributes;
use crate::convert::ConversionControl;
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use cairn_types::{ErrorCode, Layout, Scheme, Stage};
use cairn_wire::Opcode;
use cairn_wire::meta::{EncodeSoonRequest, EncodeSoonResponse};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Files of one question.
const ASKED_MAX: usize = 1024;
const PAUSE: Duration = Duration::from_millis(500);
/// Files of which none was encoded for so long are not waited for any more.
const PATIENCE: Duration = Duration::from_secs(600);

impl Volume {
    /// Has files encoded together as far as that can be; what became of those for which it was. All others are as they
    /// were.
    pub async fn encode_with_others(
        &self,
        inodes: &[u64],
        control: &ConversionControl,
    ) -> Result<BTreeMap<u64, EncodedPart>> {
        let mut waiting: Vec<u64> = inodes.to_vec();
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
    let copies = layout.scheme().short_scheme().members() as u64;
    let freed = match layout.scheme() {
        Scheme::Erasure { k, m } => {
            let shards = file.stored_bytes * u64::from(k + m) / u64::from(k);
            (file.stored_bytes * copies).saturating_sub(shards)
        }
        _ => 0,
    };
    Some(EncodedPart { moved: file.stored_bytes, freed, files: 1, ..EncodedPart::nothing(Done) })
}
