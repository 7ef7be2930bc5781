//! The tree against `BTreeMap`: any sequence of operations gives the same entries, snapshots keep theirs, and the
//! running totals and the shape stay right after every step.

use std::collections::BTreeMap;
use std::ops::Bound;

use cairn_tree::{Tree, TreeBuilder, Update, prefix_end};
use proptest::collection::vec;
use proptest::prelude::*;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug, Clone)]
enum Op {
    Insert(Vec<u8>, Vec<u8>),
    Put(Vec<u8>, Vec<u8>),
    PutRun(Vec<u8>, u16, usize),
    Update(Vec<u8>, Option<Vec<u8>>),
    EditInPlace(Vec<u8>),
    Remove(Vec<u8>),
    RemoveRun(Vec<u8>, usize),
    RemoveRange(Vec<u8>, Vec<u8>),
    RemovePrefix(Vec<u8>),
    Snapshot,
    DropSnapshot,
    GoBack,
    Reload,
}

/// Keys that share prefixes, differ in zero bytes and in length, and hit each other often.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => (0u8..4, vec(prop_oneof![Just(0u8), Just(1), Just(b'a'), Just(0xFF)], 0..5)).prop_map(|(dir, rest)| {
            let mut key = vec![0, 0, 0, 0, 0, 0, 0, dir];
            key.extend(rest);
            key
        }),
        2 => (0u16..400).prop_map(|n| format!("name-{n:05}").into_bytes()),
        1 => vec(any::<u8>(), 0..4),
        1 => (any::<u8>(), 200usize..512).prop_map(|(byte, len)| vec![byte; len]),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => vec(any::<u8>(), 0..40),
        2 => (any::<u8>(), 300usize..3000).prop_map(|(byte, len)| vec![byte; len]),
        1 => (any::<u8>(), 4000usize..70_000).prop_map(|(byte, len)| vec![byte; len]),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (key(), value()).prop_map(|(k, v)| Op::Insert(k, v)),
        4 => (key(), value()).prop_map(|(k, v)| Op::Put(k, v)),
        2 => (key(), any::<u16>(), 1usize..300).prop_map(|(k, s, n)| Op::PutRun(k, s, n)),
        3 => (key(), proptest::option::of(value())).prop_map(|(k, v)| Op::Update(k, v)),
        2 => key().prop_map(Op::EditInPlace),
        4 => key().prop_map(Op::Remove),
        1 => (key(), 1usize..200).prop_map(|(k, n)| Op::RemoveRun(k, n)),
        1 => (key(), key()).prop_map(|(a, b)| Op::RemoveRange(a, b)),
        1 => vec(any::<u8>(), 1..2).prop_map(Op::RemovePrefix),
        2 => Just(Op::Snapshot),
        1 => Just(Op::DropSnapshot),
        1 => Just(Op::GoBack),
        1 => Just(Op::Reload),
    ]
}

fn assert_same(tree: &Tree, model: &Model) {
    tree.check_invariants();
    assert_eq!(tree.len(), model.len() as u64);
    let mut entries = tree.iter();
    for (key, value) in model {
        assert_eq!(entries.next(), Some((key.as_slice(), value.as_slice())));
    }
    assert_eq!(entries.next(), None);
}

fn assert_lookups(tree: &Tree, model: &Model, probe: &[u8], other: &[u8]) {
    assert_eq!(tree.get(probe), model.get(probe).map(Vec::as_slice));
    let own = |(k, v): (&Vec<u8>, &Vec<u8>)| (k.clone(), v.clone());
    let after = model.range(probe.to_vec()..).next().map(own);
    assert_eq!(tree.first_at_or_after(probe).map(|e| (e.key(), e.value().to_vec())), after);
    let before = model.range(..probe.to_vec()).next_back().map(own);
    assert_eq!(tree.last_before(probe).map(|e| (e.key(), e.value().to_vec())), before);
    assert_eq!(tree.first().map(|e| e.key()), model.keys().next().cloned());
    assert_eq!(tree.last().map(|e| e.key()), model.keys().next_back().cloned());

    let collect = |mut range: cairn_tree::Range<'_>| {
        let mut all = Vec::new();
        while let Some((k, v)) = range.next() {
            all.push((k.to_vec(), v.to_vec()));
        }
        all
    };
    let expected = |low: &[u8], high: Option<&[u8]>| -> Vec<(Vec<u8>, Vec<u8>)> {
        if high.is_some_and(|high| high <= low) {
            return Vec::new();
        }
        model
            .range::<[u8], _>((Bound::Included(low), high.map_or(Bound::Unbounded, Bound::Excluded)))
            .map(own)
            .collect()
    };
    assert_eq!(collect(tree.range(probe, other)), expected(probe, Some(other)));
    assert_eq!(collect(tree.range_from(probe)), expected(probe, None));
    let prefix = &probe[..probe.len().min(8)];
    assert_eq!(collect(tree.prefix(prefix)), expected(prefix, prefix_end(prefix).as_deref()));

    let mut cursor = tree.cursor();
    let mut here = cursor.seek(probe);
    let mut forward = model.range(probe.to_vec()..);
    for _ in 0..3 {
        assert_eq!(
            here.then(|| cursor.entry().map(|(k, v)| (k.to_vec(), v.to_vec()))).flatten(),
            forward.next().map(own)
        );
        here = here && cursor.advance();
    }
    let mut here = cursor.seek_before(probe);
    let mut backward = model.range(..probe.to_vec()).rev();
    for _ in 0..200 {
        let expected = backward.next();
        assert_eq!(here.then(|| (cursor.key().to_vec(), cursor.value().to_vec())), expected.map(own));
        if expected.is_none() {
            break;
        }
        here = cursor.prev();
    }
}

fn reload(tree: &Tree) -> Tree {
    let mut builder = TreeBuilder::new();
    let mut image = Vec::new();
    for page in tree.pages() {
        image.clear();
        page.append_to(&mut image);
        assert_eq!(image.len(), page.image_len());
        builder.push_leaf(&image).expect("the image was just made");
    }
    builder.finish().expect("the pages are in order")
}

struct World {
    tree: Tree,
    model: Model,
    snapshots: Vec<(Tree, Model)>,
    buffer: Vec<u8>,
}

impl World {
    fn apply(&mut self, op: &Op) {
        let World { tree, model, snapshots, buffer } = self;
        match op {
            Op::Insert(k, v) => assert_eq!(tree.insert(k, v), model.insert(k.clone(), v.clone())),
            Op::Put(k, v) => assert_eq!(tree.put(k, v), model.insert(k.clone(), v.clone()).is_none()),
            Op::PutRun(k, start, n) => {
                for i in 0..*n {
                    let mut key = k[..k.len().min(400)].to_vec();
                    key.extend(format!("{:06}", usize::from(*start) + i).bytes());
                    tree.put(&key, &i.to_le_bytes());
                    model.insert(key, i.to_le_bytes().to_vec());
                }
            }
            Op::Update(k, v) => {
                let expected = model.get(k).cloned();
                tree.update(k, buffer, |old, new| {
                    assert_eq!(old, expected.as_deref());
                    match v {
                        None if old.is_some_and(|old| old.len() % 2 == 0) => Update::Keep,
                        None => Update::Remove,
                        Some(v) => {
                            new.extend_from_slice(v);
                            Update::Put
                        }
                    }
                });
                match v {
                    Some(v) => drop(model.insert(k.clone(), v.clone())),
                    None if expected.is_some_and(|old| old.len() % 2 == 1) => drop(model.remove(k)),
                    None => {}
                }
            }
            Op::EditInPlace(k) => {
                let mine = tree.get_mut(k);
                let theirs = model.get_mut(k);
                assert_eq!(mine.as_deref(), theirs.as_ref().map(|v| v.as_slice()));
                if let (Some(mine), Some(theirs)) = (mine, theirs) {
                    mine.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                    theirs.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                }
            }
            Op::Remove(k) => assert_eq!(tree.take(k), model.remove(k)),
            Op::RemoveRun(k, n) => {
                let doomed: Vec<_> = model.range(k.clone()..).take(*n).map(|(k, _)| k.clone()).collect();
                for k in doomed {
                    assert!(tree.remove(&k));
                    assert!(!tree.remove(&k));
                    model.remove(&k);
                }
            }
            Op::RemoveRange(a, b) => {
                let before = model.len();
                model.retain(|k, _| k < a || k >= b);
                assert_eq!(tree.remove_range(a, b), (before - model.len()) as u64);
            }
            Op::RemovePrefix(p) => {
                let before = model.len();
                model.retain(|k, _| !k.starts_with(p));
                assert_eq!(tree.remove_prefix(p), (before - model.len()) as u64);
            }
            Op::Snapshot => snapshots.push((tree.snapshot(), model.clone())),
            Op::DropSnapshot => drop(snapshots.pop()),
            Op::GoBack => {
                if let Some((old_tree, old_model)) = snapshots.first() {
                    (*tree, *model) = (old_tree.snapshot(), old_model.clone());
                }
            }
            Op::Reload => *tree = reload(tree),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Any divergence from the ordered map of the standard library, or of a snapshot from its moment, is a lost file.
    #[test]
    fn behaves_like_an_ordered_map(ops in vec((op(), key(), key()), 1..60)) {
        let mut world = World { tree: Tree::new(), model: Model::new(), snapshots: Vec::new(), buffer: Vec::new() };
        for (op, probe, other) in &ops {
            world.apply(op);
            world.tree.check_invariants();
            assert_eq!(world.tree.len(), world.model.len() as u64);
            assert_lookups(&world.tree, &world.model, probe, other);
        }
        assert_same(&world.tree, &world.model);
        for (tree, model) in &world.snapshots {
            assert_same(tree, model);
        }
        assert_same(&reload(&world.tree), &world.model);
    }
}
