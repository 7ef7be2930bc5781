//! A group that sleeps: who is told, and what it keeps.
//!
//! Not here: when it sleeps and what wakes it (cairn-raft), what nodes say for all such groups ([`crate::watch`]).

use cairn_raft::Slumber;

use super::Owner;
use crate::state_machine::StateMachine;

/// What others were told.
#[derive(Debug, Default)]
pub(super) struct Slumbering {
    told: Option<Slumber>,
    asleep: bool,
}

impl<S: StateMachine> Owner<S> {
    /// After each round.
    pub(super) fn note_slumber(&mut self) {
        if self.failed {
            return;
        }
        if !self.waiting.is_empty() || !self.pending.is_empty() || self.eager > 0 {
            self.core.stay_awake();
        }
        let (slumber, asleep) = (self.core.slumber(), self.core.is_asleep());
        // A leader may have given up waiting for some.
        if slumber != self.slumber.told || asleep != self.slumber.asleep {
            self.slumber.told = slumber;
            let listeners = if slumber.is_some() { self.core.listeners() } else { Vec::new() };
            self.parts.watch.note(self.parts.group, slumber, listeners);
        }
        if asleep == self.slumber.asleep {
            // Somebody may have asked who did not need it after all.
            return self.parts.shared.set_asleep(asleep);
        }
        self.slumber.asleep = asleep;
        if asleep {
            self.parts.shared.set_core(self.core.status());
            self.waiting.shrink_to_fit();
            self.pending.shrink_to_fit();
            self.outputs = Vec::new();
            self.mailbox.shrink();
        } else {
            self.next_tick = self.tick_after(self.parts.clock.now());
        }
        self.sm.rests(asleep);
        self.parts.shared.set_asleep(asleep);
    }

    /// It takes no part any more: who listens for it finds out.
    pub(super) fn wake_for_good(&mut self) {
        self.slumber = Slumbering::default();
        self.sm.rests(false);
        self.parts.shared.set_asleep(false);
        self.parts.watch.note(self.parts.group, None, []);
    }
}
