//! What leaders do by themselves: taking removed trees apart, and giving directories shards.
use super::{CLIENTS, PARTITIONS, Under, World, owner};
use cairn_meta_core::{Namespace, TxId};
use cairn_model::{Caller, Operation, Request};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{AddShard, ReclaimBatch, ReclaimEntry, TxDecide};
use prost::Message;

/// What an entry of the log is about, whether decided with others or not.
fn about(opcode: Opcode, bytes: &[u8]) -> Option<Opcode> {
    if opcode != Opcode::TxDecide {
        return Some(opcode);
    }
    let decide = TxDecide::decode(bytes).ok()?;
    Opcode::from_code(u16::try_from(decide.opcode).ok()?)
}

/// Whether it is a leader's own.
pub fn is_own(opcode: Opcode, bytes: &[u8]) -> bool {
    matches!(about(opcode, bytes), Some(Opcode::ReclaimEntry | Opcode::AddShard))
}

fn is_gone(error: &WireError) -> bool {
    matches!(error.code, ErrorCode::Stale | ErrorCode::NotFound)
}

impl World {
    /// A bounded step on what one partition has to take apart.
    pub(super) fn reclaim(&mut self, at: u32) {
        if self.is_held(at) || self.part(at).namespace.reclaimable().is_empty() {
            return;
        }
        let request = ReclaimBatch { inodes_max: 1 + self.rng.below(4) as u32, ..ReclaimBatch::default() };
        self.apply(at, Opcode::ReclaimBatch, &request.encode_to_vec()).expect("it takes apart what it can");
        self.forget_removed();
    }

    /// The leader of a partition takes something up that it cannot do alone.
    pub(super) fn begin_own(&mut self, duty: usize) {
        if self.shards.wanted && self.rng.below(3) == 0 { self.begin_shard(duty) } else { self.begin_reclaim(duty) }
    }

    /// The leader of a partition takes up an entry that it cannot take out alone.
    pub(super) fn begin_reclaim(&mut self, duty: usize) {
        let at = (duty - CLIENTS) as u32 + 1;
        let blocked = self.part(at).namespace.reclaim_blocked(4);
        if blocked.is_empty() {
            return;
        }
        let (directory, name) = blocked[self.rng.below(blocked.len() as u64) as usize].clone();
        let caller = Caller { uid: 0, gid: 0, groups: vec![] };
        let request = Request { caller, session: 0, slot: 0, sequence: 0, now: 0 };
        let nothing = Operation::Rmdir { parent: 0, name: Vec::new() };
        let own = Some((Opcode::ReclaimEntry, ReclaimEntry { directory, name }.encode_to_vec()));
        self.clients[duty] = Some(Under::new(request, nothing, own, at));
    }

    /// A directory gets its next shard, or its first one.
    fn begin_shard(&mut self, duty: usize) {
        let at = (duty - CLIENTS) as u32 + 1;
        let directories = self.model.nodes.iter().filter(|(inode, node)| node.is_directory() && owner(**inode) == at);
        let directories: Vec<u64> = directories.map(|(inode, _)| *inode).collect();
        if directories.is_empty() {
            return;
        }
        let directory = directories[self.rng.below(directories.len() as u64) as usize];
        let Ok((index, false)) = self.part(at).namespace.shards_of(directory) else { return };
        let elsewhere = 1 + self.rng.below(PARTITIONS.into()) as u32;
        // Who makes it anew after another leader says the same number.
        let shard =
            AddShard { directory, index: index.into(), count: 1 + (directory % 3) as u32, partition: elsewhere };
        let caller = Caller { uid: 0, gid: 0, groups: vec![] };
        let request = Request { caller, session: 0, slot: 0, sequence: 0, now: 0 };
        let nothing = Operation::Rmdir { parent: 0, name: Vec::new() };
        let mut under = Under::new(request, nothing, Some((Opcode::AddShard, shard.encode_to_vec())), at);
        under.elsewhere = if elsewhere == at { 0 } else { elsewhere };
        self.clients[duty] = Some(under);
    }

    fn note_shard(&mut self, opcode: Opcode, bytes: &[u8]) {
        let decided = TxDecide::decode(bytes).ok().filter(|_| opcode == Opcode::TxDecide);
        let bytes = decided.map_or_else(|| bytes.to_vec(), |decide| decide.request);
        let shard = AddShard::decode(bytes.as_slice()).expect("as it was encoded");
        self.shards.known.insert(shard.directory);
    }

    pub(super) fn own_applied(&mut self, at: u32, duty: usize, tx: TxId, opcode: Opcode, bytes: &[u8]) {
        let answer = self.apply(at, opcode, bytes);
        let of_now = |under: &Under| under.proposed && (under.tx == Some(tx) || opcode != Opcode::TxDecide);
        let is_waited_for = self.clients[duty].as_ref().is_some_and(of_now);
        match answer {
            Ok(_) => {
                let what = about(opcode, bytes).map_or("nothing", Opcode::name);
                self.note(&format!("{what} {}", if opcode == Opcode::TxDecide { "across" } else { "here" }));
                if about(opcode, bytes) == Some(Opcode::AddShard) {
                    self.note_shard(opcode, bytes);
                }
                if is_waited_for {
                    self.clients[duty] = None;
                }
                self.forget_removed();
            }
            // The directory was removed meanwhile.
            Err(error) if about(opcode, bytes) == Some(Opcode::AddShard) && is_gone(&error) => {
                if is_waited_for {
                    self.begin_anew(duty, "no shard of what is gone");
                    self.clients[duty] = None;
                }
            }
            Err(error) => {
                assert!(error.code == ErrorCode::LeaseHeld || Namespace::is_prepared_anew(&error), "{error:?}");
                if is_waited_for {
                    self.begin_anew(duty, "own begun anew");
                }
            }
        }
    }
}
