//! The check of a volume of several partitions: what is wrong between them is told by path, and nothing is while it is
//! only in use.
use super::*;

/// A change of names that no operation would make: a lock, and its part.
fn tamper(cluster: &Cluster, partition: u32, number: u64, names: &[(u64, &str, u64, u32)]) {
    let leader = cluster.server_leader_client();
    let header = Some(MetaHeader { volume: VOLUME, partition, ..MetaHeader::default() });
    let tx = Some(TxId { partition: 99, term: 1, number });
    let mut inodes: Vec<u64> = names.iter().map(|(directory, ..)| *directory).collect();
    inodes.dedup();
    let prepare = Some(TxPrepare { tx, inodes, ..TxPrepare::default() });
    let request = PrepareTxRequest { header: header.clone(), prepare };
    let lock = prepared(cluster, &request).lock;
    let name = |(directory, name, inode, d_type): &(u64, &str, u64, u32)| TxName {
        directory: *directory,
        name: name.as_bytes().to_vec(),
        inode: *inode,
        d_type: *d_type,
    };
    let names = names.iter().map(name).collect();
    let effects = Some(TxEffects { partition, lock, names, ..TxEffects::default() });
    let request = FinishTxRequest { header, finishes: vec![TxFinish { tx, lock, effects }] };
    block_on(leader.call::<Empty>(Opcode::FinishTx, &request, CALL, Repeat::Harmless)).expect("finished");
}

/// Checks all partitions at the same time; what they found.
fn checked(user: &User, repair: bool) -> Vec<FsckFinding> {
    let ask = |id: u32, run: u64| {
        let request = FsckRequest { header: user.header(id, 0), start: run == 0, repair, run, ..Default::default() };
        user.call::<FsckResponse>(id, Opcode::Fsck, &request).expect("known")
    };
    let runs: Vec<(u32, u64)> = (PARTITION..PARTITION + COUNT).map(|id| (id, ask(id, 0).run)).collect();
    let mut findings = Vec::new();
    for (id, run) in runs {
        let mut last = FsckResponse::default();
        eventually("the end of the check", || {
            last = ask(id, run);
            last.state != 1
        });
        assert_eq!((last.state, last.message.as_str()), (2, ""), "p{id}");
        assert_eq!(last.found, last.findings.len() as u64);
        findings.extend(last.findings);
    }
    findings
}

fn told(findings: &[FsckFinding]) -> Vec<(String, String)> {
    findings.iter().map(|f| (String::from_utf8_lossy(&f.path).into_owned(), f.text.clone())).collect()
}

/// What is damaged between partitions would be found out when somebody misses it; or be told without a path, so that
/// nobody knows what it is about.
#[test]
fn damage_between_partitions_is_told_by_path() {
    let cluster = start(1);
    let mut user = User::new(&cluster, 9);
    let two = user.mkdir(1, "two", 6).expect("made");
    let three = user.mkdir(two, "three", 7).expect("made");
    let below = user.mkdir(three, "below", 5).expect("made");
    let (moved, lost) = (user.mkdir(two, "moved", 7).expect("made"), user.mkdir(two, "lost", 7).expect("made"));
    let (linked, kind) = (user.create(two, "f").expect("created"), user.create(two, "kind").expect("created"));
    user.link(linked, below, "g").expect("linked");
    user.rename((two, "kind"), (below, "kind"), 0).expect("moved");
    assert_eq!(told(&checked(&user, false)), []);
    // What is in a record is not certain to a check.
    eventually("the end of all records", || left_over(&cluster) == 0);
    let stray = 2 * RANGE + 12_345;
    tamper(&cluster, 5, 1, &[(below, "g", 0, 0), (below, "stray", stray, 8), (below, "kind", kind, 10)]);
    tamper(&cluster, 6, 2, &[(two, "moved", 0, 0), (two, "lost", 0, 0)]);
    tamper(&cluster, 7, 3, &[(three, "elsewhere", moved, 4)]);
    let findings = told(&checked(&user, false));
    let has = |path: &str, text: &str| findings.iter().any(|(at, told)| at == path && told.contains(text));
    let expected = [
        ("/two/f", "says that it has 2 names, it has 1".to_owned()),
        ("/two/three/below/stray", format!("inode {stray}, for which directory {below} has this name, is not there")),
        ("/two/three/below/kind", format!("the name \"kind\" in directory {below} says that it is of another type")),
        // That one is seen by one partition alone.
        ("/two/three/elsewhere", format!("has a name in directory {three}, its parent is {two}")),
        ("/two", "says that it has 4 entries, it has 2".to_owned()),
        ("", "has no name in any partition and says that it has".to_owned()),
    ];
    for (path, text) in &expected {
        assert!(has(path, text), "{path:?}: {text}: {findings:#?}");
    }
    assert!(checked(&user, false).iter().any(|finding| finding.inode == lost));
    // What can be mended is, and the name of what is not there goes.
    let levels = || cluster.nodes[0].as_ref().expect("it runs").meta.partition_reports();
    let newest = cairn_types::FEATURE_LEVEL;
    eventually("the level", || levels().iter().all(|report| report.feature_level == newest));
    let mended = checked(&user, true);
    assert_eq!(mended.iter().filter(|finding| finding.mended && finding.inode == stray).count(), 1);
    assert_eq!(user.getattr(linked).expect("there").nlink, 1);
    assert_eq!(user.lookup(below, "stray"), Err(ErrorCode::NotFound));
    // What has no name in any partition gets one in the partition of the root.
    let place = user.lookup(1, "lost+found").expect("it was made");
    assert_eq!(user.lookup(place, &format!("#{lost}")), Ok(lost));
    assert_eq!(owner(lost), 7);
    let left = checked(&user, false);
    assert!(left.iter().all(|finding| ![linked, stray, lost].contains(&finding.inode)), "{left:#?}");
    user.rename((place, &format!("#{lost}")), (two, "back"), 0).expect("moved back");
    assert_eq!(user.lookup(two, "back"), Ok(lost));
}

/// Has something locked, as soon as the operation before it has ended there.
fn prepared(cluster: &Cluster, request: &PrepareTxRequest) -> TxPrepared {
    let leader = cluster.server_leader_client();
    let mut prepared = None;
    eventually("the lock", || {
        let answer = block_on(leader.call(Opcode::PrepareTx, request, CALL, Repeat::Harmless));
        let answer: PrepareTxResponse = answer.expect("an answer");
        prepared = answer.prepared;
        prepared.is_some()
    });
    prepared.expect("waited for")
}

/// A lock that no operation ends would keep a directory from everybody, and nobody know why.
#[test]
fn locks_that_stay_are_told() {
    let cluster = start_with(1, MetaTimings { old_lock: Duration::from_millis(600), ..quick() });
    let mut user = User::new(&cluster, 9);
    let two = user.mkdir(1, "two", 6).expect("made");
    let header = Some(MetaHeader { volume: VOLUME, partition: 6, ..MetaHeader::default() });
    // Of a term that is still to come, so it counts as open.
    let tx = Some(TxId { partition: 7, term: 1 << 40, number: 1 });
    let prepare = Some(TxPrepare { tx, inodes: vec![two], ..TxPrepare::default() });
    prepared(&cluster, &PrepareTxRequest { header, prepare });
    let mut findings = Vec::new();
    eventually("the finding", || {
        findings = checked(&user, false);
        !findings.is_empty()
    });
    assert_eq!((findings.len(), findings[0].inode, &findings[0].path[..]), (1, two, &b"/two"[..]));
    assert!(findings[0].text.contains("an operation that p7 decides has had it and 0 others locked"), "{findings:?}");
}

/// Whoever checks a volume in use would be told of damage that is none, and mend it into some.
#[test]
fn a_volume_in_use_has_no_findings() {
    let cluster = start(1);
    let mut first = User::new(&cluster, 1);
    let mut directories = vec![1];
    for number in 0..5 {
        directories.push(first.mkdir(1, &format!("base{number}"), PARTITION + number % COUNT).expect("made"));
    }
    let users: Vec<User> = (2..6).map(|session| first.beside(session)).collect();
    let (done, end) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for (mut user, seed) in users.into_iter().zip(1..) {
            let (directories, done, end) = (&directories, &done, &end);
            scope.spawn(move || wander(&mut user, seed, directories, done, end));
        }
        for _ in 0..4 {
            let wanted = done.load(Ordering::Relaxed) + 30;
            eventually("some operations", || done.load(Ordering::Relaxed) >= wanted);
            let findings = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| checked(&first, false)));
            if !matches!(&findings, Ok(found) if found.is_empty()) {
                end.store(true, Ordering::Relaxed);
                panic!("{findings:?}");
            }
        }
        end.store(true, Ordering::Relaxed);
    });
    check(&cluster, &first);
    assert_eq!(told(&checked(&first, false)), []);
}

/// A circle over several partitions would not be seen by any of them, and nothing in it ever again.
#[test]
fn circles_over_partitions_are_told() {
    let cluster = start(1);
    let mut user = User::new(&cluster, 9);
    let two = user.mkdir(1, "two", 6).expect("made");
    let three = user.mkdir(two, "three", 7).expect("made");
    assert_eq!(told(&checked(&user, false)), []);
    // As if the move of one below the other had been let through.
    let leader = cluster.server_leader_client();
    let header = Some(MetaHeader { volume: VOLUME, partition: 6, ..MetaHeader::default() });
    let tx = Some(TxId { partition: 99, term: 1, number: 1 });
    let prepare = Some(TxPrepare { tx, inodes: vec![two], ..TxPrepare::default() });
    let request = PrepareTxRequest { header: header.clone(), prepare };
    let prepared = prepared(&cluster, &request);
    let mut image = prepared.inodes[0].clone();
    // The parent's eight bytes: the only ones that are the root's number.
    let at = image.attributes.windows(8).rposition(|bytes| bytes == 1u64.to_le_bytes()).expect("its parent");
    image.attributes[at..at + 8].copy_from_slice(&three.to_le_bytes());
    let effects = Some(TxEffects { partition: 6, lock: prepared.lock, inodes: vec![image], ..TxEffects::default() });
    let request = FinishTxRequest { header, finishes: vec![TxFinish { tx, lock: prepared.lock, effects }] };
    block_on(leader.call::<Empty>(Opcode::FinishTx, &request, CALL, Repeat::Harmless)).expect("finished");
    tamper(&cluster, 5, 2, &[(1, "two", 0, 0)]);
    tamper(&cluster, 7, 3, &[(three, "two", two, 4)]);
    let findings = checked(&user, false);
    let circle = |inode: u64| {
        findings.iter().any(|finding| finding.inode == inode && finding.text.contains("is in a circle of directories"))
    };
    assert!(circle(two) && circle(three), "{:#?}", told(&findings));
}
