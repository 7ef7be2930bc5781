//! [`Slot`]: one configured disk: its directory, its label, its store once it is open, or why it is not.
//!
//! Invariant: a disk that cannot be used is named with its cause and never keeps the node from starting.

use std::sync::Arc;

use cairn_env::{BufPool, Clock, Disk, Rng};
use cairn_format::label::LabelKind;
use cairn_store::{KnownDisks, LabelledDir};
use cairn_types::generation::Lineage;
use cairn_types::{ClusterId, DiskId, DiskUuid, NodeId};
use cairn_wire::manager::{DiskGeneration, DiskReport};
use parking_lot::{Mutex, RwLock};

use crate::disk::{DiskConfig, DiskContext, DiskStore, ReadShares};

/// Health of a disk in reports.
const GOOD: u32 = 0;
const FAILED: u32 = 1;
const QUARANTINED: u32 = 2;

/// One disk.
pub(crate) struct Slot {
    disk: Arc<dyn Disk>,
    dir: Mutex<Option<LabelledDir>>,
    store: RwLock<Option<Arc<DiskStore>>>,
    problem: Mutex<Option<String>>,
    /// What was told of its generations last.
    told: Mutex<Lineage>,
}

/// What stores are made with.
pub(crate) struct StoreParts {
    pub(crate) config: DiskConfig,
    pub(crate) known: Option<Arc<KnownDisks>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    pub(crate) pool: BufPool,
    pub(crate) shares: Arc<ReadShares>,
}

impl Slot {
    /// Locks the directory and reads its label; a problem is kept and reported.
    pub(crate) fn open(disk: Arc<dyn Disk>, cluster: ClusterId, parts: &StoreParts) -> Self {
        let (at, rng, now) = (disk.clone(), parts.rng.as_ref(), parts.clock.wall());
        let dir = match &parts.known {
            Some(known) => LabelledDir::open_disk(at, known, cluster, rng, now),
            None => LabelledDir::open(at, LabelKind::Disk, cluster, rng, now),
        };
        let slot = Self {
            disk,
            dir: Mutex::default(),
            store: RwLock::default(),
            problem: Mutex::default(),
            told: Mutex::default(),
        };
        match dir {
            Ok(dir) => {
                let known = dir.label().cluster;
                *slot.dir.lock() = Some(dir);
                // The cluster is known from an earlier start: the journal is replayed now, not at the registration.
                if !known.is_none() {
                    slot.open_store(known, parts);
                }
            }
            Err(error) => slot.quarantine(&error.to_string()),
        }
        slot
    }

    fn quarantine(&self, why: &str) {
        tracing::error!(disk = self.disk.name(), why, "the disk is not used; the node goes on without it");
        let named = why.starts_with(self.disk.name());
        *self.problem.lock() = Some(if named { why.to_owned() } else { format!("{}: {why}", self.disk.name()) });
    }

    /// Its identity; none while it is not known.
    pub(crate) fn uuid(&self) -> DiskUuid {
        self.dir.lock().as_ref().map_or(DiskUuid::NONE, |dir| dir.label().uuid)
    }

    /// Its id; 0 before the first registration.
    pub(crate) fn id(&self) -> DiskId {
        self.dir.lock().as_ref().map_or(DiskId(0), |dir| dir.label().disk)
    }

    /// The node in its label.
    pub(crate) fn node(&self) -> NodeId {
        self.dir.lock().as_ref().map_or(NodeId(0), |dir| dir.label().node)
    }

    /// The cluster in its label.
    pub(crate) fn cluster(&self) -> ClusterId {
        self.dir.lock().as_ref().map_or(ClusterId::NONE, |dir| dir.label().cluster)
    }

    /// Its chunks, if it is in use.
    pub(crate) fn store(&self) -> Option<Arc<DiskStore>> {
        self.store.read().clone()
    }

    /// The manager knows what it was told last.
    pub(crate) fn generation_confirmed(&self) {
        if let Some(store) = self.store() {
            store.generation_confirmed(&self.told.lock());
        }
    }

    /// What is wrong with it.
    pub(crate) fn problem(&self) -> Option<String> {
        let failure = self.store().and_then(|store| store.failure().map(|why| format!("{}: {why}", store.name())));
        failure.or_else(|| self.problem.lock().clone())
    }

    /// Takes identities over and opens the store if it is not open.
    pub(crate) fn register(
        &self,
        cluster: ClusterId,
        node: NodeId,
        disk: DiskId,
        parts: &StoreParts,
    ) -> Result<(), String> {
        let mut dir = self.dir.lock();
        let Some(labelled) = dir.as_mut() else { return Ok(()) };
        let label = *labelled.label();
        let foreign = !label.cluster.is_none() && label.cluster != cluster
            || label.disk != DiskId(0) && label.disk != disk
            || label.node != NodeId(0) && label.node != node;
        if foreign {
            drop(dir);
            if let Some(store) = self.store.write().take() {
                store.close();
            }
            self.quarantine(&format!(
                "its label says {} of {} in cluster {}, the manager says {disk} of {node} in cluster {cluster}",
                label.disk, label.node, label.cluster
            ));
            return Ok(());
        }
        let written = labelled.set_cluster(cluster).and_then(|()| labelled.set_disk(node, disk));
        written.map_err(|error| error.to_string())?;
        drop(dir);
        if self.store().is_none() && self.problem.lock().is_none() {
            self.open_store(cluster, parts);
        }
        Ok(())
    }

    fn open_store(&self, cluster: ClusterId, parts: &StoreParts) {
        let context = DiskContext {
            disk: self.disk.clone(),
            uuid: self.uuid(),
            cluster,
            clock: parts.clock.clone(),
            rng: parts.rng.clone(),
            pool: parts.pool.clone(),
            shares: parts.shares.clone(),
        };
        match DiskStore::open(context, parts.config.clone()) {
            Ok(store) => *self.store.write() = Some(store),
            Err(error) => self.quarantine(&error.to_string()),
        }
    }

    /// For registrations and heartbeats.
    pub(crate) fn report(&self) -> DiskReport {
        let store = self.store();
        let space = store.as_ref().map(|store| store.space()).unwrap_or_default();
        let failed = store.as_ref().is_some_and(|store| store.failure().is_some());
        let problem = self.problem();
        let health = match (&problem, failed) {
            (_, true) => FAILED,
            (Some(_), false) => QUARANTINED,
            (None, false) => GOOD,
        };
        let lineage = store.as_ref().map(|store| store.lineage()).unwrap_or_default();
        let runs = lineage.runs.iter().map(|run| DiskGeneration { number: run.number, nonce: run.nonce });
        let (generations, generation_confirmed) = (runs.collect(), lineage.confirmed);
        *self.told.lock() = lineage;
        let space = if store.is_some() { space } else { self.disk.space().unwrap_or_default() };
        DiskReport {
            disk: self.id().get(),
            uuid: self.uuid().0.to_vec(),
            path: self.disk.name().to_owned(),
            total_bytes: space.total,
            free_bytes: space.free,
            filesystem: space.filesystem,
            queue_depth: store.as_ref().map_or(0, |store| u32::try_from(store.queue_depth()).unwrap_or(u32::MAX)),
            latency_us: store.as_ref().map_or(0, |store| store.take_latency_us()),
            health,
            problem: problem.unwrap_or_default(),
            chunks: store.as_ref().map_or(0, |store| store.chunk_count() as u64),
            generations,
            generation_confirmed,
            tells_generations: store.is_some(),
            bad_blocks: store
                .as_ref()
                .map_or(0, |store| store.metrics().bad_blocks.load(std::sync::atomic::Ordering::Relaxed)),
        }
    }
}
