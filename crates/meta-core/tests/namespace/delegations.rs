//! Delegated directories: who gets one, what others see of it, batches, and every way in which it ends.
use crate::driver::*;
use crate::holder::{ASK, Holder, lead};
use cairn_meta_core::Namespace;
use cairn_types::{ErrorCode as E, PartitionId, VolumeId, WallTime};
use cairn_wire::Opcode;
use cairn_wire::meta::*;
use prost::Message;

/// An entry of the leader's own, which uses no number of a session's.
fn own(d: &mut Driver, opcode: Opcode, request: Vec<u8>) -> Answer<Vec<u8>> {
    let session = std::mem::replace(&mut d.session, u64::MAX);
    let answer = d.log(opcode, request);
    d.session = session;
    answer
}

/// Somebody would lead what others see, count or cut meanwhile, or what it cannot execute as its partition does.
#[test]
fn who_gets_one() {
    let given = |d: &mut Driver, parent, name: &str, ask| {
        let answer = d.mkdir_asking(parent, name, ask).unwrap();
        d.check();
        answer.delegation.is_some()
    };
    let mut d = Driver::new();
    d.set_feature_level(28);
    assert!(!given(&mut d, ROOT, "a", ASK), "not all members know of it");
    d.set_feature_level(29);
    for (name, ask) in [
        ("b", DelegationAsk { ids: 1, ..ASK }),
        ("c", DelegationAsk { ids: 65_537, ..ASK }),
        ("d", DelegationAsk { level: 28, ..ASK }),
    ] {
        assert!(!given(&mut d, ROOT, name, ask));
    }
    assert_eq!(d.mkdir(ROOT, "e", 0o755).map(|made| d.lookup(ROOT, "e") == Ok(made)), Ok(true), "nobody asked");
    assert!(!given(&mut d, ROOT, ".trash", ASK));
    let trash = d.lookup(ROOT, ".trash").unwrap().inode;
    assert!(!given(&mut d, trash, "u", ASK), "buckets are made by others");
    let counted = d.lookup(ROOT, "b").unwrap().inode;
    d.set_quota(counted, 1 << 40, 0).unwrap();
    assert!(!given(&mut d, counted, "x", ASK), "a quota counts it");
    let listed = d.lookup(ROOT, "c").unwrap().inode;
    let acl = cairn_model::acl_bytes(&[(1, 7, u32::MAX), (4, 5, u32::MAX), (32, 5, u32::MAX)]);
    d.set_xattr(listed, "system.posix_acl_default", &acl, 0).unwrap();
    assert!(!given(&mut d, listed, "x", ASK), "it inherits a list");
    d.set_quota(0, 1 << 40, 0).unwrap();
    assert!(!given(&mut d, ROOT, "f", ASK), "the volume has a limit");
    d.set_quota(0, 0, 0).unwrap();
    d.create_snapshot("s").unwrap();
    assert!(given(&mut d, ROOT, "g", ASK), "what it makes is newer than any snapshot");
    d.session = 2;
    for i in 0..256 {
        assert!(given(&mut d, ROOT, &format!("n{i}"), ASK));
    }
    assert!(!given(&mut d, ROOT, "m", ASK), "a session has 256");
    d.session = 3;
    assert!(given(&mut d, ROOT, "o", ASK));
}

/// Others would see half of what is made there, or nothing of the name that is taken.
#[test]
fn others_see_the_name_alone() {
    let mut d = Driver::with_delegations();
    let mut holder = lead(&mut d);
    let top = holder.number;
    let below = holder.mkdir(d.now, top, "sub").unwrap().inode;
    let file = holder.create(d.now, below, "f").unwrap().inode;
    d.session = 2;
    assert!(d.namespace.take_wanted_delegations().is_empty());
    for (stored, seen) in [(false, Err(E::LeaseHeld)), (true, Err(E::LeaseHeld))] {
        if stored {
            d.session = 1;
            let answer = d.batch(holder.all()).unwrap();
            holder.answered(&answer);
            d.session = 2;
        }
        let placeholder = Attributes { inode: top, mode: 0o040_000, generation: 1, ..Attributes::default() };
        assert_eq!(d.lookup(ROOT, "led"), Ok(placeholder));
        let listed = d.readdir(ROOT).unwrap();
        assert_eq!((listed[0].inode, listed[0].kind, &listed[0].attributes), (top, 4, &None));
        assert!(d.namespace.take_wanted_delegations().is_empty(), "a name recalls nothing");
        for inode in [top, below, file] {
            assert_eq!(d.getattr(inode).map(|_| ()), seen);
            assert_eq!(d.namespace.take_wanted_delegations(), [(1, top)]);
        }
        assert_eq!(d.lookup(top, "sub").map(|_| ()), seen);
        assert_eq!(d.readdir(below).map(|_| ()), seen);
        assert_eq!(d.open(file, 4, 1).map(|_| ()), seen);
        assert_eq!(d.resolve(ROOT, "led/sub").map(|_| ()), seen);
        assert_eq!(d.getattr_many(&[ROOT, file]).map(|_| ()), seen);
        assert_eq!(d.create(top, "mine", 0o644).map(|_| ()), seen);
        assert_eq!(d.mkdir(ROOT, "led", 0o755), Err(E::Exists), "the name is a lock");
        assert_eq!(d.link(file, ROOT, "l", false).map(|_| ()), seen);
        assert_eq!(d.rename(ROOT, "led", ROOT, "other", 0), seen);
        assert_eq!((d.rmdir(ROOT, "led"), d.remove_tree(ROOT, "led"), d.release(file)), (seen, seen, seen));
        let header = d.header(0);
        let many = GetattrManyRequest { header, inodes: vec![ROOT, file], apart: true };
        let mut answer = Vec::new();
        d.namespace.read(Opcode::GetattrMany, &many.encode_to_vec(), &mut answer).unwrap();
        let many = GetattrManyResponse::decode(answer.as_slice()).unwrap();
        assert_eq!((many.attributes.len(), many.locked), (1, vec![file]));
        d.namespace.take_wanted_delegations();
        d.check();
    }
    holder.end(&mut d);
    d.session = 2;
    assert_eq!(d.resolve(ROOT, "led/sub/f").unwrap().attributes.unwrap().inode, file);
    assert_eq!(d.create(top, "mine", 0o644).unwrap().inode, top + 8, "numbers that were left stay unused");
    d.check();
}

/// An item would be executed twice, left out, or under another answer than was given.
#[test]
fn items_are_executed_once_and_in_order() {
    let mut d = Driver::with_delegations();
    let mut holder = lead(&mut d);
    let top = holder.number;
    for name in ["a", "b", "c", "d"] {
        holder.create(d.now, top, name).unwrap();
    }
    let next = |answer: Answer<BatchResponse>| answer.map(|answer| (answer.next, answer.error, answer.ended));
    assert_eq!(next(d.batch(holder.items(1, 2))), Err(E::Conflict), "there is a gap");
    assert_eq!(next(d.batch(holder.items(0, 2))), Ok((2, 0, false)));
    assert_eq!(next(d.batch(holder.items(0, 1))), Ok((2, 0, false)), "it came late");
    assert_eq!(next(d.batch(holder.items(1, 2))), Ok((3, 0, false)), "one of them was there");
    d.namespace = d.restored();
    assert_eq!(next(d.batch(holder.items(0, 4))), Ok((4, 0, false)), "another leader knows it, too");
    d.check();
    let expected = holder.part.readdir(top).unwrap();
    // The same request again, from a network that repeats.
    let last = d.log.last().unwrap().clone();
    let before = d.pages();
    d.log(Opcode::Batch, last.request).unwrap();
    assert_eq!(d.pages()[1..], before[1..], "nothing happens");
    holder.first = 4;
    holder.queue.clear();
    holder.end(&mut d);
    assert_eq!(d.readdir(top), Ok(expected));
}

/// Holder and partition would go on with different trees, each sure of its own.
#[test]
fn another_answer_ends_it_loudly() {
    let mut d = Driver::with_delegations();
    let mut holder = lead(&mut d);
    let top = holder.number;
    for name in ["a", "b", "c"] {
        holder.create(d.now, top, name).unwrap();
    }
    holder.queue[1].expect ^= 1;
    let answer = d.batch(BatchRequest { more_ids: 8, ..holder.all() }).unwrap();
    assert_eq!((answer.next, answer.error, answer.ended), (2, u32::from(E::Internal.code()), true));
    assert_eq!((answer.first, answer.text.is_empty()), (0, false));
    assert_eq!(d.names(top), ["a", "b"], "what was before it stands, and so does what has another answer");
    assert_eq!(d.batch(holder.all()).map(|_| ()), Err(E::Stale));
    d.check();
    // One that is refused changes nothing.
    let mut other = d.lead(ROOT, "other");
    let top = other.number;
    other.create(d.now, top, "a").unwrap();
    other.queue.push_back(other.queue[0].clone());
    other.create(d.now, top, "c").unwrap();
    let answer = d.batch(other.all()).unwrap();
    assert_eq!((answer.next, answer.error, answer.ended), (1, u32::from(E::Exists.code()), true));
    assert_eq!(d.names(top), ["a"]);
    // Nor one from before the one that was last.
    let mut third = d.lead(ROOT, "third");
    third.create(d.now, third.number, "a").unwrap();
    third.queue[0].time_ns = 5;
    let answer = d.batch(third.all()).unwrap();
    assert_eq!((answer.next, answer.error), (0, u32::from(E::BadRequest.code())));
    d.check();
}

/// What a client lost would be stored by it later, beside what others have made since.
#[test]
fn the_end_of_a_session_ends_its_delegations() {
    for expire in [false, true] {
        let mut d = Driver::with_delegations();
        let mut holder = lead(&mut d);
        let top = holder.number;
        holder.create(d.now, top, "a").unwrap();
        holder.create(d.now, top, "b").unwrap();
        d.batch(holder.items(0, 1)).unwrap();
        // Nobody else stores it for the session.
        d.session = 2;
        assert_eq!(d.batch(holder.all()).map(|_| ()), Err(E::Stale));
        d.end_delegations(&[top]).unwrap();
        assert_eq!(d.getattr(top).map(|_| ()), Err(E::LeaseHeld));
        d.session = 1;
        match expire {
            true => d.expire(&[1]),
            false => d.end_session().unwrap(),
        }
        d.check();
        assert!(!d.namespace.has_delegations());
        assert_eq!(d.batch(holder.all()).map(|_| ()), Err(E::SessionEnded));
        d.session = 2;
        assert_eq!(d.names(top), ["a"], "a prefix of what was done");
        d.create(top, "b", 0o644).unwrap();
    }
}

/// The name of a directory that its holder removes would stay, or what it leads would go on below nothing.
#[test]
fn removing_the_top_ends_it() {
    let mut d = Driver::with_delegations();
    let mut holder = lead(&mut d);
    let top = holder.number;
    holder.create(d.now, top, "a").unwrap();
    let answer = d.batch(holder.all()).unwrap();
    holder.answered(&answer);
    assert_eq!(d.rmdir(ROOT, &"n".repeat(256)), Err(E::NameTooLong));
    assert_eq!(d.rmdir(ROOT, "led"), Err(E::NotEmpty));
    assert!(d.namespace.is_led_by(1, top), "a refusal changes nothing");
    d.check();
    let header = Holder::header();
    let unlink = UnlinkRequest { header, parent: top, name: b"a".to_vec() };
    holder.run(d.now, Opcode::Unlink, unlink.encode_to_vec()).unwrap();
    let answer = d.batch(holder.all()).unwrap();
    holder.answered(&answer);
    assert_eq!(holder.part.names(top), Vec::<String>::new());
    d.rmdir(ROOT, "led").unwrap();
    assert_eq!((d.namespace.delegation_count(), d.getattr(top)), (0, Err(E::Stale)));
    d.check();
    // In bulk, and again.
    let tops: Vec<u64> = (0..3).map(|i| d.lead(ROOT, &format!("d{i}")).number).collect();
    d.end_delegations(&tops[1..]).unwrap();
    d.end_delegations(&tops[1..]).unwrap();
    assert_eq!((d.namespace.delegation_count(), d.getattr(tops[1]).is_ok()), (1, true));
    assert_eq!(d.getattr(tops[0]).map(|_| ()), Err(E::LeaseHeld));
    assert_eq!(d.end_delegations(&[7; 257]), Err(E::InvalidArgument));
    d.check();
}

/// Two inodes would get one number: of ranges that were given when the answer was lost, or in the partition itself.
#[test]
fn numbers_go_on_in_further_ranges() {
    let mut d = Driver::with_delegations();
    let mut holder = lead(&mut d);
    let top = holder.number;
    for i in 1..8 {
        holder.create(d.now, top, &format!("{i}")).unwrap();
    }
    assert_eq!(holder.create(d.now, top, "8").map(|_| ()), Err(E::Overloaded));
    assert_eq!((holder.part.namespace.own_ids_left(), holder.part.namespace.own_items()), (0, 7));
    d.session = 2;
    let between = d.create(ROOT, "between", 0o644).unwrap().inode;
    assert_eq!(between, top + 8);
    d.session = 1;
    let more = BatchRequest { more_ids: 2, ..holder.all() };
    let first = d.batch(more.clone()).unwrap();
    let again = d.batch(more).unwrap();
    assert_eq!((first.first, first.last), (between + 1, between + 2));
    assert_eq!((again.first, again.last), (first.first, first.last), "the answer may have been lost");
    holder.answered(&again);
    let behind = d.batch(BatchRequest { more_ids: 2, ..holder.all() }).unwrap();
    assert_eq!(behind.first, first.last + 1);
    holder.answered(&behind);
    d.namespace = d.restored();
    let made: Vec<u64> = (8..12).map(|i| holder.create(d.now, top, &format!("{i}")).unwrap().inode).collect();
    assert_eq!(made, [first.first, first.last, behind.first, behind.last]);
    assert_eq!(holder.create(d.now, top, "x").map(|_| ()), Err(E::Overloaded));
    holder.end(&mut d);
    d.check();
    let last = d.create(ROOT, "last", 0o644).unwrap().inode;
    assert_eq!((last, d.names(top).len()), (behind.last + 1, 11));
}

/// What cannot be executed twice with the same answer would be, or what names something outside.
#[test]
fn what_is_no_item() {
    let mut d = Driver::with_delegations();
    let outside = d.create(ROOT, "outside", 0o644).unwrap().inode;
    let mut holder = lead(&mut d);
    let top = holder.number;
    let file = holder.create(d.now, top, "f").unwrap().inode;
    let header = Holder::header;
    let set_lock = SetLockRequest { header: header(), inode: file, r#type: 2, end: 5, ..Default::default() };
    let link = |inode, parent| LinkRequest { header: header(), inode, parent, name: b"l".to_vec(), replace: false };
    let publish = PublishRequest { inode: file, durability: 1, ..Default::default() };
    let set = SetattrRequest { inode: file, ..Default::default() };
    let volatile = PublishAttributesRequest { header: header(), publish: Some(publish), attributes: Some(set) };
    let many: Vec<_> = (0..257).map(|i| extent(i * 8192, 100, 1 + i as u32, 0)).collect();
    let written_by = holder.session;
    let publish = PublishRequest { header: header(), inode: file, extents: many, written_by, ..Default::default() };
    holder.run(d.now, Opcode::Publish, publish.encode_to_vec()).unwrap();
    let cut = |size| SetattrRequest { header: header(), inode: file, valid: 8, size, ..Default::default() };
    for (opcode, bytes, code) in [
        (Opcode::SetLock, set_lock.encode_to_vec(), E::NotSupported),
        (
            Opcode::RemoveTree,
            RemoveTreeRequest { header: header(), ..Default::default() }.encode_to_vec(),
            E::NotSupported,
        ),
        (Opcode::PublishAttributes, volatile.encode_to_vec(), E::NotSupported),
        (Opcode::Setattr, cut(10).encode_to_vec(), E::NotSupported),
        (Opcode::Link, link(outside, top).encode_to_vec(), E::LeaseHeld),
        (Opcode::Link, link(file, ROOT).encode_to_vec(), E::LeaseHeld),
    ] {
        assert_eq!(holder.run(d.now, opcode, bytes.clone()), Err(code), "at the holder");
        // A client that sends it all the same.
        let mut partition = Driver::on(d.restored());
        (partition.now, partition.session, partition.slot) = (d.now, holder.session, 9);
        let item = BatchItem { opcode: opcode.code().into(), time_ns: d.now, request: bytes, expect: 0 };
        let mut batch = holder.all();
        batch.items.push(item);
        let answer = partition.batch(batch).unwrap();
        assert_eq!((answer.next, answer.error), (2, u32::from(code.code())), "{}", opcode.name());
        partition.check();
    }
    holder.run(d.now, Opcode::Setattr, cut(10_000).encode_to_vec()).unwrap();
    assert_eq!(holder.part.lookup(top, "..").map(|_| ()), Err(E::LeaseHeld), "nothing above is known");
    holder.end(&mut d);
    assert_eq!(d.getattr(file).unwrap().size, 10_000);
    d.check();
}

/// A snapshot would have what was made after it, a partition be cut in two under a holder that does not know, or it
/// would execute by rules that its holder has not.
#[test]
fn what_waits_for_the_end_comes_to_pass() {
    let mut d = Driver::with_delegations();
    let mut holder = lead(&mut d);
    let top = holder.number;
    holder.create(d.now, top, "a").unwrap();
    let waits = |d: &mut Driver, what: &str| {
        assert_eq!(d.namespace.take_wanted_delegations(), [(1, top)], "{what}");
        assert_eq!(d.mkdir_asking(ROOT, what, ASK).unwrap().delegation, None, "for a while none is given");
        d.check();
    };
    let level = SetFeatureLevel { level: 31 }.encode_to_vec();
    assert_eq!(own(&mut d, Opcode::SetFeatureLevel, level.clone()), Err(E::LeaseHeld));
    waits(&mut d, "level");
    assert_eq!(own(&mut d, Opcode::EndRange, Vec::new()), Err(E::LeaseHeld));
    waits(&mut d, "range");
    assert_eq!(d.create_snapshot("s").unwrap().leases, 1);
    waits(&mut d, "snapshot");
    d.set_feature_level(29);
    let answer = d.batch(holder.all()).unwrap();
    holder.answered(&answer);
    assert_eq!((answer.error, answer.next), (0, 1), "what was answered is stored");
    holder.end(&mut d);
    assert_eq!(d.create_snapshot("s").unwrap().number, 1);
    d.log(Opcode::SetFeatureLevel, level).unwrap();
    d.delete_snapshot("s").unwrap();
    d.reclaim(0, 0);
    d.log(Opcode::EndRange, Vec::new()).unwrap();
    d.now += 40_000_000_000;
    assert!(d.mkdir_asking(ROOT, "later", DelegationAsk { level: 31, ..ASK }).unwrap().delegation.is_some());
    d.check();
}

/// A tree would be removed with what is being made in it, which its holder has answered.
#[test]
fn trees_above_are_removed_after_the_end() {
    let mut d = Driver::with_delegations();
    let above = d.mkdir(ROOT, "above", 0o755).unwrap().inode;
    let middle = d.mkdir(above, "middle", 0o755).unwrap().inode;
    let mut holder = d.lead(middle, "led");
    let top = holder.number;
    holder.create(d.now, top, "a").unwrap();
    d.session = 2;
    assert_eq!(d.remove_tree(ROOT, "above"), Err(E::LeaseHeld));
    assert_eq!(d.namespace.take_wanted_delegations(), [(1, top)]);
    // A bucket of the trash, too.
    let trash = d.mkdir(ROOT, ".trash", 0o755).unwrap().inode;
    let user = d.mkdir(trash, "0", 0o755).unwrap().inode;
    d.rename(ROOT, "above", user, "000000000001", 0).unwrap();
    d.now += 2_000_000_000;
    let expire = |d: &mut Driver| d.log(Opcode::ExpireTrash, ExpireTrash::default().encode_to_vec()).unwrap();
    expire(&mut d);
    assert_eq!((d.names(user).len(), d.namespace.take_wanted_delegations()), (1, vec![(1, top)]));
    holder.end(&mut d);
    assert_eq!(d.names(top), ["a"], "a rename above changes nothing below");
    expire(&mut d);
    d.reclaim(0, 0);
    assert_eq!((d.names(user).len(), d.getattr(top).map(|_| ())), (0, Err(E::Stale)));
    d.check();
}

/// What was answered before a limit came would be refused.
#[test]
fn limits_that_come_later_refuse_nothing() {
    let mut d = Driver::with_delegations();
    let above = d.mkdir(ROOT, "above", 0o755).unwrap().inode;
    let mut holder = d.lead(above, "led");
    let top = holder.number;
    let sub = holder.mkdir(d.now, top, "sub").unwrap().inode;
    let answer = d.batch(holder.all()).unwrap();
    holder.answered(&answer);
    d.set_quota(above, 0, 1).unwrap();
    d.set_quota(0, 0, 1).unwrap();
    d.set_fullness(2);
    assert_eq!(d.namespace.take_wanted_delegations(), [(1, top)], "its holder is to make no more there");
    // Counting over reaches what is led.
    d.reclaim(2, 10);
    holder.create(d.now, sub, "a").unwrap();
    holder.create(d.now, top, "b").unwrap();
    let rename = RenameRequest {
        header: Holder::header(),
        parent: sub,
        name: b"a".to_vec(),
        new_parent: top,
        new_name: b"c".to_vec(),
        flags: 0,
    };
    holder.run(d.now, Opcode::Rename, rename.encode_to_vec()).unwrap();
    let answer = d.batch(holder.all()).unwrap();
    holder.answered(&answer);
    assert_eq!((answer.error, answer.next), (0, 4));
    assert_eq!(d.namespace.take_wanted_delegations(), [(1, top)], "it ends soon");
    d.check();
    (0..20).for_each(|_| d.reclaim(2, 10));
    d.check();
    assert_eq!(d.quota(above).unwrap().inodes_used, 4);
    holder.end(&mut d);
    assert_eq!(d.create(top, "d", 0o644).map(|_| ()), Err(E::NoSpace));
    d.set_fullness(0);
    assert_eq!(d.create(top, "d", 0o644).map(|_| ()), Err(E::QuotaExceeded));
}

/// A directory that is removed in another partition is taken apart here while somebody leads one in it.
#[test]
fn an_operation_across_partitions_locks_nothing_that_is_led() {
    let mut d = Driver::with_delegations();
    let holder = lead(&mut d);
    let tx = Some(TxId { partition: 2, term: 1, number: 1 });
    let prepare = TxPrepare { tx, inodes: vec![holder.number], ..TxPrepare::default() };
    assert!(!d.namespace.tx_is_free(&prepare));
    assert_eq!(own(&mut d, Opcode::TxPrepare, prepare.encode_to_vec()), Err(E::LeaseHeld));
    assert_eq!(d.namespace.take_wanted_delegations(), [(1, holder.number)]);
    assert!(d.namespace.tx_above(cairn_meta_core::TxId { partition: 2, term: 1, number: 1 }, holder.number).is_err());
    holder.end(&mut d);
    assert!(d.namespace.tx_is_free(&prepare));
    d.log(Opcode::TxPrepare, prepare.encode_to_vec()).unwrap();
    d.check();
}

/// A client would lead what no partition gave, or execute by rules that it does not know.
#[test]
fn what_a_holder_does_not_believe() {
    let mut d = Driver::with_delegations();
    let told = d.mkdir_asking(ROOT, "led", ASK).unwrap().delegation.unwrap();
    let part = |told: &Delegation| Namespace::of_delegation(VolumeId(1), PartitionId(1), 1, told).map_err(|e| e.code);
    assert_eq!(
        part(&Delegation { level: cairn_types::FEATURE_LEVEL + 1, ..told.clone() }).err(),
        Some(E::UnknownOperation)
    );
    for wrong in [
        Delegation { level: 28, ..told.clone() },
        Delegation { last: told.number, ..told.clone() },
        Delegation { inode_last: told.last - 1, ..told.clone() },
        Delegation { last: u64::MAX, ..told.clone() },
        Delegation { inode: told.inode[..9].to_vec(), ..told.clone() },
    ] {
        assert_eq!(part(&wrong).err(), Some(E::BadRequest));
    }
    let mut part = part(&told).unwrap();
    part.check_invariants().unwrap();
    assert!(!part.add_own_ids(told.number..=told.number + 1) && part.add_own_ids(told.last + 5..=told.last + 6));
    let unlink = UnlinkRequest { header: Holder::header(), parent: told.number, name: b"a".to_vec() };
    let refused = part.run_own_item(Opcode::Unlink, WallTime(u64::MAX), &unlink.encode_to_vec(), &mut Vec::new());
    assert_eq!((refused.map_err(|e| e.code), part.own_items()), (Err(E::NotFound), 0), "a refusal is no item");
}
