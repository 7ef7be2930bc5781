//! [`NodeAgent`]: the running agent as its owner sees it.
//!
//! Not here: what its thread does (`work.rs`).

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_rpc::{Identity, LeaderClient};
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::config::AgentConfig;
use crate::contributor::{Contributor, Registration};
use crate::view::MapView;
use crate::work::Work;

/// Why there is no agent, or no registration.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The thread or its runtime could not be made.
    #[error("cannot start the node's agent: {0}")]
    Thread(#[source] std::io::Error),
    /// The manager did not register the node in time.
    #[error("this node was not registered within {waited:?}: {last}; the managers are {managers}")]
    NotRegistered {
        /// How long it was waited for.
        waited: Duration,
        /// What the last attempt said.
        last: String,
        /// Who was asked.
        managers: String,
    },
}

/// What the agent's thread and its owner share.
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    pub(crate) changed: Condvar,
    /// Wakes the thread before its next heartbeat is due.
    pub(crate) poke: Notify,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) registration: Option<Arc<Registration>>,
    pub(crate) view: MapView,
    /// Contributors that the thread has not taken over yet.
    pub(crate) joining: Vec<Arc<dyn Contributor>>,
    /// Why the last attempt to reach the manager failed; empty when it did not.
    pub(crate) problem: String,
    pub(crate) stop: bool,
}

/// A running agent; dropping it ends its thread.
pub struct NodeAgent {
    shared: Arc<Shared>,
    manager: LeaderClient,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl NodeAgent {
    /// Starts registering at once. `identity` learns cluster and node id from the registration.
    pub fn start(
        config: AgentConfig,
        manager: LeaderClient,
        identity: Identity,
        contributors: Vec<Arc<dyn Contributor>>,
    ) -> Result<Self, AgentError> {
        let state = State { joining: contributors, ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), poke: Notify::new() });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AgentError::Thread)?;
        let work = Work::new(config, manager.clone(), identity, shared.clone());
        let thread = std::thread::Builder::new()
            .name("cairn-agent".into())
            .spawn(move || runtime.block_on(work.run()))
            .map_err(AgentError::Thread)?;
        Ok(Self { shared, manager, thread: Mutex::new(Some(thread)) })
    }

    /// Lets a role take part from now on: it is told the registration and the whole map. One that brings disks makes
    /// the node register anew.
    pub fn join(&self, contributor: Arc<dyn Contributor>) {
        self.shared.state.lock().joining.push(contributor);
        self.poke();
    }

    /// The present registration, if there is one.
    pub fn registration(&self) -> Option<Arc<Registration>> {
        self.shared.state.lock().registration.clone()
    }

    /// Waits for the registration. Blocks; not for a runtime's own threads.
    pub fn wait_registered(&self, timeout: Duration) -> Result<Arc<Registration>, AgentError> {
        let mut state = self.shared.state.lock();
        self.shared.changed.wait_while_for(&mut state, |state| state.registration.is_none(), timeout);
        state.registration.clone().ok_or_else(|| AgentError::NotRegistered {
            waited: timeout,
            last: if state.problem.is_empty() { "no answer yet".to_owned() } else { state.problem.clone() },
            managers: self.manager.addresses().join(", "),
        })
    }

    /// Looks something up in the map. Short, under the agent's lock.
    pub fn with_map<T>(&self, look: impl FnOnce(&MapView) -> T) -> T {
        look(&self.shared.state.lock().view)
    }

    /// Sends a heartbeat as soon as possible: there is something that the manager should know at once.
    pub fn poke(&self) {
        self.shared.poke.notify_one();
    }

    /// For `/healthz`: what is wrong between this node and the manager.
    pub fn health(&self) -> Result<(), String> {
        let state = self.shared.state.lock();
        match (&state.registration, state.problem.is_empty()) {
            (_, false) => Err(state.problem.clone()),
            (None, true) => Err("not registered with the manager yet".to_owned()),
            (Some(_), true) => Ok(()),
        }
    }

    /// Ends the thread. Blocks until a call to the manager that is under way was given up.
    pub fn stop(&self) {
        self.shared.state.lock().stop = true;
        self.poke();
        let Some(thread) = self.thread.lock().take() else { return };
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("the node's agent panicked; this node sends no heartbeats");
        }
    }
}

impl Drop for NodeAgent {
    fn drop(&mut self) {
        self.stop();
    }
}
