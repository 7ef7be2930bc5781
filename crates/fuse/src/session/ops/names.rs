//! Names: finding, making, moving, removing.
use crate::abi::attr::EntryOut;
use crate::abi::names::{LinkIn, MkdirIn, MknodIn, Rename2In, RenameIn};
use crate::abi::opcode::Opcode;
use crate::session::reply::{Outcome, Reply};
use crate::session::request::Request;
use crate::session::{ROOT_NODE, Session, attributes, caller};
use crate::virtual_dir;
use bytes::Bytes;
use cairn_vfs::{Entry, VfsError};
use std::time::Duration;

impl Session {
    pub(in crate::session) async fn names_read(&self, opcode: Opcode, request: &Request) -> Outcome {
        let (ino, who) = (self.ino(request.header.nodeid), caller::of(&request.header, 0));
        if opcode == Opcode::Readlink {
            let target = self.vfs.readlink(&who, ino).await?;
            return Ok(Reply::Data(vec![Bytes::from(target)]));
        }
        let name = request.name(0)?;
        if let Some(dir) =
            self.virtual_dir.as_ref().filter(|_| request.header.nodeid == ROOT_NODE && name == virtual_dir::NAME)
        {
            return Ok(Reply::of(&dir.root_entry()));
        }
        match self.vfs.lookup(&who, ino, name).await {
            Ok(found) => Ok(Reply::of(&self.entry(&found))),
            Err(error) => {
                let absent_for = match error.errno {
                    libc::ENOENT => self.vfs.absent_for(&who, ino, name),
                    _ => Duration::ZERO,
                };
                if absent_for.is_zero() {
                    return Err(error);
                }
                let (entry_valid, entry_valid_nsec) = attributes::seconds(absent_for);
                Ok(Reply::of(&EntryOut { entry_valid, entry_valid_nsec, ..Default::default() }))
            }
        }
    }

    pub(in crate::session) async fn names_change(&self, opcode: Opcode, request: &Request) -> Outcome {
        let outcome = match opcode {
            Opcode::Unlink | Opcode::Rmdir => self.remove(opcode, request).await,
            Opcode::Rename | Opcode::Rename2 => self.rename(opcode, request).await,
            _ => self.make(opcode, request).await.map(|entry| Reply::of(&self.entry(&entry))),
        };
        match outcome {
            Err(error) if request.is_resent() => self.judge_resent(opcode, request, error).await,
            outcome => outcome,
        }
    }

    async fn make(&self, opcode: Opcode, request: &Request) -> Result<Entry, VfsError> {
        let parent = self.ino(request.header.nodeid);
        match opcode {
            Opcode::Mknod => {
                let asked: MknodIn = request.arg()?;
                let (name, who) = (request.name(size_of::<MknodIn>())?, caller::of(&request.header, asked.umask));
                self.check_name(request, name)?;
                self.vfs.mknod(&who, parent, name, asked.mode, asked.rdev).await
            }
            Opcode::Mkdir => {
                let asked: MkdirIn = request.arg()?;
                let (name, who) = (request.name(size_of::<MkdirIn>())?, caller::of(&request.header, asked.umask));
                self.check_name(request, name)?;
                self.vfs.mkdir(&who, parent, name, asked.mode).await
            }
            Opcode::Symlink => {
                let (name, target) = request.two_names(0)?;
                self.check_name(request, name)?;
                self.vfs.symlink(&caller::of(&request.header, 0), parent, name, target).await
            }
            _ => {
                let asked: LinkIn = request.arg()?;
                let name = request.name(size_of::<LinkIn>())?;
                self.check_name(request, name)?;
                if virtual_dir::is_virtual(asked.oldnodeid) {
                    return Err(virtual_dir::read_only());
                }
                let old = self.ino(asked.oldnodeid);
                self.vfs.link(&caller::of(&request.header, 0), old, parent, name).await
            }
        }
    }
    async fn remove(&self, opcode: Opcode, request: &Request) -> Outcome {
        let (parent, who) = (self.ino(request.header.nodeid), caller::of(&request.header, 0));
        let name = request.name(0)?;
        self.check_name(request, name)?;
        match opcode {
            Opcode::Unlink => self.vfs.unlink(&who, parent, name).await?,
            _ => self.vfs.rmdir(&who, parent, name).await?,
        }
        Ok(Reply::Done)
    }
    async fn rename(&self, opcode: Opcode, request: &Request) -> Outcome {
        let (to, flags, skip) = match opcode {
            Opcode::Rename => (request.arg::<RenameIn>()?.newdir, 0, size_of::<RenameIn>()),
            _ => {
                let asked: Rename2In = request.arg()?;
                (asked.newdir, asked.flags, size_of::<Rename2In>())
            }
        };
        let (name, new_name) = request.two_names(skip)?;
        self.check_name(request, name)?;
        if virtual_dir::is_virtual(to)
            || (to == ROOT_NODE && self.virtual_dir.is_some() && new_name == virtual_dir::NAME)
        {
            return Err(virtual_dir::read_only());
        }
        let who = caller::of(&request.header, 0);
        self.vfs.rename(&who, (self.ino(request.header.nodeid), name), (self.ino(to), new_name), flags).await?;
        Ok(Reply::Done)
    }
    /// Refuses changes of the virtual directory's own name.
    pub(in crate::session) fn check_name(&self, request: &Request, name: &[u8]) -> Result<(), VfsError> {
        match self.virtual_dir.is_some() && request.header.nodeid == ROOT_NODE && name == virtual_dir::NAME {
            true => Err(virtual_dir::read_only()),
            false => Ok(()),
        }
    }
}
