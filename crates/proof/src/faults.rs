//! [`Chaos`]: which faults are in force, how they begin and how they end. A seed decides which and when; never more
//! places than the redundancy allows are faulty, coming back or damaged at the same time.

mod heads;
mod kind;
mod racks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_env::disk::{Disk, DiskOp, OpenOptions};
use cairn_sim::{CrashPolicy, FaultRule, FaultWhen, SimDisk, SimRng};
use cairn_types::FEATURE_LEVEL;

use crate::cluster::Cluster;
use crate::data_node::{DISK_BYTES, DataNode, End};
use crate::links::{self, Effect, host_of};
use crate::members::Part;
use crate::sleep::Sleep;

pub use kind::Kind;

/// A fault that is to begin.
#[derive(Debug, Clone)]
pub struct Planned {
    pub place: usize,
    pub kind: Kind,
    /// After the step has begun.
    pub after: Duration,
    /// The step at which it ends.
    pub until: usize,
    /// Where bits flip.
    pub spots: Vec<Spot>,
}

/// A byte of a chunk.
#[derive(Debug, Clone, Copy)]
pub struct Spot {
    chunk: (u32, u32),
    /// In its data.
    offset: u64,
}

impl Spot {
    fn file(&self) -> String {
        format!("pg/{}/{:010}.chunk", self.chunk.0, self.chunk.1)
    }
}

struct Active {
    planned: Planned,
    rules: Vec<u64>,
    sleep: Option<Sleep>,
}

/// The faults of a seed.
pub struct Chaos {
    cluster: Arc<Cluster>,
    rng: SimRng,
    budget: usize,
    active: Vec<Active>,
    /// Places with damaged chunks that nobody has found whole since.
    pub rotten: BTreeSet<usize>,
    /// Numbers of nodes that are lost, and their places: they count until the manager has noticed.
    lost: Vec<(u32, usize)>,
    /// Data nodes that came back as older copies of themselves, and may lack something.
    pub behind: BTreeSet<usize>,
    /// The same of heads.
    pub old_heads: BTreeSet<usize>,
    /// Disks that went back so far.
    pub went_back: u64,
    /// Copies are made.
    copies: bool,
    /// Decides which.
    copying: SimRng,
    /// What did not come back.
    broken: Option<String>,
    /// How often each kind was begun.
    pub begun: BTreeMap<&'static str, u64>,
}

impl Chaos {
    /// No faults yet; `budget`: places that may be faulty at the same time.
    pub fn new(seed: u64, cluster: Arc<Cluster>, budget: usize) -> Self {
        let rng = SimRng::derived(seed, "chaos");
        Self {
            cluster,
            rng,
            budget,
            active: Vec::new(),
            rotten: BTreeSet::new(),
            lost: Vec::new(),
            behind: BTreeSet::new(),
            old_heads: BTreeSet::new(),
            went_back: 0,
            copies: false,
            copying: SimRng::derived(seed, "copies"),
            broken: None,
            begun: BTreeMap::new(),
        }
    }

    /// Places that count against the budget now; `None` while nobody knows.
    pub fn exposed(&self) -> Option<BTreeSet<usize>> {
        let map = self.cluster.map()?;
        let missing = self.cluster.not_serving(&map);
        let mut exposed: BTreeSet<usize> = missing.into_iter().flat_map(|(_, places)| places).collect();
        exposed.extend(
            self.active.iter().map(|active| active.planned.place).filter(|place| !self.cluster.is_head(*place)),
        );
        exposed.extend(&self.rotten);
        exposed.extend(&self.behind);
        if !self.lost.is_empty() {
            let is_up = |number: u32| map.nodes.iter().any(|node| node.id == number && node.up);
            exposed.extend(self.lost.iter().filter(|(number, _)| is_up(*number)).map(|(_, place)| *place));
        }
        Some(exposed)
    }

    /// Places that may lack what they should have: a fault is in force there, or has damaged chunks.
    pub fn excused(&self) -> BTreeSet<usize> {
        self.active.iter().map(|active| active.planned.place).chain(self.rotten.iter().copied()).collect()
    }

    /// Whether a fault of a head is in force, or one lacks what it had.
    pub fn head_is_faulty(&self) -> bool {
        !self.old_heads.is_empty() || self.active.iter().any(|active| self.cluster.is_head(active.planned.place))
    }

    /// Whether the namespace may be out of reach: a fault of the only head is in force, or clients alone are cut off
    /// from one of three, which may lead and knows nothing of it. Of three, one is faulty at most.
    pub fn namespace_may_stop(&self) -> bool {
        let only = self.cluster.only_head;
        self.active.iter().any(|active| {
            let Planned { place, kind, .. } = active.planned;
            self.cluster.is_head(place) && (only || matches!(kind, Kind::Cut(links::End::Client, _)))
        })
    }

    /// Keeps a copy of what each place has now, once the managers log generations: not before all of them know that all
    /// understand them.
    fn keep_all_copies(&mut self) {
        self.copies = self.cluster.status().is_some_and(|status| status.feature_level == FEATURE_LEVEL);
        if !self.copies {
            return;
        }
        self.cluster.nodes.iter().for_each(|node| node.lock().keep_copy(&self.copying));
        if !self.cluster.only_head {
            self.cluster.heads.iter().for_each(|head| head.lock().keep_copy(&self.copying));
        }
    }

    /// Keeps copies of what two places have now, to which they may go back later.
    pub fn keep_copies(&mut self) {
        if !self.copies {
            return self.keep_all_copies();
        }
        let places: Vec<usize> = self.cluster.data_places().collect();
        let place = *self.copying.pick(&places);
        self.cluster.node(place).lock().keep_copy(&self.copying);
        if !self.cluster.only_head {
            let heads = self.cluster.head_places();
            let head = *self.copying.pick(&heads);
            self.cluster.heads[head].lock().keep_copy(&self.copying);
        }
    }

    /// Perhaps a fault for this step. `live`: what the files that exist have on members.
    pub fn plan(&mut self, step: usize, live: &[Part]) -> Option<Planned> {
        if !self.rng.chance(0.65) {
            return None;
        }
        let until = step + 1 + self.rng.index(5);
        let after = Duration::from_millis(self.rng.range(0..80));
        let (heads, only) = (self.cluster.head_places(), self.cluster.only_head);
        if !self.head_is_faulty() && self.rng.chance(if only { 0.1 } else { 0.3 }) {
            let (kind, until) = if only { self.pick_for_only_head(step, until) } else { (self.pick_for_head(), until) };
            return Some(Planned { place: *self.rng.pick(&heads), kind, after, until, spots: Vec::new() });
        }
        // Who has just started serves by the map until it is registered, and has to catch up then: looked at before the
        // map.
        let starting = |place: &usize| !self.cluster.node(*place).lock().is_registered();
        let starting: Vec<usize> = self.cluster.data_places().filter(starting).collect();
        let mut exposed = self.exposed()?;
        exposed.extend(starting);
        if exposed.len() >= self.budget {
            return None;
        }
        let free: Vec<usize> = self.cluster.data_places().filter(|place| !exposed.contains(place)).collect();
        let mut place = *self.rng.pick(&free);
        let mut kind = self.pick_kind();
        if kind == Kind::GoesBack {
            let can: Vec<usize> =
                free.into_iter().filter(|place| self.cluster.node(*place).lock().can_go_back()).collect();
            match can.is_empty() {
                true => kind = Kind::Kill,
                false => place = *self.rng.pick(&can),
            }
        }
        let spots = if matches!(kind, Kind::Rot | Kind::PowerAndRot) { self.spots(place, live) } else { Vec::new() };
        Some(Planned { place, kind, after, until, spots })
    }

    /// A fault of one of three heads, for what their partitions do together; `None` if one is faulty already.
    pub fn plan_for_head(&mut self, step: usize) -> Option<Planned> {
        if self.cluster.only_head || self.head_is_faulty() {
            return None;
        }
        let (place, kind) = (*self.rng.pick(&self.cluster.head_places()), self.pick_for_head());
        let after = Duration::from_millis(self.rng.range(0..80));
        Some(Planned { place, kind, after, until: step + 1 + self.rng.index(5), spots: Vec::new() })
    }

    /// Nobody does anything without it, so most of its faults are short.
    fn pick_for_only_head(&self, step: usize, until: usize) -> (Kind, usize) {
        match self.rng.index(4) {
            0 => (Kind::Power, step + 1),
            1 => (Kind::Cut(links::End::Client, *self.rng.pick(&[Effect::HoldThere, Effect::HoldBack])), step + 1),
            2 => (Kind::Net(Effect::Delay(60)), until),
            _ => (Kind::Net(Effect::Break(0.05)), until),
        }
    }

    /// The others go on without it.
    fn pick_for_head(&self) -> Kind {
        let rng = &self.rng;
        let effects = [Effect::Refuse, Effect::HoldThere, Effect::HoldBack, Effect::HoldBoth];
        match rng.index(15) {
            0 | 1 => Kind::Power,
            2 => Kind::Kill,
            3 | 4 => Kind::Pause,
            5 => Kind::Stall,
            6 => Kind::Isolate,
            7 | 8 => Kind::Cut(links::End::Place(rng.index(self.cluster.heads.len())), *rng.pick(&effects)),
            9 => Kind::Cut(links::End::Client, *rng.pick(&effects)),
            10 => Kind::Net(Effect::Delay(60)),
            11 => Kind::Net(Effect::Break(0.05)),
            _ => Kind::GoesBack,
        }
    }

    fn pick_kind(&self) -> Kind {
        let rng = &self.rng;
        let others = self.cluster.data_places();
        match rng.index(39) {
            0 | 1 => Kind::Power,
            2..=4 => Kind::PowerAt(1 + rng.range(0..60)),
            5 | 6 => Kind::Kill,
            7 | 8 => Kind::Stall,
            9 | 10 => {
                let other = others.start + rng.index(others.len());
                let head = rng.index(self.cluster.heads.len());
                let ends = [links::End::Client, links::End::Place(other), links::End::Place(head)];
                let effects = [Effect::Refuse, Effect::HoldThere, Effect::HoldBack, Effect::HoldBoth];
                Kind::Cut(*rng.pick(&ends), *rng.pick(&effects))
            }
            11 => Kind::Net(Effect::Delay(150)),
            12 => Kind::Net(Effect::Break(0.1)),
            13 => Kind::Net(Effect::Flip(0.1)),
            14 => Kind::Rot,
            15 => Kind::PowerAndRot,
            16 => Kind::DiskFails(*rng.pick(&[DiskOp::Write, DiskOp::Sync]), 1 + rng.range(0..30)),
            17 => Kind::ReadsFail,
            18 | 19 => Kind::Pause,
            20 => Kind::Isolate,
            21 => Kind::Full,
            22 | 23 => Kind::DiskLost,
            24 => Kind::NodeLost,
            25 | 26 => Kind::Corrupts,
            27 | 28 => Kind::Forgets,
            29 | 30 => Kind::Hibernates(Duration::from_millis(1000 + rng.range(0..60_000))),
            31 | 32 => Kind::Blackout,
            _ => Kind::GoesBack,
        }
    }

    /// Bytes that matter on this place.
    fn spots(&self, place: usize, live: &[Part]) -> Vec<Spot> {
        let Some(map) = self.cluster.map() else { return Vec::new() };
        let places = self.cluster.places(&map);
        let here: Vec<&Part> = live.iter().filter(|part| places.get(&part.disk) == Some(&place)).collect();
        if here.is_empty() {
            return Vec::new();
        }
        let spot = |_| {
            let part = *self.rng.pick(&here);
            Spot { chunk: (part.pg, part.index), offset: part.offset + self.rng.range(0..part.want.len() as u64) }
        };
        (0..1 + self.rng.index(6)).map(spot).collect()
    }

    /// Begins a fault. Blocks while a process ends.
    pub fn begin(&mut self, planned: Planned) {
        std::thread::sleep(planned.after);
        *self.begun.entry(planned.kind.name()).or_default() += 1;
        let (place, kind) = (planned.place, planned.kind);
        tracing::info!(place, ?kind, until = planned.until, "a fault begins");
        let mut sleep = None;
        let rules = match kind {
            Kind::Stall => vec![self.cut(None, place, Effect::HoldBoth)],
            Kind::Isolate => self.isolate(place),
            Kind::Cut(from, effect) => vec![self.cut(Some(from), place, effect)],
            Kind::Net(effect) => vec![self.cut(None, place, effect)],
            Kind::Pause => {
                cairn_dst::host::pause(host_of(place), true);
                Vec::new()
            }
            Kind::Blackout => {
                if let Err(why) = self.blackout() {
                    self.broken = Some(why);
                }
                return;
            }
            Kind::Hibernates(window) => {
                let begun = self.cluster.fall_asleep(place, window);
                if begun.is_none() {
                    *self.begun.entry("hibernations refused").or_default() += 1;
                    return;
                }
                sleep = begun;
                Vec::new()
            }
            _ if self.cluster.only_head && self.cluster.is_head(place) => {
                self.bounce_head();
                return;
            }
            _ if self.cluster.is_head(place) => {
                self.end_head(place, kind);
                Vec::new()
            }
            _ => {
                self.begin_on_disk(&planned);
                Vec::new()
            }
        };
        self.active.push(Active { planned, rules, sleep });
    }

    fn isolate(&self, place: usize) -> Vec<u64> {
        let from = Some(links::End::Place(place));
        vec![self.cut(None, place, Effect::HoldBoth), links::cut(from, None, Effect::HoldBoth)]
    }

    fn end_head(&mut self, place: usize, kind: Kind) {
        let cluster = self.cluster.clone();
        let mut head = cluster.heads[place].lock();
        match kind {
            Kind::Kill => head.kill(),
            _ => head.crash(self.policy()),
        }
        if kind == Kind::GoesBack && head.go_back(&self.rng, self.policy()) {
            self.old_heads.insert(place);
            *self.begun.entry("heads that went back").or_default() += 1;
        }
    }

    fn cut(&self, from: Option<links::End>, place: usize, effect: Effect) -> u64 {
        links::cut(from, Some(place), effect)
    }

    fn policy(&self) -> CrashPolicy {
        *self.rng.pick(&[CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::random(), CrashPolicy::harsh()])
    }

    fn begin_on_disk(&mut self, planned: &Planned) {
        let place = planned.place;
        let cluster = self.cluster.clone();
        let mut node = cluster.node(place).lock();
        let disk = node.disk.clone();
        match planned.kind {
            Kind::Power => node.end(End::Power(self.policy())),
            Kind::Kill => node.end(End::Kill),
            Kind::PowerAt(ahead) => disk.crash_at_op(disk.ops() + ahead),
            Kind::Rot => {
                for spot in &planned.spots {
                    if flip_data(&disk, spot, self.rng.index(8)) {
                        self.rotten.insert(place);
                    }
                }
            }
            Kind::PowerAndRot => {
                node.end(End::Power(self.policy()));
                self.rotten.insert(place);
                for spot in &planned.spots {
                    // Headers and tables as well as data.
                    let anywhere = self.rng.range(0..spot.offset.max(1));
                    match self.rng.chance(0.5) {
                        true => flip_data(&disk, spot, self.rng.index(8)),
                        false => disk.try_flip_bit(&spot.file(), anywhere, self.rng.index(8) as u8),
                    };
                }
            }
            Kind::DiskFails(op, nth) => {
                disk.inject(FaultRule::io(&[op]).when(FaultWhen::Nth(nth)));
            }
            Kind::ReadsFail => {
                disk.inject(FaultRule::io(&[DiskOp::Read]).on_path("pg/*.chunk").when(FaultWhen::Chance(0.3)));
            }
            Kind::Full => disk.set_capacity(4 << 20),
            Kind::Corrupts => {
                disk.inject(FaultRule::flips().on_path("pg/*.chunk").when(FaultWhen::Chance(0.2)));
            }
            Kind::Forgets => {
                disk.inject(FaultRule::forgets().when(FaultWhen::Chance(0.5)));
            }
            Kind::DiskLost | Kind::NodeLost => {
                self.lost
                    .extend(node.number().filter(|_| planned.kind == Kind::NodeLost).map(|number| (number, place)));
                node.end(End::Power(self.policy()));
                node.lose(planned.kind == Kind::NodeLost);
            }
            Kind::GoesBack => {
                if node.go_back(&self.rng, self.rng.chance(0.5), self.policy()) {
                    self.behind.insert(place);
                    self.went_back += 1;
                    *self.begun.entry("disks that went back").or_default() += 1;
                }
            }
            Kind::Stall
            | Kind::Isolate
            | Kind::Pause
            | Kind::Cut(..)
            | Kind::Net(_)
            | Kind::Blackout
            | Kind::Hibernates(_) => {
                unreachable!("no fault of a disk")
            }
        }
    }

    /// Ends what is due at this step.
    pub fn end_due(&mut self, step: usize) -> Result<(), String> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        while let Some(i) = self.active.iter().position(|active| active.planned.until <= step) {
            self.end_one(i)?;
        }
        Ok(())
    }

    /// Ends one fault early, the oldest. False: there is none.
    pub fn relieve(&mut self) -> Result<bool, String> {
        if self.active.is_empty() {
            return Ok(false);
        }
        self.end_one(0).map(|()| true)
    }

    /// Ends all faults.
    pub fn end_all(&mut self) -> Result<(), String> {
        while self.relieve()? {}
        Ok(())
    }

    fn end_one(&mut self, i: usize) -> Result<(), String> {
        let Active { planned, rules, sleep } = self.active.remove(i);
        let place = planned.place;
        tracing::info!(place, kind = ?planned.kind, "a fault ends");
        rules.iter().for_each(|rule| cairn_dst::links::remove(*rule));
        if planned.kind == Kind::Pause {
            cairn_dst::host::pause(host_of(place), false);
        }
        if !rules.is_empty() || planned.kind == Kind::Pause {
            return Ok(());
        }
        if self.cluster.is_head(place) {
            let started = self.cluster.heads[place].lock().start();
            return started.map_err(|why| format!("the head in place {place} does not start again: {why}"));
        }
        if planned.kind.lies() {
            self.rotten.insert(place);
        }
        if let Some(sleep) = sleep {
            self.cluster.nothing_was_replaced(&sleep)?;
            let ends = self.rng.chance(0.5);
            self.cluster.wake_up(&sleep, ends)?;
            return Ok(());
        }
        let mut node = self.cluster.node(place).lock();
        match planned.kind {
            Kind::PowerAt(_) => node.end(End::Power(self.policy())),
            Kind::Forgets => {
                node.disk.heal_all();
                node.end(End::Power(self.policy()));
            }
            Kind::DiskFails(..) => {
                node.disk.heal_all();
                node.end(*self.rng.pick(&[End::Kill, End::Power(CrashPolicy::random())]));
            }
            Kind::ReadsFail | Kind::Corrupts => {
                node.disk.heal_all();
                // What goes home into a block that cannot be read takes the disk out of service, until somebody
                // restarts it.
                if node.has_failed() {
                    node.end(End::Kill);
                }
            }
            Kind::Full => {
                node.disk.set_capacity(DISK_BYTES);
                // With nothing at all left, what is in the journal cannot go home: then somebody makes room and
                // restarts.
                if node.has_failed() {
                    node.end(End::Kill);
                }
            }
            _ => {}
        }
        if !node.is_up() {
            node.start().map_err(|why| format!("place {place} does not start again: {why}"))?;
        }
        if planned.kind == Kind::Forgets { replace_unusable(&mut node) } else { Ok(()) }
    }

    /// The head loses power and is back a moment later: nobody does anything without it.
    fn bounce_head(&mut self) {
        let mut head = self.cluster.heads[0].lock();
        head.crash(self.policy());
        std::thread::sleep(Duration::from_millis(self.rng.range(0..1500)));
        if let Err(why) = head.start() {
            self.broken = Some(format!("the head does not start again: {why}"));
        }
    }

    /// Everything loses power at once, and starts again. Ends all other faults of processes and disks.
    pub fn blackout(&mut self) -> Result<(), String> {
        *self.begun.entry("blackout").or_default() += 1;
        tracing::info!("everything loses power");
        cairn_dst::links::clear();
        let forgot = |active: &Active| Some(active.planned.place).filter(|_| active.planned.kind == Kind::Forgets);
        let forgot: Vec<usize> = self.active.iter().filter_map(forgot).collect();
        for Active { planned, .. } in self.active.drain(..) {
            if planned.kind == Kind::Pause {
                cairn_dst::host::pause(host_of(planned.place), false);
            }
            if planned.kind.lies() {
                self.rotten.insert(planned.place);
            }
        }
        self.cluster.nodes.iter().for_each(|node| node.lock().disk.power_off());
        self.cluster.heads.iter().for_each(|head| head.lock().disk.power_off());
        self.cluster.heads.iter().for_each(|head| head.lock().crash(self.policy()));
        for node in &self.cluster.nodes {
            let mut node = node.lock();
            node.disk.heal_all();
            node.disk.set_capacity(DISK_BYTES);
            node.end(End::Power(self.policy()));
        }
        self.cluster.start_heads().map_err(|why| format!("the heads do not start again: {why}"))?;
        for node in &self.cluster.nodes {
            let mut node = node.lock();
            node.start().map_err(|why| format!("place {} does not start again: {why}", node.place))?;
            if forgot.contains(&node.place) {
                replace_unusable(&mut node)?;
            }
        }
        Ok(())
    }

    /// Faults that had an effect, and what they were.
    pub fn summary(&self) -> (u64, String) {
        let net = cairn_dst::links::counts();
        let (mut total, mut sectors) = (net.total(), 0);
        for node in &self.cluster.nodes {
            for counts in node.lock().counts() {
                total += counts.total();
                sectors += counts.sectors_lost + counts.sectors_torn;
            }
        }
        total += self.cluster.heads.iter().map(|head| head.lock().disk.counts().total()).sum::<u64>();
        let begun: Vec<String> = self.begun.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        (total, format!("{}; {sectors} sectors lost or torn; {net}", begun.join(", ")))
    }
}

/// A disk that forgot what it had synced may be found corrupt, and stay out of service: then somebody puts an empty one
/// in its place.
fn replace_unusable(node: &mut DataNode) -> Result<(), String> {
    if !node.has_failed() {
        return Ok(());
    }
    tracing::info!(place = node.place, "its disk cannot be used any more: an empty one comes in its place");
    node.end(End::Kill);
    node.lose(false);
    node.start()
}

/// Flips a bit of the data of a chunk file, if it is there.
fn flip_data(disk: &SimDisk, spot: &Spot, bit: usize) -> bool {
    let file = &spot.file();
    let mut header = [0; cairn_format::chunk_header::CHUNK_HEADER_LEN];
    let read = disk.open(file, OpenOptions::READ).and_then(|file| file.read_exact_at(&mut header, 0));
    let Ok(header) =
        read.map_err(|_| ()).and_then(|()| cairn_format::chunk_header::ChunkHeader::decode(&header).map_err(|_| ()))
    else {
        return false;
    };
    disk.try_flip_bit(file, header.data_offset() + spot.offset, bit as u8)
}
