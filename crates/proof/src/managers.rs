//! [`ManagerChanges`]: the managers' group takes in a member in another place, and lets that one go again, or one of
//! the first in its stead, whose process goes on with the namespace alone. With four of them one may be faulty as with
//! three.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_sim::SimRng;
use cairn_wire::Opcode;
use cairn_wire::data::NodeAddress;
use cairn_wire::manager::{ChangeMembersRequest, StatusRequest, StatusResponse};

use crate::cluster::{Cluster, head_disk};
use crate::head::Roles;
use crate::roster::manager_number;

/// Time in which a change is done once nothing is wrong any more.
const PATIENCE: Duration = Duration::from_secs(300);

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nobody is in the other place.
    Three,
    /// A manager runs there, and is to be a member.
    Comes,
    /// It votes.
    Four,
    /// The one in this place is to be none any more.
    Goes(usize),
    /// One of the first has gone.
    Replaced,
}

/// What is being done.
pub struct ManagerChanges {
    cluster: Arc<Cluster>,
    rng: SimRng,
    seed: u64,
    /// Of the one that comes and goes; `None`: none does.
    place: Option<usize>,
    stage: Stage,
    /// How often it had an empty directory.
    wiped: u64,
    /// How often what was done.
    pub counts: BTreeMap<&'static str, u64>,
}

impl ManagerChanges {
    /// Nothing yet.
    pub fn new(seed: u64, cluster: Arc<Cluster>) -> Self {
        let place = (0..cluster.heads.len()).find(|place| cluster.heads[*place].lock().roles == Roles::None);
        let rng = SimRng::derived(seed, "managers");
        Self { cluster, rng, seed, place, stage: Stage::Three, wiped: 0, counts: BTreeMap::new() }
    }

    /// Perhaps begins something, goes on with what is under way. `calm`: no head is faulty, so one may be restarted.
    pub fn step(&mut self, calm: bool) -> Result<(), String> {
        let Some(place) = self.place else { return Ok(()) };
        match self.stage {
            Stage::Three if calm && self.rng.chance(0.3) => self.bring(place),
            Stage::Four if self.rng.chance(0.3) => {
                let first = self.cluster.roster.places().into_iter().filter(|other| *other != place);
                let first: Vec<usize> = first.collect();
                let goes = if self.rng.chance(0.5) { place } else { *self.rng.pick(&first) };
                self.stage = Stage::Goes(goes);
            }
            _ => {}
        }
        self.go_on(place, calm)
    }

    /// Nothing is wrong any more: what was begun is done.
    pub fn end(&mut self) -> Result<(), String> {
        let Some(place) = self.place else { return Ok(()) };
        let (mut broken, cluster) = (Ok(()), self.cluster.clone());
        cluster.eventually("the managers have changed as they were asked to", PATIENCE, || {
            broken = self.go_on(place, true);
            broken.is_err() || !matches!(self.stage, Stage::Comes | Stage::Goes(_))
        })?;
        broken
    }

    /// Starts a manager with an empty directory.
    fn bring(&mut self, place: usize) {
        let mut head = self.cluster.heads[place].lock();
        head.roles = Roles::Manager;
        let started = head.start();
        tracing::info!(place, ?started, "a new manager is started");
        if started.is_err() {
            drop(head);
            return self.clear(place);
        }
        self.stage = Stage::Comes;
    }

    /// Ends the one that comes and goes, and empties its directory.
    fn clear(&mut self, place: usize) {
        let mut head = self.cluster.heads[place].lock();
        head.kill();
        self.wiped += 1;
        head.wipe(head_disk(self.seed, place, self.wiped));
        self.stage = Stage::Three;
    }

    fn go_on(&mut self, place: usize, calm: bool) -> Result<(), String> {
        match self.stage {
            Stage::Comes => {
                let (number, address) = (manager_number(place), self.cluster.heads[place].lock().address());
                let addresses = vec![NodeAddress { node: number, address: address.clone() }];
                let (group, add) = (0, vec![number]);
                let taken =
                    self.ask(&ChangeMembersRequest { group, add, addresses, ..ChangeMembersRequest::default() });
                tracing::info!(place, ?taken, "a manager is to be taken in");
                if taken.is_ok() {
                    // From now on it may lead.
                    self.cluster.roster.add(place, address);
                }
                let votes = |status: StatusResponse| status.managers.contains(&number);
                if self.status().is_some_and(votes) {
                    self.count("managers taken in");
                    self.stage = Stage::Four;
                }
            }
            Stage::Goes(goes) => {
                let number = manager_number(goes);
                let (group, remove) = (0, vec![number]);
                let taken = self.ask(&ChangeMembersRequest { group, remove, ..ChangeMembersRequest::default() });
                tracing::info!(goes, ?taken, "a manager is to go");
                // One that leads hands that over first, and is asked to go again; whoever did not hear that it was done
                // is refused.
                if self.status().is_some_and(|status| !is_manager(&status, number)) {
                    self.cluster.roster.remove(goes);
                }
                if !self.cluster.roster.has(goes) && calm {
                    self.restart(place, goes)?;
                }
            }
            Stage::Three | Stage::Four | Stage::Replaced => {}
        }
        Ok(())
    }

    /// Who is a manager no more gets another configuration.
    fn restart(&mut self, place: usize, gone: usize) -> Result<(), String> {
        if gone == place {
            self.clear(place);
            self.count("managers that came and went");
            return Ok(());
        }
        let mut head = self.cluster.heads[gone].lock();
        head.kill();
        head.roles = Roles::Namespace;
        head.start().map_err(|why| format!("the head in place {gone} does not start without its manager: {why}"))?;
        drop(head);
        self.stage = Stage::Replaced;
        self.count("managers replaced");
        Ok(())
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn ask(&self, request: &ChangeMembersRequest) -> Result<(), String> {
        self.cluster.runtime.block_on(self.cluster.ask_manager(Opcode::ChangeMembers, request)).map(|_| ())
    }

    fn status(&self) -> Option<StatusResponse> {
        let answer = self.cluster.runtime.block_on(self.cluster.ask_manager(Opcode::Status, &StatusRequest {}));
        answer.ok()?.decode().ok()
    }
}

/// Whether it is a member of the group, or entered as one.
fn is_manager(status: &StatusResponse, number: u32) -> bool {
    let mut nodes = status.map.iter().flat_map(|map| &map.nodes);
    let entered = nodes.any(|node| node.id == number && node.roles.iter().any(|role| role == "manager"));
    entered || status.manager_members.iter().any(|member| member.node == number)
}
