//! Open appends that nobody publishes: what their writers left durably is to become visible although all of them died,
//! and a chunk not to stay open for ever.
//!
//! Writers publish a second behind their records. Of an append of which nothing was published for
//! [`append_silent`](MetaTimings::append_silent) a data node looks at the chunk: if it has more than the file, it is
//! closed, with all that is durable in it (`TendAppend`). The same is done with one that had no record for
//! [`append_idle`](MetaTimings::append_idle). Any writer that lives goes on in the next one, so being wrong costs
//! nothing but that.
//!
//! Invariant: nothing here has to be remembered: a leader that dies leaves appends that are listed, and the next one
//! waits anew. Bounds: [`PAGE`] appends are looked at together; [`NOTED_MAX`] are waited for at a time, the rest comes
//! when these are closed; one is worked on at a time, with rests as long as that took. Not here: how it is closed
//! (`client`), the list (meta-core).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_meta_core::Appending;
use cairn_rpc::Client;
use cairn_types::Time;
use cairn_wire::Opcode;
use cairn_wire::data::{TendAppendRequest, TendAppendResponse};
use cairn_wire::error::WireError;

use crate::config::MetaTimings;
use crate::movers::Movers;
use crate::partition::Partition;
use crate::stats::count;

/// Listed appends that are looked at together, with the namespace locked.
const PAGE: usize = 1024;
/// Appends of which it is known since when nothing was published.
const NOTED_MAX: usize = 64 << 10;
/// A data node tries for a quarter of a minute.
const DEADLINE: Duration = Duration::from_secs(60);
/// One that had no more than the file is looked at again after twice as long each time, so often.
const DOUBLINGS_MAX: u32 = 4;

/// What is known of an open append.
struct Noted {
    published: u64,
    /// Since when it is that.
    since: Time,
    /// When a data node is asked next.
    next: Time,
    times: u32,
}

/// The leader's work on one partition.
pub(crate) struct AppendTender {
    partition: Arc<Partition>,
    client: Client,
    timings: MetaTimings,
    noted: BTreeMap<(u64, u64), Noted>,
}

impl AppendTender {
    pub(crate) fn new(partition: Arc<Partition>, client: Client, timings: MetaTimings) -> Self {
        Self { partition, client, timings, noted: BTreeMap::new() }
    }

    /// Works until the task is ended.
    pub(crate) async fn run(mut self) {
        let state = self.partition.state.clone();
        let mut leading = None;
        loop {
            state.pause(self.timings.append_tick).await;
            let term = state.leading_term();
            if leading != term {
                (leading, self.noted) = (term, BTreeMap::new());
            }
            let Some(term) = term else { continue };
            for append in self.note(state.common.clock.now()) {
                if state.leading_term() != Some(term) {
                    break;
                }
                if let Err(error) = self.tend(append, term).await {
                    tracing::debug!(partition = %state.id, inode = append.inode, number = append.number, %error, "an open append is looked after later");
                }
            }
        }
    }

    /// Notes what changed. Gives those that are to be looked at.
    fn note(&mut self, now: Time) -> Vec<Appending> {
        let (mut due, mut listed, mut after) = (Vec::new(), BTreeMap::new(), (0, 0));
        loop {
            let page = self.partition.state.namespace.read().open_appends(after, PAGE);
            let Some(last) = page.last().filter(|_| listed.len() < NOTED_MAX) else { break };
            after = (last.inode, last.number);
            for append in page {
                let key = (append.inode, append.number);
                let noted = match self.noted.remove(&key) {
                    Some(noted) if noted.published == append.published => noted,
                    _ => Noted {
                        published: append.published,
                        since: now,
                        next: now + self.timings.append_silent,
                        times: 0,
                    },
                };
                if noted.next <= now {
                    due.push(append);
                }
                listed.insert(key, noted);
            }
        }
        self.noted = listed;
        due
    }

    async fn tend(&mut self, append: Appending, term: u64) -> Result<(), WireError> {
        let state = self.partition.state.clone();
        let Some(noted) = self.noted.get_mut(&(append.inode, append.number)) else { return Ok(()) };
        let now = state.common.clock.now();
        // Not beyond the time at which it is idle.
        let pause = self.timings.append_silent * 2u32.pow(noted.times.min(DOUBLINGS_MAX));
        let idle_at = noted.since + self.timings.append_idle;
        noted.next = if idle_at > now { (now + pause).min(idle_at) } else { now + pause };
        let Appending { inode, number, .. } = append;
        let idle = now >= idle_at;
        let request = TendAppendRequest { volume: state.volume.get(), inode, number, idle };
        let mut movers = Movers::near(self.partition.clone(), self.client.clone(), append.pg);
        let done: TendAppendResponse = movers.ask(Opcode::TendAppend, &request, DEADLINE, term).await?;
        if let Some(noted) = self.noted.get_mut(&(inode, number)) {
            noted.times += 1;
        }
        if done.closed {
            count(&state.common.stats.appends_ended);
            let published = done.published;
            tracing::info!(partition = %state.id, inode, number, published, idle, "nobody appends records any more; the append is closed");
        }
        Ok(())
    }
}
