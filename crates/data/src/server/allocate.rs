//! Indices of new chunks: given out by the primary below a mark that every receiving member has durably.

use std::sync::Arc;

use cairn_chunk_core::fence;
use cairn_chunk_core::indices::IndexAllocator;
use cairn_format::pg_state::PgStateRecord;
use cairn_rpc::{Reply, Request};
use cairn_types::{DiskId, Epoch, ErrorCode};
use cairn_wire::Opcode;
use cairn_wire::data::{AllocateRequest, AllocateResponse, ReserveIndicesRequest, ReserveIndicesResponse};
use cairn_wire::error::WireError;
use tokio::sync::oneshot;

use super::member::{Member, PgMemory, bad_request};
use super::{Inner, Refused, senders};
use crate::disk::DiskStore;

/// Indices that one request may ask for.
const COUNT_MAX: u32 = 64;
/// No member is so many indices ahead of the primary: of chunks they would be a PiB.
const MARKS_AHEAD: u32 = 1 << 24;
/// Requests that wait for a reservation; further ones are refused as overload.
const WAITING_MAX: usize = 1024;

impl Inner {
    pub(super) fn allocate(self: &Arc<Self>, request: &Request<'_>, reply: Reply) -> Result<(), Refused> {
        let checked =
            request.decode().and_then(|asked: AllocateRequest| Ok((self.check_allocate(&asked)?, asked.count)));
        let (member, count) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err((reply, error)),
        };
        let mut state = member.runtime.state.lock();
        if state.epoch != member.pg.epoch {
            drop(state);
            return Err((reply, WireError::new(ErrorCode::Overloaded, "the epoch changes; repeat in a moment")));
        }
        let allocator = state.allocator.get_or_insert_with(|| IndexAllocator::new(member.pg.high_water));
        let left = allocator.left();
        if left >= count && state.waiting.is_empty() {
            give(&mut state, &member.pg, count, reply);
        } else if state.waiting.len() >= WAITING_MAX {
            drop(state);
            return Err((reply, WireError::new(ErrorCode::Overloaded, "too many requests wait for indices")));
        } else {
            state.waiting.push((count, reply));
        }
        let wanted = left < self.config.reserve_step / 2 || !state.waiting.is_empty();
        if wanted && !state.reserving {
            state.reserving = true;
            drop(state);
            let inner = self.clone();
            self.tasks.spawn(async move { inner.reserve_more(member).await });
        }
        Ok(())
    }

    fn check_allocate(&self, asked: &AllocateRequest) -> Result<Member, WireError> {
        if asked.epoch == 0 || asked.session == 0 || asked.count == 0 || asked.count > COUNT_MAX {
            return Err(bad_request(format!(
                "indices are asked for with epoch, session and a count of 1 to {COUNT_MAX}"
            )));
        }
        let member = self.member(asked.disk, asked.pg, asked.epoch)?;
        member.check_moving()?;
        fence::check_primary(&member.pg, member.disk).map_err(|fence| self.refuse(fence))?;
        fence::check_writable(&member.pg).map_err(|fence| self.refuse(fence))?;
        member.check_entered()?;
        let free = member.store.space().free;
        if free < member.store.config.allocate_step {
            let text = format!("{} has {free} bytes left for new chunks; choose another placement group", member.disk);
            return Err(WireError::new(ErrorCode::NoSpace, text));
        }
        Ok(member)
    }

    /// Makes a higher mark durable everywhere, then serves those who wait, until nobody does.
    async fn reserve_more(self: Arc<Self>, member: Member) {
        loop {
            let outcome = self.reserve(&member).await;
            if let Err(error) = &outcome {
                self.note_hop(&member.pg, error);
            }
            let mut state = member.runtime.state.lock();
            if state.epoch != member.pg.epoch {
                // What waits now belongs to the new epoch, which has its own task.
                return;
            }
            let waiting = std::mem::take(&mut state.waiting);
            for (count, reply) in waiting {
                let left = state.allocator.as_ref().map_or(0, IndexAllocator::left);
                match &outcome {
                    Err(error) => reply.err(error.clone()),
                    Ok(()) if left >= count => give(&mut state, &member.pg, count, reply),
                    Ok(()) => state.waiting.push((count, reply)),
                }
            }
            if state.waiting.is_empty() {
                state.reserving = false;
                return;
            }
        }
    }

    /// As primary of members that all are older copies of themselves: goes on above the highest mark that one of them
    /// has.
    pub(super) async fn raise_to_highest(self: &Arc<Self>, member: &Member) -> Result<(), WireError> {
        let question = |disk: DiskId| ReserveIndicesRequest {
            disk: disk.get(),
            pg: member.pg.pg.get(),
            epoch: member.pg.epoch.get(),
            high_water: 0,
        };
        let questions = others(&member.pg, member.disk).into_iter().map(|disk| (disk, question(disk))).collect();
        let mut highest = 0;
        for (_, answer) in self.ask_each(&member.pg, Opcode::ReserveIndices, questions).await {
            let answer: ReserveIndicesResponse = answer?;
            highest = highest.max(answer.high_water);
        }
        raise_mark(member.store.clone(), member.pg.clone(), highest).await.map(drop)
    }

    async fn reserve(self: &Arc<Self>, member: &Member) -> Result<(), WireError> {
        let mark = {
            let state = member.runtime.state.lock();
            state.allocator.as_ref().and_then(|allocator| allocator.next_mark(self.config.reserve_step))
        };
        let full = || {
            let text = format!("{} has used up its chunk indices; choose another placement group", member.pg.pg);
            WireError::new(ErrorCode::PgFull, text)
        };
        let mark = mark.ok_or_else(full)?;
        let question = |disk: DiskId| ReserveIndicesRequest {
            disk: disk.get(),
            pg: member.pg.pg.get(),
            epoch: member.pg.epoch.get(),
            high_water: mark,
        };
        let questions = others(&member.pg, member.disk).into_iter().map(|disk| (disk, question(disk))).collect();
        let answers = self.ask_each(&member.pg, Opcode::ReserveIndices, questions).await;
        let here = raise_mark(member.store.clone(), member.pg.clone(), mark).await?;
        let mut seen = Some(here).filter(|reached| *reached > mark).unwrap_or(0);
        for (disk, answer) in answers {
            let answer: ReserveIndicesResponse = answer?;
            check_mark(&member.pg, disk, mark, answer.high_water)?;
            if answer.high_water > mark {
                // Another primary went further: nothing below its mark is given out here.
                seen = seen.max(answer.high_water);
            }
        }
        let mut state = member.runtime.state.lock();
        if state.epoch == member.pg.epoch
            && let Some(allocator) = &mut state.allocator
        {
            // Beyond what others have seen a further round reserves; this one only skips.
            allocator.raise(if seen > mark { seen } else { mark }, seen);
        }
        Ok(())
    }

    pub(super) fn reserve_indices(self: &Arc<Self>, request: &Request<'_>, reply: Reply) -> Result<(), Refused> {
        let checked = request.decode().and_then(|asked: ReserveIndicesRequest| {
            if asked.epoch == 0 {
                return Err(bad_request("a reservation names an epoch"));
            }
            let member = self.member(asked.disk, asked.pg, asked.epoch)?;
            let state = fence::state_of(&member.pg, member.disk).map_err(|fence| self.refuse(fence))?;
            if !state.receives_writes() {
                let (pg, disk) = (member.pg.pg, member.disk);
                return Err(self.refuse(fence::Fence::NotServing { pg, disk, state }));
            }
            senders::check_primarys(request.peer, &member.pg, Opcode::ReserveIndices)?;
            Ok((member, asked.high_water))
        });
        let (member, mark) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err((reply, error)),
        };
        self.on_control(member, reply, move |member, reply| {
            let raised = raise_now(&member.store, &member.pg, mark);
            reply.result(raised.map(|high_water| ReserveIndicesResponse { high_water }));
        })
    }
}

/// A member that says that others went on so far would use up the group's indices with one answer. The next primary
/// goes on above what its own disk has, and members lack no more than what was reserved while they caught up, which
/// their copy of the list of chunks brings, so no healthy one is ever so far ahead of it. Where all members are
/// older copies of themselves the highest mark is asked for before (`raise_to_highest`).
fn check_mark(pg: &PgStateRecord, disk: DiskId, wanted: u32, found: u32) -> Result<(), WireError> {
    if found.saturating_sub(wanted) <= MARKS_AHEAD {
        return Ok(());
    }
    let text = format!("{disk} says that indices of {} were given out up to {found}, far beyond {wanted}", pg.pg);
    Err(WireError::chain_failed(disk.get(), text))
}

/// Gives indices to one who asked; the caller has seen that there are enough.
fn give(state: &mut PgMemory, pg: &PgStateRecord, count: u32, reply: Reply) {
    let Some(allocator) = &mut state.allocator else { return };
    let indices = allocator.take(count).collect();
    reply.ok(&AllocateResponse { indices, creation_epoch: pg.epoch.get() }, ());
}

/// Makes the mark durable on this disk; returns the mark that holds then.
pub(super) fn raise_now(store: &DiskStore, pg: &PgStateRecord, mark: u32) -> Result<u32, WireError> {
    let mut stale: Option<Epoch> = None;
    let updated = store.pg_files().update(pg.pg, |present| match present {
        Some(present) if present.epoch == pg.epoch => {
            (present.high_water < mark).then(|| PgStateRecord { high_water: mark, ..present.clone() })
        }
        Some(present) => {
            stale = Some(present.epoch);
            None
        }
        None => None,
    });
    let updated = updated.map_err(|error| store.state_not_saved(&error))?;
    if let Some(current) = stale {
        return Err(WireError::stale_epoch(current, format!("{} moved on to {current}", pg.pg)));
    }
    updated
        .map(|state| state.high_water)
        .ok_or_else(|| WireError::new(ErrorCode::UnknownPg, format!("{} is not known on {}", pg.pg, store.name())))
}

/// The same on the disk's control thread.
pub(super) async fn raise_mark(store: Arc<DiskStore>, pg: Arc<PgStateRecord>, mark: u32) -> Result<u32, WireError> {
    let (sender, answer) = oneshot::channel();
    let job = move |store: &DiskStore| {
        // Nobody waits any more if this fails.
        let _gone = sender.send(raise_now(store, &pg, mark));
    };
    store.control(job).map_err(|error| error.to_wire())?;
    answer.await.unwrap_or_else(|_| {
        let text = format!("{} is being closed", store.name());
        Err(WireError::new(ErrorCode::Unavailable, text))
    })
}

/// Disks of a group besides one.
pub(super) fn others(pg: &PgStateRecord, disk: DiskId) -> Vec<DiskId> {
    fence::receivers(pg).filter(|other| *other != disk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::senders::tests::record;

    /// One member would end a group for good by a word; or one that is a little ahead would be refused.
    #[test]
    fn marks_that_make_no_sense_are_not_followed() {
        let pg = record(&[]);
        let check = |found| check_mark(&pg, DiskId(7), 1000, found).map_err(|error| error.failed_disk);
        assert!([0, 1000, 5000, 1 << 24].into_iter().all(|found| check(found) == Ok(())));
        assert_eq!(check(u32::MAX), Err(Some(7)), "and it is looked at");
    }
}
