//! Of which node a request between members of a group has to come: a key with the role data is one node's, and what
//! members tell each other changes what is acknowledged, and which indices are left.
//!
//! | request | from the node of |
//! |---|---|
//! | ReserveIndices, Append with `repair`, Overwrite with `settle` | the primary |
//! | Append and Overwrite to another than the primary | a member that takes appends and comes not later in the chain |
//!
//! No healthy member is refused for long: the group is looked at in the epoch that the request names, in which both
//! have the same members and the same primary. Whose key a node has is known from the map, which is heard within a
//! second, and a node that got another key is let in by the managers first. Until then the answer is that of a member
//! that is busy, so nobody is reported for it. Shards come from their writers, and Seal also from clients and from
//! metadata servers, member by member: neither is looked at here. Where nobody shows a key nobody knows.

use cairn_chunk_core::fence;
use cairn_format::pg_state::PgStateRecord;
use cairn_rpc::PeerInfo;
use cairn_types::{DiskId, ErrorCode, NodeId};
use cairn_wire::Opcode;
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::error::WireError;

/// The node of the primary.
fn of_primary(pg: &PgStateRecord) -> Option<NodeId> {
    let primary = fence::primary(pg)?;
    pg.members.iter().find(|member| member.disk == primary).map(|member| member.node)
}

/// The nodes of members that may pass something on to a disk, if it is to go on to these.
fn before(pg: &PgStateRecord, disk: DiskId, chain: &[u32]) -> impl Iterator<Item = NodeId> {
    let is_later = move |member: DiskId| member == disk || chain.contains(&member.get());
    pg.members.iter().filter(move |m| m.state.receives_writes() && !is_later(m.disk)).map(|member| member.node)
}

fn not_from_there(peer: &PeerInfo, pg: &PgStateRecord, opcode: Opcode, whose: &str) -> WireError {
    let name = peer.holder.as_ref().map_or("nobody", |holder| &holder.name);
    let text = format!(
        "{} of this kind comes from {whose} of {} at {}, and as far as this node has heard the key of {name} is not that node's; repeat \
         in a moment",
        opcode.name(),
        pg.pg,
        pg.epoch
    );
    let error = WireError::new(ErrorCode::Overloaded, text);
    peer.note_refusal(opcode, &error);
    error
}

/// What the primary alone may ask.
pub(super) fn check_primarys(peer: &PeerInfo, pg: &PgStateRecord, opcode: Opcode) -> Result<(), WireError> {
    if peer.speaks_for_one_of(of_primary(pg)) {
        return Ok(());
    }
    Err(not_from_there(peer, pg, opcode, "the primary"))
}

/// What a member gets from the one before it.
pub(super) fn check_passed_on(
    peer: &PeerInfo,
    (pg, disk): (&PgStateRecord, DiskId),
    chain: &[u32],
    opcode: Opcode,
) -> Result<(), WireError> {
    if peer.speaks_for_one_of(before(pg, disk, chain)) {
        return Ok(());
    }
    Err(not_from_there(peer, pg, opcode, "the member before this one"))
}

/// Servers write files anew and never in place.
pub(super) fn check_overwrites(peer: &PeerInfo) -> Result<(), WireError> {
    let Some(holder) = &peer.holder else { return Ok(()) };
    if !matches!(holder.caller, Caller::Node(has) if !has.meets(Roles::MANAGER)) {
        return Ok(());
    }
    let text = format!("blocks are overwritten by clients, and the key of {} is a server's", holder.name);
    let error = WireError::new(ErrorCode::NotPermitted, text);
    peer.note_refusal(Opcode::Overwrite, &error);
    Err(error)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use cairn_format::pg_state::PgStateMember;
    use cairn_rpc::{Audit, Identity};
    use cairn_types::MemberState::{Offline, Serving, Syncing};
    use cairn_types::{ClusterId, Epoch, MemberState, PgId, Scheme, VolumeId};
    use cairn_wire::hello::{Hello, PeerKind};
    use cairn_wire::holder::Holder;
    use cairn_wire::protection::Protection;
    use cairn_wire::rights::Rights;

    /// What disk d2 has of a group whose members are d1, d2, ... on n21, n22, ...
    pub(crate) fn record(states: &[MemberState]) -> PgStateRecord {
        let member = |(at, state): (u32, &MemberState)| PgStateMember {
            disk: DiskId(at + 1),
            node: NodeId(21 + at),
            state: *state,
        };
        PgStateRecord {
            cluster: ClusterId([1; 16]),
            pg: PgId(1),
            volume: VolumeId(1),
            disk: DiskId(2),
            high_water: 9,
            epoch: Epoch(5),
            creation_epoch: Epoch(1),
            term: 1,
            scheme: Scheme::Replicated(3),
            retired: false,
            comparing: false,
            older_epoch: Epoch(0),
            members: (0..).zip(states).map(member).collect(),
        }
    }

    /// Who says that he is this node, with a key of this kind; 0 and none: without a key.
    pub(crate) fn peer(node: u32, caller: Option<Caller>) -> PeerInfo {
        let identity = Identity::new(ClusterId([1; 16]), PeerKind::Server, NodeId(99));
        let holder = caller.map(|caller| Holder {
            name: format!("key{node}"),
            caller,
            node: NodeId(0),
            until: u64::MAX,
            rights: Rights::everything(),
        });
        let hello = Hello { node: NodeId(node), ..identity.hello() };
        PeerInfo {
            addr: "127.0.0.1:9".parse().expect("an address"),
            hello,
            version: 1,
            holder,
            protection: Protection::Private,
            audit: Audit::default(),
            node_keys: identity.node_keys().clone(),
        }
    }

    /// A stolen key of another data server would use up indices, and make members differ that are equal; or the
    /// primary, and the member before, not be heard.
    #[test]
    fn what_members_tell_each_other_comes_from_members() {
        let data = Some(Caller::Node(Roles::DATA));
        let pg = record(&[Offline, Serving, Serving, Syncing]);
        let primarys = |node| check_primarys(&peer(node, data), &pg, Opcode::ReserveIndices).map_err(|e| e.code);
        assert_eq!(primarys(22), Ok(()));
        for other in [21, 23, 24, 30] {
            assert_eq!(primarys(other), Err(ErrorCode::Overloaded), "n{other}");
        }
        let passes = |node, disk, chain: &[u32]| {
            check_passed_on(&peer(node, data), (&pg, DiskId(disk)), chain, Opcode::Append).is_ok()
        };
        assert!(passes(22, 3, &[4]) && passes(22, 4, &[]) && passes(23, 4, &[]), "from those before it");
        assert!(passes(24, 3, &[]), "the writer says in which order");
        assert!(!passes(24, 3, &[4]) && !passes(21, 3, &[4]) && !passes(30, 3, &[4]) && !passes(23, 3, &[]));
        // A client's key is no member's; without keys nobody knows.
        assert!(check_passed_on(&peer(0, Some(Caller::Client)), (&pg, DiskId(3)), &[4], Opcode::Append).is_err());
        let unknown = peer(30, None);
        assert!(check_primarys(&unknown, &pg, Opcode::Append).is_ok());
        assert!(check_passed_on(&unknown, (&pg, DiskId(3)), &[], Opcode::Append).is_ok());
    }

    /// A stolen data server's key would change blocks of any file where they lie.
    #[test]
    fn servers_overwrite_nothing() {
        let of = |roles| check_overwrites(&peer(21, Some(Caller::Node(roles)))).is_ok();
        assert!(!of(Roles::DATA) && !of(Roles::META) && !of(Roles::DATA.with(Roles::META)));
        assert!(of(Roles::ALL) && check_overwrites(&peer(0, Some(Caller::Client))).is_ok());
        assert!(check_overwrites(&peer(21, None)).is_ok());
    }
}
