//! Locks of fcntl(2) and flock(2).
use crate::abi::lock::{FileLock, LK_FLOCK, LkIn};
use crate::abi::opcode::Opcode;
use crate::session::Session;
use crate::session::reply::{Outcome, Reply};
use crate::session::request::Request;
use cairn_vfs::{Handle, Lock, LockKind, LockRange};

impl Session {
    pub(in crate::session) async fn locks(&self, opcode: Opcode, request: &Request) -> Outcome {
        let asked: LkIn = request.arg()?;
        let kind = match asked.lk.kind as i32 {
            libc::F_RDLCK => LockKind::Read,
            libc::F_WRLCK => LockKind::Write,
            libc::F_UNLCK => LockKind::Unlock,
            _ => return Ok(Reply::Errno(libc::EINVAL)),
        };
        let handle = Handle(asked.fh);
        let lock = Lock { kind, range: LockRange { start: asked.lk.start, end: asked.lk.end }, pid: asked.lk.pid };
        if opcode == Opcode::Getlk {
            let found = self.vfs.getlk(handle, asked.owner, lock).await?;
            return Ok(Reply::of(&found.map_or(FileLock { kind: libc::F_UNLCK as u32, ..asked.lk }, |found| {
                FileLock {
                    start: found.range.start,
                    end: found.range.end,
                    kind: if found.kind == LockKind::Write { libc::F_WRLCK } else { libc::F_RDLCK } as u32,
                    pid: found.pid,
                }
            })));
        }
        let waits = opcode == Opcode::Setlkw;
        let wait = waits.then(|| self.in_flight.make_interruptible(request.header.unique));
        // Noted before: a worker that dies must not leave a lock that nobody knows of.
        self.table.note_session(self.vfs.volume().present_session().unwrap_or_default());
        let unlocks = kind == LockKind::Unlock;
        let before = unlocks || self.table.mark_locked(asked.fh, true);
        let outcome = match asked.lk_flags & LK_FLOCK != 0 {
            true => self.vfs.flock(handle, asked.owner, kind, wait).await,
            false => self.vfs.setlk(handle, asked.owner, lock, wait).await,
        };
        if !before && outcome.is_err() || unlocks && outcome.is_ok() && lock.range == LockRange::ALL {
            self.table.mark_locked(asked.fh, false);
        }
        outcome?;
        Ok(Reply::Done)
    }
}
