//! What happens next: operations of clients, wherever they are executed, and what goes wrong.
use super::*;
use cairn_wire::meta::{AttributesResponse, MkdirRequest};
use prost::Message;

/// Inodes that an operation names.
fn named(operation: &Operation) -> Vec<u64> {
    match operation {
        Operation::Mkdir { parent, .. }
        | Operation::Symlink { parent, .. }
        | Operation::CreateUnnamed { parent, .. }
        | Operation::Unlink { parent, .. }
        | Operation::Rmdir { parent, .. }
        | Operation::RemoveTree { parent, .. } => vec![*parent],
        Operation::Create(create) => vec![create.parent],
        Operation::Link { inode, parent, .. } => vec![*inode, *parent],
        Operation::Rename { parent, new_parent, .. } => vec![*parent, *new_parent],
        Operation::Setattr(set) => vec![set.inode],
        Operation::Publish(publish) => vec![publish.inode],
        Operation::Punch(punch) => vec![punch.inode],
        Operation::SetLock(lock) => vec![lock.inode],
        Operation::SetXattr { inode, .. }
        | Operation::RemoveXattr { inode, .. }
        | Operation::SetQuota { inode, .. }
        | Operation::Hold { inode, .. }
        | Operation::Release { inode } => vec![*inode],
    }
}

impl World {
    pub(super) fn step(&mut self) {
        let client = self.random.below(3);
        match self.random.below(100) {
            0 => self.kill(client),
            1 | 2 => {
                self.pair.restart();
                if self.pair.driver.namespace.has_delegations() {
                    self.note("restart");
                }
            }
            3..=15 => {
                if let Some(number) = self.any_led() {
                    self.send_some(number);
                }
            }
            16..=20 => self.deliver_delayed(),
            21..=23 => self.look(),
            24 => {
                if let Some(number) = self.any_led() {
                    self.end(number);
                }
            }
            25 => self.pair.carry_out_frees(client as u32),
            _ => self.operation(client),
        }
        self.reclaim();
        self.recall();
    }

    pub(super) fn reclaim(&mut self) {
        // Whoever has something open has said so.
        self.pair.reclaim(if self.deferring { 1 } else { 2 });
        if self.deferring {
            self.history.push(Event::Reclaim);
        }
    }

    fn any_led(&mut self) -> Option<u64> {
        let at = self.random.below(self.holders.len());
        self.holders.keys().nth(at).copied()
    }

    /// What a session leads that covers an inode.
    fn led_by(&self, session: u64, inode: u64) -> Option<u64> {
        let holder = self.holders.values().find(|holder| holder.session == session && holder.covers(inode));
        holder.map(|holder| holder.number)
    }

    fn numbers(&mut self) -> Step {
        let numbers = [0; 6].map(|_: u32| self.random.next() as u32);
        // What needs other places than the model knows is left out.
        let kind = (self.random.next() % 248) as u8;
        Step { kind, who: self.random.next() as u8, session: self.random.next() as u8, numbers }
    }

    fn operation(&mut self, client: usize) {
        let step = self.numbers();
        let session = self.pair.sessions[client];
        let mut operation = self.pair.operation(&step, session);
        // Limits of the volume or its root would leave nobody anything to lead, and so would many.
        if let Operation::SetQuota { inode, .. } = operation
            && (inode <= 1 || !self.random.once_in(4))
        {
            return;
        }
        let own: Vec<u64> = self.holders.values().filter(|h| h.session == session).map(|h| h.number).collect();
        if !own.is_empty() && !self.random.once_in(3) {
            let number = own[self.random.below(own.len())];
            operation = match self.random.once_in(24) {
                true => {
                    let (parent, name) = self.name_of(number);
                    Operation::Rmdir { parent, name }
                }
                false => self.within(number, operation, &step),
            };
        }
        let is_others = |inode: &u64| self.holders.values().any(|h| h.session != session && h.covers(*inode));
        if named(&operation).iter().any(is_others) && !self.random.once_in(6) {
            // Else nothing would be led for long.
            return;
        }
        let caller = self.pair.caller(step.who);
        let led: BTreeSet<Option<u64>> = named(&operation).iter().map(|inode| self.led_by(session, *inode)).collect();
        match led.iter().copied().collect::<Vec<_>>()[..] {
            [Some(number)] if !self.random.once_in(64) => self.locally(number, client, caller, operation),
            [_] => self.at_the_partition(client, caller, operation),
            _ => {
                led.into_iter().flatten().for_each(|number| self.end(number));
                self.at_the_partition(client, caller, operation);
            }
        }
    }

    /// The same operation on what is led.
    fn within(&mut self, number: u64, operation: Operation, step: &Step) -> Operation {
        let holder = &self.holders[&number];
        let nodes = || self.pair.model.nodes.iter().filter(|(inode, _)| holder.covers(**inode));
        let directories: Vec<u64> = nodes().filter(|(_, node)| node.is_directory()).map(|(inode, _)| *inode).collect();
        let all: Vec<u64> = nodes().map(|(inode, _)| *inode).collect();
        let files: Vec<u64> = nodes().filter(|(_, node)| node.is_file()).map(|(inode, _)| *inode).collect();
        let entries: Vec<(u64, Vec<u8>)> =
            nodes().flat_map(|(inode, node)| node.entries().into_keys().map(|name| (*inode, name))).collect();
        let directory = directories[self.random.below(directories.len())];
        let any = all[self.random.below(all.len())];
        let file = if files.is_empty() { any } else { files[self.random.below(files.len())] };
        let (entry, called) = match entries.is_empty() {
            true => (directory, b"a".to_vec()),
            false => entries[self.random.below(entries.len())].clone(),
        };
        match operation {
            Operation::Mkdir { name, mode, layout, umask, .. } => {
                Operation::Mkdir { parent: directory, name, mode, layout, umask }
            }
            Operation::Create(create) => Operation::Create(Create { parent: directory, ..create }),
            Operation::Symlink { name, target, .. } => Operation::Symlink { parent: directory, name, target },
            Operation::CreateUnnamed { mode, layout, umask, .. } => {
                Operation::CreateUnnamed { parent: directory, mode, layout, umask }
            }
            Operation::Link { name, replace, .. } => Operation::Link { inode: file, parent: directory, name, replace },
            Operation::Unlink { .. } => Operation::Unlink { parent: entry, name: called },
            Operation::Rmdir { .. } => Operation::Rmdir { parent: entry, name: called },
            Operation::Rename { new_name, flags, .. } => {
                Operation::Rename { parent: entry, name: called, new_parent: directory, new_name, flags }
            }
            Operation::Setattr(set) => Operation::Setattr(Setattr { inode: any, ..set }),
            Operation::Publish(publish) => {
                let pieces = self.pair.pieces(file, &step.numbers[1..]);
                let written_by = publish.written_by;
                Operation::Publish(Publish { written_by, ..self.pair.publish(file, pieces, &step.numbers) })
            }
            Operation::Punch(punch) => Operation::Punch(Punch { inode: file, ..punch }),
            Operation::SetXattr { name, value, flags, .. } => Operation::SetXattr { inode: any, name, value, flags },
            Operation::RemoveXattr { name, .. } => Operation::RemoveXattr { inode: any, name },
            Operation::Hold { write, .. } => Operation::Hold { inode: any, write },
            Operation::Release { .. } => Operation::Release { inode: any },
            // Nothing that a holder executes; it goes to the partition where it is.
            other => other,
        }
    }

    fn request(&mut self, caller: &Caller, session: u64, slot: u32) -> Request {
        let (sequence, now) = (self.sequence(session, slot) + 1, self.pair.driver.now + 10);
        Request { caller: caller.clone(), session, slot, sequence, now }
    }

    /// The holder executes it.
    fn locally(&mut self, number: u64, client: usize, caller: Caller, operation: Operation) {
        let session = self.pair.sessions[client];
        // Of the model alone: an item has no slot.
        let slot = 1_000 + number as u32;
        let request = self.request(&caller, session, slot);
        let who = Credentials { uid: caller.uid, gid: caller.gid, groups: caller.groups.clone() };
        let (opcode, bytes) = request_to(1, &request, who, &operation);
        let holder = self.holders.get_mut(&number).expect("it is led");
        let (before, next) = (holder.part.namespace.own_items(), Self::next_of(&holder.part.namespace));
        match holder.try_to_run(request.now, opcode, bytes) {
            Err(error) if Namespace::lacks_numbers(&error) => {
                self.store(number, false);
                self.note("no numbers left");
            }
            Err(error) if Namespace::is_for_the_partition(&error) => {
                self.note("not for the holder");
                self.end(number);
                self.at_the_partition(client, caller, operation);
            }
            answer => {
                let answer = reply(opcode, &answer.map_err(|error| error.code));
                self.note(if answer.is_ok() { "item" } else { "refused by its holder" });
                self.sequences.insert((session, slot), request.sequence);
                self.pair.driver.now = request.now;
                let text = format!("{operation:?} of {request:?} in {number}");
                let model = self.model(request, operation, next, Some((number, before)));
                assert_eq!(answer, model, "holder and model answer {text} differently");
            }
        }
    }

    /// The partition executes it, or says that somebody leads what is named.
    fn at_the_partition(&mut self, client: usize, caller: Caller, operation: Operation) {
        let session = self.pair.sessions[client];
        let target = self.own_top_to_remove(session, &operation);
        if let Some(top) = target {
            self.store(top, false);
        }
        let request = self.request(&caller, session, 0);
        let who = Credentials { uid: caller.uid, gid: caller.gid, groups: caller.groups.clone() };
        let (opcode, mut bytes) = request_to(1, &request, who, &operation);
        if opcode == Opcode::Mkdir && !self.random.once_in(3) {
            let mkdir = MkdirRequest::decode(bytes.as_slice()).expect("as it was encoded");
            bytes = MkdirRequest { ask: Some(crate::holder::ASK), ..mkdir }.encode_to_vec();
        }
        let next = Self::next_of(&self.pair.driver.namespace);
        self.pair.driver.now = request.now - 10;
        let answer = self.pair.driver.log(opcode, bytes);
        if answer == Err(ErrorCode::LeaseHeld) {
            assert!(self.pair.driver.namespace.has_delegations(), "nobody leads anything");
            let own = named(&operation).iter().any(|inode| self.led_by(session, *inode).is_some());
            return self.note(if own { "own directory recalled" } else { "waits for a holder" });
        }
        self.sequences.insert((session, 0), request.sequence);
        let core = reply(opcode, &answer);
        let text = format!("{operation:?} of {request:?}");
        let model = self.model(request, operation, next, None);
        assert_eq!(core, model, "core and model answer {text} differently");
        if let (Some(top), Ok(_)) = (target, core) {
            self.holders.remove(&top);
            self.recalled.remove(&top);
            self.note("ended with its top");
        }
        let told = answer.ok().filter(|_| opcode == Opcode::Mkdir);
        let told = told.and_then(|bytes| AttributesResponse::decode(bytes.as_slice()).ok()?.delegation);
        if let Some(told) = told {
            assert_eq!(told.number, next);
            self.holders.insert(told.number, Holder::new(&told, session));
            self.note("led");
        }
    }

    /// The top of what the session leads, if it is removed.
    fn own_top_to_remove(&self, session: u64, operation: &Operation) -> Option<u64> {
        let Operation::Rmdir { parent, name } = operation else { return None };
        let entries = self.pair.model.nodes.get(parent)?.entries();
        let top = *entries.get(name)?;
        self.holders.get(&top).filter(|holder| holder.session == session).map(|holder| holder.number)
    }

    /// The directory and the name in which a top is.
    fn name_of(&self, number: u64) -> (u64, Vec<u8>) {
        let is_it = |(inode, node): (&u64, &cairn_model::Node)| {
            let name = node.entries().into_iter().find(|(_, inode)| *inode == number)?.0;
            Some((*inode, name))
        };
        self.pair.model.nodes.iter().find_map(is_it).expect("the top has a name")
    }

    /// Others see the name of what is led, and no more.
    fn look(&mut self) {
        let Some(number) = self.any_led() else { return };
        let holder = &self.holders[&number];
        let driver = &self.pair.driver;
        for inode in self.pair.model.nodes.keys().filter(|inode| holder.covers(**inode)) {
            assert_eq!(driver.getattr(*inode), Err(ErrorCode::LeaseHeld), "inode {inode}");
            assert_eq!(driver.readdir(*inode), Err(ErrorCode::LeaseHeld), "inode {inode}");
        }
        driver.namespace.take_wanted_delegations();
        let (above, name) = self.name_of(number);
        let listed = driver.readdir(above).unwrap();
        let entry = listed.iter().find(|entry| entry.inode == number).expect("it is listed");
        assert_eq!((&entry.name, entry.kind, &entry.attributes), (&name, 4, &None));
        if let Ok(name) = std::str::from_utf8(&name) {
            let found = driver.lookup(above, name).unwrap();
            let (inode, mode, generation) = (number, 0o040_000, 1);
            let expected = cairn_wire::meta::Attributes { inode, mode, generation, ..Default::default() };
            assert_eq!(found, expected);
        }
        assert!(driver.namespace.take_wanted_delegations().is_empty(), "a name recalls nothing");
        self.note("looked at by others");
    }
}
