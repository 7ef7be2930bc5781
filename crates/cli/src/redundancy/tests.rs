//! Numbers that people act on: what is missing, and what may still be lost.
use super::*;
use cairn_client::map::{Disk, Node};
use cairn_types::{Epoch, PgId, Stripe};

const RS: Scheme = Scheme::Erasure { k: 6, m: 3 };

/// Nine nodes with a disk each, three in a rack; pg1 is rs-6-3 over all, pg2 r4 over four of them.
fn view() -> ClusterView {
    let mut view = ClusterView::default();
    for id in 1..=9u32 {
        let (rack, host) = (format!("r{}", (id - 1) % 3 + 1), format!("h{id}"));
        view.nodes.insert(id, Node { id, rack, host, ..Node::default() });
        view.disks.insert(id, Disk { id, node: id, ..Disk::default() });
    }
    let mut group = |id: u32, scheme: Scheme| {
        let members = (1..=scheme.members() as u32).map(|disk| (disk, MemberState::Serving)).collect();
        let (pg, epoch) = (PgId(id), Epoch(1));
        view.pgs.insert(
            id,
            PgView { id: pg, volume: 1, scheme, epoch, members, writable: true, free_bytes: 0, column: None },
        );
    };
    group(1, RS);
    group(2, Scheme::Replicated(4));
    view
}

fn chunk(pg: u32, index: u32) -> ChunkId {
    ChunkId { pg: PgId(pg), index }
}

fn extent((pg, index): (u32, u32), length: u64, kind: ExtentKind) -> Extent {
    Extent { file_offset: 0, length, chunk: chunk(pg, index), chunk_offset: 0, kind: Some(kind), shared: false }
}

fn file() -> (u64, Vec<Extent>) {
    let layout: Layout = "rs-6-3/64k".parse().expect("a layout");
    let stripe = Stripe::new(6, 64 << 10).expect("a stripe");
    let rows = extent((1, 7), 10 * stripe.row(), ExtentKind::Erasure(stripe));
    let tail = Extent { file_offset: rows.length, ..extent((2, 3), 1000, ExtentKind::Plain) };
    (layout.to_bits(), vec![rows, tail])
}

fn fail(view: &mut ClusterView, pg: u32, members: usize) {
    let group = view.pgs.get_mut(&pg).expect("known");
    group.members.iter_mut().take(members).for_each(|member| member.1 = MemberState::Offline);
}

/// A copy that a member lost would count as long as its member serves, and the last one be lost as one of several.
#[test]
fn copies_that_members_in_service_lack_are_missing() {
    let ((layout, extents), view) = (file(), view());
    let mut known = Known::default();
    known.listed.insert((2, 1), [(3, 1)].into());
    known.listed.insert((2, 2), [(3, 0)].into());
    known.listed.insert((1, 4), [(7, 0)].into());
    known.listed.insert((1, 5), [(8, 0)].into());
    let found = Redundancy::of(&view, layout, &extents, &[], &known);
    assert_eq!((found.present, found.missing, found.lacking, found.losses), (11, 2, 2, Some(2)));
    assert!(found.text().contains("2 missing (2 on members in service); survives 2 more losses"), "{}", found.text());
    for disk in 1..=4 {
        known.listed.insert((2, disk), [(3, 0)].into());
    }
    let lost = Redundancy::of(&view, layout, &extents, &[], &known);
    let why = "pg2/c3 (r4) is on 0 of 4 members in service, 1 is needed";
    assert_eq!((lost.losses, lost.unreadable.as_deref()), (None, Some(why)));
}

/// An operator would believe that more may be lost, or less, than is so.
#[test]
fn losses_are_the_least_of_all_extents() {
    let (layout, extents) = file();
    let mut view = view();
    let whole = Redundancy::of(&view, layout, &extents, &[], &Known::default());
    assert_eq!((whole.chunks, whole.present, whole.missing, whole.losses), (2, 13, 0, Some(3)));
    assert_eq!(whole.raw, 10 * 6 * 65_536 / 2 * 3 + 4000);
    assert_eq!(whole.text(), "13 of 13 shards and copies present in 2 chunks; survives 3 more losses");
    fail(&mut view, 2, 1);
    fail(&mut view, 1, 2);
    let damaged = Redundancy::of(&view, layout, &extents, &[], &Known::default());
    assert_eq!((damaged.missing, damaged.losses, damaged.weakest), (3, Some(1), Some(1)));
    assert!(damaged.text().ends_with("3 missing; survives 1 more loss"), "{}", damaged.text());
    fail(&mut view, 1, 4);
    let lost = Redundancy::of(&view, layout, &extents, &[], &Known::default());
    assert_eq!((lost.losses, lost.weakest), (None, Some(1)));
    assert!(lost.text().contains("cannot be read as a whole now: pg1 (rs-6-3) has 5 of 9 members in service, 6 are"));
    assert_eq!(Redundancy::of(&view, layout, &[], &[], &Known::default()).text(), "nothing is stored yet");
    let unknown = extent((99, 0), 10, ExtentKind::Plain);
    let unknown = Redundancy::of(&view, layout, &[unknown], &[], &Known::default());
    assert_eq!((unknown.raw, unknown.losses), (40, None), "copies of what the layout says");
}

/// The columns of a stripe set lie in several groups: one that is damaged damages the file.
#[test]
fn every_column_of_a_stripe_set_counts() {
    let mut view = view();
    let stripe = Stripe::new(2, 64 << 10).expect("a stripe");
    let extent = extent((2, 1), 300_000, ExtentKind::Set(stripe));
    let mut other = view.pgs[&2].clone();
    other.id = PgId(3);
    view.pgs.insert(3, other);
    fail(&mut view, 3, 3);
    let set = StripeSet { first: chunk(2, 1), columns: vec![chunk(2, 1), chunk(3, 5)] };
    let found = Redundancy::of(&view, 0x1000_8004, &[extent], &[set], &Known::default());
    assert_eq!((found.chunks, found.present, found.missing, found.losses), (2, 5, 3, Some(0)));
    assert_eq!(found.text(), "5 of 8 copies present in 2 chunks, 3 missing; survives no more loss");
}

/// A group that does not survive the loss of a rack must not look as if it did.
#[test]
fn domains_with_several_members_are_named() {
    let mut view = view();
    let group = view.pgs[&1].clone();
    let crowded = crowds(&view, &group);
    assert_eq!(crowded.len(), 3, "racks only: each host has one");
    assert_eq!(crowded[0].text(RS), "3 of 9 members in rack r1: losing the rack leaves 6 = k, just enough to read");
    fail(&mut view, 1, 1);
    let crowded = crowds(&view, &view.pgs[&1].clone());
    assert!(crowded[1].text(RS).ends_with("leaves 5, fewer than k = 6: nothing could be read without it"));
    for node in view.nodes.values_mut() {
        (node.rack, node.host) = (String::new(), format!("h{}", node.id % 5));
    }
    let crowded = crowds(&view, &group);
    assert!(crowded.iter().all(|crowd| crowd.kind == "host"), "one rack is no news");
    assert_eq!(crowded.len(), 4);
    assert!(crowded[0].text(RS).contains("losing the host leaves 7, reads need k = 6"), "{}", crowded[0].text(RS));
}

/// A file with blocks that nobody can read would be shown as whole, or one of which every row can be read as lost.
#[test]
fn bad_blocks_count_as_missing() {
    let ((layout, extents), view) = (file(), view());
    let of = |bad: &[(u32, u32)]| {
        let mut known = Known::default();
        for (disk, block) in bad {
            known.bad.entry((1, 7)).or_default().entry(*disk).or_default().push(*block);
        }
        // Of other chunks, and of the copies behind the file's bytes.
        known.bad.entry((1, 8)).or_default().insert(1, vec![0]);
        known.bad.entry((2, 3)).or_default().insert(1, vec![1]);
        Redundancy::of(&view, layout, &extents, &[], &known)
    };
    let one = of(&[(1, 3), (1, 4), (2, 9), (3, 160)]);
    assert_eq!((one.present, one.missing, one.losses, one.bad_blocks), (11, 2, Some(2), 3), "in different rows");
    let text = "11 of 13 shards and copies present in 2 chunks, 2 missing (3 bad blocks that wait to be healed); survives \
                2 more losses";
    assert_eq!(one.text(), text);
    let three = of(&[(1, 3), (5, 3), (9, 3)]);
    assert_eq!((three.losses, three.unreadable.is_none()), (Some(0), true));
    let four = of(&[(1, 3), (5, 3), (9, 3), (2, 3)]);
    assert_eq!((four.losses, four.weakest), (None, Some(1)));
    let why = "block 3 of pg1/c7 (rs-6-3) is bad on 4 of 9 members in service, 6 intact are needed";
    assert!(four.text().ends_with(why), "{}", four.text());
}

/// Right after a loss the cluster does not know of it: a file would be said to survive what it does not.
#[test]
fn members_that_do_not_answer_count_as_missing() {
    let ((layout, extents), view) = (file(), view());
    let known = Known { silent: [(1, 1), (9, 9)].into(), unsure: [3].into(), ..Known::default() };
    let found = Redundancy::of(&view, layout, &extents, &[], &known);
    assert_eq!((found.missing, found.losses), (5, Some(0)), "three of nine, and two of four copies");
    assert!(found.text().contains("5 missing (n1, n9 do not answer now); survives no more loss"), "{}", found.text());
    let known = Known { silent: (1..=4).map(|disk| (disk, disk)).collect(), ..Known::default() };
    assert!(Redundancy::of(&view, layout, &extents, &[], &known).unreadable.is_some());
}
