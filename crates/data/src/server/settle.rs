//! Making the serving members of a replicated group equal in what was overwritten: at the beginning of an epoch, and
//! when a member did not take an overwrite.
//!
//! Every serving member has all that was acknowledged, so the primary's table counts: blocks that differ are sent to
//! the others under a number above all that are known, which also keeps out whatever is still on its way. As long as
//! the primary has given a chunk no number in its epoch, a member with a later one counts before it
//! ([`Inner::take_later`]): the primary's disk may have forgotten what it had synced. Invariants: for a chunk whose
//! members may differ nothing is taken before they are equal; it can be interrupted anywhere and done again.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cairn_chunk_core::fence;
use cairn_chunk_core::overwrite::{OVERWRITE_BLOCKS_MAX, OverwriteSum, differing_blocks, needs_settling};
use cairn_env::AlignedBuf;
use cairn_format::crc_table::encode_crcs;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_replica_core::reconcile::{How, Purpose, Step, Verdict};
use cairn_replica_core::source::Source;
use cairn_rpc::Payload;
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, ErrorCode};
use cairn_wire::Opcode;
use cairn_wire::data::{
    ChunkHeader, ChunkSummary, ListChunksRequest, OverwriteRequest, OverwriteResponse, OverwriteVector,
};
use cairn_wire::error::WireError;

use super::Inner;
use super::allocate::others;
use super::copy::Theirs;
use super::disk_calls::{on_control, wait};
use super::fetch::is_about_bytes;
use super::heal::Copy;
use super::member::Member;
use super::overwrite::wire;
use super::witness::{number_in, own_witness};
use crate::disk::metrics::add;
use crate::disk::{ChunkTables, Done, OverwriteOp, OverwriteOrder, OverwriteRun};

/// Before looking again whether overwrites of a chunk are still under way.
const NAP: Duration = Duration::from_millis(2);

impl Inner {
    /// As primary, at the beginning of an epoch: compares the numbers and tables of all overwritten chunks. From then
    /// on overwrites are taken.
    pub(super) async fn settle_epoch(self: &Arc<Self>, member: &Member) -> Result<(), WireError> {
        // A start of an epoch that is repeated: overwrites may be under way by now.
        if member.runtime.overwrites.lock().at(member.pg.epoch).is_none_or(|memory| memory.open) {
            return Ok(());
        }
        let mut sums: BTreeMap<u32, Vec<OverwriteSum>> = BTreeMap::new();
        let receivers: Vec<DiskId> = std::iter::once(member.disk).chain(others(&member.pg, member.disk)).collect();
        for disk in &receivers {
            let serving = fence::serving(&member.pg).any(|serving| serving == *disk);
            let which = ListChunksRequest { overwritten_only: true, ..ListChunksRequest::default() };
            for theirs in self.list_all(member, *disk, which, Some(member.pg.epoch)).await? {
                sums.entry(theirs.index).or_default().push(sum_of(*disk, serving, &theirs));
            }
        }
        let serving = fence::serving(&member.pg).count();
        for (index, sums) in sums {
            // Who does not list it lacks it, or has no overwrite of it.
            let listed = sums.iter().filter(|sum| sum.serving).count() == serving;
            if listed && !needs_settling(&sums) {
                continue;
            }
            let id = ChunkId { pg: member.pg.pg, index };
            match self.settle_chunk(member, id).await {
                Ok(()) => {}
                // A block is bad here, or there: it may be healed, and keeps no other chunk waiting.
                Err(error) if is_about_bytes(&error) => {
                    tracing::warn!(chunk = %id, %error, "members cannot be made equal now; what is overwritten in this chunk waits");
                    self.unsettle(member, index);
                }
                Err(error) => return Err(error),
            }
        }
        let mut memory = member.runtime.overwrites.lock();
        if let Some(memory) = memory.at(member.pg.epoch) {
            memory.open = true;
        }
        Ok(())
    }

    /// As primary: members of a chunk may differ. Nothing is taken for it before they are equal.
    pub(super) fn unsettle(self: &Arc<Self>, member: &Member, index: u32) {
        let mut memory = member.runtime.overwrites.lock();
        let Some(memory) = memory.at(member.pg.epoch) else { return };
        memory.unsettled.insert(index);
        if !std::mem::replace(&mut memory.settling, true) {
            let (inner, member) = (self.clone(), member.clone());
            self.tasks.spawn(async move { inner.settle_unsettled(member).await });
        }
    }

    /// As primary, in the middle of an epoch: chunks of which a member did not take an overwrite.
    pub(super) async fn settle_unsettled(self: Arc<Self>, member: Member) {
        let mut after = None;
        while self.is_current(&member) {
            let next = {
                let mut memory = member.runtime.overwrites.lock();
                let Some(memory) = memory.at(member.pg.epoch) else { return };
                if memory.unsettled.is_empty() {
                    memory.settling = false;
                    return;
                }
                memory.next_unsettled(after)
            };
            let Some(index) = next else {
                after = None;
                tokio::time::sleep(NAP).await;
                continue;
            };
            after = Some(index);
            match self.settle_chunk(&member, ChunkId { pg: member.pg.pg, index }).await {
                Ok(()) => {
                    let mut memory = member.runtime.overwrites.lock();
                    let Some(memory) = memory.at(member.pg.epoch) else { return };
                    memory.unsettled.remove(&index);
                }
                Err(error) => {
                    tracing::debug!(pg = %member.pg.pg, index, %error, "making members equal is repeated");
                    self.note_hop(&member.pg, &error);
                    tokio::time::sleep(self.config.retry_pause).await;
                }
            }
        }
    }

    /// Makes one chunk equal on all serving members. Nothing is under way for it, or it was ordered in an earlier
    /// epoch.
    async fn settle_chunk(self: &Arc<Self>, member: &Member, id: ChunkId) -> Result<(), WireError> {
        let mut witnesses = Vec::new();
        for disk in others(&member.pg, member.disk) {
            witnesses.push(self.ask_witness(member, disk, id).await?);
        }
        witnesses.push(own_witness(member, id));
        let Verdict::Act(plan) = self.decide(member, Purpose::Equalise, id, &witnesses) else { return Ok(()) };
        let (mut number, mut copied) = (OverwriteNumber::NONE, 0);
        for step in plan.steps {
            match step {
                Step::Level { source: Source::Copy(sources), how: How::Later(here), .. } => {
                    self.take_later(member, id, &sources, here).await?;
                }
                Step::Number { disk, number: above } => {
                    number = above;
                    self.settle_member(member, disk, id, number, &[], None).await?;
                }
                Step::Level { target, how: How::Equal(number), .. } => {
                    copied += self.send_differing(member, target, id, number).await?;
                }
                other => unreachable!("{other:?} makes nobody equal"),
            }
        }
        tracing::info!(chunk = %id, %number, copied, "members were compared after an overwrite that not all had acknowledged");
        Ok(())
    }

    /// As primary, before anything is sent to others: blocks of the serving member with the latest number, the first
    /// of `sources`. That one has all that was acknowledged, as this one has unless its disk forgot it; and what nobody
    /// was told of may be there or not. The number `here` stays, so that an interruption begins it anew.
    async fn take_later(
        self: &Arc<Self>,
        member: &Member,
        id: ChunkId,
        sources: &[DiskId],
        here: OverwriteNumber,
    ) -> Result<(), WireError> {
        // The table of the latest; what is bad there, another one may have as that table says.
        let theirs = self.table_of(&member.pg, sources[0], id).await?;
        let latest = number_in(&theirs.summary);
        let store = member.store.clone();
        let ours = on_control(&member.store, move |_| store.tables(id)).await?;
        let runs = differing(member, &ours, &theirs);
        let (mut taken, mut lacking) = (0, 0);
        for block in runs.into_iter().flatten() {
            let crc = theirs.crcs[block as usize];
            match self.later_block(member, id, sources, (block, crc), theirs.summary.length).await? {
                Some(data) => {
                    let run = OverwriteRun { block, data: data.freeze(), crcs: vec![crc] };
                    self.take_run(member, id, here, run).await?;
                    taken += 1;
                }
                None => lacking += 1,
            }
        }
        if lacking > 0 {
            tracing::error!(chunk = %id, lacking, "blocks that other members have overwritten later are bad there: the earlier ones stay");
        }
        if taken + lacking > 0 {
            tracing::warn!(chunk = %id, %here, there = %latest, taken, "others have later overwrites than this disk: it may have forgotten what it had synced");
        } else {
            // As after a comparison that ended when others had the new number and this one had not.
            tracing::info!(chunk = %id, %here, there = %latest, "others give the same blocks a later number than this disk");
        }
        Ok(())
    }

    /// A block as a table says, from the first that has it; `None` if nobody has.
    async fn later_block(
        self: &Arc<Self>,
        member: &Member,
        id: ChunkId,
        sources: &[DiskId],
        (block, crc): (u32, u32),
        end: u64,
    ) -> Result<Option<AlignedBuf>, WireError> {
        let from = u64::from(block) * BLOCK_SIZE as u64;
        let length = (end - from).min(BLOCK_SIZE as u64) as u32;
        for source in sources {
            match self.fetch(&member.pg, *source, id, from, length).await {
                Ok((data, crcs)) if crcs == [crc] => return Ok(Some(data)),
                Ok(_) => {}
                Err(error) if is_about_bytes(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Sends a serving member the blocks in which its table differs; how many.
    async fn send_differing(
        self: &Arc<Self>,
        member: &Member,
        disk: DiskId,
        id: ChunkId,
        number: OverwriteNumber,
    ) -> Result<u32, WireError> {
        let store = member.store.clone();
        let ours = on_control(&member.store, move |_| store.tables(id)).await?;
        let theirs = self.table_of(&member.pg, disk, id).await?;
        let mut copied = 0;
        for run in differing(member, &ours, &theirs) {
            for start in run.clone().step_by(OVERWRITE_BLOCKS_MAX as usize) {
                let blocks = start..(start + OVERWRITE_BLOCKS_MAX).min(run.end);
                match self
                    .settle_member(member, disk, id, number, std::slice::from_ref(&blocks), Some(ours.info.length))
                    .await
                {
                    Ok(()) => copied += blocks.len() as u32,
                    // Freed just now: nobody asks for them.
                    Err(error) if error.code == ErrorCode::ChunkDeleted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        add(&member.store.metrics().settled_blocks, u64::from(copied));
        Ok(copied)
    }

    /// Sets the number of a chunk on a member, this one included, and with `length` blocks of it as they are here.
    async fn settle_member(
        self: &Arc<Self>,
        member: &Member,
        disk: DiskId,
        id: ChunkId,
        number: OverwriteNumber,
        runs: &[Range<u32>],
        length: Option<u64>,
    ) -> Result<(), WireError> {
        if disk == member.disk {
            let order = OverwriteOrder::Settle { number, serving: true };
            let op = OverwriteOp { chunk: id, epoch: member.pg.epoch, order, runs: Vec::new() };
            let _number: OverwriteNumber = wait(|done| member.store.overwrite(op, done).map(drop)).await?;
            return Ok(());
        }
        let (mut payload, mut crcs, mut vectors) = (Payload::None, Vec::new(), Vec::new());
        for run in runs {
            let from = u64::from(run.start) * BLOCK_SIZE as u64;
            let to = (u64::from(run.end) * BLOCK_SIZE as u64).min(length.unwrap_or(u64::MAX));
            let (data, sums) = match self.piece(member, member.disk, id, from, (to - from) as u32).await {
                Err(error) if error.code == ErrorCode::ChecksumMismatch => {
                    self.heal_own(member, id, run.clone()).await?;
                    return Err(error);
                }
                piece => piece?,
            };
            encode_crcs(&sums, &mut crcs);
            vectors.push(OverwriteVector { block: run.start, blocks: run.len() as u32 });
            payload = Payload::One(data.freeze());
        }
        let header = ChunkHeader {
            disk: disk.get(),
            pg: id.pg.get(),
            index: id.index,
            epoch: member.pg.epoch.get(),
            session: 0,
        };
        let request = OverwriteRequest {
            chunk: Some(header),
            vectors,
            crcs,
            number: Some(wire(number)),
            settle: true,
            ..OverwriteRequest::default()
        };
        let answer: Result<(OverwriteResponse, _), _> =
            self.ask(&member.pg, disk, Opcode::Overwrite, &request, payload).await;
        match answer {
            // It was freed or lost there since; what is brought back is copied anew.
            Err(error) if matches!(error.code, ErrorCode::Missing | ErrorCode::ChunkDeleted) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Blocks that are to be sent to others and are bad here: what another serving member has is taken, which has
    /// everything acknowledged too, and then it begins anew.
    async fn heal_own(self: &Arc<Self>, member: &Member, id: ChunkId, blocks: Range<u32>) -> Result<(), WireError> {
        for block in blocks {
            if on_control(&member.store, move |store| store.verify_block(id, block)).await? {
                continue;
            }
            let Some(Copy { good, .. }) = self.good_copy(member, id, block).await? else { continue };
            let number = member.store.info(id).map_or(OverwriteNumber::NONE, |here| here.overwrite);
            let run = OverwriteRun { block, data: good.data, crcs: vec![good.crc] };
            self.take_run(member, id, number, run).await?;
        }
        Ok(())
    }

    /// A block as another member has it, under a number that the chunk has here.
    async fn take_run(
        &self,
        member: &Member,
        id: ChunkId,
        number: OverwriteNumber,
        run: OverwriteRun,
    ) -> Result<(), WireError> {
        let order = OverwriteOrder::Settle { number, serving: true };
        let op = OverwriteOp { chunk: id, epoch: member.pg.epoch, order, runs: vec![run] };
        wait(|done: Done<OverwriteNumber>| member.store.overwrite(op, done).map(drop)).await.map(drop)
    }

    /// Whether a chunk was overwritten on a member since its table was taken.
    pub(super) async fn has_moved_on(
        &self,
        member: &Member,
        disk: DiskId,
        id: ChunkId,
        number: OverwriteNumber,
    ) -> bool {
        let now = self.ask_witness(member, disk, id).await;
        now.is_ok_and(|now| now.said.has().is_some_and(|now| now.number > number))
    }

    /// Chunks that this syncing member could not take an overwrite of, up to which a copy has to go.
    pub(super) fn skipped(&self, member: &Member, id: ChunkId) -> OverwriteNumber {
        let mut memory = member.runtime.overwrites.lock();
        let skipped = memory.at(member.pg.epoch).and_then(|memory| memory.skipped.get(&id.index).copied());
        skipped.unwrap_or(OverwriteNumber::NONE)
    }

    /// A chunk of this syncing member is as the primary's as of `number`; whether it is in step from now on.
    pub(super) async fn copied_up_to(
        &self,
        member: &Member,
        id: ChunkId,
        number: OverwriteNumber,
    ) -> Result<bool, WireError> {
        let Some(here) = member.store.info(id) else { return Ok(true) };
        if !number.is_some() && !here.overwrite.is_some() {
            return Ok(number >= self.skipped(member, id));
        }
        let epoch = member.pg.epoch;
        let in_step: bool = wait(|done| member.store.settle_copy(id, number, epoch, done)).await?;
        Ok(in_step && number >= self.skipped(member, id))
    }
}

fn sum_of(disk: DiskId, serving: bool, theirs: &ChunkSummary) -> OverwriteSum {
    let ChunkSummary { length, table_crc, .. } = *theirs;
    OverwriteSum { disk, serving, number: number_in(theirs), length, table_crc }
}

/// Blocks in which tables differ. Where both end within a block nobody adds to it if they are sealed, or of an earlier
/// epoch: then one of them may have forgotten that it was sealed, and overwritten since.
fn differing(member: &Member, ours: &ChunkTables, theirs: &Theirs) -> Vec<Range<u32>> {
    let is_old = ours.info.creation_epoch < member.pg.epoch;
    let (here, there) = (&ours.info, &theirs.summary);
    let tails = is_old || here.sealed && there.sealed;
    differing_blocks((&ours.crcs, here.length, &ours.punched), (&theirs.crcs, there.length, &theirs.punched), tails)
}
