//! Files that are written anew, version by version, by one client each and read by all.
//!
//! All bytes follow from name and version. A read may give no version older than the one that was acknowledged when it
//! began, but for writes whose outcome nobody knows: they may be done late. And none that was not begun when it ended.
use super::PATIENCE;
use super::work::{Counts, Work};
use crate::mount::seeds::Rng;
use crate::support::{in_spaces, text};
use crate::trees::noise;
use cairn_client::{ClientError, RenameMode, Volume, WriteOptions};
use cairn_types::Layout;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files of a client of each kind.
const FILES: usize = 6;
/// Directories: copies, rows, and small files that are renamed over each other.
pub const DIRS: [&str; 3] = ["/copies", "/rows", "/renamed"];
const RENAMED: usize = 2;

/// What one file may have.
#[derive(Default)]
struct File {
    /// Newest version that was acknowledged.
    acknowledged: u64,
    /// Newest version that was begun.
    tried: u64,
    /// Versions that may come late.
    unknown: BTreeSet<u64>,
}

/// All files, by their names.
pub struct Versions {
    files: BTreeMap<String, Mutex<File>>,
}

/// Every other file of the commands is in rows.
fn name(client: usize, dir: usize, file: usize) -> String {
    format!("{}/c{client}-f{file}", DIRS[dir])
}

/// Name and version stand at the beginning, and all bytes follow from them.
fn content(name: &str, version: u64) -> Vec<u8> {
    let seed = name.bytes().fold(version, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut rng = Rng::new(seed);
    let length = match rng.below(3) {
        _ if name.starts_with(DIRS[RENAMED]) => rng.index(20_000),
        0 => rng.index(4_000_000),
        _ => rng.index(50_000),
    };
    let mut bytes = format!("{name} {version}\n").into_bytes();
    bytes.extend(noise(length, seed));
    bytes
}

/// The version that a file's bytes are; panics if they are none.
fn version_of(name: &str, bytes: &[u8]) -> u64 {
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let told = text(first);
    let version = told.strip_prefix(&format!("{name} ")).and_then(|version| version.parse().ok());
    let Some(version) = version else { panic!("{name} begins with {:?}", &told[..told.len().min(100)]) };
    assert!(bytes == content(name, version), "{name} has other bytes than version {version}: {} of them", bytes.len());
    version
}

impl Versions {
    /// The first so many clients run commands.
    pub fn new(commands: usize, clients: usize) -> Versions {
        let all = (0..clients).flat_map(|client| (0..DIRS.len()).map(move |dir| (client, dir)));
        let all = all.filter(|(client, dir)| *client < commands || *dir == RENAMED);
        let all = all.flat_map(|(client, dir)| (0..FILES).map(move |file| name(client, dir, file)));
        Versions { files: all.map(|name| (name, Mutex::default())).collect() }
    }
    fn file(&self, name: &str) -> MutexGuard<'_, File> {
        self.files[name].lock()
    }
    /// The next version of a file.
    fn begin(&self, name: &str) -> u64 {
        let mut file = self.file(name);
        file.tried += 1;
        file.tried
    }
    fn end(&self, name: &str, version: u64, stored: bool, counts: &Counts) {
        let mut file = self.file(name);
        if stored {
            file.acknowledged = version;
            counts.stored.add(1);
        } else {
            file.unknown.insert(version);
            counts.not_stored.add(1);
        }
    }
    fn any(&self, rng: &mut Rng) -> String {
        let at = rng.index(self.files.len());
        self.files.keys().nth(at).expect("below the length").clone()
    }
    fn acknowledged(&self, name: &str) -> u64 {
        self.file(name).acknowledged
    }
    /// What was read, and what was acknowledged when the read began.
    fn check(&self, name: &str, bytes: &[u8], oldest: u64) {
        let version = version_of(name, bytes);
        let file = self.file(name);
        let newest = file.tried;
        let right = (oldest..=newest).contains(&version) || file.unknown.contains(&version);
        assert!(right, "{name}: version {version}, not {oldest} to {newest} or one of {:?}", file.unknown);
    }
    /// Reads everything when all is healed, by a command.
    pub fn check_all(&self, cat: impl Fn(&str) -> Output) {
        for name in self.files.keys() {
            let oldest = self.acknowledged(name);
            let output = cat(name);
            if oldest == 0 && output.status.code() == Some(3) {
                continue;
            }
            assert!(output.status.success(), "{name} {oldest}: {}", text(&output.stderr));
            self.check(name, &output.stdout, oldest);
        }
    }
}

/// A client that runs a command after the other.
pub struct Commands {
    pub client: usize,
    /// Its network, as `nsenter` is told.
    pub net: String,
    pub cluster: String,
    pub local: PathBuf,
    pub rng: Rng,
    pub work: Arc<Work>,
}

impl Commands {
    pub fn cairn(&self, args: &[&str]) -> Output {
        let mut command = in_spaces(std::slice::from_ref(&self.net));
        command.args(["--timeout", &PATIENCE.as_secs().to_string()]).args(args).env("CAIRN_CLUSTER", &self.cluster);
        command.stdin(Stdio::null());
        self.work.counts.timed_blocking(|| command.output().expect("the binary starts"))
    }
    pub fn run(mut self) {
        while !self.work.is_over() {
            if self.rng.one_in(2) {
                self.write()
            } else {
                self.read()
            }
            std::thread::sleep(Duration::from_millis(self.rng.below(300)));
        }
    }
    fn write(&mut self) {
        let file = self.rng.index(FILES);
        let name = name(self.client, file % RENAMED, file);
        let versions = &self.work.versions;
        let version = versions.begin(&name);
        fs::write(&self.local, content(&name, version)).expect("local file");
        let output = self.cairn(&["fs", "put", "--quiet", self.local.to_str().expect("utf-8"), &name]);
        versions.end(&name, version, output.status.success(), &self.work.counts);
    }
    fn read(&mut self) {
        let versions = &self.work.versions;
        let name = versions.any(&mut self.rng);
        let (oldest, began) = (versions.acknowledged(&name), Instant::now());
        let output = self.cairn(&["fs", "cat", &name]);
        if output.status.success() {
            versions.check(&name, &output.stdout, oldest);
            self.work.counts.read.add(1);
        } else {
            let error = text(&output.stderr);
            // Not to be there is an answer; not to be reached is none.
            assert!(
                output.status.code() != Some(3) || oldest == 0,
                "{name} has version {oldest}, and is gone: {error}"
            );
            assert!(
                output.status.code() != Some(9) || began.elapsed() >= PATIENCE,
                "{name} is told to be lost: {error}"
            );
            self.work.counts.not_read.add(u64::from(oldest > 0));
        }
    }
}

/// A client that writes small files and renames them over others, through the library.
pub struct Renamer {
    pub client: usize,
    pub volume: Volume,
    pub rng: Rng,
    pub work: Arc<Work>,
}

impl Renamer {
    pub async fn run(mut self) {
        while !self.work.is_over() {
            if self.rng.one_in(2) {
                self.write().await
            } else {
                self.read().await
            }
            tokio::time::sleep(Duration::from_millis(self.rng.below(400))).await;
        }
    }
    async fn write(&mut self) {
        let name = name(self.client, RENAMED, self.rng.index(FILES));
        let version = self.work.versions.begin(&name);
        let aside = format!("{name}.new-{version}");
        let bytes = content(&name, version);
        let stored = self.work.counts.timed(store(&self.volume, &aside, &name, &bytes)).await;
        let stored = stored.map_err(|error| {
            assert!(!error.is_not_found(), "{name}: what was stored under another name is gone: {error}");
        });
        let stored = stored.is_ok();
        self.work.versions.end(&name, version, stored, &self.work.counts);
    }
    async fn read(&mut self) {
        let versions = &self.work.versions;
        let name = versions.any(&mut self.rng);
        let (oldest, began) = (versions.acknowledged(&name), Instant::now());
        match self.work.counts.timed(read_all(&self.volume, &name, 0, u64::MAX)).await {
            Ok(bytes) => {
                versions.check(&name, &bytes, oldest);
                self.work.counts.read.add(1);
            }
            Err(error) => {
                assert!(!error.is_not_found() || oldest == 0, "{name} has version {oldest}, and is gone: {error}");
                check_not_lost(&name, &error, began.elapsed());
                self.work.counts.not_read.add(u64::from(oldest > 0));
            }
        }
    }
}

/// Panics if servers said that bytes are lost. Who only waited in vain for them said nothing.
pub fn check_not_lost(name: &str, error: &ClientError, took: Duration) {
    let lost = matches!(error, ClientError::Unreadable { .. } | ClientError::Unavailable { .. }) && took < PATIENCE;
    assert!(!lost, "{name} is told to be lost: {error}");
}

async fn store(volume: &Volume, aside: &str, name: &str, bytes: &[u8]) -> Result<(), ClientError> {
    let layout = Layout::replicated(3);
    let options = WriteOptions { mode: 0o644, mtime_ns: 1, layout, exclusive: false, owner: None };
    let mut writer = volume.write(aside.as_bytes(), options).await?;
    writer.push(cairn_env::buf::SharedBuf::from_owner(bytes.to_vec())).await?;
    writer.finish().await?;
    volume.rename(aside.as_bytes(), name.as_bytes(), RenameMode::Replace).await
}

/// A part of a file, as it is when it is opened now.
pub async fn read_all(volume: &Volume, path: &str, offset: u64, length: u64) -> Result<Vec<u8>, ClientError> {
    let mut reader = volume.read(path.as_bytes(), offset, length).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await? {
        bytes.extend_from_slice(&piece.data);
    }
    Ok(bytes)
}

/// Writes small files through a mount and renames them over others.
pub fn through_mount(work: &Work, client: usize, dir: &Path, rng: &mut Rng) {
    let name = name(client, RENAMED, rng.index(FILES));
    let version = work.versions.begin(&name);
    let at = |name: &str| dir.join(name.trim_start_matches('/'));
    let aside = at(&format!("{name}.new-{version}"));
    let store = || {
        let mut file = fs::File::create(&aside)?;
        file.write_all(&content(&name, version))?;
        file.sync_all()?;
        drop(file);
        fs::rename(&aside, at(&name))
    };
    let stored = work.counts.timed_blocking(store).map_err(|error| {
        assert!(error.kind() != ErrorKind::NotFound, "{name}: what was stored under another name is gone: {error}");
    });
    let stored = stored.is_ok();
    work.versions.end(&name, version, stored, &work.counts);
}
