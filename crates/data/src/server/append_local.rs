//! Appends whose bytes are on the disk that is asked already, in a copy of another group or in another chunk of the
//! same one: a copy becomes a shard where it lies, or the rest of a shard a denser one, and no byte of it is sent.
//!
//! Invariants: it is asked of an erasure group, about a copy of the same volume or a shard of the same place; what is
//! read matches the checksums that came, so whatever the copy is (older, being filled, written meanwhile), the shard
//! gets what the asker has computed parity of, or nothing. Who asks has read the bytes, or could not know their
//! checksums. From there on it is an append like any other. Not here: what is put into one shard (`client`).

use std::sync::Arc;

use cairn_rpc::{PeerInfo, Reply};
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, PgId};
use cairn_wire::data::{AppendRequest, LocalBlocks};
use cairn_wire::error::WireError;
use parking_lot::Mutex;

use super::member::{bad_request, unknown_pg};
use super::{Inner, Refused};
use cairn_chunk_core::append::APPEND_MAX;

impl Inner {
    /// `peer`: who asks; `with_payload`: and sent bytes along.
    pub(super) fn append_local(
        self: &Arc<Self>,
        asked: AppendRequest,
        local: LocalBlocks,
        (peer, with_payload): (&Arc<PeerInfo>, bool),
        trace: u64,
        reply: Reply,
    ) -> Result<(), Refused> {
        let (disk, from) = match self.check_local(&asked, &local, with_payload) {
            Ok(checked) => checked,
            Err(error) => return Err((reply, error)),
        };
        let store = match self.disk_store(disk) {
            Ok(store) => store,
            Err(error) => return Err((reply, error)),
        };
        let slot = Arc::new(Mutex::new(Some(reply)));
        let (taken, inner, peer) = (slot.clone(), self.clone(), peer.clone());
        let whole = AppendRequest { local: None, ..asked };
        let read = store.read(
            from,
            local.offset,
            u64::from(local.length),
            Box::new(move |outcome| {
                let Some(reply) = taken.lock().take() else { return };
                let outcome = match outcome {
                    Ok(blocks) => inner.append_payload(whole, Some(blocks.data), &peer, trace, reply),
                    Err(error) => Err((reply, error.to_wire())),
                };
                if let Err((reply, error)) = outcome {
                    reply.err(error);
                }
            }),
        );
        match read {
            Ok(()) => Ok(()),
            Err(error) => match slot.lock().take() {
                Some(reply) => Err((reply, error.to_wire())),
                None => Ok(()),
            },
        }
    }

    /// The disk, and the chunk on it.
    fn check_local(
        &self,
        asked: &AppendRequest,
        local: &LocalBlocks,
        with_payload: bool,
    ) -> Result<(DiskId, ChunkId), WireError> {
        let (member, _) = self.chunk_member(asked.chunk.as_ref(), false)?;
        let (whole, length) = (local.offset.is_multiple_of(BLOCK_SIZE as u64), local.length as usize);
        if with_payload || !member.is_striped() || !whole || length == 0 || length > APPEND_MAX {
            return Err(bad_request(
                "blocks of a copy become part of a shard on the same disk, up to 1 MiB, without a payload",
            ));
        }
        // Else anybody could fill the memory with what is known of groups that are not here. What is of another volume
        // is told like what is not here.
        let record = member.store.pg_files().get(PgId(local.pg));
        if record.is_none_or(|record| record.volume != member.pg.volume) {
            return Err(unknown_pg(member.disk, PgId(local.pg)));
        }
        let copy = self.member(member.disk.get(), local.pg, 0)?;
        if copy.is_striped() && copy.pg.pg != member.pg.pg {
            return Err(bad_request("what becomes a shard is a copy, or a shard of the same group"));
        }
        copy.check_moving()?;
        Ok((member.disk, ChunkId { pg: PgId(local.pg), index: local.index }))
    }
}
