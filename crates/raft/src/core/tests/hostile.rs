//! Messages that no correct peer sends.

use bytes::Bytes;
use cairn_sim::SimRng;
use cairn_wire::raft::{Entry, MemberMark, RaftMessage, SnapshotMeta as WireMeta};

use super::cluster::Cluster;
use crate::Input;

fn number(rng: &SimRng) -> u64 {
    match rng.range(0..8) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << 62,
        3 => rng.range(0..u64::MAX),
        _ => rng.range(0..60),
    }
}

fn message(rng: &SimRng, members: u64) -> RaftMessage {
    let entries = (0..if rng.chance(0.5) { rng.range(0..4) } else { 0 })
        .map(|_| Entry {
            kind: rng.range(0..3) as u32,
            term: number(rng),
            index: number(rng),
            data: Bytes::from(vec![1; rng.range(0..20) as usize]),
        })
        .collect();
    let ids = |rng: &SimRng| (0..rng.range(0..4)).map(|_| rng.range(0..members + 2)).collect();
    RaftMessage {
        sleep: rng.chance(0.5),
        entry_wanted: rng.chance(0.5),
        group: u32::from(rng.chance(0.95)),
        kind: rng.range(0..13) as u32,
        to: rng.range(0..members + 1),
        from: rng.range(0..members + 2),
        term: number(rng),
        log_term: number(rng),
        index: number(rng),
        entries,
        commit: number(rng),
        commit_term: number(rng),
        snapshot: rng.chance(0.3).then(|| WireMeta {
            index: number(rng),
            term: number(rng),
            voters: ids(rng),
            learners: ids(rng),
            bytes: number(rng),
        }),
        request_snapshot: number(rng),
        reject: rng.chance(0.3),
        reject_hint: number(rng),
        priority: number(rng),
        context: if rng.chance(0.2) { b"CampaignTransfer".to_vec() } else { vec![0; rng.range(0..5) as usize] },
        lease_stamp: number(rng),
        member_stamp: number(rng),
        acknowledged: number(rng),
        feature_level: number(rng) as u32,
        marks: (0..rng.range(0..3))
            .map(|_| MemberMark { node: rng.range(0..members + 2), term: number(rng), index: number(rng) })
            .collect(),
        wall_ns: number(rng),
        forgot: rng.chance(0.3),
    }
}

/// One bad message would bring a whole node down if the raft crate saw it.
#[test]
fn garbage_never_panics() {
    let mut refused = 0;
    for seed in 0..200 {
        let rng = SimRng::derived(seed, "garbage");
        let voters = [1, 3, 3, 5][seed as usize % 4];
        let mut cluster = Cluster::new(seed, voters, 1);
        cluster.run(2500);
        for _ in 0..20 {
            cluster.propose();
            cluster.run(2);
        }
        // Each victim gets garbage until it is convinced of nonsense; nothing is said about agreement here.
        let at = rng.index(voters as usize);
        let mut core = cluster.members[at].running.take().expect("it runs").core;
        let clock = cluster.members[at].clock(cluster.now);
        for step in 0..300 {
            let mut out = Vec::new();
            let mut message = message(&rng, u64::from(voters));
            if rng.chance(0.9) {
                message.to = at as u64 + 1;
            }
            if rng.chance(0.6) {
                message.term = core.term() + rng.range(0..2);
            }
            refused += u64::from(core.step(clock, Input::Message(message), &mut out).is_err());
            if step % 7 == 0 {
                let _ = core.step(clock, Input::Tick, &mut out);
            }
            let numbers: Vec<u64> = out
                .iter()
                .filter_map(|output| match output {
                    crate::Output::Persist { number, .. } => Some(*number),
                    _ => None,
                })
                .collect();
            for number in numbers {
                if rng.chance(0.7) {
                    let _ = core.step(clock, Input::Persisted(number), &mut Vec::new());
                }
            }
            core.check_invariants();
        }
    }
    println!("{refused} messages refused");
    assert!(refused > 10_000);
}
