//! Attributes: getattr, setattr, access.
use crate::attr::{Attr, SetAttr, SetTime};
use crate::caller::Caller;
use crate::error::{Result, VfsError};
use crate::file::File;
use crate::vfs::{Handle, Vfs, now_ns, of_file};
use cairn_client::Volume;
use cairn_client::attributes::Attributes;
use cairn_client::changes::SetAttributes;
use std::time::Duration;

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;

/// What the servers are asked for.
fn asked(set: &SetAttr) -> SetAttributes {
    let SetAttr { mode, uid, gid, size, atime, mtime, kill_privileges } = *set;
    let mode = mode.map(|mode| mode & 0o7777);
    SetAttributes { mode, uid, gid, size, atime, mtime, kill_privileges, ..SetAttributes::default() }
}

/// Whether somebody would have fewer rights than before. He could open the file through another mount until the servers
/// know it, and read what is written afterwards.
fn takes_rights(before: &Attributes, set: &SetAttr) -> bool {
    let (user, group, others) = (before.mode >> 6 & 7, before.mode >> 3 & 7, before.mode & 7);
    let loses = |new: Option<u32>, old: u32, rights: u32| new.is_some_and(|new| new != old) && rights & !others != 0;
    set.mode.is_some_and(|mode| before.mode & !mode & 0o777 != 0)
        || before.uid != 0 && loses(set.uid, before.uid, user)
        || loses(set.gid, before.gid, group)
}

/// Sets attributes that the servers may be told of later, if they would allow it and change nothing else.
fn set_later(file: &File, caller: &Caller, volume: &Volume, set: &SetAttr, show: bool) -> Option<Attributes> {
    let before = of_file(file);
    let (root, owner) = (caller.uid == 0, caller.uid == before.uid);
    let bits = before.mode | set.mode.unwrap_or_default();
    // They go with a change of the owner, or are refused to who is not in the group.
    let privileges = bits & (SETUID | SETGID) != 0;
    let gives_away = set.uid.is_some() || set.gid.is_some();
    if privileges || !(root || owner && !gives_away) || takes_rights(&before, set) {
        return None;
    }
    let now = now_ns();
    let at = |time: Option<SetTime>| time.map(|time| if time == SetTime::Now { SetTime::At(now) } else { time });
    // There are none to be taken away, for which kernels ask with each change of the owner.
    let set = SetAttr { atime: at(set.atime), mtime: at(set.mtime), kill_privileges: false, ..*set };
    if !file.data.set_later(volume, &asked(&set), now) {
        return None;
    }
    if set.atime.is_some() {
        file.take_atime();
    }
    // Programs do that when they have written all of it.
    file.data.write_early(show);
    Some(of_file(file))
}

impl Vfs {
    /// Attributes and how long they may be used.
    pub async fn getattr(&self, caller: &Caller, ino: u64, handle: Option<Handle>) -> Result<(Attr, Duration)> {
        let inner = &self.inner;
        let ttl = inner.options.attr_ttl;
        inner.ahead.seen(ino);
        let file = match handle.map(|handle| inner.handles.file(handle)) {
            Some(Ok(open)) => Some(open.file.clone()),
            _ => inner.files.get(ino),
        };
        if let Some(file) = &file {
            let left = ttl.saturating_sub(file.data.age());
            if !left.is_zero() {
                return Ok((Attr::of(&of_file(file)), left));
            }
        } else if let Some(known) = inner.cached_attributes(ino) {
            return Ok(known);
        } else if inner.limited("getattr", async { Ok(inner.ahead.wait(ino).await) }).await?
            && let Some(known) = inner.cached_attributes(ino)
        {
            inner.ahead.seen(ino);
            return Ok(known);
        }
        let volume = inner.as_user(caller);
        let found = inner.limited(&format!("inode {ino}"), async { Ok(volume.getattr(ino).await?) }).await?;
        Ok(inner.attr(&found))
    }
    /// Changes attributes; a new size cuts or lengthens the file.
    pub async fn setattr(
        &self,
        caller: &Caller,
        ino: u64,
        handle: Option<Handle>,
        set: SetAttr,
    ) -> Result<(Attr, Duration)> {
        let what = format!("inode {ino}");
        self.inner.check_writable(&what)?;
        let file = match handle.map(|handle| self.inner.handles.file(handle)) {
            Some(Ok(open)) => Some(open.file.clone()),
            _ => self.inner.files.get(ino),
        };
        let (volume, shown_as) = (self.inner.as_user(caller), what.clone().into_bytes());
        let asked = asked(&set);
        if let Some(file) = &file
            && let Some(seen) = set_later(file, caller, &volume, &set, self.inner.options.close_visible)
        {
            // What else is known of it may be old: a name was made or removed since.
            return Ok((Attr::of(&seen), self.inner.options.attr_ttl.saturating_sub(file.data.age())));
        }
        let own = file.clone();
        let change = async move {
            let Some(file) = own else { return Ok(volume.setattr(ino, &shown_as, asked).await?) };
            match set.mode.unwrap_or_default() & (SETUID | SETGID) {
                0 => file.data.send_later().await?,
                // What was written before does not take them away when it is published.
                _ => file.data.flush().await?,
            }
            if set.mtime.is_some() && set.size.is_none() {
                // What is published later keeps the time that is set now.
                let ns = if let Some(SetTime::At(ns)) = set.mtime { ns } else { now_ns() };
                file.data.set_mtime(ns);
            }
            if set.atime.is_some() {
                file.take_atime();
            }
            if set.size.is_some() {
                return Ok(file.data.truncate(&volume, asked).await?);
            }
            Ok(volume.setattr(ino, &shown_as, asked).await?)
        };
        if set.atime.is_some() {
            self.inner.atimes.forget(ino);
        }
        self.inner.cache.forget_attributes(ino);
        let found = self.inner.change(&what, change).await?;
        if file.is_none() && found.nlink == 0 && found.is_regular() {
            // Nobody has it open here, so it was found by a name that another machine took away.
            return Err(VfsError::new(libc::ESTALE, format!("{what} has lost its name; look the path up again")));
        }
        if let (None, Some(_), Some(before)) = (&file, set.size, self.inner.cache.pages(ino)) {
            // The kernel cut its pages itself.
            if found.data_version == before + 1 {
                self.inner.cache.pages_are_of(ino, found.data_version);
            }
        }
        Ok(self.inner.attr(&found))
    }
    /// Whether attributes of an open file were set that the servers do not know yet.
    pub fn has_attributes_waiting(&self, ino: u64) -> bool {
        self.inner.files.get(ino).is_some_and(|file| file.data.has_later())
    }
    /// Whether the caller may read (4), write (2), execute (1); for kernels that do not check themselves.
    pub async fn access(&self, caller: &Caller, ino: u64, mask: u32) -> Result<()> {
        let volume = self.inner.as_user(caller);
        let check = async { Ok(volume.access_inode(ino, mask & 7).await?) };
        self.inner.limited(&format!("inode {ino}"), check).await
    }
}
