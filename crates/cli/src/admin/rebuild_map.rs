//! `cairn admin rebuild-map`: a new state of the manager from what disks and meta nodes keep, when all managers are
//! lost.
//!
//! Without `--write` it only tells what it found and what it would make.
use super::backup::{failed, wall};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use cairn_format::map_scan::MapScan;
use cairn_manager_core::State;
use cairn_manager_core::rebuild::{Found, Remark, Wanted, Weight, rebuild};
use cairn_rescue::map::{MapOrder, base, write};
use cairn_rescue::scan::{scan, understand};
use cairn_rescue::{BackupSet, RescueError};
use cairn_types::{NodeId, VolumeId};
use clap::Args;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(
    after_help = "Name the directories of all nodes and disks of a machine, or scans that --save-scan made on other \
    machines. A node's directory brings its disks along. Nothing is changed without --write."
)]
pub struct RebuildMapArgs {
    /// Directories of nodes and disks (or ones above them), and saved scans
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Only look, and keep what was found in this file for another machine
    #[arg(long, value_name = "FILE", conflicts_with_all = ["manager", "dir", "backups", "names", "write", "accept_missing", "over_newer_state"])]
    save_scan: Option<PathBuf>,
    /// The manager that begins with the new state, as in manager.members
    #[arg(long, value_name = "NUMBER@HOST:PORT", required_unless_present = "save_scan")]
    manager: Option<String>,
    /// Its directory (node.dir), made if it is not there
    #[arg(long, required_unless_present = "save_scan")]
    dir: Option<PathBuf>,
    /// Directory of backups: names, settings, and nodes that were not found come from the newest one
    #[arg(long, value_name = "DIR")]
    backups: Option<PathBuf>,
    /// Another backup than the newest
    #[arg(long, value_name = "NUMBER", requires = "backups")]
    backup: Option<u64>,
    /// The name of a volume that no backup has
    #[arg(long = "name", value_name = "VOLUME=NAME")]
    names: Vec<String>,
    /// Write the new state
    #[arg(long)]
    write: bool,
    /// Also if disks that groups name were not found: what they know is not taken into account
    #[arg(long)]
    accept_missing: bool,
    /// Also over a state of the manager that is in the directory, which is lost then
    #[arg(long)]
    over_newer_state: bool,
}

fn parse_manager(text: &str) -> Result<(NodeId, String)> {
    let parsed = text.split_once('@').and_then(|(number, address)| Some((number.parse().ok()?, address.to_owned())));
    match parsed {
        Some((number @ 1..=15, address)) if address.contains(':') => Ok((NodeId(number), address)),
        _ => Err(CliError::usage(format!("--manager {text:?}: write number@host:port as in manager.members"))),
    }
}

fn parse_name(text: &str) -> Result<(VolumeId, String)> {
    let parsed = text.split_once('=').and_then(|(id, name)| Some((id.trim_start_matches('v').parse().ok()?, name)));
    let (id, name): (u32, &str) =
        parsed.ok_or_else(|| CliError::usage(format!("--name {text:?}: write VOLUME=NAME, such as 2=home")))?;
    Ok((VolumeId(id), name.to_owned()))
}

impl RebuildMapArgs {
    pub fn run(self, context: &Context) -> Result<()> {
        let mut problems = Vec::new();
        let scans = self.scans(&mut problems)?;
        if let Some(file) = &self.save_scan {
            let items: Vec<_> = scans.into_iter().flat_map(|scan| scan.items).collect();
            let count = items.len();
            problems.iter().try_for_each(|problem| context.out.line(format!("problem: {problem}")))?;
            std::fs::write(file, MapScan { items }.encode())
                .map_err(|error| CliError::local(file, "writing the scan", error))?;
            return context.out.line(format!("{count} items are in {}", file.display()));
        }
        let (Some(manager), Some(dir)) = (&self.manager, &self.dir) else {
            return Err(CliError::usage("--manager and --dir are needed"));
        };
        let (manager, address) = parse_manager(manager)?;
        let names = self.names.iter().map(|text| parse_name(text)).collect::<Result<BTreeMap<_, _>>>()?;
        let based = match &self.backups {
            Some(backups) => Some(BackupSet::open(backups).and_then(|set| base(&set, self.backup)).map_err(failed)?),
            None => None,
        };
        let found = understand(&scans, &mut problems);
        let now = wall();
        let wanted = Wanted { manager, address, names, now };
        let (manifest, state) = based.map_or((None, None), |(manifest, state)| (Some(manifest), Some(state)));
        let (made, mut remarks) = rebuild(state, &found, &wanted);
        // What cannot be read may be what matters.
        remarks.extend(problems.into_iter().map(|text| Remark { weight: Weight::Missing, text }));
        remarks.sort();
        show(context, &found, made.as_ref(), &remarks)?;
        let state = self.decide(made, &remarks)?;
        if !self.write {
            return match context.out.is_json() {
                true => Ok(()),
                false => context.out.line("nothing was written; --write makes it so"),
            };
        }
        let order = MapOrder { manager, dir, base: manifest.as_ref(), over_newer: self.over_newer_state, now };
        let place = write(&state, &order).map_err(failed)?;
        if context.out.is_json() {
            return context.out.json(&json!({ "written": true, "entry": place.index }));
        }
        context.out.line(format!(
            "written into {}: start manager {manager} with it, and look at cairn admin status. Directories of other managers \
             of before have to be emptied; then add them (cairn admin manager add)",
            dir.display()
        ))
    }

    fn scans(&self, problems: &mut Vec<String>) -> Result<Vec<MapScan>> {
        let (files, dirs): (Vec<&PathBuf>, Vec<&PathBuf>) = self.paths.iter().partition(|path| path.is_file());
        let mut scans = Vec::new();
        for file in files {
            let bytes = std::fs::read(file).map_err(|error| CliError::local(file, "reading the scan", error))?;
            let damaged = |what: String| failed(RescueError::Damaged { file: file.display().to_string(), what });
            scans.push(MapScan::decode(&bytes).map_err(|error| damaged(error.to_string()))?);
        }
        let dirs: Vec<PathBuf> = dirs.into_iter().cloned().collect();
        let scanned = scan(&dirs).map_err(failed)?;
        problems.extend(scanned.problems);
        scans.push(scanned.scan);
        Ok(scans)
    }

    /// The state, unless something speaks against it.
    fn decide(&self, made: Option<State>, remarks: &[Remark]) -> Result<State> {
        let count = |weight: Weight| remarks.iter().filter(|remark| remark.weight == weight).count();
        let Some(state) = made else {
            let text = format!("nothing can be made: {} conflicts; see above", count(Weight::Conflict));
            return Err(CliError::refused(Exit::Damaged, text));
        };
        match count(Weight::Missing) {
            missing @ 1.. if self.write && !self.accept_missing => {
                let text = format!(
                    "{missing} things are missing, see above: name their directories, or say --accept-missing if they cannot \
                     be had; nothing was written"
                );
                Err(CliError::refused(Exit::Partial, text))
            }
            _ => Ok(state),
        }
    }
}

fn show(context: &Context, found: &Found, made: Option<&State>, remarks: &[Remark]) -> Result<()> {
    let out = &context.out;
    let word = |weight: Weight| match weight {
        Weight::Conflict => "conflict",
        Weight::Missing => "missing",
        Weight::Note => "note",
    };
    let groups = made.map_or(0, |state| state.pgs().count());
    let volumes: Vec<String> =
        made.iter().flat_map(|state| state.volumes()).map(|volume| volume.name.clone()).collect();
    let partitions = made.map_or(0, |state| state.partitions().count());
    let cluster = made.and_then(State::cluster).map_or_else(|| "-".to_owned(), |cluster| cluster.id.to_string());
    if out.is_json() {
        let told: Vec<_> = remarks.iter().map(|r| json!({ "kind": word(r.weight), "text": r.text })).collect();
        return out.json(&json!({
            "cluster": cluster, "node_directories": found.nodes.len(), "disk_directories": found.disks.len(),
            "volumes": volumes, "partitions": partitions, "pgs": groups, "remarks": told,
        }));
    }
    out.line(format!(
        "found {} directories of nodes and {} disks of cluster {cluster}",
        found.nodes.len(),
        found.disks.len()
    ))?;
    out.line(format!(
        "makes placement groups: {groups}, meta partitions: {partitions}, volumes: {}",
        volumes.join(", ")
    ))?;
    remarks.iter().try_for_each(|remark| out.line(format!("{}: {}", word(remark.weight), remark.text)))
}
