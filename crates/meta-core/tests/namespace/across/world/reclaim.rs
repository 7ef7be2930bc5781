//! What leaders do by themselves: taking removed trees apart.
use super::{CLIENTS, Under, World};
use cairn_meta_core::{Namespace, TxId};
use cairn_model::{Caller, Operation, Request};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::meta::{ReclaimBatch, ReclaimEntry, TxDecide};
use prost::Message;

/// Whether an entry of the log is a leader's own, on an entry of a removed directory.
pub fn is_reclaim_entry(opcode: Opcode, bytes: &[u8]) -> bool {
    let decided = || TxDecide::decode(bytes).is_ok_and(|decide| decide.opcode == Opcode::ReclaimEntry.code().into());
    opcode == Opcode::ReclaimEntry || opcode == Opcode::TxDecide && decided()
}

impl World {
    /// A bounded step on what one partition has to take apart.
    pub(super) fn reclaim(&mut self, at: u32) {
        if self.part(at).namespace.reclaimable().is_empty() {
            return;
        }
        let request = ReclaimBatch { inodes_max: 1 + self.rng.below(4) as u32, ..ReclaimBatch::default() };
        self.apply(at, Opcode::ReclaimBatch, &request.encode_to_vec()).expect("it takes apart what it can");
        self.forget_removed();
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
        let entry = Some(ReclaimEntry { directory, name });
        self.clients[duty] = Some(Under::new(request, nothing, entry, at));
    }

    pub(super) fn reclaimed(&mut self, at: u32, duty: usize, tx: TxId, opcode: Opcode, bytes: &[u8]) {
        let answer = self.apply(at, opcode, bytes);
        let of_now = |under: &Under| under.proposed && (under.tx == Some(tx) || opcode != Opcode::TxDecide);
        let is_waited_for = self.clients[duty].as_ref().is_some_and(of_now);
        match answer {
            Ok(_) => {
                self.note(if opcode == Opcode::TxDecide { "ReclaimEntry across" } else { "ReclaimEntry here" });
                if is_waited_for {
                    self.clients[duty] = None;
                }
                self.forget_removed();
            }
            Err(error) => {
                assert!(error.code == ErrorCode::LeaseHeld || Namespace::is_prepared_anew(&error), "{error:?}");
                if is_waited_for {
                    self.begin_anew(duty, "ReclaimEntry begun anew");
                }
            }
        }
    }
}
