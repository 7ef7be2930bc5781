//! Speed and size of the tree, on one core: `cargo run --release -p cairn-tree --example tree_bench [entries …]`.
//!
//! Prints a line a measurement for each number of entries (default 10,000, 5,000,000 and 10,000,000). Keys are 8 bytes
//! of directory, a kind and a 16-byte name; values 9 bytes. What is resident tells something only for
//! the first tree of a run, later ones reuse its memory. Numbers hold for the machine and moment they are taken on.

// It measures time, uses threads to load, and asks the system for its memory.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use cairn_tree::{LeafPage, Tree, TreeBuilder};

/// Counts what is asked from the system's allocator.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes every call through to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const KEY_LEN: usize = 25;
const VALUE: [u8; 9] = *b"123456789";

/// A small generator, so that runs repeat.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// `per_directory` names in each directory, base-64 letters in random order.
fn keys(count: usize, per_directory: usize) -> Vec<[u8; KEY_LEN]> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut random = Random(7);
    let directories = (count / per_directory).max(1) as u64;
    (0..count)
        .map(|_| {
            let mut key = [0; KEY_LEN];
            key[..8].copy_from_slice(&(1 + random.next() % directories).to_be_bytes());
            key[8] = 1;
            let (mut low, mut high) = (random.next(), random.next());
            for (i, byte) in key[9..].iter_mut().enumerate() {
                let bits = if i < 8 { &mut low } else { &mut high };
                *byte = LETTERS[(*bits & 63) as usize];
                *bits >>= 6;
            }
            key
        })
        .collect()
}

/// Resident bytes of this process, where the system tells.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn rate(name: &str, operations: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    let ns = start.elapsed().as_nanos() as f64 / operations as f64;
    println!("  {name:<34} {:>8.2} M/s {ns:>8.1} ns", 1e3 / ns);
    ns
}

fn report_size(name: &str, tree: &Tree, before: usize, resident_before: usize) {
    let entries = tree.len() as f64;
    println!(
        "  {name:<34} {:>8.1} B/entry allocated, {:.1} accounted, {:.1} resident, {:.0} entries/page",
        (ALLOCATED.load(Ordering::Relaxed) - before) as f64 / entries,
        tree.memory_bytes() as f64 / entries,
        resident().saturating_sub(resident_before) as f64 / entries,
        entries / tree.page_count() as f64
    );
}

/// Inserts and looks up `count` entries; returns nanoseconds of an insert and of a get.
fn run(count: usize, per_directory: usize) -> (f64, f64) {
    println!("{count} entries, {per_directory} a directory");
    let rounds = (1_000_000 / count).max(1);
    let keys = keys(count, per_directory);
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    let mut shuffled = keys.clone();
    let mut random = Random(99);
    (1..count).rev().for_each(|i| shuffled.swap(i, (random.next() % (i as u64 + 1)) as usize));

    let (before, resident_before) = (ALLOCATED.load(Ordering::Relaxed), resident());
    let mut tree = Tree::new();
    let insert = rate("insert, random order", count * rounds, || {
        for _ in 0..rounds {
            tree = Tree::new();
            keys.iter().for_each(|key| _ = black_box(tree.put(key, &VALUE)));
        }
    });
    report_size("", &tree, before, resident_before);
    let get = rate("get, random", count * rounds, || {
        for key in shuffled.iter().cycle().take(count * rounds) {
            black_box(tree.get(black_box(key)));
        }
    });
    rate("replace value, same length", count * rounds, || {
        shuffled.iter().cycle().take(count * rounds).for_each(|key| _ = black_box(tree.put(key, b"abcdefghi")));
    });
    scans_and_checkpoint(&tree, count, rounds, &shuffled);
    rate("remove half, random", count / 2, || {
        shuffled.iter().take(count / 2).for_each(|key| _ = black_box(tree.remove(key)));
    });
    report_size("", &tree, before, resident_before);
    let rest = tree.len() as usize;
    rate("remove_range, all but 2 entries", rest, || {
        let (low, high) = (tree.iter().next().map(|e| [e.0, &[0]].concat()), tree.last().map(|e| e.key()));
        tree.remove_range(&low.unwrap_or_default(), &high.unwrap_or_default());
    });
    drop(tree);

    let (before, resident_before) = (ALLOCATED.load(Ordering::Relaxed), resident());
    let mut tree = Tree::new();
    rate("insert, key order", count, || sorted.iter().for_each(|key| _ = black_box(tree.put(key, &VALUE))));
    report_size("", &tree, before, resident_before);
    drop(tree);
    reference(count, rounds, &keys, &shuffled);
    (insert, get)
}

/// The ordered map of the standard library with keys and values in place: tells fast machines and moments from slow
/// ones.
fn reference(count: usize, rounds: usize, keys: &[[u8; KEY_LEN]], shuffled: &[[u8; KEY_LEN]]) {
    let mut map = BTreeMap::new();
    rate("BTreeMap: insert, random order", count * rounds, || {
        for _ in 0..rounds {
            map = BTreeMap::new();
            keys.iter().for_each(|key| _ = map.insert(*key, VALUE));
        }
    });
    rate("BTreeMap: get, random", count * rounds, || {
        for key in shuffled.iter().cycle().take(count * rounds) {
            black_box(map.get(black_box(key)));
        }
    });
}

fn scans_and_checkpoint(tree: &Tree, count: usize, rounds: usize, shuffled: &[[u8; KEY_LEN]]) {
    rate("scan, keys and values", count * rounds, || {
        for _ in 0..rounds {
            let mut all = tree.iter();
            while let Some(entry) = all.next() {
                black_box(entry);
            }
        }
    });
    let mut read = 0;
    let probes = (1_000_000.min(count)).max(1000);
    let start = Instant::now();
    for key in shuffled.iter().cycle().take(probes) {
        let mut entries = tree.range_from(key);
        for _ in 0..8 {
            read += usize::from(black_box(entries.next()).is_some());
        }
    }
    println!("  {:<34} {:>8.1} ns", "seek and read 8", start.elapsed().as_nanos() as f64 / probes as f64);
    assert!(read > 0);

    let mut image = Vec::new();
    let mut ends = Vec::new();
    rate("checkpoint", count, || {
        for page in tree.pages() {
            page.append_to(&mut image);
            ends.push(image.len());
        }
    });
    println!("  {:<34} {:>8.1} B/entry", "", image.len() as f64 / count as f64);
    let images: Vec<&[u8]> = ends.iter().scan(0, |from, &to| Some(&image[std::mem::replace(from, to)..to])).collect();
    let mut loaded = Vec::new();
    rate("load, one thread", count, || {
        let mut builder = TreeBuilder::new();
        images.iter().for_each(|image| builder.push_leaf(image).expect("the image was just made"));
        loaded.push(builder.finish().expect("the pages are in order"));
    });
    loaded.clear();
    rate("load, four threads", count, || {
        let decode = |images: &[&[u8]]| images.iter().filter_map(|i| LeafPage::decode(i).ok()).collect::<Vec<_>>();
        let pages: Vec<Vec<LeafPage>> = std::thread::scope(|scope| {
            let parts = images.chunks(images.len().div_ceil(4));
            let handles: Vec<_> = parts.map(|part| scope.spawn(move || decode(part))).collect();
            handles.into_iter().map(|handle| handle.join().expect("no page panics")).collect()
        });
        let mut builder = TreeBuilder::new();
        pages.into_iter().flatten().for_each(|page| builder.push(page).expect("the pages are in order"));
        loaded.push(builder.finish().expect("the pages are in order"));
    });
    loaded.clear();

    for batch in [1, 64, 1024] {
        let mut version = tree.snapshot();
        let mut published = tree.snapshot();
        let operations = count.min(if batch == 1 { 100_000 } else { 1_000_000 });
        rate(&format!("replace, published every {batch}"), operations, || {
            for (i, key) in shuffled[..operations].iter().enumerate() {
                version.put(key, &VALUE);
                if i % batch == 0 {
                    published = version.snapshot();
                }
            }
        });
        drop(published);
    }
}

fn main() {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![10_000, 5_000_000, 10_000_000] } else { sizes };
    let mut costs = Vec::new();
    for &size in &sizes {
        costs.push(run(size, 1000));
    }
    if let (Some(small), Some(large), true) = (costs.first(), costs.last(), costs.len() > 1) {
        println!(
            "{} entries cost {:.2} times {} entries for an insert, {:.2} times for a get",
            sizes[sizes.len() - 1],
            large.0 / small.0,
            sizes[0],
            large.1 / small.1
        );
    }
}
