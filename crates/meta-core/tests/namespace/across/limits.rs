//! The limit of a volume of three partitions: what is in use beside an exact count, while messages between the leaders
//! are lost, repeated and delayed, partitions are put back from older copies, and limits change at any moment.
mod leaders;

use super::choose::Rng;
use crate::driver::{config, extent, restore};
use cairn_meta_core::{Amounts, AppliedAt, AtLimit, Namespace, NamespaceConfig, Outcome, TxId};
use cairn_types::{ErrorCode, PartitionId, WallTime};
use cairn_wire::Opcode;
use cairn_wire::common::{Credentials, Empty};
use cairn_wire::error::WireError;
use cairn_wire::meta::*;
use prost::Message;
use std::collections::BTreeMap;

const RANGE: u64 = 1 << 40;
const PARTITIONS: u32 = 3;
const BLOCK: u64 = 4096;

/// One log.
struct Part {
    namespace: Namespace,
    number: u32,
    index: u64,
    /// Where files are made.
    directory: u64,
    files: Vec<String>,
}

/// A partition's state of before: its number, the pages, and the names that it had.
type Kept = (u32, Vec<Vec<u8>>, Vec<String>);

impl Part {
    fn new(number: u32) -> Part {
        let first = (u64::from(number - 1) * RANGE).max(1);
        let inodes = first..=u64::from(number) * RANGE - 1;
        let config = NamespaceConfig { partition: PartitionId(number), inodes, root_mode: 0o777, ..config() };
        let mut part = Part { namespace: Namespace::new(&config), number, index: 0, directory: 1, files: Vec::new() };
        part.apply::<Empty>(Opcode::SetFeatureLevel, &SetFeatureLevel { level: 7 }).expect("known");
        part
    }

    fn apply<A: Message + Default>(&mut self, opcode: Opcode, request: &impl Message) -> Result<A, WireError> {
        self.index += 1;
        let at = AppliedAt { index: self.index, term: 1, time: WallTime(1_000_000 + self.index) };
        let mut out = Vec::new();
        self.namespace.apply(at, opcode, &request.encode_to_vec(), &mut out)?;
        if let Err(violation) = self.namespace.check_invariants() {
            panic!("partition {} after {opcode:?}: {violation}", self.number);
        }
        Ok(A::decode(out.as_slice()).expect("an answer"))
    }

    fn number_of_bound(&self) -> u64 {
        self.namespace.bound().map_or(0, |bound| bound.number)
    }
}

enum Packet {
    /// A partition asks for so much.
    Ask(u32, u64, Amounts, Amounts),
    /// The home tells a bound.
    Tell(VolumeBound),
    /// What a partition has, and uses.
    Has(VolumeBound, Amounts),
}

struct World {
    rng: Rng,
    parts: Vec<Part>,
    packets: Vec<Packet>,
    /// What the home has heard last.
    heard: BTreeMap<u32, (u64, Amounts)>,
    /// For which limit it was told which bound.
    settled: BTreeMap<u32, (Option<u64>, u64)>,
    limits: Amounts,
    made: u64,
    /// Operations that have an inode given out.
    prepared: Vec<(u32, TxPrepare, TxPrepared)>,
    outcomes: BTreeMap<&'static str, u64>,
}

fn told(partition: u32, number: u64, amounts: Amounts) -> VolumeBound {
    VolumeBound { partition, number, bytes: amounts.bytes, inodes: amounts.inodes }
}

fn amounts(bound: VolumeBound) -> Amounts {
    Amounts::new(bound.bytes, bound.inodes)
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            rng: Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678),
            parts: (1..=PARTITIONS).map(Part::new).collect(),
            packets: Vec::new(),
            heard: BTreeMap::new(),
            settled: BTreeMap::new(),
            limits: Amounts::ANY,
            made: 0,
            prepared: Vec::new(),
            outcomes: BTreeMap::new(),
        };
        for number in 2..=PARTITIONS {
            world.prepare(number);
            let directory = world.finish(0, true);
            world.part(number).directory = directory.expect("made");
        }
        world
    }

    fn part(&mut self, number: u32) -> &mut Part {
        &mut self.parts[number as usize - 1]
    }

    fn home(&mut self) -> &mut Part {
        self.part(1)
    }

    fn note(&mut self, what: &'static str) {
        *self.outcomes.entry(what).or_default() += 1;
    }

    fn some_part(&mut self) -> u32 {
        self.rng.below(u64::from(PARTITIONS)) as u32 + 1
    }

    fn other(&mut self) -> u32 {
        self.rng.below(u64::from(PARTITIONS) - 1) as u32 + 2
    }

    /// Of a session of its own.
    fn header(&mut self, at: u32) -> Option<MetaHeader> {
        self.made += 1;
        let who = Some(Credentials::default());
        Some(MetaHeader { volume: 1, partition: at, session: self.made, slot: 0, sequence: 1, who })
    }

    fn total(&self) -> Amounts {
        self.parts.iter().fold(Amounts::NONE, |sum, part| sum.plus(part.namespace.volume_use()))
    }

    /// What is certain at any time, and after something more was used.
    fn check(&mut self, grew: Amounts) {
        let home = &self.parts[0].namespace;
        let others = if home.has_volume_limit() { &self.parts[1..] } else { &[] };
        for part in others {
            let bound = part.namespace.bound().map_or(Amounts::ANY, |bound| bound.max);
            let lent = home.lent_to(part.number).ceiling;
            let has = part.namespace.volume_use().max(bound);
            assert!(lent.covers(has), "p{} has {has:?}, lent is {lent:?}", part.number);
        }
        if home.limit_being_set().is_none() {
            // What was there before may be more than a limit that came later.
            let total = self.total().both(grew, |total, grew| if grew > 0 { total } else { 0 });
            assert!(self.limits.covers(total), "{total:?} of {:?}", self.limits);
        }
    }

    fn create(&mut self, at: u32, blocks: u64, why: Option<AtLimit>) -> Result<(), WireError> {
        let header = self.header(at);
        let (session, index) = (self.made, self.made as u32);
        let extents = if blocks == 0 { Vec::new() } else { vec![extent(0, blocks * BLOCK, index, 0)] };
        let (parent, name) = (self.part(at).directory, format!("f{}", self.made));
        let request = CreateRequest {
            header,
            parent,
            name: name.clone().into(),
            mode: 0o644,
            size: blocks * BLOCK,
            extents,
            written_by: session,
            exclusive: true,
            ..CreateRequest::default()
        };
        let made = match why {
            None => self.part(at).apply::<AttributesResponse>(Opcode::Create, &request),
            Some(why) => {
                let (opcode, request) = (Opcode::Create.code().into(), request.encode_to_vec());
                self.part(at).apply(Opcode::AtLimit, &cairn_wire::meta::AtLimit { opcode, request, why: why.code() })
            }
        };
        made?;
        self.part(at).files.push(name);
        self.check(Amounts::new(blocks, 1));
        Ok(())
    }

    fn unlink(&mut self, at: u32) {
        let header = self.header(at);
        let draw = self.rng.below(1 << 20) as usize;
        let part = self.part(at);
        if part.files.is_empty() {
            return;
        }
        let name = part.files.swap_remove(draw % part.files.len());
        let request = UnlinkRequest { header, parent: part.directory, name: name.into() };
        part.apply::<RemovedResponse>(Opcode::Unlink, &request).expect("it was there");
        self.note("removed");
    }

    /// Has an inode given out for a directory of the home.
    fn prepare(&mut self, at: u32) {
        self.made += 1;
        let tx = Some(TxId { partition: 1, term: 1, number: self.made }.wire());
        let request = TxPrepare { tx, new_inode: true, ..TxPrepare::default() };
        match self.part(at).apply(Opcode::TxPrepare, &request) {
            Ok(prepared) => {
                self.prepared.push((at, request, prepared));
                self.check(Amounts::new(0, 1));
            }
            Err(error) => {
                let needs = Namespace::asks_for(&error).expect("nothing else is in the way");
                assert_eq!(needs, Amounts::new(0, 1));
                self.note("no inode elsewhere");
            }
        }
    }

    fn finish(&mut self, which: usize, does: bool) -> Option<u64> {
        let (at, request, prepared) = self.prepared.swap_remove(which);
        let tx = request.tx;
        let mut effects = None;
        if does {
            let header = self.header(1);
            let name = format!("d{}", self.made).into();
            let mkdir = MkdirRequest { header, parent: 1, name, mode: 0o777, ..MkdirRequest::default() };
            let decide = TxDecide {
                tx,
                opcode: Opcode::Mkdir.code().into(),
                request: mkdir.encode_to_vec(),
                participants: vec![TxParticipant { partition: at, prepared: Some(prepared.clone()), seen: Vec::new() }],
                at_limit: 0,
            };
            // Nothing of it counts at the home, however full that is.
            self.home().apply::<AttributesResponse>(Opcode::TxDecide, &decide).expect("decided");
            let id = TxId::from_wire(tx.expect("named"));
            let Outcome::Done(done) = self.home().namespace.tx_outcome(id, at) else { panic!("it was decided") };
            effects = Some(done);
            self.note("made elsewhere");
        }
        let finish = TxFinish { tx, lock: prepared.lock, effects };
        self.part(at).apply::<Empty>(Opcode::TxFinish, &finish).expect("finished");
        self.check(Amounts::NONE);
        Some(prepared.new_inode)
    }

    fn set_limits(&mut self) {
        let total = self.total();
        let header = self.header(1);
        let pick = |limited: bool, draw: u64| if limited { draw } else { 0 };
        let bytes = pick(self.rng.below(3) > 0, total.bytes * self.rng.below(3) / 2 + self.rng.below(80) * BLOCK + 1);
        let inodes = pick(self.rng.below(3) > 0, total.inodes * self.rng.below(3) / 2 + self.rng.below(40) + 1);
        let request =
            SetQuotaRequest { header, inode: 0, bytes_max: bytes, inodes_max: inodes, remove: bytes + inodes == 0 };
        self.home().apply::<Empty>(Opcode::SetQuota, &request).expect("set");
        let or_any = |max: u64| if max == 0 { u64::MAX } else { max };
        self.limits = Amounts::new(or_any(bytes), or_any(inodes));
        self.note(if request.remove { "limit removed" } else { "limit set" });
    }

    /// What the home's leader does while not all have their bounds.
    fn settle(&mut self) {
        let number = self.home().namespace.limit_being_set();
        let too_much = self.home().namespace.lent_too_much();
        let mut is_due = false;
        for to in 2..=PARTITIONS {
            let known = self.home().namespace.lent_to(to);
            let keep =
                known.ceiling.both(Amounts::NONE, |has, none| if too_much || has == u64::MAX { none } else { has });
            let target = self.home().namespace.within_limits(keep);
            if target == known.ceiling {
                continue;
            }
            if number.is_none() && !self.home().namespace.bounds_to_lift() {
                continue;
            }
            // Told for this limit, and noted: what it has is in use.
            let is_done = self.settled.get(&to) == Some(&(number, known.number)) && known.target == known.ceiling;
            if is_done {
                continue;
            }
            is_due = true;
            let heard = self.heard.get(&to).map_or(0, |heard| heard.0);
            let next = self.home().namespace.next_number(to, heard);
            let lent = self.lend(told(to, next, target));
            self.settled.insert(to, (number, lent.number));
        }
        if let Some(number) = number
            && !is_due
        {
            let note = NoteLimit { number, partitions: (2..=PARTITIONS).collect() };
            self.home().apply::<Empty>(Opcode::NoteLimit, &note).expect("noted");
            if self.home().namespace.limit_being_set().is_none() {
                self.note("limit holds");
            }
        }
    }

    /// A client's request; when it finds no room, its partition asks.
    fn grow(&mut self) {
        let (at, blocks) = (self.some_part(), self.rng.below(9));
        match self.create(at, blocks, None) {
            Ok(()) => self.note("created"),
            Err(error) => {
                let least = Namespace::asks_for(&error).expect("nothing else is in the way");
                assert_eq!(least, Amounts::new(blocks * BLOCK, 1));
                self.note("short");
                if at == 1 {
                    return self.ask_at_home(least);
                }
                let (used, number) = (self.part(at).namespace.volume_use(), self.part(at).number_of_bound());
                self.packets.push(Packet::Ask(at, number, used, least));
            }
        }
    }

    /// A partition is put back from an older copy, as far as no more is in use then than it was lent; the home learns
    /// before it lends.
    fn put_back(&mut self, copies: &mut Vec<Kept>) {
        let at = self.some_part();
        let Some(found) = copies.iter().position(|(of, ..)| *of == at) else {
            let pages: Vec<Vec<u8>> = self.part(at).namespace.snapshot().pages(16 << 10).collect();
            let files = self.part(at).files.clone();
            return copies.push((at, pages, files));
        };
        if !self.prepared.is_empty() {
            return;
        }
        let (_, pages, files) = copies.swap_remove(found);
        let (namespace, lent) = (restore(&pages), self.home().namespace.lent_to(at));
        if at == 1 {
            let limits = self.limits;
            self.home().namespace = namespace;
            self.home().files = files;
            // Clocks went on.
            self.home().index += 1_000;
            self.home().apply::<Empty>(Opcode::SkipInodes, &SkipInodes {}).expect("passed over");
            // The limit is the copy's.
            let max = |quota: &Quota| {
                let or_any = |max: u64| if max == 0 { u64::MAX } else { max };
                Amounts::new(or_any(quota.bytes_max), or_any(quota.inodes_max))
            };
            let request = GetQuotaRequest { header: self.header(1), inode: 0 };
            let mut out = Vec::new();
            let found = self.home().namespace.read(Opcode::GetQuota, &request.encode_to_vec(), &mut out);
            let quota = QuotaResponse::decode(out.as_slice()).expect("an answer").quota;
            self.limits = found.ok().and(quota).map_or(Amounts::ANY, |quota| max(&quota));
            self.note(if limits == self.limits { "home put back" } else { "older limit put back" });
        } else if lent.ceiling.covers(namespace.volume_use()) {
            self.part(at).namespace = namespace;
            self.part(at).files = files;
            if self.home().namespace.has_volume_limit() {
                let number = self.home().namespace.next_number(at, 0);
                let bound = Some(told(at, number, Amounts::NONE));
                self.part(at).apply::<Empty>(Opcode::SetBound, &SetBound { bound }).expect("told");
            }
            self.note("put back");
        }
        self.check(Amounts::NONE);
    }

    fn step(&mut self, copies: &mut Vec<Kept>) {
        match self.rng.below(64) {
            0 => self.set_limits(),
            1..=6 => self.settle(),
            7 => {
                let at = self.some_part();
                let pages: Vec<Vec<u8>> = self.part(at).namespace.snapshot().pages(16 << 10).collect();
                self.part(at).namespace = restore(&pages);
            }
            8 => self.put_back(copies),
            9..=10 => {
                let to = self.other();
                let known = self.home().namespace.lent_to(to);
                if known.number > 0 {
                    self.packets.push(Packet::Tell(told(to, known.number, known.target)));
                }
                self.answer(to);
            }
            11..=12 => {
                let at = self.other();
                self.prepare(at);
            }
            13..=14 if !self.prepared.is_empty() => {
                let (which, does) = (self.rng.below(self.prepared.len() as u64) as usize, self.rng.below(3) > 0);
                self.finish(which, does);
            }
            15..=22 => {
                let at = self.some_part();
                self.unlink(at);
            }
            23..=44 if !self.packets.is_empty() => {
                let which = self.rng.below(self.packets.len() as u64) as usize;
                let packet = self.packets.swap_remove(which);
                match self.rng.below(8) {
                    0 => self.note("lost"),
                    1 => {
                        if let Packet::Tell(bound) = &packet {
                            self.packets.push(Packet::Tell(*bound));
                            self.note("repeated");
                        }
                        self.deliver(packet);
                    }
                    _ => self.deliver(packet),
                }
            }
            _ => self.grow(),
        }
    }

    fn deliver_all(&mut self) {
        while let Some(packet) = self.packets.pop() {
            self.deliver(packet);
        }
    }

    /// What the leaders do when nothing is lost: a request is done, or refused for good.
    fn grow_for_good(&mut self, at: u32, blocks: u64) -> bool {
        for _ in 0..9 {
            let Err(error) = self.create(at, blocks, None) else { return true };
            assert!(Namespace::asks_for(&error).is_some(), "{error}");
            for other in 2..=PARTITIONS {
                self.answer(other);
            }
            self.deliver_all();
            let least = Amounts::new(blocks * BLOCK, 1);
            if at == 1 {
                self.ask_at_home(least);
            } else {
                let (used, number) = (self.part(at).namespace.volume_use(), self.part(at).number_of_bound());
                self.packets.push(Packet::Ask(at, number, used, least));
            }
            self.deliver_all();
        }
        let refused = self.create(at, blocks, Some(AtLimit::UsedUp)).map_err(|error| error.code);
        assert_eq!(refused, Err(ErrorCode::QuotaExceeded));
        false
    }

    /// Everybody hears everything; then the volume is filled from all sides.
    fn fill(&mut self) {
        while !self.prepared.is_empty() {
            self.finish(0, true);
        }
        self.deliver_all();
        self.set_limits();
        for _ in 0..4 {
            for other in 2..=PARTITIONS {
                self.answer(other);
            }
            self.deliver_all();
            self.settle();
            self.deliver_all();
        }
        assert_eq!(self.home().namespace.limit_being_set(), None);
        let (total, limits) = (self.total(), self.limits);
        if !limits.covers(total) {
            for at in 1..=PARTITIONS {
                assert!(!self.grow_for_good(at, 1), "it is used up");
            }
            return self.note("used up");
        }
        let far = |limit: u64, total: u64| limit < u64::MAX && limit - total > 200 * BLOCK;
        if limits == Amounts::ANY || far(limits.bytes, total.bytes) {
            return;
        }
        let (mut refused, mut sizes) = (0, vec![4, 1, 0]);
        while let Some(blocks) = sizes.last().copied() {
            // The last room is found wherever it is.
            let at = self.some_part();
            let fits = limits.covers(self.total().plus(Amounts::new(blocks * BLOCK, 1)));
            assert_eq!(self.grow_for_good(at, blocks), fits, "{:?} of {limits:?}", self.total());
            refused += u32::from(!fits);
            if !fits || (blocks == 0 && limits.inodes == u64::MAX) {
                sizes.pop();
            }
        }
        self.note(if refused > 0 { "filled" } else { "not filled" });
        let from = self.other();
        if self.part(from).files.is_empty() || limits.inodes == u64::MAX {
            return;
        }
        // What goes in one partition makes room in all others.
        self.unlink(from);
        for at in 1..=PARTITIONS {
            if limits.covers(self.total().plus(Amounts::new(0, 1))) {
                assert!(self.grow_for_good(at, 0));
                self.note("room again");
            }
        }
    }
}

/// More would be in the volume than it may have; or it would be refused what there is room for; or counted twice, or
/// for ever.
#[test]
#[expect(clippy::disallowed_methods, reason = "further schedules are asked for by hand")]
fn no_more_is_in_use_than_the_limit_and_all_of_it_can_be() {
    let number = |name, otherwise| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (from, count): (u64, u64) = (number("CAIRN_SEED", 0), number("CAIRN_SEEDS", 300));
    let mut outcomes: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in from..from + count {
        let mut world = World::new(seed);
        let mut copies = Vec::new();
        for _ in 0..500 {
            world.step(&mut copies);
        }
        world.fill();
        for (what, count) in world.outcomes {
            *outcomes.entry(what).or_default() += count;
        }
    }
    if count < 300 {
        return;
    }
    for what in [
        "created",
        "removed",
        "short",
        "lent",
        "recalled",
        "lost",
        "repeated",
        "limit set",
        "limit removed",
        "limit holds",
        "no inode elsewhere",
        "made elsewhere",
        "put back",
        "home put back",
        "older limit put back",
        "used up",
        "filled",
        "room again",
    ] {
        assert!(outcomes.get(what).is_some_and(|count| *count > 10), "{what} is rare: {outcomes:?}");
    }
    println!("{outcomes:?}");
}

/// Of a partition that does not answer nobody knows what is left; and what a new one uses would be beyond the limit.
#[test]
fn a_new_partition_begins_with_nothing_and_a_refusal_says_who_was_not_heard() {
    let mut world = World::new(1);
    let header = world.header(1);
    let request = SetQuotaRequest { header, inode: 0, bytes_max: 0, inodes_max: 100, remove: false };
    world.home().apply::<Empty>(Opcode::SetQuota, &request).expect("set");
    let short = world.create(1, 0, None).expect_err("nobody knows what others have");
    assert!(Namespace::asks_for(&short).is_some());
    world.settle();
    world.deliver_all();
    world.settle();
    assert_eq!(world.home().namespace.limit_being_set(), None);
    world.create(1, 0, None).expect("there is room");
    // One that is made later.
    assert_eq!(world.home().namespace.lent_to(9).ceiling, Amounts::NONE);
    let mut new = Part::new(3);
    new.apply::<Empty>(Opcode::SetBound, &SetBound { bound: Some(told(3, 0, Amounts::NONE)) }).expect("told");
    assert!(new.namespace.lacks_inode() && new.namespace.is_low());
    new.apply::<Empty>(Opcode::SetBound, &SetBound { bound: Some(told(3, 0, Amounts::ANY)) }).expect("known");
    assert!(new.namespace.lacks_inode(), "the same again changes nothing");
    new.apply::<Empty>(Opcode::SetBound, &SetBound { bound: Some(told(3, 1, Amounts::ANY)) }).expect("told");
    assert!(!new.namespace.lacks_inode() && !new.namespace.is_low());
    let home = Opcode::Lend;
    assert!(
        new.apply::<Empty>(home, &Lend::default()).is_err()
            && world
                .home()
                .apply::<Empty>(Opcode::SetBound, &SetBound { bound: Some(told(1, 9, Amounts::NONE)) })
                .is_err()
    );

    let bounds = vec![told(2, world.home().namespace.next_number(2, 0), Amounts::new(u64::MAX, 1000))];
    world.home().apply::<Empty>(Opcode::Lend, &Lend { bounds }).expect("lent");
    assert_eq!(world.home().namespace.volume_room().inodes, 0, "all that was left, and no more");
    for (why, said) in [(AtLimit::UsedUp, "is used up; remove"), (AtLimit::Unreached, "that does not answer")] {
        let refused = world.create(1, 0, Some(why)).expect_err("no room");
        assert!(refused.code == ErrorCode::QuotaExceeded && refused.message.contains(said), "{refused}");
    }
    assert_eq!(amounts(told(1, 2, Amounts::ANY)), Amounts::ANY);
}
