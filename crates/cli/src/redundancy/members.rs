//! [`Members`]: data nodes asked whether they answer, which blocks of their disks are bad and which chunks they have,
//! so that what is said of a file holds at this moment and not as of the last change of the cluster map.
//!
//! Each node is asked once for its bad blocks, and each member of a group once for a chunk. One that does not answer
//! counts as missing; one that is known to be down is not asked.
use cairn_client::Client;
use cairn_client::admin::data::BadBlockList;
use cairn_client::view::ClusterView;
use cairn_types::{BLOCK_SIZE, ErrorCode};
use std::collections::{BTreeMap, BTreeSet};
use tokio::task::JoinSet;

/// Nodes that are asked at the same time.
const ASKED_AT_ONCE: usize = 64;
/// Chunks of members that are remembered; beyond it they are asked for anew.
const LISTED_MAX: usize = 1 << 20;

/// Chunks by group.
pub type Chunks = BTreeMap<u32, BTreeSet<u32>>;

/// What nodes said.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Known {
    /// Disks of nodes that did not answer, by node.
    pub silent: BTreeMap<u32, u32>,
    /// Disks of nodes that have more bad blocks than they remember.
    pub unsure: BTreeSet<u32>,
    /// Bad blocks of a chunk, by group and index, by disk.
    pub bad: BTreeMap<(u32, u32), BTreeMap<u32, Vec<u32>>>,
    /// Blocks of chunks, by group and disk, of members that were asked for them; 0: the chunk is not there.
    pub listed: BTreeMap<(u32, u32), BTreeMap<u32, u32>>,
}

impl Known {
    /// Nothing that is there is to be counted on.
    pub fn is_out(&self, disk: u32) -> bool {
        self.silent.contains_key(&disk) || self.unsure.contains(&disk)
    }

    /// Whether a member said that it has not got so many blocks of a chunk.
    pub fn lacks(&self, disk: u32, (pg, index): (u32, u32), blocks: u32) -> bool {
        let listed = self.listed.get(&(pg, disk)).and_then(|listed| listed.get(&index));
        listed.is_some_and(|has| *has < blocks)
    }
}

/// Asks nodes as they are needed.
pub struct Members {
    client: Client,
    asked: BTreeSet<u32>,
    known: Known,
}

impl Members {
    pub fn new(client: Client) -> Self {
        Self { client, asked: BTreeSet::new(), known: Known::default() }
    }

    /// Asks the members of these chunks' groups that were not asked yet; what all said so far.
    pub async fn ask(&mut self, view: &ClusterView, chunks: &Chunks) -> &Known {
        self.ask_nodes(view, chunks).await;
        self.ask_lists(view, chunks).await;
        &self.known
    }

    /// Asks members for the chunks that they have.
    async fn ask_lists(&mut self, view: &ClusterView, chunks: &Chunks) {
        if self.known.listed.values().map(BTreeMap::len).sum::<usize>() > LISTED_MAX {
            self.known.listed.clear();
        }
        let mut tasks = JoinSet::new();
        for (pg, indices) in chunks {
            let Some(group) = view.pgs.get(pg) else { continue };
            let disks: Vec<u32> = group.serving().filter(|disk| !self.known.is_out(*disk)).collect();
            for disk in disks {
                let listed = self.known.listed.get(&(*pg, disk));
                let new = |index: &u32| listed.is_none_or(|listed| !listed.contains_key(index));
                let wanted: BTreeSet<u32> = indices.iter().copied().filter(new).collect();
                let node = view.disks.get(&disk).and_then(|disk| view.nodes.get(&disk.node));
                let Some(node) = node.filter(|node| node.up && !wanted.is_empty()) else { continue };
                if tasks.len() >= ASKED_AT_ONCE
                    && let Some(Ok((at, listed))) = tasks.join_next().await
                {
                    self.known.listed.entry(at).or_default().extend(listed);
                }
                let (client, address, pg) = (self.client.clone(), node.address.clone(), *pg);
                tasks.spawn(async move { ((pg, disk), list(&client, &address, (pg, disk), wanted).await) });
            }
        }
        while let Some(answer) = tasks.join_next().await {
            if let Ok((at, listed)) = answer {
                self.known.listed.entry(at).or_default().extend(listed);
            }
        }
    }

    async fn ask_nodes(&mut self, view: &ClusterView, chunks: &Chunks) {
        let disks = chunks.keys().filter_map(|pg| view.pgs.get(pg)).flat_map(|pg| pg.serving());
        let nodes: BTreeSet<u32> = disks.filter_map(|disk| view.disks.get(&disk)).map(|disk| disk.node).collect();
        let mut tasks = JoinSet::new();
        for id in nodes {
            let Some(node) = view.nodes.get(&id).filter(|node| node.up && self.asked.insert(id)) else { continue };
            if tasks.len() >= ASKED_AT_ONCE
                && let Some(Ok((node, answer))) = tasks.join_next().await
            {
                self.take(view, node, answer);
            }
            let (client, address) = (self.client.clone(), node.address.clone());
            tasks.spawn(async move {
                let what = format!("bad blocks of node {id}");
                (id, client.bad_blocks(&what, &address).await)
            });
        }
        while let Some(answer) = tasks.join_next().await {
            if let Ok((node, answer)) = answer {
                self.take(view, node, answer);
            }
        }
    }

    fn take(&mut self, view: &ClusterView, node: u32, answer: cairn_client::Result<BadBlockList>) {
        let disks = || view.disks.values().filter(move |disk| disk.node == node).map(|disk| disk.id);
        match answer {
            Ok(answer) => {
                if answer.more {
                    self.known.unsure.extend(disks());
                }
                for chunk in answer.chunks {
                    self.known.bad.entry(chunk.chunk).or_default().insert(chunk.disk, chunk.blocks);
                }
            }
            // A server of an earlier version, which keeps no list.
            Err(error) if error.code() == Some(ErrorCode::UnknownOperation) => {}
            Err(error) => {
                tracing::debug!(node, %error, "a data node does not answer");
                self.known.silent.extend(disks().map(|disk| (disk, node)));
            }
        }
    }
}

/// What a member has of these chunks, in blocks; what it did not tell is not in it.
async fn list(client: &Client, address: &str, (pg, disk): (u32, u32), mut wanted: BTreeSet<u32>) -> BTreeMap<u32, u32> {
    let (mut listed, what) = (BTreeMap::new(), format!("chunks of pg{pg} on d{disk}"));
    while let (Some(first), Some(last)) = (wanted.first().copied(), wanted.last().copied()) {
        let page = match client.chunk_lengths(&what, address, (pg, disk), first..=last).await {
            Ok(page) => page,
            Err(error) => {
                tracing::debug!(pg, disk, %error, "a member does not list its chunks");
                return listed;
            }
        };
        let blocks = |length: u64| u32::try_from(length.div_ceil(BLOCK_SIZE as u64)).unwrap_or(u32::MAX);
        let found: BTreeMap<u32, u32> = page.chunks.iter().map(|(index, length)| (*index, blocks(*length))).collect();
        let told: Vec<u32> = wanted.extract_if(..=page.told_to, |_| true).collect();
        listed.extend(told.into_iter().map(|index| (index, found.get(&index).copied().unwrap_or(0))));
    }
    listed
}
