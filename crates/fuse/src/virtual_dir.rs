//! `.cairn/` at the root of a mount: what programs and people can ask a mount about itself, as files.
//!
//! - `stats`: counters and latencies, JSON; `version`: of the worker;
//! - `layout/PATH`: layout and redundancy of a path; `locations/PATH`: where its chunks are, JSON.
//!
//! Under `layout` and `locations` a directory of the volume is a directory, whose own file is `.this`. Everything is
//! read-only, made when it is opened, and found by name alone: no listing shows `.cairn`. Inode numbers have the
//! highest bit set. They live as long as the worker; a later one answers ESTALE, upon which the kernel looks the name
//! up again.
mod content;

use crate::abi::attr::{Attr, AttrOut, EntryOut, StatfsOut};
use crate::abi::dir::{Dirent, push};
use crate::abi::file::{FOPEN_DIRECT_IO, OpenOut, ReadIn, ReleaseIn};
use crate::abi::opcode::Opcode;
use crate::abi::statx::{StatxOut, SxTime};
use crate::session::reply::{Outcome, Reply};
use crate::session::request::Request;
use crate::session::{Session, caller};
use bytes::Bytes;
use cairn_vfs::VfsError;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Its name.
pub const NAME: &[u8] = b".cairn";
/// The file of a directory itself.
const THIS: &[u8] = b".this";
const BASE: u64 = 1 << 63;
const ROOT: u64 = BASE | 1;
/// Made nodes are remembered up to this number; the kernel is asked to look the oldest up again.
const NODES_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    Layout,
    Locations,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Root,
    Stats,
    Version,
    /// A directory of the volume in `layout` or `locations`.
    Dir(About, u64),
    File(About, u64),
}

/// The state: nodes that the kernel knows, files that are open.
pub struct VirtualDir {
    nodes: Mutex<HashMap<u64, Node>>,
    open: Mutex<HashMap<u64, Bytes>>,
    next: AtomicU64,
    born: u64,
    /// Root of the mount in the volume.
    top: u64,
}

/// Whether a node or handle is one of these.
pub fn is_virtual(number: u64) -> bool {
    number & BASE != 0
}

pub fn read_only() -> VfsError {
    VfsError::new(libc::EPERM, ".cairn shows the mount's own state and cannot be changed")
}

impl VirtualDir {
    pub fn new(top: u64) -> VirtualDir {
        let born = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let first = BASE | (u64::from(std::process::id()) << 36) | 16;
        let nodes = Mutex::new(HashMap::from([(ROOT, Node::Root)]));
        VirtualDir { nodes, open: Mutex::default(), next: AtomicU64::new(first), born: born.as_secs(), top }
    }
    pub fn root_entry(&self) -> EntryOut {
        self.entry(ROOT, Node::Root)
    }
    pub fn forget(&self, number: u64) {
        if number != ROOT {
            self.nodes.lock().remove(&number);
        }
    }
    fn node(&self, number: u64) -> Result<Node, VfsError> {
        let found = self.nodes.lock().get(&number).copied();
        found.ok_or_else(|| VfsError::new(libc::ESTALE, "of an earlier process of this mount"))
    }
    fn add(&self, node: Node) -> Result<EntryOut, VfsError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut nodes = self.nodes.lock();
        if nodes.len() >= NODES_MAX {
            return Err(VfsError::new(libc::ENFILE, "too many paths of .cairn are known to the kernel"));
        }
        nodes.insert(number, node);
        drop(nodes);
        Ok(self.entry(number, node))
    }
    fn attr(&self, number: u64, node: Node) -> Attr {
        let directory = matches!(node, Node::Root | Node::Dir(..));
        let mode = if directory { libc::S_IFDIR | 0o555 } else { libc::S_IFREG | 0o444 };
        let born = self.born as i64;
        let nlink = if directory { 2 } else { 1 };
        Attr { ino: number, atime: born, mtime: born, ctime: born, mode, nlink, blksize: 4096, ..Default::default() }
    }
    /// Without a time to live: what a path is may change at once.
    fn entry(&self, number: u64, node: Node) -> EntryOut {
        EntryOut { nodeid: number, attr: self.attr(number, node), ..Default::default() }
    }
    fn put(&self, text: Bytes) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(handle, text);
        handle
    }
}

impl Session {
    pub(crate) async fn serve_virtual(&self, request: &Request) -> Outcome {
        let Some(dir) = &self.virtual_dir else { return Ok(Reply::Errno(libc::ESTALE)) };
        let (number, Some(opcode)) = (request.header.nodeid, request.opcode()) else {
            return Ok(Reply::Errno(libc::ENOSYS));
        };
        let node = dir.node(number)?;
        match opcode {
            Opcode::Lookup => self.look_up_virtual(dir, node, request).await,
            Opcode::Getattr => {
                Ok(Reply::of(&AttrOut { attr: dir.attr(number, node), attr_valid: 1, ..Default::default() }))
            }
            Opcode::Open => {
                let text = self.content(node, request).await?;
                let handle = dir.put(Bytes::from(text));
                Ok(Reply::of(&OpenOut { fh: handle, open_flags: FOPEN_DIRECT_IO, backing_id: 0 }))
            }
            Opcode::Opendir => Ok(Reply::of(&OpenOut { fh: BASE, ..Default::default() })),
            Opcode::Read => {
                let asked: ReadIn = request.arg()?;
                let text = dir.open.lock().get(&asked.fh).cloned();
                let text =
                    text.ok_or_else(|| VfsError::new(libc::ESTALE, "opened in an earlier process of this mount"))?;
                let start = (asked.offset as usize).min(text.len());
                let end = start.saturating_add(asked.size as usize).min(text.len());
                Ok(Reply::Data(vec![text.slice(start..end)]))
            }
            Opcode::Readdir | Opcode::Readdirplus => list(node, number, request, opcode == Opcode::Readdirplus),
            Opcode::Release => {
                dir.open.lock().remove(&request.arg::<ReleaseIn>()?.fh);
                Ok(Reply::Done)
            }
            Opcode::Flush | Opcode::Fsync | Opcode::Fsyncdir | Opcode::Releasedir | Opcode::Access => Ok(Reply::Done),
            Opcode::Statfs => {
                Ok(Reply::of(&StatfsOut { bsize: 4096, frsize: 4096, namelen: 255, ..Default::default() }))
            }
            Opcode::Getxattr => Ok(Reply::Errno(libc::ENODATA)),
            Opcode::Listxattr => Ok(Reply::Errno(libc::EOPNOTSUPP)),
            // ENOSYS would turn an operation off for the whole mount.
            Opcode::Statx => Ok(Reply::of(&statx(dir.attr(number, node)))),
            Opcode::Lseek => Ok(Reply::Errno(libc::EINVAL)),
            Opcode::Poll | Opcode::Bmap => Ok(Reply::Errno(libc::ENOSYS)),
            Opcode::Ioctl => Ok(Reply::Errno(libc::ENOTTY)),
            _ => Err(read_only()),
        }
    }
    async fn look_up_virtual(&self, dir: &VirtualDir, node: Node, request: &Request) -> Outcome {
        let name = request.name(0)?;
        let found = match (node, name) {
            (Node::Root, b"stats") => Node::Stats,
            (Node::Root, b"version") => Node::Version,
            (Node::Root, b"layout") => Node::Dir(About::Layout, dir.top),
            (Node::Root, b"locations") => Node::Dir(About::Locations, dir.top),
            (Node::Dir(about, ino), THIS) => Node::File(about, ino),
            (Node::Dir(about, ino), name) => {
                let found = self.vfs.lookup(&caller::of(&request.header, 0), ino, name).await?;
                match found.attr.is_directory() {
                    true => Node::Dir(about, found.attr.ino),
                    false => Node::File(about, found.attr.ino),
                }
            }
            _ => return Ok(Reply::Errno(libc::ENOENT)),
        };
        Ok(Reply::of(&dir.add(found)?))
    }
}

fn statx(attr: Attr) -> StatxOut {
    let born = SxTime { sec: attr.atime, ..Default::default() };
    StatxOut {
        mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
        blksize: attr.blksize,
        nlink: attr.nlink,
        mode: attr.mode as u16,
        ino: attr.ino,
        atime: born,
        btime: born,
        ctime: born,
        mtime: born,
        ..Default::default()
    }
}

fn list(node: Node, number: u64, request: &Request, plus: bool) -> Outcome {
    let asked: ReadIn = request.arg()?;
    let names: &[(&[u8], u8)] = match node {
        Node::Root => &[
            (b"stats", libc::DT_REG),
            (b"version", libc::DT_REG),
            (b"layout", libc::DT_DIR),
            (b"locations", libc::DT_DIR),
        ],
        _ => &[(THIS, libc::DT_REG)],
    };
    let dots: [(&[u8], u8); 2] = [(b".", libc::DT_DIR), (b"..", libc::DT_DIR)];
    let mut out = Vec::new();
    for (at, (name, kind)) in dots.iter().chain(names).enumerate().skip(asked.offset as usize) {
        let head = Dirent { ino: number, off: at as u64 + 1, namelen: 0, kind: u32::from(*kind) };
        // An empty entry: the kernel looks the name up when it needs it.
        let entry = plus.then(EntryOut::default);
        if !push(&mut out, asked.size as usize, entry.as_ref(), head, name) {
            break;
        }
    }
    Ok(Reply::Small(out))
}
