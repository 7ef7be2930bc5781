//! Locks of open file descriptions (F_OFD_SETLK) through mounts: who else has the file is kept out until the last copy
//! of the descriptor is closed, and no longer.
use super::{Mount, SMALL, skipped};
use crate::support::{Cluster, text};
use crate::wait::until;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;

/// Locks the whole file for its open file description, without waiting.
fn lock(file: &File) -> io::Result<()> {
    // SAFETY: numbers only, for which zeros are values; the kernel wants no process in it.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    (whole.l_type, whole.l_whence) = (libc::F_WRLCK as _, libc::SEEK_SET as _);
    // SAFETY: an open descriptor, and a lock that outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const whole) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A program that closes its file, or dies, would keep all others out until the mount is gone: the kernel gives such a
/// lock back with the last close only, in no words.
#[test]
fn locks_of_a_description_end_with_its_last_close() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let (one, two) = (Mount::new(&cluster, "one", "/", ""), Mount::new(&cluster, "two", "/", ""));
    fs::write(one.path("locked"), "x").expect("write");
    let open = |mount: &Mount| File::options().read(true).write(true).open(mount.path("locked")).expect("open");
    let (first, same, other) = (open(&one), open(&one), open(&two));
    let copy = first.try_clone().expect("dup");
    lock(&first).expect("the first lock");
    lock(&copy).expect("it is the same description");
    let refused = |file: &File, why: &str| {
        assert_eq!(lock(file).expect_err(why).raw_os_error(), Some(libc::EAGAIN), "{why}");
    };
    refused(&same, "another description of the mount");
    refused(&other, "another mount");
    drop(first);
    refused(&other, "a copy of the descriptor is open");
    drop(copy);
    until("the lock is free", || lock(&other).is_ok());
    refused(&same, "the other mount has it");
    drop(other);
    until("the lock is free again", || lock(&same).is_ok());
    drop(same);
    for mount in [one, two] {
        let umount = mount.umount();
        assert!(umount.status.success(), "{}", text(&umount.stderr));
    }
}
