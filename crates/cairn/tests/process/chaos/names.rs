//! Clients that make, move and remove names in shared rounds, through the client library and through mounts.
//!
//! The library's operations name directories by inode, so they go into directories of directories. A mount resolves
//! paths step by step, so what it does is one operation only in the round's own directory, and of what the kernel asks
//! several questions for only what was done counts, not why it was refused.
use super::work::{Counts, Work};
use crate::mount::seeds::Rng;
use cairn_client::Volume;
use cairn_history::tree_model::{Answer, Mode, Op, Place, TOP, Tag};
use cairn_history::{NAMES, Outcome, REFUSALS, Round, choose, perform};
use cairn_sim::SimRng;
use cairn_types::ErrorCode;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The directory of all rounds.
pub const DIR: &str = "/names";
const KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;

/// A client through the library.
pub struct Caller {
    pub client: usize,
    pub volume: Volume,
    pub rng: SimRng,
    pub work: Arc<Work>,
}

impl Caller {
    /// Works until the end of the run.
    pub async fn run(self) {
        while !self.work.is_over() {
            match self.work.rounds.pick(self.rng.index(64)) {
                Some(round) => self.one(&round).await,
                None => self.open_round().await,
            }
            tokio::time::sleep(Duration::from_millis(self.rng.range(0..60))).await;
        }
    }
    async fn open_round(&self) {
        let path = self.work.rounds.next_path();
        let partition = self.rng.index(64);
        let made = match self.volume.partitions().await {
            Ok(all) => self.volume.mkdir_in(path.as_bytes(), 0o777, 0, all[partition % all.len()]).await,
            Err(error) => Err(error),
        };
        match made {
            Ok(made) => self.work.rounds.add(Round::new(path, made.inode)),
            // Nobody could be reached, or the answer was lost. A refusal has a code; that the session can do nothing
            // more is none.
            Err(error) => assert!(
                error.is_unknown() || error.code().is_none_or(|code| code == ErrorCode::BadSequence),
                "a directory for the next round: {error}"
            ),
        }
    }
    async fn one(&self, round: &Round) {
        let op = choose(round, &self.rng);
        let outcome = self.work.counts.timed(perform(&self.volume, self.client, round, op)).await;
        self.work.counts.names(&outcome);
    }
}

/// Lists all directories of a round as its last operations and checks its history. False: not everything could be read.
pub async fn finish(volume: &Volume, round: &Round, counts: &Counts) -> bool {
    if !counts.timed(cairn_history::finish(volume, round)).await {
        return false;
    }
    match round.check(|client| client >= super::CLIENTS) {
        Ok(Some((operations, unknown))) => counts.checked(operations, unknown),
        Ok(None) => counts.undecided.add(1),
        Err(wrong) => panic!("{wrong}"),
    }
    // What it left goes, in one step.
    if let Err(error) = volume.remove_tree(round.path.as_bytes()).await {
        println!("{} stays: {error}", round.path);
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
        let dir = self.dir.join(round.path.trim_start_matches('/'));
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
        round.end(self.client, op, begin, &outcome);
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
