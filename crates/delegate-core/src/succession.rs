//! [`Succession`]: what a dead holder had acknowledged and not stored, on its way to the partition by whoever goes on.
//!
//! The dead one may have stored any part of it, and a batch of it may come yet: the partition counts items, so
//! whichever comes first is executed, and what it has is passed over. Invariants: batches follow each other without a
//! gap; one without items ends the delegation, when it is known here that all of them are stored: a successor that dies
//! behind it leaves nothing that the next one would take for lost.

use cairn_types::{ErrorCode, Time};
use cairn_wire::error::WireError;
use cairn_wire::meta::{BatchItem, BatchRequest, BatchResponse};

use crate::config::Config;
use crate::queue::Queue;

/// See the module.
#[derive(Debug)]
pub struct Succession {
    number: u64,
    queue: Queue,
}

impl Succession {
    /// Items of a delegation from a number on.
    pub fn new(number: u64, first: u64, items: impl IntoIterator<Item = BatchItem>) -> Self {
        let mut queue = Queue::beginning_at(first);
        items.into_iter().for_each(|item| queue.push(item, Time(0)));
        queue.all_sent();
        Self { number, queue }
    }

    /// Number of the first item that is not known to be stored.
    pub const fn stored(&self) -> u64 {
        self.queue.first()
    }

    /// How many are not known to be stored.
    pub fn left(&self) -> u64 {
        self.queue.end() - self.queue.first()
    }

    /// What is to be sent next. It stays the same until something is answered.
    pub fn batch(&mut self, config: &Config) -> BatchRequest {
        let (from, delegation) = (self.queue.first(), self.number);
        let items = self.queue.send(config.batch_items, config.batch_bytes);
        let end = self.queue.is_empty();
        BatchRequest { header: None, delegation, from, items, more_ids: 0, end, ids_to: 0 }
    }

    /// What the partition said. True: all is stored, and the delegation has ended.
    pub fn answered(&mut self, answer: Result<BatchResponse, WireError>) -> Result<bool, WireError> {
        let answer = match answer {
            // Whoever ended it meanwhile, nothing is left.
            Err(_) if self.queue.is_empty() => return Ok(true),
            answer => answer?,
        };
        if !self.queue.stored(answer.next) {
            let text = "the partition has more than was left of a delegation: a fault of the program";
            return Err(WireError::new(ErrorCode::Internal, text));
        }
        if answer.error != 0 {
            return Err(WireError::new(ErrorCode::Internal, String::from_utf8_lossy(&answer.text)));
        }
        Ok(answer.ended)
    }
}
