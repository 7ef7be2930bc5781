//! Who may ask whom, and under which epoch: the table of what members in each state do.
//!
//! | state | reads | appends | answers as primary | source of copies |
//! |---|---|---|---|---|
//! | serving | yes | yes | the first one | yes |
//! | syncing | of shards, as a last resort | yes | no | of shards, as a last resort |
//! | waiting, offline | of shards, as a last resort, if its server is up | no | no | no |
//!
//! Invariant: no member answers an older epoch; a primary's append goes to every member that receives writes.

use cairn_format::pg_state::PgStateRecord;
use cairn_types::{DiskId, Epoch, MemberState, PgId, SessionId};

/// Why a request is not for this member, or not now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fence {
    /// The asker's view is old.
    #[error("{pg} is at {current}, the request names {asked}; refresh the cluster map")]
    Stale {
        /// The group.
        pg: PgId,
        /// What this member holds.
        current: Epoch,
        /// What was named.
        asked: Epoch,
    },
    /// This member's view is old: it asks the manager.
    #[error("{pg} is at {current} here, the request names {asked}; this member asks the manager, repeat")]
    Behind {
        /// The group.
        pg: PgId,
        /// What this member holds.
        current: Epoch,
        /// What was named.
        asked: Epoch,
    },
    /// The disk is no member.
    #[error("{disk} is no member of {pg} in {epoch}; refresh the cluster map")]
    NotMember {
        /// The group.
        pg: PgId,
        /// The disk asked.
        disk: DiskId,
        /// The epoch.
        epoch: Epoch,
    },
    /// The member's state forbids it.
    #[error("{disk} is {state} in {pg}; ask a serving member")]
    NotServing {
        /// The group.
        pg: PgId,
        /// The disk asked.
        disk: DiskId,
        /// Its state.
        state: MemberState,
    },
    /// Only the primary does that.
    #[error("{disk} is not the primary of {pg}{}", .primary.map_or_else(String::new, |p| format!(", {p} is")))]
    NotPrimary {
        /// The group.
        pg: PgId,
        /// The disk asked.
        disk: DiskId,
        /// Who is.
        primary: Option<DiskId>,
        /// The epoch.
        epoch: Epoch,
    },
    /// The chain is not what the epoch says.
    #[error(
        "the chain of an append to {pg} has to name all other members that receive writes; refresh the cluster map"
    )]
    WrongChain {
        /// The group.
        pg: PgId,
        /// The epoch.
        epoch: Epoch,
    },
    /// Something to be passed on where nothing is.
    #[error("the members of {pg} hold different shards: each is asked by itself, with an empty chain")]
    NoChain {
        /// The group.
        pg: PgId,
    },
    /// A chunk of an earlier epoch.
    #[error("chunks made in {made} take no more appends, {pg} is at {current}; go on in a new chunk")]
    Over {
        /// The group.
        pg: PgId,
        /// The chunk's epoch.
        made: Epoch,
        /// The group's.
        current: Epoch,
    },
    /// Too few members.
    #[error("{pg} has {serving} serving members, writes need {minimum}; members come back or are replaced")]
    BelowMinimum {
        /// The group.
        pg: PgId,
        /// How many serve.
        serving: usize,
        /// How many are needed.
        minimum: usize,
    },
    /// Nobody knows yet what its members have together.
    #[error("all members of {pg} came back as older copies of themselves and are being compared; repeat in a moment")]
    Comparing {
        /// The group.
        pg: PgId,
    },
    /// It takes nothing new.
    #[error("{pg} is retired; choose another placement group")]
    Retired {
        /// The group.
        pg: PgId,
    },
    /// Another session's chunk.
    #[error("the chunk belongs to session {owner}; {asked} cannot append to it")]
    OtherSession {
        /// Who made it.
        owner: SessionId,
        /// Who asked.
        asked: SessionId,
    },
}

/// Place of a member in an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It was asked by the writer.
    Primary,
    /// It was asked by the member before it.
    Follower,
}

/// The member's state.
pub fn state_of(pg: &PgStateRecord, disk: DiskId) -> Result<MemberState, Fence> {
    let member = pg.members.iter().find(|member| member.disk == disk);
    member.map(|member| member.state).ok_or(Fence::NotMember { pg: pg.pg, disk, epoch: pg.epoch })
}

/// The first serving member.
pub fn primary(pg: &PgStateRecord) -> Option<DiskId> {
    serving(pg).next()
}

/// All serving members in order.
pub fn serving(pg: &PgStateRecord) -> impl Iterator<Item = DiskId> + '_ {
    pg.members.iter().filter(|member| member.state == MemberState::Serving).map(|member| member.disk)
}

/// Members that catch up, in order.
pub fn syncing(pg: &PgStateRecord) -> impl Iterator<Item = DiskId> + '_ {
    pg.members.iter().filter(|member| member.state == MemberState::Syncing).map(|member| member.disk)
}

/// All members that take appends.
pub fn receivers(pg: &PgStateRecord) -> impl Iterator<Item = DiskId> + '_ {
    pg.members.iter().filter(|member| member.state.receives_writes()).map(|member| member.disk)
}

/// Holds the epoch of a request against the member's.
pub fn check_epoch(pg: &PgStateRecord, asked: Epoch) -> Result<(), Fence> {
    let current = pg.epoch;
    match asked.cmp(&current) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => Err(Fence::Stale { pg: pg.pg, current, asked }),
        std::cmp::Ordering::Greater => Err(Fence::Behind { pg: pg.pg, current, asked }),
    }
}

/// Whether somebody may have served before `now`, who does not in it, and not know that: it goes on to answer readers
/// for as long as the manager's word is good. `before`: what the disk of these states knew, if it has known all since.
pub fn may_lack_a_member(before: Option<&PgStateRecord>, now: &PgStateRecord) -> bool {
    // Of a group that begins nobody left.
    let Some(before) = before else { return now.epoch != now.creation_epoch };
    // One that does not serve sees who joins in the place of who leaves.
    let sees_all = before.epoch.get() + 1 == now.epoch.get() && serving(before).any(|disk| disk == now.disk);
    !sees_all || serving(before).any(|disk| !serving(now).any(|now| now == disk))
}

/// Checks that `disk` is the primary.
pub fn check_primary(pg: &PgStateRecord, disk: DiskId) -> Result<(), Fence> {
    let state = state_of(pg, disk)?;
    if primary(pg) == Some(disk) {
        return Ok(());
    }
    if state != MemberState::Serving {
        return Err(Fence::NotServing { pg: pg.pg, disk, state });
    }
    Err(Fence::NotPrimary { pg: pg.pg, disk, primary: primary(pg), epoch: pg.epoch })
}

/// Checks that `disk` may answer reads.
pub fn check_read(pg: &PgStateRecord, disk: DiskId) -> Result<(), Fence> {
    match state_of(pg, disk)? {
        MemberState::Serving => Ok(()),
        state => Err(Fence::NotServing { pg: pg.pg, disk, state }),
    }
}

/// Checks that `disk` may answer a read of somebody who finds too little elsewhere, and knows in which epoch the chunk
/// was made: of a shard every member may, whatever it missed (one stays offline while its group lacks others to catch
/// up from). What lies at a place of a shard is never replaced by anything else, so what it has there is right or
/// missing; of a replicated chunk it may be what it was before an overwrite.
pub fn check_last_resort(pg: &PgStateRecord, disk: DiskId) -> Result<(), Fence> {
    if pg.scheme.is_replicated() { check_read(pg, disk) } else { state_of(pg, disk).map(|_| ()) }
}

/// Checks that the members of a group were compared since all of them came back as older copies of themselves.
pub fn check_compared(pg: &PgStateRecord) -> Result<(), Fence> {
    if pg.comparing { Err(Fence::Comparing { pg: pg.pg }) } else { Ok(()) }
}

/// Checks that new data may be written at all.
pub fn check_writable(pg: &PgStateRecord) -> Result<(), Fence> {
    if pg.retired {
        return Err(Fence::Retired { pg: pg.pg });
    }
    check_compared(pg)?;
    let (serving, minimum) = (serving(pg).count(), pg.scheme.write_minimum());
    if serving < minimum { Err(Fence::BelowMinimum { pg: pg.pg, serving, minimum }) } else { Ok(()) }
}

/// Checks the place of `disk` in an append, sync or seal that goes on to `chain`: the primary's chain names all other
/// receivers once; a follower's names receivers that are neither itself nor the primary.
pub fn check_chain(pg: &PgStateRecord, disk: DiskId, chain: &[DiskId]) -> Result<Place, Fence> {
    let state = state_of(pg, disk)?;
    if !state.receives_writes() {
        return Err(Fence::NotServing { pg: pg.pg, disk, state });
    }
    let others = receivers(pg).filter(|other| *other != disk).count();
    let sound = |i: usize, next: &DiskId| {
        *next != disk && receivers(pg).any(|receiver| receiver == *next) && !chain[..i].contains(next)
    };
    if !chain.iter().enumerate().all(|(i, next)| sound(i, next)) {
        return Err(Fence::WrongChain { pg: pg.pg, epoch: pg.epoch });
    }
    let first = primary(pg);
    if first == Some(disk) {
        return if chain.len() == others {
            Ok(Place::Primary)
        } else {
            Err(Fence::WrongChain { pg: pg.pg, epoch: pg.epoch })
        };
    }
    if chain.iter().any(|next| Some(*next) == first) {
        return Err(Fence::NotPrimary { pg: pg.pg, disk, primary: first, epoch: pg.epoch });
    }
    Ok(Place::Follower)
}

/// A chunk takes appends only from the session that made it.
pub fn check_session(owner: SessionId, asked: SessionId) -> Result<(), Fence> {
    if owner == asked { Ok(()) } else { Err(Fence::OtherSession { owner, asked }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberState::{Offline, Serving, Syncing, Waiting};
    use cairn_format::pg_state::PgStateMember;
    use cairn_types::{ClusterId, NodeId, Scheme, VolumeId};

    fn pg(states: &[MemberState]) -> PgStateRecord {
        let member = |(i, state): (usize, &MemberState)| PgStateMember {
            disk: DiskId(i as u32 + 1),
            node: NodeId(i as u32 + 16),
            state: *state,
        };
        PgStateRecord {
            cluster: ClusterId([1; 16]),
            pg: PgId(1),
            volume: VolumeId(1),
            disk: DiskId(1),
            high_water: 0,
            epoch: Epoch(5),
            creation_epoch: Epoch(1),
            term: 1,
            scheme: Scheme::Replicated(states.len() as u8),
            retired: false,
            comparing: false,
            older_epoch: Epoch(0),
            members: states.iter().enumerate().map(member).collect(),
        }
    }
    fn disks(ids: &[u32]) -> Vec<DiskId> {
        ids.iter().map(|id| DiskId(*id)).collect()
    }

    /// A member could answer under an epoch that is over, or serve what it does not have.
    #[test]
    fn epochs_and_states() {
        let pg = pg(&[Offline, Serving, Syncing]);
        assert!(matches!(check_epoch(&pg, Epoch(4)), Err(Fence::Stale { current: Epoch(5), .. })));
        assert!(matches!(check_epoch(&pg, Epoch(6)), Err(Fence::Behind { .. })));
        assert_eq!(check_epoch(&pg, Epoch(5)), Ok(()));
        assert_eq!(primary(&pg), Some(DiskId(2)));
        for (disk, read) in [(1, false), (2, true), (3, false), (4, false)] {
            assert_eq!(check_read(&pg, DiskId(disk)).is_ok(), read, "d{disk}");
        }
        assert!(matches!(check_writable(&pg), Err(Fence::BelowMinimum { serving: 1, minimum: 2, .. })));
    }

    /// Clients would write to members that may differ, or read one of them.
    #[test]
    fn nothing_is_written_before_older_copies_were_compared() {
        let pg = PgStateRecord { comparing: true, ..pg(&[Serving, Serving]) };
        assert_eq!(check_writable(&pg), Err(Fence::Comparing { pg: PgId(1) }));
        assert_eq!(check_compared(&pg), Err(Fence::Comparing { pg: PgId(1) }));
        assert_eq!(check_writable(&PgStateRecord { comparing: false, ..pg }), Ok(()));
    }

    /// Shards that are whole would be out of reach while their group waits, or a copy be read as it was before an
    /// overwrite.
    #[test]
    fn every_member_answers_for_shards_as_the_last_resort() {
        let copies = pg(&[Offline, Serving, Syncing, Waiting]);
        let shards = PgStateRecord { scheme: Scheme::Erasure { k: 2, m: 2 }, ..copies.clone() };
        for (disk, of_copies, of_shards) in
            [(1, false, true), (2, true, true), (3, false, true), (4, false, true), (5, false, false)]
        {
            assert_eq!(check_last_resort(&copies, DiskId(disk)).is_ok(), of_copies, "d{disk}");
            assert_eq!(check_last_resort(&shards, DiskId(disk)).is_ok(), of_shards, "d{disk}");
        }
    }

    /// A primary would overwrite blocks that somebody who left a moment ago still shows to readers.
    #[test]
    fn who_left_is_noticed_by_who_served_before() {
        let before = pg(&[Serving, Serving, Syncing]);
        let now = |epoch: u64, states: &[MemberState]| PgStateRecord { epoch: Epoch(epoch), ..pg(states) };
        assert!(!may_lack_a_member(Some(&before), &now(6, &[Serving, Serving, Serving])), "one more");
        assert!(may_lack_a_member(Some(&before), &now(6, &[Serving, Offline, Syncing])), "one less");
        assert!(may_lack_a_member(Some(&before), &now(7, &[Serving, Serving, Serving])), "an epoch was missed");
        let behind = pg(&[Syncing, Serving, Serving]);
        assert!(
            may_lack_a_member(Some(&behind), &now(6, &[Serving, Serving, Serving])),
            "it saw one in another's place"
        );
        let other = |disk: u32| {
            let mut now = now(6, &[Serving, Serving, Syncing]);
            now.members[1].disk = DiskId(disk);
            now
        };
        assert!(!may_lack_a_member(Some(&before), &other(2)) && may_lack_a_member(Some(&before), &other(9)));
        assert!(may_lack_a_member(None, &now(2, &[Serving])) && !may_lack_a_member(None, &now(1, &[Serving])));
    }

    /// An append could miss a member that counts, or be taken by one that nobody counts on.
    #[test]
    fn chains_name_every_receiver() {
        let pg = pg(&[Serving, Serving, Syncing, Waiting]);
        for (disk, chain, wanted) in [
            (1, &[2, 3][..], Some(Place::Primary)),
            (1, &[3, 2], Some(Place::Primary)),
            (1, &[2], None),
            (1, &[2, 2], None),
            (1, &[2, 3, 4], None),
            (2, &[3], Some(Place::Follower)),
            (3, &[], Some(Place::Follower)),
            (2, &[1, 3], None),
            (4, &[], None),
            (9, &[], None),
        ] {
            assert_eq!(check_chain(&pg, DiskId(disk), &disks(chain)).ok(), wanted, "d{disk} {chain:?}");
        }
        assert!(matches!(check_primary(&pg, DiskId(2)), Err(Fence::NotPrimary { primary: Some(DiskId(1)), .. })));
        assert!(matches!(check_primary(&pg, DiskId(3)), Err(Fence::NotServing { state: Syncing, .. })));
        assert_eq!(check_primary(&pg, DiskId(1)), Ok(()));
    }
}
