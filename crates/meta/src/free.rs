//! Space that no file names any more is given back: `Free` to every member of the placement group, then `FreeDone`.
//!
//! The leader sweeps over the free records page by page, so its memory does not grow with them. A record is done when
//! every present member of its placement group has answered done; members that cannot be reached keep it pending, and
//! what the others answered is remembered (bounded) so that they are not asked again at each sweep. All of it is
//! idempotent: after a change of leaders a record may be offered twice.
//!
//! Not here: which records exist (meta-core), what a data node does with them.

mod grace;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cairn_meta_core::FreeRecord;
use cairn_rpc::{Call, CallOptions, Client};
use cairn_types::{ErrorCode, NodeId, Time};
use cairn_wire::Opcode;
use cairn_wire::data::{FreeRequest, FreeResponse};
use cairn_wire::error::WireError;
use cairn_wire::meta::FreeDone;

use crate::config::MetaTimings;
use crate::partition::Partition;
use crate::stats::{add, count};
use grace::Grace;
use plan::{Answered, Batch, Plan, is_done};

/// Who is left alone for a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Resting {
    /// It failed.
    Node(NodeId),
    /// A disk that frees some chunks of this group later, as it is being filled: for the other groups of its node it is
    /// as good as before.
    Member(u32, u32),
}

struct Backoff {
    until: Time,
    pause: Duration,
}

/// The leader's memory of one partition's free records.
pub(crate) struct Freer {
    partition: Arc<Partition>,
    client: Client,
    timings: MetaTimings,
    grace: Grace,
    /// Disks that have answered done, of records whose other members could not be reached.
    partial: BTreeMap<u64, Answered>,
    backoff: BTreeMap<Resting, Backoff>,
    term: u64,
}

/// What a sweep came to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sweep {
    /// Some records were finished.
    pub(crate) finished: bool,
    /// There are records that were not there at the sweep before.
    pub(crate) is_new: bool,
}

/// A request under way.
struct Sent {
    node: NodeId,
    batch: Batch,
    call: Call,
}

impl Freer {
    pub(crate) fn new(partition: Arc<Partition>, client: Client, timings: MetaTimings) -> Self {
        Self {
            partition,
            client,
            timings,
            grace: Grace::default(),
            partial: BTreeMap::new(),
            backoff: BTreeMap::new(),
            term: 0,
        }
    }

    /// One pass over all free records that are old enough.
    pub(crate) async fn sweep(&mut self, term: u64) -> Result<Sweep, WireError> {
        if self.term != term {
            // Another leader may have worked in between.
            (self.term, self.grace) = (term, Grace::default());
            self.partial.clear();
        }
        // Members of groups that are no more.
        let (now, forget) = (self.partition.state.common.clock.now(), self.timings.free_retry_max * 4);
        self.backoff.retain(|_, backoff| now.since(backoff.until) < forget);
        let before = self.grace.newest();
        let limit = self.settle();
        let mut sweep = Sweep { finished: false, is_new: self.grace.newest() > before };
        let mut after = 0;
        while after < limit {
            let mut page = self.partition.state.namespace.read().pending_frees(after, self.timings.free_page);
            page.retain(|record| record.id <= limit);
            let Some(last) = page.last() else { break };
            after = last.id;
            sweep.finished |= self.work_off(&page).await?;
            tokio::task::yield_now().await;
        }
        Ok(sweep)
    }

    /// Notes the newest record and tells up to which one the grace time is over.
    fn settle(&mut self) -> u64 {
        let mut newest = self.grace.newest();
        loop {
            let page = self.partition.state.namespace.read().pending_frees(newest, self.timings.free_page);
            match page.last() {
                Some(last) => newest = last.id,
                None => break,
            }
        }
        self.grace.settle(newest, self.partition.state.common.clock.now(), self.timings.free_grace)
    }

    /// Offers a page of records to all members concerned. Returns whether some were finished.
    async fn work_off(&mut self, page: &[FreeRecord]) -> Result<bool, WireError> {
        let mut plan = {
            let map = self.partition.state.common.map.read();
            let now = self.partition.state.common.clock.now();
            let rests = |who| self.backoff.get(&who).is_some_and(|backoff| now < backoff.until);
            let resting = |node, disk, pg| rests(Resting::Node(node)) || rests(Resting::Member(disk, pg));
            Plan::new(page, &map, &self.partial, resting)
        };
        let sent = self.send(&mut plan);
        for Sent { node, batch, call } in sent {
            let outcome = call.await.and_then(|response| response.decode::<FreeResponse>());
            match outcome {
                Ok(response) => self.judge(&mut plan, node, &batch, &response),
                Err(error) => self.rest(Resting::Node(node), &error.to_string()),
            }
        }
        self.finish(plan).await
    }

    /// Sends all requests of a plan; they are on their way together. What fails is seen at the answer.
    fn send(&self, plan: &mut Plan) -> Vec<Sent> {
        let map = self.partition.state.common.map.read();
        let mut sent = Vec::new();
        for (node, batch) in plan.batches(self.timings.free_items_max) {
            let Some(address) = map.address(node) else { continue };
            add(&self.partition.state.common.stats.frees_sent, batch.items.len() as u64);
            let request = FreeRequest { items: batch.items.clone() };
            let options = CallOptions::new(self.timings.free_deadline);
            let call = self.client.call(address, Opcode::Free.code(), &request, (), options);
            sent.push(Sent { node, batch, call });
        }
        sent
    }

    fn judge(&mut self, plan: &mut Plan, node: NodeId, batch: &Batch, response: &FreeResponse) {
        if response.codes.len() != batch.items.len() {
            let text = format!("{} answers to {} items", response.codes.len(), batch.items.len());
            return self.rest(Resting::Node(node), &text);
        }
        let (mut refused, mut later) = (None, BTreeSet::new());
        for (at, code) in response.codes.iter().enumerate() {
            let item = &batch.items[at];
            if is_done(*code) {
                plan.answered(batch, at);
            } else if *code == u32::from(ErrorCode::Unavailable.code()) {
                later.insert(Resting::Member(item.disk, item.pg));
            } else {
                refused = Some(*code);
            }
        }
        for item in &batch.items {
            let member = Resting::Member(item.disk, item.pg);
            if !later.contains(&member) {
                self.backoff.remove(&member);
            }
        }
        later.into_iter().for_each(|member| self.rest(member, "some chunks are freed later"));
        match refused {
            Some(code) => self.rest(Resting::Node(node), &format!("error {code} for some of the chunks")),
            None => drop(self.backoff.remove(&Resting::Node(node))),
        }
    }

    /// Who failed is left alone for a time that doubles.
    fn rest(&mut self, who: Resting, why: &str) {
        let (min, max) = (self.timings.free_retry_min, self.timings.free_retry_max);
        let now = self.partition.state.common.clock.now();
        count(&self.partition.state.common.stats.free_failures);
        let backoff = self.backoff.entry(who).or_insert(Backoff { until: now, pause: Duration::ZERO });
        // Several requests of one page fail together: that counts once.
        if backoff.until <= now {
            backoff.pause = (backoff.pause * 2).clamp(min, max);
            backoff.until = now + backoff.pause;
            tracing::debug!(partition = %self.partition.state.id, ?who, why, pause = ?backoff.pause,
                "chunks were not freed; will be repeated");
        }
    }

    /// Logs what all members have answered and remembers the rest.
    async fn finish(&mut self, plan: Plan) -> Result<bool, WireError> {
        let (done, partly) = plan.outcome();
        for (id, answered) in partly {
            if self.partial.contains_key(&id) || self.partial.len() < self.timings.free_partial_max {
                self.partial.insert(id, answered);
            }
        }
        if done.is_empty() {
            return Ok(false);
        }
        let request = FreeDone { free_ids: done };
        self.partition.propose_own(Opcode::FreeDone, &request).await?;
        for id in &request.free_ids {
            self.partial.remove(id);
        }
        self.partition.state.common.stats.frees_done.fetch_add(request.free_ids.len() as u64, Relaxed);
        Ok(true)
    }
}
