//! Rounds of names over several partitions: clients make, link, move, list and remove files and directories in them
//! side by side, while a head fails in the middle of what they do. Each round has to have a history that one file
//! system can have, and once more when power was gone everywhere. Partitions are added on the way.
//!
//! Only in seeds with several partitions. Directories of a round are in any of them, so half of the operations are
//! across some.

use cairn_client::Volume;
use cairn_history::{Outcome, Round, choose, perform};
use cairn_sim::SimRng;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::manager::SplitPartitionRequest;

use super::{ATTEMPTS, Workload, beside};
use crate::faults::Planned;

/// Clients that work in a round at the same time.
const CLIENTS: usize = 4;
/// Operations of one client in one step, at most.
const EACH: usize = 16;
/// Rounds that are checked stay, so that what was acknowledged is looked for later on.
const KEPT: usize = 4;

/// The rounds of a seed.
pub(super) struct Histories {
    rng: SimRng,
    on: bool,
    made: u64,
    open: Option<Round>,
    checked: Vec<Round>,
    /// Partitions are added once.
    may_split: bool,
}

impl Histories {
    pub(super) fn new(seed: u64, several: bool) -> Self {
        let rng = SimRng::derived(seed, "histories");
        let may_split = rng.chance(0.5);
        Self { rng, on: several, made: 0, open: None, checked: Vec::new(), may_split }
    }

    /// Whether this step is about them.
    pub(super) fn is_due(&self) -> bool {
        self.on && self.rng.chance(0.35)
    }
}

/// What one client does in one step. How many operations it did, and how many of them have an outcome that nobody
/// knows.
async fn work(volume: &Volume, client: usize, round: &Round, rng: SimRng) -> (u64, u64) {
    let (mut done, mut unknown) = (0, 0);
    for _ in 0..1 + rng.index(EACH) {
        if round.is_full() {
            break;
        }
        let outcome = perform(volume, client, round, choose(round, &rng)).await;
        done += 1;
        unknown += u64::from(matches!(outcome, Outcome::Unknown));
    }
    (done, unknown)
}

impl Workload {
    /// Clients work in the open round while the fault begins; when it is full, or by chance, it is checked.
    pub(super) fn work_in_round(&mut self, planned: Option<Planned>) -> Result<(), String> {
        let Some(round) = self.open_round()? else { return Ok(()) };
        if self.histories.may_split && self.histories.rng.chance(0.4) {
            self.histories.may_split = false;
            self.split_again();
        }
        let rngs: Vec<SimRng> = (0..CLIENTS).map(|_| SimRng::seeded(self.histories.rng.range(0..u64::MAX))).collect();
        let volumes = [self.volume.clone(), self.reading.clone()];
        let all = async {
            let round = std::sync::Arc::new(round);
            let mut running = tokio::task::JoinSet::new();
            for (client, rng) in rngs.into_iter().enumerate() {
                let (volume, round) = (volumes[client % volumes.len()].clone(), round.clone());
                running.spawn(async move { work(&volume, client, &round, rng).await });
            }
            let counts = running.join_all().await;
            (std::sync::Arc::into_inner(round).expect("all others have ended"), counts)
        };
        let (round, counts) = beside(&self.cluster, &mut self.chaos, planned, all)?;
        for (done, unknown) in counts {
            *self.counts.entry("operations on names").or_default() += done;
            *self.counts.entry("of unknown outcome").or_default() += unknown;
        }
        if round.is_full() || self.histories.rng.chance(0.3) {
            self.check_round(&round)?;
            self.histories.checked.push(round);
            return if self.histories.checked.len() > KEPT { self.remove_round(0) } else { Ok(()) };
        }
        self.histories.open = Some(round);
        Ok(())
    }

    /// The one that is worked on, or a new one, with its directory in any partition.
    fn open_round(&mut self) -> Result<Option<Round>, String> {
        if let Some(round) = self.histories.open.take() {
            return Ok(Some(round));
        }
        self.histories.made += 1;
        let directory = self.histories.rng.pick(&self.directories);
        let path = format!("{directory}/round{}", self.histories.made);
        let which = self.histories.rng.index(64);
        let (volume, name) = (self.volume.clone(), path.clone().into_bytes());
        let making = async || {
            let all = volume.partitions().await?;
            match volume.mkdir_in(&name, 0o777, 0, all[which % all.len()]).await {
                // By a try before this one.
                Err(error) if error.code() == Some(ErrorCode::Exists) => volume.stat(&name, false).await,
                made => made,
            }
        };
        for attempt in 0..ATTEMPTS {
            match beside(&self.cluster, &mut self.chaos, None, making())? {
                Ok(made) => return Ok(Some(Round::new(path, made.inode))),
                Err(error) => self.relieve("rounds refused", attempt, &error)?,
            }
        }
        Ok(None)
    }

    /// The volume gets one more partition while it is used. A refusal is an answer like others.
    fn split_again(&mut self) {
        let request = SplitPartitionRequest { partition: 1, into: 2 };
        let taken = self.cluster.runtime.block_on(self.cluster.ask_manager(Opcode::SplitPartition, &request));
        tracing::info!(refused = ?taken.as_ref().err(), "the volume gets one more partition");
        self.count(if taken.is_ok() { "splits" } else { "splits refused" });
    }

    /// Everything in a round is listed, and its history, with that, is one of a file system.
    fn check_round(&mut self, round: &Round) -> Result<(), String> {
        for attempt in 0..ATTEMPTS {
            if beside(&self.cluster, &mut self.chaos, None, cairn_history::finish(&self.reading, round))? {
                let checked = round.check(|_| false)?;
                self.count(if checked.is_some() { "rounds checked" } else { "rounds undecided" });
                return Ok(());
            }
            self.relieve("rounds unreadable", attempt, &"not everything in it can be listed")?;
        }
        Ok(())
    }

    fn remove_round(&mut self, at: usize) -> Result<(), String> {
        let path = self.histories.checked.remove(at).path;
        for attempt in 0..ATTEMPTS {
            match beside(&self.cluster, &mut self.chaos, None, self.volume.remove_tree(path.as_bytes()))? {
                Ok(_) => break,
                Err(error) if attempt > 0 && error.is_not_found() => break,
                Err(error) => self.relieve("removals refused", attempt, &error)?,
            }
        }
        self.count("rounds removed");
        Ok(())
    }

    /// Everything is well again, and all were without power: names are what they were. Half of the rounds stay for the
    /// volume's check.
    pub(super) fn end_histories(&mut self) -> Result<(), String> {
        self.histories.checked.extend(self.histories.open.take());
        let rounds = std::mem::take(&mut self.histories.checked);
        rounds.iter().try_for_each(|round| self.check_round(round))?;
        self.histories.checked = rounds;
        for at in 0..self.histories.checked.len() / 2 {
            self.remove_round(at)?;
        }
        Ok(())
    }
}
