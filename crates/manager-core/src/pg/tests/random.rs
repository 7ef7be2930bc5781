//! Random histories of one group of every scheme, beside a model that knows which disk really holds every acknowledged
//! byte.
//!
//! The model acknowledges as the data path does: when enough members serve, and by all serving members. Whoever does
//! not serve then has missed it, until a catch-up from enough complete members that run. Members that are lost are
//! replaced by fresh disks, those that left may come back or delete what they have.
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
    /// Processes start on older copies of their disks; some of others start beside them.
    Older(Vec<u8>, Vec<u8>, u16),
    /// A member goes on catching up, and reports.
    CaughtUp(u8),
    /// A member that had to leave answers again.
    Rejoined(u8),
    /// Members that are away are replaced by fresh disks.
    Replaced(Vec<u8>),
    /// A disk that was replaced runs again, and gets its place back.
    TakenBack(u8),
    /// Disks that are told to delete what they have do so.
    Dropped,
    /// A fresh disk begins to get what a member has.
    MoveBegun(u8),
    /// Something happens to the disk that joins.
    Joining(Joins),
}

#[derive(Clone, Copy, Debug)]
enum Joins {
    CaughtUp,
    Killed,
    Down,
    Failed,
    Registered,
    Rejoined,
    GivesUp,
}

fn happens() -> impl Strategy<Value = Happens> {
    let some = || prop::collection::vec(any::<u8>(), 1..5);
    prop_oneof![
        6 => Just(Happens::Written),
        2 => some().prop_map(Happens::Killed),
        4 => some().prop_map(Happens::Down),
        3 => any::<u8>().prop_map(Happens::Failed),
        8 => (some(), any::<u16>()).prop_map(|(disks, heard)| Happens::Registered(disks, heard)),
        3 => (some(), prop::collection::vec(any::<u8>(), 0..3), any::<u16>())
            .prop_map(|(older, others, heard)| Happens::Older(older, others, heard)),
        8 => any::<u8>().prop_map(Happens::CaughtUp),
        4 => any::<u8>().prop_map(Happens::Rejoined),
        4 => prop::collection::vec(any::<u8>(), 1..3).prop_map(Happens::Replaced),
        2 => any::<u8>().prop_map(Happens::TakenBack),
        1 => Just(Happens::Dropped),
        4 => any::<u8>().prop_map(Happens::MoveBegun),
        6 => joins().prop_map(Happens::Joining),
    ]
}

fn joins() -> impl Strategy<Value = Joins> {
    use Joins::*;
    prop::sample::select(vec![CaughtUp, CaughtUp, CaughtUp, Killed, Down, Failed, Registered, Rejoined, GivesUp])
}

/// A disk, whether it is a member now or not.
#[derive(Clone, Copy)]
struct Disk {
    /// Its process runs.
    alive: bool,
    /// Was marked down since it registered.
    marked: bool,
    /// Holds all that was acknowledged of its place.
    complete: bool,
}

struct Model {
    pg: Pg,
    /// By number, from 1.
    disks: Vec<Disk>,
    acknowledged: usize,
    replaced: usize,
    taken_back: usize,
    moved: usize,
    put_together: usize,
}

impl Model {
    fn new(scheme: Scheme) -> Self {
        let disks: Vec<DiskId> = (0..scheme.members() as u32).map(|n| DiskId(n + 1)).collect();
        let pg = Pg::new(PgId(1), VolumeId(1), scheme, &disks, WallTime(0));
        let disks = vec![Disk { alive: true, marked: false, complete: true }; disks.len()];
        Self { pg, disks, acknowledged: 0, replaced: 0, taken_back: 0, moved: 0, put_together: 0 }
    }

    fn member(&self, pick: u8) -> usize {
        usize::from(pick) % self.pg.members.len()
    }

    fn members(&self, picks: &[u8]) -> BTreeSet<usize> {
        picks.iter().map(|pick| self.member(*pick)).collect()
    }

    fn state(&self, i: usize) -> MemberState {
        self.pg.members[i].state
    }

    fn disk(&mut self, id: DiskId) -> &mut Disk {
        &mut self.disks[id.get() as usize - 1]
    }

    /// The disk of a member.
    fn at(&self, i: usize) -> Disk {
        self.disks[self.pg.members[i].disk.get() as usize - 1]
    }

    fn disks(&self, members: &BTreeSet<usize>) -> Vec<DiskId> {
        members.iter().map(|i| self.pg.members[*i].disk).collect()
    }

    fn able(&self) -> impl Fn(DiskId) -> bool + use<> {
        let disks = self.disks.clone();
        move |disk: DiskId| !disks[disk.get() as usize - 1].marked
    }

    fn write(&mut self) {
        let n = self.pg.members.len();
        let serving: Vec<usize> = (0..n).filter(|i| self.state(*i) == Serving).collect();
        // Every serving member has to answer.
        if serving.len() < self.pg.scheme.write_minimum() || !serving.iter().all(|i| self.at(*i).alive) {
            return;
        }
        self.acknowledged += 1;
        let receives = |i: &usize| serving.contains(i) || (self.state(*i) == Syncing && self.at(*i).alive);
        // Those that catch up get what is new too, if they run. Whoever is no member misses it.
        let mut receivers: Vec<DiskId> = (0..n).filter(receives).map(|i| self.pg.members[i].disk).collect();
        // So does a disk that joins; but a shard has one place only.
        let joining = self.pg.joining.filter(|j| j.state == Syncing && self.pg.scheme.is_replicated());
        receivers.extend(joining.map(|j| j.disk).filter(|disk| self.disks[disk.get() as usize - 1].alive));
        for (number, disk) in (1..).zip(&mut self.disks) {
            disk.complete &= receivers.contains(&DiskId(number));
        }
    }

    fn down(&mut self, members: &BTreeSet<usize>) {
        let disks = self.disks(members);
        disks.iter().for_each(|disk| self.disk(*disk).marked = true);
        self.pg.take_down(&disks);
    }

    fn register(&mut self, members: &BTreeSet<usize>, heard: u16) {
        let disks = self.disks(members);
        for disk in &disks {
            let disk = self.disk(*disk);
            (disk.alive, disk.marked) = (true, false);
        }
        let able = self.able();
        self.pg.register(&disks, &[], |disk| able(disk) && heard >> (disk.get() % 16) & 1 != 0, &able);
    }

    fn older(&mut self, older: &BTreeSet<usize>, others: &BTreeSet<usize>, heard: u16) {
        let before = self.pg.clone();
        let mut all = self.disks(older);
        all.iter().for_each(|disk| self.disk(*disk).complete = false);
        let older = all.clone();
        all.extend(self.disks(others).into_iter().filter(|disk| !older.contains(disk)));
        for disk in &all {
            let disk = self.disk(*disk);
            (disk.alive, disk.marked) = (true, false);
        }
        let able = self.able();
        self.pg.register(&all, &older, |disk| able(disk) && heard >> (disk.get() % 16) & 1 != 0, &able);
        let holds = |m: &&Member| matches!(m.state, Serving | Waiting) && !older.contains(&m.disk);
        let sure = before.members.iter().filter(holds).count();
        let hit = before.members.iter().any(|m| matches!(m.state, Serving | Waiting) && older.contains(&m.disk));
        let put_together = self.pg.older.epoch != before.older.epoch;
        assert_eq!(put_together, hit && sure < self.pg.scheme.read_minimum(), "{before:?} {:?}", self.pg);
        if put_together {
            // What they have together is all there is.
            let serving = self.pg.members.iter().filter(|m| m.state == Serving).map(|m| m.disk).collect::<Vec<_>>();
            serving.into_iter().for_each(|disk| self.disk(disk).complete = true);
            self.put_together += 1;
            assert!(!self.pg.is_writable() || !self.pg.older.comparing);
            return;
        }
        let serves = |m: &Member| m.state == Serving && older.contains(&m.disk);
        assert!(!self.pg.members.iter().any(serves), "an older copy serves: {:?}", self.pg);
    }

    fn catch_up(&mut self, i: usize) {
        let n = self.pg.members.len();
        let sources = (0..n).filter(|s| self.state(*s) == Serving && self.at(*s).alive).count();
        if self.state(i) == Syncing && self.at(i).alive && sources >= self.pg.scheme.read_minimum() {
            let disk = self.pg.members[i].disk;
            self.disk(disk).complete = true;
            assert!(self.pg.caught_up(&[disk]));
        }
    }

    fn replace(&mut self, members: &BTreeSet<usize>) {
        let mut swaps = Vec::new();
        for old in self.disks(members) {
            self.disks.push(Disk { alive: true, marked: false, complete: false });
            swaps.push((old, DiskId(self.disks.len() as u32)));
        }
        let (able, before) = (self.able(), self.pg.clone());
        if self.pg.replace(&swaps, &able) {
            self.replaced += 1;
            for (old, new) in &swaps {
                let was = before.members.iter().position(|m| m.disk == *old).expect("a member");
                assert!(matches!(before.members[was].state, Offline | Waiting), "nobody is replaced who serves");
                assert_eq!(self.pg.members[was].disk, *new, "in the same place");
            }
        } else {
            assert!(self.pg == before, "a refused replacement changed something");
        }
    }

    fn take_back(&mut self, pick: u8) {
        let formers: Vec<DiskId> = self.pg.formers.iter().filter(|f| !f.drop).map(|f| f.disk).collect();
        let Some(disk) = formers.get(usize::from(pick) % formers.len().max(1)).copied() else { return };
        let place = self.pg.position_of(disk).expect("it had one");
        // Its process starts.
        (self.disk(disk).alive, self.disk(disk).marked) = (true, false);
        let able = self.able();
        if self.pg.take_back(disk, &able) {
            self.taken_back += 1;
            assert_eq!(self.pg.members[place].disk, disk);
            assert!(self.state(place) == Syncing || self.disk(disk).complete, "it serves what it lacks");
        }
    }

    fn begin_move(&mut self, pick: u8) {
        let old = self.member(pick);
        let (leaving, before) = (self.pg.members[old], self.pg.clone());
        self.disks.push(Disk { alive: true, marked: false, complete: false });
        let new = DiskId(self.disks.len() as u32);
        let able = self.able();
        if self.pg.begin_move(leaving.disk, new, &able) {
            assert!(leaving.state == Serving && before.joining.is_none() && self.pg.members == before.members);
            assert_eq!((self.pg.leaving(), self.pg.state_of(new)), (Some(leaving.disk), Some(Syncing)));
        } else {
            assert!(self.pg == before, "a refused move changed something");
        }
    }

    fn joining(&mut self, joins: Joins) {
        let Some(joining) = self.pg.joining else { return };
        let (disk, able) = (joining.disk, self.able());
        match joins {
            Joins::CaughtUp => self.catch_up_joining(),
            Joins::Killed => self.disk(disk).alive = false,
            Joins::Down => {
                self.disk(disk).marked = true;
                self.pg.take_down(&[disk]);
            }
            Joins::Failed => drop(self.pg.fail(disk)),
            Joins::Registered => {
                (self.disk(disk).alive, self.disk(disk).marked) = (true, false);
                let able = self.able();
                self.pg.register(&[disk], &[], &able, &able);
            }
            Joins::Rejoined if self.disk(disk).alive && able(disk) => drop(self.pg.rejoin(disk, &able)),
            Joins::Rejoined => {}
            Joins::GivesUp => assert!(self.pg.cancel_move(disk) && !self.pg.disks().any(|known| known == disk)),
        }
    }

    /// It holds all that was acknowledged up to now, and says so.
    fn catch_up_joining(&mut self) {
        let Some(joining) = self.pg.joining else { return };
        let (n, place) = (self.pg.members.len(), usize::from(joining.position));
        let sources = (0..n).filter(|s| self.state(*s) == Serving && self.at(*s).alive).count();
        let able = joining.state == Syncing && self.disk(joining.disk).alive;
        if !able || sources < self.pg.scheme.read_minimum() {
            return;
        }
        self.disk(joining.disk).complete = true;
        let replicated = self.pg.scheme.is_replicated();
        let arrives = replicated || (0..n).all(|i| i == place || self.state(i) == Serving);
        let (before, old) = (self.pg.count(Serving), self.pg.members[place].disk);
        assert_eq!(self.pg.caught_up(&[joining.disk]), arrives);
        if arrives {
            self.moved += 1;
            assert_eq!((self.pg.members[place].disk, self.pg.joining), (joining.disk, None));
            let fewer = usize::from(!replicated);
            assert!(self.pg.count(Serving) + fewer >= before, "a move takes redundancy away: {:?}", self.pg);
            let former = self.pg.formers.iter().find(|f| f.disk == old).expect("it is remembered");
            assert!(replicated || !former.drop, "it has what was written while the other one joined");
        }
    }

    fn drop_formers(&mut self) {
        for former in self.pg.formers.clone().iter().filter(|f| f.drop) {
            self.disk(former.disk).complete = false;
            assert!(self.pg.forget_former(former.disk));
        }
    }

    fn step(&mut self, happens: &Happens) {
        let epoch = self.pg.epoch;
        let before = self.pg.members.clone();
        let told = |pg: &Pg| pg.formers.iter().filter(|f| f.drop).map(|f| f.disk).collect::<BTreeSet<DiskId>>();
        let told_before = told(&self.pg);
        match happens {
            Happens::Written => self.write(),
            Happens::Killed(picks) => {
                let disks = self.disks(&self.members(picks));
                disks.into_iter().for_each(|disk| self.disk(disk).alive = false);
            }
            Happens::Down(picks) => self.down(&self.members(picks)),
            Happens::Failed(pick) => drop(self.pg.fail(self.pg.members[self.member(*pick)].disk)),
            Happens::Registered(picks, heard) => self.register(&self.members(picks), *heard),
            Happens::Older(older, others, heard) => {
                self.older(&self.members(older), &self.members(others), *heard);
            }
            Happens::CaughtUp(pick) => self.catch_up(self.member(*pick)),
            Happens::Rejoined(pick) => {
                let i = self.member(*pick);
                if self.at(i).alive && !self.at(i).marked {
                    let able = self.able();
                    self.pg.rejoin(self.pg.members[i].disk, &able);
                }
            }
            Happens::Replaced(picks) => self.replace(&self.members(picks)),
            Happens::TakenBack(pick) => self.take_back(*pick),
            Happens::Dropped => self.drop_formers(),
            Happens::MoveBegun(pick) => self.begin_move(*pick),
            Happens::Joining(joins) => self.joining(*joins),
        }
        assert!(self.pg.members == before || self.pg.epoch == Epoch(epoch.get() + 1), "a state without a new epoch");
        if !told(&self.pg).is_subset(&told_before) {
            let complete = (0..self.pg.members.len()).all(|i| self.at(i).complete);
            assert!(complete, "disks are told to delete what others lack: {:?}", self.pg);
        }
    }

    fn check(&self) {
        for i in 0..self.pg.members.len() {
            let counts = matches!(self.state(i), Serving | Waiting);
            assert!(!counts || self.at(i).complete, "member {i} lacks what was acknowledged: {:?}", self.pg);
        }
        for former in self.pg.formers.iter().filter(|f| f.complete) {
            let disk = self.disks[former.disk.get() as usize - 1];
            assert!(disk.complete, "{} would serve what it lacks: {:?}", former.disk, self.pg);
        }
        assert_eq!(self.pg.flaw(), None);
        assert_eq!(self.pg.formers_flaw(), None);
    }

    /// Members that are known to be complete.
    fn known(&self) -> Vec<usize> {
        (0..self.pg.members.len()).filter(|i| matches!(self.state(*i), Serving | Waiting)).collect()
    }

    /// A complete member comes back, or, in its place, one that was replaced while it was waited for.
    fn come_back(&mut self, i: usize) {
        let former = self.pg.formers.iter().find(|f| f.complete && usize::from(f.position) == i).map(|f| f.disk);
        match former {
            Some(disk) if self.state(i) != Serving => {
                (self.disk(disk).alive, self.disk(disk).marked) = (true, false);
                let able = self.able();
                assert!(self.pg.take_back(disk, &able));
                assert_eq!(self.state(i), Serving);
            }
            _ => self.register(&BTreeSet::from([i]), u16::MAX),
        }
    }
}

fn scheme() -> impl Strategy<Value = Scheme> {
    prop::sample::select(Scheme::all().collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// A reader would get old bytes from a member that missed some, or a group would be lost although enough of it is
    /// there.
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
        let formers = model.pg.formers.iter().filter(|f| f.complete).map(|f| usize::from(f.position));
        known.extend(formers.collect::<BTreeSet<usize>>());
        known.sort_unstable();
        known.dedup();
        let mut pick = back;
        for _ in 0..scheme.read_minimum() {
            prop_assert!(!model.pg.is_readable());
            let i = known.remove(pick as usize % known.len());
            pick = pick.rotate_right(7);
            model.come_back(i);
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
                let (disk, syncing) = (model.pg.members[i].disk, model.state(i) == Syncing);
                model.disk(disk).complete &= !syncing;
                prop_assert!(!model.at(i).complete || known.contains(&i), "member {i} is complete: {:?}", model.pg);
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
    let complete = |model: &Model| model.disks.iter().map(|disk| disk.complete).collect::<Vec<_>>();
    assert_eq!(complete(&model), [false, true, true, true, true]);
    assert_eq!(states(&model.pg), [Offline, Waiting, Waiting, Serving, Serving]);
    model.replace(&BTreeSet::from([0]));
    assert_eq!(model.replaced, 0, "two shards of three are no source");
    model.register(&BTreeSet::from([0]), u16::MAX);
    model.catch_up(0);
    assert_eq!(model.state(0), Offline, "two shards of three are no source");
    model.register(&BTreeSet::from([2]), u16::MAX);
    model.catch_up(0);
    model.write();
    assert_eq!(model.acknowledged, 3);
    assert_eq!(states(&model.pg), [Serving, Offline, Serving, Serving, Serving]);
    assert_eq!(complete(&model)[..5], [true, false, true, true, true]);
    model.check();
    model.replace(&BTreeSet::from([1]));
    assert_eq!((model.replaced, states(&model.pg)[1]), (1, Syncing));
    model.write();
    model.take_back(0);
    assert_eq!((model.taken_back, model.pg.members[1].disk), (1, DiskId(2)), "it lacks less than the fresh one");
    model.catch_up(1);
    assert!(model.pg.is_complete() && model.pg.formers.iter().all(|f| f.drop), "{:?}", model.pg);
    model.drop_formers();
    assert!(model.pg.formers.is_empty());
    model.check();
    model.begin_move(4);
    model.write();
    model.catch_up_joining();
    assert_eq!((model.moved, states(&model.pg)), (1, vec![Serving, Serving, Serving, Serving, Syncing]));
    model.catch_up(4);
    assert!(model.pg.is_complete() && model.pg.formers[0].drop);
    model.check();
}
