//! `cairn fs trash ls|restore|empty|keep`: what `rm` removed, until its time is over. The rules are in
//! `cairn_client::trash`.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::human::{local_time, parse_duration, size};
use crate::mode;
use crate::remote::{NamedFor, find};
use crate::table::{Align, Table};
use cairn_client::trash::{KEEP_ATTRIBUTE, Trash, Trashed, is_in_trash};
use cairn_client::{Client, RemotePath, Volume};
use cairn_types::ErrorCode;
use clap::{Args, Subcommand};
use serde_json::json;
use std::ffi::OsString;
use std::time::Duration;

/// Where the cluster does not say it.
const KEEP_DEFAULT: Duration = Duration::from_secs(3 * 24 * 3600);

#[derive(Args, Debug)]
pub struct TrashArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List what is in your trash, oldest first
    #[command(alias = "list")]
    Ls {
        /// The volume, as `volume:/`
        #[arg(default_value = "/")]
        volume: OsString,
        /// That of all users, as far as you may read it
        #[arg(long)]
        all: bool,
    },
    /// Bring back what had this path; the newest, if there are several
    Restore {
        /// The path that it had, or where it is now in the trash
        path: OsString,
        /// Another path
        #[arg(long)]
        to: Option<OsString>,
    },
    /// Remove what is in your trash for good
    Empty {
        /// The volume, as `volume:/`, or one path that something had
        #[arg(default_value = "/")]
        path: OsString,
    },
    /// Say how long what is removed below a directory stays in the trash
    Keep {
        directory: OsString,
        /// 12h, 7d; `off`: it is removed at once; `default`: as above it. Without it, show
        time: Option<String>,
    },
}

impl TrashArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.verb {
            Verb::Ls { volume, all } => {
                let at = context.remote(&volume)?;
                list(context, &context.volume(&at).await?, &at, all).await
            }
            Verb::Restore { path, to } => restore(context, path, to).await,
            Verb::Empty { path } => empty(context, path).await,
            Verb::Keep { directory, time } => keep(context, directory, time).await,
        }
    }
}

/// The trash of a volume, with what the cluster says of it.
pub async fn trash_of(context: &Context, at: &RemotePath) -> Result<Trash> {
    let volume = context.volume(at).await?;
    let client = context.client_of(at.cluster.as_deref()).await?;
    trash_with(&client, &volume).await
}

/// The same, where client and volume are at hand.
pub async fn trash_with(client: &Client, volume: &Volume) -> Result<Trash> {
    let settings = client.settings("asking for the settings").await?;
    let said = settings.iter().find(|item| item.key == "trash_expiry");
    let keep = said.and_then(|item| parse_duration(&item.value)).unwrap_or(KEEP_DEFAULT);
    Ok(Trash::new(volume, keep))
}

async fn list(context: &Context, volume: &Volume, at: &RemotePath, all: bool) -> Result<()> {
    let found = Trash::new(volume, KEEP_DEFAULT).list(all).await.map_err(|error| error.named_for(at))?;
    let mut table = Table::new(&[
        ("REMOVED", Align::Left),
        ("GOES AT", Align::Left),
        ("USER", Align::Right),
        ("SIZE", Align::Right),
        ("PATH", Align::Left),
    ]);
    for trashed in &found {
        let is_directory = mode::is_directory(trashed.attributes.mode);
        if context.out.is_json() {
            context.out.json(&json!({
                "path": String::from_utf8_lossy(&trashed.path), "volume": at.volume,
                "now_at": String::from_utf8_lossy(&trashed.now_at), "uid": trashed.uid,
                "directory": is_directory, "size": trashed.attributes.size,
                "removed_ns": trashed.removed_ns as u64, "expires_ns": trashed.expires_ns,
            }))?;
            continue;
        }
        table.row(vec![
            local_time(trashed.removed_ns as u64),
            local_time(trashed.expires_ns),
            trashed.uid.to_string(),
            if is_directory { "-".into() } else { size(trashed.attributes.size, true) },
            String::from_utf8_lossy(&context.out.name(&trashed.path)).into_owned(),
        ]);
    }
    if context.out.is_json() { Ok(()) } else { table.print(&context.out) }
}

/// What had a path, or is at it now (then also of other users, as far as it may be moved); oldest first, never none.
async fn of_path(trash: &Trash, at: &RemotePath) -> Result<Vec<Trashed>> {
    let all = trash.list(is_in_trash(&at.path)).await.map_err(|error| error.named_for(at))?;
    let had = |trashed: &&Trashed| trashed.path == at.path || trashed.now_at == at.path;
    let found: Vec<Trashed> = all.iter().filter(had).cloned().collect();
    if found.is_empty() { Err(not_in_trash(at, &all)) } else { Ok(found) }
}

/// Where something is that went to the trash with a directory above it, the newest one.
fn within(all: &[Trashed], path: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    all.iter().rev().find_map(|trashed| {
        let rest = path.strip_prefix(trashed.path.as_slice()).filter(|rest| rest.starts_with(b"/"))?;
        Some((trashed.path.clone(), [trashed.now_at.as_slice(), rest].concat()))
    })
}

fn not_in_trash(at: &RemotePath, all: &[Trashed]) -> CliError {
    let text = match within(all, &at.path) {
        None => format!("{at}: nothing in your trash had this path; cairn fs trash ls shows what there is"),
        Some((directory, now_at)) => {
            let named = |path| RemotePath { path, ..at.clone() };
            format!(
                "{at}: {} was removed as a whole: restore that, or take this out of it with cairn fs mv {} PATH, if it was there",
                named(directory),
                named(now_at)
            )
        }
    };
    CliError::refused(Exit::NotFound, text)
}

async fn restore(context: &Context, path: OsString, to: Option<OsString>) -> Result<()> {
    let at = context.remote(&path)?;
    let trash = trash_of(context, &at).await?;
    let found = of_path(&trash, &at).await?;
    let newest = found.last().expect("there is one");
    let to = match to {
        Some(to) => context.remote(&to)?,
        None => RemotePath { path: newest.path.clone(), ..at.clone() },
    };
    if !context.same_volume(&at, &to)? {
        return Err(CliError::refused(Exit::Usage, format!("{to}: what is restored stays in its volume")));
    }
    match trash.restore(newest, Some(&to.path)).await {
        Ok(()) => {}
        Err(error) if error.code() == Some(ErrorCode::Exists) => {
            let text = format!("{to} exists; nothing was restored: move it away, or name another path with --to");
            return Err(CliError::refused(Exit::Exists, text));
        }
        Err(error) if error.is_not_found() => {
            let text = format!("{to}: its directory is not there; make it, or name another path with --to");
            return Err(CliError::refused(Exit::NotFound, text));
        }
        Err(error) => return Err(error.named_for(&to).into()),
    }
    match context.out.is_json() {
        true => context.out.json(&json!({ "path": String::from_utf8_lossy(&to.path), "volume": to.volume })),
        false => context.out.line(format!("{to} is back")),
    }
}

async fn empty(context: &Context, path: OsString) -> Result<()> {
    let at = context.remote(&path)?;
    let trash = trash_of(context, &at).await?;
    let found = match at.path.as_slice() {
        b"/" => trash.list(false).await.map_err(|error| error.named_for(&at))?,
        _ => of_path(&trash, &at).await?,
    };
    let removed = trash.remove_all(&found).await.map_err(|error| error.named_for(&at))?;
    match context.out.is_json() {
        true => context.out.json(&json!({ "removed": removed, "volume": at.volume })),
        false => context.out.line(format!("{removed} removed for good")),
    }
}

/// Whole seconds: less than one would be none, and what is removed gone at once.
fn keep_seconds(text: &str) -> Option<u64> {
    match text {
        "off" => Some(0),
        _ => parse_duration(text).filter(|keep| keep.is_zero() || keep.as_secs() > 0).map(|keep| keep.as_secs()),
    }
}

async fn keep(context: &Context, directory: OsString, time: Option<String>) -> Result<()> {
    let at = context.remote(&directory)?;
    let found = find(context, at.clone(), true).await?;
    if !found.is_directory() {
        return Err(CliError::refused(Exit::WrongKind, format!("{at} is no directory; what is in one is kept alike")));
    }
    let inode = found.attributes.inode;
    match time.as_deref() {
        None => {
            let inner = found.at.join(b"x");
            let keep =
                trash_of(context, &at).await?.keep_of(&inner.path).await.map_err(|error| error.named_for(&at))?;
            let text = if keep.is_zero() { "off".to_owned() } else { format!("{}s", keep.as_secs()) };
            return match context.out.is_json() {
                true => context.out.json(&json!({ "path": at.to_string(), "keep_seconds": keep.as_secs() })),
                false => context.out.line(text),
            };
        }
        Some("default") => match found.volume.remove_xattr(inode, KEEP_ATTRIBUTE).await {
            Err(error) if error.code() == Some(ErrorCode::NoAttribute) => {}
            other => other.map_err(|error| error.named_for(&at))?,
        },
        Some(text) => {
            let Some(seconds) = keep_seconds(text) else {
                return Err(CliError::usage(format!("{text:?} is no time: write 12h, 7d, off or default")));
            };
            let value = seconds.to_string();
            let set = found.volume.set_xattr(inode, KEEP_ATTRIBUTE, value.as_bytes(), 0).await;
            set.map_err(|error| error.named_for(&at))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files would be kept for another time than somebody wrote.
    #[test]
    fn times() {
        let seconds = |text| parse_duration(text).map(|time| time.as_secs());
        assert_eq!(seconds("90"), Some(90));
        assert_eq!(seconds("15m"), Some(900));
        assert_eq!(seconds("72h"), Some(3 * 86_400));
        assert_eq!(seconds("7d"), Some(7 * 86_400));
        assert_eq!((keep_seconds("off"), keep_seconds("0"), keep_seconds("1d")), (Some(0), Some(0), Some(86_400)));
        assert_eq!((keep_seconds("500ms"), keep_seconds("1500ms"), keep_seconds("x")), (None, Some(1), None));
        assert_eq!((seconds("soon"), seconds("5w"), seconds("")), (None, None, None));
    }
}
