//! [`LocalDir`]: a local directory that entries are fetched into; its mode and times are set when the last one is
//! there.
use super::FetchOptions;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::report::{Done, Report};
use crate::transfer::temp_file::set_times;
use cairn_client::attributes::Attributes;
use std::fs::{DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;

/// Held by everybody who still puts something into the directory or below it.
pub struct LocalDir {
    pub path: PathBuf,
    report: Arc<Report>,
    /// Set at the end, if we made the directory.
    last: Option<Attributes>,
    owner: bool,
    /// Finished after this one.
    _above: Option<Arc<LocalDir>>,
}

impl LocalDir {
    /// Makes the directory; one that exists is used, and keeps its attributes.
    pub fn make(
        path: PathBuf,
        attributes: &Attributes,
        options: &FetchOptions,
        report: &Arc<Report>,
        above: Option<Arc<LocalDir>>,
    ) -> Result<Arc<LocalDir>> {
        let mut dir = LocalDir { path, report: report.clone(), last: None, owner: options.owner, _above: above };
        // Usable by us until it is finished, and by nobody else.
        match DirBuilder::new().mode(0o700).create(&dir.path) {
            Ok(()) => {
                dir.last = Some(*attributes);
                report.done(Done::Directory);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // An operand may be a link to a directory; in a tree that would lead out of it.
                let found = match dir._above {
                    Some(_) => dir.path.symlink_metadata(),
                    None => dir.path.metadata(),
                };
                if !found.is_ok_and(|found| found.is_dir()) {
                    let text = format!(
                        "{} exists and is no directory; remove it, or fetch to another name",
                        dir.path.display()
                    );
                    return Err(CliError::refused(Exit::WrongKind, text));
                }
            }
            Err(error) => return Err(CliError::local(&dir.path, "making the directory", error)),
        }
        Ok(Arc::new(dir))
    }

    fn finish(&self, attributes: &Attributes) -> std::io::Result<()> {
        if self.owner {
            std::os::unix::fs::chown(&self.path, Some(attributes.uid), Some(attributes.gid))?;
        }
        let bits = if self.owner { 0o7777 } else { 0o1777 };
        std::fs::set_permissions(&self.path, Permissions::from_mode(attributes.mode & bits))?;
        set_times(&self.path, attributes.atime_ns, attributes.mtime_ns)
    }
}

impl Drop for LocalDir {
    fn drop(&mut self) {
        if let Some(attributes) = self.last.take()
            && let Err(error) = self.finish(&attributes)
        {
            self.report.fail(&CliError::local(&self.path, "setting mode and times of the directory", error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::Tasks;
    use crate::transfer::Overwrite;
    use std::os::unix::fs::MetadataExt;

    const OPTIONS: FetchOptions =
        FetchOptions { overwrite: Overwrite::Replace, owner: false, sync: false, checksum: false };

    /// A directory that nobody may write into could not be filled, or its time would be that of the fetch.
    #[test]
    fn attributes_come_last() {
        let temp = tempfile::tempdir().expect("dir");
        let report = Arc::new(Report::plain(false, Tasks::default()));
        let attributes = Attributes { mode: 0o040_555, mtime_ns: 5_000_000_000, ..Attributes::default() };
        let outer = LocalDir::make(temp.path().join("a"), &attributes, &OPTIONS, &report, None).expect("make");
        let inner =
            LocalDir::make(outer.path.join("b"), &attributes, &OPTIONS, &report, Some(outer.clone())).expect("make");
        let path = outer.path.clone();
        drop(outer);
        std::fs::write(inner.path.join("f"), "x").expect("write");
        drop(inner);
        for path in [path.join("b"), path.clone()] {
            let found = path.metadata().expect("stat");
            assert_eq!((found.mode() & 0o7777, found.mtime()), (0o555, 5), "{}", path.display());
        }
        assert_eq!(report.failed(), 0);
        for path in [path.clone(), path.join("b")] {
            std::fs::set_permissions(path, Permissions::from_mode(0o755)).expect("for the removal");
        }
    }

    /// A fetched tree must not be written through a link that leads elsewhere.
    #[test]
    fn a_link_in_the_tree_is_no_directory() {
        let temp = tempfile::tempdir().expect("dir");
        let report = Arc::new(Report::plain(false, Tasks::default()));
        std::fs::create_dir(temp.path().join("elsewhere")).expect("mkdir");
        std::os::unix::fs::symlink(temp.path().join("elsewhere"), temp.path().join("l")).expect("link");
        let attributes = Attributes { mode: 0o040_755, ..Attributes::default() };
        let operand = LocalDir::make(temp.path().join("l"), &attributes, &OPTIONS, &report, None).expect("operand");
        let below = LocalDir::make(temp.path().join("l"), &attributes, &OPTIONS, &report, Some(operand));
        assert_eq!(below.map(drop).map_err(|e| e.exit()), Err(Exit::WrongKind));
    }
}
