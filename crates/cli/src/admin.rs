//! `cairn admin …`: state and settings of the cluster, as the manager's leader tells them. One noun a file.
mod backup;
mod config;
mod disk;
mod drain;
mod events;
mod fsck;
mod hibernate;
mod key;
mod listing;
mod manager;
mod members;
mod node;
mod partition;
mod partition_list;
mod pg;
mod rebuild_map;
mod repair;
mod restore;
mod scrub;
mod status;
mod stripe;
mod support_bundle;
mod target;
mod volume;

pub use status::{disk_sums, writable_sum};

use crate::context::Context;
use crate::error::Result;
use cairn_client::admin::status::{ClusterMap, ClusterStatus};
use clap::{Args, Subcommand};

/// `cairn admin`
#[derive(Args, Debug)]
pub struct AdminArgs {
    #[command(subcommand)]
    noun: Noun,
}

#[derive(Subcommand, Debug)]
enum Noun {
    /// The cluster on one screen: what is wrong, what it means, what is being done
    Status(status::StatusArgs),
    /// Nodes: processes of the cluster
    Node(node::NodeArgs),
    /// Disks of data nodes
    Disk(disk::DiskArgs),
    /// What happened in the cluster, one line an event
    Events(events::EventsArgs),
    /// Volumes: trees of files
    Volume(volume::VolumeArgs),
    /// Placement groups: disks that hold the same chunks
    Pg(pg::PgArgs),
    /// What is being copied or rebuilt, how far it is, what waits and why
    Repair(repair::RepairArgs),
    /// Empty disks, nodes or racks while they serve: what they keep goes elsewhere
    Drain(drain::DrainArgs),
    /// Take a node or a rack down for a time, without repair of what it keeps
    Hibernate(hibernate::HibernateArgs),
    /// Meta partitions: who serves which inodes
    Partition(partition::PartitionArgs),
    /// Managers: who keeps the cluster's own state
    Manager(manager::ManagerArgs),
    /// Disks read through at rest: how far, what was found, read now
    Scrub(scrub::ScrubArgs),
    /// Proof that a volume is whole: names, links, totals, quotas, and the copies of every file
    Fsck(fsck::FsckArgs),
    /// Copy the cluster's metadata to another place, or look at such copies
    Backup(backup::BackupArgs),
    /// Put meta partitions of a backup into the directory of a node that does not run
    Restore(restore::RestoreArgs),
    /// Make the cluster map anew from the disks, when all managers are lost
    RebuildMap(rebuild_map::RebuildMapArgs),
    /// Keys that are taken away at all servers
    Key(key::KeyArgs),
    /// Settings of the whole cluster
    Config(config::ConfigArgs),
    /// What somebody needs who is to help, in one text file, without secrets
    SupportBundle(support_bundle::SupportBundleArgs),
}

impl AdminArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        context.note_interrupt(match &self.noun {
            Noun::Backup(_) => "what is not complete is no backup: repeat it".into(),
            Noun::Status(_) | Noun::Events(_) | Noun::Repair(_) => "nothing was changed".into(),
            Noun::SupportBundle(_) => "the file is not complete: remove it, and repeat".into(),
            Noun::Fsck(_) => "the check goes on in the cluster, and nobody waits for what it finds: repeat it".into(),
            _ => "what was asked of the cluster by then goes on by itself; cairn admin status shows how".into(),
        });
        if matches!(self.noun, Noun::Backup(_) | Noun::Restore(_) | Noun::RebuildMap(_) | Noun::SupportBundle(_)) {
            // Names, small files and state of the cluster: for whoever runs this, and nobody else of the machine.
            rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
        }
        match self.noun {
            Noun::Status(args) => args.run(context).await,
            Noun::Node(args) => args.run(context).await,
            Noun::Disk(args) => args.run(context).await,
            Noun::Events(args) => args.run(context).await,
            Noun::Volume(args) => args.run(context).await,
            Noun::Pg(args) => args.run(context).await,
            Noun::Repair(args) => args.run(context).await,
            Noun::Drain(args) => args.run(context).await,
            Noun::Hibernate(args) => args.run(context).await,
            Noun::Partition(args) => args.run(context).await,
            Noun::Manager(args) => args.run(context).await,
            Noun::Scrub(args) => args.run(context).await,
            Noun::Fsck(args) => args.run(context).await,
            Noun::Backup(args) => args.run(context).await,
            Noun::Restore(args) => args.run(context),
            Noun::RebuildMap(args) => args.run(context),
            Noun::Key(args) => args.run(context).await,
            Noun::Config(args) => args.run(context).await,
            Noun::SupportBundle(args) => args.run(context).await,
        }
    }
}

/// All that the manager tells, with its map, for a command that shows some of it.
async fn status(context: &Context) -> Result<(ClusterStatus, ClusterMap)> {
    context.only_looks();
    context.managers_only();
    full_status(context).await
}

/// The same for a command that has more to do.
async fn full_status(context: &Context) -> Result<(ClusterStatus, ClusterMap)> {
    let client = context.client().await?;
    let mut status = client.status("asking for the state of the cluster").await?;
    let map = std::mem::take(&mut status.map);
    Ok((status, map))
}

/// `3.2 s`, `4 min`, `2 h`: an age for people.
fn age(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{:.1} s", ms as f64 / 1000.0),
        10_000..120_000 => format!("{} s", ms / 1000),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    }
}
