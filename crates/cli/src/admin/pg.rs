//! `cairn admin pg ls`, `cairn admin pg N`, `cairn admin pg force`.
use super::stripe::Standings;
use super::{listing, status};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::human::size;
use crate::redundancy::{crowds, losses_survived, losses_text};
use crate::table::{Align, Table};
use cairn_client::admin::changes::ForceCandidate;
use cairn_client::admin::status::{ClusterMap, PlacementGroup};
use cairn_client::view::{ClusterView, PgView};
use cairn_types::Scheme;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct PgArgs {
    /// Show this placement group with its members and their addresses
    pg: Option<String>,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List placement groups
    #[command(alias = "list")]
    Ls {
        /// Only those of this volume
        #[arg(long)]
        volume: Option<String>,
        /// Only those of which a member does not serve
        #[arg(long)]
        unhealthy: bool,
    },
    /// Give up destroyed disks that a group waits for, and what only they held; says first what that is
    Force {
        /// The placement group, or all: every group that waits for one of these disks and cannot be read
        pg: String,
        /// Disks that are destroyed, such as d3; never one that may come back
        #[arg(long = "lost", required_unless_present = "known_loss", value_name = "DISK")]
        lost: Vec<String>,
        /// Its disks came back as older copies of themselves: what that lost is known, the status need not name it any
        /// more
        #[arg(long, conflicts_with = "lost")]
        known_loss: bool,
        /// Do it; without this only what would be lost is told
        #[arg(long)]
        yes_lose_data: bool,
    },
}

impl PgArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match (self.verb, self.pg) {
            (Some(Verb::Ls { volume, unhealthy }), _) => list(context, volume.as_deref(), unhealthy).await,
            (Some(Verb::Force { pg, lost, known_loss, yes_lose_data }), _) => {
                force(context, &pg, &lost, yes_lose_data || known_loss).await
            }
            (None, Some(text)) => show(context, pg_number(&text)?).await,
            (None, None) => Err(CliError::usage("write ls, or the number of a placement group")),
        }
    }
}

fn pg_number(text: &str) -> Result<u32> {
    let digits = text.strip_prefix("pg").unwrap_or(text);
    digits
        .parse()
        .map_err(|_| CliError::usage(format!("{text:?} is no placement group: write its number, such as 7, or ls")))
}

/// Says what is lost; does it only when asked to in so many words.
async fn force(context: &Context, text: &str, lost: &[String], confirmed: bool) -> Result<()> {
    let number = |text: &String| {
        let digits = text.strip_prefix('d').unwrap_or(text);
        digits.parse::<u32>().map_err(|_| CliError::usage(format!("{text:?} is no disk: write its number, such as d3")))
    };
    let lost_disks = lost.iter().map(number).collect::<Result<Vec<u32>>>()?;
    let pgs = match text {
        "all" if lost.is_empty() => {
            return Err(CliError::usage("with --known-loss write the number of one placement group"));
        }
        "all" => waiting_for(&status(context).await?.1, &lost_disks),
        one => vec![pg_number(one)?],
    };
    if pgs.is_empty() {
        let text = "no placement group that cannot be read waits for these disks; cairn admin pg ls --unhealthy shows those that wait";
        return Err(CliError::refused(Exit::NotFound, text));
    }
    for pg in pgs {
        let name = if text == "all" { format!("pg{pg}: ") } else { String::new() };
        force_one(context, (pg, &name), &lost_disks, confirmed).await?;
    }
    match confirmed {
        true => Ok(()),
        false => Err(CliError::usage("nothing was done; if this is what you want, add --yes-lose-data")),
    }
}

/// Groups that cannot be read and wait for one of these disks.
fn waiting_for(map: &ClusterMap, lost: &[u32]) -> Vec<u32> {
    let waits = |view: &PgView| {
        let mut waiting = view.members.iter().filter(|(_, state)| *state == cairn_types::MemberState::Waiting);
        health(view) == "waiting" && waiting.any(|(disk, _)| lost.contains(disk))
    };
    let used = map.pgs.iter().filter(|pg| !pg.retired).map(|pg| &pg.view);
    used.filter(|view| waits(view)).map(|view| view.id.0).collect()
}

async fn force_one(context: &Context, (pg, name): (u32, &str), lost_disks: &[u32], confirmed: bool) -> Result<()> {
    let client = context.client().await?;
    let what = format!("giving up disks of placement group {pg}");
    let answer = client.force_pg(&what, pg, lost_disks, confirmed).await?;
    if context.out.is_json() {
        let candidate = |c: &ForceCandidate| json!({ "disk": c.disk, "chunks": c.chunks, "bytes": c.bytes });
        let candidates: Vec<Value> = answer.candidates.iter().map(candidate).collect();
        context.out.json(&json!({
            "pg": pg, "done": confirmed, "serving": answer.serving, "candidates": candidates, "meaning": answer.meaning,
            "epoch": answer.epoch,
        }))?;
    } else {
        context.out.line(format!("{name}{}: {}", if confirmed { "done" } else { "it would mean" }, answer.meaning))?;
    }
    Ok(())
}

/// How it is, in a word.
fn health(view: &PgView) -> &'static str {
    match (view.is_complete(), view.can_write(), losses_survived(view.scheme, view.serving().count())) {
        (true, ..) => "complete",
        (_, true, _) => "degraded",
        (_, _, Some(_)) => "read-only",
        (_, _, None) => "waiting",
    }
}

/// What that means and what to do.
fn meaning(view: &PgView) -> String {
    let (serving, all) = (view.serving().count(), view.scheme.members());
    let minimum = view.scheme.write_minimum();
    match health(view) {
        "complete" => format!("all {all} members serve"),
        "degraded" => format!(
            "{serving} of {all} members serve: reads and writes go on; members that come back catch up by themselves"
        ),
        "read-only" => format!(
            "{serving} of {all} members serve, writes need {minimum}: new data goes to other groups; bring the others back"
        ),
        _ => format!(
            "{serving} of {all} members serve, reads need {}: its data cannot be read until waiting members are back; \
             start their nodes",
            view.scheme.read_minimum()
        ),
    }
}

/// What a member keeps.
fn part(scheme: Scheme, position: usize) -> String {
    match scheme {
        Scheme::Replicated(_) => "copy".into(),
        Scheme::Erasure { k, .. } if position < usize::from(k) => format!("data {position}"),
        Scheme::Erasure { k, .. } => format!("parity {}", position - usize::from(k)),
    }
}

fn volume_name(map: &ClusterMap, id: u32) -> String {
    map.volumes.iter().find(|v| v.id == id).map_or_else(|| format!("v{id}"), |v| v.name.clone())
}

fn pg_json(map: &ClusterMap, (whole, stripes): (&ClusterView, &Standings<'_>), pg: &PlacementGroup) -> Value {
    let view = &pg.view;
    let members: Vec<Value> = view
        .members
        .iter()
        .enumerate()
        .map(|(position, (disk, state))| {
            let node = map.disks.iter().find(|d| d.id == *disk).map(|d| d.node);
            let address = map.nodes.iter().find(|n| Some(n.id) == node).map(|n| n.address.clone());
            let shard = (!view.scheme.is_replicated()).then_some(position);
            json!({ "disk": disk, "state": state.name(), "node": node, "address": address, "shard": shard,
                    "keeps": part(view.scheme, position) })
        })
        .collect();
    let domains: Vec<Value> = crowds(whole, view)
        .iter()
        .map(|crowd| json!({ "kind": crowd.kind, "name": crowd.name, "members": crowd.members, "leaves": crowd.left }))
        .collect();
    json!({
        "pg": view.id.0, "volume": volume_name(map, view.volume), "scheme": view.scheme.to_string(), "epoch": view.epoch.0,
        "creation_epoch": pg.creation_epoch, "health": health(view),
        "writable": view.writable,
        "retired": pg.retired, "used_bytes": pg.used_bytes, "free_bytes": view.free_bytes,
        "primary": view.primary(), "members": members,
        "losses_survived": losses_survived(view.scheme, view.serving().count()), "domains": domains,
        "stripe": stripes.of(view).map(|standing| standing.json()),
    })
}

async fn list(context: &Context, volume: Option<&str>, unhealthy: bool) -> Result<()> {
    let (_, map) = status(context).await?;
    let volume = match volume {
        None => None,
        Some(name) => {
            Some(map.volumes.iter().find(|v| v.name == name && !v.deleted).map(|v| v.id).ok_or_else(|| {
                CliError::refused(
                    Exit::NotFound,
                    format!("there is no volume {name:?}; cairn admin volume ls shows them"),
                )
            })?)
        }
    };
    let whole = map.view();
    let stripes = Standings::new(&whole);
    let rows = map.pgs.iter().filter_map(|pg| {
        let view = &pg.view;
        let hidden =
            pg.retired || volume.is_some_and(|volume| volume != view.volume) || unhealthy && view.is_complete();
        if hidden {
            return None;
        }
        let member = |(disk, state): &(u32, cairn_types::MemberState)| match state {
            cairn_types::MemberState::Serving => format!("d{disk}"),
            other => format!("d{disk}:{other}"),
        };
        let cells = vec![
            format!("pg{}", view.id.0),
            volume_name(&map, view.volume),
            view.class().to_string(),
            view.epoch.0.to_string(),
            health(view).into(),
            if view.writable { "yes" } else { "no" }.into(),
            size(pg.used_bytes, true),
            size(view.free_bytes, true),
            view.members.iter().map(member).collect::<Vec<_>>().join(" "),
        ];
        Some((pg_json(&map, (&whole, &stripes), pg), cells))
    });
    let columns = [
        ("GROUP", Align::Right),
        ("VOLUME", Align::Left),
        ("SCHEME", Align::Left),
        ("EPOCH", Align::Right),
        ("HEALTH", Align::Left),
        ("NEW CHUNKS", Align::Left),
        ("USED", Align::Right),
        ("FREE", Align::Right),
        ("MEMBERS (first serving one is the primary)", Align::Left),
    ];
    listing::print(context, &columns, rows)
}

/// Sealed chunks that each serving member lists; who does not answer is left out.
async fn listed(context: &Context, map: &ClusterMap, view: &PgView) -> Result<BTreeMap<u32, u64>> {
    let client = context.client().await?;
    let mut counts = BTreeMap::new();
    for disk in view.serving() {
        let node = map.disks.iter().find(|d| d.id == disk).map(|d| d.node);
        let Some(node) = map.nodes.iter().find(|n| Some(n.id) == node && n.up) else { continue };
        let what = format!("chunks of pg{} on d{disk}", view.id.0);
        match client.sealed_chunks(&what, &node.address, (view.id.0, disk)).await {
            Ok(chunks) => drop(counts.insert(disk, chunks)),
            Err(error) => tracing::debug!(disk, %error, "a member does not list its chunks"),
        }
    }
    Ok(counts)
}

/// Members that serve and list fewer chunks than another one.
fn lacking(listed: &BTreeMap<u32, u64>) -> Vec<String> {
    let most = listed.values().copied().max().unwrap_or(0);
    let fewer = listed.iter().filter(|(_, chunks)| **chunks < most);
    fewer.map(|(disk, chunks)| format!("d{disk} lists {chunks} of {most} chunks")).collect()
}

fn health_line(view: &PgView, lacking: &[String]) -> String {
    let known = format!("health      {}: {}", health(view), meaning(view));
    match lacking.is_empty() {
        true => known,
        false => format!(
            "{known}; but {}: what is missing is brought back from the others, see cairn admin status",
            lacking.join(", ")
        ),
    }
}

async fn show(context: &Context, id: u32) -> Result<()> {
    let (_, map) = status(context).await?;
    let Some(pg) = map.pgs.iter().find(|pg| pg.view.id.0 == id) else {
        let text = format!("there is no placement group {id}; cairn admin pg ls shows them");
        return Err(CliError::refused(Exit::NotFound, text));
    };
    let view = &pg.view;
    let whole = map.view();
    let stripes = Standings::new(&whole);
    let listed = listed(context, &map, view).await?;
    if context.out.is_json() {
        let mut value = pg_json(&map, (&whole, &stripes), pg);
        for member in value["members"].as_array_mut().into_iter().flatten() {
            let disk = member["disk"].as_u64().and_then(|disk| u32::try_from(disk).ok());
            member["chunks"] = json!(disk.and_then(|disk| listed.get(&disk)));
        }
        return context.out.json(&value);
    }
    let scheme: Scheme = view.scheme;
    let survives = match losses_survived(scheme, view.serving().count()) {
        Some(losses) => losses_text(losses),
        None => "nothing: it cannot be read as it is".into(),
    };
    let domains = crowds(&whole, view);
    let mut lines = vec![
        format!("group       pg{} of volume {}", view.id.0, volume_name(&map, view.volume)),
        format!(
            "scheme      {scheme} (writes need {} serving members, reads {})",
            scheme.write_minimum(),
            scheme.read_minimum()
        ),
        format!("epoch       {} (made in {})", view.epoch.0, pg.creation_epoch),
        health_line(view, &lacking(&listed)),
        format!("survives    {survives}"),
        format!("new chunks  {}", if view.writable { "yes" } else { "no" }),
        format!("space       {} used, {} free", size(pg.used_bytes, true), size(view.free_bytes, true)),
    ];
    lines.extend(stripes.of(view).into_iter().flat_map(|standing| standing.lines()));
    lines.extend(domains.iter().map(|crowd| format!("domains     {}", crowd.text(scheme))));
    lines.push(String::new());
    lines.into_iter().try_for_each(|line| context.out.line(line))?;
    let mut table = Table::new(&[
        ("DISK", Align::Right),
        ("KEEPS", Align::Left),
        ("STATE", Align::Left),
        ("CHUNKS", Align::Right),
        ("NODE", Align::Right),
        ("UP", Align::Left),
        ("ADDRESS", Align::Left),
        ("RACK", Align::Left),
        ("PATH", Align::Left),
    ]);
    for (position, (disk_id, state)) in view.members.iter().enumerate() {
        let disk = map.disks.iter().find(|d| d.id == *disk_id);
        let node = disk.and_then(|d| map.nodes.iter().find(|n| n.id == d.node));
        let primary = if view.primary() == Some(*disk_id) { ", primary" } else { "" };
        table.row(vec![
            format!("d{disk_id}"),
            if position < scheme.members() { part(scheme, position) } else { "copy, joins".into() },
            format!("{state}{primary}"),
            listed.get(disk_id).map_or_else(|| "-".into(), u64::to_string),
            node.map_or_else(|| "-".into(), |n| format!("n{}", n.id)),
            node.map_or("-", |n| if n.up { "yes" } else { "no" }).into(),
            node.map_or_else(|| "-".into(), |n| n.address.clone()),
            node.map_or_else(|| "-".into(), |n| n.rack.clone()),
            disk.map_or_else(|| "-".into(), |d| d.path.clone()),
        ]);
    }
    table.print(&context.out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::{Epoch, MemberState, PgId};

    /// A member that lost chunks would look like one that has them all.
    #[test]
    fn members_that_list_fewer_chunks_are_named() {
        assert!(lacking(&[(1, 3), (2, 3)].into()).is_empty() && lacking(&BTreeMap::new()).is_empty());
        assert_eq!(lacking(&[(1, 3), (2, 1), (3, 0)].into()), ["d2 lists 1 of 3 chunks", "d3 lists 0 of 3 chunks"]);
    }

    /// Groups of a lost disk would be left out, or ones that do not wait for it be given up.
    #[test]
    fn all_are_those_that_wait_for_a_lost_disk() {
        let group = |pg, states: &[MemberState]| {
            let view = PgView {
                id: PgId(pg),
                volume: 1,
                scheme: Scheme::Replicated(states.len() as u8),
                epoch: Epoch(1),
                members: (1..).zip(states.iter().copied()).collect(),
                writable: false,
                free_bytes: 0,
                column: None,
            };
            PlacementGroup { view, creation_epoch: 1, retired: false, used_bytes: 0 }
        };
        use MemberState::{Offline, Serving, Waiting};
        let mut map = ClusterMap {
            pgs: vec![
                group(1, &[Waiting]),
                group(2, &[Serving]),
                group(3, &[Serving, Offline]),
                group(4, &[Offline, Waiting]),
            ],
            ..ClusterMap::default()
        };
        assert_eq!(waiting_for(&map, &[1]), [1]);
        assert_eq!(waiting_for(&map, &[1, 2]), [1, 4]);
        map.pgs[0].retired = true;
        assert!(waiting_for(&map, &[1]).is_empty());
    }

    /// A group that has lost its last copy would look as if only one copy were missing.
    #[test]
    fn health_follows_the_serving_members() {
        use MemberState::*;
        let view = |states: [MemberState; 3]| PgView {
            id: PgId(1),
            volume: 1,
            scheme: Scheme::Replicated(3),
            epoch: Epoch(1),
            members: states.iter().zip(1..).map(|(state, disk)| (disk, *state)).collect(),
            writable: true,
            free_bytes: 0,
            column: None,
        };
        for (states, wanted) in [
            ([Serving, Serving, Serving], "complete"),
            ([Serving, Offline, Serving], "degraded"),
            ([Offline, Syncing, Serving], "read-only"),
            ([Offline, Offline, Waiting], "waiting"),
        ] {
            assert_eq!(health(&view(states)), wanted);
            assert!(!meaning(&view(states)).is_empty());
        }
        let mut shards = view([Serving; 3]);
        shards.scheme = Scheme::Erasure { k: 3, m: 2 };
        shards.members.extend([(4, Waiting), (5, Offline)]);
        assert_eq!(health(&shards), "read-only");
        shards.members[0].1 = Waiting;
        assert_eq!(health(&shards), "waiting", "two shards of three are not enough");
        assert!(meaning(&shards).starts_with("2 of 5 members serve, reads need 3"));
        assert_eq!((part(shards.scheme, 2), part(shards.scheme, 3)), ("data 2".into(), "parity 0".into()));
    }
}
