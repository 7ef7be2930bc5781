//! The state machine as the Raft host drives it, and the state as readers share it.
//!
//! Invariants: an answer is sent only after all items of its batch were applied, so that the map it carries has them.
//! A log item that this build does not understand ends the process's part in the group: skipping it would make the
//! members differ. The state is written by the group's thread only.
use crate::manager::Manager;
use cairn_manager_core::{Applied, Command, State, checkpoint};
use cairn_raft_host::{AppliedAt, CheckpointWriter, DropReason, Item, Role, StateMachine};
use cairn_store::{CheckpointSource, StoreError};
use parking_lot::{RwLock, RwLockReadGuard};
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;

/// Who waits for a command's outcome.
pub(crate) type Waiter = oneshot::Sender<Result<Applied, DropReason>>;

/// The replicated state, shared with readers.
#[derive(Default)]
pub(crate) struct Replica {
    state: RwLock<Arc<State>>,
}

impl Replica {
    /// Short: writers wait meanwhile.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Arc<State>> {
        self.state.read()
    }
}

/// What the Raft host drives.
pub(crate) struct Machine {
    replica: Arc<Replica>,
    manager: Weak<Manager>,
    /// Highest feature level that this process says it understands.
    level: u32,
    answers: Vec<(Waiter, Applied)>,
}

impl Machine {
    pub(crate) fn new(replica: Arc<Replica>, manager: Weak<Manager>, level: u32) -> Self {
        Self { replica, manager, level, answers: Vec::new() }
    }

    fn send_answers(&mut self) {
        let mut raised = Vec::new();
        for (waiter, applied) in self.answers.drain(..) {
            raised.extend_from_slice(&applied.raised);
            // Whoever gave up waiting looks for itself later.
            let _ = waiter.send(Ok(applied));
        }
        if let Some(manager) = self.manager.upgrade() {
            manager.applied(raised);
        }
    }
}

/// Why this process cannot be a member any more.
fn too_new(needed: u32, understood: u32) -> String {
    format!(
        "it needs feature level {needed}, which all managers had announced, and this process understands {understood}: start \
         the newer build again, or take node.feature_level_max out of its configuration"
    )
}

impl StateMachine for Machine {
    type Context = Waiter;

    fn apply(&mut self, at: AppliedAt, items: Vec<Item<Waiter>>) {
        let mut guard = self.replica.state.write();
        let state = Arc::make_mut(&mut guard);
        for item in items {
            let command = match Command::from_bytes(&item.data) {
                Ok(command) => command,
                Err(error) => panic!("entry {} of the manager's log: {error}", at.index),
            };
            let needed = command.level();
            assert!(needed <= self.level, "entry {} of the managers' log: {}", at.index, too_new(needed, self.level));
            let applied = state.apply(at.time, &command);
            if let Some(waiter) = item.context {
                self.answers.push((waiter, applied));
            }
        }
    }

    fn level(&self) -> u32 {
        self.replica.state.read().level()
    }

    fn applied_batch(&mut self) {
        self.send_answers();
    }

    fn dropped(&mut self, contexts: Vec<(Waiter, DropReason)>) {
        for (waiter, reason) in contexts {
            // Whoever gave up waiting does not need it.
            let _ = waiter.send(Err(reason));
        }
    }

    fn checkpoint(&self) -> CheckpointWriter {
        let state = self.replica.state.read().clone();
        Box::new(move |sink| checkpoint::write(&state, |piece| sink.write(piece)))
    }

    fn restore(&mut self, source: &mut dyn CheckpointSource) -> Result<(), StoreError> {
        let corrupt = |error: checkpoint::CheckpointError| match error {
            checkpoint::CheckpointError::Later { .. } => {
                StoreError::State { group: 0, index: 0, what: error.to_string() }
            }
            damaged => StoreError::Corrupt {
                file: "checkpoint of the manager's group".into(),
                offset: damaged.offset(),
                what: damaged.to_string(),
            },
        };
        let mut reader = checkpoint::Reader::new();
        let mut piece = vec![0; 256 << 10];
        loop {
            match source.read(&mut piece)? {
                0 => break,
                got => reader.feed(&piece[..got]).map_err(corrupt)?,
            }
        }
        let state = reader.finish().map_err(corrupt)?;
        if state.level() > self.level {
            // Not damage: an older checkpoint would be followed by the same log.
            return Err(StoreError::State { group: 0, index: 0, what: too_new(state.level(), self.level) });
        }
        *self.replica.state.write() = Arc::new(state);
        Ok(())
    }

    fn role_changed(&mut self, role: Role) {
        if let Some(manager) = self.manager.upgrade() {
            manager.role_changed(role);
        }
    }
}
