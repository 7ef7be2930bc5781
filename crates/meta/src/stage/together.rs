//! Files that lie in columns of stripe groups are encoded together, on a node of the core rack, before any is encoded
//! by itself: so nothing of them crosses racks. What is left over waits for others for as long again as it had to wait,
//! at most an hour, and is then encoded by file.
//!
//! Bounds: [`CHUNKS_MAX`] chunks of a stripe group in one look; fewer and fewer attempts where they fail or come to
//! nothing. Not here: which files, and when there are enough (`columns`); what of them is put together (`client`).

use std::collections::BTreeSet;
use std::time::Duration;

use cairn_meta_core::StagedFile;
use cairn_types::{ErrorCode, WallTime};
use cairn_wire::Opcode;
use cairn_wire::data::{EncodeRequest, EncodeResponse};
use cairn_wire::error::WireError;
use tokio::time::sleep;

use super::columns::{InColumns, OfGroup};
use super::degraded::Outlook;
use super::{Cause, DEADLINE, MORE, RATE, Retry, Stager, due_at};
use crate::movers::Movers;
use crate::stats::{add, count};

/// Chunks that are made of files of one stripe group before the list is looked at again.
const CHUNKS_MAX: usize = 16;
/// After a failure a stripe group is left alone for twice as long each time, up to 2^10 times as long as at first.
const FAILED_DOUBLINGS: u32 = 10;
/// The same where nothing could be put together: more may come.
const NOTHING_DOUBLINGS: u32 = 5;
/// Attempts of a stripe group that come to nothing before files that waited long enough are encoded by themselves.
const TRIES_BEFORE_FILES: u32 = 3;
/// A file that could be encoded together with others waits for them for so long at most.
const WAIT_MAX: Duration = Duration::from_secs(3600);

impl Stager {
    /// Encodes together what can be. The stripe groups that go on with it: their files are not encoded by themselves.
    pub(super) async fn work_together(&mut self, in_columns: InColumns, term: u64) -> BTreeSet<u32> {
        let mut go_on = BTreeSet::new();
        let only_asked = in_columns.only_asked;
        // What is done with is forgotten.
        if !only_asked {
            self.together.retain(|group, _| in_columns.contains(*group));
            self.degraded.retain(|group| in_columns.contains(group));
        }
        for (id, group) in in_columns.into_groups() {
            if self.partition.state.leading_term() != Some(term) || !only_asked && self.held() {
                return go_on;
            }
            let clock = &self.partition.state.common.clock;
            let (now, wall) = (clock.now(), clock.wall());
            let outlook = self.degraded.look(id, group.degraded, now);
            if outlook == Outlook::WholeAgain {
                self.together.remove(&id);
            }
            let waits = outlook == Outlook::Waits;
            let retry = self.together.get(&id).copied();
            if group.is_in_all() && (waits || retry.is_none_or(|retry| retry.tries < TRIES_BEFORE_FILES)) {
                go_on.insert(id);
            }
            if retry.is_some_and(|retry| retry.not_before > now) || !group.is_ready(wall) {
                continue;
            }
            let doublings = match self.encode_group(&group, only_asked, term).await {
                Ok(0) => NOTHING_DOUBLINGS,
                Ok(_) => {
                    self.together.remove(&id);
                    self.degraded.forget(id);
                    continue;
                }
                Err(error) => {
                    tracing::info!(partition = %self.partition.state.id, group = id, rack = group.rack, %error,
                        "files could not be encoded together now; they keep their copies, and are tried again");
                    count(&self.partition.state.common.stats.encoding_left);
                    {
                        let mut desk = self.desk().lock();
                        desk.left_times += 1;
                        desk.last_reason = format!("files in rack {}: {error}", group.rack);
                    }
                    self.cause = Some(Cause::StripeGroup(id));
                    // Each attempt may have written a chunk that nothing names.
                    FAILED_DOUBLINGS
                }
            };
            let tries = self.together.get(&id).map_or(0, |retry| retry.tries);
            let pause = self.timings.stage_retry * 2u32.pow(tries.min(doublings));
            let not_before = self.partition.state.common.clock.now() + pause;
            self.together.insert(id, Retry { not_before, tries: tries.saturating_add(1) });
        }
        go_on
    }

    /// Encodes files of a stripe group together, chunk by chunk; the bytes that were.
    async fn encode_group(&self, group: &OfGroup, only_asked: bool, term: u64) -> Result<u64, WireError> {
        let (state, rack) = (&self.partition.state, &group.rack);
        let mut movers = Movers::in_rack(self.partition.clone(), self.client.clone(), group.pg.get(), rack);
        let gently = self.settings().rate != Some(0);
        // Who encodes rests behind each piece of work.
        movers.rest_as(Some(0));
        let (volume, together) = (state.volume.get(), group.files());
        let request = EncodeRequest { volume, together, gently, ..EncodeRequest::default() };
        let mut moved = 0;
        for _ in 0..CHUNKS_MAX {
            if !only_asked && self.held() {
                break;
            }
            let start = state.common.clock.now();
            let done: EncodeResponse = movers.ask(Opcode::Encode, &request, DEADLINE, term).await?;
            moved += done.moved_bytes;
            if gently && done.rested_ms == 0 {
                // A server of before, or one that failed.
                sleep(state.common.clock.now().since(start)).await;
            }
            add(&state.common.stats.encoded_files, u64::from(done.encoded_files));
            add(&state.common.stats.encoded_bytes, done.moved_bytes);
            add(&state.common.stats.encoded_together_bytes, done.moved_bytes);
            add(&state.common.stats.encoding_freed_bytes, done.freed_bytes);
            {
                let mut desk = self.desk().lock();
                desk.encoded_bytes += done.moved_bytes;
                desk.freed_bytes += done.freed_bytes;
                desk.encoded_files += u64::from(done.encoded_files);
            }
            if !done.reason.is_empty() && moved == 0 {
                return Err(WireError::new(ErrorCode::Unavailable, done.reason));
            }
            if done.outcome != MORE || done.moved_bytes == 0 {
                break;
            }
            let rate = self.settings().rate.unwrap_or(RATE);
            if rate > 0 {
                let least = Duration::from_secs_f64(done.moved_bytes as f64 / rate as f64);
                sleep(least.saturating_sub(state.common.clock.now().since(start))).await;
            }
        }
        Ok(moved)
    }
}

/// Until when a file waits for others, before it is encoded by itself.
pub(super) fn waits_until(file: &StagedFile) -> WallTime {
    due_and(file, 1)
}

/// Until when a file waits for a chunk to be filled.
pub(super) fn fills_until(file: &StagedFile) -> WallTime {
    due_and(file, 2)
}

/// When its time has come, and a part of the wait behind that.
fn due_and(file: &StagedFile, part: u32) -> WallTime {
    let wait = file.after.duration().min(WAIT_MAX) / part;
    WallTime(due_at(file).0.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)))
}
