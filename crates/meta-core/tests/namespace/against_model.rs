//! Random operations of several users and sessions on the core and on the model: the same answers, the same tree, after
//! restarts from a checkpoint and repeats, too.
mod choose;
mod delegations;
mod snapshots;

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
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
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
    // The same steps each time: whether they reach enough must not be a matter of luck.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let result = TestRunner::new_with_rng(config, rng).run(&steps(200), |steps| {
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
