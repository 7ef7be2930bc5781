//! Several partitions of the volume in memory. An operation that has inodes of several is decided at once, as servers
//! do it one step after the other.
use super::{FRONT, FakeCluster, State, config};
#[cfg(test)]
use cairn_meta_core::NamespaceBuilder;
use cairn_meta_core::{AppliedAt, MOVES, Namespace, NamespaceConfig, Outcome, TxId};
use cairn_types::{ErrorCode, PartitionId, WallTime};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::manager::Partition;
use cairn_wire::meta::*;
use prost::Message as _;
use std::collections::BTreeMap;

/// Inodes of a partition.
const RANGE: u64 = 1 << 32;

/// A partition as the map has it that names so many.
pub(super) fn partition(id: u32, of: u32) -> Partition {
    let inode_last = if id == of { u64::MAX } else { u64::from(id) * RANGE - 1 };
    let inode_first = (u64::from(id - 1) * RANGE).max(1);
    Partition { id, volume: 1, inode_first, inode_last, nodes: vec![FRONT], leader: FRONT, ..Partition::default() }
}

/// Every request of a partition begins with it.
pub(super) fn header_of(request: &[u8]) -> MetaHeader {
    EndSessionRequest::decode(request).ok().and_then(|request| request.header).unwrap_or_default()
}

impl FakeCluster {
    /// The same with so many partitions, empty but for the root.
    pub fn across(self, partitions: u32) -> FakeCluster {
        let namespace = |id: u32| {
            let inodes = partition(id, partitions);
            let inodes = inodes.inode_first..=inodes.inode_last;
            Namespace::new(&NamespaceConfig { partition: PartitionId(id), inodes, ..config() })
        };
        let mut state = self.fake.state.lock();
        (state.namespace, state.others) = (namespace(1), (2..=partitions).map(namespace).collect());
        drop(state);
        self.show(partitions);
        self
    }
    /// A partition as it is now, to be put back.
    #[cfg(test)]
    pub(crate) fn copy_of(&self, partition: u32) -> Namespace {
        let mut state = self.fake.state.lock();
        let snapshot = state.partition(partition).expect("it is there").snapshot();
        let (mut pages, mut builder, mut page) = (snapshot.pages(1 << 16), NamespaceBuilder::new(), Vec::new());
        while pages.next_into(&mut page) {
            builder.push_page(&page).expect("a page of a sound namespace");
        }
        builder.finish().expect("a sound namespace")
    }
    /// It is as it was then.
    #[cfg(test)]
    pub(crate) fn put_back(&self, namespace: Namespace) {
        let partition = namespace.partition().get();
        *self.fake.state.lock().partition(partition).expect("it is there") = namespace;
    }
    /// The map names so many of them.
    pub fn show(&self, partitions: u32) {
        let mut state = self.fake.state.lock();
        state.shown = partitions;
        state.version += 1;
    }
    /// The partition answers nothing from now on, or does again.
    pub fn silence(&self, partition: u32, silent: bool) {
        let mut state = self.fake.state.lock();
        if silent {
            state.silent.insert(partition)
        } else {
            state.silent.remove(&partition)
        };
    }
    /// Calls to partitions since the last time, by the operation's name.
    pub fn take_calls_at(&self) -> BTreeMap<(u32, &'static str), u64> {
        std::mem::take(&mut self.fake.state.lock().calls_at)
    }
}

impl State {
    /// Counts a call to a partition; false: that one does not answer.
    pub(super) fn notes(&mut self, opcode: Opcode, message: &[u8]) -> bool {
        if !matches!(opcode.code() >> 8, 0x04 | 0x05) {
            return true;
        }
        let partition = header_of(message).partition;
        *self.calls_at.entry((partition, opcode.name())).or_default() += 1;
        !self.silent.contains(&partition)
    }

    pub(super) fn partition(&mut self, id: u32) -> Result<&mut Namespace, WireError> {
        match id {
            0 | 1 => Ok(&mut self.namespace),
            id => self
                .others
                .get_mut(id as usize - 2)
                .ok_or_else(|| WireError::new(ErrorCode::UnknownPartition, "it is not served here")),
        }
    }

    /// The partition that has an inode.
    fn owner(&self, inode: u64) -> u32 {
        ((inode / RANGE) as u32).min(self.others.len() as u32) + 1
    }

    fn apply(&mut self, at: u32, opcode: Opcode, request: &[u8], out: &mut Vec<u8>) -> Result<(), WireError> {
        self.log_index += 1;
        let place = AppliedAt { index: self.log_index, term: 1, time: WallTime(1_000_000 + self.log_index) };
        self.partition(at)?.apply(place, opcode, request, out)
    }

    /// All members of the first partition understand this by now.
    #[cfg(test)]
    pub(crate) fn set_feature_level(&mut self, level: u32) {
        let request = SetFeatureLevel { level }.encode_to_vec();
        let applied = self.apply(1, Opcode::SetFeatureLevel, &request, &mut Vec::new());
        assert!(applied.is_ok(), "{applied:?}");
    }

    /// All members of all partitions do.
    #[cfg(test)]
    pub(crate) fn set_feature_levels(&mut self, level: u32) {
        let request = SetFeatureLevel { level }.encode_to_vec();
        for partition in 1..=self.others.len() as u32 + 1 {
            let applied = self.apply(partition, Opcode::SetFeatureLevel, &request, &mut Vec::new());
            assert!(applied.is_ok(), "{applied:?}");
        }
    }

    /// A mutation, with what it needs of other partitions.
    pub(super) fn decide(
        &mut self,
        at: u32,
        opcode: Opcode,
        request: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), WireError> {
        if self.others.is_empty() {
            return self.apply(at, opcode, request, out);
        }
        self.txs += 1;
        let tx = TxId { partition: at, term: 1, number: self.txs };
        let mut participants = Vec::new();
        if let Some(elsewhere) = self.asked_for(at, opcode, request) {
            let prepare = TxPrepare { tx: Some(tx.wire()), new_inode: true, ..TxPrepare::default() };
            self.prepare(elsewhere, &prepare, &mut participants)?;
        }
        loop {
            let wants = self.partition(at)?.tx_wants(opcode, request, &participants)?;
            if wants.is_empty() {
                break;
            }
            let moves = wants.moves.then_some((1, MOVES));
            let inodes = wants.inodes.iter().map(|inode| (self.owner(*inode), *inode)).chain(moves).collect::<Vec<_>>();
            for (to, inode) in inodes {
                let prepare = TxPrepare { tx: Some(tx.wire()), inodes: vec![inode], ..TxPrepare::default() };
                self.prepare(to, &prepare, &mut participants)?;
            }
            for (directory, name) in wants.names {
                let names = vec![TxName { directory, name, ..TxName::default() }];
                let prepare = TxPrepare { tx: Some(tx.wire()), inodes: vec![directory], names, new_inode: false };
                self.prepare(self.owner(directory), &prepare, &mut participants)?;
            }
            for directory in wants.above {
                let to = self.owner(directory);
                let seen = self.partition(to)?.tx_above(tx, directory)?;
                participant(&mut participants, to).seen.extend(seen);
            }
        }
        if participants.is_empty() {
            return self.apply(at, opcode, request, out);
        }
        let decide = TxDecide {
            tx: Some(tx.wire()),
            opcode: u32::from(opcode.code()),
            request: request.to_vec(),
            participants: participants.clone(),
            at_limit: 0,
        };
        let decided = self.apply(at, Opcode::TxDecide, &decide.encode_to_vec(), out);
        for participant in participants {
            let Some(prepared) = participant.prepared else { continue };
            let effects = match self.partition(at)?.tx_outcome(tx, participant.partition) {
                Outcome::Done(effects) => Some(effects),
                Outcome::NoRecord => None,
            };
            let finish = TxFinish { tx: Some(tx.wire()), effects, lock: prepared.lock };
            self.apply(participant.partition, Opcode::TxFinish, &finish.encode_to_vec(), &mut Vec::new())?;
        }
        if decided.is_ok() {
            let done = TxDone { txs: vec![tx.wire()] };
            self.apply(at, Opcode::TxDone, &done.encode_to_vec(), &mut Vec::new())?;
        }
        decided
    }

    /// Where a new directory is to be, if elsewhere.
    fn asked_for(&self, at: u32, opcode: Opcode, request: &[u8]) -> Option<u32> {
        let request = MkdirRequest::decode(request).ok().filter(|_| opcode == Opcode::Mkdir)?;
        // A repetition is answered with what was kept.
        let is_here = self.owner(request.parent) == at;
        Some(request.partition).filter(|partition| *partition != 0 && *partition != at && is_here)
    }

    fn prepare(
        &mut self,
        to: u32,
        request: &TxPrepare,
        participants: &mut Vec<TxParticipant>,
    ) -> Result<(), WireError> {
        let mut answer = Vec::new();
        self.apply(to, Opcode::TxPrepare, &request.encode_to_vec(), &mut answer)?;
        let answer = TxPrepared::decode(&answer[..]).expect("an answer of the namespace");
        let known = participant(participants, to).prepared.get_or_insert_default();
        (known.lock, known.new_inode) = (answer.lock, answer.new_inode.max(known.new_inode));
        known.inodes.retain(|image| !answer.inodes.iter().any(|other| other.inode == image.inode));
        known.inodes.extend(answer.inodes);
        known.names.extend(answer.names);
        Ok(())
    }
}

fn participant(participants: &mut Vec<TxParticipant>, partition: u32) -> &mut TxParticipant {
    let known = participants.iter().position(|participant| participant.partition == partition);
    let at = known.unwrap_or_else(|| {
        participants.push(TxParticipant { partition, ..TxParticipant::default() });
        participants.len() - 1
    });
    &mut participants[at]
}
