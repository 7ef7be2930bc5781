//! `cairn admin volume ls|create|set|delete`.
use super::{config, listing, status};
use crate::context::Context;
use crate::entry::layout_text;
use crate::error::{CliError, Result};
use crate::fs;
use crate::human::{size, utc_time};
use crate::table::Align;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::manager::{
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, SetConfigResponse, SetVolumeRequest, Volume,
};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

#[derive(Args, Debug)]
pub struct VolumeArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List the volumes
    #[command(alias = "list")]
    Ls,
    /// Make a volume
    Create {
        /// 1 to 63 letters, digits, '.', '_' or '-'
        name: String,
        /// Layout of its root directory; without it r3, or as many copies as the cluster is set to
        #[arg(short, long)]
        layout: Option<String>,
    },
    /// Set limits of a volume in the place of the cluster's: rebalance_above, rebalance_below
    Set {
        name: String,
        /// KEY=VALUE; an empty value: as the cluster has it
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
    },
    /// Delete a volume
    Delete {
        name: String,
        /// With all the files in it
        #[arg(short, long)]
        force: bool,
    },
}

impl VolumeArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.verb {
            Verb::Ls => list(context).await,
            Verb::Create { name, layout } => create(context, &name, layout.as_deref()).await,
            Verb::Set { name, settings } => set(context, &name, &settings).await,
            Verb::Delete { name, force } => delete(context, &name, force).await,
        }
    }
}

fn volume_json(volume: &Volume) -> Value {
    let settings: serde_json::Map<String, Value> =
        volume.settings.iter().map(|item| (item.key.clone(), json!(item.value))).collect();
    json!({
        "id": volume.id, "name": volume.name, "layout": layout_text(volume.layout), "created_ns": volume.created_ns,
        "settings": settings,
    })
}

fn settings_text(volume: &Volume) -> String {
    let items: Vec<String> = volume.settings.iter().map(|item| format!("{}={}", item.key, item.value)).collect();
    if items.is_empty() { "-".into() } else { items.join(" ") }
}

async fn list(context: &Context) -> Result<()> {
    let (status, map) = status(context).await?;
    let rows = map.volumes.iter().filter(|volume| !volume.deleted).map(|volume| {
        let partitions: Vec<u32> = map.partitions.iter().filter(|p| p.volume == volume.id).map(|p| p.id).collect();
        let reports = status.partitions.iter().filter(|report| partitions.contains(&report.partition));
        let (inodes, bytes) = reports.fold((0, 0), |(i, b), report| (i + report.inodes, b + report.file_bytes));
        let in_volume =
            |pg: &&cairn_wire::manager::Pg| pg.state.as_ref().is_some_and(|s| s.volume == volume.id && !s.retired);
        let pgs = map.pgs.iter().filter(in_volume).count();
        let mut value = volume_json(volume);
        value["inodes"] = json!(inodes);
        value["file_bytes"] = json!(bytes);
        value["partitions"] = json!(partitions);
        value["pgs"] = json!(pgs);
        let cells = vec![
            volume.id.to_string(),
            volume.name.clone(),
            layout_text(volume.layout),
            inodes.to_string(),
            size(bytes, true),
            partitions.len().to_string(),
            pgs.to_string(),
            utc_time(volume.created_ns).chars().take(19).collect(),
            settings_text(volume),
        ];
        (value, cells)
    });
    let columns = [
        ("ID", Align::Right),
        ("NAME", Align::Left),
        ("LAYOUT", Align::Left),
        ("INODES", Align::Right),
        ("SIZE", Align::Right),
        ("PARTITIONS", Align::Right),
        ("GROUPS", Align::Right),
        ("MADE", Align::Left),
        ("SETTINGS", Align::Left),
    ];
    listing::print(context, &columns, rows)
}

async fn create(context: &Context, name: &str, layout: Option<&str>) -> Result<()> {
    // The same rule as in remote paths, or nobody could name it.
    cairn_client::RemotePath::parse(format!("{name}:/").as_bytes())?;
    let layout = layout.map(fs::parse_layout).transpose()?.map_or(0, |layout| layout.to_bits());
    let client = context.client().await?;
    let request = CreateVolumeRequest { name: name.to_owned(), layout };
    let what = format!("volume {name:?}");
    let answer: CreateVolumeResponse = client.manager(&what, Opcode::CreateVolume, &request).await?;
    let volume = answer.volume.ok_or_else(|| {
        CliError::usage(format!("{what}: the manager's answer names no volume; look with cairn admin volume ls"))
    })?;
    if context.out.is_json() {
        return context.out.json(&volume_json(&volume));
    }
    context.out.line(format!("made volume {} (id {}, layout {})", volume.name, volume.id, layout_text(volume.layout)))
}

async fn set(context: &Context, name: &str, settings: &[String]) -> Result<()> {
    const NEXT: &str = "nothing was set; cairn admin volume set --help names the settings of a volume";
    let (items, wrong) = config::parse(settings);
    config::mistakes(wrong, NEXT)?;
    let client = context.client().await?;
    let request = SetVolumeRequest { name: name.to_owned(), items: items.clone() };
    let what = format!("volume {name:?}");
    let answer: SetConfigResponse = client.manager(&what, Opcode::SetVolume, &request).await?;
    config::mistakes(answer.mistakes, NEXT)?;
    config::tell(context, &items)
}

async fn delete(context: &Context, name: &str, force: bool) -> Result<()> {
    let client = context.client().await?;
    let request = DeleteVolumeRequest { name: name.to_owned(), force };
    let what = format!("volume {name:?}");
    let _done: Empty = client.manager(&what, Opcode::DeleteVolume, &request).await?;
    if context.out.is_json() {
        return context.out.json(&json!({ "deleted": name }));
    }
    context.out.line(format!("deleted volume {name}; its space comes back step by step"))
}
