//! [`Missing`]: chunks that this node's members lack, or may lack, and look for: what is due when, how often it was
//! tried in vain, what the manager is told.
//!
//! Invariants: what is here is looked for until it is back, freed, or, where only a list had named it, known to be
//! nowhere; pauses double up to a bound. What nobody has stays, counted as lost: what a start found gone or damaged
//! until it is freed; what was named from outside until it is freed or was not named again for a time. The check of a
//! volume names what the metadata refers to now, and comes once a day by itself: so what it names stays until the next
//! one. A reader may go by an old map, of a chunk that was freed before this process started, and nobody can tell: so
//! what only a reader names is forgotten sooner. No more than [`MISSING_MAX`] are remembered; what can be brought back
//! comes before what was named and is nowhere, and all of it before what only the holders of keys with limits name. Not
//! here: how a chunk is brought back (`restore.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cairn_telemetry::Samples;
use cairn_types::{ChunkId, DiskId, PgId, Time};
use cairn_wire::manager::MissingChunks;

use super::Inner;

/// Chunks that wait or were tried lately; more are left to the next comparison, or their next reader.
const MISSING_MAX: usize = 1024;
/// Of them those that only tenants named, who may name what never was.
const TENANTS_MAX: usize = MISSING_MAX / 4;

/// What the check of a volume named is lost for so long: its next one comes within a day (`check_period` of the meta
/// nodes).
const CHECKED_KEPT: Duration = Duration::from_secs(26 * 3600);
/// What only a reader named.
const READ_KEPT: Duration = Duration::from_secs(3600);

type Key = (DiskId, ChunkId);

/// Who found that a chunk is not here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Found {
    /// A tenant, who may name what never was.
    Tenant,
    /// A job of a server: the file that it read may have been removed meanwhile, and nobody waits for it.
    Job,
    /// A reader: it may be what a writer began and was never told of.
    Reader,
    /// Other members list it whole.
    List,
    /// The check of a volume: the metadata refers to it.
    Check,
    /// The start: its file was damaged, or gone.
    Start,
}

impl Found {
    /// How long what it names counts as lost, if nobody has it and nobody names it again.
    fn kept(self) -> Option<Duration> {
        match self {
            Self::Reader => Some(READ_KEPT),
            Self::Check => Some(CHECKED_KEPT),
            Self::Tenant | Self::Job | Self::List | Self::Start => None,
        }
    }
}

/// What an attempt came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Restored {
    /// It is back.
    Back,
    /// It is here, or nobody needs it any more.
    Settled,
    /// Every other member said that it has nothing of it.
    Nowhere,
    /// Nobody can say now.
    Unsure,
}

struct Note {
    /// When it was noted or tried last.
    at: Time,
    /// How often in vain.
    tries: u32,
    found: Found,
    /// When it is tried; `None`: settled, and remembered so that readers do not have it tried all the time.
    due: Option<Time>,
    /// Another member was seen to have it.
    elsewhere: bool,
    nowhere: bool,
    /// Somebody outside named it: until then it counts as lost when nobody has it.
    named_until: Option<Time>,
    /// It was named, and found to be nowhere.
    named_nowhere: bool,
}

/// The list of a node.
pub(super) struct Missing {
    notes: BTreeMap<Key, Note>,
    due: BTreeSet<(Time, DiskId, ChunkId)>,
    running: bool,
    pause_min: Duration,
    pause_max: Duration,
}

/// What became of a wish to have a chunk looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Noted {
    /// It is due, and nobody works on what is due yet: the caller begins.
    Begin,
    /// It is due, or was settled lately.
    Known,
    /// There is no room now.
    Full,
}

impl Missing {
    /// An empty one, with the first and the longest pause after an attempt in vain.
    pub(super) fn new(pause_min: Duration, pause_max: Duration) -> Self {
        Self { notes: BTreeMap::new(), due: BTreeSet::new(), running: false, pause_min, pause_max }
    }

    /// Has a chunk tried after `pause`. A reader's wish counts again only after `again`.
    pub(super) fn note(&mut self, key: Key, found: Found, now: Time, pause: Duration, again: Duration) -> Noted {
        let mut named_until = found.kept().map(|kept| now + kept);
        if let Some(note) = self.notes.get_mut(&key) {
            note.found = note.found.max(found);
            note.named_until = note.named_until.max(named_until);
            named_until = note.named_until;
            let lately = note.found <= Found::Reader && now.since(note.at) < again;
            if note.due.is_some() || lately {
                return Noted::Known;
            }
        }
        if self.notes.len() >= MISSING_MAX {
            self.notes.retain(|_, note| note.due.is_some() || now.since(note.at) < again);
        }
        if !self.notes.contains_key(&key) && !self.has_room(found) {
            return Noted::Full;
        }
        let due = now + pause;
        let elsewhere = found == Found::List;
        let note = Note {
            at: now,
            tries: 0,
            found,
            due: Some(due),
            elsewhere,
            nowhere: false,
            named_until,
            named_nowhere: false,
        };
        self.notes.insert(key, note);
        self.due.insert((due, key.0, key.1));
        if std::mem::replace(&mut self.running, true) { Noted::Known } else { Noted::Begin }
    }

    /// Whether another one may be remembered.
    fn has_room(&mut self, found: Found) -> bool {
        if found == Found::Tenant {
            let tenants = self.notes.values().filter(|note| note.found == Found::Tenant).count();
            return tenants < TENANTS_MAX && self.notes.len() < MISSING_MAX;
        }
        self.notes.len() < MISSING_MAX || self.give_way()
    }

    /// One that only a tenant named is forgotten, or one of those that were named and are nowhere; enough of them stay
    /// to be told.
    fn give_way(&mut self) -> bool {
        let of_tenant = self.notes.iter().find(|(_, note)| note.found == Found::Tenant);
        let nowhere = || self.notes.iter().find(|(_, note)| note.nowhere && note.found != Found::Start);
        let Some(key) = of_tenant.or_else(nowhere).map(|(key, _)| *key) else { return false };
        self.remove(key);
        true
    }

    fn remove(&mut self, key: Key) {
        if let Some(due) = self.notes.remove(&key).and_then(|note| note.due) {
            self.due.remove(&(due, key.0, key.1));
        }
    }

    /// What is due first, and taken if that is now; `None`: nothing waits, and whoever comes next begins.
    pub(super) fn take_first(&mut self, now: Time) -> Option<(Time, DiskId, ChunkId)> {
        let Some(first) = self.due.first().copied() else {
            self.running = false;
            return None;
        };
        if first.0 <= now {
            self.due.pop_first();
        }
        Some(first)
    }

    /// Nobody works on it any more.
    pub(super) fn stop(&mut self) {
        self.running = false;
    }

    /// Another member was seen to have it.
    pub(super) fn is_elsewhere(&mut self, key: Key) {
        if let Some(note) = self.notes.get_mut(&key) {
            note.elsewhere = true;
        }
    }

    /// Whether it is certain that something refers to it, or did when it was lost.
    pub(super) fn is_needed(&self, key: Key) -> bool {
        self.notes.get(&key).is_some_and(|note| note.found >= Found::Check)
    }

    /// An attempt ended; `None`: it failed. Returns how often it did.
    pub(super) fn ended(&mut self, key: Key, outcome: Option<Restored>, now: Time) -> u32 {
        let Some(note) = self.notes.get_mut(&key) else { return 0 };
        note.due.take().map(|due| self.due.remove(&(due, key.0, key.1)));
        (note.at, note.nowhere) = (now, outcome == Some(Restored::Nowhere));
        let settled = match outcome {
            Some(Restored::Back | Restored::Settled) => true,
            // What nobody acknowledged, or all have freed, looks like this.
            Some(Restored::Nowhere) => {
                let is_named = note.named_until.is_some_and(|until| now < until);
                note.named_nowhere |= is_named;
                note.found != Found::Start && !is_named
            }
            Some(Restored::Unsure) | None => false,
        };
        if settled {
            (note.tries, note.elsewhere, note.named_until, note.named_nowhere) = (0, false, None, false);
            return 0;
        }
        note.tries = note.tries.saturating_add(1);
        let pause = (self.pause_min * (1 << note.tries.min(16))).min(self.pause_max);
        note.due = Some(now + pause);
        self.due.insert((now + pause, key.0, key.1));
        note.tries
    }

    /// Metadata freed a part of it, or all: returns whether it was lost, of which nothing more is to be said.
    pub(super) fn freed(&mut self, key: Key) -> bool {
        let Some(note) = self.notes.get_mut(&key) else { return false };
        // Who named it before may have gone by what was so before.
        note.named_until = None;
        let lost = note.nowhere && note.due.is_some();
        if lost {
            self.remove(key);
        }
        lost
    }

    /// Of each member: how many are missing, and how many of them nobody has.
    fn counts(&self) -> BTreeMap<(DiskId, PgId), (u64, u64)> {
        let mut counts = BTreeMap::new();
        for ((disk, chunk), note) in &self.notes {
            let sure = note.found == Found::Start || note.elsewhere && note.tries > 0 || note.named_nowhere;
            if note.due.is_some() && sure {
                let (missing, lost) = counts.entry((*disk, chunk.pg)).or_insert((0, 0));
                *missing += 1;
                *lost += u64::from(note.nowhere);
            }
        }
        counts
    }

    /// How often a chunk was tried in vain.
    #[cfg(test)]
    pub(super) fn tries(&self, disk: DiskId, id: ChunkId) -> u32 {
        self.notes.get(&(disk, id)).map_or(0, |note| note.tries)
    }
}

impl Inner {
    /// Of each member in service: how many chunks it lacks, and how many of them nobody has.
    fn missing_counts(&self) -> BTreeMap<(DiskId, PgId), (u64, u64)> {
        let mut counts = self.missing.lock().counts();
        for (disk, slot) in self.by_id.read().iter() {
            let store = slot.store().filter(|store| store.failure().is_none());
            let Some(store) = store else {
                counts.retain(|(of, _), _| of != disk);
                continue;
            };
            // Also those that nobody has taken up yet: the member catches up, or the manager was not heard yet.
            for (pg, lost) in store.lost() {
                counts.entry((*disk, pg)).or_insert((0, 0)).0 += lost;
            }
        }
        counts
    }

    /// For the manager, with each heartbeat.
    pub(super) fn missing_reports(&self) -> Vec<MissingChunks> {
        let report = |((disk, pg), (chunks, lost)): ((DiskId, PgId), (u64, u64))| MissingChunks {
            disk: disk.get(),
            pg: pg.get(),
            chunks,
            lost,
        };
        self.missing_counts().into_iter().map(report).collect()
    }

    /// How many are missing on each disk.
    pub(super) fn sample_missing(&self, out: &mut Samples) {
        let counts = self.missing_counts();
        for (disk, slot) in self.by_id.read().iter() {
            let Some(store) = slot.store() else { continue };
            let chunks: u64 = counts.iter().filter(|((on, _), _)| on == disk).map(|(_, (chunks, _))| chunks).sum();
            out.gauge("cairn_data_missing_chunks", MISSING_HELP, &[("disk", store.name())], chunks as f64);
        }
    }
}

const MISSING_HELP: &str = "Chunks that the disk should have and has not, and that are looked for on other members.";

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(200);
    const MAX: Duration = Duration::from_secs(30);

    fn key(index: u32) -> Key {
        (DiskId(1), ChunkId { pg: PgId(2), index })
    }

    fn missing(found: Found) -> Missing {
        let mut missing = Missing::new(MIN, MAX);
        assert_eq!(missing.note(key(1), found, Time::default(), Duration::ZERO, MAX), Noted::Begin);
        missing
    }

    /// A chunk of which one copy is left would be tried while nobody is ready, and never again.
    #[test]
    fn what_is_missing_is_tried_until_it_is_back() {
        for found in [Found::Job, Found::Reader, Found::List, Found::Start] {
            let (mut missing, mut now) = (missing(found), Time::default());
            for attempt in 1..=100 {
                let (due, disk, id) = missing.take_first(now).expect("it waits");
                assert!(due.since(now) <= MAX, "{found:?}: attempt {attempt}");
                if due > now {
                    now = due;
                    missing.take_first(now).expect("now it is due");
                }
                let outcome = if attempt % 2 == 0 { None } else { Some(Restored::Unsure) };
                assert_eq!(missing.ended((disk, id), outcome, now), attempt);
            }
            assert_eq!(missing.ended(key(1), Some(Restored::Back), now), 0);
            assert!(missing.counts().is_empty());
        }
    }

    /// The status would be healthy while a member lacks what others have, or never again after a writer gave up.
    #[test]
    fn what_is_told_is_what_is_known_to_be_missing() {
        let (now, at) = (Time::default(), (DiskId(1), PgId(2)));
        let mut started = missing(Found::Start);
        assert_eq!(started.counts(), BTreeMap::from([(at, (1, 0))]), "at once");
        started.ended(key(1), Some(Restored::Nowhere), now);
        assert_eq!(started.counts(), BTreeMap::from([(at, (1, 1))]), "it is lost");
        assert!(started.freed(key(1)) && started.counts().is_empty() && started.due.is_empty());

        let mut listed = missing(Found::List);
        assert!(listed.counts().is_empty(), "mostly it is freed at this moment");
        listed.ended(key(1), None, now);
        assert_eq!(listed.counts(), BTreeMap::from([(at, (1, 0))]));
        listed.ended(key(1), Some(Restored::Nowhere), now);
        assert!(listed.counts().is_empty(), "it was freed everywhere");

        let mut read = missing(Found::Reader);
        read.ended(key(1), Some(Restored::Unsure), now);
        assert!(read.counts().is_empty(), "nobody was seen to have it");
        read.is_elsewhere(key(1));
        assert_eq!(read.counts(), BTreeMap::from([(at, (1, 0))]));
    }

    /// The status would be healthy while a reader was told, or a check has said, that bytes are gone; or never again
    /// after somebody read by an old map.
    #[test]
    fn what_was_named_and_nobody_has_is_lost_for_a_time() {
        for (found, kept) in [(Found::Reader, READ_KEPT), (Found::Check, CHECKED_KEPT)] {
            let (mut now, at) = (Time::default(), (DiskId(1), PgId(2)));
            let (mut named, lost) = (missing(found), BTreeMap::from([(at, (1, 1))]));
            assert!(named.counts().is_empty(), "nobody was asked yet");
            assert_eq!(named.ended(key(1), Some(Restored::Nowhere), now), 1);
            assert_eq!(named.counts(), lost);
            // Who is away may have it; it is not forgotten for that.
            now = now + kept / 2;
            named.ended(key(1), Some(Restored::Unsure), now);
            assert_eq!(named.counts(), BTreeMap::from([(at, (1, 0))]));
            // Named again, it counts from then on.
            assert_eq!(named.note(key(1), found, now, MIN, MAX), Noted::Known);
            now = now + kept * 3 / 4;
            named.ended(key(1), Some(Restored::Nowhere), now);
            assert_eq!(named.counts(), lost);
            now = now + kept / 4;
            assert_eq!(named.ended(key(1), Some(Restored::Nowhere), now), 0);
            assert!(named.counts().is_empty() && named.due.is_empty(), "nobody named it any more");
            assert_ne!(named.note(key(1), Found::Check, now, MIN, MAX), Noted::Full);
            named.ended(key(1), Some(Restored::Nowhere), now);
            assert_eq!(named.counts(), lost);
            assert!(named.freed(key(1)) && named.counts().is_empty() && named.due.is_empty());
            // It was freed between the reader and the answers of the others.
            named.note(key(1), found, now, MIN, MAX);
            assert!(!named.freed(key(1)));
            named.ended(key(1), Some(Restored::Nowhere), now);
            assert!(named.counts().is_empty(), "it was freed everywhere");
        }
    }

    /// A cluster would call itself damaged each time that a file is removed while it is encoded or moved; or not bring
    /// back what a job finds missing.
    #[test]
    fn what_a_job_read_is_looked_for_and_never_lost() {
        let (now, at) = (Time::default(), (DiskId(1), PgId(2)));
        let mut named = missing(Found::Job);
        named.is_elsewhere(key(1));
        named.ended(key(1), Some(Restored::Unsure), now);
        assert_eq!(named.counts(), BTreeMap::from([(at, (1, 0))]), "another member has it");
        named.ended(key(1), Some(Restored::Nowhere), now);
        assert!(named.counts().is_empty() && !named.is_needed(key(1)) && named.due.is_empty());
        named.note(key(1), Found::Check, now, MIN, MAX);
        named.ended(key(1), Some(Restored::Nowhere), now);
        assert_eq!(named.counts(), BTreeMap::from([(at, (1, 1))]), "a file refers to it");
    }

    /// Chunks that others have would not be brought back while many are nowhere.
    #[test]
    fn what_is_nowhere_gives_way_to_what_can_be_brought_back() {
        let (mut missing, now) = (Missing::new(MIN, MAX), Time::default());
        for index in 0..MISSING_MAX as u32 {
            missing.note(key(index), Found::Check, now, MIN, MAX);
            missing.ended(key(index), Some(Restored::Nowhere), now);
        }
        assert_ne!(missing.note(key(5000), Found::List, now, MIN, MAX), Noted::Full);
        assert_eq!(missing.notes.len(), MISSING_MAX);
        assert_eq!(missing.due.len(), MISSING_MAX);
        assert_eq!(missing.counts()[&(DiskId(1), PgId(2))], (MISSING_MAX as u64 - 1, MISSING_MAX as u64 - 1));
    }

    /// A tenant that names what never was would keep what is missing from being looked for.
    #[test]
    fn what_tenants_name_gives_way() {
        let (mut missing, now) = (Missing::new(MIN, MAX), Time::default());
        let noted = |missing: &mut Missing, from: u32, count: u32, found| {
            let room = (from..from + count).filter(|i| missing.note(key(*i), found, now, MIN, MAX) != Noted::Full);
            room.count()
        };
        assert_eq!(noted(&mut missing, 0, 2000, Found::Tenant), TENANTS_MAX);
        // Of one that a reader names, too, somebody knows more.
        assert_eq!(missing.note(key(0), Found::Reader, now, MIN, MAX), Noted::Known);
        assert_eq!(noted(&mut missing, 5000, 2000, Found::List), MISSING_MAX - 1);
        assert_eq!(noted(&mut missing, 9000, 10, Found::Tenant), 0);
        assert!(missing.notes.contains_key(&key(0)) && !missing.notes.contains_key(&key(1)));
    }

    /// Readers that do not give up would have the same chunk tried all the time; or what a list names would wait for
    /// that.
    #[test]
    fn a_reader_is_heard_again_after_a_while_and_a_list_at_once() {
        let (mut missing, now) = (missing(Found::Reader), Time::default());
        missing.take_first(now).expect("due");
        missing.ended(key(1), Some(Restored::Settled), now);
        assert!(missing.take_first(now).is_none());
        let note = |missing: &mut Missing, found| missing.note(key(1), found, now, Duration::ZERO, MAX);
        assert_eq!(note(&mut missing, Found::Reader), Noted::Known);
        assert!(missing.take_first(now).is_none());
        assert_eq!(note(&mut missing, Found::List), Noted::Begin);
        assert!(missing.take_first(now).is_some());
    }

    /// Memory would grow with the damage.
    #[test]
    fn no_more_than_the_bound_are_remembered() {
        let (mut missing, now) = (Missing::new(MIN, MAX), Time::default());
        let note = |missing: &mut Missing, index, now| missing.note(key(index), Found::List, now, MIN, MAX);
        assert_eq!(note(&mut missing, 0, now), Noted::Begin);
        assert!((1..MISSING_MAX as u32).all(|index| note(&mut missing, index, now) == Noted::Known));
        assert_eq!(note(&mut missing, 5000, now + MAX * 2), Noted::Full);
        missing.ended(key(7), Some(Restored::Back), now);
        assert_eq!(note(&mut missing, 5000, now + MAX * 2), Noted::Known);
    }
}
