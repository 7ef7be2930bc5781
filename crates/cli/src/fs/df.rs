//! `cairn fs df`: what volumes hold and what the cluster's disks have left.
use crate::admin::{disk_sums, writable_sum};
use crate::context::Context;
use crate::entry::layout_text;
use crate::error::Result;
use crate::human;
use crate::table::{Align, Table};
use cairn_client::RemotePath;
use cairn_client::admin::status::{ClusterMap, PartitionReport};
use cairn_client::map::VolumeEntry;
use cairn_client::volume_counts::{Unreferenced, VolumeCounts};
use clap::Args;
use serde_json::json;
use std::ffi::OsString;
use std::time::Duration;

/// What no file names is counted within this, or the count before is shown.
const SURVEY: Duration = Duration::from_secs(5);

/// What lies on disks and in no file: who waits for space learns when it comes back.
fn unreferenced_lines(volume: &str, found: &Unreferenced, human_sizes: bool) -> Vec<String> {
    let size = |bytes| human::size(bytes, human_sizes);
    let mut lines = Vec::new();
    if found.left_bytes > 0 {
        lines.push(format!(
            "{volume}: {} unreferenced on all disks together, of writers that are gone; freed by {}",
            size(found.left_bytes),
            human::local_time(found.left_freed_by_ns)
        ));
    }
    if found.recent_bytes > 0 {
        lines.push(format!(
            "{volume}: {} unreferenced on all disks together, written a short time ago: being stored now, or, if the writers are gone, freed by {}",
            size(found.recent_bytes),
            human::local_time(found.recent_freed_by_ns)
        ));
    }
    lines
}

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct DfArgs {
    /// Remote paths: only their volumes
    paths: Vec<OsString>,
    /// Sizes such as 1.5M
    #[arg(short = 'h', long)]
    human: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

const COLUMNS: [(&str, Align); 6] = [
    ("VOLUME", Align::Left),
    ("LAYOUT", Align::Left),
    ("FILES", Align::Right),
    ("DIRECTORIES", Align::Right),
    ("SIZE", Align::Right),
    ("STORED", Align::Right),
];

/// Space of all disks, before redundancy.
fn disks_line(map: &ClusterMap, human: bool) -> String {
    let (total, free) = disk_sums(map);
    let used = total.saturating_sub(free);
    let percent = if total > 0 { used as f64 * 100.0 / total as f64 } else { 0.0 };
    let size = |bytes| human::size(bytes, human);
    format!(
        "disks: {} in all, {} used ({percent:.0} %), {} free, {} of it for data, the rest is kept free (before redundancy: a file of layout r3 takes three times its size, one of rs-6-3 one and a half)",
        size(total),
        size(used),
        size(free),
        size(writable_sum(map))
    )
}

impl DfArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let paths: Vec<RemotePath> =
            self.paths.iter().map(|text| context.remote(text)).collect::<Result<Vec<RemotePath>>>()?;
        let cluster = paths.first().and_then(|path| path.cluster.clone());
        let client = context.client_of(cluster.as_deref()).await?;
        let status = client.status("status").await?;
        let map = &status.map;
        let mut table = Table::new(&COLUMNS);
        let (total, free) = disk_sums(map);
        let report = context.plain_report();
        let mut lines = Vec::new();
        let mut in_trash = Vec::new();
        for volume in map.volumes.iter().filter(|volume| !volume.deleted) {
            if !paths.is_empty() && !paths.iter().any(|path| path.volume == volume.name) {
                continue;
            }
            if volume.trashed_ns != 0 {
                in_trash.push(volume);
                continue;
            }
            let root = RemotePath { cluster: cluster.clone(), volume: volume.name.clone(), path: b"/".to_vec() };
            let counts: VolumeCounts =
                match async { Ok(context.volume(&root).await?.statfs_unreferenced(SURVEY).await?) }.await {
                    Ok(counts) => counts,
                    Err(error) => {
                        report.fail(&error);
                        continue;
                    }
                };
            report.done(crate::report::Done::Directory);
            let (known, unreferenced) = (counts.unreferenced.is_some(), counts.unreferenced.unwrap_or_default());
            lines.extend(unreferenced_lines(&volume.name, &unreferenced, self.human));
            let files = counts.inodes.saturating_sub(counts.directories);
            if context.out.is_json() {
                context.out.json(&json!({
                    "volume": volume.name, "layout": layout_text(volume.layout), "files": files,
                    "directories": counts.directories, "bytes": counts.file_bytes, "stored_bytes": counts.stored_bytes,
                    "cluster_total_bytes": total, "cluster_free_bytes": free, "cluster_writable_bytes": writable_sum(map),
                    "unreferenced_bytes": known.then_some(unreferenced.left_bytes),
                    "unreferenced_freed_by_ns": unreferenced.left_freed_by_ns,
                    "unnamed_bytes": known.then_some(unreferenced.recent_bytes),
                    "unnamed_freed_by_ns": unreferenced.recent_freed_by_ns,
                }))?;
            }
            table.row(vec![
                volume.name.clone(),
                layout_text(volume.layout),
                files.to_string(),
                counts.directories.to_string(),
                human::size(counts.file_bytes, self.human),
                human::size(counts.stored_bytes, self.human),
            ]);
        }
        for volume in in_trash {
            row_of_trashed(context, &mut table, volume, &status.partitions, map, self.human)?;
            report.done(crate::report::Done::Directory);
        }
        if !context.out.is_json() {
            table.print(&context.out)?;
            context.out.line(disks_line(map, self.human))?;
            lines.iter().try_for_each(|line| context.out.line(line))?;
        }
        report.finish()
    }
}

/// A volume in the trash serves nobody: this is what its partition said last.
fn row_of_trashed(
    context: &Context,
    table: &mut Table,
    volume: &VolumeEntry,
    partitions: &[PartitionReport],
    map: &ClusterMap,
    human: bool,
) -> Result<()> {
    let of_it =
        |report: &&PartitionReport| map.partitions.iter().any(|p| p.id == report.partition && p.volume == volume.id);
    let (inodes, bytes) =
        partitions.iter().filter(of_it).fold((0, 0), |(i, b), report| (i + report.inodes, b + report.file_bytes));
    if context.out.is_json() {
        let (total, free) = disk_sums(map);
        context.out.json(&json!({
            "volume": volume.name, "layout": layout_text(volume.layout), "inodes": inodes, "bytes": bytes,
            "trashed_ns": volume.trashed_ns, "cluster_total_bytes": total, "cluster_free_bytes": free,
        }))?;
    }
    let name = format!("{} (in the trash)", volume.name);
    let (layout, size) = (layout_text(volume.layout), human::size(bytes, human));
    table.row(vec![name, layout, inodes.to_string(), "-".into(), size, "-".into()]);
    Ok(())
}
