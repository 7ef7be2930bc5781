//! Whose the directories of a configuration are, by their labels, and whether somebody works in them; nothing is
//! changed.
//!
//! Not here: room and file systems (`machine`), whether the managers are of the same cluster (`cluster`).
use super::Finding;
use crate::config::Config;
use crate::node::disk_dir::missing_above;
use cairn_env::RealDisk;
use cairn_format::label::{Label, LabelKind};
use cairn_store::label::{LOCK_FILE, inspect};
use cairn_store::{KnownDisks, StoreError};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

const NO_START: &str = "the server does not start like this";
const LEFT_OUT: &str = "the server would go on without this disk";

/// What is known of a node by its directories.
#[derive(Default)]
pub struct Identity {
    /// Those that have one, the node's first.
    pub labels: Vec<(String, Label)>,
    /// A process works in the node's directory.
    pub held: bool,
}

/// Reads all labels of a configuration.
pub fn look(config: &Config) -> (Identity, Vec<Finding>) {
    let mut findings = Vec::new();
    let dir = &config.node.dir;
    let mut identity = Identity { labels: Vec::new(), held: is_held(dir) };
    let node = match read(dir, LabelKind::Node) {
        Ok(found) => found,
        Err(problem) => {
            findings.push(bad("node dir", problem, NO_START));
            return (identity, findings);
        }
    };
    if let Some((_, Some(label))) = &node {
        identity.labels.push((dir.display().to_string(), *label));
        findings.push(Finding::good("node dir", format!("{} is that of {}", dir.display(), whose(label))));
    }
    let own = identity.labels.first().map(|(_, label)| *label);
    let known = match node {
        Some((at, Some(label))) => {
            let replaced = config.data.iter().flat_map(|data| data.replaced_disks.iter().copied());
            KnownDisks::open(Arc::new(at), label.uuid, replaced).map(Some)
        }
        _ => Ok(None),
    };
    let known = known.unwrap_or_else(|error| {
        findings.push(bad("node dir", error.to_string(), NO_START));
        None
    });
    for disk in config.data.iter().flat_map(|data| &data.disks) {
        let (label, finding) = look_at_disk(disk, own.as_ref(), known.as_ref());
        identity.labels.extend(label.map(|label| (disk.display().to_string(), label)));
        findings.extend(finding);
    }
    (identity, findings)
}

fn look_at_disk(path: &Path, node: Option<&Label>, known: Option<&KnownDisks>) -> (Option<Label>, Option<Finding>) {
    let name = path.display().to_string();
    let label = match read(path, LabelKind::Disk) {
        Ok(found) => found.and_then(|(_, label)| label),
        Err(problem) => return (None, Some(bad("disk", problem, LEFT_OUT))),
    };
    let Some(label) = label else {
        // Empty, or not there: a new disk, unless there was one.
        if let Some(missing) = missing_above(path) {
            return (None, Some(bad("disk", missing, LEFT_OUT)));
        }
        let absent =
            known.and_then(|known| known.expected(&name)).map(|uuid| StoreError::DiskAbsent { dir: name, uuid });
        return (None, absent.map(|absent| bad("disk", absent.to_string(), LEFT_OUT)));
    };
    let differs = |node: &&Label| {
        let cluster = !node.cluster.is_none() && !label.cluster.is_none() && node.cluster != label.cluster;
        cluster || label.node.get() != 0 && node.node.get() != 0 && label.node != node.node
    };
    let what = if label.disk.get() == 0 { "a new disk".to_owned() } else { label.disk.to_string() };
    let what = format!("{name} is {what} of {}", whose(&label));
    let finding = match node.filter(differs) {
        Some(node) => bad("disk", format!("{what}, the node directory is that of {}", whose(node)), NO_START),
        None => Finding::good("disk", what),
    };
    (Some(label), Some(finding))
}

fn whose(label: &Label) -> String {
    let cluster = if label.cluster.is_none() { "no cluster yet".into() } else { format!("cluster {}", label.cluster) };
    if label.node.get() == 0 { format!("a new node, {cluster}") } else { format!("{} of {cluster}", label.node) }
}

fn bad(check: &'static str, what: String, why: &'static str) -> Finding {
    let todo = "check the directories of the configuration; docs/guides/recover.md has a row for each case";
    Finding::bad(check, what, why, todo)
}

/// The label of a directory, if it is there and has one; or why a server would refuse it.
fn read(path: &Path, kind: LabelKind) -> Result<Option<(RealDisk, Option<Label>)>, String> {
    let name = path.display();
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Ok(about) if !about.is_dir() => return Err(format!("{name} is no directory")),
        _ => {}
    }
    let disk = RealDisk::open(path).map_err(|error| format!("{name}: {error}"))?;
    let label = inspect(&disk, kind).map_err(|error| error.to_string())?;
    Ok(Some((disk, label)))
}

/// Whether a process has the lock of a directory. It is given back at once.
fn is_held(path: &Path) -> bool {
    let Ok(file) = File::open(path.join(LOCK_FILE)) else { return false };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}
