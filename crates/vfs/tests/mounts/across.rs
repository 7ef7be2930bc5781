//! A volume whose directories are in several partitions.
use crate::*;
use cairn_vfs::DirItem;

const DIRECTORY: u32 = 0o040_000;

async fn list_plus(vfs: &Vfs, ino: u64) -> Vec<DirItem> {
    let handle = vfs.opendir(&root(), ino, 0).await.expect("opened").handle;
    let mut all = Vec::new();
    let mut take = |item: DirItem| {
        all.push(item);
        true
    };
    vfs.readdir(handle, 0, true, &mut take).await.expect("listed");
    vfs.releasedir(handle).await.expect("closed");
    all
}

/// A kernel would be told, and remember, directories without permissions, owner and times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_of_other_partitions_are_told_as_they_are() {
    let cluster = cluster().across(3);
    let vfs = still_mount(&cluster).await;
    for (number, name) in ["/a", "/b", "/c"].into_iter().enumerate() {
        vfs.volume().mkdir_in(name.as_bytes(), 0o751, 0, number as u32 + 1).await.expect("made");
    }
    let b = vfs.lookup(&root(), ROOT, b"b").await.expect("there");
    assert_eq!((b.attr.mode, b.attr.nlink), (DIRECTORY | 0o751, 2));
    assert_eq!(vfs.getattr(&root(), b.attr.ino, None).await.expect("there").0, b.attr);
    for item in list_plus(&vfs, ROOT).await.iter().filter(|item| item.cookie > 2) {
        let entry = item.entry.expect("with attributes");
        assert_eq!((entry.attr.mode, entry.attr.ino, item.kind), (DIRECTORY | 0o751, item.ino, DIRECTORY));
        assert!(entry.attr.ctime > 0 && entry.attr.btime > 0, "{entry:?}");
        assert_eq!(vfs.lookup(&root(), ROOT, &item.name).await.expect("cached").attr, entry.attr);
    }
    let below = vfs.volume().mkdir_in(b"/b/d", 0o700, 0, 3).await.expect("made").inode;
    assert_eq!(vfs.lookup(&root(), below, b"..").await.expect("there").attr.ino, b.attr.ino);
    let dots = list_plus(&vfs, below).await;
    assert_eq!(dots.iter().map(|item| item.ino).collect::<Vec<_>>(), [below, b.attr.ino]);
    let files = vfs.statfs(&[]).await.expect("counted");
    assert_eq!(files.files - files.files_free, 5, "of all partitions");
    // One that does not answer keeps nobody from listing names.
    cluster.silence(3, true);
    let other = mount_with(&cluster, Duration::from_secs(3), options()).await;
    let told: Vec<_> = list_plus(&other, ROOT).await.into_iter().filter(|item| item.cookie > 2).collect();
    assert_eq!(told.iter().map(|item| item.kind).collect::<Vec<_>>(), [DIRECTORY; 3]);
    assert_eq!(told.iter().map(|item| item.entry.is_some()).collect::<Vec<_>>(), [true, true, false]);
    cluster.check_namespace();
}

/// A file that was moved into another partition's directory would not be opened, written or kept while it is open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_move_between_partitions_while_they_are_open() {
    let cluster = cluster().across(2);
    let vfs = mount(&cluster).await;
    let d = vfs.volume().mkdir_in(b"/d", 0o755, 0, 2).await.expect("made").inode;
    let (ino, handle) = create(&vfs, "f", RDWR).await;
    write(&vfs, handle, 0, b"first").await;
    vfs.rename(&root(), (ROOT, b"f"), (d, b"f"), 0).await.expect("moved");
    write(&vfs, handle, 5, b" second").await;
    close(&vfs, handle).await;
    let found = vfs.lookup(&root(), d, b"f").await.expect("there");
    assert_eq!((found.attr.ino, found.attr.size, found.attr.mode & 0o7777), (ino, 12, 0o644));
    // Open(2) with O_CREAT of what is there, by a mount that knows nothing of it.
    let other = mount(&cluster).await;
    let (entry, opened) = other.create(&root(), d, b"f", 0o600, RDWR).await.expect("opened");
    assert_eq!((entry.attr.ino, entry.attr.size), (ino, 12));
    write(&other, opened.handle, 12, b" third").await;
    other.link(&root(), ino, ROOT, b"g").await.expect("linked");
    other.unlink(&root(), d, b"f").await.expect("removed");
    other.unlink(&root(), ROOT, b"g").await.expect("removed");
    assert_eq!(read_all(&other, opened.handle).await, b"first second third");
    close(&other, opened.handle).await;
    other.rmdir(&root(), ROOT, b"d").await.expect("it is empty");
    assert_eq!(other.lookup(&root(), ROOT, b"d").await.expect_err("gone").errno, libc::ENOENT);
    vfs.shutdown().await.expect("ended");
    other.shutdown().await.expect("ended");
    cluster.check_namespace();
}

/// `cp` would fail in the middle, or `mv` of a directory say that it crosses file systems.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trees_are_changed_across_partitions() {
    let cluster = cluster().across(3);
    let vfs = mount(&cluster).await;
    let mut at = ROOT;
    for (depth, name) in [b"a", b"b", b"c"].into_iter().enumerate() {
        at = vfs.volume().mkdir_at_in(at, name, b"a directory", 0o755, depth as u32 + 1).await.expect("made").inode;
    }
    assert_eq!(vfs.rmdir(&root(), ROOT, b"a").await.expect_err("b is in it").errno, libc::ENOTEMPTY);
    vfs.rename(&root(), (ROOT, b"a"), (ROOT, b"z"), 0).await.expect("renamed");
    let a = vfs.lookup(&root(), ROOT, b"z").await.expect("there").attr.ino;
    let b = vfs.lookup(&root(), a, b"b").await.expect("there").attr.ino;
    // With c in it, it leaves a.
    vfs.rename(&root(), (a, b"b"), (ROOT, b"b"), 0).await.expect("moved");
    assert_eq!(vfs.lookup(&root(), b, b"..").await.expect("there").attr.ino, ROOT);
    let into_itself = vfs.rename(&root(), (ROOT, b"b"), (at, b"b"), 0).await.expect_err("c is in b");
    assert_eq!(into_itself.errno, libc::EINVAL);
    vfs.symlink(&root(), at, b"l", b"../x").await.expect("made");
    vfs.rename(&root(), (at, b"l"), (ROOT, b"l"), 0).await.expect("moved");
    let link = vfs.lookup(&root(), ROOT, b"l").await.expect("there").attr;
    assert!(link.is_symlink() && vfs.readlink(&root(), link.ino).await.expect("read") == b"../x");
    let (source, from) = create(&vfs, "source", RDWR).await;
    write(&vfs, from, 0, &[7; 100_000]).await;
    let (entry, to) = vfs.create(&root(), at, b"copy", 0o644, RDWR).await.expect("made");
    assert_ne!(entry.attr.ino, source);
    assert_eq!(vfs.copy_file_range((from, 0), (to.handle, 0), 100_000).await.expect("copied"), 100_000);
    assert_eq!(read_all(&vfs, to.handle).await, [7; 100_000]);
    close(&vfs, from).await;
    close(&vfs, to.handle).await;
    vfs.shutdown().await.expect("ended");
    cluster.check_namespace();
}
