//! Programs that look at the entries of a directory one after the other, in its order (`find`, `du`, `rm -r`,
//! `git status`): what comes next is asked for in one request, a page of names with attributes, while they go on.
//!
//! Here: when a page is asked for. It is, after [`ASCENDING`] names in a row, each behind the one before, and again
//! when half of the newest page was used. Where little of a page was used, more names in a row are needed the next
//! time. Bounds: [`WALKS_MAX`] directories, one page of each at a time. Not here: what is remembered of a page, for how
//! long, and for whom (cache).
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Names in a row before the first page is asked for.
const ASCENDING: u32 = 8;
/// … and the most of them, in a directory whose pages were not used.
const ASCENDING_MAX: u32 = 4096;
/// Directories that are walked at a time.
const WALKS_MAX: usize = 64;
/// Who pauses for longer begins anew: what was asked for is too old.
const PAUSE_MAX: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(crate) struct Walks(Mutex<HashMap<(u64, u32), Walk>>);

struct Walk {
    at: Instant,
    last: Box<[u8]>,
    ascending: u32,
    /// So many are needed.
    needed: u32,
    under_way: bool,
    /// The newest page that was asked for is of names behind this one, and so many of them were looked up.
    from: Box<[u8]>,
    used: usize,
    /// Its last name, and how many it has.
    page: Option<(Box<[u8]>, usize)>,
}

impl Walk {
    fn new(now: Instant, name: &[u8], needed: u32) -> Walk {
        let (last, from) = (name.into(), name.into());
        Walk { at: now, last, ascending: 0, needed, under_way: false, from, used: 0, page: None }
    }

    /// The name behind which a page is to be asked for.
    fn goes_on(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        self.ascending = self.ascending.saturating_add(1);
        self.last = name.into();
        self.used += usize::from(name > &*self.from);
        if self.under_way {
            return None;
        }
        let after = match &self.page {
            Some((end, _)) if name > &**end => name.to_vec(),
            Some((end, entries)) if self.used * 2 >= *entries => end.to_vec(),
            Some(_) => return None,
            None if self.ascending >= self.needed => name.to_vec(),
            None => return None,
        };
        let is_used = self.page.as_ref().is_none_or(|(_, entries)| self.used * 4 >= *entries);
        if !is_used {
            (self.page, self.ascending, self.needed) = (None, 0, (self.needed * 4).min(ASCENDING_MAX));
            return None;
        }
        (self.under_way, self.from, self.used) = (true, after.clone().into(), 0);
        Some(after)
    }
}

impl Walks {
    /// A name is looked up. Behind which one a page should be asked for now: whoever is told does so, and tells
    /// [`Walks::came`].
    pub(crate) fn looks_up(&self, directory: u64, uid: u32, name: &[u8], now: Instant) -> Option<Vec<u8>> {
        let mut walks = self.0.lock();
        if walks.len() >= WALKS_MAX && !walks.contains_key(&(directory, uid)) {
            walks.retain(|_, walk| now.saturating_duration_since(walk.at) < PAUSE_MAX || walk.under_way);
            if walks.len() >= WALKS_MAX {
                return None;
            }
        }
        let walk = walks.entry((directory, uid)).or_insert_with(|| Walk::new(now, name, ASCENDING));
        let goes_on = name > &*walk.last && now.saturating_duration_since(walk.at) < PAUSE_MAX;
        walk.at = now;
        if goes_on {
            return walk.goes_on(name);
        }
        if !walk.under_way {
            *walk = Walk::new(now, name, walk.needed);
        }
        None
    }

    /// The page: its last name, and how many names it has. `None`: it did not come, is the last one, or is of no use.
    pub(crate) fn came(&self, directory: u64, uid: u32, page: Option<(&[u8], usize)>) {
        let mut walks = self.0.lock();
        let Some(walk) = walks.get_mut(&(directory, uid)) else { return };
        walk.under_way = false;
        walk.page = page.map(|(last, entries)| (last.into(), entries));
        if page.is_none() {
            (walk.ascending, walk.needed) = (0, ASCENDING_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(i: usize) -> Vec<u8> {
        format!("{i:06}").into_bytes()
    }

    /// Each name of a large directory would be a request of its own, or pages would be asked for twice.
    #[test]
    fn names_in_a_row_are_asked_for_in_pages() {
        let (walks, now, mut asked) = (Walks::default(), Instant::now(), Vec::new());
        for i in 0..4000 {
            let Some(after) = walks.looks_up(1, 0, &name(i), now) else { continue };
            let from: usize = String::from_utf8_lossy(&after).parse().expect("a number");
            assert!(asked.last().is_none_or(|last| from == last + 1000), "{from} after {asked:?}");
            assert!(walks.looks_up(1, 0, &name(i), now).is_none(), "it is under way");
            walks.came(1, 0, Some((&name(from + 1000), 1000)));
            asked.push(from);
        }
        assert_eq!(asked, [8, 1008, 2008, 3008, 4008]);
    }

    /// A program that opens a few files of a large directory here and there would have thousands of names read for
    /// nothing.
    #[test]
    fn names_here_and_there_are_not() {
        let (walks, now) = (Walks::default(), Instant::now());
        for i in 0..1000 {
            assert_eq!(walks.looks_up(1, 0, &name(i * 7919 % 1000), now), None);
        }
        let later = now + PAUSE_MAX;
        for i in 0..100 {
            assert_eq!(walks.looks_up(2, 0, &name(i), now + later.duration_since(now) * i as u32), None, "with pauses");
        }
        // In a row, but with large gaps: once.
        let pages = (0..1000).filter(|i| {
            let after = walks.looks_up(3, 0, &name(i * 500), now);
            after.inspect(|_| walks.came(3, 0, Some((&name(i * 500 + 1000), 1000)))).is_some()
        });
        assert!(pages.count() < 10);
    }

    /// The memory of a mount would grow with each directory that somebody looks into.
    #[test]
    fn directories_are_forgotten() {
        let (walks, now) = (Walks::default(), Instant::now());
        for directory in 0..1000 {
            walks.looks_up(directory, 0, b"a", now);
        }
        assert_eq!(walks.0.lock().len(), WALKS_MAX);
        walks.looks_up(5000, 0, b"a", now + PAUSE_MAX);
        assert_eq!(walks.0.lock().len(), 1);
    }

    /// One that cannot be read, or has come to its end, would be asked for again with each name.
    #[test]
    fn a_page_that_does_not_come_is_not_asked_for_again_soon() {
        let (walks, now, mut asked) = (Walks::default(), Instant::now(), 0);
        for i in 0..2000 {
            if walks.looks_up(1, 0, &name(i), now).is_some() {
                asked += 1;
                walks.came(1, 0, None);
            }
        }
        assert_eq!(asked, 1);
    }
}
