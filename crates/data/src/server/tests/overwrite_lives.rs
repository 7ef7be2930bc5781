//! Random lives of a group under overwrites: members are killed and come back, epochs rise, requests are repeated.

use std::collections::{BTreeMap, BTreeSet};

use cairn_sim::SimRng;
use cairn_types::MemberState::{self, Offline, Serving, Syncing};
use cairn_types::{BLOCK_SIZE, ErrorCode};

use super::cluster::{Cluster, eventually, pattern};
use super::overwrites::{block, chunk, equal, start};

const BLOCKS: u32 = 24;

/// What the blocks of all chunks may be: one content if the last overwrite was acknowledged.
struct Model {
    may_be: BTreeMap<(u32, u32), BTreeSet<u64>>,
    acknowledged: u64,
    failed: u64,
}

struct Life {
    cluster: Cluster,
    states: Vec<MemberState>,
    alive: Vec<bool>,
    chunks: Vec<u32>,
    model: Model,
    request: u64,
}

/// The content that a chunk is made with.
const ORIGINAL: u64 = 0;

fn content(at: u32, seed: u64) -> Vec<u8> {
    if seed != ORIGINAL {
        return block(seed);
    }
    let from = at as usize * BLOCK_SIZE;
    pattern(7, BLOCKS as usize * BLOCK_SIZE)[from..from + BLOCK_SIZE].to_vec()
}

impl Life {
    fn begin() -> Self {
        let cluster = start();
        let chunks: Vec<u32> = (0..2).map(|i| chunk(&cluster, BLOCKS as usize * BLOCK_SIZE, i == 0)).collect();
        let all = chunks.iter().flat_map(|index| (0..BLOCKS).map(|at| ((*index, at), BTreeSet::from([ORIGINAL]))));
        let model = Model { may_be: all.collect(), acknowledged: 0, failed: 0 };
        Self { cluster, states: vec![Serving; 3], alive: vec![true; 3], chunks, model, request: 0 }
    }

    fn serving(&self) -> Vec<usize> {
        (0..3).filter(|i| self.states[*i] == Serving).collect()
    }

    /// A few at once, on blocks that differ, some of them sent twice.
    fn overwrite(&mut self, rng: &SimRng) {
        let primary = self.serving()[0];
        let chain: Vec<usize> =
            (0..3).filter(|i| *i != primary && matches!(self.states[*i], Serving | Syncing)).collect();
        let mut requests = Vec::new();
        let mut asked_for = Vec::new();
        let mut used = BTreeSet::new();
        for _ in 0..rng.range(1..6) {
            self.request += 1;
            let index = self.chunks[rng.range(0..2) as usize];
            let first = rng.range(0..u64::from(BLOCKS) - 4) as u32;
            let ats: Vec<u32> = (0..rng.range(1..4) as u32).map(|i| first + i).collect();
            if !ats.iter().all(|at| used.insert((index, *at))) {
                continue;
            }
            let seed = self.request;
            let blocks: Vec<_> = ats.iter().map(|at| (*at, block(seed))).collect();
            let (mut asked, bytes) = self.cluster.overwrite_request(primary, &chain, index, seed, &blocks);
            asked.floor = self.request.saturating_sub(20);
            for _ in 0..rng.range(1..3) {
                requests.push((asked.clone(), bytes.clone()));
                asked_for.push((index, ats.clone(), seed));
            }
        }
        let answers = self.cluster.overwrite_all(primary, requests);
        let mut done: BTreeMap<u64, bool> = BTreeMap::new();
        for ((_, _, seed), answer) in asked_for.iter().zip(&answers) {
            *done.entry(*seed).or_default() |= answer.is_ok();
            if let Err(error) = answer {
                assert_ne!(error.code(), Some(ErrorCode::BadRequest), "{error}");
            }
        }
        for (index, ats, seed) in asked_for {
            let acknowledged = done[&seed];
            self.model.acknowledged += u64::from(acknowledged);
            self.model.failed += u64::from(!acknowledged);
            for at in ats {
                let may_be = self.model.may_be.get_mut(&(index, at)).expect("a block");
                if acknowledged {
                    may_be.clear();
                }
                may_be.insert(seed);
            }
        }
    }

    fn raise(&mut self) {
        let states = self.states.clone();
        self.cluster.raise(&states);
    }

    /// What all serving members have now is what counts from here on; it has to be one of what may be.
    fn check(&mut self) {
        let serving = self.serving();
        let primary = serving[0];
        let chain: Vec<usize> =
            (0..3).filter(|i| *i != primary && matches!(self.states[*i], Serving | Syncing)).collect();
        // Taken once the members were made equal.
        for index in self.chunks.clone() {
            self.request += 1;
            let request = self.request;
            eventually("the members are made equal", || {
                self.cluster.overwrite(primary, &chain, index, request, &[(0, block(request))]).is_ok()
            });
            self.model.may_be.insert((index, 0), BTreeSet::from([request]));
            assert!(equal(&self.cluster, &serving, index), "members {serving:?} differ in {index}");
        }
        for ((index, at), may_be) in &mut self.model.may_be {
            let read = |i: usize| {
                let found = self.cluster.read(i, *index, u64::from(*at) * 4096, BLOCK_SIZE).expect("read");
                found.expect("matches its checksum")
            };
            let found = read(primary);
            let known = may_be.iter().copied().find(|seed| content(*at, *seed) == found);
            let known = known.unwrap_or_else(|| panic!("block {at} of {index} is none of {may_be:?}"));
            *may_be = BTreeSet::from([known]);
            for i in &serving[1..] {
                assert!(read(*i) == found, "block {at} of {index} on member {i}");
            }
        }
    }

    fn kill(&mut self, rng: &SimRng) {
        let serving = self.serving();
        if serving.len() < 3 {
            return;
        }
        let i = serving[rng.range(0..3) as usize];
        self.cluster.kill(i);
        self.alive[i] = false;
        // Some reach the others, or only the primary, before the manager knows.
        if self.alive[serving[0]] {
            (0..rng.range(0..3)).for_each(|_| self.overwrite(rng));
        }
        self.states[i] = Offline;
        self.raise();
    }

    fn come_back(&mut self, rng: &SimRng) {
        let Some(i) = (0..3).find(|i| self.states[*i] == Offline) else { return };
        self.cluster.restart(i);
        self.alive[i] = true;
        self.states[i] = Syncing;
        self.raise();
        (0..rng.range(0..8)).for_each(|_| self.overwrite(rng));
        let mut more = rng.range(0..200);
        eventually("caught up", || {
            if more > 0 {
                more -= 1;
                self.overwrite(rng);
            }
            self.cluster.nodes[i].report().is_some_and(|report| report.caught_up)
        });
        (0..rng.range(0..3)).for_each(|_| self.overwrite(rng));
        self.states[i] = Serving;
        self.raise();
    }
}

/// Acknowledged overwrites would be lost, members would stay different, or one that was away would serve an old block.
#[test]
fn random_lives_of_a_group() {
    let (mut acknowledged, mut failed, mut kills) = (0, 0, 0);
    for seed in 0..8 {
        let rng = SimRng::seeded(seed);
        let mut life = Life::begin();
        for _ in 0..14 {
            match rng.range(0..10) {
                0..=3 => (0..rng.range(1..6)).for_each(|_| life.overwrite(&rng)),
                4..=5 => {
                    kills += u64::from(life.serving().len() == 3);
                    life.kill(&rng);
                }
                6..=7 => life.come_back(&rng),
                8 => life.raise(),
                _ => life.check(),
            }
        }
        life.come_back(&rng);
        life.check();
        acknowledged += life.model.acknowledged;
        failed += life.model.failed;
    }
    println!("{acknowledged} acknowledged, {failed} not, {kills} kills");
    assert!(acknowledged > 200 && failed > 5 && kills > 5);
}
