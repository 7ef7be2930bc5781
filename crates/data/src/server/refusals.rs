//! [`Refusals`]: what clients are refused for, by group and cause, so that the cluster's status can name it.
//!
//! What a client is refused for in the ordinary course of things (its map is old, an epoch is being entered) ends by
//! itself: so a cause counts once it lasts, without a request of that kind being served in between. Invariants: every
//! refusal of a request of a client that names a group passes here, whoever answers it; a cause that lasted [`LASTING`]
//! is told with the next heartbeat, and until nobody was refused for [`FORGOTTEN`]. No more than [`CAUSES_MAX`] are
//! remembered. Not here: bytes that are bad or missing, which are told as such (`unhealed.rs`, `missing.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_rpc::{Reply, Request};
use cairn_types::{DiskId, ErrorCode, PgId, Time};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::hello::PeerKind;
use cairn_wire::manager::RefusedRequests;
use parking_lot::Mutex;

use super::Inner;

/// A cause that lasts for so long is told.
const LASTING: Duration = Duration::from_secs(3);
/// Refusals that are further apart are none that lasts: clients repeat what they want several times a second.
const APART: Duration = Duration::from_secs(10);
/// What was the cause of nothing for so long is told no more.
const FORGOTTEN: Duration = Duration::from_secs(30);
const CAUSES_MAX: usize = 1024;
/// Characters of an error's text.
const TEXT_MAX: usize = 300;

/// What kind of request is refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    Read,
    Write,
}

struct Cause {
    since: Time,
    last: Time,
    count: u64,
    text: String,
}

/// Of a node.
#[derive(Default)]
pub(super) struct Refusals {
    /// By member, kind and code.
    causes: Mutex<BTreeMap<(DiskId, PgId, Kind, u16), Cause>>,
    /// There are some: nothing else has to be looked at while requests are served.
    any: AtomicBool,
}

impl Refusals {
    /// A request was refused.
    pub(super) fn refused(&self, (disk, pg, kind): (DiskId, PgId, Kind), error: &WireError, now: Time) {
        if !counts(error.code) {
            return;
        }
        // What is refused in this epoch is so because the asker goes by another one, whatever it is called.
        let code = if error.current_epoch.is_some() { ErrorCode::StaleEpoch } else { error.code };
        let mut causes = self.causes.lock();
        let key = (disk, pg, kind, code.code());
        if causes.len() >= CAUSES_MAX && !causes.contains_key(&key) {
            causes.retain(|_, cause| now.since(cause.last) < APART);
            if causes.len() >= CAUSES_MAX {
                return;
            }
        }
        self.any.store(true, Ordering::Relaxed);
        let text = || error.message.chars().take(TEXT_MAX).collect::<String>();
        let cause = causes.entry(key).or_insert_with(|| Cause { since: now, last: now, count: 0, text: text() });
        if now.since(cause.last) >= APART {
            (cause.since, cause.count) = (now, 0);
        }
        (cause.last, cause.count, cause.text) = (now, cause.count + 1, text());
    }

    /// A request was served: whatever one of that kind was refused for does not last.
    pub(super) fn served(&self, (disk, pg, kind): (DiskId, PgId, Kind)) {
        if self.any.load(Ordering::Relaxed) {
            let mut causes = self.causes.lock();
            causes.retain(|(on, of, what, _), _| (*on, *of, *what) != (disk, pg, kind));
            self.any.store(!causes.is_empty(), Ordering::Relaxed);
        }
    }

    /// What lasts.
    pub(super) fn told(&self, now: Time) -> Vec<RefusedRequests> {
        let mut causes = self.causes.lock();
        causes.retain(|_, cause| now.since(cause.last) < FORGOTTEN);
        self.any.store(!causes.is_empty(), Ordering::Relaxed);
        let lasting = causes.iter().filter(|(_, cause)| cause.last.since(cause.since) >= LASTING);
        let report = |((disk, pg, kind, code), cause): (&(DiskId, PgId, Kind, u16), &Cause)| RefusedRequests {
            disk: disk.get(),
            pg: pg.get(),
            writes: *kind == Kind::Write,
            code: u32::from(*code),
            count: cause.count,
            seconds: cause.last.since(cause.since).as_secs(),
            text: cause.text.clone(),
            epoch: 0,
        };
        lasting.map(report).collect()
    }
}

/// Whether a code says that the group, its members or their node cannot serve. What concerns the request alone does not
/// count.
fn counts(code: ErrorCode) -> bool {
    use ErrorCode as E;
    matches!(
        code,
        E::StaleEpoch
            | E::VersionUnsupported
            | E::Overloaded
            | E::DeadlineExceeded
            | E::Internal
            | E::Unavailable
            | E::NoSpace
            | E::NotServing
            | E::NotPrimary
            | E::DiskFailed
            | E::PgFull
            | E::BelowMinimum
            | E::UnknownPg
            | E::WrongIncarnation
            | E::ChainFailed
    )
}

/// The member that a client's request names: its first field is the chunk, or the disk. Cheaper than to decode all of
/// it twice.
fn named(opcode: Opcode, message: &[u8]) -> Option<(DiskId, PgId, Kind)> {
    let kind = match opcode {
        Opcode::Read => Kind::Read,
        Opcode::Append | Opcode::Sync | Opcode::Seal | Opcode::Overwrite | Opcode::Allocate => Kind::Write,
        _ => return None,
    };
    let fields = match opcode {
        Opcode::Allocate => message,
        _ => {
            let rest = message.strip_prefix(&[0x0a])?;
            let mut at = rest;
            let length = usize::try_from(varint(&mut at)?).ok()?;
            at.get(..length)?
        }
    };
    let mut at = fields.strip_prefix(&[0x08])?;
    let disk = u32::try_from(varint(&mut at)?).ok()?;
    let mut at = at.strip_prefix(&[0x10])?;
    Some((DiskId(disk), PgId(u32::try_from(varint(&mut at)?).ok()?), kind))
}

fn varint(at: &mut &[u8]) -> Option<u64> {
    prost::encoding::decode_varint(at).ok()
}

impl Inner {
    /// Has it noted how a client's request is answered.
    pub(super) fn watch_outcome(self: &Arc<Self>, request: &Request<'_>, reply: &mut Reply) {
        if request.peer.hello.kind == PeerKind::Server {
            return;
        }
        let Some(what) = Opcode::from_code(request.opcode).and_then(|opcode| named(opcode, request.message)) else {
            return;
        };
        let inner = self.clone();
        reply.on_outcome(Box::new(move |outcome| match outcome {
            Ok(()) => inner.refusals.served(what),
            Err(error) => inner.refusals.refused(what, error, inner.clock.now()),
        }));
    }

    /// For the manager, with each heartbeat; with the epochs that the members have, which may be the cause.
    pub(super) fn refused_reports(&self) -> Vec<RefusedRequests> {
        let mut told = self.refusals.told(self.clock.now());
        for report in &mut told {
            report.epoch = self.member(report.disk, report.pg, 0).map_or(0, |member| member.pg.epoch.get());
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::Epoch;
    use cairn_wire::data::{AllocateRequest, AppendRequest, ChunkHeader, ReadRequest};
    use prost::Message;

    const WRITES: (DiskId, PgId, Kind) = (DiskId(3), PgId(7), Kind::Write);

    fn at(ms: u64) -> Time {
        Time::default() + Duration::from_millis(ms)
    }

    fn error(code: ErrorCode) -> WireError {
        WireError::new(code, "the cause")
    }

    /// What keeps clients from writing would never be told, or everything that happens once.
    #[test]
    fn what_lasts_is_told_and_nothing_else() {
        let refusals = Refusals::default();
        let refuse = |ms: u64| refusals.refused(WRITES, &error(ErrorCode::NotServing), at(ms));
        (0..10).for_each(|i| refuse(i * 250));
        assert!(refusals.told(at(2300)).is_empty(), "it may be over in a moment");
        (10..14).for_each(|i| refuse(i * 250));
        let told = refusals.told(at(3300));
        assert_eq!((told.len(), told[0].disk, told[0].pg, told[0].writes), (1, 3, 7, true));
        assert_eq!((told[0].code, told[0].count, told[0].seconds), (63, 14, 3));
        assert_eq!(told[0].text, "the cause");
        assert_eq!(refusals.told(at(30_000)).len(), 1, "whoever was refused has given up");
        assert!(refusals.told(at(40_000)).is_empty());

        // Something of the same kind is served in between.
        (0..20).for_each(|i| {
            refuse(50_000 + i * 1000);
            refusals.served((WRITES.0, WRITES.1, Kind::Read));
            if i % 2 == 1 {
                refusals.served(WRITES);
            }
        });
        assert!(refusals.told(at(70_000)).is_empty());
        // One that comes now and then is somebody else's old map.
        (0..20).for_each(|i| refuse(100_000 + i * 15_000));
        assert!(refusals.told(at(385_000)).is_empty());
        // What concerns the request alone.
        (0..20).for_each(|i| refusals.refused(WRITES, &error(ErrorCode::ChunkSealed), at(400_000 + i * 1000)));
        assert!(refusals.told(at(420_000)).is_empty());
    }

    /// The manager could not tell what an asker made up, or knows of old, from what a member has not heard.
    #[test]
    fn what_the_epoch_forbids_is_told_as_such() {
        let refusals = Refusals::default();
        let in_epoch = |code| error(code).in_epoch(Epoch(4));
        for i in 0..20 {
            refusals.refused(WRITES, &in_epoch(ErrorCode::NotServing), at(i * 500));
            refusals.refused(WRITES, &in_epoch(ErrorCode::NotPrimary), at(i * 500));
            refusals.refused(WRITES, &WireError::stale_epoch(Epoch(4), "pg7 is at e4"), at(i * 500));
        }
        let told = refusals.told(at(10_000));
        assert_eq!((told.len(), told[0].code, told[0].count), (1, u32::from(ErrorCode::StaleEpoch.code()), 60));
    }

    /// Memory would grow with what peers make up.
    #[test]
    fn no_more_causes_than_the_bound_are_remembered() {
        let refusals = Refusals::default();
        let pgs = (0..CAUSES_MAX as u32 * 2).map(PgId);
        pgs.for_each(|pg| refusals.refused((DiskId(1), pg, Kind::Read), &error(ErrorCode::UnknownPg), at(0)));
        assert_eq!(refusals.causes.lock().len(), CAUSES_MAX);
        refusals.refused(WRITES, &error(ErrorCode::UnknownPg), at(20_000));
        assert_eq!(refusals.causes.lock().len(), 1);
    }

    /// Refusals would count for no group, or for another one.
    #[test]
    fn the_member_is_read_out_of_requests() {
        let chunk = Some(ChunkHeader { disk: 300, pg: 70_000, index: 5, epoch: 6, session: 7 });
        let found = Some((DiskId(300), PgId(70_000), Kind::Write));
        let append = AppendRequest { chunk, offset: 8, crcs: vec![1; 300], ..AppendRequest::default() };
        assert_eq!(named(Opcode::Append, &append.encode_to_vec()), found);
        let allocate = AllocateRequest { disk: 300, pg: 70_000, epoch: 1, session: 2, count: 3 };
        assert_eq!(named(Opcode::Allocate, &allocate.encode_to_vec()), found);
        let read = ReadRequest { chunk, offset: 1, ..ReadRequest::default() }.encode_to_vec();
        assert_eq!(named(Opcode::Read, &read), found.map(|(disk, pg, _)| (disk, pg, Kind::Read)));
        assert_eq!(named(Opcode::ListChunks, &read), None);
        for cut in 0..6 {
            assert_eq!(named(Opcode::Read, &read[..cut]), None);
        }
        assert_eq!(named(Opcode::Read, &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
