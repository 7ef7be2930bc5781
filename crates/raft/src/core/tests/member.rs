//! One simulated member: a core, what its disk has, and a counter as its state machine.

use std::collections::{BTreeMap, VecDeque};

use cairn_types::{GroupId, NodeId, Time};

use crate::{CoreConfig, GroupCore, HardState, LogEntry, Mark, Members, Position, Restored, SnapshotMeta};

pub(super) const GROUP: GroupId = GroupId(1);

/// The replicated state: how many commands, and a digest of all in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct State {
    pub count: u64,
    pub digest: u64,
}

impl State {
    pub fn apply(&mut self, command: u64) {
        self.count += 1;
        self.digest = (self.digest ^ command).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5);
    }
}

/// A write that is on its way to the disk.
#[derive(Debug, Clone)]
pub(super) struct Write {
    pub number: u64,
    pub reset: Option<Position>,
    pub hard: Option<HardState>,
    pub entries: Vec<LogEntry>,
}

/// What survives a crash.
#[derive(Debug, Clone, Default)]
pub(super) struct Durable {
    pub hard: HardState,
    pub base: Position,
    pub bootstrap: Members,
    pub entries: Vec<LogEntry>,
    /// Newest last, at most two.
    pub checkpoints: Vec<(SnapshotMeta, State)>,
    pub fresh: bool,
    /// What the host keeps of a loss that was accepted.
    pub forgot: bool,
}

impl Durable {
    pub fn bootstrapped(voters: &[NodeId]) -> Self {
        let base = Position { index: 1, term: 1 };
        let hard = HardState { term: 1, vote: 0, commit: 1 };
        Self { hard, base, bootstrap: Members::of(voters), fresh: true, ..Self::default() }
    }

    pub fn write(&mut self, write: &Write) {
        self.fresh = false;
        if let Some(at) = write.reset {
            self.base = at;
            self.entries.clear();
        }
        if let Some(hard) = write.hard {
            self.hard = hard;
        }
        if let Some(first) = write.entries.first() {
            self.entries.retain(|entry| entry.index < first.index);
            let last = self.entries.last().map_or(self.base.index, |entry| entry.index);
            assert_eq!(first.index, last + 1, "a write joins what is there");
            self.entries.extend(write.entries.iter().cloned());
        }
    }

    pub fn keep_checkpoint(&mut self, meta: SnapshotMeta, state: State) {
        self.checkpoints.retain(|(have, _)| have.at.index != meta.at.index);
        self.checkpoints.push((meta, state));
        self.checkpoints.sort_by_key(|(meta, _)| meta.at);
        if self.checkpoints.len() > 2 {
            self.checkpoints.remove(0);
        }
    }

    /// The log goes up to the older checkpoint.
    pub fn truncate(&mut self) {
        if let [(older, _), _] = &self.checkpoints[..]
            && older.at.index > self.base.index
        {
            let at = older.at;
            self.entries.retain(|entry| entry.index > at.index);
            self.base = at;
        }
    }

    /// What a start finds, by the rules of the host.
    pub fn restored(&self) -> (Restored, State) {
        let hard = self.hard;
        let Some((meta, state)) = self.checkpoints.last() else {
            let restored = Restored {
                hard,
                base: self.base,
                members: self.bootstrap.clone(),
                applied: self.base,
                entries: self.entries.clone(),
                snapshot: None,
                fresh: self.fresh,
                marks: BTreeMap::new(),
                forgot: self.forgot,
            };
            return (restored, State::default());
        };
        let last = self.entries.last().map_or(self.base.index, |entry| entry.index);
        let there = self.entries.iter().find(|entry| entry.index == meta.at.index).map(|entry| entry.term);
        let joins = last >= meta.at.index && there.is_none_or(|term| term == meta.at.term);
        let (base, entries) = if joins { (self.base, self.entries.clone()) } else { (meta.at, Vec::new()) };
        let restored = Restored {
            hard,
            base,
            members: meta.members.clone(),
            applied: meta.at,
            entries,
            snapshot: Some(meta.clone()),
            fresh: false,
            marks: BTreeMap::new(),
            forgot: self.forgot,
        };
        (restored, *state)
    }
}

/// A process.
pub(super) struct Running {
    pub core: GroupCore,
    pub state: State,
    pub applied: Position,
    pub writes: VecDeque<Write>,
    /// Proposed here: place and command.
    pub proposed: VecDeque<(Position, u64)>,
    pub leads: bool,
    /// Counts process lives; events of earlier ones are void.
    pub life: u64,
}

pub(super) struct Member {
    pub node: NodeId,
    pub durable: Durable,
    pub running: Option<Running>,
    pub lives: u64,
    /// Its clock: nanoseconds at time zero, and parts per million that it runs fast.
    pub clock_start: u64,
    pub clock_ppm: i64,
    /// What its build understands from the next start on.
    pub feature_level: u32,
    /// Ticks for which the node of its leader was not heard while it slept.
    pub unheard: u32,
    /// What its disk had at earlier moments, oldest first.
    pub history: Vec<Durable>,
    /// How far somebody outside of the group knows that it got.
    pub witnessed: Mark,
    /// Ticks for which it waits for that at its start; 0: there is nobody outside.
    pub witness_ticks: u32,
}

impl Member {
    /// The member's own monotonic clock at a true time.
    pub fn clock(&self, now: u64) -> Time {
        let drift = i128::from(now) * i128::from(self.clock_ppm) / 1_000_000;
        Time((i128::from(self.clock_start) + i128::from(now) + drift) as u64)
    }

    pub fn start(&mut self, now: u64, seed: u64) {
        let (mut restored, state) = self.durable.restored();
        if restored.base.index == restored.applied.index && !self.durable.entries.is_empty() {
            // As the log is written again behind an installed checkpoint that its record did not follow.
            self.durable.entries = restored.entries.clone();
            self.durable.base = restored.base;
        } else if restored.entries.is_empty() {
            self.durable.entries.clear();
            self.durable.base = restored.base;
        }
        let applied = restored.applied;
        restored.fresh &= self.lives == 0;
        self.lives += 1;
        let config = CoreConfig {
            seed,
            keep_bytes: 2000,
            snapshot_retry_ticks: 20,
            feature_level: self.feature_level,
            sleep_ticks: 4,
            witness_ticks: self.witness_ticks,
            ..CoreConfig::new(self.node, GROUP)
        };
        let core = GroupCore::new(config, restored, self.clock(now));
        self.running = Some(Running {
            core,
            state,
            applied,
            writes: VecDeque::new(),
            proposed: VecDeque::new(),
            leads: false,
            life: self.lives,
        });
    }
}
