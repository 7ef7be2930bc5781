//! Reads of names from a member of a partition that does not lead, when the leader does not answer and that was
//! allowed.
//!
//! All members are asked at once and the youngest answer is taken; from then on the same member is asked, so that what
//! one command sees fits together, until the leader is looked for again.
use super::call::MetaCaller;
use crate::encoded_message::EncodedMessage;
use crate::error::{ClientError, Result};
use crate::net::NetError;
use crate::refusal::Refusal;
use crate::stale::{STALE_DEADLINE, Stale};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::meta::{ReadStaleRequest, ReadStaleResponse};
use std::time::Duration;
use tokio::task::JoinSet;

type Answer = std::result::Result<ReadStaleResponse, NetError>;

impl MetaCaller {
    /// An answer of the member that answered for the leader a moment ago, if there is one.
    pub(super) async fn read_from_deputy(
        &self,
        what: &str,
        partition: u32,
        opcode: Opcode,
        request: &EncodedMessage,
    ) -> Option<Result<EncodedMessage>> {
        let stale = &self.cluster.stale;
        let address = stale.deputy(partition, self.cluster.clock.now())?;
        let question = self.question(partition, opcode, request);
        match self.cluster.net.call::<ReadStaleResponse>(&address, Opcode::ReadStale, &question, STALE_DEADLINE).await {
            Ok(answer) => Some(self.take(what, partition, &address, answer)),
            Err(_) => {
                stale.forget(partition);
                None
            }
        }
    }

    /// The youngest answer of any member. `last`: why the leader gave none.
    pub(super) async fn read_from_any(
        &self,
        what: &str,
        partition: u32,
        opcode: Opcode,
        request: &EncodedMessage,
        last: String,
    ) -> Result<EncodedMessage> {
        let question = self.question(partition, opcode, request);
        let mut asked = JoinSet::new();
        for address in self.member_addresses(partition) {
            let (net, question) = (self.cluster.net.clone(), question.clone());
            asked.spawn(async move {
                let answer: Answer = net.call(&address, Opcode::ReadStale, &question, STALE_DEADLINE).await;
                (address, answer)
            });
        }
        let mut youngest: Option<(String, ReadStaleResponse)> = None;
        let mut refusals = vec![last];
        while let Some(joined) = asked.join_next().await {
            match joined {
                Ok((address, Ok(answer))) => {
                    if youngest.as_ref().is_none_or(|(_, best)| answer.age_ms < best.age_ms) {
                        youngest = Some((address, answer));
                    }
                }
                Ok((address, Err(error))) => refusals.push(format!("{address}: {}", error.text())),
                Err(error) => refusals.push(error.to_string()),
            }
        }
        match youngest {
            Some((address, answer)) => {
                self.cluster.stale.answered(partition, &address, self.cluster.clock.now());
                self.take(what, partition, &address, answer)
            }
            None => {
                let waited = Stale::pace(self.patient()).patience;
                let group = format!("partition p{partition}");
                Err(self.cluster.no_leader(waited, what, group, refusals.join("; "), true))
            }
        }
    }

    fn question(&self, partition: u32, opcode: Opcode, request: &EncodedMessage) -> ReadStaleRequest {
        ReadStaleRequest {
            header: Some(self.read_header(partition)),
            opcode: u32::from(opcode.code()),
            request: request.to_vec(),
            age_ms_max: self.cluster.stale.age_ms_max(),
        }
    }

    fn take(&self, what: &str, partition: u32, address: &str, answer: ReadStaleResponse) -> Result<EncodedMessage> {
        if answer.age_ms > 0 {
            let age = Duration::from_millis(answer.age_ms);
            self.cluster.stale.note(format!("partition p{partition}"), address, age);
        } else {
            // It leads: the next read goes to it as any other.
            self.cluster.stale.forget(partition);
        }
        if answer.error != 0 {
            let code = u16::try_from(answer.error).ok().and_then(ErrorCode::from_code).unwrap_or(ErrorCode::Internal);
            return Err(ClientError::Remote { what: what.into(), error: Refusal::new(code, answer.error_text) });
        }
        Ok(answer.answer.into())
    }
}
