//! Snapshots of three partitions, while files are renamed across them, leaders end, and holds lapse.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_rpc::{LeaderError, Repeat};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::*;
use prost::Message;

use super::{CALL, COUNT, User, owner, start, start_with};
use crate::MetaTimings;
use crate::partition::item;
use crate::tests::fixture::{Cluster, PARTITION, block_on, eventually, quick};

/// The list of a directory's snapshots.
const LISTING: u64 = 0x7fff << 48;
const INNER: u64 = (1 << 48) - 1;

impl User {
    /// Takes one, however often that has to be tried.
    fn snapshot(&mut self, name: &str) -> u64 {
        self.snapshot_of(0, name).expect("taken")
    }

    fn snapshot_of(&mut self, directory: u64, name: &str) -> Result<u64, ErrorCode> {
        let name = name.as_bytes().to_vec();
        let make = |header| CreateSnapshotRequest { header, name: name.clone(), directory };
        for _ in 0..100 {
            match self.mutate::<CreateSnapshotResponse, _>(1, Opcode::CreateSnapshot, make) {
                Ok(answer) if answer.number > 0 => return Ok(answer.number),
                Ok(_) | Err(ErrorCode::LeaseHeld | ErrorCode::Overloaded) => {}
                Err(error) => return Err(error),
            }
        }
        panic!("no snapshot is taken");
    }

    /// Names that a directory had.
    fn list_at(&self, directory: u64, name: &str) -> Vec<String> {
        let then = self.lookup(LISTING | directory, name).expect("it is there");
        assert_eq!(then & INNER, directory);
        self.list(then).into_iter().map(|(name, _)| name).collect()
    }
}

/// The last of a row of files in a directory; all before it are there.
fn last(names: &[String]) -> u64 {
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| name.strip_prefix('k')?.parse().ok()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    numbers.len() as u64
}

struct Writers {
    end: AtomicBool,
    begun: AtomicU64,
    acknowledged: AtomicU64,
    moves: AtomicU64,
}

/// A file is in one directory after the other; each of a row of files is made in one after the other.
fn write(writers: &Writers, mut mover: User, mut maker: User, directories: [u64; 3]) {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0.. {
                if writers.end.load(Ordering::SeqCst) {
                    return;
                }
                let (from, to) = (directories[round % 3], directories[(round + 1) % 3]);
                mover.rename((from, "moved"), (to, "moved"), 0).expect("renamed");
                writers.moves.fetch_add(1, Ordering::SeqCst);
            }
        });
        scope.spawn(move || {
            for number in 1.. {
                if writers.end.load(Ordering::SeqCst) {
                    return;
                }
                writers.begun.store(number, Ordering::SeqCst);
                for directory in directories {
                    maker.create(directory, &format!("k{number}")).expect("made");
                }
                writers.acknowledged.store(number, Ordering::SeqCst);
            }
        });
    });
}

/// Writers end, whatever becomes of the test.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn new_writers() -> Writers {
    let (begun, acknowledged, moves) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    Writers { end: AtomicBool::new(false), begun, acknowledged, moves }
}

fn directories(cluster: &Cluster, user: &mut User) -> [u64; 3] {
    // Members that understand no leases may have given some; nobody knows when they lapsed.
    eventually("the feature level", || {
        let partitions: Vec<_> =
            cluster.nodes.iter().flatten().map(|node| node.meta.partitions().read().clone()).collect();
        let led = partitions.iter().flat_map(|partitions| partitions.values());
        let led = led.filter(|partition| partition.state.leading_term().is_some());
        led.filter(|partition| partition.state.namespace.read().feature_level() >= 18).count() == COUNT as usize
    });
    let made = [0, 1, 2].map(|number| user.mkdir(1, &format!("d{number}"), PARTITION + number).expect("made"));
    assert_eq!(made.map(owner), [0, 1, 2].map(|number| PARTITION + number));
    user.create(made[0], "moved").expect("made");
    made
}

/// Takes one while others write, and looks at it: it is one moment, behind all that was acknowledged and before all
/// that was begun since.
fn take_and_look(user: &mut User, writers: &Writers, directories: [u64; 3], name: &str) {
    let acknowledged = writers.acknowledged.load(Ordering::SeqCst);
    user.snapshot(name);
    let begun = writers.begun.load(Ordering::SeqCst);
    let lists = directories.map(|directory| user.list_at(directory, name));
    let moved = lists.iter().filter(|names| names.iter().any(|name| name == "moved")).count();
    assert_eq!(moved, 1, "a file that is renamed is in one directory: {lists:?}");
    let [a, b, c] = [0, 1, 2].map(|number| last(&lists[number]));
    assert!(
        a >= b && b >= c && a <= c + 1,
        "what was made later is there, and what was made before is not: {a} {b} {c}"
    );
    assert!(c >= acknowledged && a <= begun, "{acknowledged} {c} {a} {begun}");
}

/// A file that is renamed while a snapshot is taken would be in both directories or in none; or what was acknowledged
/// before would be missing.
#[test]
fn a_snapshot_is_one_moment_of_all_partitions() {
    let cluster = start(1);
    let mut user = User::new(&cluster, 1);
    let directories = directories(&cluster, &mut user);
    let writers = new_writers();
    std::thread::scope(|scope| {
        let (mover, maker, writers) = (user.beside(2), user.beside(3), &writers);
        let _ends = Ends(&writers.end);
        scope.spawn(move || write(writers, mover, maker, directories));
        for round in 0..12 {
            let before = writers.moves.load(Ordering::SeqCst);
            take_and_look(&mut user, writers, directories, &format!("s{round}"));
            eventually("writers go on", || writers.moves.load(Ordering::SeqCst) > before + 3);
        }
        writers.end.store(true, Ordering::SeqCst);
    });
    // They stay what they were; names and deletions are known everywhere when they are answered.
    let then = directories.map(|directory| user.list_at(directory, "s3"));
    let rename = |header| RenameSnapshotRequest {
        header,
        name: b"s3".to_vec(),
        new_name: b"other".to_vec(),
        ..RenameSnapshotRequest::default()
    };
    user.mutate::<Empty, _>(1, Opcode::RenameSnapshot, rename).expect("renamed");
    assert_eq!(directories.map(|directory| user.list_at(directory, "other")), then);
    let delete = |header| DeleteSnapshotRequest { header, name: b"s5".to_vec(), ..DeleteSnapshotRequest::default() };
    user.mutate::<Empty, _>(1, Opcode::DeleteSnapshot, delete).expect("deleted");
    for directory in directories {
        assert_eq!(user.lookup(LISTING | directory, "s3"), Err(ErrorCode::NotFound));
        assert_eq!(user.lookup(LISTING | directory, "s5"), Err(ErrorCode::NotFound));
    }
    let counts = || {
        let partitions = cluster.meta(0).partitions().read();
        partitions.values().map(|partition| partition.state.namespace.read().snapshots().len()).collect::<Vec<_>>()
    };
    eventually("what was deleted is gone everywhere", || counts() == [11; COUNT as usize]);
}

/// The same when leaders end while it is taken, and when the client asks again.
#[test]
fn a_snapshot_is_one_moment_although_leaders_end() {
    let mut cluster = start(3);
    let mut user = User::new(&cluster, 1);
    let directories = directories(&cluster, &mut user);
    let writers = new_writers();
    let (done, end) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (mover, maker, mut taker) = (user.beside(2), user.beside(3), user.beside(4));
        let (writers, done, end) = (&writers, &done, &end);
        scope.spawn(move || write(writers, mover, maker, directories));
        let _ends = Ends(end);
        scope.spawn(move || {
            let _ends = Ends(&writers.end);
            for round in 0.. {
                if end.load(Ordering::SeqCst) {
                    break;
                }
                take_and_look(&mut taker, writers, directories, &format!("s{round}"));
                done.fetch_add(1, Ordering::SeqCst);
            }
        });
        for round in 0..3 {
            let before = done.load(Ordering::SeqCst);
            eventually("snapshots", || done.load(Ordering::SeqCst) > before + 1);
            cluster.kill(round);
            cluster.run(round);
            cluster.share_map();
            let addresses = cluster.leader_client().addresses();
            user.leaders.values().for_each(|leader| leader.set_addresses(addresses.clone()));
        }
        let before = done.load(Ordering::SeqCst);
        eventually("snapshots", || done.load(Ordering::SeqCst) > before + 1);
        end.store(true, Ordering::SeqCst);
    });
    let count = done.load(Ordering::SeqCst);
    for round in 0..count {
        let lists = directories.map(|directory| user.list_at(directory, &format!("s{round}")));
        assert_eq!(lists.concat().iter().filter(|name| *name == "moved").count(), 1, "s{round}: {lists:?}");
    }
    // What came to nothing is gone.
    let leaders = |cluster: &Cluster| {
        let mut pending = 0;
        for running in cluster.nodes.iter().flatten() {
            for partition in running.meta.partitions().read().values() {
                pending += partition.state.namespace.read().pending_snapshots().len();
            }
        }
        pending
    };
    eventually("nothing is pending", || leaders(&cluster) == 0);
}

fn ask<A: Message + Default>(cluster: &Cluster, opcode: Opcode, request: &impl Message) -> Result<A, ErrorCode> {
    match block_on(cluster.server_leader_client().call(opcode, request, CALL, Repeat::Harmless)) {
        Ok(answer) => Ok(answer),
        Err(LeaderError::Remote(error)) => Err(error.code),
        Err(error) => panic!("{error}"),
    }
}

/// A partition that went on meanwhile would cut, with what was acknowledged after another one had; or one that is told
/// to hold by somebody who never comes back would hold for ever.
#[test]
fn a_hold_that_lapsed_is_none() {
    let cluster = start(1);
    let mut user = User::new(&cluster, 1);
    let directories = directories(&cluster, &mut user);
    let at = owner(directories[1]);
    let header = user.header(at, 0);
    // Before all attempts of the leader of the root's partition.
    let attempt = Some(CutAttempt { partition: PARTITION, term: 0, number: 1 });
    let hold = |header| HoldCutRequest { header, attempt, for_ms: 200 };
    let held: HoldCutResponse = ask(&cluster, Opcode::HoldCut, &hold(header.clone())).expect("it holds");
    assert!(held.term > 0 && held.partitions == COUNT, "{held:?}");
    user.create(directories[1], "while it is held").expect("when that is over");
    let cut = CutSnapshot { term: held.term, number: 1, slot: 1, name: b"a".to_vec(), ..CutSnapshot::default() };
    let make = MakeCutRequest { header: header.clone(), attempt, cut: Some(cut) };
    assert_eq!(ask::<CutResponse>(&cluster, Opcode::MakeCut, &make).err(), Some(ErrorCode::Conflict));
    let again: HoldCutResponse = ask(&cluster, Opcode::HoldCut, &hold(header)).expect("an answer");
    assert_eq!(again.term, 0, "an attempt holds once");
    assert_eq!(ask::<CutResponse>(&cluster, Opcode::MakeCut, &make).err(), Some(ErrorCode::Conflict));
    user.snapshot("a");
    assert!(user.list_at(directories[1], "a").contains(&"while it is held".to_owned()));
    assert_eq!(user.call::<HoldCutResponse>(at, Opcode::HoldCut, &make).err(), Some(ErrorCode::NotPermitted));
}

/// A leader that ended while it took one would leave a cut that keeps space for ever.
#[test]
fn what_a_leader_left_is_made_void() {
    let cluster = start(1);
    let mut user = User::new(&cluster, 1);
    let directories = directories(&cluster, &mut user);
    let partition = |id: u32| cluster.meta(0).partitions().read()[&cairn_types::PartitionId(id)].clone();
    let propose = |id: u32, cut: CutSnapshot| {
        let partition = partition(id);
        let term = partition.state.leading_term().expect("it leads");
        let answer = block_on(partition.propose_answered(item(Opcode::CutSnapshot, &CutSnapshot { term, ..cut })));
        CutResponse::decode(answer.expect("cut")).expect("an answer")
    };
    let made = propose(PARTITION, CutSnapshot { name: b"a".to_vec(), ..CutSnapshot::default() });
    let (number, slot) = (made.number, made.slot);
    propose(owner(directories[2]), CutSnapshot { number, slot, name: b"a".to_vec(), ..CutSnapshot::default() });
    let there = || {
        (PARTITION..PARTITION + COUNT).map(|id| partition(id).state.namespace.read().snapshots().len()).sum::<usize>()
    };
    eventually("it is gone", || there() == 0);
    assert_eq!(user.snapshot("a"), number + 1);
}

/// A schedule would take nothing in a volume of several partitions, or another one each time it looks.
#[test]
fn a_schedule_takes_all_partitions() {
    let cluster = start_with(1, MetaTimings { schedule_tick: Duration::from_millis(20), ..quick() });
    let mut user = User::new(&cluster, 1);
    let directories = directories(&cluster, &mut user);
    let rules = vec![SnapshotRule { period: 1, keep: 2 }];
    let set =
        |header| SetSnapshotScheduleRequest { header, rules: rules.clone(), ..SetSnapshotScheduleRequest::default() };
    user.mutate::<Empty, _>(1, Opcode::SetSnapshotSchedule, set).expect("set");
    let listed = |user: &User, at: u32| {
        let request = ListSnapshotsRequest { header: user.header(at, 0) };
        let listed: ListSnapshotsResponse = user.call(at, Opcode::ListSnapshots, &request).expect("listed");
        let there = listed.snapshots.into_iter().filter(|snapshot| !snapshot.deleting);
        there.map(|snapshot| String::from_utf8(snapshot.name).expect("text")).collect::<Vec<_>>()
    };
    assert_eq!(listed(&user, PARTITION), [""; 0]);
    let mut names = Vec::new();
    for hour in 1..4 {
        cluster.skews[0].store(hour * 3_600_000_000_000, Ordering::SeqCst);
        eventually("the hour's", || {
            names = listed(&user, PARTITION);
            let is_told = || (1..COUNT).all(|other| listed(&user, PARTITION + other) == names);
            names.len() == (hour as usize).min(2) && is_told()
        });
        assert!(names.iter().all(|name| name.starts_with("hourly-")), "{names:?}");
    }
    assert_eq!(user.list_at(directories[1], &names[1]), [""; 0]);
    assert_eq!(user.list_at(directories[0], &names[1]), ["moved"]);
}

/// A directory of another partition would show nothing of its own, or one that is gone have its schedule for ever.
#[test]
fn directories_of_other_partitions_have_their_own() {
    let cluster = start_with(1, MetaTimings { schedule_tick: Duration::from_millis(20), ..quick() });
    let mut user = User::new(&cluster, 1);
    let directories = directories(&cluster, &mut user);
    user.create(directories[1], "f").expect("made");
    let number = user.snapshot_of(directories[1], "own").expect("taken");
    assert_eq!(user.snapshot_of(directories[1], "own"), Err(ErrorCode::Exists));
    assert_eq!(user.snapshot_of(0, "own"), Err(ErrorCode::Exists));
    user.unlink(directories[1], "f").expect("removed");
    assert_eq!(user.list_at(directories[1], "own"), ["f"]);
    for other in [1, directories[0], directories[2]] {
        assert_eq!(user.lookup(LISTING | other, "own"), Err(ErrorCode::NotFound));
    }
    user.rename((1, "d1"), (directories[0], "moved there"), 0).expect("renamed");
    assert_eq!(user.list_at(directories[1], "own"), ["f"]);
    let delete = |header| DeleteSnapshotRequest { header, number, ..DeleteSnapshotRequest::default() };
    user.mutate::<Empty, _>(1, Opcode::DeleteSnapshot, delete).expect("deleted");
    assert_eq!(user.lookup(LISTING | directories[1], "own"), Err(ErrorCode::NotFound));

    let of = directories[2];
    let rules = vec![SnapshotRule { period: 1, keep: 2 }];
    let set = |header| SetSnapshotScheduleRequest { header, rules: rules.clone(), directory: of };
    user.mutate::<Empty, _>(1, Opcode::SetSnapshotSchedule, set).expect("set");
    let listed = |user: &User| {
        let request = ListSnapshotsRequest { header: user.header(PARTITION, 0) };
        let listed: ListSnapshotsResponse = user.call(PARTITION, Opcode::ListSnapshots, &request).expect("listed");
        let there = listed.snapshots.into_iter().filter(|one| !one.deleting && one.directory == of);
        (there.map(|one| String::from_utf8(one.name).expect("text")).collect::<Vec<_>>(), listed.schedules.len())
    };
    assert_eq!(listed(&user), (Vec::new(), 1));
    cluster.skews[0].store(3_600_000_000_000, Ordering::SeqCst);
    eventually("the hour's", || listed(&user).0.len() == 1);
    let name = listed(&user).0.remove(0);
    assert!(name.starts_with("hourly-") && name.ends_with(".dir"), "{name}");
    eventually("its partition to know it", || user.lookup(LISTING | of, &name).is_ok());
    assert_eq!(user.list_at(of, &name), [""; 0]);
    assert_eq!(user.lookup(LISTING | 1, &name), Err(ErrorCode::NotFound));
    user.rmdir(1, "d2").expect("removed");
    assert_eq!(user.snapshot_of(of, "late"), Err(ErrorCode::NotFound), "it is gone");
    cluster.skews[0].store(2 * 3_600_000_000_000, Ordering::SeqCst);
    eventually("the end of its schedule", || listed(&user).1 == 0);
    assert_eq!(listed(&user).0, std::slice::from_ref(&name), "what was taken stays");
    assert_eq!(user.lookup(LISTING | of, &name).map(|then| then & INNER), Ok(of));
}
