//! Files that lie in columns of stripe groups are encoded together, on a node of the core rack, before any is encoded
//! by itself: so nothing of them crosses racks. What is left over waits for others for as long again as it had to wait,
//! at most an hour, and is then encoded by file.
//!
//! Bounds: [`CHUNKS_MAX`] chunks of a rack in one look; fewer and fewer attempts where they fail. Not here: what is put
//! together (`client`).

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_meta_core::{StagedFile, WHOLE_SHARDS_LEVEL};
use cairn_types::{ErrorCode, PgId, WallTime};
use cairn_wire::Opcode;
use cairn_wire::data::{EncodeRequest, EncodeResponse};
use cairn_wire::error::WireError;
use tokio::time::sleep;

use super::{DEADLINE, LEFT, MORE, RATE, Retry, Stager, due_at};
use crate::movers::Movers;
use crate::stats::add;

/// Chunks that are made of files of one rack before the list is looked at again.
const CHUNKS_MAX: usize = 16;
/// After a failure a rack is left alone for twice as long each time, up to 2^10 times as long as at first.
const TOGETHER_DOUBLINGS: u32 = 10;
/// A file that could be encoded together with others waits for them for so long at most.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Files that have bytes in columns with one core rack, and one of those columns.
#[derive(Default)]
struct OfRack {
    pg: u32,
    inodes: Vec<u64>,
}

impl Stager {
    /// Encodes together what can be, and leaves in the list what is to be encoded by file now.
    pub(super) async fn work_together(&mut self, due: &mut Vec<StagedFile>, term: u64) {
        // Members of before do not know what comes of it.
        if self.partition.state.namespace.read().feature_level() < u32::from(WHOLE_SHARDS_LEVEL) {
            return;
        }
        let mut racks: BTreeMap<String, OfRack> = BTreeMap::new();
        for file in due.iter() {
            if let Some(rack) = self.core_rack(file.pg) {
                let of_rack = racks.entry(rack).or_default();
                of_rack.pg = file.pg;
                of_rack.inodes.push(file.inode);
            }
        }
        for (rack, of_rack) in racks {
            if self.partition.state.leading_term() != Some(term) || self.held() {
                return due.clear();
            }
            let now = self.partition.state.common.clock.now();
            if self.together.get(&rack).is_some_and(|retry| retry.not_before > now) {
                continue;
            }
            match self.encode_rack(&rack, of_rack, term).await {
                Ok(()) => drop(self.together.remove(&rack)),
                Err(error) => {
                    tracing::debug!(partition = %self.partition.state.id, rack, %error, "files could not be encoded together");
                    // Each attempt may have written a chunk that nothing names.
                    let tries = self.together.get(&rack).map_or(0, |retry| retry.tries);
                    let pause = self.timings.stage_retry * 2u32.pow(tries.min(TOGETHER_DOUBLINGS));
                    let not_before = self.partition.state.common.clock.now() + pause;
                    self.together.insert(rack, Retry { not_before, tries: tries.saturating_add(1) });
                }
            }
        }
        let wall = self.partition.state.common.clock.wall();
        due.retain(|file| self.core_rack(file.pg).is_none() || waited_for(file) <= wall);
    }

    /// The core rack of a column to which files are written; `None`: it is no column, or stripe groups are off.
    fn core_rack(&self, pg: u32) -> Option<String> {
        let map = self.partition.state.common.map.read();
        map.column(PgId(pg)).filter(|column| column.writable).map(|column| column.core_rack.clone())
    }

    async fn encode_rack(&self, rack: &str, OfRack { pg, inodes }: OfRack, term: u64) -> Result<(), WireError> {
        let state = &self.partition.state;
        let mut movers = Movers::in_rack(self.partition.clone(), self.client.clone(), pg, rack);
        let request = EncodeRequest { volume: state.volume.get(), inode: 0, from: 0, together: inodes };
        for _ in 0..CHUNKS_MAX {
            if self.held() {
                break;
            }
            let start = state.common.clock.now();
            let done: EncodeResponse = movers.ask(Opcode::Encode, &request, DEADLINE, term).await?;
            add(&state.common.stats.encoded_bytes, done.moved_bytes);
            add(&state.common.stats.encoded_together_bytes, done.moved_bytes);
            add(&state.common.stats.encoding_freed_bytes, done.freed_bytes);
            {
                let mut desk = self.desk().lock();
                desk.encoded_bytes += done.moved_bytes;
                desk.freed_bytes += done.freed_bytes;
                if done.outcome == LEFT && !done.reason.is_empty() {
                    desk.last_reason = format!("files in rack {rack}: {}", done.reason);
                }
            }
            if !done.reason.is_empty() {
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
        Ok(())
    }
}

/// Until when a file waits for others.
fn waited_for(file: &StagedFile) -> WallTime {
    let wait = file.after.duration().min(WAIT_MAX);
    WallTime(due_at(file).0.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)))
}
