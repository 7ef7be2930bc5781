//! Directories as programs list them, and names that are remembered.
use crate::*;
use cairn_vfs::{DirItem, SetAttr, SetTime};

/// An access time would go back while the servers do not know it, or come again after it was set to something else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_times_do_not_go_back() {
    let cluster = cluster();
    let ttl = Duration::from_millis(50);
    let vfs = mount_with(&cluster, Duration::from_secs(8), VfsOptions { attr_ttl: ttl, ..options() }).await;
    let (file, handle) = create(&vfs, "f", RDWR).await;
    write(&vfs, handle, 0, b"text").await;
    close(&vfs, handle).await;
    let dir = vfs.mkdir(&root(), ROOT, b"d", 0o755).await.expect("made").attr.ino;
    let old = SetAttr { atime: Some(SetTime::At(-7)), ..SetAttr::default() };
    let atime = async |vfs: &Vfs, ino| vfs.getattr(&root(), ino, None).await.expect("there").0.atime;
    for ino in [file, dir] {
        vfs.setattr(&root(), ino, None, old).await.expect("set");
        assert_eq!(atime(&vfs, ino).await, -7);
        let handle = match ino == file {
            true => open(&vfs, ino, RDONLY).await,
            false => vfs.opendir(&root(), ino, 0).await.expect("opened").handle,
        };
        if ino == file {
            assert_eq!(read(&vfs, handle, 0, 9).await, b"text");
            close(&vfs, handle).await;
        } else {
            list(&vfs, handle, 0, 10, true).await;
            vfs.releasedir(handle).await.expect("closed");
        }
        let shown = atime(&vfs, ino).await;
        assert!(shown > 0, "{shown}");
        for _ in 0..5 {
            tokio::time::sleep(ttl).await;
            assert_eq!(atime(&vfs, ino).await, shown, "as it was shown before");
        }
    }
    vfs.setattr(&root(), file, None, old).await.expect("set");
    let shown = atime(&vfs, dir).await;
    vfs.shutdown().await.expect("ended");
    let other = mount(&cluster).await;
    assert_eq!((atime(&other, file).await, atime(&other, dir).await), (-7, shown));
}

async fn list(vfs: &Vfs, handle: Handle, mut from: u64, at_a_time: usize, plus: bool) -> Vec<DirItem> {
    let mut all = Vec::new();
    loop {
        let before = all.len();
        let mut take = |item: DirItem| {
            let room = all.len() - before < at_a_time;
            if room {
                all.push(item);
            }
            room
        };
        vfs.readdir(handle, from, plus, &mut take).await.expect("listed");
        if all.len() == before {
            return all;
        }
        from = all.last().map_or(0, |item| item.cookie);
    }
}

/// Entries would be missing or come twice when a directory is read in small pieces, or is emptied meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_directories_are_listed_once_and_can_be_emptied() {
    const FILES: usize = 2500;
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let dir = vfs.mkdir(&root(), ROOT, b"d", 0o755).await.expect("made").attr.ino;
    for i in 0..FILES {
        vfs.mknod(&root(), dir, format!("f{i}").as_bytes(), 0o644, 0).await.expect("made");
    }
    let handle = vfs.opendir(&root(), dir, 0).await.expect("opened").handle;
    let all = list(&vfs, handle, 0, 37, true).await;
    assert_eq!(all.len(), FILES + 2);
    assert_eq!((all[0].name.as_slice(), all[1].name.as_slice(), all[1].ino), (&b"."[..], &b".."[..], ROOT));
    assert!(all[2..].iter().all(|item| item.entry.is_some_and(|e| e.attr.ino == item.ino)));
    let mut names: Vec<_> = all.iter().map(|item| item.name.clone()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), FILES + 2);
    let again = list(&vfs, handle, all[1000].cookie, 500, false).await;
    assert!(again.iter().map(|i| &i.name).eq(all[1001..].iter().map(|i| &i.name)), "from the middle on");
    // Kernels ask for attributes of some, as it pleases them.
    let (mut from, mut number) = (0, 0);
    loop {
        let mut page = Vec::new();
        let mut take = |item: DirItem| {
            page.push(item);
            page.len() < 100
        };
        number += 1;
        vfs.readdir(handle, from, number % 7 == 4, &mut take).await.expect("listed");
        let Some(last) = page.last() else { break };
        from = last.cookie;
        for item in page.iter().filter(|item| item.ino != dir && item.ino != ROOT) {
            vfs.unlink(&root(), dir, &item.name).await.expect("removed");
        }
    }
    vfs.releasedir(handle).await.expect("closed");
    vfs.rmdir(&root(), ROOT, b"d").await.expect("empty");
}

/// A listing with attributes would ask for each of them again, or show the size before the last write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_fill_the_cache_and_know_what_was_written() {
    let cluster = cluster();
    let vfs = still_mount(&cluster).await;
    let (ino, handle) = create(&vfs, "f", RDWR).await;
    write(&vfs, handle, 0, &[1; 777]).await;
    let (other, closed) = create(&vfs, "g", RDWR).await;
    close(&vfs, closed).await;
    let dir = vfs.opendir(&root(), ROOT, 0).await.expect("opened").handle;
    let all = list(&vfs, dir, 0, 100, true).await;
    let size = |ino| all.iter().find(|i| i.ino == ino).and_then(|i| i.entry).map(|e| e.attr.size);
    assert_eq!((size(ino), size(other)), (Some(777), Some(0)));
    cluster.take_calls();
    vfs.getattr(&root(), other, None).await.expect("cached");
    vfs.lookup(&root(), ROOT, b"g").await.expect("cached");
    let calls = cluster.take_calls();
    assert!(!calls.contains_key("Getattr") && !calls.contains_key("Lookup"), "{calls:?}");
    assert!(vfs.lookup(&root(), ROOT, b"nothing").await.is_err());
    assert!(vfs.lookup(&root(), ROOT, b"nothing").await.is_err());
    assert_eq!(cluster.take_calls().get("Lookup"), Some(&1), "remembered that it is not there");
    let (_, made) = create(&vfs, "nothing", RDWR | EXCL).await;
    vfs.lookup(&root(), ROOT, b"nothing").await.expect("made here");
    close(&vfs, made).await;
    close(&vfs, handle).await;
}

/// `ls -l` would ask servers for the access control list of each file; or what was set here be told as absent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_extended_attributes_by_a_listing_is_not_asked_for_them() {
    const NAME: &[u8] = b"user.x";
    const ACL: &[u8] = b"system.posix_acl_access";
    let too_long = [b"user.".as_slice(), &[b'x'; 251]].concat();
    let cluster = cluster();
    let (vfs, other) = (still_mount(&cluster).await, still_mount(&cluster).await);
    let mut inodes = Vec::new();
    for name in ["bare", "has", "gets"] {
        let (ino, handle) = create(&other, name, RDWR).await;
        close(&other, handle).await;
        inodes.push(ino);
    }
    let [bare, has, gets] = inodes[..] else { panic!("three") };
    other.setxattr(&root(), has, NAME, b"y", 0).await.expect("set");
    let get = async |ino, name| vfs.getxattr(&root(), ino, name).await.map_err(|error| error.errno);
    let list_all = async || {
        let dir = vfs.opendir(&root(), ROOT, 0).await.expect("opened").handle;
        list(&vfs, dir, 0, 100, true).await;
        vfs.releasedir(dir).await.expect("closed");
        cluster.take_calls();
    };
    list_all().await;
    assert_eq!((get(bare, NAME).await, get(bare, ACL).await), (Err(libc::ENODATA), Err(libc::ENODATA)));
    assert_eq!(vfs.listxattr(&root(), bare).await.expect("listed"), Vec::<Vec<u8>>::new());
    let calls = cluster.take_calls();
    assert!(!calls.contains_key("GetXattr") && !calls.contains_key("ListXattr"), "{calls:?}");
    assert_eq!(get(bare, b"system.other").await, Err(libc::EOPNOTSUPP), "of such names there are none");
    assert_eq!(get(bare, b"user.").await, Err(libc::EINVAL), "that is no name");
    assert_eq!(get(bare, &too_long).await, Err(libc::ERANGE));
    assert_eq!(get(has, NAME).await, Ok(b"y".to_vec()));
    assert_eq!(vfs.listxattr(&root(), has).await.expect("listed"), [NAME]);
    vfs.setxattr(&root(), gets, NAME, b"z", 0).await.expect("set");
    assert_eq!(get(gets, NAME).await, Ok(b"z".to_vec()));
    vfs.removexattr(&root(), gets, NAME).await.expect("removed");
    // A listing that was on its way while something is set here is not believed.
    list_all().await;
    other.setxattr(&root(), gets, NAME, b"w", 0).await.expect("set");
    assert_eq!(get(gets, NAME).await, Ok(b"w".to_vec()));
}

/// What a kernel is told by a listing counts as new there: a program would find names that it has removed, files that
/// it has replaced and sizes of before it wrote, because the page was read before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_do_not_bring_back_what_was_changed_since() {
    let cluster = cluster();
    let ttl = Duration::from_secs(3600);
    let long = VfsOptions { attr_ttl: ttl, entry_ttl: ttl, negative_ttl: ttl, ..options() };
    let vfs = mount_with(&cluster, Duration::from_secs(8), long).await;
    let dir = vfs.mkdir(&root(), ROOT, b"d", 0o755).await.expect("made").attr.ino;
    for i in 0..6 {
        vfs.mknod(&root(), dir, format!("f{i}").as_bytes(), 0o644, 0).await.expect("made");
    }
    let handle = vfs.opendir(&root(), dir, 0).await.expect("opened").handle;
    let mut first = Vec::new();
    let mut take = |item: DirItem| {
        let room = first.len() < 3;
        if room {
            first.push(item);
        }
        room
    };
    vfs.readdir(handle, 0, true, &mut take).await.expect("listed");
    vfs.unlink(&root(), dir, b"f1").await.expect("removed");
    let (new, opened) = create(&vfs, "new", WRONLY).await;
    write(&vfs, opened, 0, b"new").await;
    close(&vfs, opened).await;
    vfs.rename(&root(), (ROOT, b"new"), (dir, b"f2"), 0).await.expect("replaced");
    let written = vfs.lookup(&root(), dir, b"f3").await.expect("there").attr.ino;
    let opened = open(&vfs, written, WRONLY).await;
    write(&vfs, opened, 0, b"written").await;
    close(&vfs, opened).await;
    let moded = vfs.lookup(&root(), dir, b"f4").await.expect("there").attr.ino;
    vfs.setattr(&root(), moded, None, SetAttr { mode: Some(0o600), ..SetAttr::default() }).await.expect("set");
    let rest = list(&vfs, handle, first[2].cookie, 100, true).await;
    let told = |name: &[u8]| rest.iter().find(|item| item.name == name).and_then(|item| item.entry).map(|e| e.attr);
    assert_eq!(told(b"f1").map(|attr| attr.ino), None, "it is gone");
    assert!(told(b"f2").is_none_or(|attr| attr.ino == new), "it is another one: {:?}", told(b"f2"));
    assert!(told(b"f3").is_none_or(|attr| attr.size == 7), "it was written: {:?}", told(b"f3"));
    assert!(told(b"f4").is_none_or(|attr| attr.mode & 0o7777 == 0o600), "it was set: {:?}", told(b"f4"));
    assert!(told(b"f5").is_some(), "nothing happened to it");
    let found = vfs.lookup(&root(), dir, b"f1").await.map(|entry| entry.attr.ino).map_err(|error| error.errno);
    assert_eq!(found, Err(2));
    assert_eq!(vfs.lookup(&root(), dir, b"f2").await.expect("there").attr.ino, new);
}

/// A long listing would show what files were when it began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_show_what_others_changed_a_while_ago() {
    let cluster = cluster();
    let ttl = Duration::from_millis(50);
    let short = VfsOptions { attr_ttl: ttl, entry_ttl: ttl, ..options() };
    let (vfs, other) = (mount_with(&cluster, Duration::from_secs(8), short).await, mount(&cluster).await);
    for name in ["a", "b", "c"] {
        let (_, opened) = create(&other, name, WRONLY).await;
        close(&other, opened).await;
    }
    let handle = vfs.opendir(&root(), ROOT, 0).await.expect("opened").handle;
    let mut first = Vec::new();
    let mut take = |item: DirItem| {
        first.push(item);
        first.len() < 3
    };
    vfs.readdir(handle, 0, true, &mut take).await.expect("listed");
    let opened = open(&other, other.lookup(&root(), ROOT, b"c").await.expect("there").attr.ino, WRONLY).await;
    write(&other, opened, 0, b"more").await;
    close(&other, opened).await;
    other.unlink(&root(), ROOT, b"b").await.expect("removed");
    tokio::time::sleep(ttl).await;
    let rest = list(&vfs, handle, first[2].cookie, 100, true).await;
    let seen: Vec<_> = rest.iter().map(|item| (&item.name[..], item.entry.map(|e| e.attr.size))).collect();
    assert_eq!(seen, [(&b"c"[..], Some(4))]);
    tokio::time::sleep(ttl).await;
    assert!(list(&vfs, handle, rest[0].cookie, 100, true).await.is_empty(), "it has an end");
}

/// `find` and `rm -r` over a large directory would ask for each name by itself; or show, for what was asked ahead, a
/// file that was removed here meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_in_a_row_are_asked_for_ahead() {
    const FILES: usize = 3000;
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let dir = vfs.mkdir(&root(), ROOT, b"d", 0o755).await.expect("made").attr.ino;
    let name = |i: usize| format!("f{i:05}").into_bytes();
    for i in 0..FILES {
        vfs.mknod(&root(), dir, &name(i), 0o640, 0).await.expect("made");
    }
    let ttl = Duration::from_secs(600);
    let long = VfsOptions { attr_ttl: ttl, entry_ttl: ttl, ..options() };
    let other = mount_with(&cluster, Duration::from_secs(8), long).await;
    cluster.take_calls();
    for i in 0..FILES {
        let entry = other.lookup(&root(), dir, &name(i)).await.expect("there");
        assert_eq!((entry.attr.mode & 0o777, entry.attr.nlink), (0o640, 1), "{i}");
        // As slowly as a kernel asks: a page has the time to come.
        tokio::task::yield_now().await;
        if i % 100 == 20 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let calls = cluster.take_calls();
    let (lookups, pages) = (calls.get("Lookup").copied().unwrap_or(0), calls.get("Readdir").copied().unwrap_or(0));
    assert!(lookups < FILES as u64 / 2 && (2..20).contains(&pages), "{calls:?}");
    // Gone here, whatever was asked before.
    for i in 0..FILES {
        other.lookup(&root(), dir, &name(i)).await.expect("there");
        other.unlink(&root(), dir, &name(i)).await.expect("removed");
        let error = other.lookup(&root(), dir, &name(i)).await.expect_err("removed");
        assert_eq!(error.errno, libc::ENOENT);
    }
    other.rmdir(&root(), ROOT, b"d").await.expect("empty");
}
