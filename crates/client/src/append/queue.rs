//! Parts that wait to be sent, in their order. Rows are encoded meanwhile, on other threads.
//!
//! Bounds: [`ENCODING_MAX`] parts are encoded at a time, [`READY_MAX`] are encoded and wait.
use super::part::{Bytes, Cut, Part};
use crate::error::ClientError;
use crate::stripe::encode::Encoder;
use cairn_erasure::ErasureError;
use std::collections::VecDeque;
use tokio::task::JoinHandle;

/// Parts that are encoded at the same time.
const ENCODING_MAX: usize = 2;
/// Parts that are encoded and wait to be sent: more would keep parity in memory for nothing.
const READY_MAX: usize = 2;

type Encoding = JoinHandle<(Part, Result<Vec<Cut>, ErasureError>)>;

pub(super) struct Queue {
    /// Of a stream of rows.
    encoder: Option<Encoder>,
    waiting: VecDeque<Part>,
    encoding: VecDeque<Encoding>,
    ready: VecDeque<(Part, Vec<Cut>)>,
}

impl Queue {
    pub fn new(encoder: Option<Encoder>) -> Self {
        Self { encoder, waiting: VecDeque::new(), encoding: VecDeque::new(), ready: VecDeque::new() }
    }
    pub fn push(&mut self, part: Part) {
        self.waiting.push_back(part);
    }
    /// What comes back from a chunk that failed goes first, but behind what is encoded.
    pub fn push_front(&mut self, part: Part) {
        self.waiting.push_front(part);
    }
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.encoding.is_empty() && self.ready.is_empty()
    }
    /// Somebody waits for all of it.
    pub fn want_sync(&mut self) {
        let ready = self.ready.iter_mut().map(|(part, _)| part);
        self.waiting.iter_mut().chain(ready).for_each(|part| part.sync = true);
    }
    /// The part that a chunk would begin with.
    pub fn first(&self) -> Option<&Part> {
        self.ready.front().map(|(part, _)| part).or(self.waiting.front())
    }
    /// The part that can be sent now.
    pub fn next(&mut self) -> Option<&Part> {
        self.forget();
        if self.encoder.is_some() { self.ready.front().map(|(part, _)| part) } else { self.waiting.front() }
    }
    /// Takes it, with what each lane gets if it is encoded.
    pub fn take(&mut self) -> Option<(Part, Option<Vec<Cut>>)> {
        match self.encoder {
            Some(_) => self.ready.pop_front().map(|(part, cuts)| (part, Some(cuts))),
            None => self.waiting.pop_front().map(|part| (part, None)),
        }
    }

    /// What waits in front and is of no use to anybody is not sent: its writer was dropped.
    fn forget(&mut self) {
        while self.ready.front().is_some_and(|(part, _)| part.is_given_up()) {
            self.ready.pop_front();
        }
        while self.waiting.front().is_some_and(Part::is_given_up) {
            self.waiting.pop_front();
        }
    }

    /// Begins to encode as many as may be.
    pub fn begin(&mut self) {
        self.forget();
        let Some(encoder) = &self.encoder else { return };
        while self.encoding.len() < ENCODING_MAX && self.encoding.len() + self.ready.len() < ENCODING_MAX + READY_MAX {
            let Some(part) = self.waiting.pop_front() else { return };
            let encoder = encoder.clone();
            self.encoding.push_back(tokio::task::spawn_blocking(move || {
                let cuts = match &part.bytes {
                    Bytes::Units(units) => encoder.encode(units),
                    Bytes::Segment { .. } => Ok(Vec::new()),
                };
                (part, cuts)
            }));
        }
    }
    /// Waits until the first one is encoded; for ever if there is none. May be dropped and called again.
    pub async fn encoded(&mut self) {
        let Some(first) = self.encoding.front_mut() else { return std::future::pending().await };
        let encoded = first.await;
        self.encoding.pop_front();
        match encoded {
            Ok((part, Ok(cuts))) => self.ready.push_back((part, cuts)),
            Ok((part, Err(error))) => part.fail(&ClientError::protocol("encoding", error.to_string())),
            // The part's writer sees that its answer never comes.
            Err(join) => tracing::error!(%join, "the encoding of rows ended"),
        }
    }
    /// All of them fail but those that were shown; how many these are.
    pub fn fail(&mut self, error: &ClientError) -> usize {
        for encoding in self.encoding.drain(..) {
            let error = error.clone();
            tokio::spawn(async move {
                if let Ok((part, _)) = encoding.await {
                    part.fail(&error);
                }
            });
        }
        let waiting: Vec<Part> = self.ready.drain(..).map(|(part, _)| part).chain(self.waiting.drain(..)).collect();
        let (shown, failed): (VecDeque<_>, VecDeque<_>) = waiting.into_iter().partition(Part::is_shown);
        failed.into_iter().for_each(|part| part.fail(error));
        self.waiting = shown;
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append::part::Show;
    use crate::append::retry::Retry;
    use crate::append::segment::block_crcs;
    use cairn_env::buf::SharedBuf;
    use std::sync::{Arc, OnceLock};
    use tokio::sync::{Semaphore, oneshot};

    /// What a writer that was dropped had under way would be sent for nothing, chunks be opened for it, and a cluster
    /// without room be asked for the whole patience. What may have a name has to stay.
    #[test]
    fn parts_that_nobody_waits_for_are_forgotten() {
        let part = |length: usize| {
            let data = SharedBuf::from_owner(vec![1u8; length]);
            let bytes = Bytes::Segment { crcs: block_crcs(&data), data, lead: 0 };
            let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("a permit");
            let (done, answer) = oneshot::channel();
            (Part { bytes, sync: false, done, show: None, retry: Retry::default(), _permit: permit }, answer)
        };
        let mut queue = Queue::new(None);
        let (dropped, answer) = part(1);
        queue.push(dropped);
        drop(answer);
        let (shown, answer) = part(2);
        queue.push(Part { show: Some(Show { tell: None, at: Arc::new(OnceLock::new()) }), ..shown });
        drop(answer);
        let (dropped, answer) = part(3);
        queue.push(dropped);
        drop(answer);
        let (kept, _answer) = part(4);
        queue.push(kept);
        let mut left = Vec::new();
        while let Some(length) = queue.next().map(|part| part.bytes.len()) {
            left.push(length);
            queue.take();
        }
        assert_eq!(left, [2, 4]);
        let (dropped, answer) = part(5);
        queue.push(dropped);
        drop(answer);
        queue.begin();
        assert!(queue.is_empty());
    }
}
