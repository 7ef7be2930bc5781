//! [`Accounts`]: what the connections of one key, or of one address, hold of this process's memory for messages:
//! answers that nobody has read yet, and requests that have come in part.
//!
//! Each connection has bounds of its own, and there are many connections. So they count together. Invariants: no key
//! (and no address, of connections without one) holds more than is left for others, so one of them holds half at most,
//! and whoever comes new finds something; all keys of one address hold three quarters at most. Whoever is near that is
//! not read any more, so that answers that are read slowly cost time alone; a connection that brings it beyond that is
//! closed. The first bytes of a connection do not count ([`FREE`]), so what is small costs nothing here. Not here:
//! payloads (`shares.rs` and the pools of services), peers that do not read at all (`conn.rs`).

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::crowd::site;

/// Bytes of each part of a connection that do not count, and the step in which further ones do.
const FREE: usize = 16 << 10;
/// Keys of one address leave one part of so many to other addresses.
const SITE_PARTS: usize = 4;

/// Whose connections count together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Who(u64);

/// Of one key or address.
#[derive(Default)]
struct Account(AtomicUsize);

/// All of a server.
pub(crate) struct Accounts {
    max: usize,
    held: AtomicUsize,
    hasher: RandomState,
    by: Mutex<HashMap<Who, Weak<Account>>>,
}

/// Where one connection counts.
pub(crate) struct Tab {
    all: Arc<Accounts>,
    site: Arc<Account>,
    key: OnceLock<Arc<Account>>,
}

impl Accounts {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, held: AtomicUsize::new(0), hasher: RandomState::new(), by: Mutex::default() })
    }

    /// Who comes from there, as long as nobody knows more.
    pub(crate) fn at(&self, address: IpAddr) -> Who {
        Who(self.hasher.hash_one((0, site(address))))
    }

    /// The holder of the key of that name.
    pub(crate) fn named(&self, key: &str) -> Who {
        Who(self.hasher.hash_one((1, key)))
    }

    /// Bytes that count now.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// For a connection from there.
    pub(crate) fn tab(self: &Arc<Self>, address: IpAddr) -> Arc<Tab> {
        Arc::new(Tab { all: self.clone(), site: self.account(self.at(address)), key: OnceLock::new() })
    }

    fn account(&self, who: Who) -> Arc<Account> {
        let mut by = self.by.lock();
        if by.len() == by.capacity() {
            by.retain(|_, account| account.strong_count() > 0);
        }
        let known = by.entry(who).or_default();
        known.upgrade().unwrap_or_else(|| {
            let account = Arc::new(Account::default());
            *known = Arc::downgrade(&account);
            account
        })
    }
}

impl Tab {
    /// Its hello was accepted, under this key. What counts for it from now on counts for the key.
    pub(crate) fn belongs_to(&self, key: &str) {
        self.key.get_or_init(|| self.all.account(self.all.named(key)));
    }

    /// Whether no part of it may hold more than it does.
    fn is_beyond(&self, parts: usize) -> bool {
        let (max, left) = (self.all.max, self.all.max.saturating_sub(self.all.held()));
        let site = self.site.0.load(Relaxed);
        match self.key.get() {
            Some(key) => key.0.load(Relaxed) > left / parts || site > (max - max / SITE_PARTS) / parts,
            None => site > left / parts,
        }
    }

    /// Whether it is to be asked nothing more until others of its own have gone on.
    pub(crate) fn is_crowded(&self) -> bool {
        // While nearly nothing is held at all, nobody is looked at.
        self.all.held() > self.all.max / 4 && self.is_beyond(2)
    }
}

/// A part of a connection that holds bytes.
pub(crate) struct Part {
    tab: Arc<Tab>,
    counted: usize,
    /// What of it counted before its key was known, and so only for its address.
    keyed: bool,
    free: usize,
}

impl Part {
    pub(crate) fn new(tab: &Arc<Tab>) -> Self {
        Self::with_free(tab, FREE)
    }

    /// One of which more does not count.
    pub(crate) fn with_free(tab: &Arc<Tab>, free: usize) -> Self {
        Self { tab: tab.clone(), counted: 0, keyed: false, free }
    }

    /// It holds so many bytes now. `false`: it has more, and may not.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let counted = if bytes <= self.free { 0 } else { bytes.next_multiple_of(FREE) };
        if counted == self.counted {
            return true;
        }
        self.give_back();
        if counted > 0 {
            self.counted = counted;
            self.keyed = self.tab.key.get().is_some();
            self.each(|held| held.fetch_add(counted, Relaxed));
        }
        !self.tab.is_beyond(1) || counted == 0
    }

    fn give_back(&mut self) {
        let counted = std::mem::take(&mut self.counted);
        if counted > 0 {
            self.each(|held| held.fetch_sub(counted, Relaxed));
        }
    }

    fn each(&self, change: impl Fn(&AtomicUsize) -> usize) {
        change(&self.tab.all.held);
        change(&self.tab.site.0);
        if let Some(key) = self.tab.key.get().filter(|_| self.keyed) {
            change(&key.0);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const MIB: usize = 1 << 20;

    fn at(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    fn tab(all: &Arc<Accounts>, key: Option<&str>, last: u8) -> Arc<Tab> {
        let tab = all.tab(at(last));
        key.into_iter().for_each(|key| tab.belongs_to(key));
        tab
    }

    /// Connections of one key, each with a MiB, as many as there may be.
    fn all_of(all: &Arc<Accounts>, key: Option<&str>, last: u8) -> Vec<Part> {
        let more = || {
            let mut part = Part::new(&tab(all, key, last));
            part.set(MIB).then_some(part)
        };
        std::iter::from_fn(more).collect()
    }

    /// Answers that nobody reads would take all memory, over many connections.
    #[test]
    fn one_key_leaves_as_much_as_it_has() {
        let all = Accounts::new(100 * MIB);
        let first = all_of(&all, Some("a"), 1);
        assert_eq!(first.len(), 50);
        assert!(first[0].tab.is_crowded());
        let other = tab(&all, Some("b"), 2);
        assert!(!other.is_crowded());
        let second = all_of(&all, Some("b"), 2);
        assert_eq!(second.len(), 25);
        assert_eq!(all_of(&all, None, 3).len(), 12, "who has no key is its address");
        drop((first, second));
        assert_eq!(all.held(), 0);
    }

    /// One machine with many keys would have all of it.
    #[test]
    fn one_address_leaves_a_quarter() {
        let all = Accounts::new(100 * MIB);
        let mut held: Vec<Part> = (0..9).flat_map(|n| all_of(&all, Some(&format!("k{n}")), 1)).collect();
        assert_eq!(held.len(), 75);
        assert!(held[0].set(FREE) && !held[1].set(3 * MIB));
        assert_eq!(all_of(&all, Some("other"), 2).len(), 12);
    }

    /// What counted before the key was known would be taken from an account that never had it.
    #[test]
    fn what_came_before_the_hello_counts_once() {
        let all = Accounts::new(100 * MIB);
        let tab = all.tab(at(1));
        let mut part = Part::new(&tab);
        assert!(part.set(MIB));
        tab.belongs_to("a");
        assert!(part.set(0) && part.set(2 * MIB));
        assert_eq!(tab.key.get().map(|key| key.0.load(Relaxed)), Some(2 * MIB));
        drop(part);
        assert_eq!((all.held(), tab.site.0.load(Relaxed)), (0, 0));
        assert_eq!(tab.key.get().map(|key| key.0.load(Relaxed)), Some(0));
    }
}
