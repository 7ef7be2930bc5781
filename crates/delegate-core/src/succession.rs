//! [`Succession`]: what a dead holder had acknowledged and not stored, on its way to the partition by whoever goes on.
//!
//! The dead one may have stored any part of it, and a batch of it may come yet: the partition counts items, so
//! whichever comes first is executed, and what it has is passed over. Invariants: batches follow each other without a
//! gap; the one with the last item ends the delegation, which is led by nobody meanwhile.

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

    /// How many are not known to be stored.
    pub fn left(&self) -> u64 {
        self.queue.end() - self.queue.first()
    }

    /// What is to be sent next. It stays the same until something is answered.
    pub fn batch(&mut self, config: &Config) -> BatchRequest {
        let (from, delegation) = (self.queue.first(), self.number);
        let items = self.queue.send(config.batch_items, config.batch_bytes);
        let end = from + items.len() as u64 == self.queue.end();
        BatchRequest { header: None, delegation, from, items, more_ids: 0, end, ids_to: 0 }
    }

    /// What the partition said. True: all is stored, and the delegation has ended.
    pub fn answered(&mut self, answer: &BatchResponse) -> Result<bool, WireError> {
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
