//! A restored state begins to wait, takes up what nodes know, and goes on.
//!
//! Whatever makes no sense beside the state is left out: a message of a node must not make the members of the manager's
//! group stop. Every part may be repeated, by a leader that comes after one which did half of it: what is known already
//! is not changed.
use super::Outcome;
use crate::change::ItemKey;
use crate::items::{Disk, DiskState, Node, Partition, Roles, Volume, volume_name_flaw};
use crate::pg::{FORMERS_MAX, Former, Older, Pg};
use crate::rebuild::{EPOCH_STEP, ID_GAP, unseen, unseen_disk};
use crate::state::State;
use crate::take_up::{TakeUp, TakeUpGroup};
use crate::volume_settings::VolumeSettings;
use cairn_types::{
    DiskId, Epoch, Incarnation, InodeId, Layout, MemberState, NodeId, PartitionId, PgId, Scheme, VolumeId, WallTime,
};
use cairn_wire::data::PgState;
use cairn_wire::error::WireError;
use cairn_wire::manager::{self as wire, SeenNumbers};
use std::collections::BTreeSet;
use std::sync::Arc;

/// By so much map versions rise: the lost managers raised them by one at a time after what was seen.
const VERSION_STEP: u64 = 1 << 20;
/// Incarnations and sessions likewise.
const NUMBER_STEP: u64 = 1 << 20;

impl State {
    pub(super) fn take_up(
        &mut self,
        time: WallTime,
        command: &TakeUp,
        raised: &mut Vec<PgId>,
    ) -> Result<Outcome, WireError> {
        if command.begin && !self.waits() {
            self.begin_waiting(time);
        }
        if let Some(numbers) = command.numbers.as_ref().filter(|_| self.waits()) {
            self.raise_numbers(time, numbers);
        }
        if self.restored.is_some() {
            self.drop_deleted(&command.volumes, raised);
            command.volumes.iter().for_each(|volume| self.take_volume(volume));
            command.partitions.iter().for_each(|partition| self.take_partition(time, partition));
            for group in &command.groups {
                let Some(taken) = self.take_group(time, group) else { continue };
                if !self.waits() {
                    // Others, who are not here, may know more of it.
                    self.raise_group(taken, true);
                    raised.push(taken);
                }
            }
        }
        if command.done && self.waits() {
            self.end_waiting(time, &command.uncertain, raised);
        }
        Ok(Outcome::Done)
    }

    /// Beyond what was seen, by more than can have been given without anybody seeing it.
    fn raise_numbers(&mut self, time: WallTime, seen: &SeenNumbers) {
        let beyond = |next: u32, seen: u32| next.max(seen.saturating_add(1)).saturating_add(ID_GAP);
        let next = &mut self.next;
        next.node = beyond(next.node, seen.node);
        next.disk = beyond(next.disk, seen.disk);
        next.volume = beyond(next.volume, seen.volume);
        next.partition = beyond(next.partition, seen.partition);
        next.pg = beyond(next.pg, seen.pg);
        next.job = next.job.saturating_add(u64::from(ID_GAP));
        let floor = self.floor_at(time);
        let next = &mut self.next;
        next.incarnation = next.incarnation.max(seen.incarnation.saturating_add(1)).max(floor) + NUMBER_STEP;
        next.session = next.session.max(seen.session.saturating_add(1)).max(floor) + NUMBER_STEP;
        // Whoever has a map of before gets a whole one.
        self.version = self.version.max(seen.map_version) + VERSION_STEP;
        self.delta_floor = self.version;
        let until = crate::restored::Ids::of(&self.next);
        if let Some(restored) = &mut self.restored {
            restored.until = until;
        }
    }

    fn end_waiting(&mut self, time: WallTime, uncertain: &[u32], raised: &mut Vec<PgId>) {
        // Whether they were brought back and removed again is not known: their whole time begins anew.
        let trashed: Vec<VolumeId> = self.volumes().filter(|v| v.trashed.is_some()).map(|v| v.id).collect();
        for id in trashed {
            let volume = Arc::make_mut(self.volumes.get_mut(&id).expect("just listed"));
            volume.trashed = Some(WallTime(time.0.max(1)));
            self.touch(ItemKey::Volume(id));
        }
        let deleted: BTreeSet<VolumeId> = self.pgs().filter(|pg| pg.retired).map(|pg| pg.volume).collect();
        for volume in deleted {
            self.delete_by_id(volume, raised);
        }
        let groups: Vec<PgId> = self.pgs.keys().copied().collect();
        let uncertain: BTreeSet<PgId> = uncertain.iter().map(|id| PgId(*id)).collect();
        for id in groups {
            self.raise_group(id, uncertain.contains(&id));
            raised.push(id);
        }
        if let Some(restored) = &mut self.restored {
            restored.waits = false;
        }
    }

    /// Beyond all epochs that were given. `uncertain`: its members may lack what was acknowledged in one of those.
    fn raise_group(&mut self, id: PgId, uncertain: bool) {
        let pg = Arc::make_mut(self.pgs.get_mut(&id).expect("it is there"));
        pg.epoch = Epoch(pg.epoch.get() + EPOCH_STEP);
        if uncertain && !pg.retired {
            pg.doubt();
        }
        self.touch(ItemKey::Pg(id));
    }

    fn delete_by_id(&mut self, volume: VolumeId, raised: &mut Vec<PgId>) {
        let Some(name) = self.volume(volume).filter(|v| !v.deleted).map(|v| v.name.clone()) else { return };
        let command = crate::command::DeleteVolume { name, trashed_ns: 0 };
        // It was found a moment ago.
        let _ = self.delete_volume(&command, raised);
    }

    /// Volumes that were deleted, or brought back from the trash, meanwhile.
    fn drop_deleted(&mut self, told: &[wire::Volume], raised: &mut Vec<PgId>) {
        for volume in told.iter().filter(|volume| volume.deleted) {
            self.delete_by_id(VolumeId(volume.id), raised);
        }
        // Or nobody would know that they were deleted.
        for volume in told.iter().filter(|volume| !volume.deleted && volume.trashed_ns != 0) {
            let id = VolumeId(volume.id);
            if self.volume(id).is_some_and(|known| known.trashed.is_none() && !known.deleted) {
                Arc::make_mut(self.volumes.get_mut(&id).expect("just found")).trashed =
                    Some(WallTime(volume.trashed_ns));
                self.touch(ItemKey::Volume(id));
            }
        }
        // Or their time in the trash would end while they are in use.
        for volume in told.iter().filter(|volume| !volume.deleted && volume.trashed_ns == 0) {
            let id = VolumeId(volume.id);
            if self.volume(id).is_some_and(|known| known.trashed.is_some()) {
                Arc::make_mut(self.volumes.get_mut(&id).expect("just found")).trashed = None;
                self.touch(ItemKey::Volume(id));
            }
        }
    }

    /// A volume that was made meanwhile.
    fn take_volume(&mut self, told: &wire::Volume) {
        let id = VolumeId(told.id);
        if told.deleted || !self.forgot_volume(id) {
            return;
        }
        let layout = Layout::from_bits(told.layout).unwrap_or_else(|| self.config.default_layout());
        let mut settings = VolumeSettings::default();
        // One of a later build is not known here.
        let _ = settings.set(told.settings.iter().map(|item| (item.key.as_str(), item.value.as_str())));
        self.put_volume(id, &told.name, layout, WallTime(told.created_ns), settings);
    }

    fn put_volume(&mut self, id: VolumeId, name: &str, layout: Layout, created: WallTime, settings: VolumeSettings) {
        let free = volume_name_flaw(name).is_none() && self.volume_by_name(name).is_none();
        let mut name = if free { name.to_owned() } else { format!("volume-{}", id.get()) };
        while self.volume_by_name(&name).is_some() {
            name.push('x');
        }
        let volume =
            Volume { id, name, layout, deleted: false, trashed: None, created, version: 0, settings, ranges_from: 0 };
        self.volumes.insert(id, Arc::new(volume));
        self.touch(ItemKey::Volume(id));
    }

    /// With the end of its range, where a later partition shows that it has one; of one that is known, that partition
    /// gets its end.
    fn with_end(&mut self, told: &wire::Partition) -> wire::Partition {
        let (id, volume) = (PartitionId(told.id), VolumeId(told.volume));
        let others = || self.partitions().filter(|other| other.volume == volume && other.id != id && !other.removed);
        let behind = others().map(|other| other.inode_first).filter(|first| *first > told.inode_first).min();
        let late = told.level > 0 && told.inode_first.is_multiple_of(1 << InodeId::RANGE_BITS);
        let open = others().find(|other| late && other.inode_last == u64::MAX && other.inode_first < told.inode_first);
        let open = open.map(|open| open.id);
        if let Some(open) = open {
            let item = Arc::make_mut(self.partitions.get_mut(&open).expect("just found"));
            (item.inode_last, item.add) = (told.inode_first - 1, 0);
            self.touch(ItemKey::Partition(open));
        }
        let inode_last = behind.filter(|_| told.inode_last == u64::MAX).map_or(told.inode_last, |first| first - 1);
        wire::Partition { inode_last, ..told.clone() }
    }

    /// A partition that was made, or got other members, meanwhile.
    fn take_partition(&mut self, time: WallTime, told: &wire::Partition) {
        let (id, volume) = (PartitionId(told.id), VolumeId(told.volume));
        let nodes = |ids: &[u32]| {
            let ids: BTreeSet<u32> = ids.iter().copied().filter(|id| *id != 0).collect();
            ids.into_iter().map(NodeId).collect::<Vec<NodeId>>()
        };
        let members = nodes(&told.nodes);
        let known = self.partition(id).cloned();
        let sound = told.inode_first <= told.inode_last && !members.is_empty() && !told.removed;
        let fits = match &known {
            Some(known) => !known.removed && known.volume == volume,
            None => self.forgot_partition(id),
        };
        // One partition owns an inode. A range without an end was ended before there was a partition with what follows.
        let told = &self.with_end(told);
        let meets = |other: &&Partition| {
            let apart = told.inode_last < other.inode_first || other.inode_last < told.inode_first;
            other.id != id && other.volume == volume && !other.removed && !apart
        };
        let sound = sound && !self.partitions().any(|other| meets(&other));
        if !sound || !fits || !members.iter().all(|node| self.meet_node(time, *node, Roles::META)) {
            return;
        }
        if self.forgot_volume(volume) {
            let layout = self.config.default_layout();
            self.put_volume(volume, "", layout, time, VolumeSettings::default());
        }
        if self.volume(volume).is_none_or(|volume| volume.deleted) {
            return;
        }
        let of_members = |ids: &[u32]| nodes(ids).into_iter().filter(|node| members.contains(node)).collect::<Vec<_>>();
        let left = nodes(&told.left).into_iter().filter(|node| !members.contains(node)).collect();
        let (begun, target) = (of_members(&told.begun), of_members(&told.target));
        let item = Partition {
            id,
            volume,
            inode_first: told.inode_first,
            inode_last: told.inode_last,
            wish: if target.is_empty() { 0 } else { self.version + 1 },
            target,
            left,
            changed: told.changed,
            begun,
            add: told.add,
            level: told.level,
            removed: false,
            version: known.as_ref().map_or(0, |known| known.version),
            members,
        };
        let same = |known: &Partition| Partition { wish: item.wish, ..known.clone() } == item;
        if !known.as_ref().is_some_and(same) {
            self.partitions.insert(id, Arc::new(item));
            self.touch(ItemKey::Partition(id));
            self.forget_marks();
        }
    }

    /// A node that others name. False: no such node was ever let in.
    fn meet_node(&mut self, time: WallTime, id: NodeId, roles: Roles) -> bool {
        if !self.forgot_node(id) {
            return self.node(id).is_some();
        }
        let incarnation = Incarnation(self.next.incarnation);
        self.next.incarnation += 1;
        let uuid = unseen(id.get());
        let text = String::new;
        let node = Node {
            id,
            // Its registration tells it.
            uuid,
            roles,
            address: text(),
            http_address: text(),
            rack: text(),
            host: text(),
            software: text(),
            incarnation,
            up: true,
            since: time,
            holder: text(),
            version: 0,
        };
        self.nodes.insert(id, Arc::new(node));
        self.node_by_uuid.insert(uuid, id);
        self.touch(ItemKey::Node(id));
        true
    }

    fn meet_disk(&mut self, time: WallTime, id: DiskId, node: NodeId) -> bool {
        if !self.forgot_disk(id) {
            return self.disk(id).is_some();
        }
        if !self.meet_node(time, node, Roles::DATA) {
            return false;
        }
        let uuid = unseen_disk(id);
        let disk = Disk {
            id,
            uuid,
            node,
            path: String::new(),
            total_bytes: 0,
            free_bytes: 0,
            state: DiskState::Absent,
            since: time,
            problem: String::new(),
            generation: None,
            is_ahead: false,
            version: 0,
        };
        self.disks.insert(id, Arc::new(disk));
        self.disk_by_uuid.insert(uuid, id);
        self.disks_of_node.entry(node).or_default().insert(id);
        self.touch(ItemKey::Disk(id));
        true
    }

    /// A group as its disks know it, if that is later than what is known. `None`: it is not, or it makes no sense.
    fn take_group(&mut self, time: WallTime, told: &TakeUpGroup) -> Option<PgId> {
        let state = told.state.as_ref()?;
        let (id, volume) = (PgId(state.pg), VolumeId(state.volume));
        let known = self.pg(id).cloned();
        let later = known.as_ref().map_or_else(|| self.forgot_pg(id), |known| known.epoch.get() < state.epoch);
        let scheme = u8::try_from(state.scheme).ok().and_then(Scheme::from_code)?;
        let members = members_of(state, scheme)?;
        let fits = known.as_ref().is_none_or(|known| known.volume == volume && known.scheme == scheme);
        let sound = state.creation_epoch > 0 && state.creation_epoch <= state.epoch;
        if !later || !fits || !sound || !members.iter().all(|(disk, node, _)| self.meet_disk(time, *disk, *node)) {
            return None;
        }
        if self.forgot_volume(volume) && !state.retired {
            let layout = self.config.default_layout();
            self.put_volume(volume, "", layout, time, VolumeSettings::default());
        }
        let alive = self.volume(volume).is_some_and(|volume| !volume.deleted);
        let removed = |disk: &DiskId| self.disk(*disk).is_some_and(|disk| disk.state == DiskState::Removed);
        let disks: Vec<DiskId> = members.iter().map(|(disk, ..)| *disk).collect();
        let retired = state.retired || !alive || known.as_ref().is_some_and(|known| known.retired);
        if !retired && disks.iter().any(removed) {
            return None;
        }
        let mut pg = Pg::new(id, volume, scheme, &disks, known.as_ref().map_or(time, |known| known.created));
        for (member, (.., state)) in pg.members.iter_mut().zip(&members) {
            member.state = *state;
            let before = known.iter().flat_map(|known| &known.members).find(|m| m.disk == member.disk);
            member.filling = *state != MemberState::Serving && before.is_none_or(|before| before.filling);
        }
        pg.column = known.as_ref().and_then(|known| known.column);
        pg.epoch = Epoch(state.epoch);
        pg.creation_epoch = Epoch(state.creation_epoch);
        pg.index_floor = state.index_floor.max(known.as_ref().map_or(0, |known| known.index_floor));
        pg.retired = retired;
        pg.open = !retired && known.as_ref().is_none_or(|known| known.open);
        let before = known.as_ref().map(|known| known.older).unwrap_or_default();
        let found = state.older_epoch > before.epoch.get();
        pg.older = Older {
            epoch: Epoch(state.older_epoch).max(before.epoch),
            comparing: state.comparing,
            unconfirmed: before.unconfirmed || found,
        };
        self.note_formers(&mut pg, known.as_ref(), told);
        if pg.flaw().is_some() || pg.formers_flaw().is_some() {
            return None;
        }
        pg.version = known.map_or(0, |known| known.version);
        self.put_pg(pg);
        Some(id)
    }

    /// Disks that have, or had, something of the group.
    fn note_formers(&self, pg: &mut Pg, known: Option<&Pg>, told: &TakeUpGroup) {
        let former = |disk: DiskId, position: usize, served: bool| Former {
            disk,
            position: position as u8,
            served,
            complete: false,
            drop: false,
        };
        let keepers = told.keepers.iter().map(|k| former(DiskId(k.disk), k.position as usize, k.served));
        let members = known.iter().flat_map(|known| known.members.iter().enumerate());
        let members = members.map(|(place, m)| former(m.disk, place, m.state == MemberState::Serving));
        let formers = known.iter().flat_map(|known| known.formers.iter().copied());
        for one in keepers.chain(members).chain(formers) {
            let is_member = pg.members.iter().any(|member| member.disk == one.disk);
            let twice = pg.formers.iter().any(|former| former.disk == one.disk);
            let fits = self.disk(one.disk).is_some_and(|disk| disk.state != DiskState::Removed)
                && usize::from(one.position) < pg.members.len();
            if fits && !is_member && !twice && pg.formers.len() < FORMERS_MAX {
                pg.formers.push(one);
            }
        }
    }
}

/// The members that a told state has, those that join left out; `None`: it makes no sense.
fn members_of(state: &PgState, scheme: Scheme) -> Option<Vec<(DiskId, NodeId, MemberState)>> {
    let member = |member: &cairn_wire::data::PgMember| {
        let own = u8::try_from(member.state).ok().and_then(MemberState::from_code)?;
        let known = member.disk != 0 && member.node != 0;
        known.then_some((DiskId(member.disk), NodeId(member.node), own))
    };
    let members: Vec<_> = state.members.get(..scheme.members())?.iter().map(member).collect::<Option<_>>()?;
    let distinct: BTreeSet<DiskId> = members.iter().map(|(disk, ..)| *disk).collect();
    (distinct.len() == members.len()).then_some(members)
}
