//! Reading a range of a stripe set: the columns that hold it in parallel, each from any serving member of its chunk.
use super::latency::Latency;
use super::piece::{Got, PIECE_MAX, Piece, read_piece};
use super::rows::{Located, in_file_order};
use crate::cluster::Cluster;
use crate::error::ClientError;
use cairn_env::buf::SharedBuf;
use cairn_types::{ChunkId, PgId, Stripe};
use cairn_wire::common::StripeSet;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Most file bytes that are read together.
const GROUP_BYTES_MAX: u64 = 8 << 20;

/// The chunks of a stripe set, by column.
#[derive(Debug)]
pub(crate) struct SetColumns(Vec<ChunkId>);

impl SetColumns {
    pub(crate) fn decode(set: &StripeSet) -> SetColumns {
        let chunk = |(pg, index): (&u32, &u32)| ChunkId { pg: PgId(*pg), index: *index };
        SetColumns(set.column_pgs.iter().zip(&set.column_indices).map(chunk).collect())
    }
}

/// A range of the logical space of a stripe set.
#[derive(Clone, Debug)]
pub(crate) struct SetRange {
    pub columns: Arc<SetColumns>,
    pub stripe: Stripe,
    pub from: u64,
    pub to: u64,
}

/// Bytes of the logical space that are read together, so that no column gives more than a piece.
pub(crate) fn group_bytes(stripe: Stripe) -> u64 {
    let rows = (GROUP_BYTES_MAX / stripe.row()).min(PIECE_MAX / stripe.unit());
    if rows == 0 { GROUP_BYTES_MAX } else { rows * stripe.row() }
}

/// Reads it, in the order of the file.
pub(crate) async fn read_set(cluster: &Arc<Cluster>, latency: &Arc<Latency>, range: SetRange) -> Got<Vec<SharedBuf>> {
    let SetRange { columns, stripe, from, to } = range;
    let odd = |text: String| Got { data: Vec::new(), failed: Some(ClientError::protocol("a stripe set", text)) };
    if columns.0.len() != usize::from(stripe.columns()) {
        return odd(format!("it has {} chunks for {} columns", columns.0.len(), stripe.columns()));
    }
    let mut reading = JoinSet::new();
    for part in (0..stripe.columns()).filter_map(|column| stripe.part(column, from, to)) {
        let piece =
            Piece { chunk: columns.0[usize::from(part.column)], offset: part.offset, length: part.length, epoch: 0 };
        let (cluster, latency) = (cluster.clone(), latency.clone());
        reading.spawn(async move { (part.column, part.offset, read_piece(&cluster, &latency, piece).await) });
    }
    let mut parts: Vec<Option<Located>> = (0..stripe.columns()).map(|_| None).collect();
    // The first byte that cannot be read, and why: before it, every column has what it holds of the range.
    let (mut end, mut failed) = (to, None);
    while let Some(joined) = reading.join_next().await {
        let (column, offset, got) = match joined {
            Ok(read) => read,
            Err(join) => return odd(join.to_string()),
        };
        if let Some(error) = got.failed {
            let at = logical(stripe, column, offset + got.data.len() as u64);
            if at < end || failed.is_none() {
                (end, failed) = (at, Some(error));
            }
        }
        parts[usize::from(column)] = Some(Located { offset, data: got.data });
    }
    let column = |column: u16| parts[usize::from(column)].as_ref().expect("every column of the range was read");
    Got { data: in_file_order(stripe, from, end, column), failed }
}

/// Where in the logical space a byte of a column is.
fn logical(stripe: Stripe, column: u16, offset: u64) -> u64 {
    offset / stripe.unit() * stripe.row() + u64::from(column) * stripe.unit() + offset % stripe.unit()
}
