//! Quotas: what is counted, what is refused, and that the sums stay exact whatever happens.
use crate::driver::{Driver, ROOT, extent, user};
use cairn_types::ErrorCode as E;
use cairn_wire::meta::*;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

fn put(d: &mut Driver, parent: u64, name: &str, blocks: u64, chunk: u32) -> Result<Attributes, E> {
    let extents = if blocks == 0 { Vec::new() } else { vec![extent(0, blocks * 4096, chunk, 0)] };
    d.create_with(CreateRequest { parent, name: name.into(), mode: 0o644, extents, ..Default::default() })
}

fn used(d: &Driver, inode: u64) -> (u64, u64) {
    let quota = d.quota(inode).expect("a quota");
    (quota.bytes_used / 4096, quota.inodes_used)
}

/// Counts over what is listed, a few entries at a time.
fn settle(d: &mut Driver) {
    while !d.namespace.reclaimable().is_empty() {
        d.reclaim(2, 2);
        d.check();
    }
}

/// A directory would take more than it may, or could not be emptied when it is full.
#[test]
fn limits_hold_and_never_keep_anybody_from_deleting() {
    let mut d = Driver::new();
    let outer = d.mkdir(ROOT, "outer", 0o755).unwrap().inode;
    let inner = d.mkdir(outer, "inner", 0o755).unwrap().inode;
    d.set_quota(outer, 10 * 4096, 5).unwrap();
    d.set_quota(inner, 0, 2).unwrap_err();
    settle(&mut d);
    d.set_quota(inner, 0, 2).unwrap();
    let file = put(&mut d, inner, "a", 4, 1).unwrap().inode;
    assert_eq!((used(&d, outer), used(&d, inner)), ((4, 2), (4, 1)));
    assert_eq!(put(&mut d, inner, "b", 7, 2).map(|_| ()), Err(E::QuotaExceeded), "the outer one's bytes");
    d.mkdir(inner, "c", 0o755).unwrap();
    assert_eq!(d.symlink(inner, "l", "x").map(|_| ()), Err(E::QuotaExceeded), "the inner one's inodes");
    assert_eq!(d.create_unnamed(inner, 0o600).map(|_| ()), Err(E::QuotaExceeded));
    d.publish(file, &[extent(0, 10 * 4096, 3, 0)]).unwrap();
    assert_eq!(used(&d, outer), (10, 3), "what is replaced does not count twice");
    let one_more = extent(10 * 4096, 1, 4, 0);
    assert_eq!(d.publish(file, &[one_more]).map(|_| ()), Err(E::QuotaExceeded));
    d.publish(file, &[extent(4096, 4096, 5, 0)]).expect("an overwrite takes no more");
    d.truncate(file, 4096).unwrap();
    d.truncate(file, 1 << 40).expect("a hole is not counted");
    assert_eq!(used(&d, inner), (1, 2));
    let foreign = put(&mut d, ROOT, "f", 10, 6).unwrap().inode;
    assert_eq!(d.rename(ROOT, "f", outer, "f", 0), Err(E::QuotaExceeded));
    d.truncate(foreign, 9 * 4096).unwrap();
    d.rename(ROOT, "f", outer, "f", 0).unwrap();
    assert_eq!(used(&d, outer), (10, 4));
    d.unlink(outer, "f").unwrap();
    d.unlink(inner, "a").unwrap();
    d.check();
    assert_eq!((used(&d, outer), used(&d, inner)), ((0, 2), (0, 1)));
    d.who = user(1000, 1000, &[]);
    assert_eq!(d.set_quota(inner, 1, 0), Err(E::NotPermitted));
    assert_eq!(d.quotas().iter().map(|quota| quota.inode).collect::<Vec<_>>(), [outer, inner]);
}

/// The volume's limits would not hold, or statfs would not tell them.
#[test]
fn the_volume_has_limits_of_its_own() {
    let mut d = Driver::new();
    d.set_quota(0, 8 * 4096, 3).unwrap();
    assert_eq!(d.statfs().quota_bytes, 8 * 4096);
    put(&mut d, ROOT, "a", 8, 1).unwrap();
    assert_eq!(put(&mut d, ROOT, "b", 1, 2).map(|_| ()), Err(E::QuotaExceeded));
    put(&mut d, ROOT, "b", 0, 2).unwrap();
    put(&mut d, ROOT, "c", 0, 2).unwrap();
    assert_eq!(d.mkdir(ROOT, "d", 0o755).map(|_| ()), Err(E::QuotaExceeded));
    d.namespace = d.restored();
    assert_eq!(used(&d, 0), (8, 3));
    d.unlink(ROOT, "a").unwrap();
    put(&mut d, ROOT, "e", 8, 3).unwrap();
    d.set_quota(0, 0, 0).unwrap();
    assert_eq!(d.quota(0).map(|_| ()), Err(E::NoAttribute));
    d.mkdir(ROOT, "d", 0o755).unwrap();
}

/// A tree that moves, or gets a quota late, would be counted wrong for ever.
#[test]
fn trees_are_counted_over_behind() {
    let mut d = Driver::new();
    let (a, b) = (d.mkdir(ROOT, "a", 0o755).unwrap().inode, d.mkdir(ROOT, "b", 0o755).unwrap().inode);
    let tree = d.mkdir(a, "tree", 0o755).unwrap().inode;
    for number in 0..7u32 {
        let below = d.mkdir(tree, &format!("d{number}"), 0o755).unwrap().inode;
        put(&mut d, below, "f", 1, number).unwrap();
    }
    d.set_quota(a, 1 << 30, 0).unwrap();
    assert!(d.quota(a).unwrap().counting);
    assert_eq!(d.set_quota(b, 1 << 30, 0), Err(E::Overloaded), "one at a time");
    settle(&mut d);
    assert_eq!(used(&d, a), (7, 15));
    d.set_quota(b, 1 << 30, 0).unwrap();
    d.rename(a, "tree", b, "tree", 0).unwrap();
    assert_eq!((used(&d, a), used(&d, b)), ((7, 14), (0, 1)));
    d.namespace = d.restored();
    settle(&mut d);
    assert_eq!((used(&d, a), used(&d, b)), ((0, 0), (7, 15)));
    d.set_quota(b, 0, 0).unwrap();
    settle(&mut d);
    assert_eq!(d.quotas().len(), 1);
    d.set_quota(tree, 0, 100).unwrap();
    settle(&mut d);
    d.rename(b, "tree", a, "tree", 0).unwrap();
    assert_eq!((used(&d, a), used(&d, tree)), ((7, 15), (7, 14)), "one with a quota of its own moves at once");
    d.remove_tree(a, "tree").unwrap();
    settle(&mut d);
    assert_eq!((used(&d, a), d.quotas().len()), ((0, 0), 1));
}

/// A choice of numbers.
type Step = (u8, [u16; 5]);

/// Every step is followed by a recount of everything ([`Driver::check`]). Gives how much was refused by a quota.
fn run_steps(steps: Vec<Step>) -> u64 {
    let mut refused = 0;
    let mut d = Driver::new();
    let mut directories = vec![ROOT];
    let mut chunk = 1;
    for (what, n) in steps {
        let dir = |at: u16| directories[at as usize % directories.len()];
        let name = |at: u16| ["a", "b", "c", "d"][at as usize % 4];
        chunk += 1;
        let before = d.quotas();
        let result = match what {
            0..=3 => d.mkdir(dir(n[0]), name(n[1]), 0o755).map(|made| directories.push(made.inode)),
            4..=6 => put(&mut d, dir(n[0]), name(n[1]), u64::from(n[2] % 5), chunk).map(|_| ()),
            7 | 8 => d.rename(dir(n[0]), name(n[1]), dir(n[2]), name(n[3]), 0),
            9 => d.rename(dir(n[0]), name(n[1]), dir(n[2]), name(n[3]), 2),
            10 => d.unlink(dir(n[0]), name(n[1])),
            11 => d.rmdir(dir(n[0]), name(n[1])),
            12 => d.remove_tree(dir(n[0]), name(n[1])),
            13..=15 => d.set_quota(dir(n[0]), u64::from(n[1] % 9) * 4096, u64::from(n[2] % 12)),
            16 => match d.lookup(dir(n[0]), name(n[1])) {
                Ok(found) => d.publish(found.inode, &[extent(u64::from(n[2] % 4) * 4096, 8192, chunk, 0)]).map(|_| ()),
                Err(error) => Err(error),
            },
            17 => match d.lookup(dir(n[0]), name(n[1])) {
                Ok(found) => d.link(found.inode, dir(n[2]), name(n[3]), n[4] % 2 == 0).map(|_| ()),
                Err(error) => Err(error),
            },
            18 => {
                d.namespace = d.restored();
                Ok(())
            }
            _ => d.set_quota(0, u64::from(n[1] % 3) * 20 * 4096, u64::from(n[2] % 3) * 20),
        };
        d.check();
        if result.is_ok() && what < 13 {
            // What a directory takes on beyond its limit was never in one operation that was let through.
            for quota in d.quotas() {
                let Some(before) = before.iter().find(|old| old.inode == quota.inode) else { continue };
                if before.counting || quota.counting {
                    // What is found in the tree is added to the sums meanwhile.
                    continue;
                }
                let (bytes, inodes) = (quota.bytes_used > before.bytes_used, quota.inodes_used > before.inodes_used);
                assert!(!bytes || quota.bytes_max == 0 || quota.bytes_used <= quota.bytes_max, "{quota:?}");
                assert!(!inodes || quota.inodes_max == 0 || quota.inodes_used <= quota.inodes_max, "{quota:?}");
            }
        }
        refused += u64::from(result == Err(E::QuotaExceeded));
        if n[4] % 3 > 0 {
            settle(&mut d);
        }
    }
    settle(&mut d);
    d.check();
    refused
}

/// The sums would drift, or limits would not hold. Also: random steps that never meet a limit.
#[test]
fn sums_stay_exact() {
    let refused = std::cell::Cell::new(0);
    let config = ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() };
    let steps = prop::collection::vec((0u8..20, any::<[u16; 5]>()), 1..90);
    // The same steps each time: how many meet a limit must not be a matter of luck.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let result = TestRunner::new_with_rng(config, rng).run(&steps, |steps| {
        refused.set(refused.get() + run_steps(steps));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(refused.get() > 100, "only {} operations met a limit", refused.get());
}
