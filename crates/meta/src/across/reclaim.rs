//! Entries of removed directories whose inode another partition has: each is taken out by an operation across
//! partitions, behind.
//!
//! Each partition has its own places under way, so one that does not answer keeps back its own entries alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_types::PartitionId;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::ReclaimEntry;
use tokio::task::JoinSet;

use super::Peers;
use super::drive::Driver;
use crate::partition::{Partition, item};

/// Entries of one partition that are taken out side by side.
const MANY: usize = 16;
/// Of all of them.
const ALL: usize = 256;
/// Entries that are looked at together.
const LOOK: usize = 64;
/// Looks one after the other; then it rests, at least so many times as long as they took.
const LOOKS: usize = 64;
const REST: u32 = 4;

/// Directory and name.
type Entry = (u64, Vec<u8>);

/// What is under way.
#[derive(Default)]
struct UnderWay {
    entries: BTreeSet<Entry>,
    of: BTreeMap<PartitionId, usize>,
    tasks: JoinSet<(PartitionId, Entry, Result<(), WireError>)>,
}

impl UnderWay {
    /// Takes an entry's place, if there is one.
    fn begin(&mut self, owner: PartitionId, entry: &Entry) -> bool {
        let count = self.of.get(&owner).copied().unwrap_or(0);
        let free = count < MANY && self.entries.len() < ALL && self.entries.insert(entry.clone());
        if free {
            self.of.insert(owner, count + 1);
        }
        free
    }

    fn end(&mut self, owner: PartitionId, entry: &Entry) {
        self.entries.remove(entry);
        let count = self.of.remove(&owner).unwrap_or(0);
        if count > 1 {
            self.of.insert(owner, count - 1);
        }
    }
}

pub(super) async fn run(partition: &Arc<Partition>, peers: &Arc<Peers>, idle: Duration) {
    // Behind the last one that was looked at: what cannot be taken out yet keeps back no other.
    let (mut under_way, mut last) = (UnderWay::default(), Entry::default());
    loop {
        let began = Instant::now();
        begin_all(partition, peers, &mut under_way, &mut last);
        let rest = idle.max(began.elapsed() * REST);
        // What ends makes room at once; there may be more of its partition.
        let end = Instant::now() + rest;
        loop {
            let ended = tokio::select! {
                Some(ended) = under_way.tasks.join_next() => ended,
                () = partition.state.pause(end.saturating_duration_since(Instant::now())) => break,
            };
            let Ok((owner, entry, outcome)) = ended else { continue };
            under_way.end(owner, &entry);
            match outcome {
                Ok(()) if !under_way.of.contains_key(&owner) => break,
                Ok(()) => {}
                Err(error) => {
                    tracing::debug!(partition = %partition.state.id, %error, "an entry of a removed directory stays; will be repeated");
                }
            }
        }
    }
}

/// Begins what has a place.
fn begin_all(partition: &Arc<Partition>, peers: &Arc<Peers>, under_way: &mut UnderWay, last: &mut Entry) {
    let state = &partition.state;
    for _ in 0..LOOKS {
        if state.leading_term().is_none() || under_way.entries.len() == ALL {
            return;
        }
        let entries: Vec<(Entry, Option<u64>)> = {
            let namespace = state.namespace.read();
            let entries = namespace.reclaim_blocked_after(last.0, &last.1, LOOK);
            let with_inode = |entry: Entry| {
                let inode = namespace.waiting_inode(entry.0, &entry.1);
                (entry, inode)
            };
            entries.into_iter().map(with_inode).collect()
        };
        // From the beginning again, after a rest.
        *last = entries.last().map(|(entry, _)| entry.clone()).unwrap_or_default();
        if entries.is_empty() {
            return;
        }
        for (entry, inode) in entries {
            // What was locked here needs nobody else.
            let owner = inode.and_then(|inode| peers.owner(state.volume, inode).ok()).unwrap_or(state.id);
            if !under_way.begin(owner, &entry) {
                continue;
            }
            let (partition, peers) = (partition.clone(), peers.clone());
            under_way.tasks.spawn(async move {
                let (directory, name) = entry.clone();
                let data = item(Opcode::ReclaimEntry, &ReclaimEntry { directory, name });
                let driver = Driver { partition: &partition, peers: &peers, received: Instant::now() };
                let outcome = driver.run(data).await.map(|_| ());
                (owner, entry, outcome)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A partition without a quorum would keep back what all others are to give up.
    #[test]
    fn each_partition_has_its_own_places() {
        let (mut under_way, entry) = (UnderWay::default(), |number: usize| (7, number.to_be_bytes().to_vec()));
        let begun = (0..100).filter(|number| under_way.begin(PartitionId(1), &entry(*number))).count();
        assert_eq!(begun, MANY);
        assert!(under_way.begin(PartitionId(2), &entry(200)) && !under_way.begin(PartitionId(2), &entry(200)));
        under_way.end(PartitionId(1), &entry(3));
        assert!(under_way.begin(PartitionId(1), &entry(50)) && !under_way.begin(PartitionId(1), &entry(51)));
        for partition in 3..100 {
            (0..MANY).for_each(|number| {
                _ = under_way.begin(PartitionId(partition), &entry(1000 * partition as usize + number))
            });
        }
        assert_eq!(under_way.entries.len(), ALL);
    }
}
