//! Random lives of an erasure group: writes, members that die, lose their disks, come back, bad blocks, frees. In the
//! end every member has to hold exactly its shards of everything that was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

use cairn_rpc::Payload;
use cairn_sim::SimRng;
use cairn_types::ErrorCode;
use cairn_types::MemberState::{self, Offline, Serving, Syncing};
use cairn_wire::Opcode;
use cairn_wire::common::ChunkRange;
use cairn_wire::data::{FreeItem, FreeRequest, FreeResponse};

use super::cluster::{Cluster, PG, eventually};
use super::rebuilds::{damage, report};
use super::repairs::id;
use super::shards::RS32;
use super::stripes::{Shards, read_shard};

const UNIT: usize = 16 << 10;
const MEMBERS: usize = 5;
const K: usize = 3;

#[derive(Default)]
struct Faults {
    kills: u64,
    lost_disks: u64,
    bad_blocks: u64,
}

struct Life {
    cluster: Cluster,
    states: Vec<MemberState>,
    chunks: BTreeMap<u32, (Shards, BTreeSet<usize>)>,
    faults: Faults,
    seed: u64,
}

impl Life {
    fn new(seed: u64) -> Self {
        let cluster = Cluster::start_scheme(RS32, |_| {});
        let states = vec![Serving; MEMBERS];
        Self { cluster, states, chunks: BTreeMap::new(), faults: Faults::default(), seed: seed * 1000 }
    }

    fn of(&self, state: MemberState) -> Vec<usize> {
        (0..MEMBERS).filter(|i| self.states[*i] == state).collect()
    }

    fn raise(&mut self) {
        let states = self.states.clone();
        self.cluster.raise(&states);
    }

    fn write(&mut self, rng: &SimRng) {
        let serving = self.of(Serving);
        if serving.len() <= K {
            return;
        }
        let index = self.cluster.allocate(serving[0]).expect("an index");
        self.seed += 1;
        let shards = Shards::new(RS32, self.seed, UNIT * rng.range(1..12) as usize);
        let receivers: Vec<usize> = (0..MEMBERS).filter(|i| self.states[*i].receives_writes()).collect();
        shards.put(&self.cluster, &receivers, index);
        self.chunks.insert(index, (shards, BTreeSet::new()));
    }

    fn kill(&mut self, rng: &SimRng) {
        let serving = self.of(Serving);
        if serving.len() <= K {
            return;
        }
        let victim = serving[rng.range(0..serving.len() as u64) as usize];
        self.cluster.kill(victim);
        self.faults.kills += 1;
        self.states[victim] = Offline;
        self.raise();
    }

    /// One that is away comes back, perhaps with an empty disk, and catches up.
    fn come_back(&mut self, rng: &SimRng) {
        let Some(&back) = self.of(Offline).first() else { return };
        let empty = rng.chance(0.4);
        self.faults.lost_disks += u64::from(empty);
        self.cluster.restart_with(back, |dir| {
            if empty {
                std::fs::remove_dir_all(dir.join("pg")).expect("removed");
            }
        });
        self.states[back] = Syncing;
        self.raise();
        if rng.chance(0.5) {
            self.write(rng);
        }
        eventually("catching up", || self.cluster.nodes[back].report().is_some_and(|report| report.caught_up));
        self.states[back] = Serving;
        self.raise();
    }

    fn bad_block(&mut self, rng: &SimRng) {
        let (serving, count) = (self.of(Serving), self.chunks.len() as u64);
        if serving.len() <= K || count == 0 {
            return;
        }
        let (index, (shards, freed)) = self.chunks.iter().nth(rng.range(0..count) as usize).expect("in range");
        let member = serving[rng.range(0..serving.len() as u64) as usize];
        let block = rng.range(0..(shards.bytes[0].len() / 4096) as u64);
        if freed.contains(&(block as usize * 4096 / UNIT)) {
            return;
        }
        // What is still on its way home would be written over the damage.
        let store = self.cluster.nodes[member].store();
        eventually("it is at rest", || {
            store.chunk(id(*index)).is_some_and(|chunk| chunk.state.lock().overlay.is_empty())
        });
        damage(&self.cluster, member, *index, block);
        report(&self.cluster, member, *index, block).expect("healed");
        self.faults.bad_blocks += 1;
    }

    fn free_row(&mut self, rng: &SimRng) {
        let count = self.chunks.len() as u64;
        // Frees wait for members that are away; here they come while all are there.
        if count == 0 || self.of(Serving).len() < MEMBERS {
            return;
        }
        let at = rng.range(0..count) as usize;
        let (index, (shards, freed)) = self.chunks.iter_mut().nth(at).expect("in range");
        let units = shards.bytes[0].len() / UNIT;
        if units < 3 {
            return;
        }
        let unit = rng.range(0..units as u64 - 1) as usize;
        freed.insert(unit);
        for node in &self.cluster.nodes {
            let ranges = vec![ChunkRange { offset: (unit * UNIT) as u64, length: UNIT as u64 }];
            let item = FreeItem { disk: node.disk, pg: PG, index: *index, ranges };
            let request = FreeRequest { items: vec![item] };
            let i = node.disk as usize - 101;
            eventually("the free", || {
                let answer: (FreeResponse, _) =
                    self.cluster.call(i, Opcode::Free, &request, Payload::None).expect("answered");
                answer.0.codes == [0]
            });
        }
    }

    fn check(&self) {
        for (index, (shards, freed)) in &self.chunks {
            for i in 0..MEMBERS {
                for unit in 0..shards.bytes[0].len() / UNIT {
                    let at = unit * UNIT;
                    if freed.contains(&unit) {
                        let gone = read_shard(&self.cluster, i, *index, at, UNIT).expect_err("freed");
                        assert_eq!(gone.code(), Some(ErrorCode::ChunkDeleted));
                    } else {
                        shards.check(&self.cluster, i, *index, at, at + UNIT);
                    }
                }
            }
        }
    }
}

/// Some order of losses and returns would leave a member with holes, old bytes, or something made up.
#[test]
fn random_lives_of_a_group() {
    let (mut kills, mut lost_disks, mut bad_blocks, mut rebuilt) = (0, 0, 0, 0);
    for seed in 1..4 {
        let rng = SimRng::seeded(seed);
        let mut life = Life::new(seed);
        for _ in 0..18 {
            match rng.range(0..10) {
                0..=3 => life.write(&rng),
                4..=5 => life.kill(&rng),
                6..=7 => life.come_back(&rng),
                8 => life.bad_block(&rng),
                _ => life.free_row(&rng),
            }
        }
        while life.of(Serving).len() < MEMBERS {
            life.come_back(&rng);
        }
        life.check();
        (kills, lost_disks) = (kills + life.faults.kills, lost_disks + life.faults.lost_disks);
        bad_blocks += life.faults.bad_blocks;
        let count = |i: usize| life.cluster.nodes[i].store().metrics().rebuilt_bytes.load(Relaxed);
        rebuilt += (0..MEMBERS).map(count).sum::<u64>();
    }
    println!("{kills} kills, {lost_disks} lost disks, {bad_blocks} bad blocks, {rebuilt} bytes rebuilt");
    assert!(kills > 5 && lost_disks > 0 && bad_blocks > 0 && rebuilt > 0);
}
