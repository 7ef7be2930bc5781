//! Attributes of inodes and of the volume.
use crate::abi::attr::{
    AccessIn, FATTR_ATIME, FATTR_ATIME_NOW, FATTR_FH, FATTR_GID, FATTR_KILL_SUIDGID, FATTR_MODE, FATTR_MTIME,
    FATTR_MTIME_NOW, FATTR_SIZE, FATTR_UID, GETATTR_FH, GetattrIn, SetattrIn,
};
use crate::abi::opcode::Opcode;
use crate::abi::statx::StatxIn;
use crate::session::attributes::{nanos, statfs, statx};
use crate::session::reply::{Outcome, Reply};
use crate::session::request::Request;
use crate::session::{Session, caller};
use cairn_vfs::{Attr, Caller, Handle, SetAttr, SetTime, VfsError};
use std::time::Duration;

impl Session {
    /// Directories whose quotas `df` shows: the one that is asked about, and the one that is mounted.
    fn with_quotas(&self, ino: u64) -> Vec<u64> {
        if ino == self.root { vec![ino] } else { vec![ino, self.root] }
    }
    pub(in crate::session) async fn attributes(&self, opcode: Opcode, request: &Request) -> Outcome {
        let ino = self.ino(request.header.nodeid);
        match opcode {
            Opcode::Getattr => {
                let asked: GetattrIn = request.arg()?;
                let handle = (asked.getattr_flags & GETATTR_FH != 0).then_some(Handle(asked.fh));
                let (attr, ttl) = self.vfs.getattr(&caller::plain(&request.header), ino, handle).await?;
                Ok(Reply::of(&self.attr_out(&attr, ttl)))
            }
            Opcode::Statx => {
                let asked: StatxIn = request.arg()?;
                let handle = (asked.getattr_flags & GETATTR_FH != 0).then_some(Handle(asked.fh));
                let (attr, ttl) = self.vfs.getattr(&caller::plain(&request.header), ino, handle).await?;
                Ok(Reply::of(&statx(&attr, self.node(attr.ino), ttl)))
            }
            Opcode::Setattr => {
                let asked: SetattrIn = request.arg()?;
                let handle = (asked.valid & FATTR_FH != 0).then_some(Handle(asked.fh));
                let who = caller::of(&request.header, 0);
                if asked.valid & ANYTHING == 0 {
                    let (attr, ttl) = self.vfs.getattr(&who, ino, handle).await?;
                    let writes = self.table.has_writer(ino) || self.vfs.access(&who, ino, WRITE).await.is_ok();
                    if !takes_privileges(&who, &attr, writes)? {
                        return Ok(Reply::of(&self.attr_out(&attr, ttl)));
                    }
                    if loses(&who, &attr) {
                        let (attr, ttl) = self.take_privileges(&who, ino, handle).await?;
                        return Ok(Reply::of(&self.attr_out(&attr, ttl)));
                    }
                }
                let (attr, ttl) = self.vfs.setattr(&who, ino, handle, changes(&asked)).await?;
                if self.vfs.has_attributes_waiting(ino) {
                    // They go with this process, and the program is told as of contents.
                    self.table.mark_inode_dirty(ino);
                }
                Ok(Reply::of(&self.attr_out(&attr, ttl)))
            }
            Opcode::Access => {
                let asked: AccessIn = request.arg()?;
                self.vfs.access(&caller::of(&request.header, 0), ino, asked.mask).await?;
                Ok(Reply::Done)
            }
            _ => Ok(Reply::of(&statfs(&self.vfs.statfs(&self.with_quotas(ino)).await?))),
        }
    }
}

impl Session {
    /// Takes setuid and setgid away where they are set, because this caller writes.
    pub(super) async fn kill_privileges(&self, request: &Request, handle: Handle) -> Result<(), VfsError> {
        let ino = self.ino(request.header.nodeid);
        if !self.privileged.contains(ino) {
            return Ok(());
        }
        let who = caller::of(&request.header, 0);
        let (attr, _) = self.vfs.getattr(&who, ino, Some(handle)).await?;
        if loses(&who, &attr) {
            self.take_privileges(&who, ino, Some(handle)).await?;
            // The kernel has the old mode; asking again shows the new one.
            self.notify_attributes(ino);
        }
        Ok(())
    }
    /// Who writes need not own the file: the bits go whoever that is.
    async fn take_privileges(
        &self,
        who: &Caller,
        ino: u64,
        handle: Option<Handle>,
    ) -> Result<(Attr, Duration), VfsError> {
        let kill = SetAttr { kill_privileges: true, ..Default::default() };
        let mut after = self.vfs.setattr(&Caller::root(), ino, handle, kill).await?;
        if loses(who, &after.0) {
            // The servers do not know who writes, and leave it where it does not mean execution.
            let mode = SetAttr { mode: Some(after.0.mode & 0o7777 & !libc::S_ISGID), ..Default::default() };
            after = self.vfs.setattr(&Caller::root(), ino, handle, mode).await?;
        }
        self.privileged.see(ino, after.0.mode);
        Ok(after)
    }
}

/// Whether a write of this caller takes privileges away: setuid, and setgid where it means execution or he is not in
/// the group.
fn loses(who: &Caller, attr: &Attr) -> bool {
    let member = who.uid == 0 || who.gid == attr.gid || who.groups.contains(&attr.gid);
    let setgid = attr.mode & libc::S_ISGID != 0 && (attr.mode & libc::S_IXGRP != 0 || !member);
    attr.mode & libc::S_IFMT == libc::S_IFREG && (attr.mode & libc::S_ISUID != 0 || setgid)
}

/// Permission to write.
const WRITE: u32 = 2;
/// What a request can set. One that sets nothing is a chown(2) that leaves both: it changes the time of change, and
/// takes privileges away; or a kernel that is about to write takes them away.
const ANYTHING: u32 = FATTR_MODE | FATTR_UID | FATTR_GID | FATTR_SIZE | FATTR_ATIME | FATTR_MTIME | FATTR_KILL_SUIDGID;

/// Whether such a request changes anything: it takes the owner, or somebody who may write to the file or has it open
/// for that, to take privileges away, and nothing to find none.
fn takes_privileges(who: &Caller, attr: &Attr, writes: bool) -> Result<bool, VfsError> {
    let directory = attr.mode & libc::S_IFMT == libc::S_IFDIR;
    let privileged = !directory && attr.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
    match (who.uid == 0 || who.uid == attr.uid || writes && privileged, privileged) {
        (true, _) => Ok(true),
        (false, false) => Ok(false),
        (false, true) => Err(VfsError::new(libc::EPERM, "only the owner or root may take setuid and setgid away")),
    }
}

fn changes(asked: &SetattrIn) -> SetAttr {
    let has = |bit| asked.valid & bit != 0;
    let time = |set, now, at| match (has(set), has(now)) {
        (false, _) => None,
        (true, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At(at)),
    };
    SetAttr {
        mode: has(FATTR_MODE).then_some(asked.mode & 0o7777),
        uid: has(FATTR_UID).then_some(asked.uid),
        gid: has(FATTR_GID).then_some(asked.gid),
        size: has(FATTR_SIZE).then_some(asked.size),
        atime: time(FATTR_ATIME, FATTR_ATIME_NOW, nanos(asked.atime, asked.atimensec)),
        mtime: time(FATTR_MTIME, FATTR_MTIME_NOW, nanos(asked.mtime, asked.mtimensec)),
        kill_privileges: has(FATTR_KILL_SUIDGID) || asked.valid & ANYTHING == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chown would also change the mode, or a time of "now" would become that of the client's clock.
    #[test]
    fn only_what_is_marked_is_changed() {
        let asked = SetattrIn {
            valid: FATTR_UID | FATTR_ATIME | FATTR_ATIME_NOW | FATTR_MTIME,
            uid: 7,
            mtime: 3,
            ..Default::default()
        };
        let set = changes(&asked);
        assert_eq!((set.mode, set.uid, set.gid, set.size), (None, Some(7), None, None));
        assert_eq!((set.atime, set.mtime), (Some(SetTime::Now), Some(SetTime::At(3_000_000_000))));
        assert!(!set.kill_privileges);
        let set = changes(&SetattrIn::default());
        assert_eq!(set, SetAttr { kill_privileges: true, ..SetAttr::default() }, "chown that leaves both");
    }

    /// Anybody could take the rights of setuid programs away, by a chown that leaves owner and group.
    #[test]
    fn only_the_owner_takes_privileges_away() {
        let user = Caller { uid: 5, ..Caller::root() };
        let of = |uid, mode| Attr { uid, mode: libc::S_IFREG | mode, ..Attr::default() };
        for (who, attr, writes, wanted) in [
            (&Caller::root(), of(7, 0o4755), false, Ok(true)),
            (&user, of(5, 0o4755), false, Ok(true)),
            (&user, of(7, 0o4755), false, Err(libc::EPERM)),
            (&user, of(7, 0o2777), false, Err(libc::EPERM)),
            (&user, of(7, 0o777), false, Ok(false)),
            // By a write: nobody could write to such a file but its owner.
            (&user, of(7, 0o4766), true, Ok(true)),
            (&user, of(7, 0o777), true, Ok(false)),
            (&user, Attr { mode: libc::S_IFDIR | 0o2755, ..of(7, 0) }, false, Ok(false)),
        ] {
            assert_eq!(takes_privileges(who, &attr, writes).map_err(|error| error.errno), wanted, "{attr:?}");
        }
    }

    /// Whoever is not in the group would leave a file that he wrote to with the group's right; or who is would take it
    /// away.
    #[test]
    fn a_write_takes_away_what_linux_takes() {
        let user = Caller { uid: 5, gid: 5, groups: [8].into(), ..Caller::root() };
        let of = |gid, mode| Attr { uid: 7, gid, mode: libc::S_IFREG | mode, ..Attr::default() };
        for (attr, wanted) in [
            (of(5, 0o777), false),
            (of(5, 0o4600), true),
            (of(5, 0o2770), true),
            (of(5, 0o2760), false),
            (of(8, 0o2760), false),
            (of(6, 0o2762), true),
        ] {
            assert_eq!(loses(&user, &attr), wanted, "{attr:?}");
        }
        assert!(
            !loses(&user, &Attr { mode: libc::S_IFDIR | 0o2777, ..of(6, 0) }),
            "of a directory they mean something else"
        );
    }
}
