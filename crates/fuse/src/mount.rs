//! Making and removing a mount: by mount(2) as root, else through `fusermount3`, which is set-uid root.
pub mod direct;
pub mod fusermount;
pub mod holders;
pub mod mountinfo;
pub mod remount;

use crate::device::Device;
use crate::failure::{Failure, Kind, Result};
use crate::session::handshake::IO_MAX;
use crate::spec::MountSpec;
use std::path::Path;

/// Type in the table of mounts.
pub const TYPE: &str = "fuse.cairn";

/// Mounts; the connection wants its INIT answered next.
pub fn mount(spec: &MountSpec) -> Result<Device> {
    if let Some(there) = mountinfo::find(&spec.dir)?.filter(|there| there.kind == TYPE) {
        let (dir, source) = (spec.dir.display(), &there.source);
        return Err(Failure::new(
            Kind::InUse,
            format!("{dir} is a Cairn mount already, of {source}; use another directory, or cairn umount {dir} first"),
        ));
    }
    let device = if is_root() { direct::mount(spec)? } else { fusermount::mount(spec)? };
    raise_read_ahead(&spec.dir);
    Ok(device)
}

/// Takes a mount away. Waits for its worker, so it must not be called where that would block it.
pub fn unmount(dir: &Path, lazy: bool) -> Result<()> {
    if is_root() { direct::unmount(dir, lazy) } else { fusermount::unmount(dir, lazy) }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Lets the kernel read ahead as much as one request carries; it starts with 128 KiB. Needs root, and is not needed.
fn raise_read_ahead(dir: &Path) {
    if let Ok(Some(there)) = mountinfo::find(dir) {
        let file = format!("/sys/class/bdi/{}/read_ahead_kb", there.device);
        if let Err(error) = std::fs::write(&file, (IO_MAX / 1024).to_string()) {
            tracing::debug!(file, %error, "read-ahead of the kernel stays as it is");
        }
    }
}
