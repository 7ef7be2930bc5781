//! Volatile bytes of ended sessions: what members have of them durably stays, the rest is cut off the files.
//!
//! A client that closes files before they are durable makes them so some seconds later. If it dies before, its session
//! ends, and the leader has the chunks sealed, which makes durable what members have in memory, asks how long they are,
//! and puts the outcome into the log. Nothing is remembered: a leader that dies leaves files that are still listed.
//!
//! Invariant: something is cut off only after all serving members of its group have listed the chunk, sealed, and
//! shorter, or have listed that they lack it. Not here: the rules (meta-core: `volatile`), how members agree on a seal
//! (`data`).

use std::collections::BTreeMap;

use cairn_meta_core::VolatileFile;
use cairn_rpc::{CallOptions, Client};
use cairn_types::{MemberState, NodeId, PgId};
use cairn_wire::Opcode;
use cairn_wire::data::{ChunkHeader, PgState, SealRequest, SealResponse};
use cairn_wire::meta::EndVolatile;

use crate::chunk_lists::GroupLists;
use crate::config::MetaTimings;
use crate::partition::Partition;
use crate::stats::count;

/// Listed files that are looked at together.
const PAGE: usize = 1024;

/// Chunks and how many bytes of them are durable; `None`: that is not known yet.
type Lengths = BTreeMap<(u32, u32), Option<u64>>;

/// Looks after files of ended sessions until the task is ended.
pub(crate) async fn run(partition: &Partition, client: &Client, timings: &MetaTimings) {
    let state = &partition.state;
    loop {
        partition.state.pause(timings.volatile_tick).await;
        let mut after = 0;
        while let Some(term) = state.leading_term() {
            let (files, last) = state.namespace.read().ended_volatile(after, PAGE);
            let settler = Settler { partition, client, timings, term };
            let mut lengths = Lengths::new();
            for file in files {
                settler.settle(&file, &mut lengths).await;
            }
            match last {
                Some(last) => after = last,
                None => break,
            }
        }
    }
}

struct Settler<'a> {
    partition: &'a Partition,
    client: &'a Client,
    timings: &'a MetaTimings,
    term: u64,
}

impl Settler<'_> {
    /// Ends a file's range, if its chunks are known by now.
    async fn settle(&self, file: &VolatileFile, lengths: &mut Lengths) {
        let state = &self.partition.state;
        let Some(durable_to) = self.durable_to(file, lengths).await else { return };
        if state.leading_term() != Some(self.term) {
            return;
        }
        let VolatileFile { inode, session, from, to } = *file;
        let request = EndVolatile { inode, session, from, to, durable_to };
        match self.partition.propose_own(Opcode::EndVolatile, &request).await {
            Ok(()) if durable_to < to => {
                count(&state.common.stats.volatile_cut);
                let text = "the end of a file was never durable and was cut off: its writer and its members crashed";
                tracing::info!(partition = %state.id, inode, durable_to, to, text);
            }
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(partition = %state.id, inode, %error, "a closed file is settled later");
            }
        }
    }

    /// Up to where the range is durable.
    async fn durable_to(&self, file: &VolatileFile, lengths: &mut Lengths) -> Option<u64> {
        let mut at = file.from;
        loop {
            let parts = self.partition.state.namespace.read().volatile_parts(file, at);
            let last = parts.last().map(|part| part.file_offset + part.length);
            for part in &parts {
                let chunk = (part.pg, part.index);
                let length = match lengths.get(&chunk) {
                    Some(known) => *known,
                    None => *lengths.entry(chunk).or_insert(self.length(chunk).await),
                };
                let there = length?.saturating_sub(part.chunk_offset);
                if there < part.length {
                    return Some(part.file_offset + there);
                }
            }
            match last {
                Some(last) if last < file.to => at = last,
                _ => return Some(file.to),
            }
        }
    }

    /// Durable bytes of a chunk, which takes no more from then on.
    async fn length(&self, (pg, index): (u32, u32)) -> Option<u64> {
        let (group, mut lists) = {
            let map = self.partition.state.common.map.read();
            let Some(group) = map.pg(PgId(pg)).filter(|group| !group.retired) else {
                // A group that is too new to be known here, or one that is gone with all that it had.
                return (map.pg_newest()? >= PgId(pg)).then_some(0);
            };
            let lists = GroupLists::new(group, &map, self.client.clone(), self.timings.list_deadline);
            (group.clone(), lists.starting_at(index))
        };
        self.seal(&group, index).await;
        let copies = lists.next().await.filter(|listed| listed.index == index).map(|listed| listed.copies);
        if !lists.all_serving_are_known() {
            return None;
        }
        let serving = copies.unwrap_or_default().into_iter().filter(|(member, _)| lists.is_known(*member));
        let mut length = 0;
        for (_, chunk) in serving {
            // All of a sealed chunk is durable, if not yet at this moment.
            if !chunk.sealed || chunk.durable_length < chunk.length {
                return None;
            }
            length = length.max(chunk.durable_length);
        }
        Some(length)
    }

    /// Best effort: a primary seals idle chunks by itself, only later.
    async fn seal(&self, group: &PgState, index: u32) {
        let state_of = |state: u32| u8::try_from(state).ok().and_then(MemberState::from_code);
        let serves = |state: u32| state_of(state) == Some(MemberState::Serving);
        let Some(primary) = group.members.iter().find(|member| serves(member.state)) else { return };
        let receives = |state: u32| state_of(state).is_some_and(MemberState::receives_writes);
        let others = group.members.iter().filter(|member| member.disk != primary.disk && receives(member.state));
        let chain = others.map(|member| member.disk).collect();
        let header = ChunkHeader { disk: primary.disk, pg: group.pg, index, epoch: group.epoch, session: 0 };
        let request = SealRequest { chunk: Some(header), chain };
        let address = self.partition.state.common.map.read().address(NodeId(primary.node)).map(str::to_owned);
        let Some(address) = address else { return };
        let options = CallOptions::new(self.timings.list_deadline);
        let call = self.client.call(&address, Opcode::Seal.code(), &request, (), options);
        if let Err(error) = call.await.and_then(|response| response.decode::<SealResponse>()) {
            tracing::debug!(pg = group.pg, index, %error, "a chunk is sealed later");
        }
    }
}
