//! Steps of a change of members: each row of the table, and every change of small groups with members that die.
use super::*;

fn node(id: u32) -> NodeId {
    NodeId(id)
}

fn nodes(ids: &[u32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

/// Voters and learners that have everything; the first voter leads.
fn view(voters: &[u32], learners: &[u32]) -> GroupView {
    let members =
        voters.iter().map(|id| (node(*id), true, 5000)).chain(learners.iter().map(|id| (node(*id), false, 5000)));
    GroupView { leader: node(voters[0]), changing: false, last: 5000, members: members.collect() }
}

fn lag(mut view: GroupView, id: u32, matched: u64) -> GroupView {
    view.members.iter_mut().filter(|(n, ..)| *n == node(id)).for_each(|(.., at)| *at = matched);
    view
}

fn step(view: &GroupView, target: &[u32]) -> Step {
    next_step(view, &nodes(target), |_| true)
}

/// A group would get a voter that knows nothing, or lose the one that knows, if a row were wrong.
#[test]
fn every_row_of_the_table() {
    let waits = |step: Step, text: &str| matches!(step, Step::Wait(why) if why.contains(text));
    let change = |votes: &[u32], removals: &[u32]| Step::Change { votes: nodes(votes), removals: nodes(removals) };
    assert!(waits(step(&GroupView { changing: true, ..view(&[1], &[]) }, &[1]), "under way"));
    assert_eq!(step(&view(&[1, 2, 3], &[9]), &[1, 2, 4]), change(&[], &[9]));
    assert_eq!(step(&view(&[1, 2, 3], &[]), &[1, 2, 4]), Step::Learn(node(4)));
    assert!(waits(next_step(&view(&[1], &[]), &nodes(&[1, 4, 5]), |_| false), "n4 has not opened"));
    assert_eq!(next_step(&view(&[1], &[]), &nodes(&[1, 4, 5]), |id| id == node(5)), Step::Learn(node(5)));
    assert!(waits(step(&lag(view(&[1, 2, 3], &[4]), 4, 0), &[1, 2, 4]), "n4 has not got the state"));
    assert!(waits(step(&lag(view(&[1, 2, 3], &[4]), 4, 3999), &[1, 2, 4]), "n4 lacks 1001 entries"));
    assert_eq!(step(&lag(view(&[1, 2, 3], &[4]), 4, 4000), &[1, 2, 4]), change(&[4], &[3]));
    // The leader leaves: whoever stays and has most takes over first; alone, it first gets company.
    assert_eq!(step(&lag(view(&[1, 2, 3], &[4]), 2, 4999), &[2, 3, 4]), Step::Transfer(node(3)));
    assert_eq!(step(&view(&[1], &[2]), &[2]), change(&[2], &[]));
    assert_eq!(step(&view(&[1, 2], &[]), &[2]), Step::Transfer(node(2)));
    assert_eq!(step(&view(&[2, 1], &[]), &[2]), change(&[], &[1]));
    assert!(waits(step(&lag(view(&[1, 2], &[]), 2, 9), &[2]), "none of those that stay"));
    assert_eq!(step(&view(&[1, 2, 4], &[]), &[1, 2, 4]), Step::Settled);
    // A dead member is replaced; but not when that would leave a majority of members that know nothing.
    assert_eq!(step(&lag(view(&[1, 2, 3], &[4]), 3, 0), &[1, 2, 4]), change(&[4], &[3]));
    assert!(waits(step(&lag(lag(view(&[1, 2, 3, 4], &[]), 2, 0), 3, 0), &[1, 2, 3]), "only 1 of its 3"));
    assert_eq!(step(&view(&[1, 2, 3], &[]), &[1]), change(&[], &[2, 3]));
}

/// What a group becomes by a step that its leader carries out.
fn carry_out(view: &mut GroupView, step: &Step, dead: &[NodeId]) {
    let matched = |id: &NodeId| if dead.contains(id) { 0 } else { 5000 };
    match step {
        Step::Learn(id) => view.members.push((*id, false, matched(id))),
        Step::Change { votes, removals } => {
            view.members.iter_mut().filter(|(id, ..)| votes.contains(id)).for_each(|(_, vote, _)| *vote = true);
            view.members.retain(|(id, ..)| !removals.contains(id));
        }
        Step::Transfer(id) => view.leader = *id,
        Step::Wait(_) | Step::Settled => {}
    }
}

/// Every change between groups of 1, 3 and 5 of six nodes, from every leader, with up to a minority dead: it never
/// passes through a group whose living voters are no majority, and it settles whenever the wanted ones live.
#[test]
fn every_change_arrives_and_keeps_a_majority() {
    let sets: Vec<Vec<NodeId>> = (1u32..64)
        .filter(|bits| matches!(bits.count_ones(), 1 | 3 | 5))
        .map(|bits| (0..6).filter(|i| bits & (1 << i) != 0).map(|i| NodeId(i + 1)).collect())
        .collect();
    let mut runs = 0;
    for from in &sets {
        for target in &sets {
            for dead in std::iter::once(None).chain(from.iter().map(|id| Some(*id))) {
                let dead: Vec<NodeId> = dead.into_iter().filter(|_| from.len() > 1).collect();
                for leader in from.iter().filter(|id| !dead.contains(id)) {
                    let members = from.iter().map(|id| (*id, true, if dead.contains(id) { 0 } else { 5000 }));
                    let mut view =
                        GroupView { leader: *leader, changing: false, last: 5000, members: members.collect() };
                    let mut taken = 0;
                    let end = loop {
                        let step = next_step(&view, target, |id| !dead.contains(&id));
                        carry_out(&mut view, &step, &dead);
                        let (voters, living) =
                            (view.voters().count(), view.voters().filter(|id| !dead.contains(id)).count());
                        assert!(living > voters / 2, "{from:?} to {target:?}, {dead:?} dead: {view:?}");
                        assert!(view.voters().any(|id| id == view.leader));
                        taken += 1;
                        assert!(taken < 30, "{from:?} to {target:?}: no end");
                        if matches!(step, Step::Wait(_) | Step::Settled) {
                            break step;
                        }
                    };
                    runs += 1;
                    let lives = target.iter().filter(|id| !dead.contains(id)).count() > target.len() / 2;
                    let new_dead = target.iter().any(|id| dead.contains(id) && !from.contains(id));
                    if lives && !new_dead {
                        assert_eq!(end, Step::Settled, "{from:?} to {target:?}, {dead:?} dead, led by {leader}");
                        assert_eq!(view.voters().collect::<BTreeSet<_>>(), target.iter().copied().collect());
                    }
                }
            }
        }
    }
    assert!(runs > 1000);
}
