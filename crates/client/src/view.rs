//! The client's copy of the cluster map, kept by deltas: nodes, disks, volumes, partitions, placement groups.
//!
//! Invariant: an item is replaced only by a newer one: placement groups by epoch, the rest by map version.
use cairn_types::{ClusterId, Epoch, MemberState, PgId, Scheme};
use cairn_wire::data::PgState;
use cairn_wire::manager::{ClusterMap, Disk, Node, Partition, Pg, Volume};
use std::collections::BTreeMap;

/// What the client knows of the cluster.
#[derive(Clone, Default, Debug)]
pub struct ClusterView {
    pub cluster: ClusterId,
    pub version: u64,
    pub nodes: BTreeMap<u32, Node>,
    pub disks: BTreeMap<u32, Disk>,
    pub volumes: BTreeMap<u32, Volume>,
    pub partitions: BTreeMap<u32, Partition>,
    pub pgs: BTreeMap<u32, PgView>,
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
}

impl PgView {
    /// `None` for what this version cannot read (a later scheme or state).
    pub fn decode(pg: &Pg) -> Option<PgView> {
        let state = pg.state.as_ref()?;
        let mut view = PgView::decode_state(state)?;
        view.writable = pg.writable && !state.retired;
        view.free_bytes = pg.free_bytes;
        Some(view)
    }
    /// From the state alone; writable is not known and taken as false.
    pub fn decode_state(state: &PgState) -> Option<PgView> {
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
        })
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
    /// Takes a full map or a delta.
    pub fn apply(&mut self, map: ClusterMap) {
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
        self.nodes.extend(map.nodes.into_iter().map(|n| (n.id, n)));
        self.disks.extend(map.disks.into_iter().map(|d| (d.id, d)));
        for volume in map.volumes {
            if volume.deleted {
                self.volumes.remove(&volume.id);
            } else {
                self.volumes.insert(volume.id, volume);
            }
        }
        self.partitions.extend(map.partitions.into_iter().map(|p| (p.id, p)));
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
    pub fn apply_state(&mut self, state: &PgState) {
        let Some(mut view) = PgView::decode_state(state) else { return };
        if let Some(known) = self.pgs.get(&view.id.0) {
            if known.epoch >= view.epoch {
                return;
            }
            view.writable = known.writable;
            view.free_bytes = known.free_bytes;
        }
        self.pgs.insert(view.id.0, view);
    }
    /// RPC address of the node that has the disk.
    pub fn disk_address(&self, disk: u32) -> Option<&str> {
        let node = self.disks.get(&disk)?.node;
        self.nodes.get(&node).map(|n| n.address.as_str())
    }
    pub fn volume_by_name(&self, name: &str) -> Option<&Volume> {
        self.volumes.values().find(|v| v.name == name)
    }
    /// Partition of a volume that owns an inode.
    pub fn partition_of(&self, volume: u32, inode: u64) -> Option<&Partition> {
        self.partitions.values().find(|p| p.volume == volume && (p.inode_first..=p.inode_last).contains(&inode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::data::PgMember;

    fn pg(id: u32, epoch: u64, states: &[u32]) -> Pg {
        let members =
            states.iter().zip(10..).map(|(state, disk)| PgMember { disk, state: *state, node: disk }).collect();
        let state = PgState { pg: id, volume: 1, scheme: 3, epoch, creation_epoch: 1, members, ..PgState::default() };
        Pg { state: Some(state), writable: true, free_bytes: 1, used_bytes: 0 }
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

    #[test]
    fn what_cannot_be_read_is_left_out() {
        assert!(PgView::decode(&pg(1, 1, &[9])).is_none());
        assert!(PgView::decode(&Pg::default()).is_none());
    }
}
