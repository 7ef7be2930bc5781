//! `cairn admin volume ls|create|set|delete|restore|purge`.
use super::{config, listing, status};
use crate::context::Context;
use crate::entry::layout_text;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::fs;
use crate::human::{size, utc_time};
use crate::table::Align;
use cairn_client::Client;
use cairn_client::admin::status::PlacementGroup;
use cairn_client::map::VolumeEntry;
use cairn_types::ErrorCode;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;

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
        /// Meta partitions that it is made of, at most 4096, spread over the meta nodes; it keeps that number
        #[arg(long, value_name = "COUNT", default_value_t = 1)]
        partitions: u32,
    },
    /// Set of a volume what differs from the cluster: private_data, rebalance_above, rebalance_below
    Set {
        name: String,
        /// KEY=VALUE; an empty value: as the cluster has it
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
    },
    /// Delete a volume: an empty one at once; one with files goes to the trash, when its name is typed or with --yes
    Delete {
        name: String,
        /// Without looking what is in it and without the question: it goes to the trash, also an empty one
        #[arg(short, long, alias = "force", short_alias = 'f')]
        yes: bool,
    },
    /// Take a volume out of the trash again, as it was
    Restore { name: String },
    /// Delete a volume that is in the trash for good, when its name is typed
    Purge {
        name: String,
        /// Without the question
        #[arg(short, long)]
        yes: bool,
    },
}

impl VolumeArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.verb {
            Verb::Ls => list(context).await,
            Verb::Create { name, layout, partitions } => create(context, &name, layout.as_deref(), partitions).await,
            Verb::Set { name, settings } => set(context, &name, &settings).await,
            Verb::Delete { name, yes } => delete(context, &name, yes).await,
            Verb::Restore { name } => restore(context, &name).await,
            Verb::Purge { name, yes } => purge(context, &name, yes).await,
        }
    }
}

fn volume_json(volume: &VolumeEntry) -> Value {
    let settings: serde_json::Map<String, Value> =
        volume.settings.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    json!({
        "id": volume.id, "name": volume.name, "layout": layout_text(volume.layout), "created_ns": volume.created_ns,
        "settings": settings, "trashed_ns": volume.trashed_ns, "trashed_until_ns": volume.trashed_until_ns,
    })
}

fn settings_text(volume: &VolumeEntry) -> String {
    let items: Vec<String> = volume.settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if items.is_empty() { "-".into() } else { items.join(" ") }
}

/// Until when it can be restored, if it is in the trash.
fn trash_text(volume: &VolumeEntry) -> String {
    match volume.trashed_ns {
        0 => "-".into(),
        _ => format!("until {}", utc_time(volume.trashed_until_ns).chars().take(19).collect::<String>()),
    }
}

async fn list(context: &Context) -> Result<()> {
    let (status, map) = status(context).await?;
    let mut of_volume: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for partition in map.partitions.iter().filter(|partition| !partition.removed) {
        of_volume.entry(partition.volume).or_default().insert(partition.id);
    }
    let rows = map.volumes.iter().filter(|volume| !volume.deleted).map(|volume| {
        let partitions = of_volume.get(&volume.id).cloned().unwrap_or_default();
        let reports = status.partitions.iter().filter(|report| partitions.contains(&report.partition));
        let (inodes, bytes) = reports.fold((0, 0), |(i, b), report| (i + report.inodes, b + report.file_bytes));
        let in_volume = |pg: &&PlacementGroup| pg.view.volume == volume.id && !pg.retired;
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
            trash_text(volume),
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
        ("TRASH", Align::Left),
    ];
    listing::print(context, &columns, rows)
}

async fn create(context: &Context, name: &str, layout: Option<&str>, partitions: u32) -> Result<()> {
    // The same rule as in remote paths, or nobody could name it.
    cairn_client::RemotePath::parse(format!("{name}:/").as_bytes())?;
    let layout = layout.map(fs::parse_layout).transpose()?;
    let client = context.client().await?;
    let what = format!("volume {name:?}");
    let (volume, made) = client.create_volume(&what, name, layout, partitions).await?;
    if partitions > 1 && made < partitions as usize {
        // Managers of before know of no number.
        let text = format!(
            "{what} was made with {made} partitions, not with {partitions}: the managers are of an earlier version. Upgrade them, cairn admin \
             volume delete {name}, and repeat"
        );
        return Err(CliError::refused(Exit::Partial, text));
    }
    if context.out.is_json() {
        let mut value = volume_json(&volume);
        value["partitions"] = json!(made);
        return context.out.json(&value);
    }
    let several = if made > 1 { format!(", {made} partitions") } else { String::new() };
    context.out.line(format!(
        "made volume {} (id {}, layout {}{several})",
        volume.name,
        volume.id,
        layout_text(volume.layout)
    ))
}

async fn set(context: &Context, name: &str, settings: &[String]) -> Result<()> {
    const NEXT: &str = "nothing was set; cairn admin volume set --help names the settings of a volume";
    let (items, wrong) = config::parse(settings);
    config::mistakes(wrong, NEXT)?;
    let client = context.client().await?;
    config::mistakes(client.set_volume(&format!("volume {name:?}"), name, &items).await?, NEXT)?;
    if context.out.is_json() {
        return config::tell(context, &items);
    }
    items.iter().try_for_each(|item| match item.value.is_empty() {
        true => context.out.line(format!("{} is as the cluster has it", item.key)),
        false => context.out.line(format!("{} = {}", item.key, item.value)),
    })
}

/// What becomes of a volume that is deleted with its contents.
async fn trash_time(client: &Client) -> Result<Option<String>> {
    let settings = client.settings("asking for trash_expiry").await?;
    let expiry = settings.into_iter().find(|item| item.key == "trash_expiry").map(|item| item.value);
    // The value in force: a number and a unit; none is written with any unit.
    Ok(expiry.filter(|value| value.trim_start_matches('0').starts_with(|c: char| c.is_ascii_digit())))
}

/// Whether the name is typed. Nobody is asked where nobody can answer.
async fn is_typed(context: &Context, question: String, name: &str) -> Option<bool> {
    if context.out.is_json() || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return None;
    }
    let ask = move || {
        eprint!("{question}\nType the name of the volume to go on: ");
        let mut typed = String::new();
        std::io::stdin().read_line(&mut typed).map(|_| typed)
    };
    let typed = tokio::task::spawn_blocking(ask).await.ok()?.ok()?;
    Some(typed.trim() == name)
}

fn not_typed(name: &str) -> CliError {
    CliError::refused(Exit::Other, format!("volume {name}: that is not its name; nothing was done"))
}

async fn delete(context: &Context, name: &str, yes: bool) -> Result<()> {
    let client = context.client().await?;
    let what = format!("volume {name:?}");
    let kept = trash_time(&client).await?;
    if !yes {
        let full = match client.delete_volume(&what, name, false).await {
            Ok(()) => return deleted(context, name),
            Err(error) if error.code() == Some(ErrorCode::VolumeNotEmpty) => error,
            Err(error) => return Err(error.into()),
        };
        let fate = match &kept {
            Some(time) => format!("It goes to the trash with all that is in it, and can be restored for {time}."),
            None => "The cluster keeps no trash (trash_expiry is 0): it is deleted for good.".into(),
        };
        match is_typed(context, format!("{full}\n{fate}"), name).await {
            Some(true) => {}
            Some(false) => return Err(not_typed(name)),
            None => return Err(full.into()),
        }
    }
    client.delete_volume(&what, name, true).await?;
    let Some(time) = kept else { return deleted(context, name) };
    if context.out.is_json() {
        return context.out.json(&json!({ "trashed": name, "restorable_for": time }));
    }
    context.out.line(format!(
        "volume {name} is in the trash and serves nobody; for {time} it can be restored: cairn admin volume restore {name}. \
         Its space comes back after that, or with cairn admin volume purge {name}"
    ))
}

fn deleted(context: &Context, name: &str) -> Result<()> {
    if context.out.is_json() {
        return context.out.json(&json!({ "deleted": name }));
    }
    context.out.line(format!("deleted volume {name}; its space comes back step by step"))
}

async fn restore(context: &Context, name: &str) -> Result<()> {
    let client = context.client().await?;
    client.restore_volume(&format!("volume {name:?}"), name).await?;
    if context.out.is_json() {
        return context.out.json(&json!({ "restored": name }));
    }
    context.out.line(format!("volume {name} is out of the trash, as it was; mounts of it have to be made anew"))
}

async fn purge(context: &Context, name: &str, yes: bool) -> Result<()> {
    if !yes {
        let question =
            format!("Volume {name} is deleted for good with all that is in it, without waiting for the trash's time.");
        match is_typed(context, question, name).await {
            Some(true) => {}
            Some(false) => return Err(not_typed(name)),
            None => {
                let text = format!(
                    "volume {name}: deleting it for good needs --yes where nobody can be asked; nothing was done"
                );
                return Err(CliError::usage(text));
            }
        }
    }
    let client = context.client().await?;
    client.purge_volume(&format!("volume {name:?}"), name).await?;
    deleted(context, name)
}
