//! Reading known extents: pieces in parallel, in the order of the file, each by the kind of its chunk.
//!
//! Bound: [`PARALLEL_MAX`] pieces of a range are on their way.
use super::extents::Stretch;
use crate::encoded_message::Coming;
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use crate::overwrite::Epochs;
use crate::read::piece::{Got, PIECE_MAX, Piece, read_piece};
use crate::read::rows::{Rows, read_rows};
use crate::read::set::{SetRange, group_bytes, read_set};
use crate::stripe::group::read_bytes;
use cairn_env::buf::SharedBuf;
use cairn_types::{BLOCK_SIZE, ChunkId, ExtentKind, PgId};
use std::collections::VecDeque;
use std::sync::LazyLock;
use tokio::task::JoinHandle;

const PARALLEL_MAX: usize = 16;

static ZEROS: LazyLock<SharedBuf> = LazyLock::new(|| SharedBuf::from_owner(vec![0u8; PIECE_MAX as usize]));

/// Zeros without memory of their own.
pub(crate) fn zeros(mut length: u64, to: &mut Vec<SharedBuf>) {
    while length > 0 {
        let part = length.min(PIECE_MAX);
        to.push(ZEROS.slice(..part as usize));
        length -= part;
    }
}

enum Plan {
    Data(Piece),
    Rows(Rows),
    Set(SetRange),
    Hole(u64),
}

/// The parts that a stretch is read in.
fn plan(stretch: &Stretch, under: &Epochs, shown_as: &str, plans: &mut VecDeque<Plan>) -> Result<()> {
    let odd = |detail: String| Err(ClientError::protocol(shown_as, detail));
    let Some(extent) = &stretch.extent else {
        plans.push_back(Plan::Hole(stretch.to - stretch.from));
        return Ok(());
    };
    let chunk = ChunkId { pg: PgId(extent.pg), index: extent.index };
    let (mut from, end) = (extent.chunk_offset, extent.chunk_offset + extent.length);
    let Some(kind) = ExtentKind::from_flags(extent.flags) else {
        return odd(format!("an extent has flags {:#x}, which this version does not know", extent.flags));
    };
    while from < end {
        let (plan, to) = match kind {
            ExtentKind::Plain => {
                let length = (end - from).min(PIECE_MAX - from % BLOCK_SIZE as u64);
                let epoch = under.get(&chunk.pg).map_or(0, |epoch| epoch.0);
                (Plan::Data(Piece { chunk, offset: from, length, epoch }), from + length)
            }
            ExtentKind::Erasure(stripe) => {
                let group = read_bytes(stripe);
                let to = end.min(from + group - from % group);
                (Plan::Rows(Rows { chunk, stripe, from, to }), to)
            }
            ExtentKind::Set(stripe) => {
                let Some(columns) = stretch.columns.clone() else {
                    return odd(format!("the stripe set of {chunk} is not named"));
                };
                let group = group_bytes(stripe);
                let to = end.min(from + group - from % group);
                (Plan::Set(SetRange { columns, stripe, from, to }), to)
            }
        };
        plans.push_back(plan);
        from = to;
    }
    Ok(())
}

async fn carry_out(volume: Volume, plan: Plan) -> Got<Vec<SharedBuf>> {
    let cluster = volume.cluster().clone();
    match plan {
        Plan::Data(piece) => {
            let Got { data, failed } = read_piece(&cluster, &volume.read_latency(), piece).await;
            Got { data: vec![data], failed }
        }
        Plan::Rows(rows) => read_rows(&cluster, rows).await,
        Plan::Set(range) => read_set(&cluster, &volume.read_latency(), range).await,
        Plan::Hole(length) => {
            let mut data = Vec::new();
            zeros(length, &mut data);
            Got { data, failed: None }
        }
    }
}

/// A task that ends with whoever waits for it.
struct Task(JoinHandle<Got<Vec<SharedBuf>>>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// All bytes of the stretches, in order. [`ClientError::Changed`] if a chunk is gone because the file was changed.
pub(crate) async fn read_stretches(volume: &Volume, shown_as: &str, stretches: &[Stretch]) -> Result<Vec<SharedBuf>> {
    read_under(volume, shown_as, stretches, &Epochs::new()).await
}

/// The same; plain chunks of the groups that are named are read under these epochs. [`ClientError::Changed`] if a group
/// is in another one.
pub(crate) fn read_under<'a>(
    volume: &'a Volume,
    shown_as: &'a str,
    stretches: &'a [Stretch],
    under: &'a Epochs,
) -> Coming<'a, Result<Vec<SharedBuf>>> {
    Box::pin(read_all(volume, shown_as, stretches, under))
}

async fn read_all(volume: &Volume, shown_as: &str, stretches: &[Stretch], under: &Epochs) -> Result<Vec<SharedBuf>> {
    let mut plans = VecDeque::new();
    for stretch in stretches {
        plan(stretch, under, shown_as, &mut plans)?;
    }
    let mut data = Vec::new();
    let mut take = |got: Got<Vec<SharedBuf>>| {
        data.extend(got.data.into_iter().filter(|part| !part.is_empty()));
        got.failed.map_or(Ok(()), |error| Err(error.named(shown_as)))
    };
    if plans.len() == 1 {
        // The usual page: no task, no hop to another thread.
        for plan in plans {
            take(carry_out(volume.clone(), plan).await)?;
        }
        return Ok(data);
    }
    let mut running: VecDeque<Task> = VecDeque::new();
    loop {
        while running.len() < PARALLEL_MAX
            && let Some(plan) = plans.pop_front()
        {
            running.push_back(Task(tokio::spawn(carry_out(volume.clone(), plan))));
        }
        let Some(mut task) = running.pop_front() else { return Ok(data) };
        let got = (&mut task.0).await;
        take(got.map_err(|join| ClientError::protocol(shown_as, format!("a read task ended: {join}")))?)?;
    }
}
