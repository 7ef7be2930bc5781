//! What the leader knows and does not log. Gone with its leadership; complete again a few heartbeats later.
use crate::push::Push;
use cairn_manager_core::leaders::Calm;
use cairn_manager_core::{Grayness, Liveness, Slowness, Soft, State};
use cairn_types::{DiskId, Epoch, NodeId, PartitionId, PgId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

/// A member that was removed from a group although its node lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Removal {
    pub at: Time,
    pub times: u32,
    /// Epoch of the group that it was a member in.
    pub epoch: Epoch,
}

/// Longest wait before a removed member is taken back.
const REJOIN_DELAY_MAX: Duration = Duration::from_secs(600);
/// Removals that are remembered; the oldest are forgotten.
const REMOVALS_MAX: usize = 10_000;

/// A partition whose leader reported nothing for so long has none as far as is known: heartbeats come each second.
const PARTITION_SILENCE: Duration = Duration::from_secs(6);

/// Dropping the state of a partition takes a node no longer, from when it has heard that it left.
const DROP_PATIENCE: Duration = Duration::from_secs(4);

/// The leader's memory.
pub(crate) struct Leading {
    pub term: u64,
    pub since: Time,
    pub liveness: Liveness,
    pub slowness: Slowness,
    pub grayness: Grayness,
    /// Since when the same nodes run and lead the same.
    pub calm: Calm,
    /// That it leads was noted for people.
    pub noted: bool,
    pub soft: Soft,
    /// When each partition's leader reported last.
    pub partition_heard: BTreeMap<PartitionId, Time>,
    /// Session ids that may still be handed out.
    pub sessions: Range<u64>,
    pub removals: BTreeMap<(PgId, DiskId), Removal>,
    /// When a node registered last.
    pub registered: Option<Time>,
    pub push: Push,
    /// Generations of disks that the log does not have yet.
    pub generations: BTreeMap<DiskId, (cairn_types::Incarnation, cairn_types::generation::Generation)>,
    pub found_full: crate::found_full::FoundFull,
    pub progress: crate::progress::Progress,
    /// When the server of a running job reported last, or got it.
    pub jobs_heard: BTreeMap<u64, Time>,
    /// How far members of partitions got, as they said.
    pub marks: cairn_manager_core::marks::Marks,
    /// Members of the manager's group: whether they answered the last ping.
    pub managers: BTreeMap<NodeId, bool>,
    /// Since when nodes that left partitions are known to have heard of it and to report nothing of them.
    pub dropped: BTreeMap<(PartitionId, NodeId), Time>,
    /// Partitions whose change of members is being looked at.
    pub changing: BTreeSet<PartitionId>,
    /// What nodes said that they know, for a state that was restored.
    pub told: cairn_manager_core::take_up::AllTold,
    /// Whose nodes know of what the state never gave.
    pub doubts: crate::doubts::Doubts,
    /// What a person gave up, and when.
    pub given_up: Option<(cairn_wire::manager::Awaited, Time)>,
    /// Incarnations at whose addresses nobody listened, by node: that is said once.
    pub gone: BTreeMap<NodeId, u64>,
    /// Keys that came as nodes that they are not: each is told once in a while.
    pub told_keys: crate::told_keys::ToldKeys,
}

impl Leading {
    pub(crate) fn new(term: u64, now: Time) -> Self {
        Self {
            term,
            since: now,
            liveness: Liveness::new(now),
            slowness: Slowness::default(),
            grayness: Grayness::default(),
            calm: Calm::default(),
            noted: false,
            soft: Soft::default(),
            partition_heard: BTreeMap::new(),
            sessions: 0..0,
            removals: BTreeMap::new(),
            registered: None,
            push: Push::default(),
            generations: BTreeMap::new(),
            found_full: crate::found_full::FoundFull::default(),
            progress: crate::progress::Progress::default(),
            told_keys: crate::told_keys::ToldKeys::default(),
            jobs_heard: BTreeMap::new(),
            marks: cairn_manager_core::marks::Marks::default(),
            managers: BTreeMap::new(),
            dropped: BTreeMap::new(),
            changing: BTreeSet::new(),
            told: cairn_manager_core::take_up::AllTold::new(),
            doubts: crate::doubts::Doubts::default(),
            given_up: None,
            gone: BTreeMap::new(),
        }
    }

    /// A node has the map of this version, and these partitions: of those that it left it is dropping what it had.
    pub(crate) fn note_left(&mut self, state: &State, node: NodeId, map_version: u64, has: &[PartitionId], now: Time) {
        for partition in state.partitions().filter(|p| !p.removed && !p.left.is_empty()) {
            let heard = map_version >= partition.version && !has.contains(&partition.id);
            match partition.left.contains(&node) && heard {
                true => drop(self.dropped.entry((partition.id, node)).or_insert(now)),
                false => drop(self.dropped.remove(&(partition.id, node))),
            }
        }
    }

    /// Whether a node that left a partition has had the time to drop what it had.
    pub(crate) fn has_dropped(&self, partition: PartitionId, node: NodeId, now: Time) -> bool {
        self.dropped.get(&(partition, node)).is_some_and(|since| now.since(*since) >= DROP_PATIENCE)
    }

    /// Forgets who led partitions that nobody reports to lead any more.
    pub(crate) fn forget_silent_leaders(&mut self, now: Time) {
        let silent =
            |id: &PartitionId| self.partition_heard.get(id).is_none_or(|at| now.since(*at) > PARTITION_SILENCE);
        self.soft.partitions.retain(|id, _| !silent(id));
    }

    /// Remembers that a member was removed from the group as it was in an epoch. Many report one failure: it counts
    /// once.
    pub(crate) fn removed(&mut self, pg: PgId, disk: DiskId, epoch: Epoch, now: Time) {
        if self.removals.len() >= REMOVALS_MAX {
            let oldest = self.removals.iter().min_by_key(|(_, removal)| removal.at).map(|(key, _)| *key);
            oldest.map(|key| self.removals.remove(&key));
        }
        let known = self.removals.get(&(pg, disk)).copied();
        if known.is_some_and(|removal| removal.epoch >= epoch) {
            return;
        }
        let times = known.map_or(0, |removal| removal.times) + 1;
        self.removals.insert((pg, disk), Removal { at: now, times, epoch });
    }

    /// Whether a removed member may be taken back: after `delay`, doubled with each removal. What an earlier leader
    /// removed waits from this one's beginning.
    pub(crate) fn may_rejoin(&self, pg: PgId, disk: DiskId, now: Time, delay: Duration) -> bool {
        let (at, times) = match self.removals.get(&(pg, disk)) {
            Some(removal) => (removal.at, removal.times),
            None => (self.since, 1),
        };
        let delay = delay.saturating_mul(1 << times.saturating_sub(1).min(16)).min(REJOIN_DELAY_MAX.max(delay));
        now.since(at) >= delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// A disk that stalls again and again would be taken back every ten seconds.
    #[test]
    fn rejoin_backs_off() {
        let (pg, disk) = (PgId(1), DiskId(1));
        let mut leading = Leading::new(3, at(100));
        assert!(!leading.may_rejoin(pg, disk, at(105), DELAY), "a new leader does not know when it was removed");
        assert!(leading.may_rejoin(pg, disk, at(110), DELAY));
        leading.removed(pg, disk, Epoch(3), at(120));
        assert!(!leading.may_rejoin(pg, disk, at(129), DELAY));
        assert!(leading.may_rejoin(pg, disk, at(130), DELAY));
        leading.removed(pg, disk, Epoch(5), at(131));
        // Seven more writers report the same failure.
        (0..7).for_each(|_| leading.removed(pg, disk, Epoch(5), at(131)));
        assert!(!leading.may_rejoin(pg, disk, at(150), DELAY));
        assert!(leading.may_rejoin(pg, disk, at(151), DELAY));
        for round in 0..40 {
            leading.removed(pg, disk, Epoch(6 + round), at(200));
        }
        assert!(leading.may_rejoin(pg, disk, at(800), DELAY), "ten minutes at most");
    }

    /// A member that comes back before it has dropped what it had would take part with old state, or never begin.
    #[test]
    fn who_left_has_to_drop_first() {
        use cairn_manager_core::apply::Outcome;
        use cairn_manager_core::command::*;
        let mut state = State::new();
        let apply = |state: &mut State, command: Command| match state.apply(cairn_types::WallTime(1), &command).outcome
        {
            Ok(Outcome::Registered(done)) => done.node,
            Ok(_) => NodeId(0),
            Err(error) => panic!("{error}"),
        };
        apply(&mut state, Command::InitCluster(InitCluster { cluster: vec![9; 16], name: "x".into() }));
        let register = |n: u8| Register { uuid: vec![n; 16], roles: 2, rack: format!("{n}"), ..Register::default() };
        let nodes: Vec<NodeId> = (1..=3).map(|n| apply(&mut state, Command::Register(register(n)))).collect();
        apply(&mut state, Command::CreateVolume(CreateVolume { name: "v".into(), ..CreateVolume::default() }));
        let id = state.partitions().next().expect("one").id;
        let before = state.version();
        let members = vec![nodes[0].get()];
        apply(&mut state, Command::SetPartitionMembers(SetPartitionMembers { partition: id.get(), members, renew: 0 }));
        let wish = state.partition(id).expect("known").wish;
        apply(&mut state, Command::PartitionSettled(PartitionSettled { partition: id.get(), wish }));
        let (left, version) = (nodes[1], state.version());
        assert!(state.partition(id).expect("known").left.contains(&left));
        let mut leading = Leading::new(3, at(0));
        assert!(!leading.has_dropped(id, left, at(100)), "a new leader does not know");
        leading.note_left(&state, left, before, &[], at(100));
        assert!(!leading.has_dropped(id, left, at(200)), "it has not heard of it");
        leading.note_left(&state, left, version, &[id], at(200));
        assert!(!leading.has_dropped(id, left, at(300)), "it still has it");
        leading.note_left(&state, left, version, &[], at(300));
        leading.note_left(&state, left, version, &[], at(302));
        assert!(!leading.has_dropped(id, left, at(302)) && leading.has_dropped(id, left, at(304)));
        assert!(!leading.has_dropped(id, nodes[2], at(304)), "another one");
    }
}
