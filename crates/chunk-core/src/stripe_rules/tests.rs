//! The rules by themselves, and a stripe group with everything that can meet: frees that arrive late, overwrites that
//! reached some members, disks that are replaced or come back older, two encoders that do not know of each other.
use super::*;
use crate::stripe_plan::{ColumnChunk, StripePlan, match_by_length};
use cairn_erasure::{Codec, ShardSet};
use cairn_types::crc32c;
use std::collections::{BTreeMap, BTreeSet};

const K: usize = 3;
const M: usize = 2;
const COPIES: usize = 3;
/// The copy of each column that is in the core rack, and the one that stays.
const CORE: usize = 0;
const SURVIVOR: usize = 1;
const CHUNKS: u32 = 3;
/// The longest chunk.
const BLOCKS: usize = 4;

/// Parity would be of bytes that are gone a moment later, or of another plan.
#[test]
fn each_rule_by_itself() {
    use StripeRefusal::*;
    let mut disk = StripeMember::default();
    let plan = |attempt, digest| PlanMark { attempt, digest };
    assert_eq!((disk.takes_writes(), disk.freed()), (true, Freed::Punched));
    assert_eq!((disk.settle(1), disk.take_plan(plan(1, 7))), (Err(NotFrozen), Err(NotFrozen)));
    disk.freeze();
    assert_eq!((disk.takes_writes(), disk.freed()), (false, Freed::Dead));
    assert_eq!(disk.vouch(plan(1, 7), true), Err(NoPlan));
    assert_eq!((disk.settle(2), disk.settle(1)), (Ok(()), Err(Superseded { newest: 2 })));
    assert_eq!(disk.take_plan(plan(1, 7)), Err(Superseded { newest: 2 }));
    assert_eq!((disk.take_plan(plan(2, 7)), disk.take_plan(plan(2, 7))), (Ok(()), Ok(())), "it may be told twice");
    assert_eq!((disk.take_plan(plan(2, 8)), disk.settle(2)), (Err(OtherPlan), Err(Planned)));
    assert_eq!((disk.vouch(plan(2, 7), true), disk.vouch(plan(2, 7), false)), (Ok(()), Err(Differs)));
    assert_eq!(disk.vouch(plan(2, 8), true), Err(NoPlan));
    assert_eq!((disk.settle(3), disk.vouch(plan(2, 7), true)), (Ok(()), Err(Superseded { newest: 3 })));
    assert_eq!((disk.take_plan(plan(3, 8)), disk.vouch(plan(3, 8), true)), (Ok(()), Ok(())));
    assert!(!disk.takes_writes(), "it is never thawed");
}

/// A copy would be taken for equal that is not, or two that are for different because of what is freed in both.
#[test]
fn contents_are_compared_but_for_what_is_punched() {
    let crcs = [1, 2, 3];
    let all = content_of(&crcs, |_| false);
    let second = content_of(&crcs, |block| block == 1);
    assert_eq!(second, content_of(&[1, 99, 3], |block| block == 1));
    let others = [
        all,
        second,
        content_of(&crcs, |block| block == 2),
        content_of(&crcs[..2], |_| false),
        content_of(&[1, 2, 4], |_| false),
    ];
    assert_eq!(others.iter().collect::<BTreeSet<_>>().len(), others.len());
}

/// A block is a byte here.
#[derive(Clone, Default)]
struct Chunk {
    bytes: Vec<u8>,
    punched: Vec<bool>,
    dead: Vec<bool>,
}

impl Chunk {
    fn content(&self) -> u32 {
        let crcs: Vec<u32> = self.bytes.iter().map(|byte| crc32c(&[*byte])).collect();
        content_of(&crcs, |block| self.punched[block])
    }
    fn punch(&mut self, block: usize) {
        // What is there then is nobody's.
        (self.bytes[block], self.punched[block]) = (0xee, true);
    }
    /// What encoding and decoding take it for, filled up with zeros.
    fn padded(&self, blocks: usize) -> Vec<u8> {
        let byte = |block: usize| if self.punched.get(block) == Some(&false) { self.bytes[block] } else { 0 };
        (0..blocks).map(byte).collect()
    }
}

#[derive(Clone, Default)]
struct Disk {
    rules: StripeMember,
    chunks: BTreeMap<u32, Chunk>,
}

/// What was asked of a member and has not reached it.
enum Message {
    Free(usize, usize, u32, usize),
    Overwrite { at: (usize, u32, usize), copy: usize, byte: u8, number: usize },
}

/// What an encoder does next, and what it knows.
#[derive(Default)]
struct Encoder {
    step: usize,
    attempt: u64,
    union: BTreeMap<(usize, u32), BTreeSet<usize>>,
    plan: Option<StripePlan>,
    starts: BTreeMap<usize, u64>,
}

struct Random(u64);
impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound as u64) as usize
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

struct World {
    random: Random,
    /// By column, then copy.
    disks: Vec<Vec<Disk>>,
    /// As some of them were earlier.
    earlier: BTreeMap<(usize, usize), Disk>,
    parity_rules: Vec<StripeMember>,
    parity: Vec<BTreeMap<(u64, usize), Vec<u8>>>,
    /// Bytes that may be read, by the numbers of their overwrites: several where one was not acknowledged.
    truth: BTreeMap<(usize, u32, usize), BTreeMap<usize, u8>>,
    messages: Vec<Message>,
    overwrites: usize,
    applied: BTreeMap<usize, usize>,
    /// The manager's: frozen, the newest attempt, the plan that was committed, starts of disks.
    frozen: bool,
    attempt: u64,
    committed: Option<(StripePlan, u64)>,
    starts: BTreeMap<(usize, usize), u64>,
    encoders: Vec<Encoder>,
    counts: BTreeMap<&'static str, usize>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            random: Random(seed),
            disks: vec![vec![Disk::default(); COPIES]; K],
            earlier: BTreeMap::new(),
            parity_rules: vec![StripeMember::default(); M],
            parity: vec![BTreeMap::new(); M],
            truth: BTreeMap::new(),
            messages: Vec::new(),
            overwrites: 1,
            applied: BTreeMap::new(),
            frozen: false,
            attempt: 0,
            committed: None,
            starts: BTreeMap::new(),
            encoders: vec![Encoder::default(), Encoder::default()],
            counts: BTreeMap::new(),
        };
        for column in 0..K {
            for index in 0..CHUNKS {
                let blocks = BLOCKS - 1 + world.random.below(2);
                let bytes: Vec<u8> = (0..blocks).map(|_| 1 + world.random.below(200) as u8).collect();
                let chunk = Chunk { punched: vec![false; blocks], dead: vec![false; blocks], bytes };
                for (block, byte) in chunk.bytes.iter().enumerate() {
                    world.truth.insert((column, index, block), [(0, *byte)].into());
                }
                world.disks[column].iter_mut().for_each(|disk| drop(disk.chunks.insert(index, chunk.clone())));
            }
        }
        world
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0 if self.messages.len() < 30 => self.ask(),
            1..=3 if !self.messages.is_empty() => self.deliver(),
            4 if self.random.one_in(3) => self.frozen = true,
            5 if self.frozen => self.tell_freeze(),
            6 => self.fault(),
            7..=11 if self.frozen => {
                let who = self.random.below(2);
                let encoder = std::mem::take(&mut self.encoders[who]);
                let next = self.encode(encoder).unwrap_or_default();
                self.encoders[who] = next;
            }
            _ => {}
        }
    }

    /// A client frees or overwrites a block: each member hears of it some time.
    fn ask(&mut self) {
        let (column, index, block) =
            (self.random.below(K), self.random.below(CHUNKS as usize) as u32, self.random.below(3));
        let Some(allowed) = self.truth.get_mut(&(column, index, block)) else { return };
        if self.random.one_in(6) {
            self.truth.remove(&(column, index, block));
            self.messages.extend((0..COPIES).map(|copy| Message::Free(column, copy, index, block)));
        } else {
            let (byte, number) = (1 + self.random.below(200) as u8, self.overwrites);
            allowed.insert(number, byte);
            self.overwrites += 1;
            let at = (column, index, block);
            self.messages.extend((0..COPIES).map(|copy| Message::Overwrite { at, copy, byte, number }));
        }
    }

    fn deliver(&mut self) {
        let at = self.random.below(self.messages.len());
        match self.messages.swap_remove(at) {
            Message::Free(column, copy, index, block) => {
                let disk = &mut self.disks[column][copy];
                let freed = disk.rules.freed();
                let Some(chunk) = disk.chunks.get_mut(&index) else { return };
                match freed {
                    Freed::Punched => chunk.punch(block),
                    Freed::Dead => chunk.dead[block] = true,
                }
                self.count(if freed == Freed::Dead { "late free" } else { "free" });
            }
            Message::Overwrite { at, copy, byte, number } => {
                let (column, index, block) = at;
                // One after the other, as the chunk's primary has it.
                let earlier = |message: &Message| matches!(message, Message::Overwrite { number: n, at: a, .. } if *n < number && *a == at);
                let disk = &mut self.disks[column][copy];
                if !disk.rules.takes_writes() || self.messages.iter().any(earlier) {
                    return self.count("overwrite refused");
                }
                let Some(chunk) = disk.chunks.get_mut(&index).filter(|chunk| !chunk.punched[block]) else { return };
                chunk.bytes[block] = byte;
                let applied = self.applied.entry(number).or_default();
                *applied += 1;
                if *applied == COPIES
                    && let Some(allowed) = self.truth.get_mut(&at)
                {
                    allowed.retain(|later, _| *later >= number);
                }
            }
        }
    }

    /// A member learns of the freeze; with the last one of a column, what overwrites left different is made equal.
    fn tell_freeze(&mut self) {
        let (column, copy) = (self.random.below(K), self.random.below(COPIES));
        self.parity_rules.iter_mut().for_each(StripeMember::freeze);
        self.disks[column][copy].rules.freeze();
        self.settle_overwrites(column);
    }

    fn settle_overwrites(&mut self, column: usize) {
        if self.committed.is_none() && self.disks[column].iter().all(|disk| !disk.rules.takes_writes()) {
            let first = self.disks[column][CORE].clone();
            self.disks[column].iter_mut().skip(1).for_each(|disk| align(disk, &first));
        }
    }

    /// A disk is lost and filled from another one, or comes back as it was earlier.
    fn fault(&mut self) {
        let (column, copy) = (self.random.below(K), self.random.below(COPIES));
        // After the commit there is one copy of each.
        if self.committed.is_some() || !self.random.one_in(2) {
            return;
        }
        match self.random.below(3) {
            0 => {
                self.earlier.insert((column, copy), self.disks[column][copy].clone());
                return;
            }
            1 => {
                let other = (copy + 1 + self.random.below(COPIES - 1)) % COPIES;
                // It may come back.
                self.earlier.insert((column, copy), self.disks[column][copy].clone());
                self.disks[column][copy] = Disk { rules: StripeMember::default(), ..self.disks[column][other].clone() };
                self.count("replaced");
            }
            _ => {
                let Some(earlier) = self.earlier.remove(&(column, copy)) else { return };
                let other = self.disks[column][(copy + 1) % COPIES].clone();
                self.disks[column][copy] = earlier;
                align(&mut self.disks[column][copy], &other);
                self.count("came back older");
            }
        }
        // It is told before it serves.
        if self.frozen {
            self.disks[column][copy].rules.freeze();
            self.settle_overwrites(column);
        }
        // Under the epoch of before nobody writes any more.
        self.messages.retain(|message| !matches!(message, Message::Overwrite { at, .. } if at.0 == column));
        *self.starts.entry((column, copy)).or_default() += 1;
    }

    /// One step; `None`: it was refused, and begins anew some time.
    fn encode(&mut self, mut encoder: Encoder) -> Option<Encoder> {
        let members = K * COPIES;
        let step = encoder.step;
        encoder.step += 1;
        match step {
            0 => {
                if self.committed.is_some() {
                    return None;
                }
                // Another one took over, or somebody thinks so.
                if self.attempt == 0 || self.random.one_in(3) {
                    self.attempt += 1;
                }
                encoder.attempt = self.attempt;
            }
            n if n <= members => {
                let (column, copy) = ((n - 1) / COPIES, (n - 1) % COPIES);
                let disk = &self.disks[column][copy];
                if disk.rules.takes_writes() {
                    return None;
                }
                for (index, chunk) in &disk.chunks {
                    let punched =
                        chunk.punched.iter().enumerate().filter(|(_, punched)| **punched).map(|(block, _)| block);
                    encoder.union.entry((column, *index)).or_default().extend(punched);
                }
            }
            n if n <= 2 * members => {
                let (column, copy) = ((n - members - 1) / COPIES, (n - members - 1) % COPIES);
                let disk = &mut self.disks[column][copy];
                disk.rules.settle(encoder.attempt).ok()?;
                let mut settled = false;
                for (index, chunk) in &mut disk.chunks {
                    for block in encoder.union.get(&(column, *index)).into_iter().flatten() {
                        settled |= !chunk.punched[*block];
                        chunk.punch(*block);
                    }
                }
                if settled {
                    self.count("settled");
                }
            }
            n if n == 2 * members + 1 => encoder.plan = Some(self.plan()?),
            n if n <= 2 * members + 1 + K + M => {
                let shard = n - 2 * members - 2;
                let mark = PlanMark { attempt: encoder.attempt, digest: encoder.plan.as_ref()?.digest() };
                self.rules_of(shard).take_plan(mark).ok()?;
            }
            n if n <= 2 * members + 1 + K + M + CHUNKS as usize => {
                self.encode_stripe(encoder.plan.as_ref()?, n - 2 * members - 2 - K - M)?;
            }
            n if n <= 2 * members + 1 + 2 * (K + M) + CHUNKS as usize => {
                let shard = n - 2 * members - 2 - K - M - CHUNKS as usize;
                self.vouch(&mut encoder, shard)?;
            }
            _ => return self.commit(&encoder),
        }
        Some(encoder)
    }

    fn rules_of(&mut self, shard: usize) -> &mut StripeMember {
        match shard.checked_sub(K) {
            None => &mut self.disks[shard][SURVIVOR].rules,
            Some(parity) => &mut self.parity_rules[parity],
        }
    }

    /// By what the core members have.
    fn plan(&mut self) -> Option<StripePlan> {
        let chunk = |(index, chunk): (&u32, &Chunk)| {
            let dead = chunk.dead.iter().zip(&chunk.punched).filter(|(dead, punched)| **dead || **punched).count();
            let (blocks, content) = (chunk.bytes.len() as u32, chunk.content());
            ColumnChunk { index: *index, blocks, dead: dead as u32, content }
        };
        let columns: Vec<Vec<ColumnChunk>> =
            self.disks.iter().map(|column| column[CORE].chunks.iter().map(chunk).collect()).collect();
        let plan = match_by_length(&columns, M as u8).plan;
        (!plan.stripes.is_empty()).then_some(plan)
    }

    fn encode_stripe(&mut self, plan: &StripePlan, at: usize) -> Option<()> {
        let Some(stripe) = plan.stripes.get(at) else { return Some(()) };
        let blocks = stripe.parity_blocks() as usize;
        let mut data = Vec::new();
        for (column, part) in stripe.parts.iter().enumerate() {
            data.push(match part {
                None => vec![0; blocks],
                Some(part) => {
                    let chunk = self.disks[column][CORE].chunks.get(&part.index)?;
                    if chunk.content() != part.content {
                        return None;
                    }
                    chunk.padded(blocks)
                }
            });
        }
        let mut parity = vec![vec![0; blocks]; M];
        Codec::new(K, M).expect("a code").encode(&data, &mut parity).expect("equal lengths");
        for (kept, bytes) in self.parity.iter_mut().zip(parity) {
            kept.insert((plan.digest(), at), bytes);
        }
        Some(())
    }

    fn vouch(&mut self, encoder: &mut Encoder, shard: usize) -> Option<()> {
        let plan = encoder.plan.as_ref()?;
        let mark = PlanMark { attempt: encoder.attempt, digest: plan.digest() };
        let holds = match shard.checked_sub(K) {
            None => {
                let chunks = &self.disks[shard][SURVIVOR].chunks;
                plan.of_column(shard)
                    .all(|(_, part)| chunks.get(&part.index).is_some_and(|c| c.content() == part.content))
            }
            Some(parity) => (0..plan.stripes.len()).all(|at| self.parity[parity].contains_key(&(mark.digest, at))),
        };
        if !holds {
            self.count("differs");
        }
        self.rules_of(shard).vouch(mark, holds).ok()?;
        if shard < K {
            encoder.starts.insert(shard, self.starts.get(&(shard, SURVIVOR)).copied().unwrap_or(0));
        }
        Some(())
    }

    /// The manager's entry.
    fn commit(&mut self, encoder: &Encoder) -> Option<Encoder> {
        let present = |shard: &usize| self.starts.get(&(*shard, SURVIVOR)).copied().unwrap_or(0);
        if encoder.attempt != self.attempt || encoder.starts.iter().any(|(shard, start)| present(shard) != *start) {
            self.count("void commit");
            return None;
        }
        if self.committed.is_none() {
            let plan = encoder.plan.clone()?;
            // Surplus copies go, those of chunks that are not encoded stay.
            for (column, disks) in self.disks.iter_mut().enumerate() {
                for (_, disk) in disks.iter_mut().enumerate().filter(|(copy, _)| *copy != SURVIVOR) {
                    disk.chunks.retain(|index, _| plan.stripe_of(column, *index).is_none());
                }
            }
            let digest = plan.digest();
            self.committed = Some((plan, digest));
        }
        None
    }

    /// Whatever two shards are lost: every byte that somebody may read is one that was written.
    fn check(&self) {
        let allowed = |column: usize, index: u32, bytes: &dyn Fn(usize) -> u8, what: &str| {
            for block in 0..BLOCKS {
                if let Some(allowed) = self.truth.get(&(column, index, block)) {
                    let byte = bytes(block);
                    assert!(
                        allowed.values().any(|known| *known == byte),
                        "{what}: column {column}, chunk {index}, block {block}: {byte}, not {allowed:?}"
                    );
                }
            }
        };
        let Some((plan, digest)) = &self.committed else {
            for (column, disks) in self.disks.iter().enumerate() {
                for (index, chunk) in disks.iter().flat_map(|disk| &disk.chunks) {
                    allowed(column, *index, &|block| chunk.bytes[block], "a copy");
                }
            }
            return;
        };
        let codec = Codec::new(K, M).expect("a code");
        for (at, stripe) in plan.stripes.iter().enumerate() {
            let blocks = stripe.parity_blocks() as usize;
            let shard = |shard: usize| match shard.checked_sub(K) {
                Some(parity) => self.parity[parity][&(*digest, at)].clone(),
                None => match stripe.parts[shard] {
                    Some(part) => self.disks[shard][SURVIVOR].chunks[&part.index].padded(blocks),
                    None => vec![0; blocks],
                },
            };
            for (column, part) in stripe.parts.iter().enumerate() {
                let bytes = shard(column);
                part.iter().for_each(|part| allowed(column, part.index, &|block| bytes[block], "a survivor"));
            }
            for bits in (0u32..1 << (K + M)).filter(|bits| bits.count_ones() as usize == K) {
                let lost: Vec<usize> = (0..K).filter(|shard| bits & 1 << shard == 0).collect();
                if lost.is_empty() {
                    continue;
                }
                let decode = codec.decode_plan(ShardSet::from_bits(bits), &lost).expect("k of them are there");
                let sources: Vec<Vec<u8>> = decode.sources().iter().map(|source| shard(*source)).collect();
                let mut found = vec![vec![0; blocks]; lost.len()];
                decode.run(&sources, &mut found).expect("equal lengths");
                for (column, bytes) in lost.iter().zip(&found) {
                    let Some(part) = stripe.parts[*column] else { continue };
                    allowed(*column, part.index, &|block| bytes[block], "decoded");
                }
            }
        }
    }
}

/// What is different, and there, is as the other has it; what the other has punched is not punched here: it is frozen.
fn align(disk: &mut Disk, other: &Disk) {
    for (index, theirs) in &other.chunks {
        let ours = disk.chunks.entry(*index).or_insert_with(|| theirs.clone());
        for block in 0..theirs.bytes.len() {
            if !theirs.punched[block] && !ours.punched[block] {
                ours.bytes[block] = theirs.bytes[block];
            }
        }
    }
}

/// Bytes would be lost or come back wrong after a group was encoded: parity of blocks that survivors have punched, of
/// writes that came after, or of another plan.
#[test]
fn whatever_meets_every_byte_can_be_read() {
    let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
    let mut committed = 0;
    for seed in 0..2_000 {
        let mut world = World::new(seed);
        for step in 0..2_500 {
            let before = world.committed.is_some();
            world.step();
            if step % 100 == 99 || world.committed.is_some() != before {
                world.check();
            }
        }
        committed += usize::from(world.committed.is_some());
        world.counts.into_iter().for_each(|(what, count)| *counts.entry(what).or_default() += count);
    }
    for what in
        ["late free", "free", "overwrite refused", "replaced", "came back older", "settled", "differs", "void commit"]
    {
        assert!(counts.contains_key(what), "{what} never happened: {counts:?}");
    }
    assert!(committed > 1000, "only {committed} groups were encoded: {counts:?}");
}
