//! [`DataNode`]: a process with the data role and one simulated disk, which can lose power, be killed, and start again.

use std::sync::Arc;
use std::time::Duration;

use cairn_client::key::Key;
use cairn_data::{DataConfig, DataEnv, DataServer, DiskConfig};
use cairn_env::{BufPool, Disk, OsRng};
use cairn_jobs::{JobWorker, WorkerConfig};
use cairn_node_agent::{Contributor, NodeAgent};
use cairn_rpc::Server;
use cairn_sim::{CrashPolicy, DiskImage, FaultCounts, SimDisk, SimRng};
use cairn_store::KnownDisks;

use crate::copies::{Copies, lineage};
use crate::ground::{Ground, Router, new_disk, serve};
use crate::links::host_of;
use crate::plug::Plug;
use crate::roster::Roster;

/// Size of a data disk.
pub const DISK_BYTES: u64 = 512 << 20;

/// What a node had at an earlier moment.
struct Copy {
    disk: DiskImage,
    home: DiskImage,
    /// Of its disk.
    generation: u64,
}

struct Running {
    server: Server,
    agent: Arc<NodeAgent>,
    data: DataServer,
    jobs: Option<Arc<JobWorker>>,
    ground: Ground,
}

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The machine loses power; the policy decides about what was not synced.
    Power(CrashPolicy),
    /// The process alone ends.
    Kill,
}

/// A process with the data role.
pub struct DataNode {
    seed: u64,
    pub place: usize,
    /// With the chunks.
    pub disk: SimDisk,
    /// With the node's label and list of disks.
    home: SimDisk,
    plug: Arc<Plug>,
    roster: Arc<Roster>,
    /// It converts files and moves them out of packs.
    jobs: bool,
    /// So many racks have data nodes; `None`: each one is in its own.
    racks: Option<usize>,
    /// What disks that were lost have gone through.
    lost: Vec<FaultCounts>,
    copies: Copies<Copy>,
    /// Its disk has been an older copy of itself.
    pub has_gone_back: bool,
    /// The generation of its disk at the last start.
    started: u64,
    running: Option<Running>,
}

fn config(disk: &SimDisk) -> DataConfig {
    let disk_config = DiskConfig {
        journal_bytes: 2 << 20,
        journal_append_max: 32 << 10,
        batch_bytes_max: 256 << 10,
        overlay_bytes_max: 2 << 20,
        write_threads: 1,
        read_threads: 1,
        allocate_step: 1 << 20,
        reserve_bytes: 0,
        open_files_max: 8,
        tables_max: 8,
        flush_age: Duration::from_millis(700),
        ..DiskConfig::default()
    };
    DataConfig {
        disk: disk_config,
        retry_pause: Duration::from_millis(30),
        idle_seal: Duration::from_secs(3),
        reserve_step: 8,
        restore_delay: Duration::from_millis(700),
        restore_again: Duration::from_secs(1),
        word_max: Duration::from_secs(1),
        look_after: Duration::from_millis(500),
        quiet: Duration::from_millis(1200),
        ..DataConfig::new(vec![Arc::new(disk.clone()) as Arc<dyn Disk>])
    }
}

impl DataNode {
    /// An empty one, not yet running.
    pub fn new(
        seed: u64,
        place: usize,
        plug: Arc<Plug>,
        roster: Arc<Roster>,
        jobs: bool,
        racks: Option<usize>,
    ) -> Self {
        let disk = new_disk(seed ^ (place as u64) << 32, format!("disk{place}"), DISK_BYTES);
        let home = new_disk(seed ^ (place as u64) << 40, format!("home{place}"), 16 << 20);
        let copies = Copies::default();
        Self {
            seed,
            place,
            disk,
            home,
            plug,
            roster,
            jobs,
            racks,
            lost: Vec::new(),
            copies,
            has_gone_back: false,
            started: 0,
            running: None,
        }
    }

    /// An empty disk is in the place of the one that there was, under another path; `all`: the node has lost its own
    /// directory as well and is a new node. It must not run.
    pub fn lose(&mut self, all: bool) {
        assert!(self.running.is_none(), "it runs");
        self.lost.push(self.disk.counts());
        self.copies.clear();
        self.has_gone_back = false;
        let (place, times) = (self.place, self.lost.len());
        let seed = self.seed ^ (place as u64) << 32 ^ (times as u64) << 56;
        self.disk = new_disk(seed, format!("disk{place}-{times}"), DISK_BYTES);
        if all {
            self.home = new_disk(seed ^ 1 << 40, format!("home{place}"), 16 << 20);
        }
    }

    /// Keeps what it has now.
    pub fn keep_copy(&mut self, rng: &SimRng) {
        if self.running.is_none() || self.disk.is_down() {
            return;
        }
        let Some(now) = lineage(&self.disk).and_then(|lineage| lineage.present()) else { return };
        let copy = Copy { disk: self.disk.snapshot(), home: self.home.snapshot(), generation: now.number };
        self.copies.keep(copy, rng);
    }

    /// A generation of its disk that the manager has logged for certain.
    fn logged(&self) -> u64 {
        if self.disk.is_down() {
            return 0;
        }
        let confirmed = lineage(&self.disk).map_or(0, |lineage| lineage.confirmed);
        confirmed.max(if self.is_registered() { self.started } else { 0 })
    }

    /// Whether an earlier state is known that has to be noticed: the disk has risen since, and the manager knows.
    pub fn can_go_back(&self) -> bool {
        let logged = self.logged();
        self.copies.has(|copy| copy.generation < logged)
    }

    /// Its process ends, and its disk has again what it had at an earlier moment, as if power had gone then; `home`: so
    /// has its own directory. False: no such moment is known.
    pub fn go_back(&mut self, rng: &SimRng, home: bool, policy: CrashPolicy) -> bool {
        let logged = self.logged();
        self.end(End::Power(policy));
        let Some(copy) = self.copies.pick(rng, |copy| copy.generation < logged) else { return false };
        let generation = copy.generation;
        tracing::info!(place = self.place, generation, logged, home, "a disk goes back to an earlier moment");
        self.disk.restore(&copy.disk);
        self.disk.crash(policy);
        self.has_gone_back = true;
        if home {
            self.home.restore(&copy.home);
            self.home.crash(policy);
        }
        true
    }

    /// What its disks have gone through.
    pub fn counts(&self) -> Vec<FaultCounts> {
        self.lost.iter().copied().chain([self.disk.counts()]).collect()
    }

    /// Whether it runs.
    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    /// Whether its disk has left service until it is started anew.
    pub fn has_failed(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.data.health().is_err())
    }

    /// Its number, once the manager gave it one.
    pub fn number(&self) -> Option<u32> {
        let running = self.running.as_ref()?;
        Some(running.ground.dir.lock().label().node.get()).filter(|number| *number != 0)
    }

    /// Whether the manager knows of this process: from then on its map tells what the disk has to catch up with.
    pub fn is_registered(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.agent.registration().is_some())
    }

    /// Opens the disk and begins to register; does not wait for it.
    pub fn start(&mut self) -> Result<(), String> {
        assert!(self.running.is_none(), "it runs already");
        let _there = cairn_dst::host::enter(host_of(self.place));
        let ground = Ground::lay(&self.home, None, self.roster.keys.server(self.place, false))?;
        let router = Arc::new(Router::default());
        let server = ground.bind(&self.plug, router.clone())?;
        let mut config = config(&self.disk);
        let known = {
            let dir = ground.dir.lock();
            KnownDisks::open(dir.disk().clone(), dir.label().uuid, []).map_err(|error| error.to_string())?
        };
        config.known = Some(Arc::new(known));
        let env = DataEnv {
            clock: ground.clock.clone(),
            rng: Arc::new(OsRng),
            pool: BufPool::new(32 << 20),
            client: ground.client.clone(),
            cluster: ground.identity.cluster(),
        };
        let data = DataServer::start(config, env).map_err(|error| error.to_string())?;
        self.started = lineage(&self.disk).and_then(|lineage| lineage.present()).map_or(0, |present| present.number);
        serve(&router.data, Arc::new(data.clone()));
        let mut contributors: Vec<Arc<dyn Contributor>> = vec![Arc::new(data.clone())];
        let jobs = match self.jobs {
            false => None,
            true => Some(JobWorker::start(self.job_config()).map_err(|error| error.to_string())?),
        };
        if let Some(jobs) = &jobs {
            serve(&router.jobs, jobs.clone());
            contributors.push(jobs.clone());
        }
        let (address, managers) = (self.plug.address(), self.roster.addresses());
        let agent = ground.agent(address, self.rack(), managers, &["data"], contributors)?;
        let weak = Arc::downgrade(&agent);
        data.set_poke(Arc::new(move || {
            if let Some(agent) = weak.upgrade() {
                agent.poke();
            }
        }));
        self.running = Some(Running { server, agent, data, jobs, ground });
        Ok(())
    }

    /// Where the manager and clients believe it to be.
    fn rack(&self) -> String {
        match self.racks {
            Some(racks) => format!("rack-{}", self.place % racks),
            None => format!("rack-{}", self.plug.address()),
        }
    }

    fn job_config(&self) -> WorkerConfig {
        let host = format!("host-{}", self.plug.address());
        let key = self.roster.keys.server(self.place, false).map_or(Key::None, Key::Given);
        WorkerConfig { host, rack: self.rack(), key, ..WorkerConfig::new(self.roster.addresses()) }
    }

    /// Ends the process: from this moment on nothing that it does has an effect.
    pub fn end(&mut self, end: End) {
        self.disk.power_off();
        self.home.power_off();
        self.plug.pull();
        if let Some(running) = self.running.take() {
            running.server.shutdown(Duration::ZERO);
            if let Some(jobs) = &running.jobs {
                jobs.stop();
            }
            running.agent.stop();
            running.data.stop();
        }
        for disk in [&self.disk, &self.home] {
            match end {
                End::Power(policy) => disk.crash(policy),
                End::Kill => disk.kill(),
            }
        }
    }
}

impl Drop for DataNode {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.end(End::Kill);
        }
    }
}
