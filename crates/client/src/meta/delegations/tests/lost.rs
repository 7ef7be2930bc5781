//! What a dead process had answered and nobody can store any more: its successors tell it, for as long as they live.
use super::*;

/// A client that is dead, with the names that it answered and did not store, in memory that it leaves.
struct Dead {
    cluster: FakeCluster,
    other: (Client, Volume),
    kept: Kept,
    session: u64,
    top: u64,
    /// A file that is stored, whose number a batch brought.
    late: u64,
}

const LOST: u64 = 10;

/// `ends`: the servers have ended its session.
async fn die(ends: bool) -> Dead {
    let (cluster, _leading, other) = start().await;
    let servers = Arc::new(Dying { servers: cluster.fake.clone(), is_dead: AtomicBool::new(false) });
    let client = cluster.connect_through(servers.clone()).await;
    let volume = client.volume("default").await.expect("the volume").leading();
    let kept = Kept::default();
    volume.keep_queues_in(Arc::new(kept.clone()));
    let top = make_top(&volume).await.inode;
    let mut late = 0;
    for number in 0..300 {
        late = make_file(&volume, top, &format!("kept{number}")).await.inode;
    }
    volume.commit(top).await.expect("stored");
    servers.is_dead.store(true, Ordering::Relaxed);
    for number in 0..LOST {
        make_file(&volume, top, &format!("lost{number}")).await;
    }
    let session = volume.session_number().await.expect("a session");
    if ends {
        other.1.end_session_of(session).await.expect("ended");
    }
    Dead { cluster, other, kept, session, top, late }
}

async fn succeed(dead: &Dead) -> (Client, Volume) {
    let client = dead.cluster.connect_local().await;
    let volume = client.volume("default").await.expect("the volume").leading();
    volume.keep_queues_in(Arc::new(Kept::default()));
    (client, volume)
}

/// Everything that it covers is an error, nothing else is, and who syncs everything is told once.
async fn is_told(volume: &Volume, dead: &Dead) {
    let (top, late) = (dead.top, dead.late);
    let new = || NewFile { mode: 0o100_640, exclusive: true, ..NewFile::default() };
    for (what, refused) in [
        ("fsync of the directory", volume.commit(top).await.err()),
        ("fsync of a file", volume.commit(late).await.err()),
        ("lookup", volume.lookup(top, b"kept1", b"kept1").await.err()),
        ("list", volume.readdir(top, b"", false).await.err()),
        ("stat", volume.getattr(top).await.err()),
        ("stat of a file", volume.getattr(late).await.err()),
        ("open", volume.open_for_read_at(top, b"kept1", b"kept1", 4, 1).await.err()),
        ("create", volume.create_at(top, b"new", b"new", new()).await.err()),
        ("unlink", volume.unlink_at(top, b"kept1", b"kept1").await.err()),
        ("..", volume.parent_inode(top).await.err()),
        ("sync", volume.commit_all().await.err()),
    ] {
        assert_eq!(refused.as_ref().map(ClientError::errno), Some(5), "{what}: {refused:?}");
    }
    volume.commit_all().await.expect("it is told once");
    assert_eq!((volume.lost_counts().0, volume.led_counts()), (1, (0, 0)));
    let elsewhere = make_directory(volume, &format!("elsewhere{}", volume.session_number().await.expect("one"))).await;
    make_file(volume, elsewhere, "f").await;
    volume.commit(elsewhere).await.expect("others are as ever");
    assert_eq!(volume.caller.led_by(elsewhere), Some(elsewhere), "and led");
}

/// A program would go on in a directory that has less than it was told, and its fsync say that all of it is durable.
#[tokio::test(start_paused = true)]
async fn what_no_successor_can_store_is_an_error_for_each_of_them() {
    let dead = die(true).await;
    for successor in 1..4 {
        let (_client, volume) = succeed(&dead).await;
        volume.dead_session(dead.session, successor).store(dead.kept.left()).await;
        is_told(&volume, &dead).await;
        assert_eq!(volume.lost_counts(), (1, LOST));
        assert_eq!(dead.kept.left()[0].items.len() as u64, LOST, "it stays for the next one");
    }
    // One for which there are no slots.
    let (_client, volume) = succeed(&dead).await;
    let mut left = dead.kept.left();
    left[0].is_given_up = true;
    let before = calls(&dead.cluster, "Batch");
    volume.dead_session(dead.session, 9).store(left).await;
    assert_eq!(calls(&dead.cluster, "Batch"), before);
    is_told(&volume, &dead).await;
    let listed = dead.other.1.readdir(dead.top, b"", false).await.expect("others go on");
    assert!(!listed.entries.is_empty());
}

/// The end of the process that has noticed a loss, by a crash or an upgrade, would make it undone.
#[tokio::test(start_paused = true)]
async fn a_loss_outlives_the_process_that_noticed_it() {
    for is_handed_over in [false, true] {
        let (cluster, (_first, volume), (second, other)) = start().await;
        let kept = Kept::default();
        volume.keep_queues_in(Arc::new(kept.clone()));
        let top = make_top(&volume).await.inode;
        let late = make_file(&volume, top, "kept1").await.inode;
        volume.commit(top).await.expect("stored");
        let session = volume.session_number().await.expect("a session");
        make_file(&volume, top, "lost").await;
        other.end_session_of(session).await.expect("ended");
        volume.commit(top).await.expect_err("it is lost");
        assert!(!is_handed_over || volume.end_leading(Duration::from_secs(2)).await);
        let dead = Dead { cluster, other: (second, other), kept, session, top, late };
        let (_client, successor) = succeed(&dead).await;
        successor.dead_session(session, 1).store(dead.kept.left()).await;
        is_told(&successor, &dead).await;
    }
}

/// What is lost, but nobody knows yet, would be seen as the servers have it, and synced with success.
#[tokio::test(start_paused = true)]
async fn whoever_comes_before_it_is_known_waits() {
    for is_lost in [true, false] {
        let dead = die(is_lost).await;
        let (_client, volume) = succeed(&dead).await;
        dead.cluster.fake.state.lock().leaderless_for = Some(0);
        let session = volume.dead_session(dead.session, 1);
        let heals = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            dead.cluster.fake.state.lock().leaderless_for = None;
        };
        let syncs = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let early = tokio::time::timeout(Duration::from_secs(2), volume.commit(dead.top)).await;
            assert!(early.is_err() && volume.led_counts() == (1, LOST), "{early:?}");
            volume.commit(dead.top).await
        };
        let ((), (), synced) = tokio::join!(session.store(dead.kept.left()), heals, syncs);
        assert_eq!(synced.is_err(), is_lost, "{synced:?}");
        if is_lost {
            is_told(&volume, &dead).await;
        } else {
            volume.lookup(dead.top, b"lost9", b"lost9").await.expect("it is stored");
            assert_eq!((volume.lost_counts(), volume.led_counts()), ((0, 0), (0, 0)));
            assert!(dead.kept.0.lock().is_empty(), "its place is free");
        }
    }
}
