//! [`Manager`]: what all requests and duties of one member share: the state, the log, the leader's memory.
//!
//! Invariants: requests are answered only under the leader's lease. The leader's memory belongs to one term: what was
//! begun under another finds it gone. Locks are taken in the order memory, then state, never across an await.
use crate::config::ManagerConfig;
use crate::leading::Leading;
use crate::machine::{Replica, Waiter};
use crate::metrics::Metrics;
use cairn_env::{Clock, Rng};
use cairn_manager_core::restored::{RESTORED_LEVEL, waiting};
use cairn_manager_core::{Applied, Command, Outcome, State};
use cairn_raft_host::{DropReason, GroupHandle, RaftHost, Role};
use cairn_rpc::{Client, Identity};
use cairn_types::{ErrorCode, NodeId, PgId, Time, Understanding};
use cairn_wire::error::WireError;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// How long a command may take; longer, and its outcome is unknown to whoever asked.
const COMMAND_DEADLINE: Duration = Duration::from_secs(8);

/// One member's manager.
pub(crate) struct Manager {
    pub config: ManagerConfig,
    pub replica: Arc<Replica>,
    pub client: Client,
    pub raft: Arc<RaftHost>,
    pub identity: Identity,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub metrics: Metrics,
    /// The manager's own runtime: requests, probes, pushes and duties run there.
    pub runtime: tokio::runtime::Handle,
    /// Set once, right after the group is opened.
    pub log: OnceLock<GroupHandle<Waiter>>,
    /// There while this member leads.
    pub leading: Mutex<Option<Leading>>,
    /// Wakes the duties.
    pub wake: Notify,
    /// Somebody acknowledged a push.
    pub pushed: Notify,
    /// One plan of placement groups at a time.
    pub planning: tokio::sync::Mutex<()>,
    /// One new server at a time that shows a key.
    pub newcomers: tokio::sync::Mutex<()>,
    /// One grant of session ids at a time.
    pub granting: tokio::sync::Mutex<()>,
    /// Probes of disks under way, shared by all who report the same one.
    pub probes: Mutex<crate::probe::Probes>,
    /// What nodes said of how far the managers got.
    pub witnesses: Mutex<crate::ops::marks::Witnesses>,
    /// The log belongs to another cluster than the process's label: nothing is served.
    pub foreign: AtomicBool,
    pub me: Weak<Manager>,
}

impl Manager {
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Itself, for a task that outlives the call.
    pub(crate) fn arc(&self) -> Option<Arc<Manager>> {
        self.me.upgrade()
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }

    pub(crate) fn log(&self) -> Result<&GroupHandle<Waiter>, WireError> {
        self.log.get().ok_or_else(|| WireError::new(ErrorCode::Unavailable, "the manager is starting; repeat"))
    }

    /// Address of a member of the manager's group.
    fn member_address(&self, node: NodeId) -> Option<String> {
        let registered = self.replica.read().node(node).map(|n| n.address.clone()).filter(|a| !a.is_empty());
        registered.or_else(|| self.config.members.iter().find(|(id, _)| *id == node).map(|(_, a)| a.clone()))
    }

    pub(crate) fn not_leader(&self, hint: Option<NodeId>) -> WireError {
        let hint = hint.filter(|node| *node != self.config.member);
        WireError::not_leader(hint.and_then(|node| self.member_address(node)))
    }

    /// Whether this member may answer: it leads for certain, and has applied everything ever acknowledged.
    pub(crate) fn permit(&self) -> Result<(), WireError> {
        if self.foreign.load(Ordering::Relaxed) {
            let text = "this manager's log belongs to another cluster than its label; restore its directory";
            return Err(WireError::new(ErrorCode::WrongCluster, text));
        }
        self.log()?.read_permit().map_err(|refused| self.not_leader(refused.hint))
    }

    /// Looks at the state and the leader's memory, under the lease.
    pub(crate) fn look<T>(&self, f: impl FnOnce(&State, &mut Leading) -> T) -> Result<T, WireError> {
        self.permit()?;
        let mut leading = self.leading.lock();
        let Some(leading) = leading.as_mut() else { return Err(self.not_leader(None)) };
        Ok(f(&self.replica.read(), leading))
    }

    /// Changes what this leadership remembers, also while its lease has run out for a moment: what was begun would
    /// count as under way for ever if its end were not noted then. Nothing is done once another term has begun.
    pub(crate) fn remember(&self, term: u64, f: impl FnOnce(&mut Leading)) {
        if let Some(leading) = self.leading.lock().as_mut().filter(|leading| leading.term == term) {
            f(leading);
        }
    }

    /// As [`look`](Self::look), for requests that need a cluster.
    pub(crate) fn look_in_cluster<T>(
        &self,
        f: impl FnOnce(&State, &mut Leading) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        let behind = self.must_compare();
        self.look(|state, leading| match state.cluster() {
            Some(_) if behind || state.waits() => Err(waiting()),
            Some(_) if leading.doubts.hold() => Err(doubted()),
            Some(_) => f(state, leading),
            None => Err(WireError::new(ErrorCode::Unavailable, "the cluster is being initialized; repeat")),
        })?
    }

    /// What the managers understand, as this one has heard since it leads.
    pub(crate) fn understanding(&self) -> Understanding {
        self.log.get().map(|log| log.status().core.understanding).unwrap_or_default()
    }

    /// A command that a manager would not understand is not logged. The activation itself is decided on what all said.
    fn understood(&self, command: &Command) -> Result<(), WireError> {
        let (needed, active) = (command.level(), self.replica.read().level());
        if self.must_compare() && matters(command) {
            return Err(waiting());
        }
        if matters(command) && self.leading.lock().as_ref().is_some_and(|leading| leading.doubts.hold()) {
            return Err(doubted());
        }
        if needed <= active || matches!(command, Command::ActivateLevel(_)) {
            return Ok(());
        }
        let understanding = self.understanding();
        let code = match understanding.is_about_to_activate(needed) {
            true => ErrorCode::Overloaded,
            false => ErrorCode::NotSupported,
        };
        Err(WireError::new(code, understanding.refusal("this", needed)))
    }

    /// Whether this leader, or who elected it, has forgotten something and the nodes were not asked for it yet:
    /// managers of before do not know how.
    pub(crate) fn must_compare(&self) -> bool {
        let forgot = || self.log.get().is_some_and(|log| log.status().core.forgot);
        self.replica.read().level() >= RESTORED_LEVEL && forgot()
    }

    /// Logs a command and waits until it is applied.
    pub(crate) async fn propose(&self, command: Command) -> Result<Applied, WireError> {
        self.understood(&command)?;
        let (waiter, outcome) = oneshot::channel();
        if self.log()?.propose(command.to_bytes(), waiter).is_err() {
            return Err(WireError::new(ErrorCode::Overloaded, "the manager's queue is full; repeat in a moment"));
        }
        let unknown = |why: &str| {
            let text = format!("the manager {why}: whether it was done is not known");
            WireError::new(ErrorCode::DeadlineExceeded, text)
        };
        match tokio::time::timeout(COMMAND_DEADLINE, outcome).await {
            Ok(Ok(Ok(applied))) => Ok(applied),
            Ok(Ok(Err(DropReason::NotLeader { hint }))) => Err(self.not_leader(hint)),
            Ok(Ok(Err(DropReason::Unknown))) => Err(unknown("lost its leadership")),
            Ok(Err(_)) => Err(unknown("stopped")),
            Err(_) => Err(unknown("could not log the command in time")),
        }
    }

    /// Logs a command that is refused or done.
    pub(crate) async fn execute(&self, command: Command) -> Result<Outcome, WireError> {
        self.propose(command).await?.outcome
    }

    /// Logs a command that a duty wants; a failure is logged and tried again by the duty.
    pub(crate) async fn duty(&self, what: &'static str, command: Command) -> bool {
        match self.execute(command).await {
            Ok(_) => true,
            Err(error) => {
                tracing::info!(what, %error, "the manager could not log what it decided; it will be decided again");
                false
            }
        }
    }

    /// Called on the group's thread after every batch.
    pub(crate) fn applied(&self, raised: Vec<PgId>) {
        if !raised.is_empty() {
            self.metrics.epochs_raised.add(raised.len() as u64);
            if let Some(manager) = self.arc() {
                self.spawn(async move { manager.push(&raised) });
            }
        }
        if self.identity.cluster().is_none() {
            self.learn_cluster();
        }
    }

    /// Called on the group's thread.
    pub(crate) fn role_changed(&self, role: Role) {
        let mut leading = self.leading.lock();
        match role {
            Role::Leader { term, .. } => {
                if leading.as_ref().is_none_or(|leading| leading.term != term) {
                    tracing::info!(term, member = %self.config.member, "this manager leads");
                    self.metrics.leaderships.add(1);
                    *leading = Some(Leading::new(term, self.now()));
                }
            }
            Role::Follower { leader } => {
                if leading.take().is_some() {
                    tracing::info!(?leader, member = %self.config.member, "this manager does not lead any more");
                }
            }
        }
        drop(leading);
        self.wake.notify_one();
    }
}

/// Somebody knows of what was never given, and nobody else was heard since.
pub(crate) fn doubted() -> WireError {
    let text = "a node knows of what this manager never gave: it changes nothing before another node was heard; repeat in a moment";
    WireError::new(ErrorCode::Unavailable, text)
}

/// Whether a command gives numbers, or goes by what may have been forgotten.
fn matters(command: &Command) -> bool {
    let harmless = matches!(
        command,
        Command::TakeUp(_) | Command::InitCluster(_) | Command::ActivateLevel(_) | Command::PutManager(_)
    );
    !harmless
}
