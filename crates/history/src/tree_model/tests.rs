//! The model of names does what a Linux file system does, and histories that no file system has are refused with it.
use super::*;
use crate::linear::{Call, Verdict, check};
use cairn_sim::SimRng;
use cairn_types::ErrorCode;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

type Line = Call<Op, Answer>;

fn top(name: u8) -> Place {
    Place { dir: TOP, name }
}

fn call(op: Op, begin: u64, end: u64, answer: Answer) -> Line {
    Call { client: 0, input: op, begin, end: Some((end, answer)) }
}

fn unknown(op: Op, begin: u64) -> Line {
    Call { client: 0, input: op, begin, end: None }
}

fn file(tag: Tag) -> Answer {
    Answer::Found { dir: false, tag: Some(tag), links: Some(1) }
}

/// Two clients would get the same name, a rename would be seen half, or an acknowledged name be gone, and pass.
#[test]
fn histories_of_no_file_system_are_refused() {
    use Answer::{Done, Names as Listed, Refused};
    let (a, b) = (top(0), top(1));
    let rename = Op::Rename(a, b, Mode::Replace);
    let cases: &[(&str, bool, &[Line])] = &[
        (
            "one of two creates wins",
            true,
            &[call(Op::Create(a, 1), 1, 4, Done), call(Op::Create(a, 2), 2, 3, Refused(Exists))],
        ),
        ("both win", false, &[call(Op::Create(a, 1), 1, 4, Done), call(Op::Create(a, 2), 2, 3, Done)]),
        (
            "a name that is gone",
            false,
            &[call(Op::Create(a, 1), 1, 2, Done), call(Op::Lookup(a), 3, 4, Refused(NotFound))],
        ),
        ("another file", false, &[call(Op::Create(a, 1), 1, 2, Done), call(Op::Lookup(a), 3, 4, file(2))]),
        (
            "a rename seen half: both names",
            false,
            &[
                call(Op::Create(a, 1), 1, 2, Done),
                call(rename, 3, 9, Done),
                call(Op::List(TOP), 4, 5, Listed(vec![(0, 1), (1, 1)])),
            ],
        ),
        (
            "a rename seen half: no name",
            false,
            &[call(Op::Create(a, 1), 1, 2, Done), call(rename, 3, 9, Done), call(Op::List(TOP), 4, 5, Listed(vec![]))],
        ),
        (
            "an unknown rename is seen, then undone",
            false,
            &[
                call(Op::Create(a, 1), 1, 2, Done),
                unknown(rename, 3),
                call(Op::Lookup(b), 4, 5, file(1)),
                call(Op::Lookup(a), 6, 7, file(1)),
            ],
        ),
        (
            "an unknown create may come late",
            true,
            &[
                unknown(Op::Create(a, 1), 1),
                call(Op::Lookup(a), 2, 3, Refused(NotFound)),
                call(Op::Lookup(a), 4, 5, file(1)),
            ],
        ),
        (
            "a directory is removed under a new name in it",
            false,
            &[
                call(Op::Mkdir(a, 1), 1, 2, Done),
                call(Op::Create(Place { dir: 1, name: 0 }, 2), 3, 8, Done),
                call(Op::Rmdir(a), 4, 7, Done),
            ],
        ),
        (
            "two directories into each other",
            false,
            &[
                call(Op::Mkdir(a, 1), 1, 2, Done),
                call(Op::Mkdir(b, 2), 3, 4, Done),
                call(Op::Rename(a, Place { dir: 2, name: 0 }, Mode::Replace), 5, 8, Done),
                call(Op::Rename(b, Place { dir: 1, name: 0 }, Mode::Replace), 6, 7, Done),
            ],
        ),
        (
            "two links, one counted",
            false,
            &[call(Op::Create(a, 1), 1, 2, Done), call(Op::Link(1, b), 3, 4, Done), call(Op::Stat(1), 5, 6, file(1))],
        ),
    ];
    for (what, right, history) in cases {
        let verdict = check(&Names, Tree::new(), history, 1 << 16);
        assert_eq!(verdict == Verdict::Linearizable, *right, "{what}: {verdict:?}");
    }
}

/// A directory of this machine, in which operations are done one after the other.
struct Local {
    root: tempfile::TempDir,
    /// Where a directory or file with the tag is.
    paths: BTreeMap<Tag, PathBuf>,
    /// Ways of renaming that the file system has.
    modes: Vec<Mode>,
}

impl Local {
    fn new() -> Local {
        let mut local =
            Local { root: tempfile::tempdir().expect("directory"), paths: BTreeMap::new(), modes: Vec::new() };
        local.look();
        let all = [Mode::Replace, Mode::NoReplace, Mode::Exchange].into_iter();
        let has = |mode: &Mode| {
            let tried = local.run(&Op::Rename(top(0), top(1), *mode));
            tried.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        };
        local.modes = all.filter(has).collect();
        local
    }
    fn path(&self, place: Place) -> PathBuf {
        self.paths.get(&place.dir).expect("it lives").join(place.name.to_string())
    }
    fn run(&self, op: &Op) -> std::io::Result<Answer> {
        let done = |result: std::io::Result<()>| result.map(|()| Answer::Done);
        let found = |path: &Path| {
            fs::symlink_metadata(path).map(|found| Answer::Found {
                dir: found.is_dir(),
                tag: Some((found.mode() & 0o777) as Tag).filter(|_| path != self.root.path()),
                // Some file systems count no directories.
                links: Some(found.nlink() as u32).filter(|_| !found.is_dir()),
            })
        };
        match *op {
            Op::Create(place, tag) => {
                let mode = u32::from(tag);
                let file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(self.path(place))?;
                done(file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode)))
            }
            Op::Mkdir(place, tag) => {
                let mode = u32::from(tag);
                fs::DirBuilder::new().mode(mode).create(self.path(place))?;
                done(fs::set_permissions(self.path(place), std::os::unix::fs::PermissionsExt::from_mode(mode)))
            }
            Op::Unlink(place) => done(fs::remove_file(self.path(place))),
            Op::Rmdir(place) => done(fs::remove_dir(self.path(place))),
            Op::Rename(from, to, mode) => {
                let flags = rustix::fs::RenameFlags::from_bits_retain(mode as u32);
                let cwd = rustix::fs::CWD;
                let moved = rustix::fs::renameat_with(cwd, self.path(from), cwd, self.path(to), flags);
                done(moved.map_err(Into::into))
            }
            Op::Link(tag, place) => done(fs::hard_link(&self.paths[&tag], self.path(place))),
            Op::Lookup(place) => found(&self.path(place)),
            Op::Stat(tag) => found(&self.paths[&tag]),
            Op::List(dir) => {
                let mut names = Vec::new();
                for entry in fs::read_dir(&self.paths[&dir])? {
                    let entry = entry?;
                    let name = entry.file_name().to_string_lossy().parse().expect("a number");
                    names.push((name, (entry.metadata()?.mode() & 0o777) as Tag));
                }
                names.sort_unstable();
                Ok(Answer::Names(names))
            }
        }
    }
    /// Finds everything again by its tag.
    fn look(&mut self) {
        self.paths = BTreeMap::from([(TOP, self.root.path().to_owned())]);
        let mut stack = vec![self.root.path().to_owned()];
        while let Some(dir) = stack.pop() {
            for entry in fs::read_dir(&dir).expect("list").map(|entry| entry.expect("entry")) {
                let about = fs::symlink_metadata(entry.path()).expect("stat");
                self.paths.insert((about.mode() & 0o777) as Tag, entry.path());
                if about.is_dir() {
                    stack.push(entry.path());
                }
            }
        }
    }
}

fn random(rng: &SimRng, local: &Local, tag: Tag) -> Op {
    let tags: Vec<Tag> = local.paths.keys().copied().collect();
    let dirs: Vec<Tag> = tags.iter().copied().filter(|tag| local.paths[tag].is_dir()).collect();
    let place = || Place { dir: *rng.pick(&dirs), name: rng.range(0..3) as u8 };
    let (one, other) = (place(), place());
    match rng.range(0..12) {
        0 | 1 => Op::Create(one, tag),
        2 | 3 => Op::Mkdir(one, tag),
        4 => Op::Unlink(one),
        5 => Op::Rmdir(one),
        6 | 7 => Op::Rename(one, other, *rng.pick(&local.modes)),
        8 => Op::Link(*rng.pick(&tags), one),
        9 => Op::Lookup(one),
        10 => Op::Stat(*rng.pick(&tags)),
        _ => Op::List(*rng.pick(&dirs)),
    }
}

/// What the cluster is held against would itself be wrong.
#[test]
fn the_model_does_what_linux_does() {
    let codes = [Exists, InvalidArgument, IsDirectory, NotDirectory, NotEmpty, NotFound, NotPermitted, Stale];
    let mut refused: BTreeMap<u16, u32> = BTreeMap::new();
    for seed in 0..20 {
        let (mut local, rng, mut tree) = (Local::new(), SimRng::seeded(seed), Tree::new());
        for tag in 1..150 {
            // Those that make entries give them permissions that their owner can work with.
            let op = random(&rng, &local, tag | 0o700);
            if matches!(op, Op::Create(_, tag) | Op::Mkdir(_, tag) if local.paths.contains_key(&tag)) {
                continue;
            }
            let answer = local.run(&op).unwrap_or_else(|error| {
                let errno = error.raw_os_error().expect("an errno");
                let code: Option<&ErrorCode> = codes.iter().find(|code| code.errno() == errno);
                let code = code.unwrap_or_else(|| panic!("{op:?}: {error}"));
                *refused.entry(code.code()).or_default() += 1;
                Answer::Refused(*code)
            });
            tree = Names.step(&tree, &op, Some(&answer)).unwrap_or_else(|| {
                panic!("seed {seed}: {op:?} gave {answer:?} here, which the model does not: {tree:?}")
            });
            local.look();
        }
    }
    assert!(refused.len() >= 6, "too few kinds of refusals were tried: {refused:?}");
}
