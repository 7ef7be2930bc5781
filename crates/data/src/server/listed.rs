//! What other members have, by their lists of chunks: one chunk, or all that a question is about, page by page.

use cairn_format::pg_state::PgStateRecord;
use cairn_rpc::Payload;
use cairn_types::{ChunkId, DiskId, Epoch, ErrorCode};
use cairn_wire::Opcode;
use cairn_wire::data::{ChunkSummary, ListChunksRequest, ListChunksResponse};
use cairn_wire::error::WireError;

use super::Inner;
use super::disk_calls::on_control;
use super::member::Member;
use super::read::list;

/// Chunks in one page of a list.
const PAGE: u32 = 1000;

impl Inner {
    /// What another member has of a chunk.
    pub(super) async fn listed(
        &self,
        pg: &PgStateRecord,
        disk: DiskId,
        id: ChunkId,
    ) -> Result<Option<ChunkSummary>, WireError> {
        let request = ListChunksRequest {
            disk: disk.get(),
            pg: id.pg.get(),
            after_index: id.index.saturating_sub(1),
            from_start: id.index == 0,
            count_max: 1,
            ..ListChunksRequest::default()
        };
        let page: ListChunksResponse = self.ask(pg, disk, Opcode::ListChunks, &request, Payload::None).await?.0;
        Ok(page.chunks.into_iter().find(|chunk| chunk.index == id.index))
    }

    /// All chunks of the group that a member has, this one included, as far as `which` asks for them. With `epoch` an
    /// answer of another one is refused.
    pub(super) async fn list_all(
        &self,
        member: &Member,
        disk: DiskId,
        which: ListChunksRequest,
        epoch: Option<Epoch>,
    ) -> Result<Vec<ChunkSummary>, WireError> {
        let mut all: Vec<ChunkSummary> = Vec::new();
        loop {
            let request = ListChunksRequest {
                disk: disk.get(),
                pg: member.pg.pg.get(),
                after_index: all.last().map_or(0, |last| last.index),
                from_start: all.is_empty(),
                count_max: PAGE,
                ..which
            };
            let page: ListChunksResponse = match disk == member.disk {
                true => {
                    let asker = member.clone();
                    on_control(&member.store, move |_| Ok(list(&asker, &request))).await?
                }
                false => self.ask(&member.pg, disk, Opcode::ListChunks, &request, Payload::None).await?.0,
            };
            if epoch.is_some_and(|epoch| page.epoch != epoch.get()) {
                let text = format!("{disk} is at e{}, the primary at {}", page.epoch, member.pg.epoch);
                return Err(WireError::new(ErrorCode::NotServing, text));
            }
            let end = page.end || page.chunks.is_empty();
            all.extend(page.chunks);
            if end {
                return Ok(all);
            }
        }
    }
}
