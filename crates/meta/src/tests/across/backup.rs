//! Checkpoints of three partitions for a backup, while files are renamed across them and leaders end.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cairn_meta_core::{AppliedAt, Namespace, Outcome, TxId};
use cairn_rpc::Repeat;
use cairn_types::{ErrorCode, WallTime};
use cairn_wire::Opcode;
use cairn_wire::common::Credentials;
use cairn_wire::meta::*;
use prost::Message;

use super::{CALL, COUNT, User, start};
use crate::tests::fixture::{Cluster, PARTITION, VOLUME, block_on, eventually};

const FILES: usize = 6;

/// Files of one row are renamed from one directory to the next, each by itself.
fn rename(user: &mut User, directories: [u64; 3], end: &AtomicBool, moves: &AtomicU64, first: usize) {
    for round in 0.. {
        if end.load(Ordering::SeqCst) {
            return;
        }
        for file in (first..FILES).step_by(2) {
            let (from, to) = (directories[(round + file) % 3], directories[(round + file + 1) % 3]);
            let name = format!("f{file}");
            user.rename((from, &name), (to, &name), 0).expect("renamed");
            moves.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// The states that a backup would have.
fn cut(cluster: &Cluster) -> Option<Vec<Namespace>> {
    let header = MetaHeader { volume: VOLUME, partition: PARTITION, ..MetaHeader::default() };
    let request = CutCheckpointsRequest { header: Some(header) };
    let leader = cluster.server_leader_client();
    let answer = block_on(leader.call(Opcode::CutCheckpoints, &request, CALL, Repeat::Harmless));
    let CutCheckpointsResponse { checkpoints } = answer.ok()?;
    let partitions: Vec<u32> = checkpoints.iter().map(|checkpoint| checkpoint.partition).collect();
    assert_eq!(partitions, (PARTITION..PARTITION + COUNT).collect::<Vec<_>>(), "all of them");
    Some(checkpoints.iter().map(|checkpoint| cluster.checkpoint(checkpoint)).collect())
}

/// What leaders do after a restore: what was decided is finished, what was not is void.
fn settle(states: &mut [Namespace]) -> usize {
    let mut ended = 0;
    for at in 0..states.len() {
        for (tx, lock) in states[at].tx_locks(1000) {
            let decider = (tx.partition - PARTITION) as usize;
            let effects = match states[decider].tx_outcome(tx, PARTITION + at as u32) {
                Outcome::Done(effects) => Some(effects),
                Outcome::NoRecord => None,
            };
            let finish = TxFinish { tx: Some(TxId::wire(tx)), effects, lock: lock.number };
            let applied = AppliedAt { index: states[at].applied_index() + 1, term: u64::MAX >> 1, time: WallTime(1) };
            states[at].apply(applied, Opcode::TxFinish, &finish.encode_to_vec(), &mut Vec::new()).expect("finished");
            ended += 1;
        }
    }
    ended
}

fn has_name(state: &Namespace, directory: u64, name: &str) -> bool {
    let who = Some(Credentials::default());
    let partition = state.partition().get();
    let header = Some(MetaHeader { volume: VOLUME, partition, who, ..MetaHeader::default() });
    let request = LookupRequest { header, parent: directory, name: name.as_bytes().to_vec() };
    match state.read(Opcode::Lookup, &request.encode_to_vec(), &mut Vec::new()) {
        Ok(()) => true,
        Err(error) if error.code == ErrorCode::NotFound => false,
        Err(error) => panic!("{name} in {directory}: {error}"),
    }
}

/// Each file has one name in all partitions together.
fn look(states: &mut [Namespace], directories: [u64; 3]) -> usize {
    let ended = settle(states);
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for (state, directory) in states.iter().zip(directories) {
        for file in 0..FILES {
            let name = format!("f{file}");
            *names.entry(name.clone()).or_default() += usize::from(has_name(state, directory, &name));
        }
    }
    assert!(names.len() == FILES && names.values().all(|count| *count == 1), "{names:?}");
    ended
}

fn directories(user: &mut User) -> [u64; 3] {
    let made = [0, 1, 2].map(|number| user.mkdir(1, &format!("d{number}"), PARTITION + number).expect("made"));
    for file in 0..FILES {
        user.create(made[file % 3], &format!("f{file}")).expect("made");
    }
    made
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A file that is renamed while a backup is made would have no name after a restore, or two; or what was acknowledged
/// before would be missing.
#[test]
fn a_backup_is_one_moment_of_all_partitions() {
    let cluster = start(1);
    let mut user = User::new(&cluster, 1);
    let directories = directories(&mut user);
    let (end, moves) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut ended = 0;
    std::thread::scope(|scope| {
        let _ends = Ends(&end);
        for first in 0..2 {
            let (mut mover, end, moves) = (user.beside(2 + first as u64), &end, &moves);
            scope.spawn(move || rename(&mut mover, directories, end, moves, first));
        }
        for round in 0..30 {
            let before = moves.load(Ordering::SeqCst);
            user.create(directories[2], &format!("k{round}")).expect("made");
            let mut states = cut(&cluster).expect("nobody keeps them from it");
            ended += look(&mut states, directories);
            assert!(has_name(&states[2], directories[2], &format!("k{round}")), "acknowledged before");
            eventually("they go on", || moves.load(Ordering::SeqCst) > before + 3);
        }
    });
    assert!(ended > 0, "no rename was under way in any of them");
}

/// The same when leaders end meanwhile, with three members each.
#[test]
fn a_backup_is_one_moment_although_leaders_end() {
    let mut cluster = start(3);
    let mut user = User::new(&cluster, 1);
    let directories = directories(&mut user);
    let (end, moves) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut taken = 0;
    std::thread::scope(|scope| {
        let _ends = Ends(&end);
        for first in 0..2 {
            let (mut mover, end, moves) = (user.beside(2 + first as u64), &end, &moves);
            scope.spawn(move || rename(&mut mover, directories, end, moves, first));
        }
        for round in 0..3 {
            cluster.kill(round);
            cluster.run(round);
            cluster.share_map();
            let addresses = cluster.leader_client().addresses();
            user.leaders.values().for_each(|leader| leader.set_addresses(addresses.clone()));
            // Those at once may find that somebody leads no more, and say so.
            for _ in 0..4 {
                if let Some(mut states) = cut(&cluster) {
                    look(&mut states, directories);
                    taken += 1;
                }
            }
            eventually("a backup", || cut(&cluster).is_some_and(|mut states| look(&mut states, directories) < 1000));
        }
    });
    println!("{taken} backups were taken at once");
}
