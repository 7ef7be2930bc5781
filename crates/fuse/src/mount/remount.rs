//! Changing what the kernel does with a mount that is there: `mount -o remount,ro`.
use super::{TYPE, direct, mountinfo};
use crate::failure::{Failure, Kind, Result};
use crate::options::MountOptions;
use rustix::io::Errno;
use std::path::Path;

/// What of the table of mounts is kept where nothing else is said.
const KEPT: &[&str] = &["ro", "nosuid", "nodev", "noexec", "noatime", "nodiratime", "sync"];

/// Options that a mount has, as far as the kernel knows them; an error if none of Cairn is there.
pub fn present(dir: &Path) -> Result<String> {
    let there = mountinfo::find(dir)?.filter(|there| there.kind == TYPE);
    let there = there.ok_or_else(|| {
        let text = format!("{} is no Cairn mount; cairn mount --status lists them", dir.display());
        Failure::new(Kind::NotFound, text)
    })?;
    Ok(there.flags.split(',').filter(|flag| KEPT.contains(flag)).collect::<Vec<_>>().join(","))
}

/// Gives it these flags; what else the options say is left as it is.
pub fn remount(dir: &Path, options: &MountOptions) -> Result<()> {
    let shown = dir.display();
    if !super::is_root() {
        return Err(Failure::new(
            Kind::Permission,
            format!("remounting {shown}: only root can; unmount it and mount it anew"),
        ));
    }
    match rustix::mount::mount_remount(dir, direct::flags(options), c"") {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(Failure::new(
            Kind::InUse,
            format!(
                "{shown} cannot become read-only: files are open for writing; fuser -vm {shown} lists who has them"
            ),
        )),
        Err(error) => Err(Failure::io(&format!("remounting {shown}"), &error.into())),
    }
}
