//! Handing on what waits: one append along the chain for many requests, and what it comes to.

use std::sync::Arc;

use cairn_env::SharedBuf;
use cairn_format::crc_table::encode_crcs;
use cairn_format::journal_record::CreateRecord;
use cairn_types::{Epoch, crc32c_blocks};
use cairn_wire::Opcode;
use cairn_wire::data::{AppendRequest, ChunkHeader};
use cairn_wire::error::WireError;

use super::super::Inner;
use super::super::chain::{Along, ChainJoin, Part};
use super::state::{Batch, Parked, Waiting};
use super::{Answers, PUBLISHABLE, RecordChunk, answer};
use crate::disk::{AppendOp, Appended, Done};

impl Inner {
    /// Hands on what waits, one caller at a time.
    pub(super) fn pump_records(self: &Arc<Self>, chunk: &Arc<RecordChunk>) {
        if std::mem::replace(&mut chunk.state.lock().pumping, true) {
            return;
        }
        loop {
            let mut state = chunk.state.lock();
            let Some(batch) = state.next_batch(&self.parts.pool) else {
                state.pumping = false;
                return;
            };
            drop(state);
            self.send_batch(chunk, batch);
        }
    }

    fn send_batch(self: &Arc<Self>, chunk: &Arc<RecordChunk>, batch: Batch) {
        let Batch { asked, mut data, offset, follows, end, sync } = batch;
        let (inner, here) = (self.clone(), chunk.clone());
        let join = ChainJoin::own(chunk.chain.is_empty(), move |outcome| inner.batch_done(&here, asked, end, outcome));
        let (member, id) = (&chunk.member, chunk.id);
        let (own, stamp) = (join.clone(), self.stamp(member.disk));
        let part = move |length, durable| Part { length, durable, members: vec![stamp] };
        let header = ChunkHeader {
            disk: member.disk.get(),
            pg: id.pg.get(),
            index: id.index,
            epoch: member.pg.epoch.get(),
            session: chunk.session.0,
        };
        if data.is_empty() {
            let done: Done<u64> = Box::new(move |outcome| {
                own.here(outcome.map(|length| part(length, length)).map_err(|error| error.to_wire()));
            });
            if let Err(error) = member.store.sync(id, done) {
                return join.here(Err(error.to_wire()));
            }
            let along = Along { opcode: Opcode::Sync, header, chain: chunk.chain.clone(), trace_id: 0 };
            return self.pass_along(member, id, &along, &join);
        }
        let (bytes, mut crcs, mut encoded) = (data.len(), Vec::new(), Vec::new());
        data.pad_to_align();
        crc32c_blocks(&data, &mut crcs);
        encode_crcs(&crcs, &mut encoded);
        let (payload, creation_epoch): (SharedBuf, Epoch) = (data.freeze(), member.pg.epoch);
        let create = CreateRecord {
            chunk: id,
            scheme: member.pg.scheme,
            shard: member.shard(),
            volume: member.pg.volume,
            creation_epoch,
            session: chunk.session,
        };
        let op = AppendOp {
            create,
            may_create: true,
            offset,
            follows: Some(follows),
            bytes,
            data: payload.clone(),
            crcs,
            row_crcs: Vec::new(),
            sync,
            repair: false,
            as_of: None,
        };
        self.pace.clients_moved(bytes as u64);
        let done: Done<Appended> = Box::new(move |outcome| {
            own.here(outcome.map(|done| part(done.length, done.durable)).map_err(|error| error.to_wire()));
        });
        if let Err(error) = member.store.append(op, done) {
            return join.here(Err(error.to_wire()));
        }
        let asked = AppendRequest {
            chunk: Some(header),
            creation_epoch: creation_epoch.get(),
            offset,
            crcs: encoded,
            chain: chunk.chain.clone(),
            sync,
            scheme: u32::from(member.pg.scheme.code()),
            repair: false,
            row_crcs: Vec::new(),
            follows: Some(follows),
            local: None,
        };
        self.forward((member, id), asked, payload.slice(..bytes), &join, 0);
    }

    /// All members have a batch, or one failed: then the chunk takes no more.
    fn batch_done(
        self: &Arc<Self>,
        chunk: &Arc<RecordChunk>,
        asked: Vec<Waiting>,
        end: u64,
        outcome: Result<Part, WireError>,
    ) {
        let now = self.clock.now();
        let mut answers = Answers::new();
        let mut state = chunk.state.lock();
        state.in_flight -= 1;
        match state.judge(chunk, outcome) {
            Ok(()) => {
                let mut publish = state.is_publishing_due(&asked, end, now);
                for waiting in asked {
                    if waiting.level == PUBLISHABLE {
                        state.parked.push(Parked { reply: waiting.reply, end });
                    } else {
                        let mut response = state.response(end);
                        response.publish = std::mem::take(&mut publish);
                        answers.push((waiting.reply, Ok(response)));
                    }
                }
            }
            Err(error) => {
                answers.extend(asked.into_iter().map(|waiting| (waiting.reply, Err(error.clone()))));
                if !state.sealed {
                    answers.extend(state.fail(chunk.id, &error));
                }
            }
        }
        answers.extend(state.turns(now));
        drop(state);
        answer(answers);
        self.pump_records(chunk);
    }
}
