//! Whom the rules probe and mark down.
use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> Time {
    Time((1_000 + seconds) * 1_000_000_000)
}

fn nodes(racks: &[&str]) -> Vec<(NodeId, String)> {
    racks.iter().enumerate().map(|(i, rack)| (NodeId(16 + i as u32), (*rack).to_string())).collect()
}

fn heard(liveness: &mut Liveness, nodes: &[(NodeId, String)], now: Time) {
    nodes.iter().for_each(|(node, _)| liveness.heard(*node, now));
}

/// A dead node would stay in all chains, or one lost packet would take a living one out.
#[test]
fn silent_then_probed_then_down() {
    let up = nodes(&["a", "b", "c", "a"]);
    let mut liveness = Liveness::new(at(0));
    heard(&mut liveness, &up, at(1));
    heard(&mut liveness, &up[1..], at(12));
    assert_eq!(liveness.to_probe(at(10), TIMEOUT, &up), []);
    assert_eq!(liveness.to_probe(at(12), TIMEOUT, &up), [up[0].0]);
    assert_eq!(liveness.to_probe(at(12), TIMEOUT, &up), [], "one at a time");
    assert_eq!(liveness.verdicts(at(12), TIMEOUT, &up), [], "not without a failed probe");
    liveness.probed(up[0].0, ProbeOutcome::Silent);
    assert_eq!(liveness.verdicts(at(13), TIMEOUT, &up), [up[0].0]);
    liveness.heard(up[0].0, at(13));
    assert_eq!(liveness.verdicts(at(13), TIMEOUT, &up), [], "a heartbeat came at the last moment");
}

/// A new leader has heard nobody: it would mark the whole cluster down.
#[test]
fn a_new_leader_grants_a_full_timeout() {
    let up = nodes(&["a", "b"]);
    let mut liveness = Liveness::new(at(100));
    assert_eq!(liveness.to_probe(at(109), TIMEOUT, &up), []);
    assert_eq!(liveness.to_probe(at(110), TIMEOUT, &up).len(), 2);
    assert!(!liveness.was_heard(up[0].0));
}

/// A switch that fails for a moment would cost the redundancy of half of the cluster.
#[test]
fn many_at_once_need_several_failed_probes() {
    let up = nodes(&["a", "a", "b", "b", "c", "c"]);
    let mut liveness = Liveness::new(at(0));
    heard(&mut liveness, &up, at(1));
    heard(&mut liveness, &up[3..], at(12));
    for second in 12..15 {
        assert_eq!(liveness.verdicts(at(second), TIMEOUT, &up), []);
        assert_eq!(liveness.to_probe(at(second), TIMEOUT, &up).len(), 3, "once a second");
        up[..3].iter().for_each(|(node, _)| liveness.probed(*node, ProbeOutcome::Silent));
    }
    assert_eq!(liveness.verdicts(at(15), TIMEOUT, &up).len(), 3, "all of them together");
    let mut refused = Liveness::new(at(0));
    heard(&mut refused, &up[3..], at(12));
    refused.to_probe(at(12), TIMEOUT, &up);
    up[..3].iter().for_each(|(node, _)| refused.probed(*node, ProbeOutcome::Refused));
    assert_eq!(refused.verdicts(at(12), TIMEOUT, &up).len(), 3, "refused connections are certain");
}

/// A leader that is cut off would take down everybody it cannot see.
#[test]
fn nobody_is_marked_down_when_nobody_is_left() {
    let up = nodes(&["a", "b", "c"]);
    let mut liveness = Liveness::new(at(0));
    for second in 10..20 {
        liveness.to_probe(at(second), TIMEOUT, &up);
        up.iter().for_each(|(node, _)| liveness.probed(*node, ProbeOutcome::Silent));
        assert_eq!(liveness.verdicts(at(second), TIMEOUT, &up), []);
    }
    let two = nodes(&["a", "b"]);
    assert_eq!(liveness.verdicts(at(20), TIMEOUT, &two).len(), 2);
}

/// A node whose heartbeats get lost but that answers would be taken out, or hammered with probes.
#[test]
fn mute_nodes_stay() {
    let up = nodes(&["a", "b", "c", "c"]);
    let mut liveness = Liveness::new(at(0));
    heard(&mut liveness, &up[1..], at(12));
    liveness.to_probe(at(12), TIMEOUT, &up);
    liveness.probed(up[0].0, ProbeOutcome::Alive);
    assert!(liveness.is_mute(up[0].0));
    assert_eq!(liveness.verdicts(at(13), TIMEOUT, &up), []);
    assert_eq!(liveness.to_probe(at(16), TIMEOUT, &up[..1]), []);
    assert_eq!(liveness.to_probe(at(17), TIMEOUT, &up[..1]), [up[0].0]);
    liveness.probed(up[0].0, ProbeOutcome::Silent);
    assert_eq!(liveness.verdicts(at(17), TIMEOUT, &up), [up[0].0]);
}
