//! [`Outbox`]: messages of many groups that can wait a moment, so that one frame carries them.
//!
//! Heartbeats and their answers wait until their thread has nothing else to do; whatever goes to the same node before
//! takes them along. All others go at once. Not here: splitting what is too long for a frame
//! ([`crate::rpc_transport`]).

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_types::{NodeId, Time};
use cairn_wire::raft::{RaftBatch, RaftMessage};

use crate::pool;
use crate::transport::RaftTransport;

/// Wire codes of heartbeats and their answers.
pub(crate) const HEARTBEAT: u32 = 6;
pub(crate) const HEARTBEAT_RESPONSE: u32 = 7;
/// So many messages that wait are sent.
const WAITING_MAX: usize = 1024;

/// What waits in one thread. It is sent by whoever takes it out: that may end hosts, and so use this thread's outbox.
#[derive(Default)]
pub(crate) struct Outbox {
    waiting: BTreeMap<NodeId, Vec<RaftMessage>>,
    count: usize,
    /// When the first of them came.
    since: Time,
}

/// What goes into one frame, or a few.
pub(crate) type Frames = Vec<(NodeId, Vec<RaftMessage>)>;

fn may_wait(message: &RaftMessage) -> bool {
    matches!(message.kind, HEARTBEAT | HEARTBEAT_RESPONSE)
}

/// Sends what a group has for another node, with what waits for that one.
pub(crate) fn send(transport: &dyn RaftTransport, to: NodeId, messages: Vec<RaftMessage>, now: Time) {
    let mut messages = Some(messages);
    let frames = pool::with_outbox(|outbox| messages.take().map(|messages| outbox.put(to, messages, now)));
    let alone = messages.map(|messages| vec![(to, messages)]);
    send_all(transport, frames.flatten().or(alone).unwrap_or_default());
}

/// Sends frames.
pub(crate) fn send_all(transport: &dyn RaftTransport, frames: Frames) {
    for (to, messages) in frames {
        transport.send(to, RaftBatch { messages, ..RaftBatch::default() });
    }
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Gives what is to be sent at once.
    fn put(&mut self, to: NodeId, messages: Vec<RaftMessage>, now: Time) -> Frames {
        if !messages.iter().all(may_wait) {
            let mut all = self.waiting.remove(&to).unwrap_or_default();
            self.count -= all.len();
            all.extend(messages);
            return vec![(to, all)];
        }
        if self.count == 0 {
            self.since = now;
        }
        self.count += messages.len();
        self.waiting.entry(to).or_default().extend(messages);
        if self.count >= WAITING_MAX { self.take() } else { Frames::new() }
    }

    /// Gives what has waited for so long.
    pub fn take_older(&mut self, now: Time, than: Duration) -> Frames {
        let old = self.count > 0 && now.since(self.since) >= than;
        if old { self.take() } else { Frames::new() }
    }

    /// Gives everything.
    pub fn take(&mut self) -> Frames {
        self.count = 0;
        std::mem::take(&mut self.waiting).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u32, group: u32) -> RaftMessage {
        RaftMessage { kind, group, ..RaftMessage::default() }
    }

    /// Heartbeats of many groups would be a frame each, or an append would wait for the other groups of its thread.
    #[test]
    fn what_can_wait_goes_together_and_the_rest_at_once() {
        let (a, b) = (NodeId(1), NodeId(2));
        let mut outbox = Outbox::default();
        for group in 0..3 {
            assert!(outbox.put(a, vec![message(HEARTBEAT, group)], Time(5)).is_empty());
        }
        assert!(outbox.put(b, vec![message(HEARTBEAT_RESPONSE, 1)], Time(6)).is_empty());
        let frames = outbox.put(a, vec![message(1, 7)], Time(7));
        let groups: Vec<u32> = frames[0].1.iter().map(|message| message.group).collect();
        assert_eq!((frames.len(), frames[0].0, groups), (1, a, vec![0, 1, 2, 7]), "they go along");
        assert!(outbox.take_older(Time(7), Duration::from_nanos(3)).is_empty() && !outbox.is_empty());
        let frames = outbox.take_older(Time(8), Duration::from_nanos(3));
        assert_eq!((frames.len(), frames[0].0, outbox.is_empty()), (1, b, true));
        let full: Vec<_> = (0..WAITING_MAX as u32).map(|group| message(HEARTBEAT, group)).collect();
        assert_eq!(outbox.put(b, full, Time(9))[0].1.len(), WAITING_MAX, "what waits is bounded");
    }
}
