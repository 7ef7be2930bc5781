//! Clients, what they lead, and what is made of what a machine says.
use crate::network::Packet;
use crate::world::{World, config};
use cairn_delegate_core::delegate::Delegate;
use cairn_delegate_core::input::{CallId, Input, Lost, Output, RequestId};
use cairn_delegate_core::way::Led;
use cairn_model::{Caller, Operation};
use cairn_types::{ErrorCode, PartitionId, Time, VolumeId};
use cairn_wire::common::Credentials;
use cairn_wire::error::WireError;
use cairn_wire::meta::{BatchRequest, Delegation, MetaHeader};
use prost::Message;
use std::collections::BTreeMap;

pub struct Client {
    pub session: u64,
    pub led: Led,
    pub holders: BTreeMap<u64, Holder>,
    pub is_cut_off: bool,
    /// When the servers got its last renewal.
    pub renewed_there: Time,
    /// When the last renewal was sent that was answered here.
    pub renewed: Time,
    pub next_slot: u32,
}

/// One delegation, as its client believes.
pub struct Holder {
    pub machine: Delegate,
    pub slot: u32,
    pub sequence: u64,
    /// The batch that was sent last: its request stays as it is until it is answered.
    pub call: Option<(CallId, Vec<u8>)>,
    /// When each item was acknowledged.
    pub acknowledged: Vec<Time>,
    /// Commits that wait, and for how many items.
    pub commits: BTreeMap<RequestId, u64>,
    pub next_id: RequestId,
    /// Who removes the top, and whether the machine says that it is to be done now.
    pub removal: Option<(Caller, Operation, bool)>,
    pub is_recalled: bool,
}

impl Client {
    pub fn new(session: u64, now: Time) -> Client {
        Client {
            session,
            led: Led::default(),
            holders: BTreeMap::new(),
            is_cut_off: false,
            renewed_there: now,
            renewed: now,
            next_slot: 0,
        }
    }

    pub fn lead(&mut self, told: &Delegation, now: Time) {
        let place = (VolumeId(1), PartitionId(1));
        let machine = Delegate::new(place, self.session, told, config(), now, self.renewed).expect("it is sound");
        self.led.add(told.number, told.number..=told.last);
        self.next_slot += 1;
        let holder = Holder {
            machine,
            slot: 5 + self.next_slot % 200,
            sequence: 0,
            call: None,
            acknowledged: Vec::new(),
            commits: BTreeMap::new(),
            next_id: 0,
            removal: None,
            is_recalled: false,
        };
        self.holders.insert(told.number, holder);
    }
}

/// What became of a request of a program.
pub enum Outcome {
    Answer(Result<Vec<u8>, WireError>),
    Wait,
    Elsewhere,
    Nothing,
}

impl World {
    /// Something happens to a machine. Answers what became of the request that it was, if it was one.
    pub fn happen(&mut self, client: usize, number: u64, input: Input) -> Outcome {
        let now = self.now;
        let Some(holder) = self.clients[client].holders.get_mut(&number) else { return Outcome::Nothing };
        let waiting = holder.acknowledged.len() as u64 - holder.machine.stored().min(holder.acknowledged.len() as u64);
        if matches!(input, Input::Wanted) && waiting > config().batch_items as u64 {
            *self.counts.entry("recalled with more than a batch").or_default() += 1;
        }
        let mut out = Vec::new();
        holder.machine.step(now, input, &mut out);
        // It looks at all that the machine has.
        let violation = self.steps.is_multiple_of(4).then(|| holder.machine.check_invariants());
        if let Some(Err(violation)) = violation {
            panic!("{violation}");
        }
        let mut outcome = Outcome::Nothing;
        for output in out {
            match output {
                Output::Answer(_, answer) => outcome = Outcome::Answer(answer),
                Output::Wait(_) => outcome = Outcome::Wait,
                Output::Elsewhere(_) => outcome = Outcome::Elsewhere,
                Output::Again => self.note("woken"),
                Output::Committed(id, result) => self.committed(client, number, id, result),
                Output::Send(call, request) => self.send(client, number, call, request),
                Output::AskToRemove(_) => {
                    if let Some(holder) = self.clients[client].holders.get_mut(&number) {
                        holder.removal.as_mut().expect("somebody removes it").2 = true;
                    }
                }
                Output::Covers(range) => {
                    self.note("more numbers");
                    self.clients[client].led.add(number, range);
                }
                Output::Ended => self.ended(client, number),
                Output::Lost(lost) => self.lost(client, number, &lost),
            }
        }
        outcome
    }

    fn committed(&mut self, client: usize, number: u64, id: RequestId, result: Result<(), WireError>) {
        let holder = self.clients[client].holders.get_mut(&number).expect("it is led");
        let items = holder.commits.remove(&id).expect("somebody waits");
        match result {
            Ok(()) => {
                let stored = self.stored.get(&number).copied().unwrap_or(0);
                assert!(stored >= items, "fsync returns before {items} items of {number} are stored: {stored}");
            }
            Err(error) => {
                assert_eq!(error.code, ErrorCode::Internal);
                self.note("fsync that failed");
            }
        }
    }

    /// A batch goes out: the same request whenever it is the same call.
    fn send(&mut self, client: usize, number: u64, call: CallId, request: BatchRequest) {
        if request.items.len() == config().batch_items {
            self.note("batch that is full");
        }
        let Client { session, is_cut_off, .. } = self.clients[client];
        assert!(!self.told_sessions.contains(&session), "{number} is stored from a session that has ended");
        let holder = self.clients[client].holders.get_mut(&number).expect("it is led");
        let again = holder.call.as_ref().filter(|(of, _)| *of == call).map(|(_, bytes)| bytes.clone());
        let bytes = match again {
            Some(bytes) => {
                let before = BatchRequest::decode(bytes.as_slice()).expect("as it was encoded");
                assert_eq!(BatchRequest { header: None, ..before }, request, "a repeat is the same request");
                self.note("sent again");
                bytes
            }
            None => {
                holder.sequence += 1;
                let who = Some(Credentials { uid: 0, gid: 0, groups: vec![] });
                let (slot, sequence) = (holder.slot, holder.sequence);
                let header = Some(MetaHeader { volume: 1, partition: 1, session, slot, sequence, who });
                let bytes = BatchRequest { header, ..request }.encode_to_vec();
                holder.call = Some((call, bytes.clone()));
                bytes
            }
        };
        if is_cut_off && self.random.once_in(2) || self.random.once_in(8) {
            return self.note("request lost");
        }
        let packet = Packet::Request { session, number, call, bytes };
        if self.random.once_in(8) {
            self.packets.push(packet.clone());
        }
        self.packets.push(packet);
    }

    fn ended(&mut self, client: usize, number: u64) {
        let holder = self.clients[client].holders.remove(&number).expect("it is led");
        self.clients[client].led.remove(number);
        let count = holder.acknowledged.len() as u64;
        let stored = self.stored.get(&number).copied().unwrap_or(0);
        assert!(stored >= count || self.ended.contains(&number), "{number} ends with all stored: {stored} of {count}");
        if !self.ended.contains(&number) {
            let session = self.clients[client].session;
            assert!(!self.partition.namespace.is_led_by(session, number), "{number} has ended there, too");
        }
        self.note(if holder.is_recalled { "ended by a recall" } else { "ended" });
    }

    fn lost(&mut self, client: usize, number: u64, lost: &Lost) {
        let stored = self.stored.get(&number).copied().unwrap_or(0);
        let count = self.clients[client].holders[&number].acknowledged.len() as u64;
        assert!(self.ended.contains(&number), "{number} is given up: {}", lost.error.message);
        assert!(lost.from <= stored, "{number}: what is not told as lost is stored");
        assert_eq!(lost.from + lost.count, count, "{number}: all that was acknowledged is accounted for");
        assert!(lost.count == 0 || !lost.inodes.is_empty());
        self.note(if lost.count > 0 { "lost, and told" } else { "refused at the end" });
    }
}
