//! The manager as a member sees it: the states of the group as the shipping table decides them
//! ([`cairn_manager_core::pg`]), told and heard over the same network.

use std::sync::Arc;

use cairn_format::pg_state::{PgStateMember, PgStateRecord};
use cairn_manager_core::pg::Pg;
use cairn_types::{ClusterId, DiskId, Epoch, Incarnation, MemberState, NodeId, PgId, Scheme, VolumeId, WallTime};

/// A node is taken for dead when it was silent for so long and answers no probe.
pub const SILENCE: u64 = 2_500_000;
/// Who had to leave comes back after this.
const REJOIN: u64 = 2_000_000;
/// Reports within this time.
const REPORTS_WITHIN: u64 = 10_000_000;

/// As named above. Times in microseconds.
#[derive(Debug)]
pub struct Manager {
    /// The group.
    pub pg: Pg,
    up: Vec<bool>,
    heard: Vec<u64>,
    incarnations: Vec<Incarnation>,
    next_incarnation: u64,
    /// The life of each that is registered.
    lives: Vec<u64>,
    rejoin_at: Vec<u64>,
    reports: Vec<Vec<u64>>,
    /// The epoch that each node is known to have.
    pub told: Vec<Epoch>,
}

impl Manager {
    /// A new group of these disks.
    pub fn new(scheme: Scheme, disks: &[DiskId]) -> Self {
        let count = disks.len();
        Self {
            pg: Pg::new(PgId(1), VolumeId(1), scheme, disks, WallTime(0)),
            up: vec![false; count],
            heard: vec![0; count],
            incarnations: vec![Incarnation(0); count],
            next_incarnation: 1,
            lives: vec![0; count],
            rejoin_at: vec![0; count],
            reports: vec![Vec::new(); count],
            told: vec![Epoch(0); count],
        }
    }

    /// The group's state as one disk is told it.
    pub fn record(&self, disk: DiskId) -> Arc<PgStateRecord> {
        let member = |member: &cairn_manager_core::pg::Member| PgStateMember {
            disk: member.disk,
            node: NodeId(member.disk.get()),
            state: member.state,
        };
        Arc::new(PgStateRecord {
            cluster: ClusterId([1; 16]),
            pg: self.pg.id,
            volume: self.pg.volume,
            disk,
            high_water: self.pg.index_floor,
            epoch: self.pg.epoch,
            creation_epoch: self.pg.creation_epoch,
            term: 1,
            scheme: self.pg.scheme,
            retired: self.pg.retired,
            comparing: self.pg.older.comparing,
            older_epoch: self.pg.older.epoch,
            members: self.pg.members.iter().map(member).collect(),
        })
    }

    fn disk(&self, node: usize) -> DiskId {
        self.pg.members[node].disk
    }

    /// A process started: its incarnation.
    pub fn registers(&mut self, node: usize, life: u64, now: u64) -> Incarnation {
        if self.lives[node] == life {
            // It asks again.
            return self.incarnations[node];
        }
        self.lives[node] = life;
        let incarnation = Incarnation(self.next_incarnation);
        self.next_incarnation += 1;
        let first = self.incarnations[node] == Incarnation(0);
        (self.incarnations[node], self.up[node], self.heard[node]) = (incarnation, true, now);
        self.told[node] = Epoch(0);
        if !first {
            let disk = self.disk(node);
            let (heard, up) = (self.heard.clone(), self.up.clone());
            let place = |of: DiskId| (of.get() - 1) as usize;
            self.pg.register(
                &[disk],
                &[],
                |of| up[place(of)] && now.saturating_sub(heard[place(of)]) < SILENCE,
                |of| up[place(of)],
            );
        }
        incarnation
    }

    /// A heartbeat; whether it is of the process that registered last.
    pub fn beats(
        &mut self,
        node: usize,
        incarnation: Incarnation,
        epoch: Epoch,
        caught_up: Option<Epoch>,
        now: u64,
    ) -> bool {
        if self.incarnations[node] != incarnation {
            return false;
        }
        (self.heard[node], self.up[node]) = (now, true);
        self.told[node] = self.told[node].max(epoch);
        if caught_up == Some(self.pg.epoch) {
            let disk = self.disk(node);
            self.pg.caught_up(&[disk]);
        }
        true
    }

    /// Somebody says that a member is in the way; `answers`: a probe finds it.
    pub fn suspected(&mut self, disk: DiskId, answers: bool, now: u64) {
        let node = (disk.get() - 1) as usize;
        if !answers {
            if self.up[node] {
                self.goes_down(node, now);
            }
            return;
        }
        self.reports[node].retain(|at| at + REPORTS_WITHIN > now);
        self.reports[node].push(now);
        if self.reports[node].len() >= 3 {
            self.fails(disk, now);
        }
    }

    /// A member has to leave.
    pub fn fails(&mut self, disk: DiskId, now: u64) {
        let node = (disk.get() - 1) as usize;
        self.reports[node].clear();
        if self.pg.fail(disk) {
            self.rejoin_at[node] = now + REJOIN;
        }
    }

    fn goes_down(&mut self, node: usize, now: u64) {
        self.up[node] = false;
        self.rejoin_at[node] = now + REJOIN / 4;
        let disk = self.disk(node);
        self.pg.take_down(&[disk]);
    }

    /// Time passes; `answers`: whom a probe finds.
    pub fn ticks(&mut self, answers: impl Fn(usize) -> bool, now: u64) {
        let silent =
            |node: &usize| self.up[*node] && now.saturating_sub(self.heard[*node]) > SILENCE && !answers(*node);
        let down: Vec<usize> = (0..self.up.len()).filter(silent).collect();
        if !down.is_empty() {
            down.iter().for_each(|node| self.up[*node] = false);
            // All that go down in one command fall together.
            let disks: Vec<DiskId> = down.iter().map(|node| self.disk(*node)).collect();
            self.pg.take_down(&disks);
        }
        for node in 0..self.up.len() {
            let away = matches!(self.pg.members[node].state, MemberState::Offline | MemberState::Waiting);
            let heard = now.saturating_sub(self.heard[node]) < SILENCE;
            if self.up[node] && heard && away && self.rejoin_at[node] <= now {
                let disk = self.disk(node);
                let up = self.up.clone();
                self.pg.rejoin(disk, |of| up[(of.get() - 1) as usize]);
            }
        }
    }

    /// Nodes that do not have the present state yet and may be told.
    pub fn to_tell(&self) -> Vec<usize> {
        (0..self.up.len()).filter(|node| self.up[*node] && self.told[*node] < self.pg.epoch).collect()
    }
}
