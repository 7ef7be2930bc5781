//! Writing a stripe set: the units of a file in turn on the chunks of many replicated groups, for files that thousands
//! read at once.
//!
//! Units go in rounds; each column gets its units of a round in one append. Every so many bytes ([`sync_every`]) the
//! appends of a round also ask for a sync, and the last ones do. Memory: [`memory_bytes`], of which a quarter is
//! gathered and the rest sent and not yet durable.
//!
//! Invariants: a round is kept until every member of every column has it durably under the epoch and incarnations of
//! the column's first answer; a set ends with the last such round before a failure, what follows goes to another set,
//! and its places in the failed one are given back.
mod column;

use super::group::Gather;
use crate::append::SEGMENT_MAX;
use crate::append::open::{Avoided, open_lane};
use crate::append::retry::Retry;
use crate::append::target::Target;
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::net::NetError;
use crate::stripe::suspects::Look;
use cairn_env::buf::SharedBuf;
use cairn_types::{CHUNK_SIZE_MAX, Epoch, ErrorCode, ExtentKind, Stripe, Time};
use cairn_wire::common::{Extent, StripeSet};
use column::{Answer, Answers, Column};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

/// Memory of a writer: a MiB a column, but no less and no more.
const MEMORY_MIN: usize = 32 << 20;
const MEMORY_MAX: usize = 128 << 20;
/// File bytes after which an append also makes durable what is there: each column has to have some to sync.
const SYNC_EVERY_MIN: u64 = 8 << 20;
const SYNC_EVERY_COLUMN: u64 = 512 << 10;
/// Columns that are opened at the same time.
const OPENING_MAX: usize = 32;
/// Columns are looked at for silence so often.
const TICK: Duration = Duration::from_millis(100);
/// Columns whose members are looked at in one go.
const LOOKS_MAX: usize = 4;

/// Most memory of the writer of one file: units that are gathered, on their way, or not yet durable.
pub(crate) fn memory_bytes(stripe: Stripe) -> usize {
    (usize::from(stripe.columns()) << 20).clamp(MEMORY_MIN, MEMORY_MAX)
}
/// Bytes of a round: no column gets more than one append takes; whole rows, if there is one.
pub(crate) fn round_bytes(stripe: Stripe) -> usize {
    let (row, unit) = (stripe.row() as usize, stripe.unit() as usize);
    let most = (memory_bytes(stripe) / 4).min(usize::from(stripe.columns()) * SEGMENT_MAX);
    let whole = if most >= row { row } else { unit };
    (most / whole * whole).max(unit)
}
/// File bytes from one sync to the next.
fn sync_every(stripe: Stripe) -> u64 {
    SYNC_EVERY_MIN.max(u64::from(stripe.columns()) * SYNC_EVERY_COLUMN)
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

/// Units of a file.
struct Round {
    file_offset: u64,
    bytes: u64,
    units: Vec<SharedBuf>,
    /// The file ends with it, as far as is known.
    last: bool,
    /// Columns that have some of it, and how far they have to be durable.
    places: Vec<(usize, u64)>,
}

struct OpenSet {
    /// Tells its answers from those of earlier sets.
    number: u64,
    stripe: Stripe,
    columns: Vec<Column>,
    file_offset: u64,
    /// Bytes that were sent, those that a sync was asked for, and those that are durable.
    end: u64,
    sync_asked: u64,
    durable: u64,
}

impl OpenSet {
    /// The round continues it and fits.
    fn takes(&self, round: &Round) -> bool {
        let rows_after = (self.end + round.bytes).div_ceil(self.stripe.row()) + 1;
        self.file_offset + self.end == round.file_offset && rows_after * self.stripe.unit() <= CHUNK_SIZE_MAX
    }
    fn is_durable(&self, round: &Round) -> bool {
        round.places.iter().all(|(number, end)| self.columns[*number].durable >= *end)
    }
}

/// What comes back to a writer.
pub(crate) enum Event {
    Answered {
        set: u64,
        number: usize,
        result: std::result::Result<Answer, NetError>,
    },
    /// The members of a column were looked at.
    Looked {
        set: u64,
        number: usize,
        look: Look,
    },
}

/// Writes the units of one file.
pub(crate) struct SetWriter {
    cluster: Arc<Cluster>,
    pub(crate) target: Target,
    stripe: Stripe,
    avoided: Arc<Avoided>,
    set: Option<OpenSet>,
    sets: u64,
    /// Rounds to be sent, and those that were sent and are not durable.
    waiting: VecDeque<Round>,
    sent: VecDeque<Round>,
    finishing: bool,
    retry: Retry,
    pause: Duration,
    looked: Time,
    events: UnboundedReceiver<Event>,
    // Bounded by the calls in flight: an append of each round and a sync a column, and the looks.
    sender: UnboundedSender<Event>,
    /// Sets that are complete, with their extents.
    pub(crate) done: Vec<(Extent, StripeSet)>,
}

impl SetWriter {
    pub(crate) fn new(cluster: Arc<Cluster>, target: Target, stripe: Stripe) -> Self {
        let (sender, events) = unbounded_channel();
        Self {
            cluster,
            target,
            stripe,
            avoided: Arc::default(),
            set: None,
            sets: 0,
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            finishing: false,
            retry: Retry::default(),
            pause: Duration::ZERO,
            looked: Time(0),
            events,
            sender,
            done: Vec::new(),
        }
    }
    /// Sends a round: whole units, but for the last one of the file. Waits while too much is under way.
    pub(crate) async fn push(&mut self, file_offset: u64, units: Vec<SharedBuf>, last: bool) -> Result<()> {
        let bytes = units.iter().map(|u| u.len() as u64).sum();
        let room = (memory_bytes(self.stripe) - round_bytes(self.stripe)) as u64;
        self.drive(|writer| writer.waiting.is_empty() && writer.under_way() + bytes <= room).await?;
        self.waiting.push_back(Round { file_offset, bytes, units, last, places: Vec::new() });
        self.drive(|writer| writer.waiting.is_empty()).await
    }
    /// Waits until all is durable; the sets are in `done` then.
    pub(crate) async fn finish(&mut self) -> Result<()> {
        self.finishing = true;
        let outcome = self.drive(|writer| writer.waiting.is_empty() && writer.sent.is_empty()).await;
        self.finishing = false;
        self.close();
        outcome
    }
    /// Sends nothing more and waits for what is under way; the sets that there are by then are in `done`.
    pub(crate) async fn give_up(&mut self) -> Result<()> {
        self.waiting.clear();
        self.finishing = true;
        // What a failed set had is not sent again.
        let outcome = self.drive(|writer| writer.sent.is_empty()).await;
        self.waiting.clear();
        self.close();
        outcome
    }
    fn under_way(&self) -> u64 {
        self.sent.iter().map(|round| round.bytes).sum()
    }

    /// Sends what waits and takes answers until it is enough.
    async fn drive(&mut self, enough: impl Fn(&Self) -> bool) -> Result<()> {
        loop {
            while let Ok(event) = self.events.try_recv() {
                self.handle(event)?;
            }
            if enough(self) {
                return Ok(());
            }
            if let Some(round) = self.waiting.front() {
                match &self.set {
                    Some(set) if set.takes(round) => {
                        self.send_front();
                        continue;
                    }
                    None => {
                        let (file_offset, columns) = (round.file_offset, self.width(round));
                        tokio::time::sleep(std::mem::take(&mut self.pause)).await;
                        self.set = Some(self.open(file_offset, columns).await?);
                        continue;
                    }
                    // A set ends only when all of it is durable.
                    Some(_) if self.sent.is_empty() => {
                        self.close();
                        continue;
                    }
                    Some(_) => {}
                }
            }
            if self.finishing || !self.waiting.is_empty() {
                self.sync_rest();
            }
            self.look_for_stalls();
            if let Ok(Some(event)) = tokio::time::timeout(TICK, self.events.recv()).await {
                self.handle(event)?;
            }
        }
    }
    /// Columns of a set that begins with the round.
    fn width(&self, round: &Round) -> u16 {
        match round.last {
            true => round.units.len().clamp(2, usize::from(self.stripe.columns())) as u16,
            false => self.stripe.columns(),
        }
    }

    fn answers(&self) -> Answers {
        Answers { set: self.sets, to: self.sender.clone() }
    }
    fn send_front(&mut self) {
        let answers = self.answers();
        let end_of_file = self.finishing && self.waiting.len() == 1;
        let (Some(set), Some(mut round)) = (&mut self.set, self.waiting.pop_front()) else { return };
        let sync = round.last || end_of_file || set.end + round.bytes - set.sync_asked >= sync_every(set.stripe);
        let (width, sent_units) = (set.columns.len(), (set.end / set.stripe.unit()) as usize);
        for (number, column) in set.columns.iter_mut().enumerate() {
            let first = (number + width - sent_units % width) % width;
            let parts: Vec<SharedBuf> = round.units.iter().skip(first).step_by(width).cloned().collect();
            if parts.is_empty() {
                if sync {
                    column.sync(&self.cluster, self.target, number, answers.clone());
                }
                continue;
            }
            column.send(&self.cluster, self.target, (number, sync), parts, answers.clone());
            round.places.push((number, column.end));
        }
        set.end += round.bytes;
        if sync {
            set.sync_asked = set.end;
        }
        self.sent.push_back(round);
    }
    /// Nothing follows that could bring a sync along.
    fn sync_rest(&mut self) {
        let answers = self.answers();
        let Some(set) = &mut self.set else { return };
        set.sync_asked = set.end;
        for (number, column) in set.columns.iter_mut().enumerate() {
            column.sync(&self.cluster, self.target, number, answers.clone());
        }
    }

    async fn open(&mut self, file_offset: u64, columns: u16) -> Result<OpenSet> {
        self.sets += 1;
        let stripe = Stripe::new(columns, self.stripe.unit()).unwrap_or(self.stripe);
        let mut opening = JoinSet::new();
        let mut opened: Vec<Option<Column>> = (0..stripe.columns()).map(|_| None).collect();
        let mut next = 0;
        while next < opened.len() || !opening.is_empty() {
            while next < opened.len() && opening.len() < OPENING_MAX {
                let (cluster, target, avoided, number) =
                    (self.cluster.clone(), self.target, self.avoided.clone(), next);
                opening.spawn(async move { (number, open_lane(cluster, target, avoided).await) });
                next += 1;
            }
            match opening.join_next().await {
                Some(Ok((number, chunk))) => opened[number] = Some(Column::new(chunk?)),
                Some(Err(join)) => return Err(ClientError::protocol("a stripe set", join.to_string())),
                None => {}
            }
        }
        let columns = opened.into_iter().flatten().collect();
        Ok(OpenSet { number: self.sets, stripe, columns, file_offset, end: 0, sync_asked: 0, durable: 0 })
    }

    fn handle(&mut self, event: Event) -> Result<()> {
        let now = self.cluster.clock.now();
        let (of, number) = match &event {
            Event::Answered { set, number, .. } | Event::Looked { set, number, .. } => (*set, *number),
        };
        let Some(set) = self.set.as_mut().filter(|set| set.number == of) else { return Ok(()) };
        let column = &mut set.columns[number];
        match event {
            Event::Answered { result, .. } => match result.and_then(|answer| column.take(answer, now)) {
                Ok(()) => self.take_durable(),
                Err(error) => {
                    self.report(number, &error);
                    return self.fail(number, &error);
                }
            },
            Event::Looked { look, .. } => {
                if let Some(after) = look.again {
                    column.chunk.silence.look_again(now, after);
                }
                let known = self.cluster.view().pgs.get(&column.id().pg.0).map_or(Epoch(0), |pg| pg.epoch);
                if known > column.chunk.made.epoch && column.chunk.silence.waits() {
                    let text = format!("{} is at {known} now, without a member that did not answer", column.id().pg);
                    return self.fail(number, &NetError::Unknown(text));
                }
            }
        }
        Ok(())
    }
    /// Lets go of the rounds that all their columns have durably, in their order.
    fn take_durable(&mut self) {
        let Some(set) = &mut self.set else { return };
        while let Some(round) = self.sent.pop_front() {
            if !set.is_durable(&round) {
                self.sent.push_front(round);
                return;
            }
            set.durable += round.bytes;
            for (number, end) in &round.places {
                set.columns[*number].kept = *end;
            }
            self.retry = Retry::default();
        }
    }

    /// Ends the set; all that is not durable goes to another one.
    fn fail(&mut self, number: usize, error: &NetError) -> Result<()> {
        let Some(chunk) = self.set.as_ref().and_then(|set| set.columns.get(number)).map(Column::id) else {
            return Ok(());
        };
        tracing::warn!(%chunk, error = error.text(), "going on in another stripe set");
        self.close();
        for mut round in std::mem::take(&mut self.sent).into_iter().rev() {
            // A set may be wider than it has units.
            round.last = false;
            round.places.clear();
            self.waiting.push_front(round);
        }
        let now = self.cluster.clock.now();
        self.retry.failed(now, error);
        self.pause = self.retry.pause();
        if !self.retry.is_over(now, self.cluster.patience) {
            return Ok(());
        }
        let what = format!("writing to {chunk}");
        let detail = format!("{} stripe sets failed, the last with: {}", self.retry.times(), error.text());
        Err(ClientError::NoWritableGroup { what, detail, full: error.is_full() })
    }

    /// Who failed is reported, and its group left out for a while.
    fn report(&self, number: usize, error: &NetError) {
        let Some(column) = self.set.as_ref().and_then(|set| set.columns.get(number)) else { return };
        let culprit = match error {
            NetError::NotSent(_) | NetError::Unknown(_) => Some(column.chunk.head),
            NetError::Remote(error) => match error.code {
                ErrorCode::ChainFailed => error.failed_disk,
                ErrorCode::DiskFailed | ErrorCode::DeadlineExceeded => Some(column.chunk.head),
                _ => None,
            },
        };
        if culprit.is_some() || error.is_full() {
            self.avoided.add(column.id().pg, self.cluster.clock.now(), error.is_full());
        }
        match culprit {
            Some(disk) => {
                let report = self.cluster.report_suspect(column.seen(self.target), disk, error.text());
                tokio::spawn(report);
            }
            None => {
                let cluster = self.cluster.clone();
                tokio::spawn(async move { cluster.refresh_quietly().await });
            }
        }
    }

    /// Looks at the members of columns that answer nothing.
    fn look_for_stalls(&mut self) {
        let now = self.cluster.clock.now();
        let answers = self.answers();
        let Some(set) = self.set.as_mut().filter(|_| now.since(self.looked) >= TICK) else { return };
        self.looked = now;
        let silent =
            set.columns.iter_mut().enumerate().filter_map(|(n, c)| c.chunk.silence.takes_look(now).then_some((n, c)));
        for (number, column) in silent.take(LOOKS_MAX) {
            let (seen, members) = (column.seen(self.target), column.chunk.members());
            let (cluster, answers) = (self.cluster.clone(), answers.clone());
            tokio::spawn(async move {
                let look = cluster.look_at(seen, members).await;
                let _ended = answers.to.send(Event::Looked { set: answers.set, number, look });
            });
        }
    }

    /// Ends the open set with what is durable of it, and gives back what is not.
    fn close(&mut self) {
        let Some(set) = self.set.take() else { return };
        for column in &set.columns {
            column.seal(&self.cluster, self.target);
            if column.end > column.kept {
                let (session, kind) = (self.target.session, ExtentKind::Plain);
                self.cluster.abandoned.add(session, column.id(), kind, column.kept, column.end - column.kept);
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of a writer would not be bounded as documented, or every append be as small as a unit.
    #[test]
    fn rounds_are_large_and_memory_is_bounded() {
        let mib = 1 << 20;
        for (columns, unit, memory, round) in [
            (4, 64 << 10, 32 * mib, 4 * mib),
            (128, 64 << 10, 128 * mib, 32 * mib),
            (128, 1 << 20, 128 * mib, 32 * mib),
            (7, 8 << 10, 32 * mib, 7 * mib),
            (12, 64 << 10, 32 * mib, 10 * 12 * (64 << 10)),
            (2, 4 << 10, 32 * mib, 2 * mib),
        ] {
            let stripe = Stripe::new(columns, unit).expect("valid");
            assert_eq!((memory_bytes(stripe), round_bytes(stripe)), (memory, round), "{stripe:?}");
            assert!(
                sync_every(stripe) + round as u64 <= (memory - round) as u64,
                "it would wait for a sync not asked for"
            );
        }
    }
}
