//! A volume of a cluster in memory, mounted in this process: what only the kernel shows.
//!
//! Needs /dev/fuse and the right to mount; where they lack, each test says so and passes.
use super::handshake::shake_hands;
use super::{Readers, Session};
use crate::lanes::Lanes;
use crate::mount::{self, mountinfo, remount};
use crate::open_table::OpenTable;
use crate::options::MountOptions;
use crate::spec::MountSpec;
use cairn_client::fake::FakeCluster;
use cairn_types::Scheme;
use cairn_vfs::{ROOT, Vfs, VfsOptions};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Only a failing test waits so long.
const FOR_EVER: Duration = Duration::from_secs(120);

struct Mounted {
    spec: MountSpec,
    _dir: tempfile::TempDir,
    readers: Option<Readers>,
    session: Arc<Session>,
    _lanes: Lanes,
    _cluster: FakeCluster,
    _runtime: tokio::runtime::Runtime,
}

impl Mounted {
    /// `None`: mounts cannot be tested here.
    fn new() -> Option<Mounted> {
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            eprintln!("skipped: /dev/fuse: {error}");
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let spec = MountSpec {
            cluster: vec!["memory:1".into()],
            volume: "default".into(),
            path: b"/".to_vec(),
            dir: fs::canonicalize(dir.path()).expect("it is there"),
            options: MountOptions { nosuid: true, ..MountOptions::default() },
            program: PathBuf::new(),
        };
        let device = match mount::mount(&spec) {
            Ok(device) => device,
            Err(error) => {
                eprintln!("skipped: {error}");
                return None;
            }
        };
        let agreed = shake_hands(&device).expect("the kernel speaks FUSE");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
        let lanes = Lanes::start(2).expect("threads");
        let (cluster, vfs) = runtime.block_on(async {
            let cluster = FakeCluster::start(3, &[Scheme::Replicated(3)]);
            let client = cluster.connect_for(FOR_EVER).await;
            let volume = client.volume("default").await.expect("the volume");
            (cluster, Vfs::new(client, volume, VfsOptions { timeout: FOR_EVER, ..VfsOptions::default() }))
        });
        let inside = runtime.enter();
        let table = OpenTable::map(OpenTable::create_memory().expect("memory")).expect("a table");
        let session = Session::new(vfs, device, agreed, ROOT, table, None).expect("threads");
        let (readers, _) = Readers::start(&session, lanes.handles()).expect("threads");
        let readers = Some(readers);
        drop(inside);
        Some(Mounted { spec, _dir: dir, readers, session, _lanes: lanes, _cluster: cluster, _runtime: runtime })
    }
    fn path(&self, name: &str) -> PathBuf {
        self.spec.dir.join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = mount::unmount(&self.spec.dir, true) {
            eprintln!("{error}");
        }
        self.session.abandon();
        if let Some(readers) = self.readers.take() {
            readers.stop();
        }
    }
}

fn eventually(what: &str, is: impl Fn() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < FOR_EVER, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// lseek(2).
fn seek(file: &File, offset: u64, whence: libc::c_int) -> io::Result<u64> {
    // SAFETY: an open descriptor and numbers.
    match unsafe { libc::lseek(file.as_raw_fd(), offset as libc::off_t, whence) } {
        -1 => Err(io::Error::last_os_error()),
        found => Ok(found as u64),
    }
}

/// Any user would hang the mount for everybody: with a file that is nearly all hole, and a look for what is in it.
#[test]
fn a_huge_hole_hangs_nobody() {
    const HUGE: u64 = 1 << 62;
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("huge");
    let file = File::options().read(true).write(true).create_new(true).open(&path).expect("create");
    file.set_len(HUGE).expect("truncate");
    file.write_all_at(b"x\n", HUGE).expect("write");
    let (tell, told) = mpsc::channel();
    // More than there are threads that serve; they are left behind if they hang.
    for thread in 0..5u64 {
        let (tell, path) = (tell.clone(), path.clone());
        std::thread::spawn(move || {
            let file = File::options().read(true).write(true).open(&path).expect("open");
            let found = [(thread << 40, libc::SEEK_DATA), (thread << 40, libc::SEEK_HOLE), (HUGE, libc::SEEK_HOLE)];
            let found = found.map(|(offset, whence)| seek(&file, offset, whence).expect("found"));
            tell.send((thread, found)).expect("somebody waits");
        });
    }
    for _ in 0..5 {
        let (thread, found) = told.recv_timeout(FOR_EVER).expect("lseek hangs");
        assert_eq!(found, [HUGE, thread << 40, HUGE + 2]);
    }
    fs::write(mounted.path("other"), "served").expect("write");
    assert_eq!(fs::read_to_string(mounted.path("other")).expect("read"), "served");
    // Nothing is kept free, and nothing is promised that there is no room for.
    // SAFETY: an open descriptor and numbers.
    let refused = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, i64::MAX) };
    assert_eq!((refused, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOSPC)));
}

/// Programs would write to what was made read-only, or options that nobody named would be gone.
#[test]
fn a_remount_changes_what_it_names() {
    let Some(mounted) = Mounted::new() else { return };
    let (dir, path) = (&mounted.spec.dir, mounted.path("kept"));
    fs::write(&path, "before").expect("write");
    let remount = |options: &str| {
        let present = remount::present(dir)?;
        remount::remount(dir, &MountOptions::parse([present.as_str(), options])?)
    };
    let flags = || mountinfo::find(dir).expect("the table").expect("mounted").flags;
    let writing = File::options().write(true).open(&path).expect("open");
    assert!(remount("remount,ro").expect_err("somebody writes").text.contains("open for writing"));
    drop(writing);
    eventually("it becomes read-only", || remount("remount,ro").is_ok());
    assert!(flags().starts_with("ro,nosuid"), "{}", flags());
    assert_eq!(fs::write(&path, "after").expect_err("read-only").raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read_to_string(&path).expect("read"), "before");
    remount("remount,rw").expect("it becomes writable");
    assert!(flags().starts_with("rw,nosuid"), "{}", flags());
    fs::write(&path, "after").expect("write");
}

/// What was removed would be opened by its handle.
#[test]
fn handles_of_files_without_names_are_stale() {
    let Some(mounted) = Mounted::new() else { return };
    handles(&mounted);
}

/// `struct file_handle` with room.
#[repr(C)]
struct FileHandle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    handle: [u8; 128],
}

fn handles(mount: &Mounted) {
    let root = File::open(&mount.spec.dir).expect("open");
    let handle_of = |path: &Path| {
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("no name has zeros");
        let mut handle = FileHandle { bytes: 128, kind: 0, handle: [0; 128] };
        let mut mount_id: libc::c_int = 0;
        let pointer = (&raw mut handle).cast::<libc::c_void>();
        // SAFETY: a string that ends with a zero, and a handle with as much room as it says.
        let made = unsafe {
            libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, name.as_ptr(), pointer, &raw mut mount_id, 0)
        };
        assert_eq!(made, 0, "{}", io::Error::last_os_error());
        handle
    };
    let open = |handle: &mut FileHandle| {
        let pointer = std::ptr::from_mut(handle).cast::<libc::c_void>();
        // SAFETY: a handle that the kernel filled.
        match unsafe {
            libc::syscall(libc::SYS_open_by_handle_at, root.as_raw_fd(), pointer, libc::O_RDONLY | libc::O_CLOEXEC)
        } {
            -1 => Err(io::Error::last_os_error().raw_os_error().expect("a number")),
            // SAFETY: a descriptor that was just opened and that nobody else has.
            fd => Ok(unsafe { File::from_raw_fd(fd as i32) }),
        }
    };
    let (path, other) = (mount.path("handled"), mount.path("linked"));
    fs::write(&path, "contents").expect("write");
    let mut handle = handle_of(&path);
    let found = open(&mut handle).expect("it has a name");
    assert_eq!(io::read_to_string(&found).expect("read"), "contents");
    fs::hard_link(&path, &other).expect("link");
    fs::remove_file(&path).expect("unlink");
    drop(found);
    drop(open(&mut handle).expect("it has another name"));
    fs::remove_file(&other).expect("unlink");
    // The last close is told of behind it.
    let began = Instant::now();
    while open(&mut handle).is_ok() {
        assert!(began.elapsed() < FOR_EVER, "it can be opened for ever");
    }
    for _ in 0..3 {
        assert_eq!(open(&mut handle).expect_err("it has no name"), libc::ESTALE);
    }
}

const BLOCK: usize = 64 << 10;
const WRITERS: usize = 3;
const ROUNDS: usize = 1200;

/// `struct iocb` of io_submit(2).
#[repr(C)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// `struct io_event`.
#[repr(C)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

#[repr(C, align(4096))]
struct Aligned([u8; BLOCK]);

struct Aio(libc::c_ulong);

impl Aio {
    fn new() -> io::Result<Aio> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one word through the pointer.
        match unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) } {
            0 => Ok(Aio(context)),
            _ => Err(io::Error::last_os_error()),
        }
    }
    /// Writes without the calling thread, and waits until that is completed.
    fn write(&self, file: &File, offset: usize, bytes: &Aligned) -> io::Result<i64> {
        const PWRITE: u16 = 1;
        // SAFETY: integers only.
        let mut control: Iocb = unsafe { std::mem::zeroed() };
        (control.opcode, control.fd, control.offset) = (PWRITE, file.as_raw_fd() as u32, offset as i64);
        (control.buffer, control.bytes) = (bytes.0.as_ptr() as u64, BLOCK as u64);
        let mut list = [&raw mut control];
        // SAFETY: one control block, which outlives the operation, as do its bytes: its end is waited for below.
        if unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1, list.as_mut_ptr()) } != 1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: integers only; the kernel writes one event.
        let mut event: Event = unsafe { std::mem::zeroed() };
        loop {
            let none = std::ptr::null::<libc::timespec>();
            // SAFETY: room for one event.
            match unsafe { libc::syscall(libc::SYS_io_getevents, self.0, 1, 1, &raw mut event, none) } {
                1 => return Ok(event.result),
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => return Err(io::Error::last_os_error()),
            }
        }
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: a context that was set up; nothing is under way in it.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// A program would read old bytes after its write was completed: another one read the same pages while it was under
/// way.
#[test]
fn reads_see_direct_writes_that_were_completed() {
    let Some(mounted) = Mounted::new() else { return };
    if let Err(error) = Aio::new() {
        return eprintln!("skipped: this kernel has no asynchronous I/O: {error}");
    }
    let path = mounted.path("file");
    fs::write(&path, vec![0u8; WRITERS * BLOCK]).expect("write");
    let (stop, read) = (AtomicBool::new(false), AtomicU64::new(0));
    let old: usize = std::thread::scope(|scope| {
        for reader in 0..4 {
            let (path, stop, read) = (&path, &stop, &read);
            scope.spawn(move || {
                let file = File::open(path).expect("open");
                let mut bytes = vec![0; BLOCK];
                while !stop.load(Ordering::Relaxed) {
                    file.read_exact_at(&mut bytes, ((reader % WRITERS) * BLOCK) as u64).expect("read");
                    read.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let write = |writer: usize| {
            let path = &path;
            scope.spawn(move || write_and_read(path, writer * BLOCK))
        };
        let writers: Vec<_> = (0..WRITERS).map(write).collect();
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        // Whatever became of them: a reader that goes on would keep the test for ever.
        stop.store(true, Ordering::Relaxed);
        ended.into_iter().map(|old| old.expect("a writer")).sum()
    });
    assert!(read.load(Ordering::Relaxed) > 0, "nobody read beside the writers");
    assert_eq!(old, 0, "reads got old bytes after {} completed writes", WRITERS * ROUNDS);
}

/// How often what was written was not what was read.
fn write_and_read(path: &Path, at: usize) -> usize {
    let aio = Aio::new().expect("as before");
    let direct = File::options().write(true).custom_flags(libc::O_DIRECT).open(path).expect("open");
    let through_pages = File::open(path).expect("open");
    let mut bytes = Box::new(Aligned([0; BLOCK]));
    let mut found = vec![0; BLOCK];
    let mut old = 0;
    for round in 0..ROUNDS {
        bytes.0.fill((round % 251) as u8 + 1);
        assert_eq!(aio.write(&direct, at, &bytes).expect("written"), BLOCK as i64);
        through_pages.read_exact_at(&mut found, at as u64).expect("read");
        old += usize::from(found != bytes.0);
    }
    old
}
