//! Names: lookup, making, linking, removing, renaming.
use crate::attr::{Entry, KIND, REGULAR};
use crate::cache::Known;
use crate::caller::Caller;
use crate::error::{Result, VfsError};
use crate::vfs::{Inner, ROOT, Vfs, named, shown};
use cairn_client::attributes::Attributes;
use cairn_client::changes::NewFile;
use cairn_client::{MadeAt, Volume};
use cairn_types::ErrorCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Vfs {
    /// Finds an entry of a directory; ENOENT may be remembered for a [time](Self::absent_for). "." and ".."
    /// are understood.
    pub async fn lookup(&self, caller: &Caller, parent: u64, name: &[u8]) -> Result<Entry> {
        let inner = &self.inner;
        if let Some(after) = inner.walks.looks_up(parent, caller.uid, name, Instant::now()) {
            self.walk_ahead(caller, parent, after);
        }
        if let Some(cached) = self.cached_entry(caller, parent, name) {
            return cached;
        }
        let volume = inner.as_user(caller);
        let asked = inner.cache.asks(parent, name);
        let find = async {
            Ok(match name {
                b"." => volume.getattr(parent).await?,
                b".." if parent == ROOT => volume.getattr(parent).await?,
                b".." => volume.parent_of_directory(parent).await?,
                _ => volume.lookup(parent, name, &named(parent, name)).await?,
            })
        };
        match inner.limited("lookup", find).await {
            Ok(found) if name == b"." || name == b".." => {
                let (attr, attr_ttl) = inner.attr(&found);
                Ok(Entry { attr, entry_ttl: inner.options.entry_ttl, attr_ttl })
            }
            Ok(found) => {
                let (known, ttl) = (Known::Inode(found.inode), inner.options.entry_ttl);
                if inner.cache.learn_name(asked, caller, (parent, name), known, ttl) {
                    let (attr, attr_ttl) = inner.attr(&found);
                    return Ok(Entry { attr, entry_ttl: ttl, attr_ttl });
                }
                let attr = crate::attr::Attr::of(&inner.seen(&found));
                Ok(Entry { attr, entry_ttl: Duration::ZERO, attr_ttl: Duration::ZERO })
            }
            Err(error) => {
                if error.errno == libc::ENOENT {
                    let ttl = inner.options.negative_ttl;
                    inner.cache.learn_name(asked, caller, (parent, name), Known::Nothing, ttl);
                }
                Err(error)
            }
        }
    }
    /// Somebody goes through a directory: remembers what comes behind that name. Nobody waits for it.
    fn walk_ahead(&self, caller: &Caller, parent: u64, after: Vec<u8>) {
        let (inner, caller) = (self.inner.clone(), caller.clone());
        tokio::spawn(async move {
            let (volume, asked) = (inner.as_user(&caller), inner.cache.asks_page());
            let read = async { Ok(volume.readdir(parent, &after, true).await?) };
            let page = inner.limited("readdir", read).await.map(|page| page.entries).unwrap_or_default();
            for entry in &page {
                inner.learn_entry(&caller, parent, entry, &asked);
            }
            // Without the right to search, or in a shard, names come without what is wanted or in another order.
            let useful = page.last().filter(|last| last.attributes.is_some() && last.cookie == last.name);
            inner.walks.came(parent, caller.uid, useful.map(|last| (&last.name[..], page.len())));
        });
    }
    fn cached_entry(&self, caller: &Caller, parent: u64, name: &[u8]) -> Option<Result<Entry>> {
        let (known, entry_ttl) = self.inner.cache.name(caller, parent, name)?;
        let Known::Inode(ino) = known else {
            let text = format!("{} does not exist", shown(&named(parent, name)));
            return Some(Err(VfsError::new(libc::ENOENT, text)));
        };
        // What has no name any more is not what has this one.
        let (attributes, attr_ttl) = self.inner.known_attributes(ino).filter(|(known, _)| known.nlink > 0)?;
        let attr = crate::attr::Attr::of(&attributes);
        Some(Ok(Entry { attr, entry_ttl, attr_ttl }))
    }

    pub async fn readlink(&self, caller: &Caller, ino: u64) -> Result<Vec<u8>> {
        let volume = self.inner.as_user(caller);
        let read = async { Ok(volume.readlink_inode(ino, format!("inode {ino}").as_bytes()).await?) };
        self.inner.limited("readlink", read).await
    }
    /// Makes a regular file, fifo, socket or device node. `mode`: type and permission bits.
    pub async fn mknod(&self, caller: &Caller, parent: u64, name: &[u8], mode: u32, rdev: u32) -> Result<Entry> {
        let mode = if mode & KIND == 0 { mode | REGULAR } else { mode };
        let new = NewFile { mode, rdev, exclusive: true, umask: caller.umask, ..NewFile::default() };
        self.make(caller, parent, name, async move |volume, name, shown_as| {
            let attributes = volume.create_at(parent, &name, &shown_as, new).await?;
            Ok(MadeAt { attributes, directory: None })
        })
        .await
    }
    pub async fn mkdir(&self, caller: &Caller, parent: u64, name: &[u8], mode: u32) -> Result<Entry> {
        let umask = caller.umask;
        let turn = self.inner.options.spread.then(|| self.inner.turns.fetch_add(1, Ordering::Relaxed));
        self.make(caller, parent, name, async move |volume, name, shown_as| {
            let partition = match turn {
                Some(turn) => by_turns(&volume.partitions().await?, turn),
                None => 0,
            };
            match volume.mkdir_masked(parent, &name, &shown_as, mode, umask, partition).await {
                // What a quota counts, and the trash, are where their directory is.
                Err(error) if partition != 0 && error.code() == Some(ErrorCode::BadRequest) => {
                    volume.mkdir_masked(parent, &name, &shown_as, mode, umask, 0).await
                }
                made => made,
            }
        })
        .await
    }
    pub async fn symlink(&self, caller: &Caller, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        let target = target.to_vec();
        self.make(caller, parent, name, async move |volume, name, shown_as| {
            volume.symlink_at(parent, &name, &shown_as, &target).await
        })
        .await
    }
    /// Gives an inode another name.
    pub async fn link(&self, caller: &Caller, ino: u64, parent: u64, name: &[u8]) -> Result<Entry> {
        self.forget_attributes(ino);
        let made = self.make(caller, parent, name, async move |volume, name, shown_as| {
            let attributes = volume.link_at(ino, parent, &name, &shown_as).await?;
            Ok(MadeAt { attributes, directory: None })
        });
        self.inner.unless_gone(made.await, &[ino]).await
    }

    async fn make<F>(
        &self,
        caller: &Caller,
        parent: u64,
        name: &[u8],
        make: impl FnOnce(cairn_client::Volume, Vec<u8>, Vec<u8>) -> F,
    ) -> Result<Entry>
    where
        F: Future<Output = cairn_client::Result<MadeAt>> + Send + 'static,
    {
        let shown_as = named(parent, name);
        self.inner.check_writable(&shown(&shown_as))?;
        let what = shown(&shown_as);
        let made = make(self.inner.as_user(caller), name.to_vec(), shown_as);
        let made = self.inner.change(&what, async move { Ok(made.await?) }).await;
        let made = self.inner.unless_gone(made, &[parent]).await;
        self.changed_in(parent, name, made.as_ref().ok().and_then(|made| made.directory.as_ref()));
        Ok(self.inner.entry(caller, parent, name, &made?.attributes))
    }
    /// What is known of an inode is old, also where it is open: the number of its names and its time of change differ.
    pub(crate) fn forget_attributes(&self, ino: u64) {
        self.inner.ahead.forget(ino);
        self.inner.cache.forget_attributes(ino);
        if let Some(file) = self.inner.files.get(ino) {
            file.data.make_old();
        }
    }
    /// An inode turned out to be gone (ESTALE): names that are known to be its are asked for again.
    pub fn is_gone(&self, ino: u64) {
        self.forget_attributes(ino);
    }
    /// A file was made, or one that had just been made was opened.
    pub(crate) fn gained(&self, parent: u64, name: &[u8], at_ns: i64) {
        self.inner.cache.forget_name(parent, name);
        self.inner.ahead.forget(parent);
        self.inner.cache.gained_file(parent, at_ns);
    }
    /// A name was made, removed or given to something else: what is known of it and its directory is old.
    pub(crate) fn changed(&self, parent: u64, name: &[u8]) {
        self.changed_in(parent, name, None);
    }
    /// The same, with the directory as it is now, if the answer told it.
    fn changed_in(&self, parent: u64, name: &[u8], directory: Option<&Attributes>) {
        if let Some(ino) = self.inner.cache.last_inode(parent, name) {
            self.forget_attributes(ino);
        }
        self.inner.cache.forget_name(parent, name);
        if let Some(directory) = directory {
            self.inner.ahead.forget(parent);
            // A later answer may have been here before.
            let now = self.inner.atimes.put_over(directory);
            return self.inner.cache.put_attributes(&now, self.inner.options.attr_ttl);
        }
        let was_known = self.inner.cache.attributes(parent).is_some();
        self.inner.cache.forget_attributes(parent);
        match was_known {
            true => self.ask_ahead(parent),
            false => self.inner.ahead.forget(parent),
        }
    }
    /// Somebody looked at the directory since its last change, and will after this one.
    fn ask_ahead(&self, directory: u64) {
        let Some(asked) = self.inner.ahead.begin(directory) else { return };
        let inner = self.inner.clone();
        tokio::spawn(async move {
            // Whoever wants to know asks again.
            let Ok(found) = inner.volume.getattr(directory).await else { return inner.ahead.forget(directory) };
            let found = inner.atimes.put_over(&found);
            inner.ahead.end(&asked, || inner.cache.put_attributes(&found, inner.options.attr_ttl));
        });
    }

    /// What a name is of is about to change: what was it? If that is not known, all attributes are old.
    fn affected(&self, parent: u64, name: &[u8]) -> Option<Known> {
        let known = self.inner.cache.last_known(parent, name);
        if known.is_none() {
            self.inner.ahead.forget_all();
            self.inner.cache.forget_all_attributes();
            self.inner.files.all().iter().for_each(|file| file.data.make_old());
        }
        known
    }

    /// Removes a name of anything but a directory. An open file lives on until its last handle is released.
    pub async fn unlink(&self, caller: &Caller, parent: u64, name: &[u8]) -> Result<()> {
        let (volume, shown_as) = (self.inner.as_user(caller), named(parent, name));
        self.inner.check_writable(&shown(&shown_as))?;
        let (own, what, inner) = (name.to_vec(), shown(&shown_as), self.inner.clone());
        let remove = async move {
            inner.tell_owners(&[(parent, &own)]).await?;
            Ok(volume.unlink_at(parent, &own, &shown_as).await?)
        };
        let removed = self.inner.change(&what, remove).await;
        let removed = self.inner.unless_gone(removed, &[parent]).await;
        // It may have other names.
        self.affected(parent, name);
        self.removed(caller, parent, name, removed)
    }
    pub async fn rmdir(&self, caller: &Caller, parent: u64, name: &[u8]) -> Result<()> {
        let (volume, shown_as) = (self.inner.as_user(caller), named(parent, name));
        self.inner.check_writable(&shown(&shown_as))?;
        let (own, what) = (name.to_vec(), shown(&shown_as));
        let removed =
            self.inner.change(&what, async move { Ok(volume.rmdir_at(parent, &own, &shown_as).await?) }).await;
        let removed = self.inner.unless_gone(removed, &[parent]).await;
        self.removed(caller, parent, name, removed)
    }
    /// The outcome is the directory as it is now, if the answer told it.
    fn removed(&self, caller: &Caller, parent: u64, name: &[u8], outcome: Result<Option<Attributes>>) -> Result<()> {
        let directory = outcome.as_ref().ok().and_then(Option::as_ref);
        self.changed_in(parent, name, directory);
        outcome?;
        let inner = &self.inner;
        inner.cache.put_name(caller, parent, name, Known::Nothing, inner.options.negative_ttl);
        Ok(())
    }
    /// Moves an entry. `flags` of renameat2(2): RENAME_NOREPLACE, RENAME_EXCHANGE.
    pub async fn rename(&self, caller: &Caller, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<()> {
        let (volume, shown_as) = (self.inner.as_user(caller), named(from.0, from.1));
        self.inner.check_writable(&shown(&shown_as))?;
        let what = shown(&shown_as);
        let ((parent, name), (new_parent, new_name)) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        let inner = self.inner.clone();
        let rename = async move {
            inner.tell_owners(&[(parent, &name), (new_parent, &new_name)]).await?;
            inner.make_renamed_durable(&volume, (parent, &name), (new_parent, &new_name), flags).await?;
            Ok(volume.rename_at(parent, &name, new_parent, &new_name, &shown_as, flags).await?)
        };
        let outcome = self.inner.change(&what, rename).await;
        let outcome = self.inner.unless_gone(outcome, &[from.0, to.0]).await;
        let (moved, replaced) = (self.affected(from.0, from.1), self.affected(to.0, to.1));
        self.changed(from.0, from.1);
        self.changed(to.0, to.1);
        // The kernel asks for neither name again, and what they are of has to be known at their next change.
        if outcome.is_ok() {
            let put = |(parent, name): (u64, &[u8]), known| {
                if let Some(known @ Known::Inode(ino)) = known {
                    // A directory's ".." is another one now.
                    self.forget_attributes(ino);
                    self.inner.cache.put_name(caller, parent, name, known, self.inner.options.entry_ttl);
                }
            };
            put(to, moved);
            if flags & libc::RENAME_EXCHANGE != 0 {
                put(from, replaced);
            }
        }
        outcome
    }
}

fn by_turns(partitions: &[u32], turn: usize) -> u32 {
    partitions.get(turn % partitions.len().max(1)).copied().unwrap_or(0)
}

impl Inner {
    /// The outcome of an operation on names. ENOENT becomes ESTALE if one of these inodes is gone: another machine
    /// removed it, and perhaps made it anew. Kernels find the way there by names that they know, and look at all of
    /// them again then.
    pub(crate) async fn unless_gone<T>(&self, outcome: Result<T>, inodes: &[u64]) -> Result<T> {
        let error = match outcome {
            Err(error) => error,
            done => return done,
        };
        for ino in inodes.iter().filter(|_| error.errno == libc::ENOENT) {
            let found = self.limited("getattr", async { Ok(self.volume.getattr(*ino).await?) }).await;
            if found.map_or_else(|error| error.errno == libc::ESTALE, |found| found.nlink == 0) {
                return Err(VfsError::new(libc::ESTALE, error.text));
            }
        }
        Err(error)
    }
    /// In a sticky directory names are removed and moved by the owner of what they are of: the servers have to know
    /// him.
    async fn tell_owners(&self, names: &[(u64, &[u8])]) -> Result<()> {
        for (parent, name) in names {
            let files = match self.cache.last_known(*parent, name) {
                Some(Known::Inode(ino)) => self.files.get(ino).into_iter().collect(),
                Some(Known::Nothing) => Vec::new(),
                None => self.files.all(),
            };
            for file in files.iter().filter(|file| file.data.has_later()) {
                file.data.send_later().await?;
            }
        }
        Ok(())
    }
    /// What takes the name of another file is durable before: after a crash one of both has the name, whole.
    async fn make_renamed_durable(
        &self,
        volume: &Volume,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Result<()> {
        if self.volume.volatile_count() == 0 || self.cache.last_known(to.0, to.1) == Some(Known::Nothing) {
            return Ok(());
        }
        let both = [Some(from), (flags & libc::RENAME_EXCHANGE != 0).then_some(to)];
        for (parent, name) in both.into_iter().flatten() {
            let ino = match self.cache.last_inode(parent, name) {
                Some(ino) => ino,
                None => volume.lookup(parent, name, &named(parent, name)).await?.inode,
            };
            if self.volume.has_volatile(ino) {
                self.volume.make_durable(ino).await?;
            }
        }
        Ok(())
    }
}
