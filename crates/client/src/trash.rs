//! The trash of a volume: what is removed by command goes to `/.trash/UID/TIME/ENTRY/NAME`, from where it can be read
//! and brought back until TIME, when the metadata removes the bucket with all that is in it.
//!
//! TIME is the second since 1970 in twelve digits, rounded up to [`BUCKET_SECONDS`], so that few buckets hold much.
//! ENTRY is a directory of its own for each thing that was removed, with its former path in an extended attribute. All
//! of it is ordinary files and directories of the user; moving something there is a rename.
//!
//! How long something is kept: the attribute [`KEEP_ATTRIBUTE`] of the nearest directory above it, in seconds (0: it is
//! removed at once), else what the caller says.
pub(crate) mod place;

use crate::attributes::Attributes;
use crate::error::{ClientError, Result};
use crate::meta::volume::{RenameMode, Volume};
use cairn_types::{ErrorCode, InodeId};
use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use place::{TRASH_PATH, is_in_trash};

/// Of directories: seconds that what is removed below them stays in the trash.
pub const KEEP_ATTRIBUTE: &[u8] = b"user.cairn.trash_keep";
/// Of entries: the path that it had.
const PATH_ATTRIBUTE: &[u8] = b"user.cairn.trash_path";
/// Buckets begin at multiples of it.
pub const BUCKET_SECONDS: u64 = 600;
/// Entries that are looked at, or removed, at the same time.
const IN_FLIGHT_MAX: usize = 64;
/// Longest time that something is kept: a hundred years. Names of buckets have twelve digits.
const KEEP_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The trash of one user.
pub struct Trash {
    volume: Volume,
    /// Without an attribute.
    keep: Duration,
    /// Buckets that are there.
    made: Mutex<Option<Vec<u8>>>,
    /// What directories say.
    kept: Mutex<BTreeMap<Vec<u8>, Option<Duration>>>,
    /// Directories, and whether another partition has them than the trash.
    far: Mutex<BTreeMap<Vec<u8>, bool>>,
}

/// What became of something new that was to take a place.
#[derive(Debug)]
pub enum Swapped {
    Done,
    /// It is where it was, and so is the old file.
    Refused(ClientError),
}

/// A path in the directory of `path` for the inode that is to take its place: hidden, and nobody else's.
pub fn beside(path: &[u8], inode: u64) -> Vec<u8> {
    let name = format!(".cairn-new-{inode}-{}", now().as_nanos());
    match above(path) {
        b"/" => format!("/{name}").into_bytes(),
        directory => joined(&[directory, name.as_bytes()]),
    }
}

/// Something that was removed.
#[derive(Debug, Clone)]
pub struct Trashed {
    /// The path that it had.
    pub path: Vec<u8>,
    /// Where it is now; it can be read there.
    pub now_at: Vec<u8>,
    /// Directory around it, which goes with it.
    entry: Vec<u8>,
    pub attributes: Attributes,
    /// Nanoseconds since 1970.
    pub removed_ns: i64,
    pub expires_ns: u64,
    pub uid: u32,
}

fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.join(&b'/')
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The directory above a path.
fn above(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    if end == 0 { b"/" } else { &path[..end] }
}

impl Trash {
    /// Of the user that the volume is used by; `keep`: where no directory says otherwise.
    pub fn new(volume: &Volume, keep: Duration) -> Self {
        Self { volume: volume.clone(), keep, made: Mutex::default(), kept: Mutex::default(), far: Mutex::default() }
    }

    fn own(&self) -> Vec<u8> {
        joined(&[TRASH_PATH, self.volume.who().uid.to_string().as_bytes()])
    }

    /// How long something is kept that is removed now; zero: not at all.
    pub async fn keep_of(&self, path: &[u8]) -> Result<Duration> {
        let mut at = path;
        while at != b"/" {
            at = above(at);
            let known = self.kept.lock().get(at).copied();
            let said = match known {
                Some(said) => said,
                None => {
                    let said = self.said_by(at).await?;
                    self.kept.lock().insert(at.to_vec(), said);
                    said
                }
            };
            if let Some(keep) = said {
                return Ok(keep);
            }
        }
        Ok(self.keep)
    }

    async fn said_by(&self, directory: &[u8]) -> Result<Option<Duration>> {
        let inode = self.volume.stat(directory, true).await?.inode;
        match self.volume.get_xattr(inode, KEEP_ATTRIBUTE).await {
            Ok(value) => {
                Ok(std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok()).map(Duration::from_secs))
            }
            // Who may not read the directory goes by what is above it.
            Err(error) if matches!(error.code(), Some(ErrorCode::NoAttribute | ErrorCode::PermissionDenied)) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Moves something into the trash. False: it is not to be kept, remove it.
    pub async fn put(&self, path: &[u8]) -> Result<bool> {
        let Some(place) = self.place(path).await? else { return Ok(false) };
        if let Err(error) = self.volume.rename(path, &place, RenameMode::NoReplace).await {
            self.give_back(&place).await;
            return Err(cannot_keep(error));
        }
        Ok(true)
    }

    /// Puts what is at `new` in the place of the file at `path`, which goes to the trash: one step, so that there is
    /// always one of the two at `path`. `new` is a path that [`place`](Self::place) gave, and is where the old file is
    /// afterwards.
    pub async fn swap(&self, new: &[u8], path: &[u8]) -> Result<()> {
        match self.volume.rename(new, path, RenameMode::Exchange).await {
            // Somebody removed it meanwhile.
            Err(error) if error.is_not_found() => {
                self.volume.rename(new, path, RenameMode::NoReplace).await?;
                self.give_back(new).await;
                Ok(())
            }
            outcome => outcome.map_err(cannot_keep),
        }
    }

    /// Whether the directory of a path is in another partition than the trash: what is new has to be there, then.
    pub async fn is_far(&self, path: &[u8]) -> Result<bool> {
        let directory = above(path);
        if let Some(known) = self.far.lock().get(directory).copied() {
            return Ok(known);
        }
        let inode = self.volume.stat(directory, true).await?.inode;
        let far = self.volume.partition_of(inode).await? != self.volume.partition_of(InodeId::ROOT.0).await?;
        self.far.lock().insert(directory.to_vec(), far);
        Ok(far)
    }

    /// [`swap`](Self::swap) where the trash [is far](Self::is_far), with a quota perhaps: `new` is [`beside`] `path`.
    /// The two change places, then the old file, which has the name of the new one for that moment, goes to `place`.
    pub async fn swap_beside(&self, new: &[u8], path: &[u8], place: &[u8]) -> Result<Swapped> {
        match self.volume.rename(new, path, RenameMode::Exchange).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() => {
                self.volume.rename(new, path, RenameMode::NoReplace).await?;
                self.give_back(place).await;
                return Ok(Swapped::Done);
            }
            Err(error) if error.is_unknown() => return Err(error),
            Err(error) => return Ok(Swapped::Refused(error)),
        }
        match self.volume.rename(new, place, RenameMode::NoReplace).await {
            Ok(()) => Ok(Swapped::Done),
            Err(error) if error.is_unknown() => Err(error),
            Err(error) => match self.volume.rename(new, path, RenameMode::Exchange).await {
                Ok(()) => Ok(Swapped::Refused(cannot_keep(error))),
                Err(_) => {
                    let code = error.code().unwrap_or(ErrorCode::Internal);
                    let text = format!("the old file could not be moved to the trash ({error}) and is here now");
                    Err(ClientError::remote(&String::from_utf8_lossy(new), code, &text))
                }
            },
        }
    }

    /// A place that was not needed. If this fails it goes with its bucket.
    pub async fn give_back(&self, place: &[u8]) {
        drop(self.volume.rmdir(above(place)).await);
    }

    /// Makes a place in the trash for what is at a path; `None`: it is not to be kept.
    pub async fn place(&self, path: &[u8]) -> Result<Option<Vec<u8>>> {
        let keep = self.keep_of(path).await?;
        if keep.is_zero() || is_in_trash(path) {
            return Ok(None);
        }
        let attributes = self.volume.stat(path, false).await?;
        let bucket = self.bucket(keep).await?;
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let unique = format!("{}-{}", attributes.inode, now().as_nanos());
        let entry = joined(&[&bucket, unique.as_bytes()]);
        let made = self.volume.mkdir(&entry, 0o700, 0).await?;
        let place = joined(&[&entry, name]);
        if let Err(error) = self.volume.set_xattr(made.inode, PATH_ATTRIBUTE, path, 0).await {
            self.give_back(&place).await;
            return Err(error);
        }
        Ok(Some(place))
    }

    /// The directory for what is removed now, made if it is not there.
    async fn bucket(&self, keep: Duration) -> Result<Vec<u8>> {
        let time = (now() + keep.min(KEEP_MAX)).as_secs().next_multiple_of(BUCKET_SECONDS);
        let own = self.own();
        let bucket = joined(&[&own, format!("{time:012}").as_bytes()]);
        if self.made.lock().as_ref() == Some(&bucket) {
            return Ok(bucket);
        }
        make(&self.volume, TRASH_PATH).await?;
        make(&self.volume, &own).await?;
        let owner = self.volume.stat(&own, false).await?;
        if owner.uid != self.volume.who().uid || owner.mode & 0o170_000 != 0o040_000 {
            return Err(not_own(&own, self.volume.who().uid));
        }
        make(&self.volume, &bucket).await?;
        *self.made.lock() = Some(bucket.clone());
        Ok(bucket)
    }

    /// What is in the trash, oldest first; of all users if `all` (what may be read).
    pub async fn list(&self, all: bool) -> Result<Vec<Trashed>> {
        let mut found = Vec::new();
        let users = match all {
            true => self.names(TRASH_PATH).await?.into_iter().map(|name| joined(&[TRASH_PATH, &name])).collect(),
            false => vec![self.own()],
        };
        for user in users {
            let uid =
                user.rsplit(|byte| *byte == b'/').next().and_then(|name| std::str::from_utf8(name).ok()?.parse().ok());
            for bucket in self.names(&user).await? {
                let time =
                    std::str::from_utf8(&bucket).ok().filter(|name| name.len() == 12).and_then(|n| n.parse().ok());
                let (Some(uid), Some(time)) = (uid, time) else { continue };
                self.list_bucket(&joined(&[&user, &bucket]), uid, time, &mut found).await?;
            }
        }
        found.sort_by_key(|trashed| trashed.removed_ns);
        Ok(found)
    }

    async fn list_bucket(&self, bucket: &[u8], uid: u32, time: u64, found: &mut Vec<Trashed>) -> Result<()> {
        let names = self.names(bucket).await?;
        let looks = names.iter().map(|name| self.list_entry(joined(&[bucket, name]), uid, time));
        let mut entries = stream::iter(looks).buffer_unordered(IN_FLIGHT_MAX);
        while let Some(entry) = entries.try_next().await? {
            found.extend(entry);
        }
        Ok(())
    }

    /// What is in an entry: one thing, or nothing where it was not made by this, or is on its way out at this moment.
    async fn list_entry(&self, entry: Vec<u8>, uid: u32, time: u64) -> Result<Vec<Trashed>> {
        let mut found = Vec::new();
        let Some(about) = self.volume.try_stat(&entry, false).await? else { return Ok(found) };
        let path = match self.volume.get_xattr(about.inode, PATH_ATTRIBUTE).await {
            Ok(path) => path,
            Err(error) if is_none_of_ours(&error) => return Ok(found),
            Err(error) => return Err(error),
        };
        for inner in self.names(&entry).await? {
            let now_at = joined(&[&entry, &inner]);
            let Some(attributes) = self.volume.try_stat(&now_at, false).await? else { continue };
            found.push(Trashed {
                path: path.clone(),
                now_at,
                entry: entry.clone(),
                attributes,
                removed_ns: about.btime_ns,
                expires_ns: time.saturating_mul(1_000_000_000),
                uid,
            });
        }
        Ok(found)
    }

    /// Names in a directory; none if it is not there, or not for this user.
    async fn names(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let directory = match self.volume.try_stat(path, false).await {
            Ok(Some(directory)) if directory.mode & 0o170_000 == 0o040_000 => directory,
            Ok(_) => return Ok(Vec::new()),
            Err(error) if error.code() == Some(ErrorCode::PermissionDenied) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let (mut names, mut after) = (Vec::new(), Vec::new());
        loop {
            let page = match self.volume.readdir(directory.inode, &after, false).await {
                // It went while it was listed: somebody else emptied the trash, or the time of the bucket is over.
                Err(error) if is_none_of_ours(&error) => return Ok(names),
                page => page?,
            };
            after = page.entries.last().map(|last| last.cookie.clone()).unwrap_or_default();
            names.extend(page.entries.into_iter().map(|entry| entry.name));
            if page.end {
                return Ok(names);
            }
        }
    }

    /// Brings something back, to the path that it had or to another one, where nothing may be.
    pub async fn restore(&self, trashed: &Trashed, to: Option<&[u8]>) -> Result<()> {
        let to = to.unwrap_or(&trashed.path);
        self.volume.rename(&trashed.now_at, to, RenameMode::NoReplace).await.map_err(|error| {
            let now_at = String::from_utf8_lossy(&trashed.now_at);
            match error.code() {
                Some(ErrorCode::CrossVolume) => {
                    let text = format!(
                        "a quota counts what is in the directory where it goes, in another meta partition than the trash's; copy it from \
                         {now_at} with cairn fs cp -r"
                    );
                    ClientError::remote(&String::from_utf8_lossy(to), ErrorCode::CrossVolume, &text)
                }
                _ => error,
            }
        })?;
        // The shell around it; if this fails it goes with the bucket.
        drop(self.volume.rmdir(&trashed.entry).await);
        Ok(())
    }

    /// Removes things for good; how many. What is not there any more was removed by somebody else.
    pub async fn remove_all(&self, trashed: &[Trashed]) -> Result<usize> {
        let removals = trashed.iter().map(|one| async {
            match self.volume.remove_tree(&one.entry).await {
                Err(error) if error.is_not_found() => Ok(0),
                result => result.map(|()| 1),
            }
        });
        stream::iter(removals)
            .buffer_unordered(IN_FLIGHT_MAX)
            .try_fold(0, |sum, one| async move { Ok(sum + one) })
            .await
    }
}

/// Somebody else made what has the name of a user's trash.
fn not_own(own: &[u8], uid: u32) -> ClientError {
    let own = String::from_utf8_lossy(own);
    let next = match uid {
        0 => format!("remove it with `cairn fs rm -r --skip-trash {own}`, and what others put into it goes, too"),
        _ => "ask root to remove it, or remove without the trash: --skip-trash".to_owned(),
    };
    ClientError::remote(&own, ErrorCode::PermissionDenied, &format!("is not a directory of user {uid}; {next}"))
}

/// It is gone, not for this user, or no entry of a trash.
fn is_none_of_ours(error: &ClientError) -> bool {
    error.is_not_found() || matches!(error.code(), Some(ErrorCode::NoAttribute | ErrorCode::PermissionDenied))
}

async fn make(volume: &Volume, path: &[u8]) -> Result<()> {
    match volume.mkdir(path, 0o700, 0).await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Some(ErrorCode::Exists) => Ok(()),
        Err(error) => Err(error),
    }
}

/// What a quota counts stays in one partition, and the trash is in that of the root.
fn cannot_keep(error: ClientError) -> ClientError {
    if error.code() != Some(ErrorCode::CrossVolume) {
        return error;
    }
    let text = "a quota counts it, and the trash is in another meta partition, which can keep it from feature level 24 of all meta nodes on: upgrade \
                them, or let it go for good with --skip-trash";
    ClientError::remote("the trash", ErrorCode::CrossVolume, text)
}

#[cfg(test)]
mod tests;
