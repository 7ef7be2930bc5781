//! The client's copy of the cluster map, kept by deltas: nodes, disks, volumes, partitions, placement groups.
//!
//! Invariants: an item is replaced only by a newer one: placement groups by epoch, the rest by map version. `ranges` is
//! made of `partitions` whenever a map changes what one of those is in charge of.
use crate::map::{Disk, Node, Partition, VolumeEntry};
use cairn_types::{ClusterId, Epoch, InodeId, MemberState, PgClass, PgId, Scheme, StripeGroupId};
use cairn_wire::data::PgState;
use cairn_wire::manager::{ClusterMap, Pg, PgColumn};
use cairn_wire::protection::Protection;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the client knows of the cluster.
#[derive(Clone, Default, Debug)]
pub struct ClusterView {
    pub cluster: ClusterId,
    pub version: u64,
    pub nodes: BTreeMap<u32, Node>,
    pub disks: BTreeMap<u32, Disk>,
    pub volumes: BTreeMap<u32, VolumeEntry>,
    pub partitions: BTreeMap<u32, Partition>,
    pub pgs: BTreeMap<u32, PgView>,
    /// Inode ids of all partitions, ascending: every call by an inode looks for its partition here.
    ranges: Arc<[Range]>,
}

/// What a partition is in charge of. Ordered by volume, then by the first inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Range {
    volume: u32,
    first: u64,
    last: u64,
    partition: u32,
}

impl Range {
    fn of(partition: &Partition) -> Range {
        let Partition { id, volume, inode_first: first, inode_last: last, .. } = *partition;
        Range { volume, first, last, partition: id }
    }
}

/// A placement group, decoded.
#[derive(Clone, Debug)]
pub struct PgView {
    pub id: PgId,
    pub volume: u32,
    pub scheme: Scheme,
    pub epoch: Epoch,
    pub members: Vec<(u32, MemberState)>,
    pub writable: bool,
    pub free_bytes: u64,
    /// What it is in a stripe group, if it is in one.
    pub column: Option<ColumnView>,
}

/// What a placement group is in a stripe group, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnView {
    pub group: StripeGroupId,
    /// The data shard that it is to become.
    pub position: u32,
    /// The scheme that it is encoded to.
    pub later: Scheme,
    /// Where the primaries of all its columns are.
    pub core_rack: String,
    /// Most shards of a stripe in a rack.
    pub rack_capacity: u32,
}

impl ColumnView {
    /// `None`: of a later version.
    fn decode(column: &PgColumn) -> Option<ColumnView> {
        Some(ColumnView {
            group: StripeGroupId(column.group),
            position: column.position,
            later: Scheme::from_code(u8::try_from(column.later).ok()?)?,
            core_rack: column.core_rack.clone(),
            rack_capacity: column.rack_capacity,
        })
    }
}

impl PgView {
    /// `None` for what this version cannot read (a later scheme or state).
    pub(crate) fn decode(pg: &Pg) -> Option<PgView> {
        let state = pg.state.as_ref()?;
        let mut view = PgView::decode_state(state)?;
        view.column = pg.column.as_ref().and_then(ColumnView::decode);
        let takes = match (&pg.column, &view.column) {
            (None, _) => pg.writable,
            (Some(column), Some(_)) => column.writable,
            // Nobody knows what it takes.
            (Some(_), None) => false,
        };
        view.writable = takes && !state.retired;
        view.free_bytes = pg.free_bytes;
        Some(view)
    }
    /// From the state alone; writable is not known and taken as false.
    pub(crate) fn decode_state(state: &PgState) -> Option<PgView> {
        let members = state
            .members
            .iter()
            .map(|m| Some((m.disk, MemberState::from_code(u8::try_from(m.state).ok()?)?)))
            .collect::<Option<Vec<_>>>()?;
        Some(PgView {
            id: PgId(state.pg),
            volume: state.volume,
            scheme: Scheme::from_code(u8::try_from(state.scheme).ok()?)?,
            epoch: Epoch(state.epoch),
            members,
            writable: false,
            free_bytes: 0,
            column: None,
        })
    }
    /// Whose chunks it takes.
    pub fn class(&self) -> PgClass {
        PgClass { scheme: self.scheme, later: self.column.as_ref().map(|column| column.later) }
    }
    /// Disks that answer reads, in order; the first one is the primary.
    pub fn serving(&self) -> impl Iterator<Item = u32> + '_ {
        self.members.iter().filter(|(_, s)| *s == MemberState::Serving).map(|(d, _)| *d)
    }
    pub fn primary(&self) -> Option<u32> {
        self.serving().next()
    }
    /// Everybody after the primary who takes writes.
    pub fn followers(&self) -> Vec<u32> {
        let primary = self.primary();
        let takes = |(disk, state): &&(u32, MemberState)| state.receives_writes() && Some(*disk) != primary;
        self.members.iter().filter(takes).map(|(d, _)| *d).collect()
    }
    /// Enough members serve for new writes.
    pub fn can_write(&self) -> bool {
        self.serving().count() >= self.scheme.write_minimum()
    }
    /// All members serve.
    pub fn is_complete(&self) -> bool {
        self.serving().count() == self.scheme.members()
    }
}

impl ClusterView {
    /// How what is said of a group's chunks is kept on its way, where there are keys. Of what is not known, nobody else
    /// hears.
    pub fn protection(&self, pg: u32) -> Protection {
        let volume = self.pgs.get(&pg).and_then(|pg| self.volumes.get(&pg.volume));
        match volume {
            Some(volume) if !volume.private => Protection::Authenticated,
            _ => Protection::Private,
        }
    }
    /// Takes a full map or a delta.
    pub(crate) fn apply(&mut self, map: ClusterMap) {
        if let Some(cluster) = ClusterId::from_slice(&map.cluster) {
            self.cluster = cluster;
        }
        if map.base_version == 0 && map.version >= self.version {
            self.nodes.clear();
            self.disks.clear();
            self.volumes.clear();
            self.partitions.clear();
        } else if map.version < self.version {
            return self.apply_pgs(&map.pgs);
        }
        self.version = map.version;
        self.apply_pgs(&map.pgs);
        self.nodes.extend(map.nodes.into_iter().map(|n| (n.id, Node::of_wire(n))));
        self.disks.extend(map.disks.into_iter().map(|d| (d.id, Disk::of_wire(d))));
        for volume in map.volumes {
            if volume.deleted {
                self.volumes.remove(&volume.id);
            } else {
                self.volumes.insert(volume.id, VolumeEntry::of_wire(volume));
            }
        }
        self.apply_partitions(map.partitions.into_iter().map(Partition::of_wire).collect());
    }

    /// Most maps tell of other members or leaders, and no other ranges.
    pub(crate) fn apply_partitions(&mut self, partitions: Vec<Partition>) {
        let known = |p: &Partition| self.partitions.get(&p.id).is_some_and(|k| Range::of(k) == Range::of(p));
        let same = self.partitions.len() >= self.ranges.len() && partitions.iter().all(known);
        self.partitions.extend(partitions.into_iter().map(|p| (p.id, p)));
        if !same {
            let mut ranges: Vec<Range> = self.partitions.values().map(Range::of).collect();
            ranges.sort_unstable();
            self.ranges = ranges.into();
        }
    }

    fn apply_pgs(&mut self, pgs: &[Pg]) {
        for pg in pgs {
            match PgView::decode(pg) {
                Some(view) => {
                    let known = self.pgs.get(&view.id.0);
                    if known.is_none_or(|k| k.epoch <= view.epoch) {
                        self.pgs.insert(view.id.0, view);
                    }
                }
                None => tracing::warn!(pg = ?pg.state, "the map has a placement group that this version cannot read"),
            }
        }
    }

    /// Takes a placement group's state that an answer carried.
    pub(crate) fn apply_state(&mut self, state: &PgState) {
        let Some(mut view) = PgView::decode_state(state) else { return };
        if let Some(known) = self.pgs.get(&view.id.0) {
            if known.epoch >= view.epoch {
                return;
            }
            view.writable = known.writable;
            view.free_bytes = known.free_bytes;
            view.column = known.column.clone();
        }
        self.pgs.insert(view.id.0, view);
    }
    /// RPC address of the node that has the disk.
    pub fn disk_address(&self, disk: u32) -> Option<&str> {
        let node = self.disks.get(&disk)?.node;
        self.nodes.get(&node).map(|n| n.address.as_str())
    }
    pub fn volume_by_name(&self, name: &str) -> Option<&VolumeEntry> {
        self.volumes.values().find(|v| v.name == name)
    }
    /// Partition of a volume that owns an inode, as it is now or at a snapshot. Ranges of a volume do not overlap.
    pub fn partition_of(&self, volume: u32, inode: u64) -> Option<&Partition> {
        let inode = InodeId(inode).now().0;
        let behind = self.ranges.partition_point(|range| (range.volume, range.first) <= (volume, inode));
        let range = self.ranges[..behind].last().filter(|range| range.volume == volume && inode <= range.last)?;
        self.partitions.get(&range.partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::data::PgMember;
    use cairn_wire::manager;

    fn pg(id: u32, epoch: u64, states: &[u32]) -> Pg {
        let members =
            states.iter().zip(10..).map(|(state, disk)| PgMember { disk, state: *state, node: disk }).collect();
        let state = PgState { pg: id, volume: 1, scheme: 3, epoch, creation_epoch: 1, members, ..PgState::default() };
        Pg { state: Some(state), writable: true, free_bytes: 1, ..Pg::default() }
    }

    #[test]
    fn an_older_epoch_never_replaces_a_newer_one() {
        let mut view = ClusterView::default();
        view.apply(ClusterMap { version: 5, pgs: vec![pg(1, 7, &[1, 1, 1])], ..Default::default() });
        view.apply(ClusterMap { version: 4, base_version: 3, pgs: vec![pg(1, 6, &[1, 4, 1])], ..Default::default() });
        view.apply(ClusterMap { version: 6, base_version: 5, pgs: vec![pg(1, 5, &[1, 4, 1])], ..Default::default() });
        assert_eq!((view.pgs[&1].epoch, view.version), (Epoch(7), 6));
        view.apply_state(pg(1, 8, &[4, 1, 2]).state.as_ref().expect("state"));
        let now = &view.pgs[&1];
        assert_eq!((now.primary(), now.followers(), now.writable), (Some(11), vec![12], true));
        assert!(!now.can_write() && !now.is_complete());
    }

    fn partition(id: u32, volume: u32, inodes: std::ops::RangeInclusive<u64>) -> manager::Partition {
        let (inode_first, inode_last) = inodes.into_inner();
        manager::Partition { id, volume, inode_first, inode_last, ..Default::default() }
    }

    /// A request would go to a partition that has not the inode, or to none.
    #[test]
    fn the_partition_of_an_inode_is_found_among_many() {
        let mut view = ClusterView::default();
        assert!(view.partition_of(1, 1).is_none());
        // Three volumes whose partitions' numbers are mixed; every third range is missing, some end early.
        let range = |n: u64| (n << 32).max(1)..=((n + 1) << 32) - if n.is_multiple_of(7) { 1000 } else { 1 };
        let of = |id: u32| (id % 3 + 1, u64::from(id / 3));
        let ids = (1..=10_000u32).filter(|id| !of(*id).1.is_multiple_of(3) || of(*id).1 == 0);
        let mut partitions: Vec<_> = ids.map(|id| partition(id, of(id).0, range(of(id).1))).collect();
        partitions.reverse();
        view.apply(ClusterMap { version: 1, partitions: partitions.clone(), ..Default::default() });
        let (mut found, mut missing) = (0, 0);
        for volume in 0..=4 {
            for n in 0..3400u64 {
                let whole = n << 32..(n + 1) << 32;
                for inode in [
                    whole.start,
                    whole.start + 1,
                    whole.start + 12_345,
                    whole.end - 1000,
                    whole.end - 999,
                    whole.end - 1,
                ] {
                    let id = view.partition_of(volume, inode).map(|p| p.id);
                    let exists =
                        (1..=3).contains(&volume) && (!n.is_multiple_of(3) || n == 0) && range(n).contains(&inode);
                    let expected = exists.then(|| n as u32 * 3 + volume - 1).filter(|id| (1..=10_000).contains(id));
                    assert_eq!(id, expected, "inode {inode:#x} of volume {volume}");
                    *(if id.is_some() { &mut found } else { &mut missing }) += 1;
                }
            }
        }
        assert!(found > 30_000 && missing > 30_000, "{found} {missing}");
    }

    /// After a split requests would go on to the partition of before.
    #[test]
    fn ranges_follow_the_maps() {
        let map =
            |version, base_version, partitions| ClusterMap { version, base_version, partitions, ..Default::default() };
        let at = |view: &ClusterView, inode| view.partition_of(1, inode).map(|p| (p.id, p.leader));
        let mut view = ClusterView::default();
        view.apply(map(1, 0, vec![partition(1, 1, 1..=u64::MAX)]));
        view.apply(map(2, 1, vec![manager::Partition { leader: 5, ..partition(1, 1, 1..=u64::MAX) }]));
        assert_eq!((at(&view, 1), at(&view, u64::MAX), at(&view, 0)), (Some((1, 5)), Some((1, 5)), None));
        view.apply(map(3, 2, vec![partition(1, 1, 1..=99), partition(2, 1, 200..=u64::MAX)]));
        assert_eq!((at(&view, 99), at(&view, 100), at(&view, 200)), (Some((1, 0)), None, Some((2, 0))));
        view.apply(map(2, 1, vec![partition(1, 1, 1..=u64::MAX)]));
        assert_eq!(at(&view, 100), None, "an older map");
        view.apply(map(4, 0, vec![partition(2, 1, 200..=u64::MAX)]));
        assert_eq!((at(&view, 99), at(&view, 200)), (None, Some((2, 0))), "a whole map forgets what it does not name");
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        assert!(PgView::decode(&pg(1, 1, &[9])).is_none());
        assert!(PgView::decode(&Pg::default()).is_none());
    }
}
