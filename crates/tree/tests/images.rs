//! Page images: their bytes are fixed, damage is detected, and bytes that a stranger made never panic or mislead.

use std::cell::Cell;

use cairn_tree::{IMAGE_HEADER_BYTES, LeafPage, Tree, TreeBuilder, TreeError};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

fn images(tree: &Tree) -> Vec<Vec<u8>> {
    let image = |page: cairn_tree::LeafImage<'_>| {
        let mut out = Vec::new();
        page.append_to(&mut out);
        out
    };
    tree.pages().map(image).collect()
}

fn sealed(mut image: Vec<u8>) -> Vec<u8> {
    if image.len() >= IMAGE_HEADER_BYTES {
        image[12..16].fill(0);
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &image) as u32;
        image[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    image
}

fn load(images: &[Vec<u8>]) -> Result<Tree, TreeError> {
    let mut builder = TreeBuilder::new();
    images.iter().try_for_each(|image| builder.push_leaf(image))?;
    builder.finish()
}

fn sample(entries: u32) -> Tree {
    let mut tree = Tree::new();
    for i in 0..entries {
        let mut key = u64::from(i / 7).to_be_bytes().to_vec();
        key.push(1);
        key.extend(format!("name-{:x}", i.wrapping_mul(0x9E37_79B9)).bytes().take((i % 16) as usize));
        key.push((i % 7) as u8);
        tree.put(&key, &i.to_le_bytes()[..(i % 5).min(4) as usize]);
    }
    tree
}

/// If this changes, checkpoints on disk can no longer be read: make a new version instead.
#[test]
fn golden_page() {
    let mut tree = Tree::new();
    tree.put(b"dir/bb", b"3");
    tree.put(b"dir/alpha", b"11");
    tree.put(b"dir/alps", b"");
    tree.put(b"dir/", b"0");
    let expected: &[u8] = &[
        b'C', b'T', 1, 1, 4, 0, 4, 0, 13, 0, 0, 0, // magic, version, kind, 4 entries, prefix 4, entries 13 bytes
        0, 0, 0, 0, // checksum, see below
        b'd', b'i', b'r', b'/', // prefix
        0, 0, 0, 0, 2, 0, b'l', b'a', 8, 0, b'l', b'a', 11, 0, b'b', b'b', // slots: distance, head
        2, b'3', // "bb"
        4, b'p', b's', // "alps"
        5, b'p', b'h', b'a', b'1', b'1', // "alpha"
        0, b'0', // ""
    ];
    let images = images(&tree);
    assert_eq!(images.len(), 1);
    assert_eq!(images[0][12..16], 0x8A6E_E8EF_u32.to_le_bytes());
    assert_eq!(images[0], sealed(expected.to_vec()));
    assert_eq!(LeafPage::image_len(&images[0][..IMAGE_HEADER_BYTES]), Some(expected.len()));
}

/// The same content after another history is the same image, so replicas can compare their checkpoints.
#[test]
fn image_depends_on_content_alone() {
    let (mut one, mut other) = (Tree::new(), Tree::new());
    for i in 0..40u32 {
        one.put(&i.to_be_bytes(), b"value");
    }
    for i in (0..40u32).rev() {
        other.put(&i.to_be_bytes(), b"a longer value");
        let _kept = other.snapshot();
        other.put(&i.to_be_bytes(), b"value");
    }
    assert_eq!(images(&one), images(&other));
}

/// A bit that rots in a checkpoint must not become a wrong file name.
#[test]
fn any_flipped_bit_is_detected() {
    let image = images(&sample(60)).remove(0);
    for bit in 0..image.len() * 8 {
        let mut bad = image.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(LeafPage::decode(&bad).is_err(), "bit {bit} flipped and not noticed");
    }
    for len in 0..image.len() {
        assert!(LeafPage::decode(&image[..len]).is_err(), "cut to {len} bytes and not noticed");
    }
}

/// Pages in the wrong order, or twice, would make entries unreachable.
#[test]
fn pages_out_of_order_are_refused() {
    let images = images(&sample(5000));
    assert!(images.len() > 10);
    assert!(load(&images).is_ok());
    let swapped = [&images[..3], &[images[4].clone(), images[3].clone()], &images[5..]].concat();
    assert_eq!(load(&swapped).unwrap_err(), TreeError::OutOfOrder { page: 4 });
    let doubled = [&images[..3], &images[2..]].concat();
    assert_eq!(load(&doubled).unwrap_err(), TreeError::OutOfOrder { page: 3 });
    let missing_is_not_noticed_here = [&images[..3], &images[4..]].concat();
    assert!(load(&missing_is_not_noticed_here).is_ok());
}

/// A checkpoint of no entries, of one page, and of enough pages for three levels of inner nodes loads as it was.
#[test]
fn loaded_tree_is_whole_and_can_be_changed() {
    for entries in [0, 1, 50, 3000, 400_000] {
        let tree = sample(entries);
        let mut loaded = load(&images(&tree)).unwrap();
        loaded.check_invariants();
        assert_eq!(loaded.len(), tree.len());
        let (mut a, mut b) = (tree.iter(), loaded.iter());
        while let Some(entry) = a.next() {
            assert_eq!(b.next(), Some(entry));
        }
        assert_eq!(b.next(), None);
        drop(b);
        loaded.put(b"new", b"value");
        loaded.remove_range(&0u64.to_be_bytes(), &100u64.to_be_bytes());
        loaded.check_invariants();
    }
}

/// Uses everything that reads and edits, on a tree of pages that passed the checks.
fn exercise(mut tree: Tree, probes: &[Vec<u8>]) {
    tree.check_invariants();
    let mut keys = Vec::new();
    let mut all = tree.iter();
    while let Some((key, _)) = all.next() {
        keys.push(key.to_vec());
    }
    drop(all);
    assert!(keys.is_sorted_by(|a, b| a < b));
    for key in &keys {
        assert!(tree.contains_key(key));
    }
    for probe in probes {
        tree.put(probe, probe);
        tree.check_invariants();
    }
    for key in keys.iter().step_by(3) {
        assert!(tree.remove(key));
    }
    tree.check_invariants();
}

/// Damage whose checksum fits (made on purpose, or before the checksum) is refused or is a sound page; never a panic.
#[test]
fn hostile_images_never_panic() {
    let (refused, accepted) = (Cell::new(0), Cell::new(0));
    let change = (any::<prop::sample::Index>(), any::<u8>(), any::<bool>());
    let strategy = (1u32..120, vec(change, 1..4), vec(vec(any::<u8>(), 0..20), 3));
    TestRunner::new(ProptestConfig::with_cases(2000))
        .run(&strategy, |(entries, changes, probes)| {
            let mut image = images(&sample(entries)).remove(0);
            for (at, byte, in_front) in &changes {
                let len = if *in_front { image.len().min(64) } else { image.len() };
                image[at.index(len)] = *byte;
            }
            count(load(&[sealed(image)]), &probes, &refused, &accepted);
            Ok(())
        })
        .unwrap();
    println!("{} damaged images refused, {} sound by chance", refused.get(), accepted.get());
    assert!(refused.get() > 100 && accepted.get() > 100, "the damage does not reach both outcomes");
}

/// The same for bytes that resemble a page only in their header.
#[test]
fn random_bytes_never_panic() {
    let (refused, accepted) = (Cell::new(0), Cell::new(0));
    TestRunner::new(ProptestConfig::with_cases(4000))
        .run(&(vec(any::<u8>(), 0..200), any::<bool>()), |(mut image, plausible)| {
            if plausible && image.len() >= IMAGE_HEADER_BYTES {
                let (entries, prefix) = (image[4] % 4, image[6] % 8);
                image[..4].copy_from_slice(b"CT\x01\x01");
                image[4..8].copy_from_slice(&[entries, 0, prefix, 0]);
                let front = IMAGE_HEADER_BYTES + usize::from(prefix) + 4 * usize::from(entries);
                let heap = image.len().saturating_sub(front) as u32;
                image[8..12].copy_from_slice(&heap.to_le_bytes());
                if let Some(distance) =
                    image.get_mut(IMAGE_HEADER_BYTES + usize::from(prefix)..).and_then(|s| s.get_mut(..2))
                {
                    distance.fill(0);
                }
            }
            let _ = LeafPage::image_len(&image);
            count(load(&[sealed(image)]), &[], &refused, &accepted);
            Ok(())
        })
        .unwrap();
    println!("{} images refused, {} sound by chance", refused.get(), accepted.get());
    assert!(refused.get() > 100 && accepted.get() > 0, "the bytes do not reach both outcomes");
}

fn count(loaded: Result<Tree, TreeError>, probes: &[Vec<u8>], refused: &Cell<u32>, accepted: &Cell<u32>) {
    match loaded {
        Err(_) => refused.set(refused.get() + 1),
        Ok(tree) => {
            accepted.set(accepted.get() + 1);
            exercise(tree, probes);
        }
    }
}
