//! Random locks of several owners, held against bytes that each remember who locked them.
use super::*;
use crate::namespace::{AppliedAt, NamespaceConfig};
use cairn_types::{Layout, PartitionId, VolumeId, WallTime};
use cairn_wire::Opcode;
use cairn_wire::common::Credentials;
use cairn_wire::meta::*;
use proptest::prelude::*;
use prost::Message;
use std::collections::BTreeMap;

/// Bytes that the oracle knows; the last one stands for all behind it.
const BYTES: u64 = 24;

/// Who has locked a byte: kind, session, owner → for writing.
type Oracle = Vec<BTreeMap<(u8, u64, u64), bool>>;

struct Side {
    namespace: Namespace,
    index: u64,
    sequences: BTreeMap<u64, u64>,
    oracle: Oracle,
}

impl Side {
    fn new() -> Self {
        let config = NamespaceConfig::new(VolumeId(1), PartitionId(1), Layout::replicated(3));
        let oracle = vec![BTreeMap::new(); BYTES as usize];
        Side { namespace: Namespace::new(&config), index: 0, sequences: BTreeMap::new(), oracle }
    }

    fn header(&mut self, session: u64) -> Option<MetaHeader> {
        let sequence = self.sequences.entry(session).or_default();
        *sequence += 1;
        let who = Some(Credentials::default());
        Some(MetaHeader { volume: 1, partition: 1, session, slot: 0, sequence: *sequence, who })
    }

    fn apply(&mut self, opcode: Opcode, request: &impl Message) -> std::result::Result<(), ErrorCode> {
        self.index += 1;
        let at = AppliedAt { index: self.index, term: 1, time: WallTime(self.index) };
        let outcome = self.namespace.apply(at, opcode, &request.encode_to_vec(), &mut Vec::new());
        outcome.map_err(|error| error.code)
    }

    fn set_lock(&mut self, owner: Owner, lock_type: u32, start: u64, end: u64) -> std::result::Result<(), ErrorCode> {
        let header = self.header(owner.session);
        let request = SetLockRequest {
            header,
            inode: 1,
            owner: owner.owner,
            kind: owner.kind.into(),
            r#type: lock_type,
            start,
            end: if end == BYTES - 1 { u64::MAX } else { end },
            pid: owner.owner as u32,
        };
        self.apply(Opcode::SetLock, &request)
    }

    /// What POSIX says of one request, byte by byte.
    fn expect(&mut self, owner: Owner, lock_type: u32, start: u64, end: u64) -> std::result::Result<(), ErrorCode> {
        let me = (owner.kind, owner.session, owner.owner);
        let range = start as usize..=end as usize;
        let blocked = self.oracle[range.clone()]
            .iter()
            .flatten()
            .any(|(other, write)| other.0 == me.0 && *other != me && (*write || lock_type == 2));
        if lock_type > 0 && blocked {
            return Err(ErrorCode::Locked);
        }
        for byte in &mut self.oracle[range] {
            match lock_type {
                0 => byte.remove(&me),
                _ => byte.insert(me, lock_type == 2),
            };
        }
        Ok(())
    }

    fn compare(&self) {
        let mut found: Oracle = vec![BTreeMap::new(); BYTES as usize];
        let locks = self.namespace.locks_of(1).expect("readable");
        for (owner, lock) in &locks {
            assert!(lock.end < BYTES - 1 || lock.end == LOCK_END);
            for byte in lock.start..=lock.end.min(BYTES - 1) {
                let before = found[byte as usize].insert((owner.kind, owner.session, owner.owner), lock.write);
                assert_eq!(before, None, "an owner's locks overlap");
            }
        }
        assert_eq!(found, self.oracle);
        let touching = |pair: &[(Owner, LockRange)]| {
            pair[0].0 == pair[1].0 && pair[0].1.write == pair[1].1.write && pair[0].1.end + 1 == pair[1].1.start
        };
        assert!(!locks.windows(2).any(touching), "neighbours of one type are one lock");
        self.namespace.check_invariants().expect("invariants");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    /// Two programs would both believe to have a file to themselves, or one would wait for ever.
    #[test]
    fn locks_are_those_of_an_oracle(steps in prop::collection::vec((0u8..40, 0u64..3, 0u64..2, 0u64..BYTES, 0u64..BYTES), 1..80)) {
        let mut side = Side::new();
        let mut sessions = [1u64, 2, 3];
        for (what, session, owner, a, b) in steps {
            let slot = session as usize;
            let session = sessions[slot];
            if what == 39 {
                let header = side.header(session);
                side.apply(Opcode::EndSession, &EndSessionRequest { header }).expect("ended");
                while !side.namespace.reclaimable().is_empty() {
                    side.apply(Opcode::ReclaimBatch, &ReclaimBatch::default()).expect("a batch");
                }
                side.oracle.iter_mut().for_each(|byte| byte.retain(|(_, owner, _), _| *owner != session));
                sessions[slot] += 10;
            } else if what == 38 {
                let pages: Vec<Vec<u8>> = side.namespace.snapshot().pages(4096).collect();
                let mut builder = crate::NamespaceBuilder::new();
                pages.iter().for_each(|page| builder.push_page(page).expect("a page"));
                side.namespace = builder.finish().expect("whole");
            } else {
                let who = Owner { kind: what % 2, session, owner };
                let (lock_type, start, end) = (u32::from(what / 2 % 3), a.min(b), a.max(b));
                let expected = side.expect(who, lock_type, start, end);
                prop_assert_eq!(side.set_lock(who, lock_type, start, end), expected);
            }
            side.compare();
        }
    }
}

/// One client could fill the memory with locks.
#[test]
fn locks_are_bounded_and_go_with_the_file() {
    let mut side = Side::new();
    let owner = Owner { kind: 0, session: 1, owner: 1 };
    for at in 0..LOCKS_INODE_MAX as u64 {
        side.set_lock(owner, 1, 1000 + 2 * at, 1000 + 2 * at).expect("locked");
    }
    assert_eq!(side.set_lock(owner, 1, 10, 10), Err(ErrorCode::TooManyLocks));
    assert_eq!(side.set_lock(owner, 0, 0, LOCK_END), Ok(()), "giving back is always possible");
    assert_eq!(side.namespace.take_released_locks(), [1]);
    let header = side.header(1);
    let create = CreateRequest { header, parent: 1, name: b"f".to_vec(), mode: 0o600, ..Default::default() };
    side.apply(Opcode::Create, &create).expect("created");
    let header = side.header(1);
    let lock = SetLockRequest { header, inode: 2, r#type: 2, end: 5, ..Default::default() };
    side.apply(Opcode::SetLock, &lock).expect("locked");
    let header = side.header(1);
    side.apply(Opcode::Unlink, &UnlinkRequest { header, parent: 1, name: b"f".to_vec() }).expect("unlinked");
    assert_eq!(side.namespace.locks, 0);
    side.namespace.check_invariants().expect("invariants");
}
