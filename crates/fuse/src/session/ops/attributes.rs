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
                    if !takes_privileges(&who, &attr)? {
                        return Ok(Reply::of(&self.attr_out(&attr, ttl)));
                    }
                }
                let (attr, ttl) = self.vfs.setattr(&who, ino, handle, changes(&asked)).await?;
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

/// What a request can set. One that sets nothing is a chown(2) that leaves both: it changes the time of change, and takes
/// privileges away.
const ANYTHING: u32 = FATTR_MODE | FATTR_UID | FATTR_GID | FATTR_SIZE | FATTR_ATIME | FATTR_MTIME | FATTR_KILL_SUIDGID;

/// Whether such a chown changes anything: it takes the owner to take privileges away, and nothing to find none.
fn takes_privileges(who: &Caller, attr: &Attr) -> Result<bool, VfsError> {
    let privileged = attr.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
    match (who.uid == 0 || who.uid == attr.uid, privileged) {
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
        for (who, attr, wanted) in [
            (&Caller::root(), of(7, 0o4755), Ok(true)),
            (&user, of(5, 0o4755), Ok(true)),
            (&user, of(7, 0o4755), Err(libc::EPERM)),
            (&user, of(7, 0o2777), Err(libc::EPERM)),
            (&user, of(7, 0o777), Ok(false)),
        ] {
            assert_eq!(takes_privileges(who, &attr).map_err(|error| error.errno), wanted, "{attr:?}");
        }
    }
}
