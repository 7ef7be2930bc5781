//! [`Queue`]: items that were acknowledged and may not be stored yet, in order, under the numbers that the partition
//! counts.
//!
//! Invariants: the items are `first() .. end()`, without a gap; everything before `first()` is stored. `first` never
//! goes back, and `first() <= sent() <= end()`: what is below `sent` has been sent at least once.

use std::collections::VecDeque;

use cairn_types::Time;
use cairn_wire::meta::BatchItem;
use prost::Message;

/// See the module.
#[derive(Debug, Default)]
pub struct Queue {
    items: VecDeque<Queued>,
    first: u64,
    sent: u64,
    bytes: usize,
}

/// An item, when it was acknowledged, and its length in a batch.
#[derive(Debug)]
struct Queued {
    item: BatchItem,
    since: Time,
    bytes: usize,
}

impl Queue {
    /// One whose first item has that number.
    pub fn beginning_at(first: u64) -> Self {
        Self { first, sent: first, ..Self::default() }
    }

    /// Whoever had it before may have sent any of what is in it.
    pub fn all_sent(&mut self) {
        self.sent = self.end();
    }

    /// An item more.
    pub fn push(&mut self, item: BatchItem, since: Time) {
        // A tag and a length.
        let bytes = item.encoded_len() + 8;
        self.bytes += bytes;
        self.items.push_back(Queued { item, since, bytes });
    }

    /// Number of the first item that may not be stored.
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// Number of the next item.
    pub fn end(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    /// What is below it has been sent.
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Of all that waits.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether everything is stored.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Since when the first one waits.
    pub fn oldest(&self) -> Option<Time> {
        self.items.front().map(|queued| queued.since)
    }

    /// Items from a number on, which is not before the first one.
    pub fn items_from(&self, number: u64) -> impl Iterator<Item = (u64, &BatchItem)> {
        let number = number.max(self.first);
        let skipped = usize::try_from(number - self.first).unwrap_or(usize::MAX);
        (number..).zip(self.items.iter().skip(skipped).map(|queued| &queued.item))
    }

    /// Items from the first one on, as many as there may be; at least one if there is any. They count as sent.
    pub fn send(&mut self, items_max: usize, bytes_max: usize) -> Vec<BatchItem> {
        let mut bytes = 0;
        let fits = |queued: &&Queued| {
            bytes += queued.bytes;
            bytes == queued.bytes || bytes <= bytes_max
        };
        let items: Vec<BatchItem> =
            self.items.iter().take(items_max).take_while(fits).map(|queued| queued.item.clone()).collect();
        self.sent = self.sent.max(self.first + items.len() as u64);
        items
    }

    /// Everything below is stored. False: such items were never sent.
    pub fn stored(&mut self, next: u64) -> bool {
        if next > self.sent {
            return false;
        }
        while self.first < next {
            let Some(queued) = self.items.pop_front() else { return false };
            self.bytes -= queued.bytes;
            self.first += 1;
        }
        self.sent = self.sent.max(self.first);
        true
    }

    /// What waits, which is never sent any more.
    pub fn give_up(&mut self) -> Vec<BatchItem> {
        (self.bytes, self.sent) = (0, self.first);
        std::mem::take(&mut self.items).into_iter().map(|queued| queued.item).collect()
    }

    /// What is broken, if anything is.
    pub fn violation(&self) -> Option<String> {
        let bytes: usize = self.items.iter().map(|queued| queued.bytes).sum();
        let sorted = self.items.iter().is_sorted_by_key(|queued| (queued.since, queued.item.time_ns));
        let sound = bytes == self.bytes && sorted && self.first <= self.sent && self.sent <= self.end();
        (!sound).then(|| {
            format!("a queue of items {}..{}, {} sent, {} bytes", self.first, self.end(), self.sent, self.bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(count: u64) -> Queue {
        let mut queue = Queue::default();
        for time_ns in 0..count {
            queue.push(BatchItem { time_ns, request: vec![0; 100], ..BatchItem::default() }, Time(time_ns));
        }
        queue
    }

    /// An item would be sent under another's number, or one that is stored be counted twice.
    #[test]
    fn numbers_stay_whatever_is_stored() {
        let mut queue = queue(10);
        assert_eq!(queue.send(4, usize::MAX).len(), 4);
        assert_eq!((queue.first(), queue.sent(), queue.end()), (0, 4, 10));
        assert!(!queue.stored(5), "it was acknowledged and never sent");
        assert!(queue.stored(3));
        assert!(queue.stored(2), "a late answer");
        assert_eq!(queue.send(256, usize::MAX)[0].time_ns, 3);
        assert!(!queue.stored(11));
        assert_eq!(queue.violation(), None);
        assert_eq!(queue.give_up().len(), 7);
    }

    /// A batch would be longer than a request may be, or an item that is larger than all bounds wait for ever.
    #[test]
    fn a_batch_has_a_bound_of_bytes_and_at_least_one_item() {
        let mut queue = queue(10);
        assert_eq!(queue.send(256, 350).len(), 3);
        assert_eq!(queue.send(256, 1).len(), 1);
    }
}
