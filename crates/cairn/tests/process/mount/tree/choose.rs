//! Operations, and their random choice.
use super::super::seeds::Rng;
use rustix::fs::{AtFlags, FileType, OFlags, RenameFlags, XattrFlags};

/// One operation. Names are below the tree's root; numbers of handles count from 0.
#[derive(Clone, Debug)]
pub enum Op {
    Open {
        path: String,
        flags: OFlags,
        mode: u32,
        keep: bool,
    },
    Unnamed {
        dir: String,
        link: String,
    },
    Mkdir {
        path: String,
        mode: u32,
    },
    Mknod {
        path: String,
        kind: FileType,
        mode: u32,
    },
    Symlink {
        target: String,
        path: String,
    },
    Link {
        from: String,
        to: String,
        follow: bool,
    },
    Rename {
        from: String,
        to: String,
        flags: RenameFlags,
    },
    Unlink {
        path: String,
        flags: AtFlags,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Chown {
        path: String,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    },
    Truncate {
        path: String,
        size: u64,
    },
    /// Seconds and nanoseconds; `None`: left alone.
    Times {
        path: String,
        atime: Option<(i64, i64)>,
        mtime: Option<(i64, i64)>,
        follow: bool,
    },
    SetXattr {
        path: String,
        name: &'static str,
        value: Vec<u8>,
        flags: XattrFlags,
    },
    GetXattr {
        path: String,
        name: &'static str,
        room: usize,
    },
    ListXattr {
        path: String,
    },
    RemoveXattr {
        path: String,
        name: &'static str,
    },
    Readlink {
        path: String,
    },
    List {
        path: String,
    },
    Stat {
        path: String,
        follow: bool,
    },
    Read {
        path: String,
    },
    Write {
        handle: usize,
        offset: u64,
        length: usize,
        byte: u8,
    },
    Append {
        path: String,
        length: usize,
        byte: u8,
    },
    ReadAt {
        handle: usize,
        offset: u64,
        length: usize,
    },
    Cut {
        handle: usize,
        size: u64,
    },
    StatOpen {
        handle: usize,
    },
    ChmodOpen {
        handle: usize,
        mode: u32,
    },
    TouchOpen {
        handle: usize,
    },
    Sync {
        handle: usize,
    },
    Close {
        handle: usize,
    },
}

const NAMES: &[&str] = &["a", "b", "c", "d", "e"];
const XATTRS: &[&str] = &["user.one", "user.two", "trusted.three", "user.", "nospace.x", "user.a-name-that-is-longer"];
const MODES: &[u32] = &[0o644, 0o600, 0o755, 0o4755, 0o2755, 0o1777, 0, 0o7777];

fn name(rng: &mut Rng) -> String {
    match rng.below(60) {
        0 => "n".repeat(255),
        1 => "n".repeat(256),
        2 => "ü".repeat(100),
        _ => rng.pick(NAMES).to_owned(),
    }
}

/// A name that is there, or any.
fn path(rng: &mut Rng, known: &[String]) -> String {
    if !known.is_empty() && rng.one_in(2) {
        return known[rng.index(known.len())].clone();
    }
    let depth = rng.pick(&[1, 1, 1, 2, 2, 3]);
    let mut path = (0..depth).map(|_| name(rng)).collect::<Vec<String>>().join("/");
    match rng.below(50) {
        0 => path.push('/'),
        1 => path.push_str("/."),
        2 => path.push_str("/.."),
        3 => path = format!("./{path}"),
        4 => path = format!("{}/../{path}", rng.pick(NAMES)),
        5 => path = path.replace('/', "//"),
        6 => path = ".".to_owned(),
        _ => {}
    }
    path
}

fn open_flags(rng: &mut Rng) -> OFlags {
    let mut flags = rng.pick(&[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR]) | OFlags::NONBLOCK;
    for (flag, times) in [
        (OFlags::CREATE, 2),
        (OFlags::EXCL, 4),
        (OFlags::TRUNC, 5),
        (OFlags::APPEND, 6),
        (OFlags::DIRECTORY, 20),
        (OFlags::NOFOLLOW, 8),
        (OFlags::SYNC, 20),
        (OFlags::PATH, 40),
    ] {
        flags |= if rng.one_in(times) { flag } else { OFlags::empty() };
    }
    // Without CREATE, EXCL means nothing that is the same everywhere.
    if flags.contains(OFlags::CREATE) { flags } else { flags - OFlags::EXCL }
}

fn past(rng: &mut Rng) -> Option<(i64, i64)> {
    (!rng.one_in(4)).then(|| (rng.below(900_000_000) as i64 + 1, rng.below(1_000_000_000) as i64))
}

impl Op {
    pub fn choose(rng: &mut Rng, open: usize, known: &[String]) -> Op {
        let of_a_handle = open > 0 && rng.one_in(3);
        if of_a_handle { Op::of_handle(rng, open) } else { Op::of_name(rng, known) }
    }
    fn of_handle(rng: &mut Rng, open: usize) -> Op {
        let (handle, byte) = (rng.index(open), rng.below(255) as u8 + 1);
        match rng.below(12) {
            0..4 => Op::Write { handle, offset: rng.below(20_000), length: rng.index(9000), byte },
            4..6 => Op::ReadAt { handle, offset: rng.below(30_000), length: rng.index(9000) },
            6 => Op::Cut { handle, size: rng.below(30_000) },
            7 => Op::StatOpen { handle },
            8 => Op::ChmodOpen { handle, mode: rng.pick(MODES) },
            9 => Op::Sync { handle },
            10 => Op::TouchOpen { handle },
            _ => Op::Close { handle },
        }
    }
    fn of_name(rng: &mut Rng, known: &[String]) -> Op {
        let path = path(rng, known);
        let follow = !rng.one_in(4);
        match rng.below(100) {
            0..20 => Op::Open { path, flags: open_flags(rng), mode: rng.pick(MODES), keep: open_keep(rng) },
            20..30 => Op::Mkdir { path, mode: rng.pick(MODES) },
            30..33 => {
                let kind =
                    rng.pick(&[FileType::Fifo, FileType::Socket, FileType::CharacterDevice, FileType::RegularFile]);
                Op::Mknod { path, kind, mode: rng.pick(MODES) }
            }
            33..38 => Op::Symlink { target: self::path(rng, known).replace("..", "."), path },
            38..44 => Op::Link { from: self::path(rng, known), to: path, follow },
            44..58 => {
                let none = RenameFlags::empty();
                let flags = rng.pick(&[none, none, none, RenameFlags::NOREPLACE, RenameFlags::EXCHANGE]);
                Op::Rename { from: self::path(rng, known), to: path, flags }
            }
            58..64 => Op::Unlink { path, flags: AtFlags::empty() },
            64..68 => Op::Unlink { path, flags: AtFlags::REMOVEDIR },
            68..71 => Op::Chmod { path, mode: rng.pick(MODES) },
            71..74 => {
                let id = |rng: &mut Rng| (!rng.one_in(3)).then(|| rng.pick(&[0, 1, 1000, 65_534]));
                match (id(rng), id(rng)) {
                    // POSIX leaves open whether that changes a time.
                    (None, None) => Op::Stat { path, follow },
                    (uid, gid) => Op::Chown { path, uid, gid, follow },
                }
            }
            74..77 => Op::Truncate { path, size: rng.below(30_000) },
            77..81 => Op::Times { path, atime: past(rng), mtime: past(rng), follow },
            81..85 => Op::SetXattr {
                path,
                name: rng.pick(XATTRS),
                value: vec![rng.below(250) as u8; rng.pick(&[0, 1, 30, 300])],
                flags: rng.pick(&[XattrFlags::empty(), XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE]),
            },
            85..87 => Op::GetXattr { path, name: rng.pick(XATTRS), room: rng.pick(&[0, 20, 1000]) },
            87 => Op::ListXattr { path },
            88 => Op::RemoveXattr { path, name: rng.pick(XATTRS) },
            89 => Op::Readlink { path },
            90..92 => Op::List { path },
            92..94 => Op::Stat { path, follow },
            94..96 => Op::Read { path },
            96 => Op::Unnamed { dir: path, link: self::path(rng, known) },
            _ => Op::Append { path, length: rng.index(5000), byte: rng.below(255) as u8 + 1 },
        }
    }
    pub fn kind(&self) -> &'static str {
        match self {
            Op::Open { .. } => "open",
            Op::Unnamed { .. } => "tmpfile",
            Op::Mkdir { .. } => "mkdir",
            Op::Mknod { .. } => "mknod",
            Op::Symlink { .. } => "symlink",
            Op::Link { .. } => "link",
            Op::Rename { .. } => "rename",
            Op::Unlink { .. } => "unlink",
            Op::Chmod { .. } | Op::ChmodOpen { .. } => "chmod",
            Op::Chown { .. } => "chown",
            Op::Truncate { .. } | Op::Cut { .. } => "truncate",
            Op::Times { .. } | Op::TouchOpen { .. } => "times",
            Op::SetXattr { .. } | Op::GetXattr { .. } | Op::ListXattr { .. } | Op::RemoveXattr { .. } => "xattr",
            Op::Readlink { .. } => "readlink",
            Op::List { .. } => "list",
            Op::Stat { .. } | Op::StatOpen { .. } => "stat",
            Op::Read { .. } | Op::ReadAt { .. } => "read",
            Op::Write { .. } | Op::Append { .. } => "write",
            Op::Sync { .. } => "fsync",
            Op::Close { .. } => "close",
        }
    }
    /// Names whose change times are looked at before and after.
    pub fn places(&self) -> Vec<String> {
        let mut places = Vec::new();
        let mut add = |path: &String| {
            places.push(path.clone());
            places.push(path.trim_end_matches('/').rsplit_once('/').map_or(".", |(dir, _)| dir).to_owned());
        };
        match self {
            Op::Open { path, .. }
            | Op::Mkdir { path, .. }
            | Op::Mknod { path, .. }
            | Op::Symlink { path, .. }
            | Op::Unlink { path, .. }
            | Op::Chmod { path, .. }
            | Op::Chown { path, .. }
            | Op::Truncate { path, .. }
            | Op::Times { path, .. }
            | Op::SetXattr { path, .. }
            | Op::RemoveXattr { path, .. }
            | Op::Append { path, .. } => add(path),
            Op::Link { from, to, .. } | Op::Rename { from, to, .. } => {
                add(from);
                add(to);
            }
            _ => {}
        }
        places
    }
}

/// Most opened files are closed at once.
fn open_keep(rng: &mut Rng) -> bool {
    rng.one_in(3)
}
