//! Turns of those who append to one file at the same time, as the leader of the cluster in memory gives them. Nobody is
//! parked: who has to wait asks again.
use super::{State, decode};
use cairn_meta_core::{AppendTurns, TurnState};
use cairn_types::Time;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{AppendTurnRequest, AppendTurnResponse, Attributes, AttributesResponse, PublishRequest};
use prost::Message as _;

pub(crate) struct Turns {
    turns: AppendTurns,
    begun: tokio::time::Instant,
    /// Turns that were taken.
    pub(crate) taken: u64,
    /// Publishes that would have taken another one's.
    pub(crate) pushed_in: u64,
}

impl Default for Turns {
    fn default() -> Self {
        Self { turns: AppendTurns::default(), begun: tokio::time::Instant::now(), taken: 0, pushed_in: 0 }
    }
}

impl Turns {
    fn now(&self) -> Time {
        Time(self.begun.elapsed().as_nanos() as u64)
    }
}

impl State {
    pub(super) fn append_turn(&mut self, at: u32, message: &[u8], out: &mut Vec<u8>) -> Result<(), WireError> {
        let request: AppendTurnRequest = decode(message)?;
        let attributes = self.found(at, message)?;
        let (inode, size, now) = (request.inode, attributes.size, self.turns.now());
        let answer = if request.number == 0 {
            let turn = self.turns.turns.take(inode, size, request.length, now);
            let (number, begin) = turn.expect("tests have no thousand writers");
            self.turns.taken += 1;
            AppendTurnResponse { attributes: Some(attributes), number, begin, state: u32::from(begin == size) }
        } else if request.give_up {
            self.turns.turns.give_up(inode, request.number);
            AppendTurnResponse { attributes: Some(attributes), number: request.number, begin: 0, state: 2 }
        } else {
            let state = match self.turns.turns.state(inode, request.number, size, now) {
                TurnState::Waits => 0,
                TurnState::First => 1,
                TurnState::Gone => 2,
            };
            AppendTurnResponse { attributes: Some(attributes), number: request.number, begin: 0, state }
        };
        answer.encode(out).expect("a Vec grows as needed");
        Ok(())
    }
    /// A publish that would take another one's turn, as it is logged.
    pub(super) fn heed_append_turns(&mut self, at: u32, message: &[u8]) -> Result<Option<Vec<u8>>, WireError> {
        let request: PublishRequest = decode(message)?;
        if !request.check_size || request.turn == 0 {
            return Ok(None);
        }
        let Ok(Attributes { size, .. }) = self.found(at, message) else { return Ok(None) };
        let now = self.turns.now();
        if size != request.if_size || self.turns.turns.admits(request.inode, request.turn, size, now) {
            return Ok(None);
        }
        self.turns.pushed_in += 1;
        Ok(Some(PublishRequest { if_data_version: u64::MAX, ..request }.encode_to_vec()))
    }
    fn found(&mut self, at: u32, message: &[u8]) -> Result<Attributes, WireError> {
        let mut answer = Vec::new();
        self.partition(at)?.read(Opcode::Getattr, message, &mut answer)?;
        Ok(decode::<AttributesResponse>(&answer)?.attributes.unwrap_or_default())
    }
}
