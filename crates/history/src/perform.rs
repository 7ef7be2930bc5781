//! Operations on names through the client library, as entries of a round's history.
//!
//! They name directories by inode, so they go into directories of directories.
use crate::round::{Outcome, Round};
use crate::tree_model::{Answer, Mode, Op, Place, TOP, Tag};
use cairn_client::attributes::Attributes;
use cairn_client::changes::NewFile;
use cairn_client::{ClientError, Volume};
use cairn_sim::SimRng;
use cairn_types::ErrorCode;

/// Names in a directory.
pub const NAMES: [&str; 3] = ["a", "b", "c"];
/// Who lists rounds in the end, among clients.
const FINISHER: usize = 999;
/// What an operation on names may be refused with.
pub const REFUSALS: [ErrorCode; 8] = [
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

/// What somebody does next in a round.
pub fn choose(round: &Round, rng: &SimRng) -> Op {
    let known = round.known();
    let tags: Vec<Tag> = known.iter().map(|(tag, ..)| *tag).filter(|tag| *tag != TOP).collect();
    let dirs: Vec<Tag> = known.iter().filter(|(.., dir)| *dir).map(|(tag, ..)| *tag).collect();
    // The newest ones: most others are gone.
    let recent = &dirs[dirs.len().saturating_sub(4)..];
    let place = || Place { dir: if rng.index(2) == 0 { TOP } else { *rng.pick(recent) }, name: rng.index(3) as u8 };
    let (one, other) = (place(), place());
    let seen = &tags[tags.len().saturating_sub(6)..];
    match rng.index(16) {
        0..3 => Op::Create(one, round.tag()),
        3..5 => Op::Mkdir(one, round.tag()),
        5 | 6 => Op::Unlink(one),
        7 => Op::Rmdir(one),
        8..11 => Op::Rename(one, other, *rng.pick(&[Mode::Replace, Mode::Replace, Mode::NoReplace, Mode::Exchange])),
        11 if !seen.is_empty() => Op::Link(*rng.pick(seen), one),
        12 if !seen.is_empty() => Op::Stat(*rng.pick(seen)),
        13 => Op::List(one.dir),
        _ => Op::Lookup(one),
    }
}

/// Does one operation and enters it into the round's history.
pub async fn perform(volume: &Volume, client: usize, round: &Round, op: Op) -> Outcome {
    let inodes = round.known();
    let inode = |tag: Tag| inodes.iter().find(|(known, ..)| *known == tag).expect("chosen from what is known").1;
    let name = |place: Place| NAMES[usize::from(place.name)].as_bytes();
    let shown = format!("{}: {op:?}", round.path);
    let shown = shown.as_bytes();
    let begin = round.begin();
    let answered = async {
        match op {
            Op::Create(at, tag) => {
                let new = NewFile { mode: u32::from(tag), exclusive: true, ..NewFile::default() };
                let made = volume.create_at(inode(at.dir), name(at), shown, new).await;
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
            Op::List(dir) => return list(volume, round, inode(dir)).await,
        }
        .map(Some)
    };
    let outcome = match answered.await {
        Ok(answer) => answer.map_or(Outcome::Nothing, Outcome::Known),
        Err(error) => outcome(&op, &error),
    };
    round.end(client, op, begin, &outcome);
    outcome
}

fn is_dir(found: &Attributes) -> bool {
    found.is_directory()
}

fn made_with(round: &Round, tag: Tag, made: &Attributes) -> Answer {
    assert_eq!(made.mode & 0o777, u32::from(tag), "{}: inode {} has other permissions", round.path, made.inode);
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

/// The names in a directory, of one moment: what they lead to is asked for by itself, and never changes. Nothing: some
/// of it is gone.
async fn list(volume: &Volume, round: &Round, inode: u64) -> Result<Option<Answer>, ClientError> {
    let page = volume.readdir(inode, b"", false).await?;
    assert!(page.end, "{}: a directory of three names has {} entries", round.path, page.entries.len());
    let mut names = Vec::new();
    for entry in page.entries {
        let name = NAMES.iter().position(|name| name.as_bytes() == entry.name);
        let name = name.unwrap_or_else(|| panic!("{}: nobody made {:?}", round.path, entry.name));
        let known = round.known().into_iter().find(|(_, known, _)| *known == entry.inode);
        let tag = match known {
            Some((tag, ..)) => tag,
            None => {
                let Ok(found) = volume.getattr(entry.inode).await else { return Ok(None) };
                let tag = (found.mode & 0o777) as Tag;
                round.learn(tag, found.inode, is_dir(&found));
                tag
            }
        };
        names.push((name as u8, tag));
    }
    names.sort_unstable();
    Ok(Some(Answer::Names(names)))
}

/// Lists all directories of a round as its last operations. False: not everything could be read.
pub async fn finish(volume: &Volume, round: &Round) -> bool {
    let dirs: Vec<Tag> = round.known().iter().filter(|(.., dir)| *dir).map(|(tag, ..)| *tag).collect();
    for dir in &dirs {
        if !matches!(perform(volume, FINISHER, round, Op::List(*dir)).await, Outcome::Known(_)) {
            return false;
        }
    }
    true
}
