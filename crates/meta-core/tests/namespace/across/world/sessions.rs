//! Sessions of the clients, which end at any moment, also while an operation is under way: what was decided is done,
//! and nothing else.
use super::{PARTITIONS, World};
use cairn_wire::Opcode;
use cairn_wire::meta::ExpireSessions;
use prost::Message;
use std::collections::BTreeMap;

/// Which one each client has, where it is not its first.
#[derive(Default)]
pub(super) struct Sessions {
    of: BTreeMap<usize, u64>,
    ended: u64,
}

impl World {
    pub fn session_of(&self, client: usize) -> u64 {
        self.sessions.of.get(&client).copied().unwrap_or(client as u64 + 1)
    }

    /// One time in a while, somebody's session is over, at all partitions. The client has another one from then on;
    /// what it has under way goes on under the old one.
    pub(super) fn end_a_session(&mut self) {
        if self.rng.below(200) != 0 || (1..=PARTITIONS).any(|at| self.is_held(at)) {
            return;
        }
        let client = self.rng.below(super::CLIENTS as u64) as usize;
        let session = self.session_of(client);
        let request = ExpireSessions { sessions: vec![session], ..ExpireSessions::default() };
        for at in 1..=PARTITIONS {
            self.apply(at, Opcode::ExpireSessions, &request.encode_to_vec()).expect("it ends");
        }
        self.model.end_session(session);
        self.forget_answers_of(session);
        self.note(if self.clients[client].is_some() { "session ended at work" } else { "session ended" });
        self.sessions.ended += 1;
        self.sessions.of.insert(client, super::CLIENTS as u64 + self.sessions.ended);
        self.sequences.retain(|(of, _), _| *of != client);
    }
}
