//! Disks that take places in a group of which every disk is given up: they have nothing of it, and the group goes on
//! empty.
//!
//! Pure planning by the leader, at an operator's word. Not here: whether that may be done at all ([`Pg::force`]).
use crate::pg::Pg;
use crate::plan::candidates_in;
use crate::soft::Soft;
use crate::state::State;
use cairn_placement::{Chooser, Domains, NoSuccessor, Seat, Vacancy};
use cairn_types::{DiskId, MemberState, NodeId};

/// So many disks, each in the place of a lost member, of which `promoted` ones have theirs already; or why there are
/// none. `heard`: the leader knows that the node lives.
pub fn fresh(
    state: &State,
    soft: &Soft,
    pg: &Pg,
    (lost, promoted, count): (&[DiskId], &[DiskId], usize),
    heard: impl Fn(NodeId) -> bool,
    seed: u64,
) -> Result<Vec<(DiskId, DiskId)>, String> {
    if count > pg.formers_left() {
        return Err(crate::repair::too_many_formers(pg));
    }
    let mut domains = Domains::new();
    let fit = |disk: DiskId| state.takes_more(disk) && state.disk(disk).is_some_and(|disk| heard(disk.node));
    let candidates = candidates_in(state, soft, &mut domains, fit);
    let mut seat = |disk: DiskId| {
        let node = state.disk(disk).and_then(|disk| state.node(disk.node));
        let Some(node) = node else { return Seat { node: NodeId(0), rack: u32::MAX, host: u32::MAX } };
        let (rack, host) = domains.host(&node.rack, &node.host);
        Seat { node: node.id, rack, host }
    };
    let mut chooser = Chooser::new(candidates, seed);
    let mut taken: Vec<DiskId> = pg.disks().chain(pg.formers.iter().map(|f| f.disk)).collect();
    // Those that are lost leave their places in racks and on hosts to whoever comes.
    let stay = pg.members.iter().map(|m| m.disk).filter(|disk| !lost.contains(disk));
    let mut others: Vec<Seat> = stay.chain(promoted.iter().copied()).map(&mut seat).collect();
    let places: Vec<Option<usize>> = promoted.iter().map(|disk| pg.position_of(*disk)).collect();
    let free = |(at, m): &(usize, &crate::pg::Member)| {
        lost.contains(&m.disk) && m.state != MemberState::Serving && !places.contains(&Some(*at))
    };
    let mut swaps = Vec::with_capacity(count);
    for (_, member) in pg.members.iter().enumerate().filter(free).take(count) {
        let vacancy = Vacancy { lost: seat(member.disk), others: &others, taken: &taken, bytes: 0, beside: [0, 0] };
        let new = chooser.successor(&vacancy).map_err(|why| reason(pg, why))?;
        taken.push(new);
        others.push(seat(new));
        swaps.push((member.disk, new));
    }
    match swaps.len() == count {
        true => Ok(swaps),
        false => Err(format!("{} of its places are free, and {count} are needed", swaps.len())),
    }
}

fn reason(pg: &Pg, why: NoSuccessor) -> String {
    let id = pg.id;
    match why {
        NoSuccessor::NoDisk => format!("every disk in service is in {id} already, or was: add a disk"),
        NoSuccessor::Domain => {
            format!(
                "every other disk in service is in a rack or on a host with other members of {id}: add one elsewhere"
            )
        }
        NoSuccessor::NoSpace => "no other disk has space above disk_reserve: add a disk, or delete files".into(),
    }
}
