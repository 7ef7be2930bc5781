//! Entries of removed directories whose inode another partition has: each is taken out by an operation across partitions, behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_wire::Opcode;
use cairn_wire::meta::ReclaimEntry;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Peers;
use super::drive::Driver;
use crate::partition::{Partition, item};

/// Entries that are taken out side by side.
const MANY: usize = 16;

pub(super) async fn run(partition: &Arc<Partition>, peers: &Arc<Peers>, idle: Duration) {
    let state = &partition.state;
    // Behind the last one: what cannot be taken out yet keeps back no other.
    let mut last: (u64, Vec<u8>) = (0, Vec::new());
    loop {
        let entries = match state.leading_term() {
            Some(_) => state.namespace.read().reclaim_blocked_after(last.0, &last.1, MANY),
            None => Vec::new(),
        };
        let Some(end) = entries.last().cloned() else {
            last = (0, Vec::new());
            sleep(idle).await;
            continue;
        };
        last = end;
        let mut under_way = JoinSet::new();
        for (directory, name) in entries {
            let (partition, peers) = (partition.clone(), peers.clone());
            under_way.spawn(async move {
                let data = item(Opcode::ReclaimEntry, &ReclaimEntry { directory, name });
                let driver = Driver { partition: &partition, peers: &peers, received: Instant::now() };
                driver.run(data).await.map(|_| ())
            });
        }
        while let Some(outcome) = under_way.join_next().await {
            if let Ok(Err(error)) = outcome {
                tracing::debug!(partition = %state.id, %error, "an entry of a removed directory stays; will be repeated");
            }
        }
    }
}
