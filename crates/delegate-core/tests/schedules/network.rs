//! Batches and their answers under way, the partition's leader, sessions and their renewals.
use crate::clients::Client;
use crate::world::{World, config};
use cairn_delegate_core::input::{CallId, Input};
use cairn_types::{ErrorCode, Time};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{BatchRequest, BatchResponse, EndDelegationsRequest};
use prost::Message;
use std::time::Duration;

#[derive(Clone)]
pub enum Packet {
    Request {
        session: u64,
        number: u64,
        call: CallId,
        bytes: Vec<u8>,
    },
    Answer {
        session: u64,
        number: u64,
        call: CallId,
        answer: Result<BatchResponse, ErrorCode>,
    },
    /// To a renewal that was sent at that time.
    Renewed {
        session: u64,
        sent: Time,
    },
}

impl Packet {
    const fn session(&self) -> u64 {
        match self {
            Packet::Request { session, .. } | Packet::Answer { session, .. } | Packet::Renewed { session, .. } => {
                *session
            }
        }
    }
}

impl World {
    /// One of what is under way arrives, whichever.
    pub fn deliver(&mut self) {
        let at = self.random.below(self.packets.len());
        let Some(packet) = self.packets.get(at) else { return };
        let client = self.client_of(packet.session());
        if client.is_some_and(|client| self.clients[client].is_cut_off) {
            return;
        }
        match self.packets.swap_remove(at) {
            Packet::Request { session, number, call, bytes } => self.arrive(session, number, call, bytes),
            Packet::Answer { number, call, answer, .. } => {
                let answer = answer.map_err(|code| WireError::new(code, "of the partition"));
                if let Some(client) = client {
                    self.happen(client, number, Input::Answered { call, answer });
                }
            }
            Packet::Renewed { sent, .. } => {
                if let Some(client) = client {
                    self.renewed(client, sent);
                }
            }
        }
    }

    fn arrive(&mut self, session: u64, number: u64, call: CallId, mut bytes: Vec<u8>) {
        let is_live = !self.ended_sessions.contains(&session);
        if self.random.once_in(150) {
            bytes = self.damage(&bytes);
        }
        let answer = self.log(Opcode::Batch, bytes);
        let answer = answer.map(|bytes| BatchResponse::decode(bytes.as_slice()).expect("the answer is protobuf"));
        match &answer {
            Ok(answer) => {
                assert!(is_live, "a session that has ended stores nothing");
                let stored = self.stored.entry(number).or_default();
                *stored = answer.next.max(*stored);
                if answer.error != 0 && self.ended.insert(number) {
                    self.note("refused by the partition");
                    self.forget(number);
                }
            }
            Err(ErrorCode::SessionEnded) => {
                assert!(!is_live);
                self.note("batch of a session that has ended");
            }
            // It was executed, and another one after it; or the delegation is over.
            Err(ErrorCode::BadSequence | ErrorCode::Stale) => self.note("batch late"),
            Err(error) => panic!("a batch is refused: {error:?}"),
        }
        if self.random.once_in(6) {
            return self.note("answer lost");
        }
        let packet = Packet::Answer { session, number, call, answer };
        if self.random.once_in(8) {
            self.note("answer repeated");
            self.packets.push(packet.clone());
        }
        self.packets.push(packet);
    }

    /// The partition comes upon an item that it cannot execute, as if the two were different programs.
    fn damage(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut request = BatchRequest::decode(bytes).expect("as it was encoded");
        let at = self.random.below(request.items.len());
        if let Some(item) = request.items.get_mut(at) {
            item.request = vec![0xff];
        }
        request.encode_to_vec()
    }

    /// Batches of which nothing was heard are sent again.
    pub fn repeat(&mut self) {
        for client in 0..self.clients.len() {
            for number in self.numbers_of(client) {
                let call = self.clients[client].holders[&number].call.as_ref().map(|(call, _)| *call);
                if let Some(call) = call.filter(|_| self.random.once_in(20)) {
                    self.happen(client, number, Input::Unanswered { call });
                }
            }
        }
    }

    /// Another member leads the partition, with what is in the log.
    pub fn new_leader(&mut self) {
        if self.partition.namespace.has_delegations() {
            self.note("new leader");
        }
        self.partition.namespace = self.partition.restored();
        while !self.packets.is_empty() && self.random.once_in(2) {
            let at = self.random.below(self.packets.len());
            self.packets.swap_remove(at);
        }
    }

    pub fn renew(&mut self) {
        for client in 0..self.clients.len() {
            let session = self.clients[client].session;
            if self.clients[client].is_cut_off || self.ended_sessions.contains(&session) || self.random.once_in(4) {
                continue;
            }
            self.clients[client].renewed_there = self.now;
            if !self.random.once_in(4) {
                self.packets.push(Packet::Renewed { session, sent: self.now });
            }
        }
    }

    pub fn renewed(&mut self, client: usize, sent: Time) {
        self.clients[client].renewed = self.clients[client].renewed.max(sent);
        for number in self.numbers_of(client) {
            self.happen(client, number, Input::Renewed { sent });
        }
    }

    /// Sessions that were not renewed for a lease end, and what they led is everybody's.
    pub fn expire(&mut self) {
        let lease = config().lease;
        for client in 0..self.clients.len() {
            let Client { session, renewed_there, .. } = self.clients[client];
            if self.now >= renewed_there + lease && !self.ended_sessions.contains(&session) {
                self.note("fenced");
                self.end_session(session);
            }
        }
        for (session, at) in std::mem::take(&mut self.dying) {
            if self.now >= at {
                self.end_session(session);
            } else {
                self.dying.push((session, at));
            }
        }
    }

    fn end_session(&mut self, session: u64) {
        self.ended_sessions.insert(session);
        self.partition.now = self.partition.now.max(self.wall());
        self.partition.expire(&[session]);
        for number in
            self.grants.iter().filter(|(_, of)| **of == session).map(|(number, _)| *number).collect::<Vec<_>>()
        {
            assert!(!self.partition.namespace.is_led_by(session, number));
            if self.ended.insert(number) {
                self.forget(number);
            }
        }
        self.oracle.end_session(session);
        self.reclaim();
    }

    /// What a holder has not stored is lost.
    pub fn forget(&mut self, number: u64) {
        let stored = self.stored.get(&number).copied().unwrap_or(0);
        if self.oracle.forget(number, stored) > 0 {
            self.note("items lost");
        }
    }

    /// A client is gone. Another one takes its place.
    pub fn kill(&mut self, client: usize) {
        self.note("killed");
        let at = self.now + Duration::from_nanos(self.random.next() % 4_000_000_000);
        let old = self.clients[client].session;
        if !self.ended_sessions.contains(&old) {
            self.dying.push((old, at));
        }
        self.clients[client] = Client::new(self.next_session(), self.now);
    }

    /// A client hears that its session has ended.
    pub fn hear_of_the_end(&mut self, client: usize) {
        let session = self.clients[client].session;
        if self.clients[client].is_cut_off || !self.ended_sessions.contains(&session) {
            return;
        }
        self.told_sessions.insert(session);
        for number in self.numbers_of(client) {
            self.happen(client, number, Input::SessionEnded);
            let holder = self.clients[client].holders.get(&number);
            assert!(holder.is_none_or(|holder| holder.machine.is_over()), "{number} goes on without a session");
            self.is_refused_when_lost(client, number);
        }
        self.clients[client] = Client::new(self.next_session(), self.now);
    }

    /// Holders are told what is wanted.
    pub fn recall(&mut self) {
        for (session, number) in self.partition.namespace.take_wanted_delegations() {
            let client = self.client_of(session).filter(|client| !self.clients[*client].is_cut_off);
            let Some(client) = client.filter(|_| !self.random.once_in(4)) else { continue };
            match self.clients[client].holders.get_mut(&number) {
                Some(holder) => {
                    holder.is_recalled = true;
                    self.note("recalled");
                    self.happen(client, number, Input::Wanted);
                }
                None => self.give_back(session, number),
            }
        }
    }

    /// A client that does not know what it leads has made nothing in it.
    pub fn give_back(&mut self, session: u64, number: u64) {
        self.note("given back");
        self.partition.session = session;
        self.partition.slot = 250;
        let header = self.partition.next();
        let request = EndDelegationsRequest { header, numbers: vec![number] };
        self.log(Opcode::EndDelegations, request.encode_to_vec()).unwrap();
    }
}
