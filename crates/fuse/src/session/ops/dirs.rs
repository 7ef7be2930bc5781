//! Open directories.
use crate::abi::dir::{Dirent, push};
use crate::abi::file::{FSYNC_FDATASYNC, FsyncIn, OpenIn, OpenOut, ReadIn, ReleaseIn};
use crate::abi::opcode::Opcode;
use crate::session::reply::{Outcome, Reply};
use crate::session::request::Request;
use crate::session::{Session, caller};
use cairn_vfs::{DirItem, Handle};

impl Session {
    pub(in crate::session) async fn directories(&self, opcode: Opcode, request: &Request) -> Outcome {
        match opcode {
            Opcode::Opendir => {
                let asked: OpenIn = request.arg()?;
                self.close_unanswered(request).await;
                let (ino, who) = (self.ino(request.header.nodeid), caller::of(&request.header, 0));
                let opened = self.vfs.opendir(&who, ino, asked.flags as i32).await?;
                self.note_open(&who, ino, opened, asked.flags as i32, request);
                Ok(Reply::of(&OpenOut { fh: opened.handle.0, ..Default::default() }))
            }
            Opcode::Readdir | Opcode::Readdirplus => {
                let asked: ReadIn = request.arg()?;
                self.list(&asked, opcode == Opcode::Readdirplus).await
            }
            Opcode::Releasedir => {
                let asked: ReleaseIn = request.arg()?;
                let released = self.vfs.releasedir(Handle(asked.fh)).await;
                self.table.forget(asked.fh);
                released.map(|()| Reply::Done)
            }
            _ => {
                let asked: FsyncIn = request.arg()?;
                let datasync = asked.fsync_flags & FSYNC_FDATASYNC != 0;
                self.vfs.fsyncdir(Handle(asked.fh), datasync).await.map(|()| Reply::Done)
            }
        }
    }
    async fn list(&self, asked: &ReadIn, plus: bool) -> Outcome {
        let limit = asked.size as usize;
        let mut out = Vec::with_capacity(limit.min(64 << 10));
        let mut take = |item: DirItem| {
            let head = Dirent { ino: self.node(item.ino), off: item.cookie, namelen: 0, kind: item.kind >> 12 };
            // Without attributes the kernel asks when it needs them.
            let entry = plus.then(|| item.entry.as_ref().map(|entry| self.entry(entry)).unwrap_or_default());
            push(&mut out, limit, entry.as_ref(), head, &item.name)
        };
        self.vfs.readdir(Handle(asked.fh), asked.offset, plus, &mut take).await?;
        Ok(Reply::Small(out))
    }
}
