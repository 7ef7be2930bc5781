//! What the nodes know that a restored state has forgotten: gathered, judged, and made a few commands.
//!
//! Of each group the state with the highest epoch counts, as a disk has it that serves in it: a write is acknowledged
//! only after every serving member has the epoch durably ([`crate::rebuild`] goes by the same). Volumes and partitions
//! are taken from the newest map that a meta node was told, those of which only the state is there from the nodes that
//! have it. Not here: what a command does ([`crate::apply`]), and the numbers alone ([`crate::restored`]).
use crate::apply::VOLUME_PARTITIONS_MAX;
use crate::items::{DiskState, Roles};
use crate::pg::Pg;
use crate::state::State;
use cairn_types::{DiskId, MemberState, NodeId, PgId, VolumeId};
use cairn_wire::data::PgState;
use cairn_wire::manager::{self as wire, Partition, PartitionMembers, SeenGroup, SeenNumbers, SeenThings, Volume};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};

/// Groups of one command.
const GROUPS_PER_COMMAND: usize = 1024;
/// Partitions likewise.
const PARTITIONS_PER_COMMAND: usize = 1024;
/// Ids of partitions that may have been given without anybody seeing it: a volume takes up to 4,096 at once.
pub(crate) const PARTITIONS_GAP: u32 = 16 * VOLUME_PARTITIONS_MAX;
/// Groups that are named to people.
const GROUPS_NAMED: usize = 16;
/// Volumes that a node tells at most: those with the highest ids.
pub const VOLUMES_TOLD: usize = 1024;

/// Takes up what nodes know, or begins to wait for it.
#[derive(Clone, PartialEq, Message)]
pub struct TakeUp {
    /// The state is older than what it once gave: nothing more is given.
    #[prost(bool, tag = "1")]
    pub begin: bool,
    /// The highest that nodes know: see [`cairn_wire::manager::SeenNumbers`].
    #[prost(message, optional, tag = "2")]
    pub numbers: Option<SeenNumbers>,
    #[prost(message, repeated, tag = "3")]
    pub volumes: Vec<Volume>,
    #[prost(message, repeated, tag = "4")]
    pub partitions: Vec<Partition>,
    #[prost(message, repeated, tag = "5")]
    pub groups: Vec<TakeUpGroup>,
    /// That was all: epochs rise beyond all that was given, and the state is as good as any.
    #[prost(bool, tag = "6")]
    pub done: bool,
    /// Groups of which a later state may exist that nobody told: their members are compared before they serve.
    #[prost(uint32, repeated, tag = "7")]
    pub uncertain: Vec<u32>,
}

/// A group as its disks know it.
#[derive(Clone, PartialEq, Message)]
pub struct TakeUpGroup {
    #[prost(message, optional, tag = "1")]
    pub state: Option<PgState>,
    /// Disks that have something of it and are no members.
    #[prost(message, repeated, tag = "2")]
    pub keepers: Vec<Keeper>,
}

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Keeper {
    #[prost(uint32, tag = "1")]
    pub disk: u32,
    /// The place that it had.
    #[prost(uint32, tag = "2")]
    pub position: u32,
    #[prost(bool, tag = "3")]
    pub served: bool,
}

/// What one node said.
#[derive(Clone, Default, Debug)]
pub struct Told {
    seen: SeenNumbers,
    said: bool,
    pages: u32,
    groups: BTreeMap<u32, Vec<SeenGroup>>,
    things: SeenThings,
}

impl Told {
    /// Takes a registration in; each tells another page of groups.
    pub fn take(&mut self, seen: Option<&SeenNumbers>, things: Option<&SeenThings>) {
        let seen = seen.copied().unwrap_or_default();
        merge(&mut self.seen, &seen);
        self.said |= things.is_some();
        let things = things.cloned().unwrap_or_default();
        if self.pages != things.pages {
            self.groups.clear();
        }
        self.pages = things.pages;
        self.groups.insert(things.page, things.groups.clone());
        self.things = SeenThings { groups: Vec::new(), ..things };
    }

    /// It has said everything. One of an earlier build says nothing.
    fn is_whole(&self) -> bool {
        self.said && self.groups.len() >= self.pages as usize
    }

    /// Disks of which it has told everything.
    fn disks(&self) -> impl Iterator<Item = DiskId> {
        self.things.disks.iter().filter(|_| self.is_whole()).map(|disk| DiskId(*disk))
    }

    fn groups(&self) -> impl Iterator<Item = (DiskId, &PgState)> {
        let all = self.groups.values().flatten();
        all.filter_map(|group| Some((DiskId(group.disk), group.state.as_ref()?)))
    }
}

/// By node.
pub type AllTold = BTreeMap<NodeId, Told>;

fn merge(known: &mut SeenNumbers, seen: &SeenNumbers) {
    known.term = known.term.max(seen.term);
    known.map_version = known.map_version.max(seen.map_version);
    known.incarnation = known.incarnation.max(seen.incarnation);
    known.session = known.session.max(seen.session);
    known.node = known.node.max(seen.node);
    known.disk = known.disk.max(seen.disk);
    known.volume = known.volume.max(seen.volume);
    known.partition = known.partition.max(seen.partition);
    known.pg = known.pg.max(seen.pg);
}

/// A group's best state so far.
struct Best<'a> {
    state: &'a PgState,
    disk: DiskId,
    /// Highest mark of indices that any disk has.
    floor: u32,
    retired: bool,
}

impl Best<'_> {
    fn rank(state: &PgState, disk: DiskId) -> u32 {
        let own = state.members.iter().find(|member| member.disk == disk.get());
        let own = own.and_then(|member| u8::try_from(member.state).ok()).and_then(MemberState::from_code);
        match own {
            Some(MemberState::Serving) => 0,
            Some(MemberState::Waiting) => 1,
            Some(_) => 2,
            None => 3,
        }
    }
}

/// The state of each group that counts.
fn best<'a>(told: impl Iterator<Item = (DiskId, &'a PgState)>) -> BTreeMap<PgId, Best<'a>> {
    let mut all: BTreeMap<PgId, Best<'a>> = BTreeMap::new();
    for (disk, state) in told {
        let rank = Best::rank(state, disk);
        // To a disk that left the group is retired, whatever it is to others.
        let retired = state.retired && rank < 3;
        let known = all.entry(PgId(state.pg)).or_insert(Best { state, disk, floor: 0, retired });
        let order = |state: &PgState, rank: u32| (std::cmp::Reverse(state.epoch), rank);
        if order(state, rank) < order(known.state, Best::rank(known.state, known.disk)) {
            (known.state, known.disk) = (state, disk);
        }
        known.retired |= retired;
        known.floor = known.floor.max(state.index_floor);
    }
    all
}

fn groups_of(told: &AllTold) -> impl Iterator<Item = (DiskId, &PgState)> {
    told.values().flat_map(Told::groups)
}

/// Who has to say what they know, and has not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Awaited {
    pub nodes: BTreeSet<NodeId>,
    /// Of nodes that have said something, but nothing of them: they did not open there.
    pub disks: BTreeSet<DiskId>,
    /// Of these no disk that serves has told, although all that are known to serve were heard.
    pub groups: BTreeSet<PgId>,
}

impl Awaited {
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.disks.is_empty() && self.groups.is_empty()
    }

    /// For a request or an answer.
    pub fn message(&self) -> wire::Awaited {
        wire::Awaited {
            nodes: self.nodes.iter().map(|id| id.get()).collect(),
            disks: self.disks.iter().map(|id| id.get()).collect(),
            pgs: self.groups.iter().map(|id| id.get()).take(GROUPS_NAMED).collect(),
            pgs_in_all: self.groups.len() as u32,
        }
    }

    /// Whether somebody who gives these up gives up all.
    pub fn is_within(&self, given_up: &wire::Awaited) -> bool {
        is_within(&self.message(), given_up)
    }
}

/// Whether the second one names all of the first.
pub fn is_within(some: &wire::Awaited, all: &wire::Awaited) -> bool {
    some.nodes.iter().all(|id| all.nodes.contains(id))
        && some.disks.iter().all(|id| all.disks.contains(id))
        && some.pgs_in_all <= all.pgs_in_all
}

/// The members that have everything which was acknowledged while the state counted.
fn holders(state: &PgState) -> impl Iterator<Item = (DiskId, NodeId)> {
    let holds = |code: u32| {
        let state = u8::try_from(code).ok().and_then(MemberState::from_code);
        matches!(state, Some(MemberState::Serving | MemberState::Waiting))
    };
    state.members.iter().filter(move |member| holds(member.state)).map(|m| (DiskId(m.disk), NodeId(m.node)))
}

/// Who is still to be heard before what was told can be taken up.
///
/// A later state of a group than one whose holders were all heard does not exist: the next one has a holder among them.
/// So disks are waited for only as long as they are holders in the latest state that was told.
pub fn awaited(state: &State, told: &AllTold) -> Awaited {
    let keeps = |roles: Roles| roles.has(Roles::META) || roles.has(Roles::DATA);
    let known = state.servers().filter(|node| keeps(node.roles)).map(|node| node.id);
    let best = best(groups_of(told));
    let used = || best.values().filter(|best| !best.retired);
    let named = used().flat_map(|best| &best.state.members);
    let named = named.map(|member| NodeId(member.node)).filter(|node| node.get() != 0);
    let heard = |node: &NodeId| told.get(node).is_some_and(Told::is_whole);
    let nodes: BTreeSet<NodeId> = known.chain(named).filter(|node| !heard(node) && !state.is_removed(*node)).collect();
    let unheard = Unheard::new(state, told, &best);
    let lost: Vec<&Pg> = unheard.groups().collect();
    let of_lost = lost
        .iter()
        .flat_map(|pg| pg.holders())
        .map(|disk| (disk, state.disk(disk).map_or(NodeId(0), |disk| disk.node)));
    let of_best = used().flat_map(|best| holders(best.state));
    let missing = of_best.chain(of_lost).filter(|(disk, _)| unheard.disk(*disk));
    let missing: BTreeSet<(DiskId, NodeId)> = missing.collect();
    let disks = missing.iter().filter(|(_, node)| !nodes.contains(node)).map(|(disk, _)| *disk).collect();
    let without_trail = |pg: &&Pg| pg.holders().all(|disk| !unheard.disk(disk));
    let groups = lost.iter().copied().filter(without_trail).map(|pg| pg.id).collect();
    Awaited { nodes, disks, groups }
}

/// What nobody has told of.
struct Unheard<'a> {
    state: &'a State,
    disks: BTreeSet<DiskId>,
    best: &'a BTreeMap<PgId, Best<'a>>,
    /// The volumes of the newest map, and the lowest of them if it does not have all.
    volumes: (Vec<&'a Volume>, u32),
}

impl<'a> Unheard<'a> {
    fn new(state: &'a State, told: &'a AllTold, best: &'a BTreeMap<PgId, Best<'a>>) -> Self {
        let disks = told.values().flat_map(Told::disks).collect();
        let volumes: Vec<&Volume> = newest_map(told).iter().flat_map(|told| &told.things.volumes).collect();
        let lowest = if volumes.len() < VOLUMES_TOLD { 0 } else { volumes.iter().map(|v| v.id).min().unwrap_or(0) };
        Self { state, disks, best, volumes: (volumes, lowest) }
    }

    fn disk(&self, disk: DiskId) -> bool {
        let removed = self.state.disk(disk).is_some_and(|disk| disk.state == DiskState::Removed);
        !self.disks.contains(&disk) && !removed
    }

    /// Groups in use of which no holder has told.
    fn groups(&self) -> impl Iterator<Item = &'a Pg> {
        let told = |pg: &Pg| self.best.get(&pg.id).is_some_and(|b| b.retired || Best::rank(b.state, b.disk) < 2);
        self.state.pgs().filter(move |pg| !pg.retired && !told(pg) && !self.is_deleted(pg.volume))
    }

    fn is_deleted(&self, volume: VolumeId) -> bool {
        let (volumes, lowest) = &self.volumes;
        let listed = volumes.iter().find(|told| told.id == volume.get());
        let not_listed = !volumes.is_empty() && volume.get() >= *lowest;
        listed.map_or(not_listed, |told| told.deleted) || self.state.volume(volume).is_none_or(|volume| volume.deleted)
    }
}

/// What is to be logged first, in this order; [`last`] follows.
pub fn commands(state: &State, told: &AllTold) -> Vec<TakeUp> {
    let mut numbers = SeenNumbers::default();
    told.values().for_each(|told| merge(&mut numbers, &told.seen));
    let given = numbers.partition.max(state.next.partition.saturating_sub(1));
    numbers.partition = given.saturating_add(PARTITIONS_GAP);
    let best = best(groups_of(told));
    let ahead = best.iter().filter(|(id, best)| state.pg(**id).is_none_or(|pg| best.state.epoch > pg.epoch.get()));
    let ahead: Vec<TakeUpGroup> = ahead.map(|(id, best)| group(*id, best, told)).collect();
    let (volumes, partitions) = map_of(told);
    let first = TakeUp { numbers: Some(numbers), volumes, ..TakeUp::default() };
    let partitions = partitions.chunks(PARTITIONS_PER_COMMAND);
    let partitions = partitions.map(|partitions| TakeUp { partitions: partitions.to_vec(), ..TakeUp::default() });
    let groups = ahead.chunks(GROUPS_PER_COMMAND).map(|groups| TakeUp { groups: groups.to_vec(), ..TakeUp::default() });
    std::iter::once(first).chain(partitions).chain(groups).collect()
}

/// The end, for a state that has taken up the rest.
pub fn last(state: &State, told: &AllTold) -> TakeUp {
    let best = best(groups_of(told));
    let unheard = Unheard::new(state, told, &best);
    let incomplete = best.iter().filter(|(_, best)| holders(best.state).any(|(disk, _)| unheard.disk(disk)));
    // What makes no sense to the state was not taken.
    let refused = best.iter().filter(|(id, best)| state.pg(**id).is_some_and(|pg| best.state.epoch > pg.epoch.get()));
    let ids = incomplete.chain(refused).map(|(id, _)| *id).chain(unheard.groups().map(|pg| pg.id));
    let uncertain: BTreeSet<PgId> = ids.filter(|id| state.pg(*id).is_some_and(|pg| !pg.retired)).collect();
    TakeUp { done: true, uncertain: uncertain.iter().map(|id| id.get()).collect(), ..TakeUp::default() }
}

/// What a node says that comes when all is done: groups that nobody else knew.
pub fn late(state: &State, things: Option<&SeenThings>) -> Option<TakeUp> {
    let mut told = Told::default();
    told.take(None, things);
    let told = AllTold::from([(NodeId(0), told)]);
    let best = best(groups_of(&told));
    let unknown = best.iter().filter(|(id, _)| state.forgot_pg(**id));
    let groups: Vec<TakeUpGroup> = unknown.map(|(id, best)| group(*id, best, &told)).collect();
    (!groups.is_empty()).then(|| TakeUp { groups, ..TakeUp::default() })
}

fn group(id: PgId, best: &Best<'_>, told: &AllTold) -> TakeUpGroup {
    let members: BTreeSet<u32> = best.state.members.iter().map(|member| member.disk).collect();
    let keeps = |(disk, state): (DiskId, &PgState)| {
        // One whose record says that it is retired is deleting what it had.
        if PgId(state.pg) != id || state.retired || members.contains(&disk.get()) {
            return None;
        }
        let place = state.members.iter().position(|member| member.disk == disk.get())?;
        Some(Keeper { disk: disk.get(), position: place as u32, served: Best::rank(state, disk) == 0 })
    };
    let keepers = groups_of(told).filter_map(keeps).collect();
    let state = PgState { retired: best.retired, index_floor: best.floor, ..best.state.clone() };
    TakeUpGroup { state: Some(state), keepers }
}

/// Who was told the newest map.
fn newest_map(told: &AllTold) -> Option<&Told> {
    let with_map = told.values().filter(|told| !told.things.volumes.is_empty());
    with_map.max_by_key(|told| told.seen.map_version)
}

/// Volumes and partitions: of the newest map, and then those of which nobody's map tells. Their members are those of
/// the furthest log.
fn map_of(told: &AllTold) -> (Vec<Volume>, Vec<Partition>) {
    let newest = newest_map(told);
    let volumes = newest.map(|told| told.things.volumes.clone()).unwrap_or_default();
    let mut partitions: BTreeMap<u32, Partition> =
        newest.iter().flat_map(|told| &told.things.partitions).map(|p| (p.id, p.clone())).collect();
    let of_map: BTreeSet<u32> = partitions.keys().copied().collect();
    for listed in told.values().flat_map(|told| &told.things.listed).filter(|p| !of_map.contains(&p.id)) {
        let known = partitions.entry(listed.id).or_insert_with(|| Partition {
            nodes: Vec::new(),
            begun: Vec::new(),
            ..listed.clone()
        });
        known.nodes.extend(&listed.nodes);
        known.begun.extend(&listed.begun);
    }
    let mut furthest: BTreeMap<u32, &PartitionMembers> = BTreeMap::new();
    for members in told.values().flat_map(|told| &told.things.members).filter(|members| !members.nodes.is_empty()) {
        let known = furthest.entry(members.partition).or_insert(members);
        if members.applied > known.applied {
            *known = members;
        }
    }
    for (id, members) in furthest {
        let Some(partition) = partitions.get_mut(&id) else { continue };
        let same = BTreeSet::from_iter(&partition.nodes) == BTreeSet::from_iter(&members.nodes);
        if same || partition.removed {
            continue;
        }
        let left = std::mem::replace(&mut partition.nodes, members.nodes.clone());
        partition.left.extend(left.into_iter().filter(|node| !members.nodes.contains(node)));
        (partition.changed, partition.target) = (true, Vec::new());
        partition.begun = members.nodes.clone();
    }
    (volumes, partitions.into_values().collect())
}

#[cfg(test)]
mod tests;
