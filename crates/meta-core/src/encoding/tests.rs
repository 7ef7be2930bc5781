//! On-disk values: golden bytes, round trips, and bytes that nobody wrote.
use super::*;
use crate::key;
use cairn_types::ExtentKind;
use proptest::prelude::*;

fn directory() -> Inode {
    Inode {
        mode: 0o042_775,
        nlink: 3,
        uid: 1000,
        gid: 2000,
        size: 7,
        layout: 3,
        generation: 9,
        parent: 1,
        mtime: 0x0102_0304_0506_0708,
        ..Inode::at(0x18A0_0000_0000_0000)
    }
}

fn file() -> Inode {
    Inode {
        mode: 0o100_644,
        nlink: 1,
        uid: 1000,
        gid: 1000,
        size: 5000,
        stored: 5000,
        layout: 3,
        generation: 2,
        data_version: 2,
        mtime: 0x18A0_0000_0000_0064,
        ctime: 0x18A0_0000_0000_0064,
        ..Inode::at(0x18A0_0000_0000_0000)
    }
}

fn encoded(inode: &Inode) -> Vec<u8> {
    let mut value = Vec::new();
    inode.encode(&mut value);
    value
}

/// A change of these bytes makes existing checkpoints unreadable.
#[test]
fn golden_bytes() {
    let packed =
        [0x11, 0x04, 0xa4, 0x81, 0, 0, 0, 0, 0, 0, 0xa0, 0x18, 0xe8, 0x07, 0xe8, 0x07, 0x88, 0x27, 2, 2, 3, 0xc8, 0x01];
    assert_eq!(encoded(&file()), packed);
    let mut fixed = vec![0x12, 0, 0xfd, 0x45, 0xe8, 3, 0, 0, 0xd0, 7, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
    fixed.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0xa0, 0x18, 8, 7, 6, 5, 4, 3, 2, 1]);
    fixed.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0xa0, 0x18, 0, 0, 0, 0, 0, 0, 0xa0, 0x18]);
    fixed.extend_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(encoded(&directory()), fixed);
    let counted = Inode { acl: true, quota: 300, ..file() };
    let mut more = packed.to_vec();
    more[1] |= 0x80;
    more.extend_from_slice(&[3, 0xac, 0x02]);
    assert_eq!(encoded(&counted), more);
    (fixed[0], fixed[1]) = (0x13, 3);
    fixed.extend_from_slice(&[0x2c, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(encoded(&Inode { acl: true, default_acl: true, quota: 300, ..directory() }), fixed);
    (more[1], more[packed.len()]) = (packed[1] | 0x80, 0);
    assert_eq!(Inode::decode(&more), None, "a field that is not needed is not written");

    let lease = OverwriteLease { session: 300, number: 2 };
    let mut leased = packed.to_vec();
    leased[1] |= 0x80;
    leased.extend_from_slice(&[4, 0xac, 0x02, 2]);
    assert_eq!(encoded(&Inode { lease: Some(lease), ..file() }), leased);
    assert_eq!(Inode::decode(&leased), Some(Inode { lease: Some(lease), ..file() }));
    *leased.last_mut().unwrap() = 0;
    assert_eq!(Inode::decode(&leased), None, "no lease has the number 0");

    let volatile = Volatile { session: 300, from: 2, to: 5 };
    let mut closed = packed.to_vec();
    closed[1] |= 0x80;
    closed.extend_from_slice(&[8, 0xac, 0x02, 2, 5]);
    assert_eq!(encoded(&Inode { volatile: Some(volatile), ..file() }), closed);
    assert_eq!(Inode::decode(&closed), Some(Inode { volatile: Some(volatile), ..file() }));
    *closed.last_mut().unwrap() = 2;
    assert_eq!(Inode::decode(&closed), None, "no range is empty");

    let mut value = Vec::new();
    Dentry { inode: 300, d_type: 8 }.encode(&mut value);
    assert_eq!(value, [0x18, 0xac, 0x02]);
    value.clear();
    Extent {
        file_offset: 5000,
        length: 200,
        pg: 300,
        index: 5,
        chunk_offset: 8192 + 904,
        kind: ExtentKind::Plain,
        shared: false,
        birth: 0,
    }
    .encode(&mut value);
    assert_eq!(value, [0x10, 0xc8, 0x01, 0xac, 0x02, 5, 2]);
    value.clear();
    let stripe = cairn_types::Stripe::new(6, 64 << 10).unwrap();
    let striped = Extent {
        file_offset: 0,
        length: 200,
        pg: 300,
        index: 5,
        chunk_offset: 8192,
        kind: ExtentKind::Erasure(stripe),
        shared: false,
        birth: 0,
    };
    striped.encode(&mut value);
    assert_eq!(value, [0x11, 0xc8, 0x01, 0xac, 0x02, 5, 2, 16, 6]);
    assert_eq!(Extent::decode(0, &value), Some(striped));
    value[0] = 0x12;
    assert_eq!(Extent::decode(0, &value), Some(Extent { kind: ExtentKind::Set(stripe), ..striped }));
    value[0] = 0x13;
    assert_eq!(Extent::decode(0, &value), None);
    value[0] = 0x19;
    assert_eq!(Extent::decode(0, &value), Some(Extent { shared: true, ..striped }));
    value[0] = 0x1a;
    assert_eq!(Extent::decode(0, &value), None, "a stripe set is never shared");
    value.clear();
    Extent { birth: 300, shared: true, ..striped }.encode(&mut value);
    assert_eq!(value, [0x1d, 0xc8, 0x01, 0xac, 0x02, 5, 2, 16, 6, 0xac, 0x02]);
    assert_eq!(Extent::decode(0, &value), Some(Extent { birth: 300, shared: true, ..striped }));
    value.truncate(9);
    value.push(0);
    assert_eq!(Extent::decode(0, &value), None, "what is older than all snapshots says nothing of it");
    value.clear();
    let kept = KeptRecord { pg: 300, index: 5, first_block: 2, blocks: 130, birth: 7 };
    kept.encode(&mut value);
    assert_eq!(value, [0x10, 0xac, 0x02, 5, 2, 0x82, 0x01, 7]);
    assert_eq!(KeptRecord::decode(&value), Some(kept));
    assert_eq!(KeptRecord::decode(&value[..7]), None);
    value.clear();
    let snapshot = SnapshotRecord {
        slot: 300,
        created_ns: 1,
        inode_next: 9,
        deleting: true,
        rule: 0,
        pending: false,
        cut: 0,
        directory: 0,
        name: b"mon".to_vec(),
    };
    snapshot.encode(&mut value);
    assert_eq!(value, [0x11, 0xac, 0x02, 1, 9, b'm', b'o', b'n']);
    assert_eq!(SnapshotRecord::decode(&value), Some(snapshot.clone()));
    for (tag, deleting, pending) in [(0x14, false, false), (0x15, true, false), (0x16, false, true)] {
        let snapshot = SnapshotRecord { deleting, pending, cut: 130, ..snapshot.clone() };
        value.clear();
        snapshot.encode(&mut value);
        assert_eq!(value, [tag, 0xac, 0x02, 1, 9, 0, 0x82, 0x01, b'm', b'o', b'n']);
        assert_eq!(SnapshotRecord::decode(&value), Some(snapshot));
    }
    for (tag, deleting, pending, cut) in
        [(0x17, false, false, 0), (0x17, false, false, 130), (0x18, true, false, 130), (0x19, false, true, 130)]
    {
        let snapshot = SnapshotRecord { deleting, pending, cut, rule: 2, directory: 300, ..snapshot.clone() };
        value.clear();
        snapshot.encode(&mut value);
        let of_cut = if cut == 0 { &[0][..] } else { &[0x82, 0x01] };
        let rest = [0xac, 0x02, b'm', b'o', b'n'];
        assert_eq!(value, [&[tag, 0xac, 0x02, 1, 9, 2], of_cut, &rest].concat());
        assert_eq!(SnapshotRecord::decode(&value), Some(snapshot));
    }
    assert_eq!(SnapshotRecord::decode(&[0x17, 1, 1, 9, 0, 0, 0, b'm']), None, "of a directory");
    assert_eq!(SnapshotRecord::decode(&[0x19, 1, 1, 9, 0, 0, 5, b'm']), None, "nobody else cuts with it");
    assert_eq!(SnapshotRecord::decode(&[0x14, 1, 1, 9, 0, 0, b'm']), None, "an entry of the log has cut it");
    assert_eq!(SnapshotRecord::decode(&[0x10, 0, 1, 9, b'm']), None, "slots begin with 1");
    assert_eq!(SnapshotRecord::decode(&[0x10, 1, 1, 9]), None, "each has a name");
    value.clear();
    let state = SnapshotState { last: 300, last_slot: 4, changed_ns: 5, no_leases_until_ns: 6, lapsed_ns: 7 };
    state.encode(&mut value);
    assert_eq!(value, [0x10, 0xac, 0x02, 4, 5, 6, 7]);
    assert_eq!(SnapshotState::decode(&value), Some(state));
    value.push(0);
    assert_eq!(SnapshotState::decode(&value), None);
    value.clear();
    ShareRecord { pg: 1, index: 2, first_block: 3, blocks: 130, references: 300, kept: 0 }.encode(&mut value);
    assert_eq!(value, [0x10, 0x82, 0x01, 0xac, 0x02]);
    value.clear();
    let share = ShareRecord { pg: 1, index: 2, first_block: 3, blocks: 130, references: 0, kept: 2 };
    share.encode(&mut value);
    assert_eq!(value, [0x11, 0x82, 0x01, 0, 2]);
    assert_eq!(ShareRecord::decode((1, 2, 3), &value), Some(share));
    assert_eq!(ShareRecord::decode((1, 2, 3), &[0x11, 1, 1, 0]), None);
    value.clear();
    value.clear();
    FreeRecord { id: 1, pg: 300, index: 5, first_block: 2, blocks: 130 }.encode(&mut value);
    assert_eq!(value, [0x10, 0xac, 0x02, 5, 2, 0x82, 0x01]);
    value.clear();
    LockRange { start: 5, end: 300, write: true, pid: 9 }.encode(&mut value);
    assert_eq!(value, [0x12, 0xa7, 0x02, 9]);
    value.clear();
    let quota =
        QuotaRecord { removed: true, bytes_max: 300, inodes_max: 1, bytes: 2, inodes: 3, outer: 4, references: 5 };
    quota.encode(&mut value);
    assert_eq!(value, [0x11, 0xac, 0x02, 1, 2, 3, 4, 5]);
    assert_eq!(QuotaRecord::decode(&value), Some(quota));
    value.clear();
    let (target, ceiling) = (crate::lend::Amounts::new(300, 1), crate::lend::Amounts::ANY);
    let lent = LentRecord { number: 7, target, ceiling };
    lent.encode(&mut value);
    let any = [&[0xff; 9][..], &[1]].concat();
    assert_eq!(value, [&[0x10, 7, 0xac, 0x02, 1][..], &any, &any].concat());
    assert_eq!(LentRecord::decode(&value), Some(lent));
    for (listed, tag) in [(true, 0x10), (false, 0x11)] {
        value.clear();
        SettingRecord { number: 300, listed }.encode(&mut value);
        assert_eq!(value, [tag, 0xac, 0x02]);
        assert_eq!(SettingRecord::decode(&value), Some(SettingRecord { number: 300, listed }));
    }
    value.clear();
    let bound = BoundRecord { number: 7, max: target };
    bound.encode(&mut value);
    assert_eq!(value, [0x10, 7, 0xac, 0x02, 1]);
    assert_eq!(BoundRecord::decode(&value), Some(bound));
    assert_eq!(BoundRecord::decode(&value[..4]), None);
    value.clear();
    let mut ids = DelegatedIds::new(300..=303);
    ids.give(301);
    assert!(ids.extend(310..=310) && !ids.extend(305..=306) && !ids.extend(311..=u64::MAX));
    let led = DelegationRecord { session: 7, token: 300, level: 30, next: 2, time: 5, ids };
    led.encode(&mut value);
    let golden = [0x10, 7, 0xac, 2, 30, 2, 5, 0xae, 2, 2, 0xac, 2, 4, 0xb6, 2, 1];
    assert_eq!(value, golden);
    assert_eq!(DelegationRecord::decode(&value), Some(led));
    for (at, other) in [(0, 0x11), (1, 0), (7, 0xac), (9, 0), (9, 1), (12, 0), (12, 11), (15, 0)] {
        value[at] = other;
        assert_eq!(DelegationRecord::decode(&value), None, "byte {at}");
        value[at] = golden[at];
    }
    value.clear();
    let lock = TxLock { number: 300, since: 2, new_inode: 3, inodes: vec![0, 7, 130] };
    lock.encode(&mut value);
    assert_eq!(value, [0x10, 0xac, 0x02, 2, 3, 3, 0, 7, 0x82, 0x01]);
    assert_eq!(TxLock::decode(&value), Some(lock));
    value[6] = 9;
    assert_eq!(TxLock::decode(&value), None, "inodes ascend");
    assert_eq!([Hold { write: false }.encode(), Hold { write: true }.encode()], [[0x10], [0x11]]);
}

/// A change of these bytes loses entries of existing checkpoints.
#[test]
fn golden_keys() {
    assert_eq!(key::attributes(0x0102).as_bytes(), [0, 0, 0, 0, 0, 0, 1, 2, 0x01]);
    assert_eq!(key::target(1).as_bytes()[8..], [0x02]);
    assert_eq!(key::dentry(1, b"ab").as_bytes()[8..], [0x10, b'a', b'b']);
    assert_eq!(key::extent(1, 0).as_bytes()[8..], [0x20, 0]);
    assert_eq!(key::extent(1, 0x1000).as_bytes()[8..], [0x20, 2, 0x10, 0]);
    assert_eq!(key::xattr(1, b"user.a").as_bytes()[8..10], [0x30, b'u']);
    assert_eq!(key::hold(1, 2).as_bytes()[8..], [0x40, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(key::session_hold(1, 2).as_bytes()[8..], [0x81, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(key::dead_inode(2).as_bytes()[7..], [0, 0x82, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(key::free_record(2).as_bytes()[7..], [0, 0x83, 0, 0, 0, 0, 0, 0, 0, 2]);
    let share = key::share(1, 2, 0x0304);
    assert_eq!(share.as_bytes()[7..], [0, 0x8c, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 3, 4]);
    assert_eq!(key::share_parts(&share.as_bytes()[9..]), Some((1, 2, 0x0304)));
    assert_eq!(key::deferral(1).as_bytes()[8..], [0x41]);
    assert_eq!(key::deferring().as_bytes(), [0, 0, 0, 0, 0, 0, 0, 0, 0x86]);
    assert_eq!(key::deferred(1, 2).as_bytes()[7..], [0, 0x87, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    let owner = crate::locks::Owner { kind: 1, session: 2, owner: 3 };
    let numbers = [2u64, 3, 4].map(u64::to_be_bytes).concat();
    assert_eq!(key::lock(9, owner, 4).as_bytes()[7..], [&[9, 0x42, 1][..], &numbers].concat());
    assert_eq!(key::lock_parts(&key::lock(9, owner, 4).as_bytes()[9..]), Some((owner, 4)));
    assert_eq!(key::session_lock(1, 2).as_bytes()[7..], [0, 0x88, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(key::volume_quota().as_bytes()[7..], [0, 0x89]);
    assert_eq!(key::quota(2).as_bytes()[7..], [0, 0x8a, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(key::recount(2).as_bytes()[7..], [0, 0x8b, 0, 0, 0, 0, 0, 0, 0, 2]);
    let tx = crate::TxId { partition: 1, term: 2, number: 3 };
    let numbers = [2u64, 3].map(u64::to_be_bytes).concat();
    assert_eq!(key::tx_lock(tx).as_bytes()[7..], [&[0, 0x8e, 0, 0, 0, 1][..], &numbers].concat());
    assert_eq!(key::tx_of_lock(&key::tx_lock(tx).as_bytes()[9..]), Some(tx));
    assert_eq!(key::tx_decision(2, 3).as_bytes()[7..], [&[0, 0x8f][..], &numbers].concat());
    assert_eq!(key::tx_of_decision(&key::tx_decision(2, 3).as_bytes()[9..]), Some((2, 3)));
    assert_eq!(key::waiting_entry(2, b"ab").as_bytes()[7..], [0, 0x90, 0, 0, 0, 0, 0, 0, 0, 2, b'a', b'b']);
    assert_eq!(key::waiting_parts(&key::waiting_entry(2, b"ab").as_bytes()[9..]), Some((2, &b"ab"[..])));
    assert_eq!(key::waiting_parts(&key::waiting_entry(2, b"").as_bytes()[9..]), None);
    assert_eq!(key::waiting_directory(2).as_bytes()[7..], [0, 0x91, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(key::lent(2).as_bytes()[7..], [0, 0x98, 0, 0, 0, 2]);
    assert_eq!(key::partition(&key::lent(2).as_bytes()[9..]), Some(2));
    assert_eq!(key::delegation(2).as_bytes()[7..], [0, 0x9c, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!([key::setting(), key::bound()].map(|key| key.as_bytes()[8]), [0x99, 0x9a]);
    assert_eq!(
        [&[0x10, 0xac, 0x02][..], &[0x10], &[0x11, 5]].map(crate::waiting::decode_note),
        [Some(300), None, None]
    );
    assert_eq!(key::dead_session(2).as_bytes()[7..], [0, 0x84, 0, 0, 0, 0, 0, 0, 0, 2]);
}

/// A typical file within its budget, or memory per file grows unnoticed.
#[test]
fn sizes_stay_in_their_budget() {
    let put = Inode { mtime: 0x1700_0000_0000_0000, atime: 0x1700_0000_0000_0000, ..file() };
    assert!(encoded(&put).len() <= 56, "{}", encoded(&put).len());
    assert!(encoded(&file()).len() <= 40);
    let mut value = Vec::new();
    let extent = Extent {
        file_offset: 0,
        length: 1 << 20,
        pg: 5000,
        index: 70_000,
        chunk_offset: 63 << 20,
        kind: ExtentKind::Plain,
        shared: false,
        birth: 0,
    };
    extent.encode(&mut value);
    assert!(value.len() <= 16, "{}", value.len());
}

fn any_inode() -> impl Strategy<Value = Inode> {
    let kinds =
        prop::sample::select(vec![0o010_000u16, 0o020_000, 0o040_000, 0o060_000, 0o100_000, 0o120_000, 0o140_000]);
    (kinds, any::<[u64; 9]>(), any::<[u32; 4]>(), any::<bool>()).prop_map(|(kind, n, small, unnamed)| {
        let is_dir = kind == 0o040_000;
        let other = |value: u64| if is_dir { 0 } else { value };
        Inode {
            mode: kind | (n[0] as u16 & 0o7777),
            nlink: small[0],
            uid: small[1],
            gid: small[2],
            size: n[0] >> (n[1] & 63),
            atime: n[1],
            mtime: if n[0] & 1 == 0 { n[1] } else { n[2] },
            ctime: if n[0] & 2 == 0 { n[2] } else { n[3] },
            btime: if n[0] & 4 == 0 { n[1] } else { n[4] },
            layout: n[5] >> 24,
            generation: n[6],
            rdev: other(u64::from(small[3])) as u32,
            stored: other(n[7] >> (n[1] & 63)),
            data_version: other(n[8]),
            unnamed: unnamed && !is_dir,
            parent: if is_dir { n[7] } else { 0 },
            acl: n[5] & 1 != 0,
            default_acl: is_dir && n[5] & 2 != 0,
            shards: if is_dir && n[5] & 32 != 0 { 1 + (n[8] % 15) as u8 } else { 0 },
            sharded: is_dir && n[5] & 96 == 96,
            is_shard: is_dir && n[5] & 32 == 0 && n[5] & 128 != 0,
            quota: if n[5] & 4 != 0 { n[3] >> (n[2] & 63) } else { 0 },
            lease: (!is_dir && n[5] & 8 != 0 && n[4] != 0 && n[6] != 0)
                .then_some(OverwriteLease { session: n[4], number: n[6] }),
            volatile: (!is_dir && n[5] & 16 != 0 && n[6] != 0 && n[2] < n[4]).then_some(Volatile {
                session: n[6],
                from: n[2],
                to: n[4],
            }),
        }
    })
}

proptest! {
    /// Attributes that change on their way through the tree.
    #[test]
    fn inodes_round_trip(inode in any_inode()) {
        prop_assert_eq!(Inode::decode(&encoded(&inode)), Some(inode));
    }

    /// A value that panics when it is read, or that reads as something it would not be written as.
    #[test]
    fn any_bytes_are_refused_or_are_what_would_be_written(mut bytes in prop::collection::vec(any::<u8>(), 0..90), tag in 0u8..4) {
        if let Some(first) = bytes.first_mut() {
            *first = 0x10 + tag;
        }
        if let Some(inode) = Inode::decode(&bytes) {
            prop_assert_eq!(Inode::decode(&encoded(&inode)), Some(inode));
        }
        if let Some(extent) = Extent::decode(4096 * 3 + 5, &bytes) {
            prop_assert!(extent.is_valid());
        }
        let _ = (Dentry::decode(&bytes), FreeRecord::decode(1, &bytes), Hold::decode(&bytes));
    }

    /// Extents of a file that are not found in the order of their offsets.
    #[test]
    fn offsets_compare_as_their_keys(a in any::<u64>(), b in any::<u64>(), shift in 0u32..64) {
        let (a, b) = (a >> shift, b >> (shift / 2));
        let (x, y) = (key::extent(1, a), key::extent(1, b));
        prop_assert_eq!(a.cmp(&b), x.as_bytes().cmp(y.as_bytes()));
        prop_assert_eq!(key::file_offset(&x.as_bytes()[9..]), Some(a));
    }
}

/// The plain way to write a number.
fn plain(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A number that is written or read as another one, at every length and with anything behind it.
#[test]
fn numbers_of_every_length() {
    let edges = (0..64)
        .flat_map(|bit| [1u64 << bit, (1 << bit) - 1, (1 << bit) | 1, u64::MAX >> bit, 0x5a5a_5a5a_5a5a_5a5a >> bit]);
    for value in edges {
        let (bytes, length) = varint::encode(value);
        assert_eq!(bytes[..length], plain(value), "{value:#x}");
        for behind in [&[][..], &[0], &[0xff; 12]] {
            let all = [&bytes[..length], behind].concat();
            assert_eq!(varint::decode(&all), Some((value, length)), "{value:#x}");
        }
        for cut in 0..length {
            assert_eq!(varint::decode(&bytes[..cut]), None);
        }
    }
    assert_eq!(varint::decode(&[&[0xff; 9][..], &[2]].concat()), None, "more than 64 bits");
    assert_eq!(varint::decode(&[0xff; 12]), None, "no end");
}

/// A cut or lengthened value taken for a whole one.
#[test]
fn values_of_another_length_are_refused() {
    let both = [file(), directory()].map(|inode| Inode { acl: true, quota: 77, ..inode });
    for inode in [file(), directory()].into_iter().chain(both) {
        let value = encoded(&inode);
        for length in 0..value.len() {
            assert_eq!(Inode::decode(&value[..length]), None);
        }
        let mut longer = value;
        longer.push(0);
        assert_eq!(Inode::decode(&longer), None);
    }
}

/// A file of 1960 would become one of 1970, or of 2262.
#[test]
fn times_before_1970_are_exact() {
    for ns in [-1i64, -315_619_200_123_456_789, i64::MIN, i64::MAX] {
        for inode in [file(), directory()] {
            let inode = Inode { atime: ns as u64, mtime: ns as u64 ^ 1, ..inode };
            assert_eq!(Inode::decode(&encoded(&inode)), Some(inode));
        }
    }
}

/// Two inodes would get the same number, or one that is not the delegation's.
#[test]
fn delegated_numbers_are_given_once_in_order() {
    let mut ids = DelegatedIds::new(5..=7);
    assert!(ids.extend(10..=11));
    assert_eq!((ids.total(), ids.left()), (5, 4));
    let mut given = vec![5];
    while let Some(id) = ids.next() {
        assert!(!ids.has_given(id) && ids.has_given(given[given.len() - 1]));
        ids.give(id);
        given.push(id);
    }
    assert_eq!((given, ids.left()), (vec![5, 6, 7, 10, 11], 0));
    assert!(!ids.has_given(8) && !ids.has_given(12));
    assert!(ids.extend(20..=20));
    assert_eq!((ids.next(), ids.left()), (Some(20), 1), "what comes later is behind all that was given");
}
