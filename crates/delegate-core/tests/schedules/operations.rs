//! Operations of programs, at the holder or at the partition, and beside the model.
use crate::clients::Outcome;
use crate::world::{World, config};
use cairn_delegate_core::delegate::Read;
use cairn_delegate_core::input::Input;
use cairn_delegate_core::way::Way;
use cairn_meta_core::Namespace;
use cairn_model::{Caller, Operation, Request};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Credentials;
use cairn_wire::meta::{AttributesResponse, DelegationAsk, GetattrRequest, MetaHeader, MkdirRequest};
use prost::Message;

use crate::translate::{attributes, reply, request_to};

const ASK: DelegationAsk = DelegationAsk { ids: 8, token: 77, level: 29 };

/// The number that a namespace gives next.
fn next_of(namespace: &Namespace) -> u64 {
    u64::MAX.wrapping_sub(namespace.inodes_left()).wrapping_add(1)
}

fn who(caller: &Caller) -> Credentials {
    Credentials { uid: caller.uid, gid: caller.gid, groups: caller.groups.clone() }
}

impl World {
    pub fn operation(&mut self, client: usize) {
        let own = self.numbers_of(client);
        let number = if self.random.once_in(6) { 0 } else { self.random.any(&own).unwrap_or(0) };
        let operation = self.choose(client, number);
        let caller = self.caller();
        let session = self.clients[client].session;
        if let Some(top) = self.own_top_to_remove(client, &operation) {
            return self.remove_top(client, top, caller, operation);
        }
        // Else nothing would be led for long.
        let (_, bytes) = request_to(1, &self.request(&caller, session, 0, 0), who(&caller), &operation);
        let opcode = request_to(1, &self.request(&caller, session, 0, 0), who(&caller), &operation).0;
        let others = self.clients.iter().filter(|other| other.session != session);
        let is_led = others.filter(|other| other.led.way(opcode, &bytes) != Way::Partition).count() > 0;
        if is_led && !self.random.once_in(8) {
            return;
        }
        match self.clients[client].led.way(opcode, &bytes) {
            Way::Change(number) => self.locally(client, number, caller, operation),
            Way::Read(_) => unreachable!("no operation of the model only reads"),
            Way::Partition => self.at_the_partition(client, &caller, operation, None),
            Way::AfterEnd(numbers) => {
                self.note("made to end by an operation");
                for number in numbers {
                    self.happen(client, number, Input::Wanted);
                }
            }
        }
    }

    fn request(&self, caller: &Caller, session: u64, slot: u32, now: u64) -> Request {
        let sequence = self.sequences.get(&(session, slot)).copied().unwrap_or(0) + 1;
        Request { caller: caller.clone(), session, slot, sequence, now }
    }

    /// The holder executes it.
    fn locally(&mut self, client: usize, number: u64, caller: Caller, operation: Operation) {
        let session = self.clients[client].session;
        let holder = self.clients[client].holders.get_mut(&number).expect("what is led has a holder");
        holder.next_id += 1;
        let (id, before) = (holder.next_id, holder.acknowledged.len() as u64);
        let is_sent = holder.call.is_some() && holder.machine.stored() < before;
        let (next, was_over) = (next_of(holder.machine.part()), holder.machine.is_over());
        // Of the model alone: an item has no slot.
        let slot = 1_000 + number as u32;
        let time = holder.machine.item_time(self.now).0;
        let request = self.request(&caller, session, slot, time);
        let (opcode, request_) = request_to(1, &request, who(&caller), &operation);
        let answer = match self.happen(client, number, Input::Change { id, opcode, request: request_ }) {
            Outcome::Wait => return self.waited(client, number),
            Outcome::Elsewhere => return self.note("not for the holder"),
            Outcome::Answer(answer) => answer,
            Outcome::Nothing => unreachable!("every request is answered"),
        };
        if was_over {
            assert_eq!(answer.unwrap_err().code, ErrorCode::Internal, "what was lost is not gone on with");
            return self.note("not answered when lost");
        }
        self.may_acknowledge(client, number);
        if answer.is_ok() {
            self.clients[client].holders.get_mut(&number).unwrap().acknowledged.push(self.now);
            self.note(if is_sent { "acknowledged after the batch before was sent" } else { "item" });
        } else {
            self.note("refused by its holder");
        }
        if self.ended.contains(&number) {
            // The partition has refused an item, and nobody has heard of it yet.
            return;
        }
        let answer = reply(opcode, &answer.map_err(|error| error.code));
        self.sequences.insert((session, slot), request.sequence);
        let text = format!("{operation:?} of {request:?} in {number}");
        let model = self.oracle.apply(request, operation, next, Some((number, before)));
        assert_eq!(answer, model, "holder and model answer {text} differently");
    }

    /// Why something may be acknowledged, as the world knows it.
    fn may_acknowledge(&self, client: usize, number: u64) {
        let client = &self.clients[client];
        let is_led = self.partition.namespace.is_led_by(client.session, number);
        let is_refused = self.ended.contains(&number) && !self.ended_sessions.contains(&client.session);
        assert!(is_led || is_refused, "{number} is answered from memory, and it is anybody's");
        let until = client.renewed + config().lease / 4 * 3;
        assert!(self.now < until, "{number} is answered at {:?}, and the lease is good until {until:?}", self.now);
        let holder = &client.holders[&number];
        let waiting = holder.acknowledged.get(holder.machine.stored() as usize);
        let is_old = waiting.is_some_and(|since| self.now >= *since + config().queue_age);
        assert!(!is_old, "{number} is answered while something waits since {waiting:?}");
    }

    fn waited(&mut self, client: usize, number: u64) {
        self.note("asked to wait");
        let holder = &self.clients[client].holders[&number];
        let waiting = holder.acknowledged.get(holder.machine.stored() as usize);
        if waiting.is_some_and(|since| self.now >= *since + config().queue_age) {
            self.note("queue full");
        }
        if self.now >= self.clients[client].renewed + config().lease / 4 * 3 {
            self.note("lease ran low");
        }
    }

    /// A program reads something that is led, and sees what everybody would.
    pub fn look_at_own(&mut self, client: usize) {
        let Some(number) = self.random.any(&self.numbers_of(client)) else { return };
        let all: Vec<u64> = self.oracle.model.nodes.keys().copied().collect();
        let covered: Vec<u64> = all.into_iter().filter(|i| self.clients[client].led.of(*i) == Some(number)).collect();
        let Some(inode) = self.random.any(&covered) else { return };
        let (session, now) = (self.clients[client].session, self.now);
        let who = Some(Credentials { uid: 0, gid: 0, groups: vec![] });
        let header = Some(MetaHeader { volume: 1, partition: 1, session, who, ..MetaHeader::default() });
        let request = GetattrRequest { header, inode }.encode_to_vec();
        let holder = self.clients[client].holders.get_mut(&number).unwrap();
        let mut answer = Vec::new();
        if holder.machine.read(now, Opcode::Getattr, &request, &mut answer) != Read::Answered {
            return;
        }
        self.may_acknowledge_a_read(client, number);
        if !self.ended.contains(&number) {
            let found = AttributesResponse::decode(answer.as_slice()).unwrap().attributes.unwrap();
            assert_eq!(
                attributes(&found),
                self.oracle.model.attributes(inode),
                "inode {inode} at the holder of {number}"
            );
            self.note("read");
        }
    }

    fn may_acknowledge_a_read(&self, client: usize, number: u64) {
        let client = &self.clients[client];
        let is_led = self.partition.namespace.is_led_by(client.session, number);
        let is_refused = self.ended.contains(&number) && !self.ended_sessions.contains(&client.session);
        assert!(is_led || is_refused, "{number} is read from memory, and it is anybody's");
    }

    /// The partition executes it, or says that somebody leads what is named. Answers whether it was done.
    pub fn ask(&mut self, client: usize, caller: &Caller, operation: Operation, top: Option<u64>) -> bool {
        let session = self.clients[client].session;
        let now = self.partition.now.max(self.wall()) + 10;
        let request = self.request(caller, session, 0, now);
        let (opcode, mut bytes) = request_to(1, &request, who(caller), &operation);
        if opcode == Opcode::Mkdir && !self.random.once_in(4) {
            let mkdir = MkdirRequest::decode(bytes.as_slice()).expect("as it was encoded");
            bytes = MkdirRequest { ask: Some(ASK), ..mkdir }.encode_to_vec();
        }
        let next = next_of(&self.partition.namespace);
        let answer = self.log(opcode, bytes);
        if answer == Err(ErrorCode::LeaseHeld) {
            self.note("others wait for a holder");
            return false;
        }
        self.sequences.insert((session, 0), request.sequence);
        let core = reply(opcode, &answer);
        let text = format!("{operation:?} of {request:?}");
        let model = self.oracle.apply(request, operation, next, None);
        assert_eq!(core, model, "partition and model answer {text} differently");
        if let (Some(top), true) = (top, core.is_ok()) {
            self.ended.insert(top);
        }
        let told = answer.ok().filter(|_| opcode == Opcode::Mkdir);
        let told = told.and_then(|bytes| AttributesResponse::decode(bytes.as_slice()).ok()?.delegation);
        if let Some(told) = told {
            self.grants.insert(told.number, session);
            if self.random.once_in(10) {
                // Its answer is lost, and its repeat was another client's: nobody knows.
                self.note("given, and nobody knows");
            } else {
                self.clients[client].lead(&told, self.now);
            }
        }
        core.is_ok()
    }

    fn at_the_partition(&mut self, client: usize, caller: &Caller, operation: Operation, top: Option<u64>) {
        let session = self.clients[client].session;
        if !self.clients[client].is_cut_off && !self.ended_sessions.contains(&session) {
            self.ask(client, caller, operation, top);
            self.reclaim();
        }
    }

    /// The top of what the client leads, if it is removed.
    fn own_top_to_remove(&self, client: usize, operation: &Operation) -> Option<u64> {
        let Operation::Rmdir { parent, name } = operation else { return None };
        let top = *self.oracle.model.nodes.get(parent)?.entries().get(name)?;
        self.clients[client].holders.contains_key(&top).then_some(top)
    }

    /// The directory and the name in which a top is.
    fn name_of(&self, top: u64) -> Option<(u64, Vec<u8>)> {
        let named = |(inode, node): (&u64, &cairn_model::Node)| {
            let name = node.entries().into_iter().find(|(_, inode)| *inode == top)?.0;
            Some((*inode, name))
        };
        self.oracle.model.nodes.iter().find_map(named)
    }

    pub fn remove_some_top(&mut self, client: usize) {
        let Some(top) = self.random.any(&self.numbers_of(client)) else { return };
        let Some((parent, name)) = self.name_of(top) else { return };
        let caller = Caller { uid: 0, gid: 0, groups: vec![] };
        self.remove_top(client, top, caller, Operation::Rmdir { parent, name });
    }

    fn remove_top(&mut self, client: usize, top: u64, caller: Caller, operation: Operation) {
        let holder = self.clients[client].holders.get_mut(&top).expect("it is led");
        if holder.removal.is_some() || holder.machine.is_over() {
            return;
        }
        holder.removal = Some((caller, operation, false));
        holder.next_id += 1;
        let id = holder.next_id;
        if let Outcome::Elsewhere | Outcome::Wait = self.happen(client, top, Input::RemoveTop { id })
            && let Some(holder) = self.clients[client].holders.get_mut(&top)
        {
            holder.removal = None;
        }
    }

    /// The partition is asked to remove tops that are to be removed now.
    pub fn remove_tops(&mut self, client: usize) {
        let session = self.clients[client].session;
        if self.clients[client].is_cut_off || self.ended_sessions.contains(&session) {
            return;
        }
        for number in self.numbers_of(client) {
            let holder = self.clients[client].holders.get_mut(&number).unwrap();
            let Some((caller, operation, true)) = holder.removal.clone() else { continue };
            let gone = self.ask(client, &caller, operation, Some(number));
            self.clients[client].holders.get_mut(&number).unwrap().removal = None;
            self.note(if gone { "ended with its top" } else { "top not removed" });
            self.happen(client, number, Input::TopRemoved { gone });
        }
    }

    /// A program syncs something.
    pub fn sync(&mut self, client: usize) {
        let Some(number) = self.random.any(&self.numbers_of(client)) else { return };
        let holder = self.clients[client].holders.get_mut(&number).unwrap();
        holder.next_id += 1;
        let (id, items) = (holder.next_id, holder.acknowledged.len() as u64);
        holder.commits.insert(id, items);
        let waits = holder.machine.stored() < items;
        self.happen(client, number, Input::Commit { id });
        if waits {
            self.note("fsync of something that waited");
        }
    }

    /// What was lost answers with an error.
    pub fn is_refused_when_lost(&mut self, client: usize, number: u64) {
        if self.clients[client].holders.contains_key(&number) {
            let caller = Caller { uid: 0, gid: 0, groups: vec![] };
            let name = b"later".to_vec();
            let operation = Operation::Mkdir { parent: number, name, mode: 0o755, layout: 0, umask: 0 };
            self.locally(client, number, caller, operation);
            self.sync(client);
        }
    }
}
