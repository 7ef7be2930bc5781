//! What the tree says it holds is what it took from the allocator, through growth, sharing, deletion and loading, and
//! it stays within the budget of the metadata server. One test, because it watches the allocator of the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use cairn_tree::{Tree, TreeBuilder};

struct Counting;

thread_local! {
    static ALLOCATED: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // The thread may be ending, when its counter is gone and of no interest.
    let _ = ALLOCATED.try_with(|total| total.set(total.get() + bytes));
}

// SAFETY: passes every call through to the system's allocator unchanged; the counter never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that this thread allocated less those that it freed; only differences mean something.
fn allocated() -> isize {
    ALLOCATED.with(Cell::get)
}

fn since(before: isize) -> usize {
    usize::try_from(allocated() - before).expect("the tree's pages are alive")
}

/// Dentry keys: directory, kind, 16 letters.
fn key(i: u64) -> Vec<u8> {
    let hash = (u128::from(i) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    let mut key = ((hash as u64) % 100).to_be_bytes().to_vec();
    key.push(1);
    key.extend((0..16).map(|at| b'0' + ((hash >> (16 + 6 * at)) & 63) as u8));
    key
}

/// A fresh copy of everything shares nothing and has no scratch space, so that it can be compared with the allocator.
fn assert_accounted(tree: &Tree, before: isize) {
    // Scratch buffers of a few pages belong to the tree as well.
    let scratch = 64 << 10;
    let real = since(before);
    assert!(
        real >= tree.memory_bytes() && real <= tree.memory_bytes() + scratch,
        "{real} bytes allocated, {} accounted",
        tree.memory_bytes()
    );
}

/// Wrong accounting would let a metadata server run out of memory; pages not given back would do so slowly.
#[test]
fn accounts_for_what_it_allocates() {
    const ENTRIES: u64 = 100_000;
    let before = allocated();
    let mut tree = Tree::new();
    (0..ENTRIES).for_each(|i| _ = tree.put(&key(i), b"123456789"));
    assert_accounted(&tree, before);
    assert!(tree.memory_bytes() as u64 <= 36 * ENTRIES, "{} bytes, random order", tree.memory_bytes());
    let full = tree.memory_bytes();

    let snapshot = tree.snapshot();
    let shared = since(before);
    assert!(shared < full + (80 << 10), "a snapshot copies nothing");
    (0..ENTRIES).for_each(|i| _ = tree.put(&key(i), b"987654321"));
    assert!(since(before) > 2 * full - full / 20, "all pages were copied once");
    assert_eq!(tree.memory_bytes(), full, "a copy is as large as its original");
    assert_eq!(snapshot.get(&key(7)), Some(b"123456789".as_slice()));
    drop(snapshot);
    assert_accounted(&tree, before);

    (0..ENTRIES).filter(|i| i % 10 != 0).for_each(|i| assert!(tree.remove(&key(i))));
    assert_accounted(&tree, before);
    assert!(tree.memory_bytes() < full / 5, "{} of {full} bytes for a tenth of the entries", tree.memory_bytes());
    tree.check_invariants();
    (0..ENTRIES).filter(|i| i % 10 == 0).for_each(|i| assert!(tree.remove(&key(i))));
    assert_eq!((tree.len(), tree.page_count(), tree.memory_bytes()), (0, 0, 0));
    drop(tree);
    assert_eq!(allocated(), before, "something leaked");

    let mut sorted: Vec<_> = (0..ENTRIES).map(key).collect();
    sorted.sort_unstable();
    let before = allocated();
    let mut tree = Tree::new();
    sorted.iter().for_each(|key| _ = tree.put(key, b"123456789"));
    assert_accounted(&tree, before);
    assert!(tree.memory_bytes() as u64 <= 30 * ENTRIES, "{} bytes, key order", tree.memory_bytes());

    let mut image = Vec::new();
    let mut builder = TreeBuilder::new();
    let before = allocated();
    for page in tree.pages() {
        image.clear();
        page.append_to(&mut image);
        builder.push_leaf(&image).unwrap();
    }
    let mut loaded = builder.finish().unwrap();
    assert_accounted(&loaded, before);
    drop(tree);
    let before = allocated() - loaded.memory_bytes() as isize;
    loaded.remove_range(&20u64.to_be_bytes(), &80u64.to_be_bytes());
    loaded.check_invariants();
    assert!(since(before) < loaded.memory_bytes() + (64 << 10), "a range that was cut out is given back");
}
