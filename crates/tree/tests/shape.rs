//! Properties that the model test is too small to see: fill of pages, sharing between threads, many versions, limits.

// Threads and small stacks are what two of these tests are about.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use cairn_tree::{KEY_BYTES_MAX, Tree, Update, VALUE_BYTES_MAX};

/// Keys that arrive in order inside the key space (a directory filled with numbered files while others exist) leave
/// full pages behind, as those at its right edge do; else such a directory would take twice the memory.
#[test]
fn ordered_insertion_fills_pages_anywhere() {
    let mut tree = Tree::new();
    for directory in [1u8, 200] {
        (0..5000u32).for_each(|i| _ = tree.put(&[&[directory], i.to_be_bytes().as_slice()].concat(), b"12345678"));
    }
    let mut interleaved = 0;
    for i in 0..20_000u32 {
        for directory in [100u8, 101, 102] {
            tree.put(&[&[directory], i.to_be_bytes().as_slice()].concat(), b"12345678");
            interleaved += 1;
        }
    }
    tree.check_invariants();
    let fill = tree.pages().map(|page| page.image_len()).sum::<usize>() / tree.pages().count();
    assert!(fill > 3600, "pages hold {fill} bytes on average after {interleaved} ordered insertions");
}

/// A reader on another thread must see its version whole while the owner goes on.
#[test]
fn snapshots_are_read_by_other_threads() {
    let mut tree = Tree::new();
    (0..20_000u32).for_each(|i| _ = tree.put(&i.to_be_bytes(), &0u32.to_be_bytes()));
    std::thread::scope(|scope| {
        for version in 1..20u32 {
            let snapshot = tree.snapshot();
            scope.spawn(move || {
                let mut sum = 0u64;
                let mut all = snapshot.iter();
                while let Some((_, value)) = all.next() {
                    sum += u64::from(u32::from_be_bytes(value.try_into().unwrap()));
                }
                assert_eq!(sum, u64::from(version - 1) * 20_000);
            });
            (0..20_000u32).for_each(|i| _ = tree.put(&i.to_be_bytes(), &version.to_be_bytes()));
        }
    });
    tree.check_invariants();
}

/// Recursion that followed the number of pages instead of the height would overflow a small stack.
#[test]
fn a_large_tree_is_dropped_on_a_small_stack() {
    let mut tree = Tree::new();
    (0..300_000u32).for_each(|i| _ = tree.put(&i.reverse_bits().to_be_bytes(), b"value"));
    let snapshot = tree.snapshot();
    (0..300_000u32).step_by(100).for_each(|i| _ = tree.remove(&i.reverse_bits().to_be_bytes()));
    let work = move || {
        drop(snapshot);
        tree.remove_range(&1000u32.to_be_bytes(), &u32::MAX.to_be_bytes());
        drop(tree);
    };
    std::thread::Builder::new().stack_size(64 << 10).spawn(work).unwrap().join().unwrap();
}

/// The longest keys and values that callers may pass work together with small ones.
#[test]
fn largest_keys_and_values() {
    let mut tree = Tree::new();
    let value = vec![7; VALUE_BYTES_MAX];
    for i in 0..20u8 {
        tree.put(&[i; KEY_BYTES_MAX], if i % 4 == 0 { &value } else { b"small" });
        tree.put(&[i], b"neighbour");
    }
    tree.check_invariants();
    assert_eq!(tree.get(&[8; KEY_BYTES_MAX]), Some(value.as_slice()));
    for i in 0..20u8 {
        assert_eq!(
            tree.insert(&[i; KEY_BYTES_MAX], b"").map(|old| old.len()),
            Some(if i % 4 == 0 { value.len() } else { 5 })
        );
        assert!(tree.get_mut(&[i]).is_some_and(|value| value == b"neighbour"));
    }
    tree.check_invariants();
    assert!(tree.memory_bytes() < 20_000, "{} bytes after the large values went", tree.memory_bytes());
}

/// A caller that forgets the limit stops here and not in a damaged page.
#[test]
#[should_panic(expected = "a key of 513 bytes")]
fn longer_keys_are_refused() {
    Tree::new().put(&[0; KEY_BYTES_MAX + 1], b"");
}

/// As above, for values.
#[test]
#[should_panic(expected = "at most 1048576 are allowed")]
fn longer_values_are_refused() {
    Tree::new().put(b"key", &vec![0; VALUE_BYTES_MAX + 1]);
}

/// The cheap paths of an update: nothing for `Keep`, in place for the same length.
#[test]
fn update_decides_with_the_old_value_at_hand() {
    let mut tree = Tree::new();
    let mut buffer = Vec::new();
    for round in 1..=3u8 {
        tree.update(b"counter", &mut buffer, |old, new| {
            new.push(old.map_or(0, |old| old[0]) + 1);
            Update::Put
        });
        assert_eq!(tree.get(b"counter"), Some([round].as_slice()));
    }
    tree.update(b"absent", &mut buffer, |old, _| if old.is_none() { Update::Remove } else { Update::Put });
    tree.update(b"absent", &mut buffer, |_, _| Update::Keep);
    assert_eq!(tree.len(), 1);
    tree.update(b"counter", &mut buffer, |_, _| Update::Remove);
    assert!(tree.is_empty());
    tree.check_invariants();
}
