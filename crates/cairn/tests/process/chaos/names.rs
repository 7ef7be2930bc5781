//! Clients that make, move and remove names in shared rounds, through the client library and through mounts.
//!
//! The library's operations name directories by inode, so they go into directories of directories. A mount resolves paths
//! step by step, so what it does is one operation only in the round's own directory, and of what the kernel asks several
//! questions for only what was done counts, not why it was refused.
use super::rounds::{Outcome, Round};
use super::tree_model::{Answer, Mode, Op, Place, TOP, Tag};
use super::work::{Counts, Work};
use crate::mount::seeds::Rng;
use cairn_client::{ClientError, Volume};
use cairn_types::ErrorCode;
use cairn_wire::meta::{Attributes, CreateRequest};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The directory of all rounds.
pub const DIR: &str = "/names";
/// Names in a directory.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Who lists rounds in the end, among clients.
const FINISHER: usize = 999;
const KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
/// What an operation on names may be refused with.
const REFUSALS: [ErrorCode; 8] = [
    ErrorCode::Exists,
    ErrorCode::InvalidArgument,
    ErrorCode::IsDirectory,
    ErrorCode::NotDirectory,
    ErrorCode::NotEmpty,
    ErrorCode::NotFound,
    ErrorCode::NotPermitted,
    ErrorCode::Stale,
];

/// What an error of the library says about what was done. Panics if it is none that an operation on names can have.
fn outcome(op: &Op, error: &ClientError) -> Outcome {
    match error {
        error if error.is_unknown() => Outcome::Unknown,
        ClientError::Unreachable { .. } | ClientError::NoLeader { .. } => Outcome::Nothing,
        // The session can do nothing more; whether an earlier attempt was done is not told.
        error if error.code() == Some(ErrorCode::BadSequence) => Outcome::Unknown,
        error => match error.code().filter(|code| REFUSALS.contains(code)) {
            Some(code) => Outcome::Known(Answer::Refused(code)),
            None => panic!("{op:?} ended with what no operation on names can end with: {error}"),
        },
    }
}

/// A client through the library.
pub struct Caller {
    pub client: usize,
    pub volume: Volume,
    pub rng: Rng,
    pub work: Arc<Work>,
}

impl Caller {
    /// Works until the end of the run.
    pub async fn run(mut self) {
        while !self.work.is_over() {
            match self.work.rounds.pick(self.rng.index(64)) {
                Some(round) => self.one(&round).await,
                None => self.open_round().await,
            }
            tokio::time::sleep(Duration::from_millis(self.rng.below(60))).await;
        }
    }
    async fn open_round(&mut self) {
        let name = self.work.rounds.next_name();
        let path = format!("{DIR}/{name}");
        let partition = self.rng.index(64);
        let made = match self.volume.partitions().await {
            Ok(all) => self.volume.mkdir_in(path.as_bytes(), 0o777, 0, all[partition % all.len()]).await,
            Err(error) => Err(error),
        };
        match made {
            Ok(made) => self.work.rounds.add(Round::new(name, made.inode)),
            // Nobody could be reached, or the answer was lost. A refusal has a code; that the session can do nothing more is none.
            Err(error) => assert!(
                error.is_unknown() || error.code().is_none_or(|code| code == ErrorCode::BadSequence),
                "a directory for the next round: {error}"
            ),
        }
    }
    async fn one(&mut self, round: &Round) {
        let op = self.choose(round);
        perform(&self.volume, self.client, round, op, &self.work.counts).await;
    }
    fn choose(&mut self, round: &Round) -> Op {
        let known = round.known();
        let tags: Vec<Tag> = known.iter().map(|(tag, ..)| *tag).filter(|tag| *tag != TOP).collect();
        let dirs: Vec<Tag> = known.iter().filter(|(.., dir)| *dir).map(|(tag, ..)| *tag).collect();
        // The newest ones: most others are gone.
        let recent = &dirs[dirs.len().saturating_sub(4)..];
        let rng = &mut self.rng;
        let mut place =
            || Place { dir: if rng.one_in(2) { TOP } else { rng.pick(recent) }, name: rng.index(NAMES.len()) as u8 };
        let (one, other) = (place(), place());
        let seen = tags[tags.len().saturating_sub(6)..].to_vec();
        match rng.below(16) {
            0..3 => Op::Create(one, round.tag()),
            3..5 => Op::Mkdir(one, round.tag()),
            5 | 6 => Op::Unlink(one),
            7 => Op::Rmdir(one),
            8..11 => Op::Rename(one, other, rng.pick(&[Mode::Replace, Mode::Replace, Mode::NoReplace, Mode::Exchange])),
            11 if !seen.is_empty() => Op::Link(rng.pick(&seen), one),
            12 if !seen.is_empty() => Op::Stat(rng.pick(&seen)),
            13 => Op::List(one.dir),
            _ => Op::Lookup(one),
        }
    }
}

/// Does one operation and enters it into the round's history. Whether its outcome is known.
async fn perform(volume: &Volume, client: usize, round: &Round, op: Op, counts: &Counts) -> bool {
    let inodes = round.known();
    let inode = |tag: Tag| inodes.iter().find(|(known, ..)| *known == tag).expect("chosen from what is known").1;
    let name = |place: Place| NAMES[usize::from(place.name)].as_bytes();
    let shown = format!("{DIR}/{}: {op:?}", round.name);
    let shown = shown.as_bytes();
    let begin = round.begin();
    let answered = counts.timed(async {
        match op {
            Op::Create(at, tag) => {
                let request = CreateRequest { mode: u32::from(tag), exclusive: true, ..Default::default() };
                let made = volume.create_at(inode(at.dir), name(at), shown, request).await;
                made.map(|made| made_with(round, tag, &made))
            }
            Op::Mkdir(at, tag) => {
                let all = volume.partitions().await?;
                let partition = all[usize::from(tag) % all.len()];
                let made = volume.mkdir_at_in(inode(at.dir), name(at), shown, u32::from(tag), partition).await;
                made.map(|made| made_with(round, tag, &made))
            }
            Op::Unlink(at) => volume.unlink_at(inode(at.dir), name(at), shown).await.map(|_| Answer::Done),
            Op::Rmdir(at) => volume.rmdir_at(inode(at.dir), name(at), shown).await.map(|_| Answer::Done),
            Op::Rename(from, to, mode) => {
                let (old, new) = ((inode(from.dir), name(from)), (inode(to.dir), name(to)));
                let moved = volume.rename_at(old.0, old.1, new.0, new.1, shown, mode as u32).await;
                moved.map(|()| Answer::Done)
            }
            Op::Link(tag, at) => {
                let linked = volume.link_at(inode(tag), inode(at.dir), name(at), shown).await;
                linked.map(|_| Answer::Done)
            }
            Op::Lookup(at) => {
                volume.lookup(inode(at.dir), name(at), shown).await.map(|found| found_there(round, &found))
            }
            Op::Stat(tag) => volume.getattr(inode(tag)).await.map(|found| found_there(round, &found)),
            Op::List(dir) => list(volume, round, inode(dir)).await,
        }
    });
    let outcome = answered.await.map_or_else(|error| outcome(&op, &error), Outcome::Known);
    counts.names(&outcome);
    let known = matches!(outcome, Outcome::Known(_));
    round.end(client, op, begin, outcome);
    known
}

fn is_dir(found: &Attributes) -> bool {
    found.mode & KIND == DIRECTORY
}

fn made_with(round: &Round, tag: Tag, made: &Attributes) -> Answer {
    assert_eq!(made.mode & 0o777, u32::from(tag), "{}: inode {} has other permissions", round.name, made.inode);
    round.learn(tag, made.inode, is_dir(made));
    Answer::Done
}

fn found_there(round: &Round, found: &Attributes) -> Answer {
    let tag = (found.mode & 0o777) as Tag;
    let tag = (found.inode != round.inode).then_some(tag);
    if let Some(tag) = tag {
        round.learn(tag, found.inode, is_dir(found));
    }
    Answer::Found { dir: is_dir(found), tag, links: Some(found.nlink) }
}

async fn list(volume: &Volume, round: &Round, inode: u64) -> Result<Answer, ClientError> {
    // One page is one moment.
    let page = volume.readdir(inode, b"", true).await?;
    assert!(page.end, "{}: a directory of three names has {} entries", round.name, page.entries.len());
    let mut names = Vec::new();
    for entry in page.entries {
        let name = NAMES.iter().position(|name| name.as_bytes() == entry.name);
        let name = name.unwrap_or_else(|| panic!("{}: nobody made {:?}", round.name, entry.name));
        let found = entry.attributes.expect("asked for attributes");
        let tag = (found.mode & 0o777) as Tag;
        round.learn(tag, found.inode, is_dir(&found));
        names.push((name as u8, tag));
    }
    names.sort_unstable();
    Ok(Answer::Names(names))
}

/// Lists all directories of a round as its last operations and checks its history. False: not everything could be read.
pub async fn finish(volume: &Volume, round: &Round, counts: &Counts) -> bool {
    let dirs: Vec<Tag> = round.known().iter().filter(|(.., dir)| *dir).map(|(tag, ..)| *tag).collect();
    for dir in &dirs {
        if !perform(volume, FINISHER, round, Op::List(*dir), counts).await {
            return false;
        }
    }
    match round.check() {
        Some((operations, unknown)) => counts.checked(operations, unknown),
        None => counts.undecided.add(1),
    }
    // What it left goes, in one step.
    if let Err(error) = volume.remove_tree(format!("{DIR}/{}", round.name).as_bytes()).await {
        println!("{} stays: {error}", round.name);
    }
    true
}

/// A client through a mount.
pub struct Mounted {
    pub client: usize,
    pub dir: PathBuf,
    pub rng: Rng,
    pub work: Arc<Work>,
}

impl Mounted {
    /// One operation.
    pub fn step(&mut self) {
        let Some(round) = self.work.rounds.pick(self.rng.index(64)) else { return };
        let dir = self.dir.join(DIR.trim_start_matches('/')).join(&round.name);
        let rng = &mut self.rng;
        let mut place = || Place { dir: TOP, name: rng.index(NAMES.len()) as u8 };
        let (one, other) = (place(), place());
        let op = match rng.below(10) {
            0 | 1 => Op::Create(one, round.tag()),
            2 | 3 => Op::Mkdir(one, round.tag()),
            4 => Op::Unlink(one),
            5 => Op::Rmdir(one),
            6 | 7 => Op::Rename(one, other, rng.pick(&[Mode::Replace, Mode::NoReplace, Mode::Exchange])),
            _ => Op::Lookup(one),
        };
        let begin = round.begin();
        let answered = self.work.counts.timed_blocking(|| through_mount(&dir, &op));
        let outcome = match answered {
            Ok(answer) => Outcome::Known(answer),
            Err(error) => outcome_of_mount(&op, &error),
        };
        self.work.counts.names(&outcome);
        round.end(self.client, op, begin, outcome);
    }
}

fn through_mount(dir: &Path, op: &Op) -> std::io::Result<Answer> {
    let path = |place: &Place| dir.join(NAMES[usize::from(place.name)]);
    let mode = |tag: &Tag| u32::from(*tag);
    let done = |result: std::io::Result<()>| result.map(|()| Answer::Done);
    match op {
        Op::Create(at, tag) => {
            let made = fs::OpenOptions::new().write(true).create_new(true).mode(mode(tag)).open(path(at));
            done(made.map(drop))
        }
        Op::Mkdir(at, tag) => done(fs::DirBuilder::new().mode(mode(tag)).create(path(at))),
        Op::Unlink(at) => done(fs::remove_file(path(at))),
        Op::Rmdir(at) => done(fs::remove_dir(path(at))),
        Op::Rename(from, to, mode) => {
            let flags = rustix::fs::RenameFlags::from_bits_retain(*mode as u32);
            let cwd = rustix::fs::CWD;
            done(rustix::fs::renameat_with(cwd, path(from), cwd, path(to), flags).map_err(Into::into))
        }
        Op::Lookup(at) => {
            use rustix::fs::{Mode, OFlags};
            // That it is there is told by one question; what it is follows, and never changes.
            let file = rustix::fs::open(path(at), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            let about = rustix::fs::fstat(&file)?;
            let (mode, dir) = (about.st_mode, about.st_mode & KIND == DIRECTORY);
            Ok(Answer::Found { dir, tag: Some((mode & 0o777) as Tag), links: None })
        }
        Op::Link(..) | Op::Stat(_) | Op::List(_) => unreachable!("not done through mounts"),
    }
}

/// What an error of a mount says about what was done.
fn outcome_of_mount(op: &Op, error: &std::io::Error) -> Outcome {
    let errno = error.raw_os_error().expect("an error of the system");
    match REFUSALS.iter().find(|code| code.errno() == errno) {
        // Also said of a session that was lost.
        Some(ErrorCode::Stale) => Outcome::Unknown,
        // A name that is there by one question may be gone by the next.
        Some(_) if matches!(op, Op::Rename(..) | Op::Lookup(_)) => Outcome::Nothing,
        Some(code) => Outcome::Known(Answer::Refused(*code)),
        None if matches!(errno, 5 | 110 | 103 | 107) => Outcome::Unknown,
        None => panic!("{op:?} through a mount ended with {error}"),
    }
}
