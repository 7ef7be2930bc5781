//! INIT: the first request of a connection. Done once in its life, by the supervisor; workers get what was agreed on.
use crate::abi::header::InHeader;
use crate::abi::init::{self, INIT_IN_MIN, InitIn, InitOut};
use crate::abi::opcode::Opcode;
use crate::device::{Device, Received};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Largest read and write.
pub const IO_MAX: usize = 1 << 20;
/// Requests that the kernel keeps under way for read-ahead and asynchronous I/O.
const BACKGROUND_MAX: u16 = 128;
const CONGESTED: u16 = 96;
/// The kernel asks right after mounting.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the mount wants; the kernel may know less.
///
/// Not `FUSE_ATOMIC_O_TRUNC`: with it an open with O_TRUNC cuts the file before the kernel looks whether it may, and a
/// program that runs is emptied although the open fails with ETXTBSY. Without it the kernel cuts after its checks.
///
/// Not `FUSE_READDIRPLUS_AUTO`: with it the kernel takes attributes along only when it was asked for some before.
/// Programs that read all names first (`find`, `rsync`) would cost a request for each.
const WANTED: u64 = init::ASYNC_READ
    | init::POSIX_LOCKS
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::FLOCK_LOCKS
    | init::DO_READDIRPLUS
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::DIRECT_IO_ALLOW_MMAP
    | init::HAS_RESEND;
/// Features without which files would be wrong.
const NEEDED: u64 = init::BIG_WRITES | init::MAX_PAGES | init::PARALLEL_DIROPS;

/// Features of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreed {
    pub minor: u32,
    pub features: u64,
}

impl Agreed {
    pub fn has(self, feature: u64) -> bool {
        self.features & feature != 0
    }
}

/// Answers the kernel's INIT.
pub fn shake_hands(device: &Device) -> Result<Agreed, String> {
    let mut head = [0u8; size_of::<InHeader>()];
    let mut body = vec![0u8; IO_MAX + crate::abi::header::READ_BUFFER_MIN];
    let count = loop {
        if !device.wait(PATIENCE) {
            return Err("the kernel sent no INIT request after mounting".into());
        }
        match device.receive(&mut head, &mut body) {
            Ok(Received::Request(count)) => break count,
            Ok(Received::Nothing) => {}
            Ok(Received::Ended) => return Err("the mount ended before it served".into()),
            Err(error) => return Err(format!("reading /dev/fuse: {error}")),
        }
    };
    let header = InHeader::read_from_bytes(&head).map_err(|_| "a request without header")?;
    let sent = &body[..count - head.len()];
    if header.opcode != Opcode::Init as u32 || sent.len() < INIT_IN_MIN {
        return Err(format!("the kernel's first request is {}, not INIT", header.opcode));
    }
    let mut whole = [0u8; size_of::<InitIn>()];
    let known = sent.len().min(whole.len());
    whole[..known].copy_from_slice(&sent[..known]);
    let asked = InitIn::read_from_bytes(&whole).map_err(|_| "an INIT request of another size")?;
    if asked.major != init::MAJOR {
        return Err(format!("the kernel speaks FUSE {}.{}, Cairn {}", asked.major, asked.minor, init::MAJOR));
    }
    let extended = asked.flags as u64 & init::INIT_EXT != 0;
    let offered = u64::from(asked.flags) | if extended { u64::from(asked.flags2) << 32 } else { 0 };
    let features = offered & WANTED;
    if features & NEEDED != NEEDED {
        return Err(format!(
            "the kernel's FUSE {}.{} is too old: Linux 5.4 or newer is needed",
            asked.major, asked.minor
        ));
    }
    let flags = features | (offered & init::INIT_EXT);
    let answer = InitOut {
        major: init::MAJOR,
        minor: init::MINOR.min(asked.minor),
        max_readahead: IO_MAX as u32,
        flags: flags as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: CONGESTED,
        max_write: IO_MAX as u32,
        time_gran: 1,
        max_pages: (IO_MAX / 4096) as u16,
        flags2: (flags >> 32) as u32,
        ..Default::default()
    };
    device.answer(header.unique, &[answer.as_bytes()]);
    Ok(Agreed { minor: answer.minor, features })
}
