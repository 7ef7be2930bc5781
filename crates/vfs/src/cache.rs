//! Attributes and names that were answered lately, names that do not exist, and files that have no capability: the
//! kernel asks for that before the first write to a file, and again when its attributes were refreshed.
//!
//! Bound: each kind is kept in two generations of half of [`VfsOptions::cached_max`](crate::VfsOptions::cached_max);
//! when the younger one is full it becomes the older one, whose rest is forgotten. A name is answered only to who asked
//! for it before (or root), since the directory's permissions were checked for him.
use crate::caller::Caller;
use cairn_client::attributes::Attributes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

struct Generations<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    max: usize,
}

impl<K: Hash + Eq, V> Generations<K, V> {
    fn new(max: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), max: (max / 2).max(1) }
    }
    fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }
    fn put(&mut self, key: K, value: V) {
        if self.young.len() >= self.max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
    fn remove(&mut self, key: &K) -> Option<V> {
        let old = self.old.remove(key);
        self.young.remove(key).or(old)
    }
    fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

/// What is known of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    Inode(u64),
    Nothing,
}

struct Name {
    known: Known,
    who: (u32, u32),
    until: Instant,
}

/// Directory and name.
type Key = (u64, Box<[u8]>);

/// Own changes of names are counted in so many parts: an answer is taken for old if another name of its part changed.
const CHANGES: usize = 1024;

/// Names, and how often this mount changed some of them.
struct Names {
    known: Generations<Key, Name>,
    changes: Vec<u64>,
}

/// Number of changes before an answer was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked(u64);

/// The same for every name.
pub(crate) struct AskedPage(Vec<u64>);

impl AskedPage {
    pub(crate) fn of(&self, parent: u64, name: &[u8]) -> Asked {
        Asked(self.0[part(parent, name)])
    }
}

impl Names {
    fn put(&mut self, caller: &Caller, parent: u64, name: &[u8], known: Known, ttl: Duration) {
        if !ttl.is_zero() {
            let name_of = Name { known, who: (caller.uid, caller.gid), until: Instant::now() + ttl };
            self.known.put((parent, name.into()), name_of);
        }
    }
}

fn part(parent: u64, name: &[u8]) -> usize {
    let mut hasher = DefaultHasher::new();
    (parent, name).hash(&mut hasher);
    (hasher.finish() % CHANGES as u64) as usize
}

/// See the module.
pub(crate) struct Cache {
    attributes: Mutex<Generations<u64, (Attributes, Instant)>>,
    names: Mutex<Names>,
    /// Version of the contents that the kernel's pages of an inode are of.
    pages: Mutex<Generations<u64, u64>>,
    /// Inodes without `security.capability`, and until when that may be said.
    incapable: Mutex<Generations<u64, Instant>>,
    xattrs: Mutex<Xattrs>,
}

/// What is known of extended attributes.
struct Xattrs {
    /// Inodes that have none, and until when that may be said.
    none: Generations<u64, Instant>,
    /// Inodes that got some through this mount: of these nothing is believed, for an answer may have been on its way.
    given: Generations<u64, ()>,
}

impl Cache {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            attributes: Mutex::new(Generations::new(max)),
            names: Mutex::new(Names { known: Generations::new(max), changes: vec![0; CHANGES] }),
            pages: Mutex::new(Generations::new(max)),
            incapable: Mutex::new(Generations::new(max)),
            xattrs: Mutex::new(Xattrs { none: Generations::new(max), given: Generations::new(max) }),
        }
    }
    /// Attributes and how long they may still be used.
    pub(crate) fn attributes(&self, ino: u64) -> Option<(Attributes, Duration)> {
        let cached = self.attributes.lock();
        let (attributes, until) = cached.get(&ino)?;
        let left = until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some((*attributes, left))
    }
    pub(crate) fn put_attributes(&self, attributes: &Attributes, ttl: Duration) {
        if ttl.is_zero() {
            return;
        }
        let older = |known: u64| attributes.data_version < known;
        let mut cached = self.attributes.lock();
        let overtaken = cached.get(&attributes.inode).is_some_and(|(known, _)| {
            attributes.generation < known.generation && attributes.data_version <= known.data_version
        });
        // An answer that was on its way while the file was written and closed.
        if !overtaken && !self.pages(attributes.inode).is_some_and(older) {
            cached.put(attributes.inode, (*attributes, Instant::now() + ttl));
        }
    }
    /// This mount made a file in the directory, at that time of the log: what is known of the directory stays true with
    /// it, for as long as it would have been used otherwise.
    pub(crate) fn gained_file(&self, directory: u64, at_ns: i64) {
        let mut cached = self.attributes.lock();
        let Some((mut attributes, until)) = cached.get(&directory).copied() else { return };
        attributes.mtime_ns = attributes.mtime_ns.max(at_ns);
        attributes.ctime_ns = attributes.ctime_ns.max(at_ns);
        attributes.generation = attributes.generation.wrapping_add(1);
        cached.put(directory, (attributes, until));
    }
    pub(crate) fn forget_attributes(&self, ino: u64) {
        self.attributes.lock().remove(&ino);
    }
    /// One of them changed, and nobody knows which.
    pub(crate) fn forget_all_attributes(&self) {
        self.attributes.lock().clear();
    }
    /// What the name was lately, and how long that may still be used.
    pub(crate) fn name(&self, caller: &Caller, parent: u64, name: &[u8]) -> Option<(Known, Duration)> {
        let names = self.names.lock();
        let found = names.known.get(&(parent, name.into()))?;
        let left = found.until.saturating_duration_since(Instant::now());
        let may_know = caller.uid == 0 || found.who == (caller.uid, caller.gid);
        (may_know && !left.is_zero()).then_some((found.known, left))
    }
    /// The inode that a name was of, however long ago: for what a change of it touches.
    pub(crate) fn last_inode(&self, parent: u64, name: &[u8]) -> Option<u64> {
        match self.last_known(parent, name)? {
            Known::Inode(ino) => Some(ino),
            Known::Nothing => None,
        }
    }
    /// What a name was when it was last asked for.
    pub(crate) fn last_known(&self, parent: u64, name: &[u8]) -> Option<Known> {
        Some(self.names.lock().known.get(&(parent, name.into()))?.known)
    }
    /// What the name is by a change of this mount, or by an answer that no such change can have overtaken.
    pub(crate) fn put_name(&self, caller: &Caller, parent: u64, name: &[u8], known: Known, ttl: Duration) {
        self.names.lock().put(caller, parent, name, known, ttl);
    }
    /// This mount changed it: what was asked before may be answered with what it was.
    pub(crate) fn forget_name(&self, parent: u64, name: &[u8]) {
        let mut names = self.names.lock();
        names.known.remove(&(parent, name.into()));
        names.changes[part(parent, name)] += 1;
    }
    /// Before a name is asked for.
    pub(crate) fn asks(&self, parent: u64, name: &[u8]) -> Asked {
        Asked(self.names.lock().changes[part(parent, name)])
    }
    /// Before a page of a directory is asked for: for each name of it what [`Cache::asks`] says.
    pub(crate) fn asks_page(&self) -> AskedPage {
        AskedPage(self.names.lock().changes.clone())
    }
    /// The answer. False, and nothing is remembered, if this mount changed the name meanwhile: nobody knows what was
    /// first.
    pub(crate) fn learn_name(
        &self,
        asked: Asked,
        caller: &Caller,
        (parent, name): (u64, &[u8]),
        known: Known,
        ttl: Duration,
    ) -> bool {
        let mut names = self.names.lock();
        let fits = names.changes[part(parent, name)] == asked.0;
        if fits {
            names.put(caller, parent, name, known, ttl);
        }
        fits
    }
    /// The kernel's pages of an inode are of that version of its contents. What they were of before.
    pub(crate) fn pages_are_of(&self, ino: u64, version: u64) -> Option<u64> {
        let mut pages = self.pages.lock();
        let before = pages.remove(&ino);
        pages.put(ino, version);
        before
    }
    pub(crate) fn pages(&self, ino: u64) -> Option<u64> {
        self.pages.lock().get(&ino).copied()
    }
    pub(crate) fn forget_pages(&self, ino: u64) {
        self.pages.lock().remove(&ino);
    }
    /// It has no capability at this moment.
    pub(crate) fn put_incapable(&self, ino: u64, ttl: Duration) {
        if !ttl.is_zero() {
            self.incapable.lock().put(ino, Instant::now() + ttl);
        }
    }
    pub(crate) fn is_incapable(&self, ino: u64) -> bool {
        self.incapable.lock().get(&ino).is_some_and(|until| Instant::now() < *until)
    }
    pub(crate) fn forget_incapable(&self, ino: u64) {
        self.incapable.lock().remove(&ino);
    }
    /// It was listed as one that has no extended attributes.
    pub(crate) fn put_without_xattrs(&self, ino: u64, ttl: Duration) {
        let mut xattrs = self.xattrs.lock();
        if !ttl.is_zero() && xattrs.given.get(&ino).is_none() {
            xattrs.none.put(ino, Instant::now() + ttl);
        }
    }
    pub(crate) fn is_without_xattrs(&self, ino: u64) -> bool {
        self.xattrs.lock().none.get(&ino).is_some_and(|until| Instant::now() < *until)
    }
    /// Before this mount gives it some.
    pub(crate) fn gives_xattrs(&self, ino: u64) {
        let mut xattrs = self.xattrs.lock();
        xattrs.none.remove(&ino);
        xattrs.given.put(ino, ());
    }
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.attributes.lock().len(), self.names.lock().known.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const TTL: Duration = Duration::from_secs(60);

    /// The memory of a mount would grow with every file that was ever looked at.
    #[test]
    fn it_stays_within_its_bound() {
        let cache = Cache::new(100);
        for inode in 0..10_000 {
            cache.put_attributes(&Attributes { inode, ..Default::default() }, TTL);
            cache.put_name(&Caller::root(), 1, inode.to_string().as_bytes(), Known::Inode(inode), TTL);
        }
        assert!(cache.counts().0 <= 100 && cache.counts().1 <= 100, "{:?}", cache.counts());
        assert!(cache.attributes(9_999).is_some() && cache.attributes(1).is_none());
    }

    /// A user would learn of names in directories that he may not search, or see a file after it was removed.
    #[test]
    fn names_are_answered_to_who_asked() {
        let cache = Cache::new(100);
        let user = Caller { uid: 5, gid: 6, groups: Arc::new([]), pid: 1, umask: 0 };
        let other = Caller { uid: 7, ..user.clone() };
        cache.put_name(&user, 1, b"a", Known::Inode(9), TTL);
        cache.put_name(&user, 1, b"b", Known::Nothing, Duration::ZERO);
        assert_eq!(cache.name(&user, 1, b"a").map(|n| n.0), Some(Known::Inode(9)));
        assert!(cache.name(&other, 1, b"a").is_none() && cache.name(&Caller::root(), 1, b"a").is_some());
        assert!(cache.name(&user, 1, b"b").is_none(), "it may not be remembered");
        cache.forget_name(1, b"a");
        assert!(cache.name(&user, 1, b"a").is_none());
    }

    /// A name would be there after this mount had removed it, or not be there after it had been made, because somebody
    /// asked for it just before.
    #[test]
    fn answers_that_a_change_overtook_are_not_remembered() {
        let cache = Cache::new(100);
        let (user, name) = (Caller::root(), (1, &b"a"[..]));
        let asked = cache.asks(1, b"a");
        assert!(cache.learn_name(asked, &user, name, Known::Nothing, TTL));
        let asked = cache.asks(1, b"a");
        cache.forget_name(1, b"a");
        cache.put_name(&user, 1, b"a", Known::Inode(9), TTL);
        assert!(!cache.learn_name(asked, &user, name, Known::Nothing, TTL));
        assert_eq!(cache.name(&user, 1, b"a").map(|n| n.0), Some(Known::Inode(9)));
    }
}
