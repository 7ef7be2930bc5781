//! Turns of those who append to one file at the same time: asked for at the leader of its partition, and waited for
//! there.
use super::{Volume, shown};
use crate::error::Result;
use cairn_wire::Opcode;
use cairn_wire::meta::{AppendTurnRequest, AppendTurnResponse};

/// One request waits no longer: its deadline has to be behind that.
const WAIT_MS: u32 = 2000;

impl Volume {
    /// A turn behind all others, for so many bytes.
    pub(crate) async fn take_append_turn(&self, inode: u64, path: &[u8], length: u64) -> Result<AppendTurnResponse> {
        self.ask_append_turn(inode, path, AppendTurnRequest { inode, length, ..AppendTurnRequest::default() }).await
    }
    /// How a turn stands, when it is the first or gone, or after a while.
    pub(crate) async fn await_append_turn(&self, inode: u64, path: &[u8], number: u64) -> Result<AppendTurnResponse> {
        let request = AppendTurnRequest { inode, number, wait_ms: WAIT_MS, ..AppendTurnRequest::default() };
        self.ask_append_turn(inode, path, request).await
    }
    /// The turn is not used.
    pub(crate) async fn give_up_append_turn(&self, inode: u64, path: &[u8], number: u64) -> Result<AppendTurnResponse> {
        let request = AppendTurnRequest { inode, number, give_up: true, ..AppendTurnRequest::default() };
        self.ask_append_turn(inode, path, request).await
    }
    async fn ask_append_turn(&self, inode: u64, path: &[u8], asked: AppendTurnRequest) -> Result<AppendTurnResponse> {
        let request = |header| AppendTurnRequest { header: Some(header), ..asked.clone() };
        self.caller.read_by(&shown(path), inode, Opcode::AppendTurn, request).await
    }
}
