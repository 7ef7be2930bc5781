//! The directory of a disk: what may be made of its path, and what has to be there.
use cairn_env::RealDisk;
use std::path::Path;

/// Opens a disk, or makes its directory: the last part of its path only. Where more is missing, a device is not
/// mounted, and what was made there would fill the file system of the machine.
pub fn open(dir: &Path) -> Result<RealDisk, String> {
    match missing_above(dir) {
        Some(missing) => Err(missing),
        None => RealDisk::create_in_parent(dir).map_err(|error| error.to_string()),
    }
}

/// Why a disk's directory cannot be made: there is none that it would be in.
pub fn missing_above(dir: &Path) -> Option<String> {
    let above = dir.parent().filter(|above| !above.as_os_str().is_empty() && !above.exists())?;
    let above = above.display();
    Some(format!(
        "{}: {above} is not there; mount the disk's device, or make {above} if the disk is to be on the file system of the machine",
        dir.display()
    ))
}
