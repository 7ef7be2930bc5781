//! Snapshots that are taken while everything is changed and everybody dies: the tree of each is hashed when it is
//! taken, read through a mount, and read again at its end, or, of one that stays, at the end of the run: equal to the
//! byte. Some are of the directory alone in which names are made, moved and removed; with several partitions it has
//! directories in all of them.
//!
//! Blocks that are overwritten in place are in it as they were: none older than what was acknowledged before it was
//! asked for. Between two snapshots there is none for a while, so that files are overwritten in place.
use super::names;
use super::versions::{Commands, read_all};
use super::work::Work;
use crate::mount::Mount;
use crate::mount::seeds::Rng;
use crate::support::text;
use cairn_client::{ClientError, TreeStep, TreeWalk, Volume};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What has to be the same: mode, links, owner, size and the time of the last write, and a hash of contents or target.
type Seen = (u32, u64, u32, u64, i64, u64);
/// By path below the snapshot.
type Portrait = BTreeMap<Vec<u8>, Seen>;

const TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Of a directory `.snapshots/NAME`, through the library.
async fn portrait(volume: &Volume, root: &str) -> Result<Portrait, ClientError> {
    let mut portrait = Portrait::new();
    let start = volume.stat(root.as_bytes(), false).await?;
    let mut walk = TreeWalk::new(volume, root.as_bytes().to_vec(), start);
    while let Some(step) = walk.next().await {
        let TreeStep::Enter(node) = step? else { continue };
        let at = node.attributes;
        let contents = match at.mode & TYPE {
            REGULAR => hash(&read_all(volume, std::str::from_utf8(&node.path).expect("utf-8"), 0, u64::MAX).await?),
            SYMLINK => hash(&volume.readlink(&node.path).await?),
            _ => 0,
        };
        let size = if at.mode & TYPE == DIRECTORY { 0 } else { at.size };
        let path = node.path[root.len()..].to_vec();
        portrait.insert(path, (at.mode, u64::from(at.nlink), at.uid, size, at.mtime_ns, contents));
    }
    Ok(portrait)
}

/// The same through a mount.
fn portrait_of_mount(root: &Path) -> io::Result<Portrait> {
    let (mut portrait, mut waiting) = (Portrait::new(), vec![root.to_path_buf()]);
    while let Some(path) = waiting.pop() {
        let at = fs::symlink_metadata(&path)?;
        let contents = match at.mode() & TYPE {
            REGULAR => hash(&fs::read(&path)?),
            SYMLINK => hash(fs::read_link(&path)?.as_os_str().as_bytes()),
            _ => 0,
        };
        let is_directory = at.mode() & TYPE == DIRECTORY;
        if is_directory {
            for entry in fs::read_dir(&path)? {
                waiting.push(entry?.path());
            }
        }
        let below = path.strip_prefix(root).expect("below").as_os_str().as_bytes();
        let name = if below.is_empty() { Vec::new() } else { [b"/", below].concat() };
        let mtime = at.mtime().wrapping_mul(1_000_000_000).wrapping_add(at.mtime_nsec());
        let size = if is_directory { 0 } else { at.size() };
        portrait.insert(name, (at.mode(), at.nlink(), at.uid(), size, mtime, contents));
    }
    Ok(portrait)
}

fn compare(what: &str, then: &Portrait, now: &Portrait) {
    let names = then.keys().chain(now.keys());
    let differ: Vec<String> = names
        .filter(|name| then.get(*name) != now.get(*name))
        .take(5)
        .map(|name| format!("{}: {:?}, then {:?}", text(name), then.get(name), now.get(name)))
        .collect();
    assert!(differ.is_empty(), "{what}: it is not what it was: {}", differ.join("\n"));
}

/// One that is taken.
struct Snapshot {
    name: String,
    /// Whose it is; empty: the volume's.
    directory: &'static str,
}

impl Snapshot {
    /// Where it is read.
    fn root(&self) -> String {
        format!("{}/.snapshots/{}", self.directory, self.name)
    }
    /// Creates or deletes it.
    fn command<'a>(&'a self, verb: &'a str) -> Vec<&'a str> {
        let of = if self.directory.is_empty() { "/" } else { self.directory };
        vec!["fs", "snapshot", verb, &self.name, of]
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the snapshot {} of {}/", self.name, self.directory)
    }
}

/// Who takes them.
pub struct Snapshooter {
    pub commands: Commands,
    pub mount: Option<Arc<Mount>>,
    pub rng: Rng,
    pub work: Arc<Work>,
    /// From then on the next one stays to the end of the run.
    pub last_from: Instant,
}

impl Snapshooter {
    pub async fn run(mut self, volume: Volume) {
        let mut number = 0;
        while self.rest(8_000).await {
            number += 1;
            let stays = Instant::now() >= self.last_from;
            let directory = if number % 3 == 0 && !stays { names::DIR } else { "" };
            let taken = Snapshot { name: format!("chaos-{number}"), directory };
            let oldest = self.work.blocks.oldest_of_all();
            if !self.commands.cairn(&taken.command("create")).status.success() {
                // It may have been taken all the same.
                self.delete(&taken).await;
                continue;
            }
            let Some(then) = self.told(&volume, &taken, true).await else { break };
            if taken.directory.is_empty() {
                let blocks = self.work.blocks.check_snapshot(&volume, &taken.root(), &oldest).await;
                self.work.counts.snapshot_blocks.add(blocks);
            }
            self.through_mount(&taken, &then).await;
            if stays {
                while self.rest(2_000).await {}
                let now = self.told(&volume, &taken, false).await.expect("it is read at the end");
                compare(&format!("{taken}, at the end"), &then, &now);
                self.through_mount(&taken, &then).await;
                self.work.counts.snapshots.add(1);
                println!("{taken} has {} names and is what it was", then.len());
                return;
            }
            self.rest(6_000).await;
            let Some(now) = self.told(&volume, &taken, false).await else { break };
            compare(&taken.to_string(), &then, &now);
            self.work.counts.snapshots.add(1);
            self.delete(&taken).await;
        }
        if self.work.counts.snapshots.get() == 0 || self.work.counts.snapshot_blocks.get() == 0 {
            self.at_the_end(&volume).await;
        }
    }
    /// Of a run in which none could be taken: clients that overwrote in place fell silent too often. All is healed now.
    async fn at_the_end(&mut self, volume: &Volume) {
        let (began, oldest) = (Instant::now(), self.work.blocks.oldest_of_all());
        let taken = Snapshot { name: "chaos-end".to_owned(), directory: "" };
        while !self.commands.cairn(&taken.command("create")).status.success() {
            assert!(began.elapsed() < crate::wait::LIMIT, "no snapshot can be taken of a volume that is healed");
            self.delete(&taken).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let then = self.told(volume, &taken, false).await.expect("it is read at the end");
        let blocks = self.work.blocks.check_snapshot(volume, &taken.root(), &oldest).await;
        self.work.counts.snapshot_blocks.add(blocks);
        self.through_mount(&taken, &then).await;
        self.work.counts.snapshots.add(1);
        println!("only at the end a snapshot could be taken");
    }
    /// Waits; false at the end of the run.
    async fn rest(&mut self, most_ms: u64) -> bool {
        let until = Instant::now() + Duration::from_millis(most_ms / 2 + self.rng.below(most_ms / 2));
        while Instant::now() < until && !self.work.is_over() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        !self.work.is_over()
    }
    /// Reads all of it, however often servers die meanwhile. `None`: the run ended before, and it need not be read.
    async fn told(&self, volume: &Volume, taken: &Snapshot, may_end: bool) -> Option<Portrait> {
        let began = Instant::now();
        loop {
            match portrait(volume, &taken.root()).await {
                Ok(portrait) => return Some(portrait),
                Err(_) if may_end && self.work.is_over() => return None,
                Err(error) => {
                    assert!(!error.is_not_found(), "{taken} lacks what it listed: {error}");
                    let over = self.work.is_over() && began.elapsed() > crate::wait::LIMIT;
                    assert!(!over, "{taken} cannot be read: {error}");
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
            }
        }
    }
    /// Compares what a mount shows of it, if it can be read there before something dies.
    async fn through_mount(&self, taken: &Snapshot, then: &Portrait) {
        let Some(mount) = self.mount.clone() else { return };
        let root = mount.path(taken.root().trim_start_matches('/'));
        let read = tokio::task::spawn_blocking(move || portrait_of_mount(&root)).await.expect("it reads");
        match read {
            Ok(now) => {
                compare(&format!("{taken}, through a mount"), then, &now);
                self.work.counts.snapshots_mounted.add(1);
            }
            Err(error) => println!("{taken} is not read through the mount: {error}"),
        }
    }
    /// Until it is gone, or was never there.
    async fn delete(&mut self, taken: &Snapshot) {
        loop {
            let output = self.commands.cairn(&taken.command("delete"));
            if output.status.success() || output.status.code() == Some(3) {
                return;
            }
            if !self.rest(1_000).await {
                return;
            }
        }
    }
}
