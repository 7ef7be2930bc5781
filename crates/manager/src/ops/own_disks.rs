//! Disks that come with another key than that of the node that they were last at: they are withheld.
//!
//! The map shows the uuids of all disks to servers, so whoever holds a data server's key could register disks of a
//! node that is down for a moment, and pass for a whole copy. A disk follows the key of its node; it is let in
//! elsewhere when that node runs and says that it has it no more, or its key is revoked. Without keys nobody knows. Not
//! here: disks that are in service at two nodes at a time (manager-core's registration).
use crate::manager::Manager;
use cairn_manager_core::{DISKS_MAX, DiskState, State};
use cairn_types::{DiskId, DiskUuid, NodeId};
use cairn_wire::error::WireError;
use cairn_wire::holder::{Holder, MANAGER_ID_MAX};
use cairn_wire::manager::RegisterRequest;
use std::collections::BTreeMap;

/// Refusals of one registration that are told.
const TOLD_MAX: usize = 16;

/// Places of the disks in a registration that are withheld, and why.
pub(super) type Withheld = BTreeMap<usize, String>;

/// Why a disk that nobody knows is not let in: the node would have more than a node has, with those that it does not
/// show any more. The map has all of them, and everybody gets the map.
fn one_too_many(state: &State, node: Option<NodeId>, new: usize) -> Option<String> {
    let node = node?;
    let known = state.disks_of(node).count();
    (known + new > DISKS_MAX).then(|| {
        format!(
            "{node} has {known} disks, with those that it does not show now, and a node has at most {DISKS_MAX}: remove those \
             that are gone for good (cairn admin disk ls shows them, cairn admin disk remove), then start this server again"
        )
    })
}

/// Why a disk is not let in, if it is not.
fn flaw(
    state: &State,
    holder: &Holder,
    node: Option<NodeId>,
    uuid: DiskUuid,
    is_revoked: impl FnOnce(&str) -> bool,
) -> Option<String> {
    let disk = state.disk_by_uuid(uuid).filter(|disk| Some(disk.node) != node)?;
    let former = state.node(disk.node).filter(|former| !state.is_removed(former.id))?;
    let (id, at) = (disk.id, former.id);
    if former.up && disk.state == DiskState::Absent {
        return None;
    }
    if at.get() <= MANAGER_ID_MAX {
        return (holder.node != at).then(|| {
            format!(
                "disk {id} was last at {at}, a manager, and comes with the key of {}: start {at} without it, then \
                 this server again, and it is let in",
                holder.name
            )
        });
    }
    if holder.may_have(at, super::binding::key_of(&former.holder), is_revoked) {
        return None;
    }
    Some(format!(
        "disk {id} was last at {at}, which has the key of {}, and comes with that of {}: if it was moved, start {at} without it, or put \
         {0} on the list of revoked keys where {at} is gone; then start this server again, and it is let in",
        former.holder, holder.name
    ))
}

impl Manager {
    /// The disks of a registration that are not let in.
    pub(super) async fn withheld(
        &self,
        holder: Option<&Holder>,
        request: &RegisterRequest,
    ) -> Result<Withheld, WireError> {
        let withheld: Withheld = self.look_in_cluster(|state, _| {
            let node = super::binding::registering(state, request).map(|node| node.id);
            let mut new = 0;
            let each = request.disks.iter().enumerate().filter_map(|(place, disk)| {
                let uuid = DiskUuid::from_slice(&disk.uuid)?;
                let is_known = state.disk_by_uuid(uuid).is_some();
                new += usize::from(!is_known);
                let of_another = || flaw(state, holder?, node, uuid, |name| self.is_revoked(name));
                let why = if is_known { of_another() } else { one_too_many(state, node, new) };
                why.map(|why| (place, why))
            });
            Ok(each.collect())
        })?;
        if let Some(holder) = holder {
            for why in withheld.values().take(TOLD_MAX) {
                self.tell_refused(NodeId(request.node), holder, why).await;
            }
        }
        Ok(withheld)
    }
}

/// The ids that a registration without the withheld disks got, with 0 in their places.
pub(super) fn with_places(disks: &mut Vec<DiskId>, withheld: &Withheld) {
    for place in withheld.keys() {
        disks.insert((*place).min(disks.len()), DiskId(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_manager_core::command::{BindNode, Command, Register, RegisterDisk};
    use cairn_manager_core::command::{InitCluster, NodeAt, NodesDown};
    use cairn_types::WallTime;
    use cairn_wire::audience::{Caller, Roles};
    use cairn_wire::rights::Rights;

    fn key(name: &str) -> Holder {
        let caller = Caller::Node(Roles::DATA);
        Holder { name: name.to_owned(), caller, node: NodeId(0), until: 0, rights: Rights::everything() }
    }

    /// One stolen key would take every disk of a rolling restart in turn, and no copy be left while all looks whole; or
    /// a disk that was moved never be let in.
    #[test]
    fn a_disk_stays_with_the_key_of_its_node() {
        let mut state = State::new();
        let mut apply = |command: Command| state.apply(WallTime(1), &command).outcome.expect("done");
        apply(Command::InitCluster(InitCluster { cluster: vec![9; 16], name: "x".into() }));
        let disk = RegisterDisk { uuid: vec![5; 16], total_bytes: 1 << 40, free_bytes: 1 << 39, ..Default::default() };
        apply(Command::Register(Register { uuid: vec![1; 16], roles: 4, disks: vec![disk], ..Register::default() }));
        apply(Command::BindNode(BindNode { node: 16, holder: "d1".into(), former: String::new() }));
        apply(Command::NodesDown(NodesDown { nodes: vec![NodeAt { node: 16, incarnation: 1 }] }));
        let judge = |holder: &Holder, node: Option<u32>, uuid: u8, revoked: &str| {
            flaw(&state, holder, node.map(NodeId), DiskUuid([uuid; 16]), |name| name == revoked)
        };
        let why = judge(&key("d2"), None, 5, "").expect("of another");
        assert!(why.contains("n16") && why.contains("put d1 on the list of revoked keys"), "{why}");
        assert!(judge(&key("d2"), Some(17), 5, "").is_some());
        assert_eq!(judge(&key("d2"), None, 5, "d1"), None, "its key is revoked");
        assert_eq!(judge(&key("d1"), None, 5, ""), None, "the same machine with an empty directory of its node");
        assert_eq!(judge(&key("d1"), Some(16), 5, ""), None);
        assert_eq!(judge(&key("d2"), None, 6, ""), None, "a new disk");
    }

    /// The holder of one key would fill the map, which everybody gets, with disks that are nowhere.
    #[test]
    fn a_node_has_no_more_disks_than_a_node_has() {
        let mut state = State::new();
        let mut apply = |command: Command| state.apply(WallTime(1), &command).outcome.expect("done");
        apply(Command::InitCluster(InitCluster { cluster: vec![9; 16], name: "x".into() }));
        let disk = |number: usize| RegisterDisk {
            uuid: [&[1; 8][..], &(number as u64).to_le_bytes()].concat(),
            total_bytes: 1 << 40,
            ..Default::default()
        };
        let disks = (0..DISKS_MAX - 1).map(disk).collect();
        apply(Command::Register(Register { uuid: vec![1; 16], roles: 4, disks, ..Register::default() }));
        // It shows none of them any more.
        apply(Command::Register(Register { uuid: vec![1; 16], roles: 4, ..Register::default() }));
        assert_eq!(one_too_many(&state, Some(NodeId(16)), 1), None);
        let why = one_too_many(&state, Some(NodeId(16)), 2).expect("too many");
        assert!(why.contains("n16 has 1023 disks") && why.contains("disk remove"), "{why}");
        assert_eq!(one_too_many(&state, None, DISKS_MAX), None, "a node that is new");
    }

    /// A disk would get the number of another one.
    #[test]
    fn ids_keep_their_places() {
        let mut disks = vec![DiskId(4), DiskId(6)];
        with_places(&mut disks, &[(0, String::new()), (2, String::new())].into());
        assert_eq!(disks, [0, 4, 0, 6].map(DiskId));
    }
}
