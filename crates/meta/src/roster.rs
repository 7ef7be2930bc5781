//! [`Roster`]: which partitions are open on this node: those of the list on disk at the start, then what the map says.
//!
//! | map | list | what is done |
//! |---|---|---|
//! | has this node as a member | absent, or not begun | put into the list, group begun (or joined, when somebody leads it already), marked as begun |
//! | says that this node has begun it | absent, or not begun | opened; its log must be there: without it the member would forget names and votes |
//! | any | begun | opened at the start; its log must be there |
//! | has this node, and its members were changed once | absent, or not begun | joined: an empty member that the group's leader fills |
//! | removed | any | closed, taken off the list, its log and checkpoints dropped |
//! | says that this node has left it | any | the same; it may join again later |
//! | absent, or without this node | begun | stays open: only an explicit removal destroys, and Raft knows its members |
//!
//! A removed partition's chunks are not freed one by one: its volume is deleted with it, the manager retires all
//! placement groups of the volume, and data nodes drop retired groups whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_format::partition_list::{MEMBERS_MAX, PartitionEntry};
use cairn_meta_core::{Namespace, NamespaceConfig};
use cairn_raft_host::{HostError, RaftHost};
use cairn_rpc::Client;
use cairn_types::{GroupId, InodeId, Layout, NodeId, PartitionId, VolumeId, WallTime};
use cairn_wire::manager;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::across::{self, Peers};
use crate::config::MetaTimings;
use crate::duties;
use crate::error::MetaError;
use crate::list_file::ListFile;
use crate::machine::PartitionMachine;
use crate::partition::{Common, Partition, PartitionState};
use crate::striped::StripedLock;

/// Open partitions by id.
pub(crate) type Open = StripedLock<BTreeMap<PartitionId, Arc<Partition>>>;

/// What is open on this node, and how it gets there.
pub(crate) struct Roster {
    pub(crate) node: NodeId,
    pub(crate) common: Arc<Common>,
    pub(crate) open: Open,
    pub(crate) host: Arc<RaftHost>,
    client: Client,
    peers: Arc<Peers>,
    timings: MetaTimings,
    runtime: tokio::runtime::Handle,
    /// Held while something is opened or closed: one at a time.
    list: Mutex<ListFile>,
    duties: Mutex<BTreeMap<PartitionId, AbortHandle>>,
    /// Why partitions that should be open are not.
    failures: Mutex<BTreeMap<PartitionId, String>>,
    /// The node stops: nothing is opened any more.
    stopped: AtomicBool,
}

/// Partitions whose state is dropped, with the reason.
type Gone = Vec<(PartitionId, &'static str)>;

/// What a roster is made of.
pub(crate) struct RosterParts {
    pub(crate) node: NodeId,
    pub(crate) common: Arc<Common>,
    pub(crate) host: Arc<RaftHost>,
    pub(crate) client: Client,
    pub(crate) timings: MetaTimings,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) list: ListFile,
}

impl Roster {
    pub(crate) fn new(parts: RosterParts) -> Self {
        Self {
            node: parts.node,
            peers: Arc::new(Peers::new(parts.client.clone(), parts.common.clone())),
            common: parts.common,
            open: Open::new(BTreeMap::new()),
            host: parts.host,
            client: parts.client,
            timings: parts.timings,
            runtime: parts.runtime,
            list: Mutex::new(parts.list),
            duties: Mutex::default(),
            failures: Mutex::default(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Opens what the list has, before any manager was heard. Entries that had not begun wait for the map.
    pub(crate) fn open_listed(&self) -> Result<(), MetaError> {
        let mut list = self.list.lock();
        let begun: Vec<PartitionEntry> = list.entries().iter().filter(|entry| entry.begun).cloned().collect();
        for entry in begun {
            let partition = entry.partition;
            self.open_one(&mut list, entry, false).map_err(|source| MetaError::Open { partition, source })?;
        }
        for group in self.host.unopened_groups() {
            if group != GroupId::MANAGER && list.get(PartitionId(group.get())).is_none() {
                tracing::warn!(%group, "the log has a group that is in no list of this node; it stays closed");
            }
        }
        Ok(())
    }

    /// Makes what is open agree with the map. Blocks; called from one thread at a time.
    pub(crate) fn reconcile(&self) {
        let mut list = self.list.lock();
        if self.stopped.load(Ordering::Relaxed) {
            return;
        }
        let (wanted, removed) = self.wanted();
        for (id, why) in removed {
            if list.get(id).is_some() {
                tracing::info!(partition = %id, why, "the state of a partition is dropped");
                self.destroy(&mut list, id);
            }
        }
        for (entry, join) in wanted {
            let id = entry.partition;
            if self.open.read().contains_key(&id) {
                self.note_end(&mut list, id, entry.inodes.1);
                continue;
            }
            // What the list says about its beginning stands; the map may have moved on.
            let known = list.get(id).cloned();
            // The manager remembers that this node had it: list and log may have been lost together.
            let begun = entry.begun || known.as_ref().is_some_and(|known| known.begun);
            let entry = PartitionEntry { begun, ..known.unwrap_or(entry) };
            match self.open_one(&mut list, entry, join) {
                Ok(()) => drop(self.failures.lock().remove(&id)),
                Err(error) => {
                    let error = told(id, self.node, error);
                    tracing::error!(partition = %id, %error, "a partition cannot be opened; will be repeated");
                    self.failures.lock().insert(id, error);
                }
            }
        }
        self.note_trash();
    }

    /// The list has the end that a range got: other partitions begin behind it.
    fn note_end(&self, list: &mut ListFile, id: PartitionId, inode_last: u64) {
        let Some(known) = list.get(id).filter(|known| known.inodes.1 > inode_last).cloned() else { return };
        let inodes = (known.inodes.0, inode_last);
        if let Err(error) = list.put(PartitionEntry { inodes, ..known }) {
            tracing::error!(partition = %id, %error, "the list of partitions could not be written; will be repeated");
        }
    }

    /// Whose volumes are in the trash.
    fn note_trash(&self) {
        let map = self.common.map.read();
        for partition in self.open.read().values() {
            let trashed = map.volume(partition.state.volume).is_some_and(|volume| volume.trashed_ns != 0);
            if partition.state.trashed.swap(trashed, Ordering::Relaxed) != trashed {
                tracing::info!(partition = %partition.state.id, trashed, "the volume was put into the trash, or taken out of it");
            }
        }
    }

    /// Partitions of this node by the map (and whether it joins them instead of beginning them), and those that are
    /// gone, with the reason.
    fn wanted(&self) -> (Vec<(PartitionEntry, bool)>, Gone) {
        let map = self.common.map.read();
        let mut wanted = Vec::new();
        for partition in map.partitions().filter(|p| !p.removed && p.nodes.contains(&self.node.get())) {
            let Some(volume) = map.volume(VolumeId(partition.volume)) else { continue };
            let led_elsewhere = partition.leader != 0 && partition.leader != self.node.get();
            let join = partition.changed || led_elsewhere;
            let begun = partition.begun.contains(&self.node.get());
            wanted.extend(entry(partition, volume).map(|entry| (PartitionEntry { begun, ..entry }, join)));
        }
        let gone =
            |p: &manager::Partition| match p.left.contains(&self.node.get()) && !p.nodes.contains(&self.node.get()) {
                _ if p.removed => Some("its volume was deleted"),
                true => Some("this node is no member any more"),
                false => None,
            };
        let removed = map.partitions().filter_map(|p| Some((PartitionId(p.id), gone(p)?))).collect();
        (wanted, removed)
    }

    fn open_one(&self, list: &mut ListFile, entry: PartitionEntry, join: bool) -> Result<(), HostError> {
        let (id, group) = (entry.partition, GroupId::from(entry.partition));
        if !entry.begun {
            list.put(entry.clone())?;
        }
        let state = Arc::new(PartitionState::new(Namespace::new(&namespace_config(&entry)), self.common.clone()));
        let machine = PartitionMachine::new(state.clone());
        let handle = if entry.begun {
            self.host.open_existing(group, machine)?
        } else {
            self.host.open_group(group, if join { &[] } else { &entry.members }, machine)?
        };
        list.put(PartitionEntry { begun: true, ..entry })?;
        let partition = Arc::new(Partition::new(state, handle));
        let duties = duties::run(partition.clone(), self.client.clone(), self.peers.clone(), self.timings.clone());
        let across = across::run(partition.clone(), self.peers.clone(), self.timings.clone());
        let task = async { tokio::join!(duties, across) };
        self.duties.lock().insert(id, self.runtime.spawn(task).abort_handle());
        self.open.write().insert(id, partition);
        tracing::info!(partition = %id, "the partition is open");
        Ok(())
    }

    fn close(&self, id: PartitionId) {
        if let Some(duties) = self.duties.lock().remove(&id) {
            duties.abort();
        }
        if self.open.write().remove(&id).is_some() {
            self.host.close_group(GroupId::from(id));
        }
    }

    /// Nothing of it is kept.
    fn destroy(&self, list: &mut ListFile, id: PartitionId) {
        self.close(id);
        self.failures.lock().remove(&id);
        // The list goes last: until then this is repeated. Before that it says that a log may be missing: a node that
        // ends between the two would not start again.
        let unbegun = list.get(id).map(|entry| PartitionEntry { begun: false, ..entry.clone() });
        if let Some(Err(error)) = unbegun.map(|entry| list.put(entry)) {
            tracing::error!(partition = %id, %error, "the list of partitions could not be written; will be repeated");
            return;
        }
        if let Err(error) = self.host.remove_group(GroupId::from(id)) {
            tracing::error!(partition = %id, %error, "the partition's log could not be dropped; will be repeated");
            return;
        }
        if let Err(error) = list.remove(id) {
            tracing::error!(partition = %id, %error, "the list of partitions could not be written; will be repeated");
        }
    }

    /// Closes everything for good; the files stay.
    pub(crate) fn close_all(&self) {
        let _list = self.list.lock();
        self.stopped.store(true, Ordering::Relaxed);
        let ids: Vec<PartitionId> = self.open.read().keys().copied().collect();
        ids.into_iter().for_each(|id| self.close(id));
    }

    /// Whether the map has this node as a member: then the partition is about to be opened.
    pub(crate) fn is_expected(&self, id: PartitionId) -> bool {
        let map = self.common.map.read();
        map.partition(id).is_some_and(|partition| !partition.removed && partition.nodes.contains(&self.node.get()))
    }

    /// Why partitions that should be open are not.
    pub(crate) fn failures(&self) -> BTreeMap<PartitionId, String> {
        self.failures.lock().clone()
    }
}

/// For people: what a partition's failure means and what is next.
fn told(id: PartitionId, node: NodeId, error: HostError) -> String {
    match error {
        HostError::Missing { dir, .. } => format!(
            "the log of partition {id} is missing in {dir} though the partition has begun: restore the directory, which may be an older copy \
             of itself; or, as long as most of the other members run, have this one added anew: `cairn admin partition renew {0} n{1}`, \
             or put another meta node in its place: `cairn admin partition move {0} n{1} OTHER`",
            id.get(),
            node.get()
        ),
        other => other.to_string(),
    }
}

/// What the list keeps of a partition of the map. `None` for what no manager sends.
fn entry(partition: &manager::Partition, volume: &manager::Volume) -> Option<PartitionEntry> {
    let sound = partition.id != 0
        && partition.volume != 0
        && partition.inode_first <= partition.inode_last
        && partition.nodes.len() <= MEMBERS_MAX
        && !partition.nodes.contains(&0);
    let layout = Layout::from_bits(volume.layout).filter(|_| sound);
    let Some(layout) = layout else {
        tracing::error!(?partition, "the map has a partition that makes no sense; it is not opened");
        return None;
    };
    Some(PartitionEntry {
        partition: PartitionId(partition.id),
        volume: VolumeId(partition.volume),
        inodes: (partition.inode_first, partition.inode_last),
        begun: false,
        members: partition.nodes.iter().map(|node| NodeId(*node)).collect(),
        layout,
        created: WallTime(volume.created_ns),
    })
}

fn namespace_config(entry: &PartitionEntry) -> NamespaceConfig {
    NamespaceConfig {
        // Inode 0 does not exist.
        inodes: entry.inodes.0.max(InodeId::ROOT.0)..=entry.inodes.1,
        created: entry.created,
        ..NamespaceConfig::new(entry.volume, entry.partition, entry.layout)
    }
}
