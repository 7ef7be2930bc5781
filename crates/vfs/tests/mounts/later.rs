//! Attributes that wait until contents are published, and times of what is not published yet.
use crate::*;
use cairn_vfs::{SetAttr, SetTime};

const USER: u32 = 9;

fn user(uid: u32) -> Caller {
    Caller { uid, gid: uid, ..root() }
}
fn mtime(ns: i64) -> SetAttr {
    SetAttr { mtime: Some(SetTime::At(ns)), ..SetAttr::default() }
}
async fn set(vfs: &Vfs, who: &Caller, ino: u64, handle: Option<Handle>, set: SetAttr) {
    vfs.setattr(who, ino, handle, set).await.expect("set");
}
/// As another mount sees it.
async fn seen(cluster: &FakeCluster, ino: u64) -> cairn_vfs::Attr {
    mount(cluster).await.getattr(&root(), ino, None).await.expect("there").0
}

/// Whoever was given a new file in a sticky directory could neither remove nor rename it, although he is shown as its
/// owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_owner_may_remove_and_rename_at_once() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    set(&vfs, &root(), ROOT, None, SetAttr { mode: Some(0o1777), ..SetAttr::default() }).await;
    for name in ["removed", "renamed", "replaced", "unknown"] {
        let (ino, handle) = create(&vfs, name, WRONLY).await;
        let owner = SetAttr { uid: Some(USER), gid: Some(USER), kill_privileges: true, ..SetAttr::default() };
        set(&vfs, &root(), ino, Some(handle), owner).await;
        match name {
            "removed" => vfs.unlink(&user(USER), ROOT, b"removed").await.expect("his own"),
            "renamed" => vfs.rename(&user(USER), (ROOT, b"renamed"), (ROOT, b"r"), 0).await.expect("his own"),
            "replaced" => {
                let (made, other) = vfs.create(&user(USER), ROOT, b"new", 0o644, WRONLY).await.expect("made");
                vfs.rename(&user(USER), (ROOT, b"new"), (ROOT, b"replaced"), 0).await.expect("his own");
                close(&vfs, other.handle).await;
                assert_eq!(vfs.lookup(&root(), ROOT, b"replaced").await.expect("there").attr.ino, made.attr.ino);
            }
            _ => {
                // Under a name that nobody has asked this mount for.
                mount(&cluster).await.link(&root(), ino, ROOT, b"linked").await.expect("linked");
                vfs.unlink(&user(USER), ROOT, b"linked").await.expect("his own");
            }
        }
        close(&vfs, handle).await;
    }
    cluster.check_namespace();
}

/// What was written would be lost with times that nobody may set any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contents_do_not_wait_for_what_is_refused() {
    let cluster = cluster();
    let (vfs, other) = (mount(&cluster).await, mount(&cluster).await);
    set(&vfs, &root(), ROOT, None, SetAttr { mode: Some(0o777), ..SetAttr::default() }).await;
    let (entry, opened) = vfs.create(&user(USER), ROOT, b"f", 0o644, WRONLY).await.expect("made");
    let ino = entry.attr.ino;
    write(&vfs, opened.handle, 0, b"contents").await;
    set(&vfs, &user(USER), ino, Some(opened.handle), mtime(77)).await;
    let owner = SetAttr { uid: Some(USER + 1), gid: Some(USER + 1), ..SetAttr::default() };
    set(&other, &root(), ino, None, owner).await;
    close(&vfs, opened.handle).await;
    assert_eq!(contents(&other, ino).await, b"contents");
    assert_eq!(vfs.getattr(&root(), ino, None).await.expect("there").0.uid, USER + 1);
}

/// A file that is unpacked with the time 0, as of archives that are the same wherever they are made, would have that of
/// its close.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_zero_is_kept() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (ino, handle) = create(&vfs, "new", WRONLY).await;
    write(&vfs, handle, 0, b"contents").await;
    set(&vfs, &root(), ino, Some(handle), mtime(0)).await;
    close(&vfs, handle).await;
    assert_eq!(seen(&cluster, ino).await.mtime, 0, "of a new file");
    let handle = open(&vfs, ino, WRONLY).await;
    write(&vfs, handle, 3, b"more contents").await;
    let now = vfs.getattr(&root(), ino, None).await.expect("there").0.mtime;
    assert!(now > 0, "it was written");
    set(&vfs, &root(), ino, Some(handle), mtime(0)).await;
    vfs.fsync(handle, false).await.expect("synced");
    assert_eq!(seen(&cluster, ino).await.mtime, 0, "of a file that was there");
    write(&vfs, handle, 0, b"x").await;
    close(&vfs, handle).await;
    assert!(seen(&cluster, ino).await.mtime >= now, "a write sets it again");
}

/// Backups that go by the time of change would take a file for one of the future, or of long ago.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_change_is_not_that_of_modification() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (ino, handle) = create(&vfs, "f", WRONLY).await;
    for ns in [4_000_000_000_000_000_000, -5_000_000_000] {
        write(&vfs, handle, 0, b"contents").await;
        let wrote = vfs.getattr(&root(), ino, None).await.expect("there").0.ctime;
        set(&vfs, &root(), ino, Some(handle), mtime(ns)).await;
        let shown = vfs.getattr(&root(), ino, None).await.expect("there").0;
        let soon = wrote..wrote + 60_000_000_000;
        assert!(shown.mtime == ns && soon.contains(&shown.ctime), "{ns}: {} after {wrote}", shown.ctime);
    }
    close(&vfs, handle).await;
}

/// The mode of a new file that was opened for reading would change elsewhere only some time after its close.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_tells_what_was_set_through_a_handle_for_reading() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (ino, handle) = create(&vfs, "f", RDONLY).await;
    set(&vfs, &root(), ino, Some(handle), SetAttr { mode: Some(0o751), ..SetAttr::default() }).await;
    vfs.flush(handle, 0).await.expect("flushed");
    assert_eq!(seen(&cluster, ino).await.mode & 0o7777, 0o751);
    vfs.release(handle, None).await.expect("released");
}

/// A user whose mount does not know yet that there is a file would read or write what he may only execute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_there_is_not_opened_by_making_it() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    set(&vfs, &root(), ROOT, None, SetAttr { mode: Some(0o777), ..SetAttr::default() }).await;
    let (entry, opened) = vfs.create(&root(), ROOT, b"program", 0o711, WRONLY).await.expect("made");
    write(&vfs, opened.handle, 0, b"secret").await;
    for other in [vfs.clone(), mount(&cluster).await] {
        for flags in [RDONLY, WRONLY, RDWR] {
            let refused = other.create(&user(USER), ROOT, b"program", 0o644, flags).await;
            assert_eq!(refused.map(|_| ()).map_err(|error| error.errno), Err(13), "{flags}");
        }
    }
    close(&vfs, opened.handle).await;
    let other = mount(&cluster).await;
    let refused = other.create(&user(USER), ROOT, b"program", 0o644, RDONLY).await;
    assert_eq!(refused.map(|_| ()).map_err(|error| error.errno), Err(13), "contents are there");
    assert_eq!(contents(&vfs, entry.attr.ino).await, b"secret");
    // What he may he gets, and what is refused holds nothing.
    set(&vfs, &root(), entry.attr.ino, None, SetAttr { mode: Some(0o755), ..SetAttr::default() }).await;
    let (_, opened) = other.create(&user(USER), ROOT, b"program", 0o644, RDONLY).await.expect("opened");
    assert_eq!(read(&other, opened.handle, 0, 10).await, b"secret");
    close(&other, opened.handle).await;
    for vfs in [vfs, other] {
        vfs.shutdown().await.expect("ended");
    }
    cluster.check_namespace();
}

/// A program would lose what it was just given the right to, by bytes that were written before; or who may write to it
/// but not own it would fail, as kernels take the right away on his behalf.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capability_goes_with_later_writes_only() {
    const NAME: &[u8] = b"security.capability";
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (entry, opened) = vfs.create(&root(), ROOT, b"program", 0o777, WRONLY).await.expect("made");
    let ino = entry.attr.ino;
    write(&vfs, opened.handle, 0, b"code").await;
    vfs.setxattr(&root(), ino, NAME, b"x", 0).await.expect("set");
    close(&vfs, opened.handle).await;
    assert_eq!(vfs.getxattr(&root(), ino, NAME).await.expect("it stays"), b"x");
    vfs.removexattr(&user(USER), ino, NAME).await.expect("by a write of his");
    assert_eq!(vfs.getxattr(&root(), ino, NAME).await.map_err(|error| error.errno), Err(61));
}

/// Contents would have the time that was set before they were written; or a partition of an earlier build would get
/// neither the attributes nor the contents.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_and_contents_go_together_or_apart() {
    let cluster = cluster();
    let vfs = still_mount(&cluster).await;
    for (name, older) in [("new", false), ("old", true), ("older", true)] {
        cluster.set_older_build(older);
        let (ino, handle) = create(&vfs, name, WRONLY).await;
        write(&vfs, handle, 0, b"first").await;
        set(&vfs, &root(), ino, Some(handle), mtime(5)).await;
        set(&vfs, &root(), ino, Some(handle), SetAttr { mode: Some(0o755), ..SetAttr::default() }).await;
        let now = vfs.getattr(&root(), ino, None).await.expect("there").0.ctime;
        write(&vfs, handle, 5, b" second").await;
        cluster.take_calls();
        close(&vfs, handle).await;
        let calls = cluster.take_calls();
        let of = |call: &str| calls.get(call).copied().unwrap_or_default();
        let asked = (of("PublishAttributes"), of("Setattr"), of("Publish"));
        // Two flights: the second one has nothing more to take along. Who refused it is not asked again for a while.
        let expected = if name == "new" { (1, 0) } else { (u64::from(name == "old"), 1) };
        assert_eq!((asked.0, asked.1), expected, "{name}: {calls:?}");
        assert!(asked.2 <= 2 && asked.0 + asked.2 >= 1, "{name}: {calls:?}");
        let there = seen(&cluster, ino).await;
        assert_eq!((there.mode & 0o7777, there.size), (0o755, 12), "{name}");
        assert!(there.mtime >= now, "{name}: {} is before {now}", there.mtime);
        assert_eq!(contents(&mount(&cluster).await, ino).await, b"first second", "{name}");
    }
}

/// A program that closes a new file and then sets its times by name would find those of before: kernels tell of the
/// last close behind its back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_set_while_the_last_handle_is_closed_stays() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    for number in 0..400 {
        let (ino, handle) = create(&vfs, &format!("f{number}"), WRONLY).await;
        vfs.flush(handle, 0).await.expect("flushed");
        let (closing, setting) = (vfs.clone(), vfs.clone());
        let closed = tokio::spawn(async move { closing.release(handle, None).await });
        let was_set = tokio::spawn(async move {
            for _ in 0..number % 40 {
                tokio::task::yield_now().await;
            }
            set(&setting, &root(), ino, None, mtime(1_900_000_000_000_000_000)).await;
            setting.getattr(&root(), ino, None).await.expect("there").0.mtime
        });
        assert_eq!(was_set.await.expect("set"), 1_900_000_000_000_000_000, "f{number}: at once");
        closed.await.expect("closed").expect("closed");
        assert_eq!(
            vfs.getattr(&root(), ino, None).await.expect("there").0.mtime,
            1_900_000_000_000_000_000,
            "f{number}"
        );
        assert_eq!(seen(&cluster, ino).await.mtime, 1_900_000_000_000_000_000, "f{number}: elsewhere");
    }
}

/// A user could open a file through another mount after he was shut out of it, and read what is written then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_that_are_taken_away_are_gone_at_once() {
    let cluster = cluster();
    let (vfs, other) = (still_mount(&cluster).await, mount(&cluster).await);
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let group = |gid| SetAttr { gid: Some(gid), ..SetAttr::default() };
    for (name, made, change, who) in
        [("mode", 0o644, mode(0o600), user(USER)), ("group", 0o640, group(USER + 1), Caller { gid: 0, ..user(USER) })]
    {
        let (entry, opened) = vfs.create(&root(), ROOT, name.as_bytes(), made, WRONLY).await.expect("made");
        let ino = entry.attr.ino;
        set(&vfs, &root(), ino, Some(opened.handle), change).await;
        let refused = other.open(&who, ino, RDONLY).await.map(|_| ()).map_err(|error| error.errno);
        assert_eq!(refused, Err(13), "{name}");
        write(&vfs, opened.handle, 0, b"secret").await;
        close(&vfs, opened.handle).await;
    }
    // What gives more waits.
    let (ino, handle) = create(&vfs, "given", WRONLY).await;
    cluster.take_calls();
    set(&vfs, &root(), ino, Some(handle), SetAttr { uid: Some(USER), gid: Some(USER), ..mode(0o755) }).await;
    assert_eq!(cluster.take_calls().get("Setattr"), None);
    close(&vfs, handle).await;
}

/// Programs that lock by making a file that nobody may write to would both have the lock, each on its machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_without_rights_is_made_once() {
    let cluster = cluster();
    let (vfs, other) = (mount(&cluster).await, mount(&cluster).await);
    set(&vfs, &root(), ROOT, None, SetAttr { mode: Some(0o777), ..SetAttr::default() }).await;
    for (name, mode) in [("lock", 0), ("readable", 0o444)] {
        let (_, opened) = vfs.create(&user(USER), ROOT, name.as_bytes(), mode, WRONLY).await.expect("made");
        let second = other.create(&user(USER), ROOT, name.as_bytes(), mode, WRONLY).await;
        assert_eq!(second.map(|_| ()).map_err(|error| error.errno), Err(13), "{name}");
        close(&vfs, opened.handle).await;
    }
    // What its owner may do with what is there does not depend on the mode that he would have given it.
    let (_, opened) = vfs.create(&user(USER), ROOT, b"there", 0o644, WRONLY).await.expect("made");
    close(&vfs, opened.handle).await;
    let (_, opened) = other.create(&user(USER), ROOT, b"there", 0o444, WRONLY).await.expect("opened");
    close(&other, opened.handle).await;
    for vfs in [vfs, other] {
        vfs.shutdown().await.expect("ended");
    }
    cluster.check_namespace();
}

/// While contents are stored a file would be seen with the mode that it had before it was set; or have the time that
/// was set before it was written for good, because something else was set just then.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_looked_at_and_set_while_contents_are_stored() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    for number in 0..400 {
        let (ino, handle) = create(&vfs, &format!("f{number}"), WRONLY).await;
        set(&vfs, &root(), ino, Some(handle), SetAttr { mode: Some(0o755), ..mtime(5) }).await;
        write(&vfs, handle, 0, b"contents").await;
        let wrote = vfs.getattr(&root(), ino, None).await.expect("there").0.mtime;
        let (storing, setting) = (vfs.clone(), vfs.clone());
        let stored = tokio::spawn(async move { storing.fsync(handle, false).await });
        let was_set = tokio::spawn(async move {
            for _ in 0..number % 40 {
                tokio::task::yield_now().await;
            }
            set(&setting, &root(), ino, Some(handle), SetAttr { mode: Some(0o757), ..SetAttr::default() }).await;
        });
        while !stored.is_finished() {
            let seen = vfs.getattr(&root(), ino, None).await.expect("there").0;
            assert_eq!(seen.mode & 0o755, 0o755, "f{number}: {seen:?}");
            tokio::task::yield_now().await;
        }
        stored.await.expect("stored").expect("stored");
        was_set.await.expect("set");
        close(&vfs, handle).await;
        let there = seen(&cluster, ino).await;
        assert!(there.mode & 0o777 == 0o757 && there.mtime >= wrote, "f{number}: {there:?}, written at {wrote}");
    }
}

/// A file that was removed would be shown with its name for a while, because something else of it was set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_set_here_does_not_make_the_rest_newer() {
    let cluster = cluster();
    // Longer than any machine has been up: what is known to be old is old on a machine that has just started, too.
    let ten_years = Duration::from_secs(10 * 365 * 86_400);
    let vfs = mount_with(&cluster, Duration::from_secs(8), VfsOptions { attr_ttl: ten_years, ..options() }).await;
    for removes in [false, true] {
        let (ino, handle) = create(&vfs, "f", WRONLY).await;
        vfs.link(&root(), ino, ROOT, b"g").await.expect("linked");
        vfs.unlink(&root(), ROOT, b"g").await.expect("removed");
        if removes {
            vfs.unlink(&root(), ROOT, b"f").await.expect("removed");
        }
        let (mut shown, left) = vfs.setattr(&root(), ino, Some(handle), mtime(5)).await.expect("set");
        if left.is_zero() {
            shown = vfs.getattr(&root(), ino, Some(handle)).await.expect("open").0;
        }
        assert_eq!((shown.nlink, shown.mtime), (u32::from(!removes), 5));
        close(&vfs, handle).await;
    }
}
