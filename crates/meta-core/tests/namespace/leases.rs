//! Overwrite leases: one holder, nothing taken out of the file under it, and a version behind every change.
use crate::driver::*;
use cairn_types::ErrorCode as E;
use cairn_wire::common::Extent;
use cairn_wire::meta::{PublishRequest, PunchRequest, SetattrRequest};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: u64 = 4096;

/// A file of eight blocks in one chunk, held for writing by sessions 1 and 2; session 1 asks.
fn file() -> (Driver, u64) {
    let mut d = Driver::new();
    let f = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.publish(f, &[extent(0, 8 * BLOCK, 1, 0)]).unwrap();
    for session in [2, 1] {
        d.session = session;
        d.hold(f, true).unwrap();
    }
    (d, f)
}

/// Two clients would change the same blocks at the same time, or one that may not.
#[test]
fn one_session_that_holds_the_file_has_the_lease() {
    let (mut d, f) = file();
    let (first, seen) = d.take_lease(f).unwrap();
    assert!(first > 0);
    assert_eq!(seen.overwriter, 1);
    assert_eq!(d.getattr(f).unwrap().overwriter, 1, "others are told not to trust what they keep");
    assert_eq!(d.take_lease(f).unwrap().0, 0, "nor twice to one session");
    d.session = 2;
    assert_eq!(d.take_lease(f).unwrap().0, 0);
    assert_eq!(d.namespace.take_wanted_leases(), [(1, f)]);
    d.give_lease(f, first, true, 0).unwrap();
    assert_eq!(d.getattr(f).unwrap().overwriter, 1, "nobody gives back another's");
    d.session = 3;
    assert_eq!(d.take_lease(f), Err(E::InvalidArgument), "it does not hold the file");
    d.session = 1;
    d.give_lease(f, first + 1, true, 0).unwrap();
    assert_eq!(d.namespace.overwrite_lease_of(1, f), Some(first));
    d.check();
    let restored = d.restored();
    assert_eq!(restored.overwrite_lease_of(1, f), Some(first));
    let after = d.give_lease(f, first, true, 77).unwrap();
    assert_eq!((after.overwriter, after.mtime_ns, after.data_version), (0, 77, seen.data_version + 1));
    d.session = 2;
    let (second, _) = d.take_lease(f).unwrap();
    assert!(second > first, "requests under the older one are told apart");
    assert_eq!(d.give_lease(f, second, false, 0).unwrap().data_version, after.data_version, "nothing was changed");
    d.check();
}

/// What is overwritten in place would be lost in a block that the file does not name any more.
#[test]
fn nothing_is_taken_out_of_the_file_under_a_lease() {
    let (mut d, f) = file();
    let (number, _) = d.take_lease(f).unwrap();
    let replaced =
        |lease| PublishRequest { inode: f, extents: vec![extent(BLOCK, 10, 2, 0)], lease, ..Default::default() };
    let cut = |lease| SetattrRequest { inode: f, valid: 8, size: BLOCK, lease, ..Default::default() };
    let hole = |lease| PunchRequest { inode: f, offset: 3 * BLOCK, length: 1, lease, ..Default::default() };
    for (session, lease) in [(1, 0), (2, 0), (2, number), (1, number + 1)] {
        d.session = session;
        assert_eq!(d.publish_with(replaced(lease)), Err(E::LeaseHeld), "{session} {lease}");
        assert_eq!(d.setattr(cut(lease)), Err(E::LeaseHeld));
        assert_eq!(d.punch(hole(lease)), Err(E::LeaseHeld));
        assert_eq!(d.namespace.take_wanted_leases(), [(1, f)]);
    }
    d.session = 2;
    let version = d.getattr(f).unwrap().data_version;
    let shorter = PublishRequest { inode: f, size: 5, set_size: true, ..Default::default() };
    assert_eq!(d.publish_with(shorter), Err(E::LeaseHeld));
    d.publish(f, &[extent(8 * BLOCK, 10, 3, 0)]).expect("an append takes nothing out");
    d.truncate(f, 20 * BLOCK).expect("nor does a hole at the end");
    d.chmod(f, 0o600).expect("nor a change of the mode");
    d.punch(PunchRequest { inode: f, offset: 15 * BLOCK, length: BLOCK, ..Default::default() })
        .expect("a hole in a hole");
    assert!(d.getattr(f).unwrap().data_version > version);
    d.session = 1;
    let layout = cairn_types::Layout::replicated(2).to_bits();
    let if_data_version = d.getattr(f).unwrap().data_version;
    let conversion = PublishRequest { inode: f, layout, if_data_version, lease: number, ..Default::default() };
    assert_eq!(d.publish_with(conversion.clone()), Err(E::LeaseHeld), "nor does the holder's own conversion swap");
    d.publish_with(replaced(number)).expect("the holder");
    d.punch(hole(number)).expect("the holder");
    d.setattr(cut(number)).expect("the holder");
    d.give_lease(f, number, true, 0).unwrap();
    assert_eq!(d.publish_with(conversion), Err(E::Conflict), "what it read may be older than what was changed");
    d.check();
}

/// The lease of a client that is gone would stop everybody else for ever, or its changes would go unnoticed.
#[test]
fn the_lease_goes_with_the_hold_and_with_the_session() {
    let (mut d, f) = file();
    let before = d.getattr(f).unwrap();
    d.take_lease(f).unwrap();
    d.release(f).unwrap();
    let released = d.getattr(f).unwrap();
    assert_eq!((released.overwriter, released.mtime_ns), (0, before.mtime_ns), "it would have said when");
    assert!(released.data_version > before.data_version);
    d.session = 2;
    d.take_lease(f).unwrap();
    d.expire(&[2]);
    let ended = d.getattr(f).unwrap();
    assert!(ended.overwriter == 0 && ended.data_version > released.data_version && ended.mtime_ns > before.mtime_ns);
    d.session = 1;
    d.hold(f, true).unwrap();
    let (number, _) = d.take_lease(f).unwrap();
    d.unlink(ROOT, "f").unwrap();
    d.check();
    d.give_lease(f, number, true, 0).expect("held without a name");
    d.take_lease(f).unwrap();
    d.end_session().unwrap();
    assert_eq!(d.getattr(f), Err(E::Stale), "the last hold took it along");
    d.check();
}

/// A repeat after a lost answer would be refused by the lease that it asks for.
#[test]
fn a_refused_request_is_looked_at_anew() {
    let (mut d, f) = file();
    let (number, _) = d.take_lease(f).unwrap();
    d.session = 2;
    let replaced = PublishRequest { inode: f, extents: vec![extent(0, 10, 2, 0)], ..Default::default() };
    assert_eq!(d.publish_with(replaced.clone()), Err(E::LeaseHeld));
    d.session = 1;
    d.give_lease(f, number, false, 0).unwrap();
    d.session = 2;
    d.publish_with(replaced).expect("under the same number");
    d.check();
}

#[derive(Clone, Debug)]
enum Step {
    Hold(u64),
    Release(u64),
    Take(u64),
    Give(u64, bool),
    Publish { session: u64, block: u64, named: bool, compare: bool },
    Cut { session: u64, blocks: u64, named: bool },
    Punch { session: u64, block: u64, named: bool },
    End(u64),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let session = 1u64..4;
    let step = prop_oneof![
        2 => session.clone().prop_map(Step::Hold),
        1 => session.clone().prop_map(Step::Release),
        4 => session.clone().prop_map(Step::Take),
        2 => (session.clone(), any::<bool>()).prop_map(|(s, c)| Step::Give(s, c)),
        4 => (session.clone(), 0u64..12, any::<bool>(), any::<bool>())
            .prop_map(|(session, block, named, compare)| Step::Publish { session, block, named, compare }),
        2 => (session.clone(), 0u64..12, any::<bool>())
            .prop_map(|(session, blocks, named)| Step::Cut { session, blocks, named }),
        2 => (session.clone(), 0u64..12, any::<bool>())
            .prop_map(|(session, block, named)| Step::Punch { session, block, named }),
        1 => session.prop_map(Step::End),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..60)
}

/// Blocks of a file and the chunks that they are in.
type Places = BTreeSet<(u64, u32)>;

/// What is known of the lease beside the namespace.
#[derive(Default)]
struct Model {
    /// Session, number, version at the grant, and the places of all blocks then.
    held: Option<(u64, u64, u64, Places)>,
    last_number: u64,
    /// Version that a conversion read, and whether blocks may have been changed in place since.
    read: Option<(u64, bool)>,
}

/// The blocks of the file and the chunks that they are in.
fn places(extents: &[Extent]) -> Places {
    extents
        .iter()
        .flat_map(|e| (e.file_offset / BLOCK..(e.file_offset + e.length).div_ceil(BLOCK)).map(|block| (block, e.index)))
        .collect()
}

proptest! {
    /// Acknowledged bytes would be in blocks that no file names, be covered by a conversion that read older ones, or be
    /// covered by another client's.
    #[test]
    fn holders_find_the_file_as_they_took_it(steps in steps()) {
        let (mut d, f) = file();
        // What sessions are called in the log: an ended one goes on under another number.
        let mut sessions: BTreeMap<u64, u64> = (1..4).map(|s| (s, s)).collect();
        let mut model = Model::default();
        let mut index = 10;
        model.read = Some((d.getattr(f).unwrap().data_version, false));
        for step in steps {
            let session = |s: &u64| sessions[s];
            let named = |d: &Driver, named: bool| {
                if named { d.namespace.overwrite_lease_of(d.session, f).unwrap_or(0) } else { 0 }
            };
            match &step {
                Step::Hold(s) => {
                    d.session = session(s);
                    d.hold(f, true).unwrap();
                }
                Step::Release(s) => {
                    d.session = session(s);
                    d.release(f).unwrap();
                }
                Step::Take(s) => {
                    d.session = session(s);
                    if let Ok((number @ 1.., seen)) = d.take_lease(f) {
                        prop_assert!(model.held.is_none(), "two holders");
                        prop_assert!(number > model.last_number);
                        model.last_number = number;
                        let places = places(&d.extents(f).unwrap());
                        model.held = Some((d.session, number, seen.data_version, places));
                    }
                }
                Step::Give(s, changed) => {
                    d.session = session(s);
                    let number = named(&d, true);
                    // Who changes nothing need not say so.
                    let changed = *changed || model.read.is_some_and(|read| read.1);
                    d.give_lease(f, number, changed, 0).unwrap();
                }
                Step::Publish { session: s, block, named: with, compare } => {
                    d.session = session(s);
                    index += 1;
                    let extents = vec![extent(block * BLOCK, BLOCK, index, 0)];
                    let compared = model.read.filter(|_| *compare);
                    let request = PublishRequest {
                        inode: f, extents, lease: named(&d, *with),
                        if_data_version: compared.map_or(0, |read| read.0), ..Default::default()
                    };
                    let covers = places(&d.extents(f).unwrap()).iter().any(|(at, _)| at == block);
                    let done = d.publish_with(request).is_ok();
                    if let (true, Some((_, changed))) = (done && covers, compared) {
                        let own = model.held.as_ref().is_some_and(|held| held.0 == d.session && *with);
                        prop_assert!(!changed || own, "a swap covers what was changed in place after it was read");
                    }
                    if done && model.held.as_ref().is_some_and(|held| held.0 == d.session) && *with {
                        let now = places(&d.extents(f).unwrap());
                        model.held.as_mut().unwrap().3 = now;
                    }
                    model.read = Some((d.getattr(f).unwrap().data_version, false));
                }
                Step::Cut { session: s, blocks, named: with } => {
                    d.session = session(s);
                    let lease = named(&d, *with);
                    let request = SetattrRequest { inode: f, valid: 8, size: blocks * BLOCK, lease, ..Default::default() };
                    if d.setattr(request).is_ok() && lease != 0 {
                        model.held.as_mut().unwrap().3 = places(&d.extents(f).unwrap());
                    }
                }
                Step::Punch { session: s, block, named: with } => {
                    d.session = session(s);
                    let lease = named(&d, *with);
                    let (offset, length) = (block * BLOCK, BLOCK);
                    if d.punch(PunchRequest { inode: f, offset, length, lease, ..Default::default() }).is_ok() && lease != 0 {
                        model.held.as_mut().unwrap().3 = places(&d.extents(f).unwrap());
                    }
                }
                Step::End(s) => {
                    d.session = session(s);
                    d.end_session().unwrap();
                    let next = sessions.values().max().unwrap() + 1;
                    sessions.insert(*s, next);
                }
                Step::Restart => d.namespace = d.restored(),
            }
            d.check();
            let now = d.getattr(f).unwrap();
            if let Some((holder, number, version, before)) = &model.held {
                if d.namespace.overwrite_lease_of(*holder, f) == Some(*number) {
                    let places = places(&d.extents(f).unwrap());
                    prop_assert!(before.is_subset(&places), "{step:?} took blocks out under the lease");
                    // The holder changes a block in place: from here on a swap of what was read before is wrong.
                    if let Some(read) = &mut model.read {
                        read.1 = true;
                    }
                } else {
                    prop_assert!(now.data_version > *version || model.read.is_none_or(|read| !read.1));
                    model.held = None;
                }
            }
            prop_assert_eq!(now.overwriter != 0, model.held.is_some());
        }
    }
}
