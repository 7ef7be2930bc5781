//! Batches under way, and every way in which a delegation ends.
use super::*;
use cairn_wire::meta::{BatchRequest, BatchResponse, EndDelegationsRequest, MetaHeader};
use prost::Message;

/// Slots of batches. One whose request is under way is not used again.
const SLOTS: std::ops::Range<u32> = 5..12;
/// Of what ends delegations in bulk.
const BULK: u32 = 4;

impl World {
    fn header(&mut self, session: u64, slot: u32) -> Option<MetaHeader> {
        let sequence = self.sequences.entry((session, slot)).or_default();
        *sequence += 1;
        let who = Some(Credentials { uid: 0, gid: 0, groups: vec![] });
        Some(MetaHeader { volume: 1, partition: 1, session, slot, sequence: *sequence, who })
    }

    /// A request as it goes out; none if all slots are in use.
    fn send(&mut self, request: BatchRequest, session: u64) -> Option<Sent> {
        let is_busy = |slot: &u32| self.delayed.iter().any(|sent| (sent.session, sent.slot) == (session, *slot));
        let free: Vec<u32> = SLOTS.filter(|slot| !is_busy(slot)).collect();
        let slot = *free.get(self.random.below(free.len()))?;
        let header = self.header(session, slot);
        let number = request.delegation;
        Some(Sent { session, slot, number, bytes: BatchRequest { header, ..request }.encode_to_vec() })
    }

    fn arrive(&mut self, sent: &Sent) -> Result<BatchResponse, ErrorCode> {
        let answer = self.pair.driver.log(Opcode::Batch, sent.bytes.clone())?;
        Ok(BatchResponse::decode(answer.as_slice()).expect("the answer is protobuf"))
    }

    /// The answer reaches the holder.
    fn take(&mut self, number: u64, answer: &BatchResponse) {
        let text = String::from_utf8_lossy(&answer.text);
        assert_eq!(answer.error, 0, "the partition refuses what its holder answered: {text}");
        let Some(holder) = self.holders.get_mut(&number) else { return };
        let before = holder.ids_to;
        holder.answered(answer);
        if holder.ids_to > before {
            self.note("more numbers");
        } else if answer.first != 0 {
            self.note("told again");
        }
        if answer.ended {
            self.holders.remove(&number);
            self.recalled.remove(&number);
            self.note("ended by its holder");
        }
    }

    /// Some items of a delegation are sent, and may be lost, late, or come twice.
    pub(super) fn send_some(&mut self, number: u64) {
        let Some(holder) = self.holders.get(&number) else { return };
        let (session, first, waiting) = (holder.session, holder.first, holder.queue.len());
        let from = if self.random.once_in(4) { first + self.random.below(waiting + 1) as u64 } else { first };
        let count = self.random.below(waiting + 2);
        let mut request = self.holders[&number].items(from, count);
        request.more_ids = if self.random.once_in(4) { 4 } else { 0 };
        let Some(sent) = self.send(request, session) else { return };
        match self.random.below(6) {
            0 => self.delayed.push(sent),
            1 => {
                self.note("answer lost");
                let _ = self.arrive(&sent);
                self.delayed.push(sent);
            }
            _ => self.deliver(sent),
        }
    }

    /// A request arrives, and its answer.
    fn deliver(&mut self, sent: Sent) {
        let is_live = self.pair.sessions.contains(&sent.session);
        let before = self.holders.get(&sent.number).map(|holder| holder.first);
        match self.arrive(&sent) {
            Ok(answer) => {
                let from = BatchRequest::decode(sent.bytes.as_slice()).expect("as it was encoded").from;
                if before.is_some_and(|first| from < first) {
                    self.note("overlap");
                }
                self.take(sent.number, &answer);
            }
            Err(ErrorCode::Conflict) => self.note("gap"),
            Err(ErrorCode::SessionEnded) => {
                assert!(!is_live, "the session lives");
                self.note("fenced");
            }
            Err(ErrorCode::Stale) => {
                assert!(!self.holders.contains_key(&sent.number), "the delegation lasts");
                self.note("batch late");
            }
            Err(error) => panic!("a batch is refused: {error:?}"),
        }
        // What lost its last name by it is gone in the model.
        self.reclaim();
    }

    pub(super) fn deliver_delayed(&mut self) {
        if !self.delayed.is_empty() {
            let at = self.random.below(self.delayed.len());
            let sent = self.delayed.swap_remove(at);
            self.deliver(sent);
        }
    }

    /// Everything of a delegation is stored, for certain.
    pub(super) fn store(&mut self, number: u64, end: bool) {
        let Some(holder) = self.holders.get(&number) else { return };
        let (request, session) = (holder.all(), holder.session);
        let request = BatchRequest { end, more_ids: 4, ..request };
        let sent = loop {
            match self.send(request.clone(), session) {
                Some(sent) => break sent,
                None => self.deliver_delayed(),
            }
        };
        let lost = self.random.below(3);
        for _ in 0..lost {
            self.arrive(&sent).expect("it is stored");
        }
        self.deliver(sent);
        let left = self.holders.get(&number).map(|holder| holder.queue.len());
        assert_eq!(left, if end { None } else { Some(0) }, "all of it is stored");
    }

    /// The holder ends a delegation when all of it is stored.
    pub(super) fn end(&mut self, number: u64) {
        let Some(session) = self.holders.get(&number).map(|holder| holder.session) else { return };
        if !self.random.once_in(3) {
            return self.store(number, true);
        }
        self.store(number, false);
        let header = self.header(session, BULK);
        let request = EndDelegationsRequest { header, numbers: vec![number, 7] };
        self.pair.driver.log(Opcode::EndDelegations, request.encode_to_vec()).unwrap();
        self.holders.remove(&number);
        self.recalled.remove(&number);
        self.note("ended in bulk");
    }

    /// A client is lost with what it has not stored.
    pub(super) fn kill(&mut self, client: usize) {
        let session = self.pair.sessions[client];
        let led = self.holders.values().filter(|holder| holder.session == session).map(|holder| holder.number);
        for number in led.collect::<Vec<_>>() {
            let nothing = BatchRequest { delegation: number, from: 0, ..BatchRequest::default() };
            let next = match self.send(nothing, session) {
                Some(sent) => self.arrive(&sent).expect("it lasts").next,
                // Nothing more goes out: what arrives now is all there is.
                None => {
                    self.store(number, false);
                    self.holders[&number].first
                }
            };
            self.forget_items(number, next);
            self.holders.remove(&number);
            self.recalled.remove(&number);
        }
        let expire = self.random.once_in(2);
        self.pair.end_session(client, expire);
        self.history.push(Event::SessionEnd(session));
    }

    /// Who leads what is in the way is told, or not.
    pub(super) fn recall(&mut self) {
        for (session, number) in self.pair.driver.namespace.take_wanted_delegations() {
            assert_eq!(self.holders.get(&number).map(|holder| holder.session), Some(session), "its holder knows it");
            if !self.random.once_in(4) {
                self.recalled.insert(number);
            }
        }
        for number in self.recalled.clone() {
            if self.random.once_in(3) {
                self.end(number);
            }
        }
    }

    /// All that is under way arrives, and nothing is led any more.
    pub(super) fn settle(&mut self) {
        while !self.delayed.is_empty() && self.random.once_in(2) {
            self.deliver_delayed();
        }
        for number in self.holders.keys().copied().collect::<Vec<_>>() {
            self.store(number, true);
        }
        while !self.delayed.is_empty() {
            self.deliver_delayed();
        }
        assert!(!self.pair.driver.namespace.has_delegations());
        self.reclaim();
    }
}
