//! mount(2) and umount2(2), for root.
use super::TYPE;
use crate::device::Device;
use crate::failure::{Failure, Kind, Result};
use crate::options::MountOptions;
use crate::session::handshake::IO_MAX;
use crate::spec::MountSpec;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

pub fn mount(spec: &MountSpec) -> Result<Device> {
    let device = Device::open().map_err(|error| {
        let hint = "; load the kernel module (modprobe fuse), or give the container --device /dev/fuse";
        Failure::io(&format!("/dev/fuse{}", if error == Errno::NOENT { hint } else { "" }), &error.into())
    })?;
    let options = &spec.options;
    let others = if options.others(true) { ",allow_other" } else { "" };
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},max_read={IO_MAX},default_permissions{others}",
        device.as_fd().as_raw_fd()
    );
    let data = CString::new(data).expect("numbers and words contain no zero byte");
    match rustix::mount::mount(spec.source(), &spec.dir, TYPE, flags(options), data.as_c_str()) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => Err(Failure::new(
            Kind::Permission,
            format!("mounting at {}: not permitted; root in a container needs CAP_SYS_ADMIN", spec.dir.display()),
        )),
        Err(error) => Err(Failure::io(&format!("mounting at {}", spec.dir.display()), &error.into())),
    }
}

/// Flags of mount(2).
pub(super) fn flags(options: &MountOptions) -> MountFlags {
    let flag = |set: bool, flag: MountFlags| if set { flag } else { MountFlags::empty() };
    flag(options.read_only, MountFlags::RDONLY)
        | flag(options.nosuid, MountFlags::NOSUID)
        | flag(options.nodev, MountFlags::NODEV)
        | flag(options.noexec, MountFlags::NOEXEC)
        | flag(options.sync, MountFlags::SYNCHRONOUS)
}

pub fn unmount(dir: &Path, lazy: bool) -> Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::NOFOLLOW };
    match rustix::mount::unmount(dir, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(busy(dir)),
        Err(error) => Err(Failure::io(&format!("unmounting {}", dir.display()), &error.into())),
    }
}

pub(super) fn busy(dir: &Path) -> Failure {
    let users = super::holders::users(dir);
    let dir = dir.display();
    let text = match users {
        Some(users) => {
            format!("{dir} is in use: {users}; end what uses it, or detach it with cairn umount --lazy {dir}")
        }
        None => {
            format!(
                "{dir} is in use; end what uses it (fuser -vm {dir} lists it), or detach it with cairn umount --lazy {dir}"
            )
        }
    };
    Failure::new(Kind::InUse, text)
}
