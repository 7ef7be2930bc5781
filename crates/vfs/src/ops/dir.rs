//! Reading directories.
use super::handles::{OpenDir, OpenHandle};
use crate::atimes::changes;
use crate::attr::{Attr, Entry};
use crate::cache::Known;
use crate::caller::Caller;
use crate::error::{Result, VfsError};
use crate::flags::OpenFlags;
use crate::vfs::{Handle, Opened, ROOT, Vfs, now_ns};
use cairn_client::listing::DirEntry;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An entry as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirItem {
    pub ino: u64,
    /// Type bits of the mode (`S_IFMT`).
    pub kind: u32,
    pub name: Vec<u8>,
    /// To go on behind this entry.
    pub cookie: u64,
    /// With `plus`; not for "." and "..".
    pub entry: Option<Entry>,
}

/// Pages that are kept for a program that goes back a little.
const PAGES_KEPT: usize = 4;

/// An open directory: pages of it. The entry with number n (from 0 on) has cookie n + 3; 1 and 2 are "." and "..".
#[derive(Default)]
pub(crate) struct DirStream {
    pages: VecDeque<Page>,
    /// Where each page that was read begins: number of its first entry, and the server's cookie before it.
    starts: Vec<(u64, Vec<u8>)>,
}

struct Page {
    first: u64,
    entries: Vec<DirEntry>,
    plus: bool,
    end: bool,
    /// When it was asked for.
    asked: Instant,
}

impl Page {
    fn behind(&self) -> u64 {
        self.first + self.entries.len() as u64
    }
    /// Whether its entries from that number on can be handed out. What it says of them is true for `ttl`; none: for no
    /// time anyway.
    fn has(&self, at: u64, plus: bool, ttl: Duration) -> bool {
        let good = || !plus || self.plus && (ttl.is_zero() || self.asked.elapsed() < ttl);
        self.first <= at && (at < self.behind() && good() || at == self.behind() && self.end)
    }
}

impl DirStream {
    /// Where to read on, to come to the entry with that number: number of the first entry, and the server's cookie
    /// before it. Entries that were listed may be gone by now: where the one before is known by its name, what follows
    /// is numbered anew from there.
    fn before(&mut self, at: u64) -> (u64, Vec<u8>) {
        let known = self.pages.iter().find(|page| page.first < at && at < page.behind());
        let Some(before) = known.map(|page| page.entries[(at - page.first) as usize - 1].cookie.clone()) else {
            return self.starts.iter().rev().find(|(first, _)| *first <= at).cloned().unwrap_or_default();
        };
        self.pages.retain(|page| page.first < at);
        for page in self.pages.iter_mut().filter(|page| at < page.behind()) {
            page.entries.truncate((at - page.first) as usize);
            page.end = false;
        }
        self.starts.retain(|(first, _)| *first < at);
        self.starts.push((at, before.clone()));
        (at, before)
    }
}

impl Vfs {
    pub async fn opendir(&self, caller: &Caller, ino: u64, flags: i32) -> Result<Opened> {
        let noatime = OpenFlags::from_bits(flags).noatime;
        let dir = OpenDir { ino, caller: caller.clone(), noatime, stream: tokio::sync::Mutex::default() };
        let handle = self.inner.handles.add(OpenHandle::Dir(Arc::new(dir)));
        Ok(Opened { handle, keep_cache: false, direct: false, attributes_changed: false })
    }
    /// Hands entries behind `cookie` (0: from the start) to `take` until it answers false or the directory ends. With
    /// `plus` they come with attributes.
    pub async fn readdir(
        &self,
        handle: Handle,
        cookie: u64,
        plus: bool,
        take: &mut (dyn FnMut(DirItem) -> bool + Send),
    ) -> Result<()> {
        let dir = self.inner.handles.dir(handle)?;
        let mut stream = dir.stream.lock().await;
        if cookie == 0 {
            *stream = DirStream::default();
            self.was_listed(&dir);
        }
        let dots: [(&[u8], u64); 2] = [(b".", 1), (b"..", 2)];
        for (name, own) in dots.into_iter().filter(|(_, own)| *own > cookie) {
            let ino = if own == 1 || dir.ino == ROOT { dir.ino } else { self.parent_inode(&dir).await? };
            let item = DirItem { ino, kind: crate::attr::DIRECTORY, name: name.to_vec(), cookie: own, entry: None };
            if !take(item) {
                return Ok(());
            }
        }
        let mut at = cookie.saturating_sub(2);
        loop {
            let index = self.page_with(&dir, &mut stream, at, plus).await?;
            let page = &stream.pages[index];
            for (number, entry) in (page.first..).zip(&page.entries).skip((at - page.first) as usize) {
                let item = DirItem {
                    ino: entry.inode,
                    kind: entry.attributes.as_ref().map_or(entry.kind.mode_bits(), |a| a.mode & crate::attr::KIND),
                    name: entry.name.clone(),
                    cookie: number + 3,
                    entry: plus.then(|| self.known_entry(&dir, entry)).flatten(),
                };
                if !take(item) {
                    return Ok(());
                }
            }
            at = page.behind();
            if page.end {
                return Ok(());
            }
        }
    }
    /// Notes the access time, if it is to change. A directory of which nothing is known here keeps its own.
    fn was_listed(&self, dir: &OpenDir) {
        let inner = &self.inner;
        if dir.noatime || inner.options.read_only || !inner.options.dir_atime {
            return;
        }
        let Some((known, left)) = inner.cache.attributes(dir.ino) else { return };
        let (known, now) = (inner.atimes.put_over(&known), now_ns());
        if changes(inner.options.atime, &known, now) {
            inner.atimes.note(dir.ino, now);
            inner.cache.put_attributes(&inner.atimes.put_over(&known), left);
        }
    }
    async fn parent_inode(&self, dir: &OpenDir) -> Result<u64> {
        let volume = self.inner.as_user(&dir.caller);
        let find = async { Ok(volume.parent_inode(dir.ino).await?) };
        // A directory that was removed has none any more, or one that the caller may not search.
        Ok(self.inner.limited("readdir", find).await.unwrap_or(dir.ino))
    }

    /// An entry as this mount knows it by now: it may have been removed, replaced or changed here since its page was
    /// read, and the kernel takes what it is told for newer than that.
    fn known_entry(&self, dir: &OpenDir, listed: &DirEntry) -> Option<Entry> {
        let (known, entry_ttl) = self.inner.cache.name(&dir.caller, dir.ino, &listed.name)?;
        let (attributes, attr_ttl) = self.inner.known_attributes(listed.inode)?;
        (known == Known::Inode(listed.inode)).then(|| Entry { attr: Attr::of(&attributes), entry_ttl, attr_ttl })
    }

    /// Index of the page that has the entry with that number, or would have it.
    async fn page_with(&self, dir: &OpenDir, stream: &mut DirStream, at: u64, plus: bool) -> Result<usize> {
        let ttl = self.inner.options.attr_ttl.min(self.inner.options.entry_ttl);
        if let Some(index) = stream.pages.iter().position(|page| page.has(at, plus, ttl)) {
            return Ok(index);
        }
        loop {
            let (first, after) = stream.before(at);
            let (volume, asked) = (self.inner.as_user(&dir.caller), Instant::now());
            let asked_names = self.inner.cache.asks_page();
            let read = async { Ok(volume.readdir(dir.ino, &after, plus).await?) };
            let answer = self.inner.limited("readdir", read).await?;
            let end = answer.end || answer.entries.is_empty();
            for entry in &answer.entries {
                self.inner.learn_entry(&dir.caller, dir.ino, entry, &asked_names);
            }
            let page = Page { first, entries: answer.entries, plus, end, asked };
            let behind = page.behind();
            if let Some(last) =
                page.entries.last().filter(|_| !end && stream.starts.last().is_none_or(|s| s.0 < behind))
            {
                stream.starts.push((behind, last.cookie.clone()));
            }
            let found = at < behind || end;
            if found && at > behind {
                return Err(VfsError::new(libc::EINVAL, format!("directory inode {} has no such position", dir.ino)));
            }
            stream.pages.retain(|kept| kept.first != first);
            stream.pages.push_back(page);
            if stream.pages.len() > PAGES_KEPT {
                stream.pages.pop_front();
            }
            if found {
                return Ok(stream.pages.len() - 1);
            }
        }
    }
    pub async fn releasedir(&self, handle: Handle) -> Result<()> {
        self.inner.handles.remove(handle);
        Ok(())
    }
    /// Names are durable when the call that changed them returns, but in directories that this mount leads.
    pub async fn fsyncdir(&self, handle: Handle, _datasync: bool) -> Result<()> {
        let ino = self.inner.handles.dir(handle)?.ino;
        self.inner.commit(&format!("directory inode {ino}"), ino).await
    }
}
