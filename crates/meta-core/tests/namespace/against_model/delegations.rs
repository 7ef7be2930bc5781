//! Directories that clients lead, among random operations: a holder answers at once and stores in batches, under a
//! network that loses, repeats and delays; others ask in between, holders are recalled, or lost with what they had not
//! stored. The model takes an operation where it is answered, so answers and trees have to be the same; what a holder
//! loses is taken out of the model again, from the first item on that the partition has not got.
mod network;
mod steps;

use super::*;
use crate::holder::Holder;
use crate::translate::request_to;
use cairn_model::Attributes;
use cairn_wire::Opcode;

/// A generator of numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// Once in so many times.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// What has happened to the model.
enum Event {
    Operation {
        request: Box<Request>,
        operation: Box<Operation>,
        next_inode: u64,
        deferring: bool,
        /// Delegation, and items that it had before.
        item: Option<(u64, u64)>,
    },
    SessionEnd(u64),
    Reclaim,
}

/// A batch that is under way: session, slot, bytes.
struct Sent {
    session: u64,
    slot: u32,
    number: u64,
    bytes: Vec<u8>,
}

struct World {
    pair: Pair,
    random: Random,
    /// By the number of the delegation; as their clients believe.
    holders: BTreeMap<u64, Holder>,
    recalled: BTreeSet<u64>,
    delayed: Vec<Sent>,
    history: Vec<Event>,
    sequences: BTreeMap<(u64, u32), u64>,
    /// Sessions use Open in this partition.
    deferring: bool,
    /// The next number that nobody was given.
    next_inode: u64,
    counts: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut pair = Pair::new();
        pair.driver.set_feature_level(29);
        let deferring = seed.is_multiple_of(3);
        pair.driver.set_deferral(deferring);
        World {
            pair,
            random: Random(seed),
            holders: BTreeMap::new(),
            recalled: BTreeSet::new(),
            delayed: Vec::new(),
            history: Vec::new(),
            sequences: BTreeMap::new(),
            deferring,
            next_inode: 2,
            counts: BTreeMap::new(),
        }
    }

    fn note(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn sequence(&self, session: u64, slot: u32) -> u64 {
        self.sequences.get(&(session, slot)).copied().unwrap_or(0)
    }

    /// The number that a namespace gives next.
    fn next_of(namespace: &Namespace) -> u64 {
        u64::MAX.wrapping_sub(namespace.inodes_left()).wrapping_add(1)
    }

    /// The model's answer.
    fn model(&mut self, request: Request, operation: Operation, next_inode: u64, item: Option<(u64, u64)>) -> Reply {
        let deferring = self.deferring && item.is_none();
        let (request, operation) = (Box::new(request), Box::new(operation));
        let event = Event::Operation { request, operation, next_inode, deferring, item };
        let reply = happen(&mut self.pair.model, &event);
        self.history.push(event);
        self.next_inode = self.next_inode.max(self.pair.model.next_inode);
        self.pair.model.next_inode = self.next_inode;
        reply.expect("it is an operation")
    }

    /// Takes out of the model what a holder has lost: items from one on.
    fn forget_items(&mut self, number: u64, from: u64) {
        let is_lost = |of: u64, before: u64| of == number && before >= from;
        let lost =
            |event: &Event| matches!(event, Event::Operation { item: Some((of, before)), .. } if is_lost(*of, *before));
        let count = self.history.len();
        self.history.retain(|event| !lost(event));
        if self.history.len() == count {
            return;
        }
        self.note("items lost");
        let mut model = Model::new(0o777, 3, 1_000);
        for event in &self.history {
            happen(&mut model, event);
        }
        model.next_inode = self.next_inode;
        self.pair.model = model;
    }

    /// All that holders have, against the model.
    fn compare_parts(&mut self) {
        for (number, holder) in &mut self.holders {
            while !holder.part.namespace.tidy_own() {}
            holder.part.check();
            let nodes = self.pair.model.nodes.iter().filter(|(inode, _)| holder.covers(**inode));
            let mut count = 0;
            for (inode, node) in nodes {
                count += 1;
                let found = holder.part.getattr(*inode).map(|found| crate::translate::attributes(&found));
                let expected: Result<Attributes, ErrorCode> = Ok(self.pair.model.attributes(*inode));
                assert_eq!(found, expected, "inode {inode} at the holder of {number}");
                let names: Vec<String> = node.xattrs.keys().map(|n| String::from_utf8_lossy(n).into_owned()).collect();
                assert_eq!(holder.part.list_xattr(*inode).unwrap(), names);
                if node.is_directory() && self.pair.model.links(*inode) > 0 {
                    let listed = holder.part.readdir(*inode).unwrap();
                    let entries: Vec<(Vec<u8>, u64)> = listed.into_iter().map(|e| (e.name, e.inode)).collect();
                    assert_eq!(entries, node.entries().into_iter().collect::<Vec<_>>(), "entries of {inode}");
                } else if node.is_file() {
                    let extents = crate::translate::joined(&holder.part.extents(*inode).unwrap());
                    assert_eq!(extents, crate::translate::extents(&node.pieces()), "extents of {inode}");
                }
            }
            assert_eq!(holder.part.statfs().inodes, count, "the holder of {number} has what it made, and nothing else");
        }
    }
}

fn happen(model: &mut Model, event: &Event) -> Option<Reply> {
    match event {
        Event::Operation { request, operation, next_inode, deferring, .. } => {
            (model.next_inode, model.deferring) = (*next_inode, *deferring);
            return Some(model.apply(request, operation));
        }
        Event::SessionEnd(session) => model.end_session(*session),
        Event::Reclaim => model.reclaim_deferred(),
    }
    None
}

fn run(seed: u64, steps: u32) -> BTreeMap<&'static str, u64> {
    println!("seed {seed}");
    let mut world = World::new(seed);
    for step in 0..steps {
        world.step();
        world.pair.driver.check();
        if step % 8 == 0 {
            world.compare_parts();
        }
    }
    world.settle();
    world.pair.compare(&world.pair.driver.namespace);
    let replicas = [(), ()].map(|()| {
        let mut replica = Namespace::new(&open_config());
        replay(&mut replica, &world.pair.driver.log, "the whole log");
        replica
    });
    world.pair.compare(&replicas[0]);
    let bytes = |n: &Namespace| n.snapshot().pages(9000).collect::<Vec<_>>();
    assert_eq!(bytes(&replicas[0]), bytes(&replicas[1]), "two replicas write the same checkpoint");
    world.counts
}

/// A holder and its partition would have different trees, each sure of its own; others would see what is half done;
/// what was stored would come twice, or what was lost come back.
#[test]
fn holders_and_model_agree() {
    let (from, count) = crate::across::seeds(60);
    let mut outcomes = BTreeMap::<_, u64>::new();
    for seed in from..from + count {
        for (what, times) in run(seed, 400) {
            *outcomes.entry(what).or_default() += times;
        }
    }
    if count < 60 {
        return;
    }
    for what in [
        "led",
        "item",
        "refused by its holder",
        "not for the holder",
        "waits for a holder",
        "own directory recalled",
        "answer lost",
        "batch late",
        "gap",
        "overlap",
        "more numbers",
        "told again",
        "items lost",
        "fenced",
        "ended by its holder",
        "ended in bulk",
        "ended with its top",
        "restart",
        "looked at by others",
    ] {
        assert!(outcomes.get(what).is_some_and(|count| *count > 2), "{what} is rare: {outcomes:?}");
    }
}
