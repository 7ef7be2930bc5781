//! Making the manager's state anew from what disks and meta nodes keep about themselves, when all managers are lost.
//!
//! Placement groups, nodes, disks and partitions come from what was found, names and settings from a backup if there is
//! one. Of each group the state with the highest epoch counts, as a disk that serves in it has it: a write is
//! acknowledged only after every serving member has the epoch durably, so nothing acknowledged belongs to a later one
//! of which no serving member knows. Where disks that such a state names were not found, a later one may exist; that is
//! said.
//!
//! Invariants: every id, epoch, incarnation, session id and map version that the new state gives is higher than any
//! that the old one can have given, so nothing that an old manager decided has effect any more. Nothing is decided
//! where what was found contradicts itself: the contradiction is named, and there is no state. No member is told to
//! delete anything before all members of its group have served together. Not here: reading directories and writing the
//! state into one (the `rescue` crate).
use crate::command::REVOKED_LEVEL;
use crate::items::{Cluster, NODE_ID_FIRST, Node, Partition, Roles, Volume, clip, volume_name_flaw};
use crate::maintenance::forgotten;
use crate::pg::{FORMERS_MAX, Former, Pg};
use crate::state::State;
use crate::take_up::PARTITIONS_GAP;
use crate::volume_settings::VolumeSettings;
use cairn_types::{
    ClusterId, DiskId, DiskUuid, Epoch, Incarnation, Layout, MemberState, NodeId, PartitionId, PgId, Scheme, VolumeId,
    WallTime,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod disks;
mod ranges;

/// By so much epochs rise: the lost managers raised them by one at a time after what was found.
pub(crate) const EPOCH_STEP: u64 = 1 << 20;
/// Ids that may have been given to things that were not found.
pub(crate) const ID_GAP: u32 = 1000;
/// Beginning of the uuids of nodes and disks of which only the id is known; the id follows.
const UNSEEN: &[u8; 12] = b"cairn:unseen";

/// A node's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundNode {
    /// For people.
    pub path: String,
    pub cluster: ClusterId,
    pub id: NodeId,
    pub uuid: DiskUuid,
    pub partitions: Vec<FoundPartition>,
}

/// A meta partition of which a node is a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundPartition {
    pub id: PartitionId,
    pub volume: VolumeId,
    pub inodes: (u64, u64),
    pub layout: Layout,
    pub created: WallTime,
    /// Its history: one that was restored has a later one than members of before.
    pub era: u64,
}

/// A disk's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundDisk {
    pub path: String,
    pub cluster: ClusterId,
    pub id: DiskId,
    pub uuid: DiskUuid,
    pub node: NodeId,
    pub pgs: Vec<FoundPg>,
}

/// What a disk knows of a placement group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundPg {
    pub id: PgId,
    pub volume: VolumeId,
    pub scheme: Scheme,
    pub epoch: Epoch,
    pub creation_epoch: Epoch,
    pub high_water: u32,
    pub retired: bool,
    pub members: Vec<(DiskId, NodeId, MemberState)>,
}

/// All that was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    pub nodes: Vec<FoundNode>,
    pub disks: Vec<FoundDisk>,
}

/// What the operator says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Number of the one manager of the new state.
    pub manager: NodeId,
    /// Where it listens.
    pub address: String,
    /// Names of volumes that no backup has.
    pub names: BTreeMap<VolumeId, String>,
    pub now: WallTime,
}

/// How much a remark matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Weight {
    /// Nothing is made: what was found contradicts itself.
    Conflict,
    /// Something was not found, so what is made may be older than what was.
    Missing,
    /// For the operator to know.
    Note,
}

/// Something to be told.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Remark {
    pub weight: Weight,
    pub text: String,
}

/// The uuid of a node or disk that was not found: whoever registers with the id tells its own.
pub(crate) fn unseen(id: u32) -> DiskUuid {
    let mut uuid = [0; 16];
    uuid[..12].copy_from_slice(UNSEEN);
    uuid[12..].copy_from_slice(&id.to_le_bytes());
    DiskUuid(uuid)
}

/// Nodes and disks share no number: the uuids of disks have the upper bit set.
pub(crate) fn unseen_disk(id: DiskId) -> DiskUuid {
    unseen(id.get() | 1 << 31)
}

/// Whether a uuid only stands for one that is not known.
pub(crate) fn is_unseen(uuid: DiskUuid) -> bool {
    uuid.0.starts_with(UNSEEN)
}

/// A number beyond all that a cluster can have counted to, and higher the later it is asked for.
fn beyond(now: WallTime, known: u64) -> u64 {
    known.max((now.0 / 1_000_000_000) << 20) + 1
}

struct Builder<'a> {
    state: State,
    base: Option<State>,
    found: &'a Found,
    wanted: &'a Wanted,
    remarks: Vec<Remark>,
}

/// The new state, if nothing contradicts itself, and what is to be said about it, the most important first.
pub fn rebuild(base: Option<State>, found: &Found, wanted: &Wanted) -> (Option<State>, Vec<Remark>) {
    let mut builder = Builder { state: State::new(), base, found, wanted, remarks: Vec::new() };
    let made = builder.cluster() && {
        builder.begin();
        builder.nodes();
        builder.disks();
        builder.pgs();
        builder.partitions();
        builder.ranges();
        builder.volumes();
        builder.ranges_from();
        builder.end()
    };
    let Builder { state, mut remarks, .. } = builder;
    remarks.sort();
    remarks.dedup();
    let conflict = remarks.iter().any(|remark| remark.weight == Weight::Conflict);
    (Some(state).filter(|_| made && !conflict), remarks)
}

impl Builder<'_> {
    fn say(&mut self, weight: Weight, text: String) {
        self.remarks.push(Remark { weight, text });
    }

    /// All belong to one cluster.
    fn cluster(&mut self) -> bool {
        let nodes = self.found.nodes.iter().map(|node| (node.cluster, node.path.as_str()));
        let disks = self.found.disks.iter().map(|disk| (disk.cluster, disk.path.as_str()));
        let based = self.base.iter().filter_map(|base| Some((base.cluster()?.id, "the backup")));
        let mut clusters: BTreeMap<ClusterId, Vec<&str>> = BTreeMap::new();
        for (cluster, path) in nodes.chain(disks).chain(based).filter(|(cluster, _)| !cluster.is_none()) {
            clusters.entry(cluster).or_default().push(path);
        }
        let told: Vec<String> = clusters
            .iter()
            .map(|(cluster, paths)| format!("{cluster} ({} and {} more)", paths[0], paths.len() - 1))
            .collect();
        match (clusters.first_key_value(), clusters.len()) {
            (Some((cluster, _)), 1) => {
                let based = self.base.as_ref().and_then(State::cluster).cloned();
                let new = Cluster { id: *cluster, name: "cairn".into(), created: self.wanted.now };
                self.state.cluster = Some(based.unwrap_or(new));
                true
            }
            (None, _) => {
                self.say(
                    Weight::Conflict,
                    "no label that was found names a cluster; name directories of its nodes".into(),
                );
                false
            }
            _ => {
                let text =
                    format!("the directories belong to different clusters: {}; name those of one", told.join(", "));
                self.say(Weight::Conflict, text);
                false
            }
        }
    }

    /// Settings and counters.
    fn begin(&mut self) {
        let now = self.wanted.now;
        let base = self.base.clone().unwrap_or_default();
        let version = beyond(now, base.version);
        (self.state.version, self.state.delta_floor) = (version, version);
        self.state.config = base.config.clone();
        self.state.next = base.next.clone();
        let next = &mut self.state.next;
        next.incarnation = beyond(now, next.incarnation);
        next.session = beyond(now, next.session);
        next.job = beyond(now, next.job);
        // What was removed never comes back under its number.
        self.state.gone = base.gone.clone();
        self.state.revoked = base.revoked.clone();
        if !self.state.revoked.is_empty() {
            // A build that does not know them would serve them again.
            self.state.level = REVOKED_LEVEL;
        }
        if self.base.is_none() {
            self.say(
                Weight::Note,
                "there is no backup: settings are the defaults, limits and names as told below".into(),
            );
        }
        self.say(Weight::Note, forgotten(self.base.as_ref()));
    }

    fn put_node(&mut self, id: NodeId, uuid: DiskUuid, roles: Roles) {
        if let Some(known) = self.state.nodes.get_mut(&id) {
            let known = Arc::make_mut(known);
            known.roles.0 |= roles.0;
            if is_unseen(known.uuid) {
                known.uuid = uuid;
            }
            return;
        }
        let incarnation = Incarnation(self.state.next.incarnation);
        self.state.next.incarnation += 1;
        let based = self.base.as_ref().and_then(|base| base.node(id)).cloned();
        let node = Node {
            id,
            uuid,
            roles,
            address: based.as_ref().map(|n| n.address.clone()).unwrap_or_default(),
            http_address: String::new(),
            rack: based.as_ref().map(|n| n.rack.clone()).unwrap_or_default(),
            host: based.as_ref().map(|n| n.host.clone()).unwrap_or_default(),
            software: String::new(),
            incarnation,
            // A node that does not register within the time-out is marked down like any other. One that was removed
            // never registers, and nobody waits for it: while it counted as up, new partitions would be seated on it.
            up: !self.state.is_removed(id),
            since: self.wanted.now,
            holder: based.as_ref().map(|n| n.holder.clone()).unwrap_or_default(),
            version: self.state.version,
        };
        self.state.nodes.insert(id, Arc::new(node));
    }

    fn nodes(&mut self) {
        let mut uuids: BTreeMap<NodeId, (DiskUuid, &str)> = BTreeMap::new();
        for node in &self.found.nodes {
            if node.id.get() == 0 {
                self.say(Weight::Note, format!("{} was never registered and is left out", node.path));
                continue;
            }
            // The directory that the new state is written into is of before: its process gets a new identity.
            if node.id == self.wanted.manager && node.partitions.is_empty() {
                continue;
            }
            if node.id.get() < NODE_ID_FIRST && node.id != self.wanted.manager {
                let text = format!(
                    "{} is of manager {}, which is no member any more; empty it, and add the manager anew later",
                    node.path, node.id
                );
                self.say(Weight::Note, text);
                if node.partitions.is_empty() {
                    continue;
                }
            }
            if let Some((uuid, path)) = uuids.insert(node.id, (node.uuid, &node.path))
                && uuid != node.uuid
            {
                self.say(Weight::Conflict, format!("{} and {path} both say that they are node {}", node.path, node.id));
            }
            let roles = if node.partitions.is_empty() { Roles::default() } else { Roles::META };
            self.put_node(node.id, node.uuid, roles);
        }
        // They may come back, with the identity that the backup knows.
        let based: Vec<Node> = self.base.iter().flat_map(State::nodes).cloned().collect();
        for node in based.into_iter().filter(|node| node.id.get() >= NODE_ID_FIRST) {
            self.put_node(node.id, node.uuid, Roles(node.roles.0 & !Roles::MANAGER.0));
        }
        let manager = self.wanted.manager;
        let known = uuids.get(&manager).map_or(DiskUuid::NONE, |(uuid, _)| *uuid);
        self.put_node(manager, known, Roles::MANAGER);
        let address = clip(&self.wanted.address);
        let node = self.state.nodes.get_mut(&manager).expect("just put");
        Arc::make_mut(node).address = address;
    }

    fn pgs(&mut self) {
        let mut by_id: BTreeMap<PgId, Vec<(&FoundDisk, &FoundPg)>> = BTreeMap::new();
        for disk in self.found.disks.iter().filter(|disk| !self.was_removed(disk.id, disk.uuid)) {
            for pg in &disk.pgs {
                by_id.entry(pg.id).or_default().push((disk, pg));
            }
        }
        for (id, known) in &by_id {
            self.pg(*id, known);
        }
        let based: Vec<Pg> =
            self.base.iter().flat_map(State::pgs).filter(|pg| !by_id.contains_key(&pg.id)).cloned().collect();
        for pg in based.into_iter().filter(|pg| !pg.retired) {
            self.based_pg(pg);
        }
    }

    /// A group of the backup of which no disk that was found knows.
    fn based_pg(&mut self, pg: Pg) {
        let found = |disk: DiskId| self.found.disks.iter().any(|found| found.id == disk);
        if pg.members.iter().all(|member| found(member.disk)) {
            self.say(Weight::Note, format!("{} of the backup is on none of its disks any more and is left out", pg.id));
            return;
        }
        let node_of = |disk: DiskId| self.base.as_ref().and_then(|base| base.disk(disk)).map_or(NodeId(0), |d| d.node);
        let members: Vec<_> = pg.members.iter().map(|member| (member.disk, node_of(member.disk))).collect();
        members.into_iter().for_each(|(disk, node)| self.missing_disk(disk, node));
        self.say(Weight::Missing, format!("{} was found on no disk; it is as the backup has it", pg.id));
        // Data nodes do not know of columns: those that were found are none any more.
        let mut new = Pg { formers: Vec::new(), joining: None, column: None, version: self.state.version, ..pg };
        new.epoch = Epoch(new.epoch.0 + EPOCH_STEP);
        self.state.pgs.insert(new.id, Arc::new(new));
    }

    fn pg(&mut self, id: PgId, known: &[(&FoundDisk, &FoundPg)]) {
        let Some(newest) = known.iter().map(|(_, pg)| pg.epoch).max() else { return };
        let own = |disk: &FoundDisk, pg: &FoundPg| pg.members.iter().find(|m| m.0 == disk.id).map(|m| m.2);
        let rank = |state: Option<MemberState>| match state {
            Some(MemberState::Serving) => 0,
            Some(MemberState::Waiting) => 1,
            Some(_) => 2,
            None => 3,
        };
        let mut tops: Vec<_> = known.iter().filter(|(_, pg)| pg.epoch == newest).collect();
        tops.sort_by_key(|(disk, pg)| (rank(own(disk, pg)), disk.id));
        let (first_disk, top) = *tops[0];
        let count = top.scheme.members();
        if top.members.len() < count {
            return self.say(Weight::Conflict, format!("{id}: {} says that it has too few members", first_disk.path));
        }
        let vouches = rank(own(first_disk, top));
        for (disk, pg) in tops.iter().filter(|(disk, pg)| rank(own(disk, pg)) == vouches && vouches < 2) {
            let same = pg.members.get(..count) == Some(&top.members[..count]);
            if !same || (pg.volume, pg.scheme, pg.creation_epoch) != (top.volume, top.scheme, top.creation_epoch) {
                let text =
                    format!("{id} at {newest}: {} and {} disagree about its members", first_disk.path, disk.path);
                self.say(Weight::Conflict, text);
            }
        }
        for (disk, node, _) in &top.members[..count] {
            self.missing_disk(*disk, *node);
        }
        let disks: Vec<DiskId> = top.members[..count].iter().map(|(disk, ..)| *disk).collect();
        let mut pg = Pg::new(id, top.volume, top.scheme, &disks, self.wanted.now);
        for (member, (.., state)) in pg.members.iter_mut().zip(&top.members) {
            member.state = *state;
        }
        pg.epoch = Epoch(newest.0 + EPOCH_STEP);
        pg.creation_epoch = top.creation_epoch;
        pg.index_floor = known.iter().map(|(_, pg)| pg.high_water).max().unwrap_or(0);
        pg.retired = tops.iter().any(|(disk, pg)| pg.retired && rank(own(disk, pg)) < 3);
        pg.open = !pg.retired;
        pg.version = self.state.version;
        self.formers(&mut pg, known);
        if let Some(flaw) = pg.flaw() {
            let text = format!("{id} at {newest}, as {} has it: {flaw}", first_disk.path);
            return self.say(Weight::Conflict, text);
        }
        self.state.pgs.insert(id, Arc::new(pg));
    }

    /// Disks that have something of the group and are no members.
    fn formers(&mut self, pg: &mut Pg, known: &[(&FoundDisk, &FoundPg)]) {
        for (disk, record) in known.iter().filter(|(_, record)| !record.retired) {
            if pg.members.iter().any(|member| member.disk == disk.id) {
                continue;
            }
            let place = record.members.iter().position(|member| member.0 == disk.id);
            let own = place.map(|place| record.members[place].2);
            let position = place.and_then(|place| place_among(pg, place));
            let (Some(position), Some(state)) = (position, own) else {
                let text = format!("disk {} ({}) keeps something of {} that nobody uses", disk.id, disk.path, pg.id);
                self.say(Weight::Note, text);
                continue;
            };
            if pg.formers.len() < FORMERS_MAX {
                let served = state == MemberState::Serving;
                let position = position as u8;
                pg.formers.push(Former { disk: disk.id, position, served, complete: false, drop: false });
            }
        }
    }

    fn partitions(&mut self) {
        let mut by_id: BTreeMap<PartitionId, Vec<(&FoundNode, &FoundPartition)>> = BTreeMap::new();
        for node in self.found.nodes.iter().filter(|node| node.id.get() != 0) {
            for partition in &node.partitions {
                by_id.entry(partition.id).or_default().push((node, partition));
            }
        }
        for (id, mut known) in by_id {
            let era = known.iter().map(|(_, partition)| partition.era).max().unwrap_or(0);
            let (mut members, mut left): (Vec<NodeId>, Vec<NodeId>) = (Vec::new(), Vec::new());
            for (node, partition) in &known {
                let of_today = partition.era == era;
                if of_today { members.push(node.id) } else { left.push(node.id) }
            }
            known.retain(|(_, partition)| partition.era == era);
            let (node, first) = known[0];
            if let Some((other, _)) = known.iter().find(|(_, p)| (p.volume, p.inodes) != (first.volume, first.inodes)) {
                let text = format!("{} and {} disagree about {id}", node.path, other.path);
                self.say(Weight::Conflict, text);
            }
            let based = self.base.as_ref().and_then(|base| base.partition(id)).cloned();
            if based.as_ref().is_some_and(|based| based.removed) {
                continue;
            }
            if era == 0 {
                let gone = based.iter().flat_map(|b| &b.members).filter(|node| !members.contains(node)).count();
                if gone > 0 {
                    let text =
                        format!("{gone} members of {id} were not found; `cairn admin partition add` makes new ones");
                    self.say(Weight::Note, text);
                }
            } else {
                let others = based.iter().flat_map(|b| &b.members).filter(|node| !members.contains(node));
                left.extend(others.filter(|node| self.state.nodes.contains_key(node)));
            }
            members.sort_unstable();
            members.dedup();
            left.retain(|node| !members.contains(node));
            left.sort_unstable();
            left.dedup();
            let partition = Partition {
                id,
                volume: first.volume,
                inode_first: first.inodes.0,
                inode_last: first.inodes.1,
                begun: members.clone(),
                add: 0,
                level: 0,
                members,
                target: Vec::new(),
                wish: 0,
                left,
                changed: true,
                removed: false,
                version: self.state.version,
            };
            self.state.partitions.insert(id, Arc::new(partition));
        }
        let lost: Vec<PartitionId> =
            self.base.iter().flat_map(State::partitions).filter(|p| !p.removed).map(|p| p.id).collect();
        for id in lost {
            if self.state.partitions.contains_key(&id) {
                continue;
            }
            let text = format!(
                "{id} of the backup was found on no meta node: restore it first (cairn admin restore), \
                or name the directory of a member; its names are not there without it"
            );
            self.say(Weight::Missing, text);
        }
    }

    fn volumes(&mut self) {
        let mut volumes: BTreeMap<VolumeId, (Layout, WallTime)> = BTreeMap::new();
        for partition in self.found.nodes.iter().flat_map(|node| &node.partitions) {
            volumes.entry(partition.volume).or_insert((partition.layout, partition.created));
        }
        let named: BTreeSet<VolumeId> = self.state.pgs().filter(|pg| !pg.retired).map(|pg| pg.volume).collect();
        for id in named.into_iter().filter(|id| !volumes.contains_key(id)).collect::<Vec<_>>() {
            volumes.insert(id, (self.state.config.default_layout(), self.wanted.now));
            let text = format!("groups belong to {id}, of which no meta partition was found: nothing names its files");
            self.say(Weight::Missing, text);
        }
        self.deleted_volumes(&volumes);
        for (id, (layout, created)) in volumes {
            let based = self.base.as_ref().and_then(|base| base.volume(id)).cloned();
            if let Some(based) = based {
                self.state.volumes.insert(id, Arc::new(Volume { version: self.state.version, ..based }));
                continue;
            }
            let name = match self.wanted.names.get(&id) {
                Some(name) => name.clone(),
                None if id.get() == 1 => "default".to_owned(),
                None => format!("volume-{}", id.get()),
            };
            if let Some(flaw) = volume_name_flaw(&name) {
                self.say(Weight::Conflict, format!("{name:?} cannot be the name of {id}: {flaw}"));
            }
            self.say(
                Weight::Note,
                format!("{id} gets the name {name:?}; --name {}=NAME gives it another one", id.get()),
            );
            let (version, settings) = (self.state.version, VolumeSettings::default());
            self.state.volumes.insert(
                id,
                Arc::new(Volume {
                    id,
                    name,
                    layout,
                    deleted: false,
                    trashed: None,
                    created,
                    version,
                    settings,
                    ranges_from: 0,
                }),
            );
        }
    }

    /// Volumes of which only retired groups are left: their disks are about to drop what they have.
    fn deleted_volumes(&mut self, known: &BTreeMap<VolumeId, (Layout, WallTime)>) {
        let gone: BTreeSet<VolumeId> =
            self.state.pgs().map(|pg| pg.volume).filter(|id| !known.contains_key(id)).collect();
        for id in gone {
            let (created, version) = (self.wanted.now, self.state.version);
            let (name, layout) = (format!("deleted-{}", id.get()), self.state.config.default_layout());
            let settings = VolumeSettings::default();
            let volume =
                Volume { id, name, layout, deleted: true, trashed: None, created, version, settings, ranges_from: 0 };
            self.state.volumes.insert(id, Arc::new(volume));
        }
    }

    /// Counters beyond all ids, indexes, and the last look at all of it.
    fn end(&mut self) -> bool {
        let state = &mut self.state;
        let beyond = |next: u32, last: Option<u32>| next.max(last.unwrap_or(0).saturating_add(ID_GAP));
        state.next.node = beyond(state.next.node, state.nodes.keys().next_back().map(|id| id.get())).max(NODE_ID_FIRST);
        state.next.disk = beyond(state.next.disk, state.disks.keys().next_back().map(|id| id.get()));
        state.next.volume = beyond(state.next.volume, state.volumes.keys().next_back().map(|id| id.get()));
        // A volume takes many at once.
        let last = state.partitions.keys().next_back().map_or(0, |id| id.get());
        state.next.partition = state.next.partition.max(last.saturating_add(PARTITIONS_GAP));
        state.next.pg = beyond(state.next.pg, state.pgs.keys().next_back().map(|id| id.get()));
        state.derive();
        match state.find_flaw() {
            Ok(()) => true,
            Err(flaw) => {
                self.say(Weight::Conflict, format!("what was found makes no sound state: {flaw}"));
                false
            }
        }
    }
}

/// The place that a disk has given up. Behind the members of a group of copies is who joins, in whose place its state
/// does not say: any will do, as all have the same. One that serves needs nobody.
fn place_among(pg: &Pg, place: usize) -> Option<usize> {
    let joined = place == pg.members.len() && pg.scheme.is_replicated();
    let serves = || pg.members.iter().position(|member| member.state == MemberState::Serving);
    if joined { serves().or(Some(0)) } else { Some(place).filter(|place| *place < pg.members.len()) }
}

#[cfg(test)]
mod tests;
