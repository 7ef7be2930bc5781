//! How a delegation is over: everything stored, with the removal of its top, or with what was not stored lost.

use std::collections::BTreeSet;

use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;

use crate::delegate::{Delegate, State};
use crate::input::{Lost, Output, RequestId};
use crate::named::named;

/// Inodes of lost items that are told.
const TOLD_MAX: usize = 64;

impl Delegate {
    pub(crate) fn remove_top(&mut self, id: RequestId, out: &mut Vec<Output>) {
        match self.state {
            State::Led if self.removing.is_none() => self.removing = Some((id, false)),
            State::Led => self.wait(id, out),
            State::Ending | State::Ended | State::Lost(_) => out.push(Output::Elsewhere(id)),
        }
    }

    pub(crate) fn top_removed(&mut self, gone: bool, out: &mut Vec<Output>) {
        if self.removing.take().is_none() {
            return;
        }
        if gone { self.ended(out) } else { self.wake(out) }
    }

    /// Who removes it is not there any more: it goes on.
    pub(crate) fn withdrawn(&mut self, id: RequestId, out: &mut Vec<Output>) {
        if self.removing.is_some_and(|(of, _)| of == id) {
            self.top_removed(false, out);
        }
    }

    /// What is here is half done: nothing is answered from it, and nothing more of it stored.
    pub(crate) fn broken(&mut self, out: &mut Vec<Output>) {
        if !self.is_over() {
            let text = "a fault of the program while a directory was led: what was not stored yet is lost";
            self.lose(WireError::new(ErrorCode::Internal, text), true, out);
        }
    }

    /// The partition says that it has ended, without any refusal.
    pub(crate) fn ended(&mut self, out: &mut Vec<Output>) {
        if !self.queue.is_empty() {
            let text = "the delegation has ended before everything was stored: a fault of the program";
            return self.lose(WireError::new(ErrorCode::Internal, text), false, out);
        }
        self.call = None;
        self.state = State::Ended;
        self.let_remove(out);
        self.commit(out);
        out.push(Output::Ended);
        self.wake(out);
    }

    /// Nothing is sent any more: what comes from an ended session is refused, and others may have what it covered.
    pub(crate) fn session_ended(&mut self, out: &mut Vec<Output>) {
        if self.is_over() {
            return;
        }
        if self.queue.is_empty() {
            return self.ended(out);
        }
        let text = "the session has ended before changes were stored that had been answered; they are lost";
        self.lose(WireError::new(ErrorCode::Internal, text), false, out);
    }

    /// What waits is not stored. Part of a batch without an answer may be.
    pub(crate) fn lose(&mut self, error: WireError, give_back: bool, out: &mut Vec<Output>) {
        let from = self.queue.first();
        let items = self.queue.give_up();
        let mut inodes = BTreeSet::new();
        for item in &items {
            let opcode = u16::try_from(item.opcode).ok().and_then(Opcode::from_code);
            let Some(opcode) = opcode.filter(|_| inodes.len() < TOLD_MAX) else { break };
            inodes.extend(named(opcode, &item.request));
        }
        self.call = None;
        self.state = State::Lost(error.clone());
        self.part.forget_all();
        self.let_remove(out);
        for (id, _) in std::mem::take(&mut self.commits) {
            out.push(Output::Committed(id, Err(error.clone())));
        }
        let (count, inodes) = (items.len() as u64, inodes.into_iter().take(TOLD_MAX).collect());
        out.push(Output::Lost(Lost { error, from, count, inodes, give_back }));
        self.wake(out);
    }

    /// Whoever removes the top asks the partition.
    fn let_remove(&mut self, out: &mut Vec<Output>) {
        if let Some((id, false)) = self.removing.take() {
            out.push(Output::Elsewhere(id));
        }
    }
}
