//! Random operations of several users and sessions on the core and on the model: the same answers, the same tree, after
//! restarts from a checkpoint and repeats, too.
use crate::driver::{Driver, Logged, ROOT, config, restore};
use crate::translate::{reply, request};
use cairn_meta_core::{Namespace, NamespaceConfig, SessionState};
use cairn_model::{
    ACCESS, AclEntry, Caller, Create, DEFAULT, LOCK_BYTES, Model, Operation, Piece, Publish, Punch, Reply, Request,
    SetLock, Setattr, acl_bytes,
};
use cairn_types::ErrorCode;
use cairn_wire::common::Credentials;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A choice of numbers; what they mean depends on the state when they are used.
#[derive(Clone, Debug)]
struct Step {
    kind: u8,
    who: u8,
    session: u8,
    numbers: [u32; 6],
}

fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (any::<u8>(), any::<u8>(), any::<u8>(), any::<[u32; 6]>())
        .prop_map(|(kind, who, session, numbers)| Step { kind, who, session, numbers });
    prop::collection::vec(step, 1..count)
}

/// The core and the model side by side.
struct Pair {
    driver: Driver,
    model: Model,
    /// Present session id of each of three clients.
    sessions: [u64; 3],
    next_session: u64,
    next_chunk: u32,
    /// Last mutation of each slot, for repeats.
    last: BTreeMap<(u64, u32), (Request, Operation, Reply)>,
    done_frees: BTreeSet<(u32, u32, u64)>,
    /// A checkpoint and how much of the log it has.
    checkpoint: (Vec<Vec<u8>>, usize),
    /// How often an operation came out how.
    outcomes: BTreeMap<(&'static str, &'static str), u64>,
}

const TIMES: [u64; 3] = [0, 5, 1 << 62];

/// A root directory where everybody may make entries.
fn open_config() -> NamespaceConfig {
    NamespaceConfig { root_mode: 0o777, ..config() }
}

impl Pair {
    fn new() -> Self {
        let driver = Driver::on(Namespace::new(&open_config()));
        let checkpoint = (driver.pages(), 0);
        Pair {
            driver,
            model: Model::new(0o777, 3, 1_000),
            sessions: [1, 2, 3],
            next_session: 4,
            next_chunk: 1,
            last: BTreeMap::new(),
            done_frees: BTreeSet::new(),
            checkpoint,
            outcomes: BTreeMap::new(),
        }
    }

    fn caller(&self, who: u8) -> Caller {
        match who % 8 {
            0..=3 => Caller { uid: 0, gid: 0, groups: vec![] },
            4 | 5 => Caller { uid: 1000, gid: 1000, groups: vec![2000] },
            6 => Caller { uid: 1001, gid: 1001, groups: vec![1000, 2000] },
            _ => Caller { uid: 1002, gid: 1002, groups: vec![] },
        }
    }

    /// Mostly a directory that is there.
    fn directory(&self, number: u32) -> u64 {
        let all: Vec<u64> = self.model.nodes.iter().filter(|(_, n)| n.is_directory()).map(|(i, _)| *i).collect();
        match number % 16 {
            15 => self.any_inode(number / 16),
            _ => all[(number / 16) as usize % all.len()],
        }
    }

    /// Mostly an entry that is there.
    fn entry(&self, directory: u32, name: u32) -> (u64, Vec<u8>) {
        let nodes = self.model.nodes.iter();
        let all: Vec<(u64, Vec<u8>)> =
            nodes.flat_map(|(inode, node)| node.entries().into_keys().map(|name| (*inode, name))).collect();
        if directory % 8 == 7 || all.is_empty() {
            return (self.directory(directory / 8), self.name(name));
        }
        all[(directory / 8) as usize % all.len()].clone()
    }

    /// An inode that was given at some time, or the next one.
    fn any_inode(&self, number: u32) -> u64 {
        u64::from(number) % (self.model.next_inode + 1)
    }

    fn file(&self, number: u32) -> u64 {
        let all: Vec<u64> = self.model.nodes.iter().filter(|(_, n)| n.is_file()).map(|(i, _)| *i).collect();
        match number % 16 {
            15 => self.any_inode(number / 16),
            _ if all.is_empty() => 1,
            _ => all[(number / 16) as usize % all.len()],
        }
    }

    fn name(&self, number: u32) -> Vec<u8> {
        match number % 64 {
            60 => b"..".to_vec(),
            61 => b"a/b".to_vec(),
            62 => vec![b'n'; 256],
            63 => vec![0xff; 255],
            n => vec![b'a' + (n % 6) as u8],
        }
    }

    fn mode(&self, number: u32) -> u32 {
        [
            0o755, 0o777, 0o644, 0o700, 0o1777, 0o2775, 0o4755, 0o6711, 0o000, 0o2664, 0o070, 0o111, 0o777, 0o777,
            0o1777, 0o666,
        ][number as usize % 16]
    }

    fn umask(&self, number: u32) -> u32 {
        [0, 0o022, 0o077, 0o7002][number as usize % 4]
    }

    /// A list that mostly can be set.
    fn acl(&self, n: &[u32; 6]) -> Vec<u8> {
        let perm = |shift: u32| (n[3] >> shift & 7) as u16;
        let mut list = vec![(1, perm(0), u32::MAX), (4, perm(3), 7), (32, perm(6), u32::MAX)];
        if n[4].is_multiple_of(2) {
            list.push((16, perm(9) | 4, u32::MAX));
            list.push((2, perm(12), 1000 + n[4] / 2 % 3));
            list.push((8, perm(15), [1000, 2000, 1002][n[4] as usize / 8 % 3]));
            list.push((2, perm(18), 1001));
        }
        list.sort_by_key(|entry: &AclEntry| entry.0);
        match n[5] % 32 {
            0 => list.clear(),
            1 => list.retain(|entry| entry.0 != 16),
            2 => list.reverse(),
            3 => list[0].1 = 9,
            _ => {}
        }
        let mut bytes = acl_bytes(&list);
        match n[5] % 64 {
            4 => bytes.clear(),
            5 => bytes[0] = 1,
            6 => bytes.truncate(bytes.len() - 1),
            _ => {}
        }
        bytes
    }

    fn layout(&self, number: u32) -> u64 {
        if number % 32 == 31 { 999_999 } else { u64::from(number.is_multiple_of(3)) * 2 }
    }

    /// Pieces of a file that a well-behaved writer could publish, and a few that it could not.
    fn pieces(&mut self, inode: u64, numbers: &[u32]) -> Vec<Piece> {
        let count = 1 + numbers[0] % 3;
        (0..count)
            .filter_map(|i| self.piece(inode, numbers[1].rotate_left(11 * i), numbers[2].rotate_left(7 * i)))
            .collect()
    }

    fn piece(&mut self, inode: u64, number: u32, other: u32) -> Option<Piece> {
        let unit = [1, 100, 4096, 1000][(number % 4) as usize];
        let file_offset = u64::from(number / 4 % 13) * unit;
        let length = if other % 64 == 63 { 0 } else { [1, 50, 4096, 5000, 12288][(other % 16 % 5) as usize] };
        let old = self.model.nodes.get(&inode).map(|n| n.pieces()).unwrap_or_default();
        let fresh =
            Piece { file_offset, length, pg: 1 + other % 2, index: self.next_chunk, chunk_offset: file_offset % 4096 };
        self.next_chunk += 1;
        match (other / 16 % 8, old.first(), old.last()) {
            // What is there, again.
            (0, Some(first), _) => Some(*first),
            // Going on in the same chunk, if the block at its end is not given back yet.
            (1 | 2, _, Some(last)) => {
                let next = Piece {
                    file_offset: last.end(),
                    length: length.max(1),
                    chunk_offset: last.chunk_offset + last.length,
                    ..*last
                };
                let clean = (0..next.length.div_ceil(4096) + 1)
                    .all(|i| !self.model.free.contains(&(next.pg, next.index, next.chunk_offset / 4096 + i)));
                (clean && !self.is_used_elsewhere(&next)).then_some(next)
            }
            // Another part of the file in the free rest of a block of the same chunk.
            (3, Some(first), _) if first.length < 3000 && first.chunk_offset % 4096 < 1000 => {
                let inside = first.chunk_offset % 4096 + first.length;
                let next = Piece {
                    file_offset: 5 * 4096 + inside,
                    length: 20,
                    chunk_offset: first.chunk_offset + first.length,
                    ..*first
                };
                let clean = !self.model.free.contains(&(next.pg, next.index, next.chunk_offset / 4096));
                (clean && !self.is_used_elsewhere(&next)).then_some(next)
            }
            (4, _, _) if other & 0xf000 == 0 => Some(Piece { chunk_offset: fresh.chunk_offset + 1, ..fresh }),
            _ => Some(fresh),
        }
    }

    /// The bytes of a chunk belong to one place of one file.
    fn is_used_elsewhere(&self, piece: &Piece) -> bool {
        let range = piece.chunk_offset..piece.chunk_offset + piece.length;
        self.model
            .nodes
            .values()
            .flat_map(|n| n.bytes().iter().flatten().copied().collect::<Vec<_>>())
            .any(|(pg, index, offset)| (pg, index) == (piece.pg, piece.index) && range.contains(&offset))
    }

    fn operation(&mut self, step: &Step, session: u64) -> Operation {
        let n = step.numbers;
        // Now and then what another session wrote, one that ended among them, or nobody says who.
        let written_by =
            if (step.session / 3).is_multiple_of(16) { u64::from(step.who) % self.next_session } else { session };
        let (parent, name) = (self.directory(n[0]), self.name(n[1]));
        match step.kind % 51 {
            0..=4 => {
                let (mode, layout) = (self.mode(n[2]), self.layout(n[3]));
                Operation::Mkdir { parent, name, mode, layout, umask: self.umask(n[4]) }
            }
            5..=9 => Operation::Create(Create { written_by, ..self.create(parent, name, &n) }),
            10 => Operation::Symlink { parent, name, target: vec![b't'; (n[2] % 4) as usize] },
            11 => Operation::CreateUnnamed { parent, mode: self.mode(n[2]), layout: 0, umask: self.umask(n[4]) },
            12..=14 => {
                let inode = if n[2].is_multiple_of(4) { self.any_inode(n[3]) } else { self.file(n[3]) };
                Operation::Link { inode, parent, name, replace: n[4].is_multiple_of(3) }
            }
            15..=19 => {
                let (parent, name) = self.entry(n[0], n[1]);
                match step.kind % 5 {
                    0..=2 => Operation::Unlink { parent, name },
                    3 => Operation::Rmdir { parent, name },
                    _ => Operation::RemoveTree { parent, name },
                }
            }
            20..=24 => {
                let (parent, name) = self.entry(n[0], n[1]);
                let (new_parent, new_name) = match n[5] % 4 {
                    0 => self.entry(n[2], n[3]),
                    _ => (self.directory(n[2]), self.name(n[3])),
                };
                Operation::Rename { parent, name, new_parent, new_name, flags: [0, 0, 1, 2, 2, 3][n[4] as usize % 6] }
            }
            25..=29 => Operation::Setattr(self.setattr(&n)),
            30 | 31 | 44..=47 => self.xattr(&n),
            32..=35 => {
                let inode = self.file(n[0]);
                let pieces = self.pieces(inode, &n[1..]);
                Operation::Publish(Publish { written_by, ..self.publish(inode, pieces, &n) })
            }
            48 | 49 => {
                let inode = if n[0].is_multiple_of(9) { 0 } else { self.directory(n[0]) };
                Operation::SetQuota { inode, limited: !n[1].is_multiple_of(3) }
            }
            40 | 41 => Operation::Punch(self.punch(&n)),
            42 | 43 => Operation::SetLock(SetLock {
                inode: if n[0].is_multiple_of(3) { self.file(n[0]) } else { ROOT },
                owner: u64::from(n[1] % 2),
                flock: n[1] % 8 > 4,
                write: [None, Some(false), Some(false), Some(true)][n[2] as usize % 4],
                start: u64::from(n[3]) % LOCK_BYTES,
                end: u64::from(n[4]) % LOCK_BYTES,
            }),
            36 | 37 => {
                let inode = if n[1].is_multiple_of(4) { self.any_inode(n[0]) } else { self.file(n[0]) };
                Operation::Hold { inode, write: n[2].is_multiple_of(2) }
            }
            _ => {
                let held: Vec<u64> = self.model.holds.keys().map(|(_, inode)| *inode).collect();
                let inode = if held.is_empty() { self.file(n[0]) } else { held[n[0] as usize % held.len()] };
                Operation::Release { inode }
            }
        }
    }

    fn create(&mut self, parent: u64, name: Vec<u8>, n: &[u32; 6]) -> Create {
        let kind = [0, 0, 0, 0, 0o100_000, 0o010_000, 0o140_000, 0o020_000, 0o040_000, 0o120_000][n[2] as usize % 10];
        let contents = n[3].is_multiple_of(3);
        let pieces = if contents { self.pieces(0, &n[3..]) } else { Vec::new() };
        Create {
            parent,
            name,
            mode: kind | self.mode(n[4]),
            rdev: n[5] % 3,
            layout: self.layout(n[5] / 3),
            exclusive: (n[3] / 3).is_multiple_of(2),
            replace: (n[3] / 6).is_multiple_of(4),
            hold: (n[3] / 24).is_multiple_of(3),
            size: if (n[4] / 12).is_multiple_of(4) { u64::from(n[4] % 20_000) } else { 0 },
            pieces,
            mtime: TIMES[n[5] as usize / 16 % 3],
            written_by: 0,
            umask: self.umask(n[1] / 64),
            owner: ((n[5] / 48).is_multiple_of(5)).then_some((1000 + n[5] / 256 % 2, 1000 * (1 + n[5] / 512 % 2))),
        }
    }

    fn publish(&self, inode: u64, pieces: Vec<Piece>, n: &[u32; 6]) -> Publish {
        let version = self.model.nodes.get(&inode).map_or(0, |node| node.data_version);
        Publish {
            inode,
            pieces: if n[4].is_multiple_of(9) { Vec::new() } else { pieces },
            size: if (n[4] / 16).is_multiple_of(3) { u64::from(n[5] % 30_000) } else { 0 },
            set_size: (n[4] / 64).is_multiple_of(8),
            if_data_version: [0, 0, 0, version, version, version + 1][n[5] as usize / 65536 % 6],
            mtime: TIMES[n[4] as usize / 256 % 3],
            written_by: 0,
            if_size: (n[5] / 1024).is_multiple_of(5).then(|| self.size(inode) + u64::from(n[5] / 8192 % 3 == 2)),
            kill_privileges: (n[5] / 2048).is_multiple_of(4),
        }
    }

    fn size(&self, inode: u64) -> u64 {
        self.model.nodes.get(&inode).map_or(0, |node| node.bytes().len() as u64)
    }

    fn punch(&self, n: &[u32; 6]) -> Punch {
        let inode = self.file(n[0]);
        let version = self.model.nodes.get(&inode).map_or(0, |node| node.data_version);
        let unit = [1, 100, 4096, 1000][n[1] as usize % 4];
        Punch {
            inode,
            offset: u64::from(n[1] / 4 % 13) * unit,
            length: [0, 1, 100, 4096, 5000, 12288, u64::MAX, 4096][n[2] as usize % 8],
            extend: n[3].is_multiple_of(2),
            if_data_version: [0, 0, version, version + 1][n[4] as usize % 4],
            kill_privileges: n[5].is_multiple_of(3),
        }
    }

    fn setattr(&self, n: &[u32; 6]) -> Setattr {
        let some = |bit: u32, value: u32| (n[1] >> (3 * bit) & 3 == 0).then_some(value);
        let id = |number: u32| [0, 1000, 1001, 2000][number as usize % 4];
        Setattr {
            inode: if n[0].is_multiple_of(3) { self.any_inode(n[0] / 3) } else { self.file(n[0]) },
            mode: some(0, self.mode(n[2])),
            uid: some(1, id(n[3])),
            gid: some(2, id(n[3] / 4)),
            size: some(3, n[4] % 20_000).map(u64::from),
            atime: some(4, n[5]).map(u64::from),
            mtime: some(5, n[5] / 7).map(u64::from),
            atime_now: n[1] >> 18 & 3 == 0,
            mtime_now: n[1] >> 20 & 3 == 0,
            kill_privileges: n[1] >> 25 & 7 == 0,
            layout: (n[1] >> 22 & 7 == 0).then_some([2, 0, 999_999][n[5] as usize % 3]),
        }
    }

    fn xattr(&self, n: &[u32; 6]) -> Operation {
        let inode = self.any_inode(n[0]);
        let names = ["user.a", "user.b", "trusted.c", "security.capability", "system.e", "user."];
        let acls = [ACCESS, ACCESS, ACCESS, DEFAULT, DEFAULT, DEFAULT];
        let name = match n[1] % 12 {
            at @ 0..=5 => names[at as usize].as_bytes().to_vec(),
            at => acls[at as usize - 6].to_vec(),
        };
        if name.starts_with(b"system.posix") && !n[2].is_multiple_of(7) {
            return Operation::SetXattr { inode, name, value: self.acl(n), flags: n[4] % 3 };
        }
        if n[2].is_multiple_of(3) {
            Operation::RemoveXattr { inode, name }
        } else {
            Operation::SetXattr { inode, name, value: vec![7; n[3] as usize % 300], flags: n[4] % 4 }
        }
    }

    /// Executes a request on both and compares the answers.
    fn run(&mut self, request_: Request, operation: Operation) -> Reply {
        let who =
            Credentials { uid: request_.caller.uid, gid: request_.caller.gid, groups: request_.caller.groups.clone() };
        let (opcode, bytes) = request(&request_, who, &operation);
        self.driver.now = request_.now - 10;
        let answer = self.driver.log(opcode, bytes);
        let core = reply(opcode, &answer);
        let model = self.model.apply(&request_, &operation);
        assert_eq!(core, model, "core and model answer {operation:?} of {request_:?} differently");
        *self.outcomes.entry((opcode.name(), core.err().map_or("done", ErrorCode::name))).or_default() += 1;
        model
    }

    fn step(&mut self, step: &Step) {
        let n = step.numbers;
        let client = usize::from(step.session % 3);
        match step.kind {
            250..=252 => return self.end_session(client, n[0].is_multiple_of(2)),
            248 | 249 => {
                self.model.deferring = n[0].is_multiple_of(3);
                return self.driver.set_deferral(self.model.deferring);
            }
            253 => return self.restart(),
            254 => self.checkpoint = (self.driver.pages(), self.driver.log.len()),
            255 => return self.carry_out_frees(n[0]),
            _ => {}
        }
        let (session, slot) = (self.sessions[client], n[5] >> 28 & 1);
        let now = self.driver.now + 10;
        if n[5] >> 20 & 0xf == 0
            && let Some((request, operation, before)) = self.last.get(&(session, slot)).cloned()
        {
            let again = self.run(Request { now, ..request }, operation);
            assert_eq!(again, before, "a repeat gets the same answer");
            return;
        }
        let last = self.last.get(&(session, slot)).map_or(0, |(request, _, _)| request.sequence);
        let skip = u64::from(n[5] >> 24 & 0xf == 0) * 2;
        let caller = self.caller(step.who);
        let request = Request { caller, session, slot, sequence: last + 1 + skip, now };
        let operation = self.operation(step, session);
        let reply = self.run(request.clone(), operation.clone());
        if skip == 0 {
            self.last.insert((session, slot), (request, operation, reply));
        }
        self.reclaim(n[0]);
    }

    /// Works off what is dead, in steps of a size that differs; the model did it at once.
    fn reclaim(&mut self, number: u32) {
        let mut rounds = 0;
        while !self.driver.namespace.reclaimable().is_empty() {
            self.driver.now -= 10;
            self.driver.reclaim(1 + number % 3, 1 + number / 4 % 3);
            self.driver.check();
            rounds += 1;
            assert!(rounds < 10_000, "reclaiming comes to an end");
        }
        if number % 4 == 1 {
            self.model.reclaim_deferred();
            self.driver.now -= 10;
            self.driver.reclaim_to(u64::MAX);
        }
    }

    fn end_session(&mut self, client: usize, expire: bool) {
        let session = self.sessions[client];
        self.driver.session = session;
        if expire {
            self.driver.expire(&[session]);
        } else {
            self.driver.end_session().unwrap();
        }
        self.model.end_session(session);
        self.reclaim(3);
        assert_eq!(self.driver.namespace.session_state(session), SessionState::Ended);
        if let Some((request, operation, _)) = self.last.get(&(session, 0)).cloned() {
            let answer = self.run(Request { now: self.driver.now + 10, ..request }, operation);
            assert_eq!(answer, Err(ErrorCode::SessionEnded), "nothing of an ended session is executed");
        }
        self.sessions[client] = self.next_session;
        self.next_session += 1;
    }

    fn restart(&mut self) {
        self.driver.namespace = self.driver.restored();
    }

    fn carry_out_frees(&mut self, number: u32) {
        let records = self.driver.namespace.pending_frees(0, 1 + number as usize % 4);
        for record in &records {
            let blocks = record.first_block..record.first_block + record.blocks;
            self.done_frees.extend(blocks.map(|block| (record.pg, record.index, block)));
        }
        let ids: Vec<u64> = records.iter().map(|record| record.id).collect();
        self.driver.free_done(&ids);
        self.driver.free_done(&ids);
    }

    fn compare(&self, namespace: &Namespace) {
        if let Err(violation) = namespace.check_invariants() {
            panic!("{violation}");
        }
        crate::translate::compare_trees(namespace, &self.model, &self.done_frees);
    }
}

/// Applies a log to a namespace; every answer must be the one that was given before.
fn replay(namespace: &mut Namespace, log: &[Logged], what: &str) {
    for entry in log {
        let mut out = Vec::new();
        // Answers were compared when the log was made; here only the state matters.
        let _ = namespace.apply(entry.at, entry.opcode, &entry.request, &mut out);
    }
    if let Err(violation) = namespace.check_invariants() {
        panic!("{what}: {violation}");
    }
}

fn run_all(steps: &[Step]) -> BTreeMap<(&'static str, &'static str), u64> {
    let mut pair = Pair::new();
    for (i, step) in steps.iter().enumerate() {
        pair.step(step);
        pair.driver.check();
        if i % 8 == 0 {
            pair.compare(&pair.driver.namespace);
        }
    }
    pair.compare(&pair.driver.namespace);

    let (pages, applied) = &pair.checkpoint;
    let mut later = restore(pages);
    replay(&mut later, &pair.driver.log[*applied..], "a checkpoint and the log since");
    pair.compare(&later);

    let mut first = Namespace::new(&open_config());
    let mut second = Namespace::new(&open_config());
    replay(&mut first, &pair.driver.log, "the whole log");
    replay(&mut second, &pair.driver.log, "the whole log");
    let bytes = |n: &Namespace| n.snapshot().pages(9000).collect::<Vec<_>>();
    assert_eq!(bytes(&first), bytes(&second), "two replicas write the same checkpoint");
    pair.outcomes
}

/// A difference between core and model, a broken invariant after any step, a repeat with another answer, a checkpoint
/// that is not the state, or replicas that diverge. Also: random steps that reach too little.
#[test]
fn core_and_model_agree() {
    let outcomes = std::cell::RefCell::new(BTreeMap::<_, u64>::new());
    let config =
        ProptestConfig { cases: cases(), max_shrink_iters: 4000, failure_persistence: None, ..Default::default() };
    let result = proptest::test_runner::TestRunner::new(config).run(&steps(200), |steps| {
        for (outcome, count) in run_all(&steps) {
            *outcomes.borrow_mut().entry(outcome).or_default() += count;
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let outcomes = outcomes.into_inner();
    for (operation, outcome) in EXPECTED {
        assert!(outcomes.contains_key(&(*operation, *outcome)), "no {operation} came out {outcome}: {outcomes:#?}");
    }
}

/// More cases on request: `CAIRN_CASES`.
fn cases() -> u32 {
    option_env!("CAIRN_CASES").and_then(|text| text.parse().ok()).unwrap_or(320)
}

/// What the random steps have to reach, or they prove little.
const EXPECTED: &[(&str, &str)] = &[
    ("Create", "Exists"),
    ("Create", "NotPermitted"),
    ("Create", "PermissionDenied"),
    ("Create", "WrongSession"),
    ("Create", "done"),
    ("CreateUnnamed", "done"),
    ("Hold", "PermissionDenied"),
    ("Hold", "done"),
    ("Link", "IsDirectory"),
    ("Link", "NotFound"),
    ("Link", "NotPermitted"),
    ("Link", "done"),
    ("Mkdir", "SessionEnded"),
    ("Mkdir", "Stale"),
    ("Mkdir", "done"),
    ("Publish", "Conflict"),
    ("Publish", "InvalidArgument"),
    ("Publish", "PermissionDenied"),
    ("Publish", "WrongSession"),
    ("Publish", "done"),
    ("Punch", "Conflict"),
    ("Punch", "FileTooLarge"),
    ("Punch", "InvalidArgument"),
    ("Punch", "PermissionDenied"),
    ("Punch", "done"),
    ("Release", "done"),
    ("RemoveTree", "NotPermitted"),
    ("RemoveTree", "done"),
    ("Rename", "BadSequence"),
    ("Rename", "Exists"),
    ("Rename", "InvalidArgument"),
    ("Rename", "IsDirectory"),
    ("Rename", "NotDirectory"),
    ("Rename", "NotEmpty"),
    ("Rename", "NotPermitted"),
    ("Rename", "done"),
    ("Rmdir", "NotEmpty"),
    ("Rmdir", "done"),
    ("Setattr", "BadLayout"),
    ("Setattr", "NotPermitted"),
    ("Setattr", "PermissionDenied"),
    ("Setattr", "done"),
    ("SetLock", "InvalidArgument"),
    ("SetLock", "Locked"),
    ("SetLock", "done"),
    ("SetQuota", "NoAttribute"),
    ("SetQuota", "NotDirectory"),
    ("SetQuota", "NotPermitted"),
    ("SetQuota", "done"),
    ("SetXattr", "InvalidArgument"),
    ("SetXattr", "NotPermitted"),
    ("SetXattr", "NotSupported"),
    ("SetXattr", "PermissionDenied"),
    ("SetXattr", "done"),
    ("Symlink", "done"),
    ("Unlink", "IsDirectory"),
    ("Unlink", "NotPermitted"),
    ("Unlink", "done"),
];
