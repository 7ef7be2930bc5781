//! Random histories of one group of every scheme, beside a model that knows which disk really holds every acknowledged
//! byte.
//!
//! The model acknowledges as the data path does: when enough members serve, and by all serving members. Whoever does
//! not serve then has missed it, until a catch-up from enough complete members that run.
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
enum Happens {
    /// Something is acknowledged, if it can be.
    Written,
    /// Processes die, and the manager does not know it yet.
    Killed(Vec<u8>),
    /// The manager marks down what died, with or without some that did not die.
    Down(Vec<u8>),
    /// A member is reported and fails its probe; its process may live on.
    Failed(u8),
    /// Processes start, and the leader has heard of those in the mask.
    Registered(Vec<u8>, u16),
    /// A member goes on catching up, and reports.
    CaughtUp(u8),
    /// A member that had to leave answers again.
    Rejoined(u8),
}

fn happens() -> impl Strategy<Value = Happens> {
    let some = || prop::collection::vec(any::<u8>(), 1..5);
    prop_oneof![
        6 => Just(Happens::Written),
        2 => some().prop_map(Happens::Killed),
        4 => some().prop_map(Happens::Down),
        3 => any::<u8>().prop_map(Happens::Failed),
        8 => (some(), any::<u16>()).prop_map(|(disks, heard)| Happens::Registered(disks, heard)),
        8 => any::<u8>().prop_map(Happens::CaughtUp),
        4 => any::<u8>().prop_map(Happens::Rejoined),
    ]
}

struct Model {
    pg: Pg,
    /// Runs, by member.
    alive: Vec<bool>,
    /// Was marked down since it registered.
    marked: Vec<bool>,
    /// Holds all that was acknowledged.
    complete: Vec<bool>,
    acknowledged: usize,
}

impl Model {
    fn new(scheme: Scheme) -> Self {
        let disks: Vec<DiskId> = (0..scheme.members() as u32).map(|n| DiskId(n + 1)).collect();
        let pg = Pg::new(PgId(1), VolumeId(1), scheme, &disks, WallTime(0));
        let n = disks.len();
        Self { pg, alive: vec![true; n], marked: vec![false; n], complete: vec![true; n], acknowledged: 0 }
    }

    fn member(&self, pick: u8) -> usize {
        usize::from(pick) % self.alive.len()
    }

    fn members(&self, picks: &[u8]) -> BTreeSet<usize> {
        picks.iter().map(|pick| self.member(*pick)).collect()
    }

    fn state(&self, i: usize) -> MemberState {
        self.pg.members[i].state
    }

    fn disks(members: &BTreeSet<usize>) -> Vec<DiskId> {
        members.iter().map(|i| DiskId(*i as u32 + 1)).collect()
    }

    fn write(&mut self) {
        let serving: Vec<usize> = (0..self.alive.len()).filter(|i| self.state(*i) == Serving).collect();
        // Every serving member has to answer.
        if serving.len() < self.pg.scheme.write_minimum() || !serving.iter().all(|i| self.alive[*i]) {
            return;
        }
        self.acknowledged += 1;
        for i in 0..self.alive.len() {
            // Those that catch up get what is new too, if they run.
            let receives = serving.contains(&i) || (self.state(i) == Syncing && self.alive[i]);
            self.complete[i] &= receives;
        }
    }

    fn down(&mut self, members: &BTreeSet<usize>) {
        for i in members {
            self.marked[*i] = true;
        }
        self.pg.take_down(&Self::disks(members));
    }

    fn register(&mut self, members: &BTreeSet<usize>, heard: u16) {
        for i in members {
            (self.alive[*i], self.marked[*i]) = (true, false);
        }
        let (marked, at) = (self.marked.clone(), |disk: DiskId| disk.get() as usize - 1);
        let able = |disk: DiskId| !marked[at(disk)];
        self.pg.register(&Self::disks(members), |disk| able(disk) && heard >> at(disk) & 1 != 0, able);
    }

    fn catch_up(&mut self, i: usize) {
        let sources = (0..self.alive.len()).filter(|s| self.state(*s) == Serving && self.alive[*s]);
        if self.state(i) == Syncing && self.alive[i] && sources.count() >= self.pg.scheme.read_minimum() {
            self.complete[i] = true;
            assert!(self.pg.caught_up(&[DiskId(i as u32 + 1)]));
        }
    }

    fn step(&mut self, happens: &Happens) {
        let epoch = self.pg.epoch;
        let before = self.pg.members.clone();
        match happens {
            Happens::Written => self.write(),
            Happens::Killed(picks) => self.members(picks).into_iter().for_each(|i| self.alive[i] = false),
            Happens::Down(picks) => self.down(&self.members(picks)),
            Happens::Failed(pick) => drop(self.pg.fail(DiskId(self.member(*pick) as u32 + 1))),
            Happens::Registered(picks, heard) => self.register(&self.members(picks), *heard),
            Happens::CaughtUp(pick) => self.catch_up(self.member(*pick)),
            Happens::Rejoined(pick) => {
                let i = self.member(*pick);
                let marked = self.marked.clone();
                if self.alive[i] && !marked[i] {
                    self.pg.rejoin(DiskId(i as u32 + 1), |disk| !marked[disk.get() as usize - 1]);
                }
            }
        }
        assert!(self.pg.members == before || self.pg.epoch == Epoch(epoch.get() + 1), "a state without a new epoch");
    }

    fn check(&self) {
        for i in 0..self.alive.len() {
            let counts = matches!(self.state(i), Serving | Waiting);
            assert!(!counts || self.complete[i], "member {i} lacks what was acknowledged: {:?}", self.pg);
        }
        assert_eq!(self.pg.flaw(), None);
    }

    /// Members that are known to be complete.
    fn known(&self) -> Vec<usize> {
        (0..self.alive.len()).filter(|i| matches!(self.state(*i), Serving | Waiting)).collect()
    }
}

fn scheme() -> impl Strategy<Value = Scheme> {
    prop::sample::select(Scheme::all().collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// A reader would get old bytes from a member that missed some, or a group would be lost although enough of it is there.
    #[test]
    fn who_serves_holds_everything(
        scheme in scheme(), history in prop::collection::vec(happens(), 1..120), back in any::<u64>(),
    ) {
        let mut model = Model::new(scheme);
        for happens in &history {
            model.step(happens);
            model.check();
        }
        // Everybody is lost; then any of the known complete members come back, as few as reads need, in any order.
        let all: BTreeSet<usize> = (0..scheme.members()).collect();
        model.down(&all);
        let mut known = model.known();
        prop_assert!(known.len() >= scheme.read_minimum());
        let mut pick = back;
        for _ in 0..scheme.read_minimum() {
            prop_assert!(!model.pg.is_readable());
            let i = known.remove(pick as usize % known.len());
            pick = pick.rotate_right(7);
            model.register(&BTreeSet::from([i]), u16::MAX);
            model.check();
        }
        prop_assert!(model.pg.is_readable(), "enough complete members are back: {:?}", model.pg);
        // And the others after them: nothing is lost, and writes go on.
        for i in all {
            if !matches!(model.state(i), Serving | Syncing) {
                model.register(&BTreeSet::from([i]), u16::MAX);
            }
            model.catch_up(i);
            model.check();
        }
        prop_assert!(model.pg.is_complete(), "{:?}", model.pg);
    }

    /// A group would hang on one particular disk: where something is acknowledged whenever it can be, the members that
    /// are complete must be exactly those that may serve or are waited for.
    #[test]
    fn nobody_complete_is_left_out(scheme in scheme(), history in prop::collection::vec(happens(), 1..80)) {
        let mut model = Model::new(scheme);
        // A process that died unnoticed stops the writes: then others may have missed nothing, which nobody knows.
        for happens in history.iter().filter(|happens| !matches!(happens, Happens::Killed(_))) {
            model.step(happens);
            model.write();
            model.check();
            let known = model.known();
            for i in 0..scheme.members() {
                // A member that began anew counts as complete only once it has reported so.
                model.complete[i] &= model.state(i) != Syncing;
                prop_assert!(!model.complete[i] || known.contains(&i), "member {i} is complete: {:?}", model.pg);
            }
        }
    }
}

/// The properties would prove nothing if random histories hardly ever wrote, waited or came back.
#[test]
fn histories_reach_what_matters() {
    let scheme = Scheme::Erasure { k: 3, m: 2 };
    let mut model = Model::new(scheme);
    model.write();
    model.down(&BTreeSet::from([0]));
    model.write();
    model.down(&BTreeSet::from([1, 2]));
    model.write();
    assert_eq!(model.acknowledged, 2, "below the minimum nothing is acknowledged");
    assert_eq!(model.complete, [false, true, true, true, true]);
    assert_eq!(states(&model.pg), [Offline, Waiting, Waiting, Serving, Serving]);
    model.register(&BTreeSet::from([0]), u16::MAX);
    model.catch_up(0);
    assert_eq!(model.state(0), Offline, "two shards of three are no source");
    model.register(&BTreeSet::from([2]), u16::MAX);
    model.catch_up(0);
    model.write();
    assert_eq!(model.acknowledged, 3);
    assert_eq!(states(&model.pg), [Serving, Offline, Serving, Serving, Serving]);
    assert_eq!(model.complete, [true, false, true, true, true]);
    model.check();
}
