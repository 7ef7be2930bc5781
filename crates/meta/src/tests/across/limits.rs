//! The limit of a volume of three partitions, while its users fill it and nodes end.
use super::*;
use crate::tests::fixture::node_id;

const LIMIT: u64 = 60;

fn set(user: &mut User, inodes_max: u64) {
    let make = |header| SetQuotaRequest { header, inode: 0, bytes_max: 0, inodes_max, remove: inodes_max == 0 };
    let at = PARTITION;
    let sequence = user.sequences.get(&at).copied().unwrap_or_default() + 1;
    // It may be too early for the feature level, or for all partitions to know it.
    eventually("the limit", || {
        let answer = user.call::<Empty>(at, Opcode::SetQuota, &make(user.header(at, sequence)));
        match answer {
            Ok(_) => true,
            Err(ErrorCode::DeadlineExceeded | ErrorCode::Overloaded) => false,
            // This one is kept under its number.
            Err(error) => panic!("{error}"),
        }
    });
    user.sequences.insert(at, sequence);
}

/// Of the whole volume, without the root.
fn inodes(user: &User) -> u64 {
    let of = |id: u32| {
        let request = StatfsRequest { header: user.header(id, 0), ..StatfsRequest::default() };
        user.call::<StatfsResponse>(id, Opcode::Statfs, &request).expect("statfs").inodes
    };
    (PARTITION..PARTITION + COUNT).map(of).sum::<u64>() - 1
}

/// How many files until there is no room.
fn fill(user: &mut User, directory: u64, name: &str) -> u64 {
    for count in 0.. {
        match user.create(directory, &format!("{name}{count}")) {
            Ok(_) => {}
            Err(ErrorCode::QuotaExceeded) => return count,
            // The answer was lost with its leader, and is looked for under its number no more.
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

/// A file of the directory that has most of them.
fn remove_one(user: &mut User, directories: &[u64]) {
    let lists = directories.iter().map(|directory| (*directory, user.list(*directory)));
    let (directory, names) = lists.max_by_key(|(_, names)| names.len()).expect("there are some");
    user.unlink(directory, &names[0].0).expect("removed");
}

fn level(cluster: &Cluster) {
    eventually("the feature level", || {
        cluster.nodes.iter().flatten().all(|running| {
            let reports = running.meta.partition_reports();
            reports.iter().filter(|report| report.leader).all(|report| report.feature_level >= 7)
        })
    });
}

/// A leader that ends between two entries would leave room that nobody can use, or lend it twice.
#[test]
fn a_limit_is_filled_exactly_while_nodes_end() {
    let mut cluster = start(3);
    let mut user = User::new(&cluster, 9);
    let directories: Vec<u64> =
        (0..COUNT).map(|number| user.mkdir(1, &format!("d{number}"), PARTITION + number).expect("made")).collect();
    level(&cluster);
    set(&mut user, LIMIT);
    let mut others: Vec<User> = (0..6).map(|number| user.beside(20 + number)).collect();
    let made: u64 = std::thread::scope(|scope| {
        let fillers: Vec<_> = others
            .iter_mut()
            .zip(directories.iter().cycle())
            .enumerate()
            .map(|(number, (user, directory))| scope.spawn(move || fill(user, *directory, &format!("u{number}-"))))
            .collect();
        for number in 0..3 {
            cluster.kill(number);
            cluster.run(number);
            cluster.share_map();
            let addresses: Vec<String> = (0..3).map(|number| cluster.address(number).to_owned()).collect();
            user.leaders.values().for_each(|leader| leader.set_addresses(addresses.clone()));
        }
        fillers.into_iter().map(|filler| filler.join().expect("it fills")).sum()
    });
    assert_eq!((made + u64::from(COUNT), inodes(&user)), (LIMIT, LIMIT));
    // What goes in one makes room in each other; a new directory counts where it is made.
    remove_one(&mut user, &directories);
    eventually("the room", || inodes(&user) == LIMIT - 1);
    let inside = user.mkdir(1, "inside", PARTITION + 2).expect("there is room");
    assert_eq!(owner(inside), PARTITION + 2);
    assert_eq!(user.mkdir(1, "more", PARTITION + 1), Err(ErrorCode::QuotaExceeded));
    assert_eq!(user.create(1, "more"), Err(ErrorCode::QuotaExceeded));
    set(&mut user, LIMIT / 2);
    directories.iter().for_each(|directory| assert_eq!(user.create(*directory, "n"), Err(ErrorCode::QuotaExceeded)));
    remove_one(&mut user, &directories);
    directories.iter().for_each(|directory| assert_eq!(user.create(*directory, "n"), Err(ErrorCode::QuotaExceeded)));
    set(&mut user, 0);
    for directory in &directories {
        user.create(*directory, "n").expect("no limit");
    }
    check(&cluster, &user);
}

/// Each change would cost a call to the home while there is plenty of room.
#[test]
fn what_is_far_from_the_limit_asks_nobody() {
    let cluster = start(1);
    let mut user = User::new(&cluster, 9);
    let directory = user.mkdir(1, "d", PARTITION + 1).expect("made");
    level(&cluster);
    set(&mut user, 1_000_000);
    let bound = || {
        let partitions = cluster.meta(0).partitions().read();
        let namespace = partitions[&PartitionId(PARTITION + 1)].state.namespace.read();
        namespace.bound().expect("it was told")
    };
    eventually("room before it is needed", || bound().max.inodes > 100_000);
    let before = bound();
    for number in 0..200 {
        user.create(directory, &format!("f{number}")).expect("created");
    }
    assert_eq!(bound(), before);
}

/// What may be left is lent to a partition of which nobody hears: others would wait for ever, or take it.
#[test]
fn what_a_silent_partition_was_lent_is_not_lent_again() {
    let mut cluster = start_with_places(2, quick(), |partition| vec![node_id(usize::from(partition == 2)).get()]);
    let mut user = User::new(&cluster, 9);
    let find = |cluster: &Cluster, user: &User| {
        for (id, leader) in &user.leaders {
            leader.set_addresses(vec![cluster.address(usize::from(*id == PARTITION + 2)).to_owned()]);
        }
    };
    find(&cluster, &user);
    let directory = user.mkdir(1, "d", PARTITION + 1).expect("made");
    level(&cluster);
    set(&mut user, LIMIT);
    let lent = |cluster: &Cluster, to: u32| {
        let partitions = cluster.meta(0).partitions().read();
        let namespace = partitions[&PartitionId(PARTITION)].state.namespace.read();
        namespace.lent_to(to).ceiling.inodes
    };
    eventually("something is lent", || lent(&cluster, PARTITION + 2) > 0);
    cluster.kill(1);
    let kept = lent(&cluster, PARTITION + 2);
    let made = fill(&mut user, directory, "f");
    assert_eq!(made + 1 + kept, LIMIT, "all but what the silent one may use");
    assert_eq!(user.create(1, "more"), Err(ErrorCode::QuotaExceeded));
    cluster.run(1);
    cluster.share_map();
    find(&cluster, &user);
    // The node is there, and is heard of a moment later.
    let mut more = 0;
    eventually("what it was lent", || {
        more += fill(&mut user, directory, &format!("g{more}-"));
        made + more + 1 == LIMIT
    });
    assert_eq!(inodes(&user), LIMIT);
}
