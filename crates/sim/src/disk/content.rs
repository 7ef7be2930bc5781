//! [`Content`]: the bytes of one simulated file, as the process sees them and as the device has them.
//!
//! Invariants: `live` and `durable` are 4 KiB pages, an absent page reads as zeros; bytes of `live` behind `len` are
//! zeros; a sector whose live content was written since the last sync is in `dirty`. What is not dirty may differ
//! from `durable` only after a failed sync (the page cache shows what the device forgot).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use cairn_env::rng::Rng;

use super::crash::{Decider, Fate};
use super::fault::FaultCounts;
use super::page_set::PageSet;
use crate::rng::SimRng;

/// The unit that a device writes or loses as one.
pub(super) const SECTOR: usize = 512;
/// The unit of space accounting.
pub(super) const PAGE: usize = 4096;
/// Intermediate versions remembered of a page that is written again and again between two syncs.
const VERSIONS_MAX: usize = 8;
/// Intermediate sizes remembered between two syncs.
const SIZES_MAX: usize = 16;

type Page = Arc<[u8; PAGE]>;

static ZEROS: [u8; PAGE] = [0; PAGE];

/// The content of a file.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    live: BTreeMap<u64, Page>,
    len: u64,
    durable: BTreeMap<u64, Page>,
    durable_len: u64,
    /// Page → bits of the sectors written since the last sync.
    dirty: BTreeMap<u64, u8>,
    /// Page → contents it had between two syncs, before the present one.
    older: BTreeMap<u64, Vec<Page>>,
    /// Sizes since the last sync, the present one last.
    sizes: Vec<u64>,
    allocated: PageSet,
    /// What was allocated at the last sync.
    durable_allocated: PageSet,
}

/// The pages that a byte range touches.
fn pages_of(offset: u64, len: u64) -> Range<u64> {
    let page = PAGE as u64;
    if len == 0 {
        return 0..0;
    }
    offset / page..offset.saturating_add(len).div_ceil(page)
}

/// Bits of the sectors that a range of a page touches.
fn sectors(range: &Range<usize>) -> u8 {
    (range.start / SECTOR..range.end.div_ceil(SECTOR)).fold(0, |mask, sector| mask | 1 << sector)
}

fn bytes(pages: &BTreeMap<u64, Page>, page: u64) -> &[u8; PAGE] {
    pages.get(&page).map_or(&ZEROS, |p| p)
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Pages that occupy space.
    pub(super) fn pages_allocated(&self) -> u64 {
        self.allocated.count()
    }

    /// Pages that a write or reservation of this range would newly occupy.
    pub(super) fn pages_missing(&self, offset: u64, len: u64) -> u64 {
        let pages = pages_of(offset, len);
        (pages.end - pages.start) - self.allocated.count_in(pages)
    }

    /// Whether something would be lost if power went now, and how many units (sectors and sizes).
    pub(super) fn unsynced(&self) -> usize {
        let sectors: u32 = self.dirty.iter().map(|(&page, &mask)| self.changed(page, mask).count_ones()).sum();
        sectors as usize + usize::from(!self.sizes.is_empty())
    }

    /// The sectors among `mask` of which any version since the last sync differs from the device's.
    fn changed(&self, page: u64, mask: u8) -> u8 {
        let old = bytes(&self.durable, page);
        let older = self.older.get(&page).map_or(&[][..], |v| v);
        let mut changed = 0;
        for sector in (0..8).filter(|s| mask >> s & 1 == 1) {
            let part = sector * SECTOR..(sector + 1) * SECTOR;
            let same = |new: &[u8; PAGE]| new[part.clone()] == old[part.clone()];
            if !same(bytes(&self.live, page)) || !older.iter().all(|p| same(p)) {
                changed |= 1 << sector;
            }
        }
        changed
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let len = (buf.len() as u64).min(self.len.saturating_sub(offset)) as usize;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = (at % PAGE as u64) as usize;
            let part = (PAGE - within).min(len - done);
            let page = bytes(&self.live, at / PAGE as u64);
            buf[done..done + part].copy_from_slice(&page[within..within + part]);
            done += part;
        }
        len
    }

    /// Changes bytes of one page and marks their sectors.
    fn modify(&mut self, page: u64, range: Range<usize>, change: impl FnOnce(&mut [u8])) {
        self.remember(page, sectors(&range));
        let content = self.live.entry(page).or_insert_with(|| Arc::new(ZEROS));
        change(&mut Arc::make_mut(content)[range]);
    }

    /// Writes bytes of one page. Zeros where there is nothing take no memory: logs are filled with them before they are
    /// written.
    fn put(&mut self, page: u64, within: usize, source: &[u8]) {
        let range = within..within + source.len();
        if source == &ZEROS[..source.len()] && !self.live.contains_key(&page) {
            self.remember(page, sectors(&range));
        } else if let Ok(whole) = <&[u8; PAGE]>::try_from(source) {
            self.remember(page, u8::MAX);
            self.live.insert(page, Arc::new(*whole));
        } else {
            self.modify(page, range, |target| target.copy_from_slice(source));
        }
    }

    /// Marks sectors as written; what a sector held since the last sync is kept as an older version.
    fn remember(&mut self, page: u64, mask: u8) {
        let dirty = self.dirty.entry(page).or_default();
        if *dirty & mask != 0 {
            let versions = self.older.entry(page).or_default();
            if versions.len() == VERSIONS_MAX {
                versions.remove(0);
            }
            versions.push(self.live.get(&page).cloned().unwrap_or_else(|| Arc::new(ZEROS)));
        }
        *dirty |= mask;
    }

    fn resized(&mut self, len: u64) {
        if len == self.len {
            return;
        }
        self.len = len;
        if self.sizes.len() == SIZES_MAX {
            self.sizes.remove(0);
        }
        self.sizes.push(len);
    }

    pub(super) fn write(&mut self, data: &[u8], offset: u64) {
        if data.is_empty() {
            return;
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let within = (at % PAGE as u64) as usize;
            let part = (PAGE - within).min(data.len() - done);
            let source = &data[done..done + part];
            self.put(at / PAGE as u64, within, source);
            done += part;
        }
        self.allocated.insert(pages_of(offset, data.len() as u64));
        self.resized(self.len.max(offset + data.len() as u64));
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len <= self.len {
            self.zero(len, self.len - len);
            // Also what was reserved behind the same end.
            let behind = len.div_ceil(PAGE as u64);
            self.allocated.remove(behind..u64::MAX);
        }
        self.resized(len);
    }

    pub(super) fn allocate(&mut self, offset: u64, len: u64) {
        self.allocated.insert(pages_of(offset, len));
    }

    pub(super) fn punch(&mut self, offset: u64, len: u64) {
        self.zero(offset, len.min(self.len.saturating_sub(offset)));
        let page = PAGE as u64;
        let (first, behind) = (offset.div_ceil(page), offset.saturating_add(len) / page);
        if first < behind {
            self.allocated.remove(first..behind);
        }
    }

    /// Makes a range read as zeros, dropping whole pages.
    fn zero(&mut self, offset: u64, len: u64) {
        let pages = pages_of(offset, len);
        let touched: Vec<u64> = self.live.range(pages).map(|(&page, _)| page).collect();
        for page in touched {
            let start = page * PAGE as u64;
            let from = offset.saturating_sub(start).min(PAGE as u64) as usize;
            let to = (offset + len - start).min(PAGE as u64) as usize;
            // The rest of the last page lies behind the end of the file and holds zeros anyway.
            if from == 0 && (to == PAGE || offset + len >= self.len) {
                self.remember(page, u8::MAX);
                self.live.remove(&page);
            } else {
                self.modify(page, from..to, |target| target.fill(0));
            }
        }
    }

    /// Everything written so far reaches the device.
    pub(super) fn sync(&mut self) {
        for page in std::mem::take(&mut self.dirty).into_keys() {
            self.persist(page);
        }
        self.older.clear();
        self.sizes.clear();
        self.durable_len = self.len;
        self.durable_allocated = self.allocated.clone();
    }

    fn persist(&mut self, page: u64) {
        match self.live.get(&page) {
            Some(content) => self.durable.insert(page, content.clone()),
            None => self.durable.remove(&page),
        };
    }

    /// A sync that failed: any subset of the sectors reached the device, and the rest is forgotten, though reads
    /// still see it until the cache is dropped.
    pub(super) fn fail_sync(&mut self, rng: &SimRng, counts: &mut FaultCounts) {
        let dirty = std::mem::take(&mut self.dirty);
        for (page, mask) in dirty {
            let new = *bytes(&self.live, page);
            let target = self.durable.entry(page).or_insert_with(|| Arc::new(ZEROS));
            for sector in (0..8).filter(|s| mask >> s & 1 == 1) {
                let part = sector * SECTOR..(sector + 1) * SECTOR;
                if target[part.clone()] == new[part.clone()] {
                    continue;
                }
                if rng.chance(0.5) {
                    Arc::make_mut(target)[part.clone()].copy_from_slice(&new[part]);
                } else {
                    counts.sectors_dropped_by_failed_sync += 1;
                }
            }
        }
        self.older.clear();
        if !self.sizes.is_empty() && rng.chance(0.5) {
            self.durable_len = self.len;
            self.sizes.clear();
        }
    }

    /// What is not dirty is read from the device again.
    pub(super) fn drop_clean(&mut self) {
        let pages: Vec<u64> = self.live.keys().chain(self.durable.keys()).copied().collect();
        for page in pages {
            if self.dirty.contains_key(&page) {
                continue;
            }
            match self.durable.get(&page) {
                Some(content) => self.live.insert(page, content.clone()),
                None => self.live.remove(&page),
            };
        }
        self.cut_live();
    }

    /// Power goes; what remains is decided sector by sector.
    pub(super) fn crash(&mut self, decider: &mut Decider<'_>, counts: &mut FaultCounts) {
        decider.next_file();
        let dirty = std::mem::take(&mut self.dirty);
        for (page, mask) in dirty {
            let changed = self.changed(page, mask);
            if changed == 0 {
                continue;
            }
            let mut image = self.durable.get(&page).cloned().unwrap_or_else(|| Arc::new(ZEROS));
            for sector in (0..8).filter(|s| changed >> s & 1 == 1) {
                self.crash_sector(page, sector, Arc::make_mut(&mut image), decider, counts);
            }
            self.durable.insert(page, image);
        }
        let size = decider.size(self.durable_len, &self.sizes);
        if size != self.len && !self.sizes.is_empty() {
            counts.sizes_lost += 1;
        }
        self.restart_with(size);
    }

    fn crash_sector(
        &self,
        page: u64,
        sector: usize,
        image: &mut [u8; PAGE],
        decider: &mut Decider<'_>,
        counts: &mut FaultCounts,
    ) {
        let part = sector * SECTOR..(sector + 1) * SECTOR;
        let older = self.older.get(&page).map_or(&[][..], |v| v);
        let fate = decider.sector();
        let version = decider.version(older.len() + 1);
        let source = older.get(version).map_or(bytes(&self.live, page), |p| p);
        let (new, old) = (&source[part.clone()], &mut image[part]);
        let differs = |at: &usize| new[*at] != old[*at];
        let first = (0..SECTOR).find(differs);
        let last = (0..SECTOR).rev().find(differs);
        let (Some(first), Some(last)) = (first, last) else {
            // The version that was picked equals the old content.
            counts.sectors_lost += 1;
            return;
        };
        match fate {
            Fate::Lost => counts.sectors_lost += 1,
            Fate::Kept => {
                counts.sectors_kept += 1;
                old.copy_from_slice(new);
            }
            Fate::Mixed => {
                counts.sectors_torn += 1;
                let cut = first + decider.rng.index(last - first + 1);
                old[..cut].copy_from_slice(&new[..cut]);
            }
            Fate::Garbage => {
                counts.sectors_torn += 1;
                decider.rng.fill(&mut old[first..=last]);
            }
            Fate::WholeGarbage => {
                counts.sectors_torn += 1;
                decider.rng.fill(old);
            }
        }
    }

    /// The device's content becomes what everybody sees.
    fn restart_with(&mut self, size: u64) {
        self.live = self.durable.clone();
        self.len = size;
        self.cut_live();
        self.durable = self.live.clone();
        self.durable_len = size;
        self.dirty.clear();
        self.older.clear();
        self.sizes.clear();
        self.allocated = self.durable_allocated.clone();
        for &page in self.live.keys() {
            self.allocated.insert(page..page + 1);
        }
        self.durable_allocated = self.allocated.clone();
    }

    /// Bytes behind the end read as zeros when the file grows again.
    fn cut_live(&mut self) {
        let behind = self.len.div_ceil(PAGE as u64);
        self.live.split_off(&behind);
        let within = (self.len % PAGE as u64) as usize;
        if within > 0
            && let Some(last) = self.live.get_mut(&(self.len / PAGE as u64))
            && last[within..].iter().any(|&b| b != 0)
        {
            Arc::make_mut(last)[within..].fill(0);
        }
    }

    /// Flips one bit on the device and in the cache. `false` when the file has no such byte.
    pub(super) fn flip(&mut self, offset: u64, bit: u8) -> bool {
        if offset >= self.len {
            return false;
        }
        let (page, within) = (offset / PAGE as u64, (offset % PAGE as u64) as usize);
        for pages in [&mut self.live, &mut self.durable] {
            let content = pages.entry(page).or_insert_with(|| Arc::new(ZEROS));
            Arc::make_mut(content)[within] ^= 1 << (bit & 7);
        }
        true
    }
}
