//! Writing a stripe set: the units of a file in turn on the chunks of many replicated groups, for files that thousands
//! read at once.
//!
//! Units go in rounds of up to [`ROUND_BYTES`]; each column gets its units of a round in one append that is synced before
//! the answer. At most [`ROUNDS_MAX`] rounds are under way and one is gathered: 32 MiB. Invariants: a round is placed only
//! when every member of every column has it durably under the epoch and incarnations of the column's first answer; a set
//! ends with the last such round before a failure, and what follows goes to another set.
mod column;

use super::group::Gather;
use crate::append::SEGMENT_MAX;
use crate::append::open::{Avoided, Target, open_chunk, refresh_quietly};
use crate::append::retry::Retry;
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::net::NetError;
use cairn_env::buf::SharedBuf;
use cairn_types::{CHUNK_SIZE_MAX, ErrorCode, ExtentKind, Stripe};
use cairn_wire::common::{Extent, StripeSet};
use column::{Column, ColumnRound};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::task::{JoinHandle, JoinSet};

/// File bytes of a round.
const ROUND_BYTES: usize = 8 << 20;
/// Rounds under way.
const ROUNDS_MAX: usize = 3;
/// Columns that are opened at the same time.
const OPENING_MAX: usize = 32;

/// Units that are on their way to the columns of the open set.
struct Round {
    file_offset: u64,
    bytes: u64,
    units: Vec<SharedBuf>,
    /// Answers of the columns concerned.
    sent: JoinHandle<Vec<(usize, ColumnRound)>>,
}

struct OpenSet {
    stripe: Stripe,
    columns: Vec<Column>,
    file_offset: u64,
    /// Bytes that were sent, and those that are durable.
    end: u64,
    durable: u64,
}

/// Writes the units of one file.
pub(crate) struct SetWriter {
    cluster: Arc<Cluster>,
    pub(crate) target: Target,
    stripe: Stripe,
    avoided: Arc<Avoided>,
    set: Option<OpenSet>,
    rounds: VecDeque<Round>,
    retry: Retry,
    /// Sets that are complete, with their extents.
    pub(crate) done: Vec<(Extent, StripeSet)>,
}

impl SetWriter {
    pub(crate) fn new(cluster: Arc<Cluster>, target: Target, stripe: Stripe) -> Self {
        let (avoided, rounds) = (Arc::default(), VecDeque::new());
        Self { cluster, target, stripe, avoided, set: None, rounds, retry: Retry::default(), done: Vec::new() }
    }
    /// Sends a round: whole units, but for the last one of the file. Waits while too many are under way.
    pub(crate) async fn push(&mut self, file_offset: u64, units: Vec<SharedBuf>, last: bool) -> Result<()> {
        while self.rounds.len() >= ROUNDS_MAX {
            self.settle_first().await?;
        }
        self.send(file_offset, units, last).await
    }
    /// Waits until all is durable; the sets are in `done` then.
    pub(crate) async fn finish(&mut self) -> Result<()> {
        while !self.rounds.is_empty() {
            self.settle_first().await?;
        }
        self.close();
        Ok(())
    }

    async fn send(&mut self, file_offset: u64, units: Vec<SharedBuf>, last: bool) -> Result<()> {
        let follows = |set: &OpenSet| {
            let rows_after = (set.end + ROUND_BYTES as u64).div_ceil(set.stripe.row()) + 1;
            set.file_offset + set.end == file_offset && rows_after * set.stripe.unit() <= CHUNK_SIZE_MAX
        };
        if !self.set.as_ref().is_some_and(follows) {
            // A set ends only when all of it is durable.
            while !self.rounds.is_empty() {
                Box::pin(self.settle_first()).await?;
            }
            self.close();
            let columns = match last {
                true => units.len().clamp(2, usize::from(self.stripe.columns())) as u16,
                false => self.stripe.columns(),
            };
            self.set = Some(self.open(file_offset, columns).await?);
        }
        let Some(set) = &mut self.set else { return Ok(()) };
        let bytes = units.iter().map(|u| u.len() as u64).sum();
        let (width, sent_units) = (set.columns.len(), (set.end / set.stripe.unit()) as usize);
        let mut sending = JoinSet::new();
        for (number, column) in set.columns.iter_mut().enumerate() {
            let first = (number + width - sent_units % width) % width;
            let parts: Vec<SharedBuf> = units.iter().skip(first).step_by(width).cloned().collect();
            if !parts.is_empty() {
                let sent = column.send(&self.cluster, self.target, parts);
                sending.spawn(async move { (number, sent.await) });
            }
        }
        set.end += bytes;
        let sent = tokio::spawn(sending.join_all());
        self.rounds.push_back(Round { file_offset, bytes, units, sent });
        Ok(())
    }

    async fn open(&self, file_offset: u64, columns: u16) -> Result<OpenSet> {
        let stripe = Stripe::new(columns, self.stripe.unit()).unwrap_or(self.stripe);
        let mut opening = JoinSet::new();
        let mut opened: Vec<Option<Column>> = (0..stripe.columns()).map(|_| None).collect();
        let mut next = 0;
        while next < opened.len() || !opening.is_empty() {
            while next < opened.len() && opening.len() < OPENING_MAX {
                let (cluster, target, avoided, number) =
                    (self.cluster.clone(), self.target, self.avoided.clone(), next);
                opening.spawn(async move { (number, open_chunk(cluster, target, avoided).await) });
                next += 1;
            }
            match opening.join_next().await {
                Some(Ok((number, chunk))) => opened[number] = Some(Column::new(chunk?)),
                Some(Err(join)) => return Err(ClientError::protocol("a stripe set", join.to_string())),
                None => {}
            }
        }
        let columns = opened.into_iter().flatten().collect();
        Ok(OpenSet { stripe, columns, file_offset, end: 0, durable: 0 })
    }

    /// Waits for the oldest round. When a column failed, all that is not durable goes to another set.
    async fn settle_first(&mut self) -> Result<()> {
        let Some(Round { file_offset, bytes, units, sent }) = self.rounds.pop_front() else { return Ok(()) };
        let answers = sent.await.map_err(|join| ClientError::protocol("a stripe set", join.to_string()))?;
        let Some(set) = &mut self.set else { return Ok(()) };
        let mut failure: Option<(usize, NetError)> = None;
        for (number, answer) in answers {
            if let Err(error) = set.columns[number].check(answer) {
                failure = Some((number, error));
            }
        }
        let Some((number, error)) = failure else {
            set.durable += bytes;
            self.retry = Retry::default();
            return Ok(());
        };
        let chunk = set.columns[number].id();
        tracing::warn!(%chunk, error = error.text(), "going on in another stripe set");
        let now = self.cluster.clock.now();
        self.retry.failed(now, &error);
        if self.retry.is_over(now, self.cluster.patience) {
            let what = format!("writing to {chunk}");
            let detail = format!("{} stripe sets failed, the last with: {}", self.retry.times(), error.text());
            return Err(ClientError::NoWritableGroup { what, detail, full: error.is_full() });
        }
        self.report(number, &error).await;
        let mut again = vec![(file_offset, units)];
        for round in self.rounds.drain(..) {
            round.sent.abort();
            again.push((round.file_offset, round.units));
        }
        self.close();
        tokio::time::sleep(self.retry.pause()).await;
        for (file_offset, units) in again {
            // Not the last: the set may be wider than it has units.
            Box::pin(self.send(file_offset, units, false)).await?;
        }
        Ok(())
    }

    /// Who failed is reported, and its group left out for a while.
    async fn report(&self, number: usize, error: &NetError) {
        let Some(column) = self.set.as_ref().and_then(|set| set.columns.get(number)) else { return };
        let culprit = match error {
            NetError::NotSent(_) | NetError::Unknown(_) => Some(column.primary()),
            NetError::Remote(error) => match error.code {
                ErrorCode::ChainFailed => error.failed_disk,
                ErrorCode::DiskFailed | ErrorCode::DeadlineExceeded => Some(column.primary()),
                _ => None,
            },
        };
        let pg = column.id().pg;
        if culprit.is_some() || error.is_full() {
            self.avoided.add(pg, self.cluster.clock.now(), error.is_full());
        }
        match culprit {
            Some(disk) => {
                let (session, epoch) = (self.target.session, column.epoch());
                self.cluster.report_member(session, pg.0, epoch, disk, error.text()).await;
            }
            None => refresh_quietly(&self.cluster).await,
        }
    }

    /// Ends the open set with what is durable of it.
    fn close(&mut self) {
        let Some(set) = self.set.take() else { return };
        for column in &set.columns {
            column.seal(&self.cluster, self.target);
        }
        let (Some(first), true) = (set.columns.first().map(Column::id), set.durable > 0) else { return };
        let extent = Extent {
            file_offset: set.file_offset,
            length: set.durable,
            pg: first.pg.0,
            index: first.index,
            chunk_offset: 0,
            flags: ExtentKind::Set(set.stripe).to_flags(),
        };
        let record = StripeSet {
            pg: first.pg.0,
            index: first.index,
            column_pgs: set.columns.iter().map(|c| c.id().pg.0).collect(),
            column_indices: set.columns.iter().map(|c| c.id().index).collect(),
        };
        self.done.push((extent, record));
    }
}

/// Bytes of a round: no column gets more than one append takes.
pub(crate) fn round_bytes(stripe: Stripe) -> usize {
    ROUND_BYTES.min(usize::from(stripe.columns()) * SEGMENT_MAX)
}

/// Units of the next round, as many as there are.
pub(crate) fn take_round(gather: &mut Gather, stripe: Stripe) -> Vec<SharedBuf> {
    let (unit, most) = (stripe.unit() as usize, round_bytes(stripe));
    let whole = gather.len().min(most) / unit;
    let mut units = gather.take_units(whole, unit);
    if gather.len() > 0 && gather.len() < unit && units.len() * unit < most {
        units.extend(gather.take_units(1, gather.len()));
    }
    units
}
