//! What the check of a volume found lost is asked for once, of each member that serves: so that data nodes know that
//! the metadata refers to it, and the status of the cluster names it as long as nobody has it.
//!
//! Invariant: only chunks that the present version of the namespace names too; at most [`CHUNKS_MAX`] of one check. Not
//! here: what a member concludes (data: `server/missing.rs`).

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_node_agent::MapView;
use cairn_rpc::{Call, CallOptions, Client};
use cairn_types::{BLOCK_SIZE, MemberState, NodeId, PgId};
use cairn_wire::Opcode;
use cairn_wire::data::{ChunkHeader, ReadRequest, ReadResponse};

/// Chunks that are named by one check. Data nodes remember as many.
const CHUNKS_MAX: usize = 1024;
/// Requests on their way at the same time.
const AT_ONCE: usize = 64;

/// Chunks of which something is lost, each with a block that is: by group and index.
#[derive(Default)]
pub(crate) struct LostChunks(BTreeMap<(u32, u32), u64>);

impl LostChunks {
    /// A block of a chunk that cannot be read, whoever comes back.
    pub(crate) fn note(&mut self, pg: u32, index: u32, block: u64) {
        if self.0.len() < CHUNKS_MAX {
            self.0.entry((pg, index)).or_insert(block);
        }
    }

    /// Asks the members for them. Who does not answer hears it from the next check.
    pub(crate) async fn tell(self, client: &Client, map: &parking_lot::RwLock<MapView>, deadline: Duration) {
        let requests: Vec<(String, ReadRequest)> = {
            let map = map.read();
            self.0.iter().flat_map(|((pg, index), block)| requests(&map, *pg, *index, *block)).collect()
        };
        for part in requests.chunks(AT_ONCE) {
            let ask = |(address, request): &(String, ReadRequest)| {
                client.call(address, Opcode::Read.code(), request, (), CallOptions::new(deadline))
            };
            let calls: Vec<Call> = part.iter().map(ask).collect();
            for call in calls {
                // That it is not there is the usual answer.
                if let Err(error) = call.await.and_then(|response| response.decode::<ReadResponse>()) {
                    tracing::debug!(%error, "a member was asked for what is lost");
                }
            }
        }
    }
}

/// For each member that serves.
fn requests(map: &MapView, pg: u32, index: u32, block: u64) -> Vec<(String, ReadRequest)> {
    let Some(state) = map.pg(PgId(pg)) else { return Vec::new() };
    let serving = state.members.iter().filter(|member| member.state == u32::from(MemberState::Serving.code()));
    let request = |disk: u32| ReadRequest {
        chunk: Some(ChunkHeader { disk, pg, index, epoch: 0, session: 0 }),
        offset: block * BLOCK_SIZE as u64,
        length: 1,
        of_check: true,
        ..ReadRequest::default()
    };
    let at = |member: &cairn_wire::data::PgMember| {
        let node = map.node(NodeId(member.node)).filter(|node| node.up && !node.address.is_empty())?;
        Some((node.address.clone(), request(member.disk)))
    };
    serving.filter_map(at).collect()
}
