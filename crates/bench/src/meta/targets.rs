//! Where the clients work: directories of their own, in all partitions of the volume in turn, or one directory with its
//! shards. Sessions are opened by messages of the wire: each bare connection has one of its own.
use super::MetaArgs;
use super::ops::{Operation, Place, Target};
use anyhow::{Context, bail};
use cairn_client::{Client, Volume};
use cairn_wire::Opcode;
use cairn_wire::manager::{OpenSessionRequest, OpenSessionResponse};
use std::time::Duration;

/// Makes a directory for each client, and a second one if files are moved.
pub async fn in_own_directories(
    args: &MetaArgs,
    client: &Client,
    volume: &Volume,
    root: &str,
    clients: usize,
) -> anyhow::Result<Vec<Target>> {
    volume.mkdir(root.as_bytes(), 0o755, 0).await?;
    let partitions = volume.partitions().await?;
    if args.across && partitions.len() < 2 {
        bail!("--across needs a volume of several meta partitions: cairn admin volume create NAME --partitions 2");
    }
    let mut targets = Vec::new();
    for i in 0..clients {
        // The same number in each partition.
        let own = partitions[i % partitions.len()];
        let other = partitions[(i + usize::from(args.across)) % partitions.len()];
        let at = made(client, volume, &format!("{root}/{i}"), own).await?;
        let beside = match args.operations.contains(&Operation::Move) {
            true => made(client, volume, &format!("{root}/{i}-moved"), other).await?,
            false => at.clone(),
        };
        let mut target = target(args, client, volume, i, at).await?;
        target.beside = beside;
        target.partition_of_new = if args.across { other } else { 0 };
        targets.push(target);
    }
    Ok(targets)
}

/// All clients in one directory; in its shards in turn if it has some.
pub async fn in_one_directory(
    args: &MetaArgs,
    client: &Client,
    volume: &Volume,
    path: &str,
    clients: usize,
) -> anyhow::Result<Vec<Target>> {
    let directory = volume.stat(path.as_bytes(), true).await?.inode;
    let shards = volume.shards(directory).await?;
    let mut targets = Vec::new();
    for i in 0..clients {
        let shard = (!shards.is_empty()).then(|| (i % shards.len(), shards.len()));
        let inode = shard.map_or(directory, |(index, _)| shards[index]);
        let at = place(client, volume, inode).await?;
        let mut target = target(args, client, volume, i, at).await?;
        target.shard = shard;
        targets.push(target);
    }
    Ok(targets)
}

/// Removes the directories of clients.
pub async fn remove(args: &MetaArgs, volume: &Volume, root: &str, clients: usize) -> anyhow::Result<()> {
    // Each by itself: a directory of another partition is none that goes with the one above it at once.
    for i in 0..clients {
        volume.remove_tree(format!("{root}/{i}").as_bytes()).await.context("removing the benchmark's files")?;
        if args.operations.contains(&Operation::Move) {
            let moved = format!("{root}/{i}-moved");
            volume.remove_tree(moved.as_bytes()).await.context("removing the benchmark's files")?;
        }
    }
    volume.remove_tree(root.as_bytes()).await.context("removing the benchmark's files")?;
    Ok(())
}

async fn made(client: &Client, volume: &Volume, path: &str, partition: u32) -> anyhow::Result<Place> {
    let inode = volume.mkdir_in(path.as_bytes(), 0o755, 0, partition).await?.inode;
    place(client, volume, inode).await
}

/// A client with a session of its own.
async fn target(args: &MetaArgs, client: &Client, volume: &Volume, number: usize, at: Place) -> anyhow::Result<Target> {
    let request = OpenSessionRequest { client: "cairn-bench".into(), volume: volume.id() };
    let session: OpenSessionResponse = client.manager("opening a session", Opcode::OpenSession, &request).await?;
    Ok(Target {
        volume: volume.id(),
        session: session.session,
        client: number,
        beside: at.clone(),
        at,
        partition_of_new: 0,
        shard: None,
        extent: args.extents,
    })
}

/// The partition that owns the directory and the address of its leader.
async fn place(client: &Client, volume: &Volume, directory: u64) -> anyhow::Result<Place> {
    // A call through the client made sure that there is a leader; the map may still name the one before.
    for _ in 0..50 {
        let view = client.refresh().await?;
        let partition =
            view.partition_of(volume.id(), directory).context("the volume has no partition for its inode")?;
        let leader = view.nodes.get(&partition.leader).or_else(|| match partition.nodes.as_slice() {
            [only] => view.nodes.get(only),
            _ => None,
        });
        if let Some(node) = leader {
            return Ok(Place { partition: partition.id, leader: node.address.clone(), directory });
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    bail!("the cluster map names no leader for the volume's partition; see cairn admin status")
}
