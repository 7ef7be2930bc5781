//! `cairn fs quota set|get|ls|rm`: limits on what directories, and whole volumes, may hold.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::human::{parse_size, size};
use crate::output::put_name;
use crate::remote::{Found, NamedFor, find};
use crate::table::{Align, Table};
use cairn_client::volume_counts::{Quota, QuotaParts};
use cairn_client::{RemotePath, Volume};
use cairn_types::{ErrorCode, InodeId};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

#[derive(Args, Debug)]
pub struct QuotaArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Set the limits of a directory with all below it; a limit that is not given is none
    Set {
        /// Remote directory
        path: OsString,
        /// Most bytes, such as 500G: what files have stored, holes and copies not counted
        #[arg(long)]
        bytes: Option<String>,
        /// Most files, directories and links
        #[arg(long)]
        inodes: Option<u64>,
        /// Of the whole volume instead of the directory
        #[arg(long)]
        volume: bool,
    },
    /// Show limits and use of a directory
    Get {
        /// Remote directory
        path: OsString,
        /// Of the whole volume instead of the directory
        #[arg(long)]
        volume: bool,
    },
    /// Show all quotas of a volume
    Ls {
        /// A remote path of the volume
        #[arg(default_value = "/")]
        path: OsString,
        /// Sizes such as 1.5M
        #[arg(long)]
        human: bool,
    },
    /// Take the limits of a directory away
    Rm {
        /// Remote directory
        path: OsString,
        /// Of the whole volume instead of the directory
        #[arg(long)]
        volume: bool,
    },
}

impl QuotaArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.action {
            Action::Set { path, bytes, inodes, volume } => {
                let bytes = bytes.as_deref().map(parse_size).transpose().map_err(CliError::usage)?;
                if bytes.unwrap_or(0) == 0 && inodes.unwrap_or(0) == 0 {
                    let text =
                        "a quota has a limit: --bytes SIZE, --inodes NUMBER, or both; cairn fs quota rm removes one";
                    return Err(CliError::usage(text));
                }
                let found = find(context, context.remote(&path)?, true).await?;
                let inode = target(&found, volume);
                set(&found, inode, bytes.unwrap_or(0), inodes.unwrap_or(0)).await?;
                // Only a hint: that it was set is what was asked for.
                if let Ok(Some(quota)) = found.volume.quota(inode, &found.at.path).await {
                    let notes = [used_up(&quota), not_counted(&quota).map(str::to_owned)];
                    notes.into_iter().flatten().for_each(|text| eprintln!("cairn: note: {text}"));
                }
                Ok(())
            }
            Action::Get { path, volume } => {
                let found = find(context, context.remote(&path)?, true).await?;
                get(context, &found, target(&found, volume)).await
            }
            Action::Ls { path, human } => list(context, context.remote(&path)?, human).await,
            Action::Rm { path, volume } => {
                let found = find(context, context.remote(&path)?, true).await?;
                set(&found, target(&found, volume), 0, 0).await
            }
        }
    }
}

/// The inode of the wire's quotas; 0 is the volume.
fn target(found: &Found, volume: bool) -> u64 {
    if volume { 0 } else { found.attributes.inode }
}

async fn set(found: &Found, inode: u64, bytes: u64, inodes: u64) -> Result<()> {
    let set = found.volume.set_quota(inode, &found.at.path, bytes, inodes).await;
    set.map_err(|error| error.named_for(&found.at))?;
    Ok(())
}

/// A limit below what is there already stops every writer at once.
fn used_up(quota: &Quota) -> Option<String> {
    let over = |what: &str, used: u64, max: u64| {
        (max != 0 && used >= max).then(|| format!("{used} {what} are there already, and the limit is {max}"))
    };
    let all = [over("bytes", quota.bytes_used, quota.bytes_max), over("inodes", quota.inodes_used, quota.inodes_max)];
    let all: Vec<String> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| {
        format!(
            "{}: every write that needs more fails from now on; cairn fs quota set raises the limit",
            all.join(", and ")
        )
    })
}

/// What a quota of a directory lacks.
fn not_counted(quota: &Quota) -> Option<&'static str> {
    match quota.elsewhere {
        QuotaParts::None => None,
        QuotaParts::Some => Some(
            "other meta partitions have directories below it: these, and what is made in them, are not counted (copy them with cairn fs cp \
             -r and remove the old ones, or limit the volume with --volume)",
        ),
        QuotaParts::Unknown => Some(
            "there is too much below it to tell whether other meta partitions have directories there, which would not be counted",
        ),
    }
}

async fn get(context: &Context, found: &Found, inode: u64) -> Result<()> {
    let quota = found.volume.quota(inode, &found.at.path).await.map_err(|error| error.named_for(&found.at))?;
    let Some(quota) = quota else {
        let text = format!("{}: has no quota of its own; cairn fs quota ls shows those of the volume", found.at);
        return Err(CliError::refused(crate::exit::Exit::NotFound, text));
    };
    if context.out.is_json() {
        return context.out.json(&object(&found.at, &found.at.path, &quota));
    }
    let of = if inode == 0 { format!("volume {}", found.at.volume) } else { found.at.to_string() };
    let limit = |used: u64, max: u64| if max == 0 { format!("{used}, no limit") } else { format!("{used} of {max}") };
    context.out.line(format!("{of}: bytes {}", limit(quota.bytes_used, quota.bytes_max)))?;
    context.out.line(format!("{of}: inodes {}", limit(quota.inodes_used, quota.inodes_max)))?;
    if quota.counting {
        context.out.line("what was there before is still being counted")?;
    }
    if let Some(text) = not_counted(&quota) {
        context.out.line(text)?;
    }
    if quota.being_set {
        context
            .out
            .line("the limit is being set: not all partitions of the volume know it yet (cairn admin partition ls)")?;
    }
    Ok(())
}

async fn list(context: &Context, at: RemotePath, human: bool) -> Result<()> {
    let volume = context.volume(&at).await?;
    let quotas = volume.quotas().await.map_err(|error| error.named_for(&at))?;
    let paths = paths_of(&volume, quotas.iter().map(|quota| quota.inode).filter(|inode| *inode != 0)).await;
    let paths = paths.map_err(|error| error.named_for(&at))?;
    let columns = [("BYTES", Align::Right), ("LIMIT", Align::Right), ("INODES", Align::Right), ("LIMIT", Align::Right)];
    let mut table = Table::new(&[&columns[..], &[("PATH", Align::Left)]].concat());
    for quota in &quotas {
        let unknown = format!("inode {}", quota.inode).into_bytes();
        let path = paths.get(&quota.inode).unwrap_or(&unknown);
        if context.out.is_json() {
            context.out.json(&object(&at, if quota.inode == 0 { b"/" } else { path }, quota))?;
            continue;
        }
        let limit = |max: u64, text: String| if max == 0 { "-".to_owned() } else { text };
        let shown = if quota.inode == 0 { "(volume)".into() } else { String::from_utf8_lossy(path).into_owned() };
        table.row(vec![
            size(quota.bytes_used, human),
            limit(quota.bytes_max, size(quota.bytes_max, human)),
            quota.inodes_used.to_string(),
            limit(quota.inodes_max, quota.inodes_max.to_string()),
            crate::output::printable(&shown, false) + state(quota),
        ]);
    }
    if context.out.is_json() { Ok(()) } else { table.print(&context.out) }
}

/// What a limit waits for.
fn state(quota: &Quota) -> &'static str {
    match (quota.counting, quota.being_set, quota.elsewhere) {
        (true, ..) => " (still being counted)",
        (_, true, _) => " (being set)",
        (.., QuotaParts::Some) => " (not all is counted: cairn fs quota get)",
        _ => "",
    }
}

fn object(at: &RemotePath, path: &[u8], quota: &Quota) -> Value {
    let mut object = Map::new();
    put_name(&mut object, "path", path);
    object.insert("volume".into(), json!(at.volume));
    object.insert("of".into(), json!(if quota.inode == 0 { "volume" } else { "directory" }));
    for (name, value) in [
        ("bytes_used", quota.bytes_used),
        ("bytes_max", quota.bytes_max),
        ("inodes_used", quota.inodes_used),
        ("inodes_max", quota.inodes_max),
    ] {
        object.insert(name.into(), json!(value));
    }
    object.insert("counting".into(), json!(quota.counting));
    object.insert("being_set".into(), json!(quota.being_set));
    let elsewhere = match quota.elsewhere {
        QuotaParts::None => "none",
        QuotaParts::Some => "some",
        QuotaParts::Unknown => "unknown",
    };
    object.insert("not_counted".into(), json!(elsewhere));
    Value::Object(object)
}

/// Paths of directories: up to the root, with one listing of each directory on the way.
pub(super) async fn paths_of(
    volume: &Volume,
    inodes: impl Iterator<Item = u64>,
) -> std::result::Result<BTreeMap<u64, Vec<u8>>, cairn_client::ClientError> {
    let all: Vec<u64> = inodes.collect();
    let mut above: BTreeMap<u64, (u64, Vec<u8>)> = BTreeMap::new();
    let mut open: BTreeSet<u64> = all.iter().copied().filter(|inode| *inode != InodeId::ROOT.0).collect();
    while !open.is_empty() {
        let mut wanted: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for inode in std::mem::take(&mut open) {
            match volume.parent_inode(inode).await {
                Ok(parent) => wanted.entry(parent).or_default().insert(inode),
                // Removed: meanwhile, or only its snapshots are left.
                Err(error) if error.is_not_found() || error.code() == Some(ErrorCode::Stale) => continue,
                Err(error) => return Err(error),
            };
        }
        for (parent, children) in wanted {
            find_names(volume, parent, children, &mut above).await?;
            if parent != InodeId::ROOT.0 && !above.contains_key(&parent) {
                open.insert(parent);
            }
        }
    }
    let path = |inode: u64| {
        let (mut at, mut names) = (inode, Vec::new());
        while at != InodeId::ROOT.0 {
            let (parent, name) = above.get(&at)?;
            names.push(name.as_slice());
            at = *parent;
        }
        names.reverse();
        Some([b"/".as_slice(), &names.join(&b'/')].concat())
    };
    Ok(all.into_iter().filter_map(|inode| Some((inode, path(inode)?))).collect())
}

/// Looks for the entries of a directory that are these inodes.
async fn find_names(
    volume: &Volume,
    parent: u64,
    mut children: BTreeSet<u64>,
    above: &mut BTreeMap<u64, (u64, Vec<u8>)>,
) -> std::result::Result<(), cairn_client::ClientError> {
    let mut after = Vec::new();
    while !children.is_empty() {
        let page = volume.readdir(parent, &after, false).await?;
        for entry in &page.entries {
            if children.remove(&entry.inode) {
                above.insert(entry.inode, (parent, entry.name.clone()));
            }
        }
        match page.entries.last() {
            Some(last) if !page.end => after = last.cookie.clone(),
            _ => break,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit below what is there would be taken without a word, and stop every writer.
    #[test]
    fn a_limit_that_is_used_up_is_named() {
        let quota = |bytes_max, inodes_max| Quota {
            bytes_used: 480,
            inodes_used: 3,
            bytes_max,
            inodes_max,
            ..Quota::default()
        };
        assert!(used_up(&quota(0, 0)).is_none() && used_up(&quota(481, 4)).is_none());
        let said = used_up(&quota(10, 4)).expect("too low");
        assert!(said.starts_with("480 bytes are there already, and the limit is 10: every write"), "{said}");
        assert!(used_up(&quota(0, 3)).is_some_and(|said| said.contains("3 inodes")));
    }

    /// A limit that holds for a part of the directory would be taken for one of all of it.
    #[test]
    fn what_is_not_counted_is_named() {
        let of = |elsewhere: QuotaParts| Quota { elsewhere, ..Quota::default() };
        assert_eq!((not_counted(&of(QuotaParts::None)), state(&of(QuotaParts::None))), (None, ""));
        assert!(not_counted(&of(QuotaParts::Some)).is_some_and(|said| said.contains("are not counted")));
        assert!(state(&of(QuotaParts::Some)).contains("not all") && state(&of(QuotaParts::Unknown)).is_empty());
        assert!(not_counted(&of(QuotaParts::Unknown)).is_some_and(|said| said.contains("too much")));
        let at = RemotePath { cluster: None, volume: "v".into(), path: b"/a".to_vec() };
        assert_eq!(object(&at, b"/a", &of(QuotaParts::Some))["not_counted"], "some");
    }
}
