//! What a closed append left: which records of this client's writers are in it. Read once for all of them.
//!
//! Invariant: a record counts as there only if it was read in what the file got of the chunk.
//! Bounds: of records with consecutive numbers the first and the last are kept, and none of other clients' writers.
use super::chunk::AppendChunk;
use crate::cluster::Cluster;
use crate::error::Result;
use crate::meta::volume::Volume;
use crate::read::piece::{PIECE_MAX, Piece, read_piece};
use cairn_format::record_frame::{Found, record_at};
use cairn_types::BLOCK_SIZE;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The writers of this client, and how many there are of the same number. What others sent is nothing that one of these
/// looks for.
#[derive(Default)]
pub(super) struct Writers(Mutex<BTreeMap<u64, u32>>);

impl Writers {
    fn has(&self, writer: u64) -> bool {
        self.0.lock().contains_key(&writer)
    }
}

/// One of them, as long as it is there.
pub(super) struct Known {
    cluster: Arc<Cluster>,
    writer: u64,
}

impl Known {
    pub fn new(cluster: &Arc<Cluster>, writer: u64) -> Self {
        *cluster.shared.of::<Writers>().0.lock().entry(writer).or_default() += 1;
        Self { cluster: cluster.clone(), writer }
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let writers = self.cluster.shared.of::<Writers>();
        let mut all = writers.0.lock();
        if let Some(count) = all.get_mut(&self.writer) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.writer);
            }
        }
    }
}

/// Writer, first and last sequence of records that are there, in order.
#[derive(Default, Debug, PartialEq, Eq)]
pub(super) struct Runs(Vec<(u64, u64, u64)>);

impl Runs {
    fn has(&self, writer: u64, sequence: u64) -> bool {
        let behind = self.0.partition_point(|(w, first, _)| (*w, *first) <= (writer, sequence));
        behind.checked_sub(1).is_some_and(|i| self.0[i].0 == writer && self.0[i].2 >= sequence)
    }

    fn add(&mut self, other: Runs) {
        self.0.extend(other.0);
        self.0.sort_unstable();
        self.0.dedup_by(|next, before| {
            let touches = next.0 == before.0 && next.1 <= before.2.saturating_add(1);
            if touches {
                before.2 = before.2.max(next.2);
            }
            touches
        });
    }
}

/// Runs, while records are read.
#[derive(Default)]
struct Growing {
    last: BTreeMap<u64, (u64, u64)>,
    before: Vec<(u64, u64, u64)>,
}

impl Growing {
    fn note(&mut self, writer: u64, sequence: u64) {
        let run = self.last.entry(writer).or_insert((sequence, sequence));
        if sequence == run.1.wrapping_add(1) {
            run.1 = sequence;
        } else if !(run.0..=run.1).contains(&sequence) {
            self.before.push((writer, run.0, run.1));
            *run = (sequence, sequence);
        }
    }

    fn in_order(self) -> Runs {
        let mut runs = Runs(self.before);
        runs.add(Runs(self.last.into_iter().map(|(writer, (first, last))| (writer, first, last)).collect()));
        runs
    }
}

/// What a closed append left.
pub(super) struct Left {
    /// The file got so much of its chunk.
    pub published: u64,
    /// From where on one of the writers has to look for records of its own.
    wanted: AtomicU64,
    /// From where on it was read, and what is there. Locked while one of them reads.
    read: tokio::sync::Mutex<(u64, Runs)>,
}

impl Left {
    /// `from`: what is behind it was read.
    pub fn new(published: u64, from: u64, runs: Runs) -> Self {
        Self { published, wanted: AtomicU64::new(u64::MAX), read: tokio::sync::Mutex::new((from, runs)) }
    }

    /// Which of a writer's records, all of them behind `after`, are in the file.
    pub async fn which(
        &self,
        volume: &Volume,
        chunk: AppendChunk,
        after: u64,
        (writer, sequences): (u64, impl Iterator<Item = u64>),
    ) -> Result<Vec<bool>> {
        self.wanted.fetch_min(after, Relaxed);
        let mut read = self.read.lock().await;
        let (from, there) = &mut *read;
        if after < *from {
            // Others wait with what they look for.
            let begin = self.wanted.load(Relaxed).min(after);
            let (_, runs) = walk(volume, chunk, begin, *from).await?;
            there.add(runs);
            *from = begin;
        }
        Ok(sequences.map(|sequence| there.has(writer, sequence)).collect())
    }
}

/// Reads a sealed chunk in `from..to`; records begin at `from`, or a block of padding. Returns where the last whole
/// record ends, and which there are of this client's writers.
pub(super) async fn walk(volume: &Volume, chunk: AppendChunk, from: u64, to: u64) -> Result<(u64, Runs)> {
    let (cluster, latency) = (volume.cluster(), volume.read_latency());
    let (mut buffer, mut at, mut read_to, mut end): (Vec<u8>, u64, u64, u64) = (Vec::new(), from, from, from);
    let mut runs = Growing::default();
    loop {
        let consumed = {
            let mut consumed = 0;
            loop {
                match record_at(&buffer[consumed..]) {
                    Found::Record(frame, _) => {
                        consumed += frame.framed_len();
                        end = at + consumed as u64;
                        if volume.cluster().shared.of::<Writers>().has(frame.writer) {
                            runs.note(frame.writer, frame.sequence);
                        }
                    }
                    Found::Skip { bytes, damaged: false } => consumed += bytes,
                    // The end of a torn one, of which nobody was told that it is durable.
                    Found::Skip { .. } => return Ok((end, runs.in_order())),
                    Found::More => break consumed,
                }
            }
        };
        buffer.drain(..consumed);
        at += consumed as u64;
        if read_to >= to {
            return Ok((end, runs.in_order()));
        }
        let offset = read_to - read_to % BLOCK_SIZE as u64;
        let length = (to - offset).min(PIECE_MAX);
        let got = read_piece(cluster, &latency, Piece { chunk: chunk.id, offset, length, epoch: 0 }).await;
        if let Some(error) = got.failed {
            return Err(error);
        }
        buffer.extend_from_slice(&got.data[(read_to - offset) as usize..]);
        read_to = offset + length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record would be taken for absent and appended twice, or for present and lost.
    #[test]
    fn runs_have_what_was_noted_and_nothing_else() {
        let noted =
            [(7, 5), (9, 1), (7, 6), (7, 7), (9, 3), (7, 6), (7, 9), (9, 2), (7, 2), (u64::MAX, u64::MAX), (8, 0)];
        for split in 0..noted.len() {
            let (mut earlier, mut later) = (Growing::default(), Growing::default());
            noted[..split].iter().for_each(|(writer, sequence)| earlier.note(*writer, *sequence));
            noted[split..].iter().for_each(|(writer, sequence)| later.note(*writer, *sequence));
            let mut runs = later.in_order();
            runs.add(earlier.in_order());
            for (writer, sequence) in (6..10).flat_map(|writer| (0..12).map(move |sequence| (writer, sequence))) {
                assert_eq!(
                    runs.has(writer, sequence),
                    noted.contains(&(writer, sequence)),
                    "{split} {writer} {sequence}"
                );
            }
            assert!(runs.has(u64::MAX, u64::MAX) && runs.0.len() == 6, "{runs:?}");
        }
    }

    /// Memory would grow with the records of a chunk instead of the writers.
    #[test]
    fn records_in_order_take_one_entry_for_a_writer() {
        let mut growing = Growing::default();
        (1..1000).for_each(|sequence| (0..10).for_each(|writer| growing.note(writer, sequence)));
        assert_eq!(growing.before.len(), 0);
        assert_eq!(growing.in_order(), Runs((0..10).map(|writer| (writer, 1, 999)).collect()));
    }
}
