//! `cairn mount` and `cairn umount`: arguments, and what people see.
mod show;

use crate::failure::{Failure, Kind, Result};
use crate::options::MountOptions;
use crate::spec::MountSpec;
use crate::supervisor::messages::{Answer, Request};
use crate::supervisor::start::{in_background, in_foreground, log_of, small_runtime};
use crate::supervisor::{control, rundir};
use clap::Args;
use serde_json::Value;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Mount a directory of a volume as a file system
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Options of -o: see docs/guides/mount.md. In /etc/fstab:\n  \
    cairn://host:7400/volume  /mnt/data  cairn  _netdev,noatime  0 0")]
pub struct MountArgs {
    /// What to mount (cairn://HOST:PORT/VOLUME[/DIR], VOLUME:/DIR or /DIR), and where; with --status or --upgrade only
    /// where
    #[arg(value_names = ["URI", "DIR"], num_args = 0..=2)]
    pub operands: Vec<OsString>,
    /// Options in the style of fstab, separated by commas
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground, log to standard error, unmount at Ctrl-C
    #[arg(short, long, conflicts_with_all = ["status", "upgrade"])]
    pub foreground: bool,
    /// Show the mounts of this machine, or one of them with its counters
    #[arg(long, conflicts_with = "upgrade")]
    pub status: bool,
    /// Replace the process of a mount by this version of the program, without unmounting
    #[arg(long)]
    pub upgrade: bool,
}

/// Unmount
#[derive(Args, Clone, Debug)]
pub struct UmountArgs {
    /// Mount point
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Detach it now, and end it when nobody uses it any more
    #[arg(short, long)]
    pub lazy: bool,
}

/// What a front says about the caller's wishes.
#[derive(Clone, Debug)]
pub struct Front {
    /// Managers for URIs without any.
    pub cluster: Vec<String>,
    pub json: bool,
    pub quiet: bool,
    /// File of the key for mounts whose options name none.
    pub key: Option<PathBuf>,
}

/// A supervisor syncs before it answers.
const PATIENCE: Duration = Duration::from_secs(300);
const STATUS_PATIENCE: Duration = Duration::from_secs(10);

pub fn mount(args: &MountArgs, front: &Front) -> Result<()> {
    if args.status {
        return status(args.operands.first().map(Path::new), front);
    }
    if args.upgrade {
        let [dir] = &args.operands[..] else {
            return Err(Failure::usage("name the mount point: cairn mount --upgrade DIR"));
        };
        return upgrade(Path::new(dir), front);
    }
    let mut options = MountOptions::parse(args.options.iter().map(String::as_str))?;
    options.set_key(front.key.as_deref())?;
    if options.remount {
        return remount(args);
    }
    let [uri, dir] = &args.operands[..] else {
        return Err(Failure::usage("name what to mount and where: cairn mount cairn://HOST:PORT/VOLUME DIR"));
    };
    let spec = MountSpec::new(uri.as_bytes(), &front.cluster, Path::new(dir), options)?;
    check_dir(&spec.dir)?;
    let shown = spec.dir.display().to_string();
    if args.foreground {
        let quiet = front.quiet;
        return in_foreground(spec, |_| {
            if !quiet {
                eprintln!("cairn mount: {shown} is mounted; Ctrl-C unmounts it");
            }
        });
    }
    let started = in_background(&spec)?;
    if front.json {
        println!("{}", serde_json::json!({ "dir": spec.dir, "supervisor": started.pid, "worker": started.worker }));
    }
    Ok(())
}

/// As mount(8) asks for it: with what was mounted, or with the directory alone.
fn remount(args: &MountArgs) -> Result<()> {
    let Some(dir) = args.operands.last().map(Path::new) else {
        return Err(Failure::usage("name the mount point: cairn mount -o remount,ro DIR"));
    };
    let dir = std::fs::canonicalize(dir).map_err(|error| Failure::io(&dir.display().to_string(), &error))?;
    let present = crate::mount::remount::present(&dir)?;
    let lists = std::iter::once(present.as_str()).chain(args.options.iter().map(String::as_str));
    let options = MountOptions::parse(lists)?;
    let known = small_runtime()?.block_on(find(&dir));
    if !options.read_only && known.is_ok_and(|(_, status)| status["options"]["read_only"] == Value::Bool(true)) {
        let dir = dir.display();
        return Err(Failure::usage(format!(
            "{dir} was mounted read-only from the start; unmount it and mount it anew"
        )));
    }
    crate::mount::remount::remount(&dir, &options)
}

fn check_dir(dir: &Path) -> Result<()> {
    match std::fs::metadata(dir) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Failure::new(Kind::WrongKind, format!("{} is no directory", dir.display()))),
        Err(error) => Err(Failure::io(&format!("mount point {}", dir.display()), &error)),
    }
}

pub fn umount(args: &UmountArgs, front: &Front) -> Result<()> {
    let answer = small_runtime()?.block_on(async {
        let (stream, status) = find(&args.dir).await?;
        let answer = control::ask(stream, &Request::Unmount { lazy: args.lazy }, PATIENCE).await?;
        if answer["detached"] != Value::Bool(true) {
            rundir::wait_for_end(status["supervisor"].as_u64().unwrap_or_default()).await;
        }
        Ok::<Value, Failure>(answer)
    })?;
    if front.json {
        println!("{answer}");
    } else if let Some(said) = answer["worker"].as_str() {
        eprintln!("cairn umount: {} is unmounted; {said}", args.dir.display());
    } else if answer["detached"] == Value::Bool(true) && !front.quiet {
        eprintln!("cairn umount: {} is detached; it ends when nobody uses it any more", args.dir.display());
    }
    Ok(())
}

fn upgrade(dir: &Path, front: &Front) -> Result<()> {
    let program = std::env::current_exe().map_err(|error| Failure::io("finding this program", &error))?;
    let answer = small_runtime()?.block_on(async {
        let (stream, _) = find(dir).await?;
        control::ask(stream, &Request::Upgrade { program }, PATIENCE).await
    })?;
    match front.json {
        true => println!("{answer}"),
        false if front.quiet => {}
        false => {
            println!("{}: worker {} serves; the pause was {} ms", dir.display(), answer["worker"], answer["pause_ms"]);
            if let Some(warning) = answer["warning"].as_str() {
                eprintln!("cairn mount: {warning}");
            }
        }
    }
    Ok(())
}

fn status(dir: Option<&Path>, front: &Front) -> Result<()> {
    let mounts = small_runtime()?.block_on(async {
        match dir {
            Some(dir) => find(dir).await.map(|(_, status)| vec![status]),
            None => all().await.map(|all| all.into_iter().map(|(_, status)| status).collect::<Vec<Value>>()),
        }
    })?;
    match (front.json, dir) {
        (true, Some(_)) => mounts.iter().for_each(|mount| println!("{mount}")),
        (true, None) => println!("{}", Value::Array(mounts)),
        (false, Some(_)) => mounts.iter().for_each(|mount| print!("{}", show::one(mount))),
        (false, None) => print!("{}", show::list(&mounts)),
    }
    Ok(())
}

/// States of all mounts of this user.
async fn all() -> Result<Vec<(u32, Value)>> {
    let mut found = Vec::new();
    for (pid, stream) in rundir::supervisors().await? {
        let answer: Answer = control::ask(stream, &Request::Status, STATUS_PATIENCE).await;
        if let Ok(mut value) = answer {
            value["log"] = value["options"]["log"].clone();
            if value["log"].is_null() {
                value["log"] = serde_json::json!(log_of(pid));
            }
            found.push((pid, value));
        }
    }
    Ok(found)
}

/// The supervisor of a mount point, connected, and its state.
async fn find(dir: &Path) -> Result<(tokio::net::UnixStream, Value)> {
    // A dead mount cannot be resolved; its name is then taken as it is.
    let wanted = std::fs::canonicalize(dir).or_else(|_| std::path::absolute(dir));
    let wanted = wanted.map_err(|error| Failure::io(&dir.display().to_string(), &error))?;
    let shown = wanted.display();
    let mut found = all().await?;
    found.retain(|(_, status)| status["dir"].as_str().is_some_and(|dir| Path::new(dir) == wanted));
    // One that was taken away may still write, or serve elsewhere, when another one is there.
    found.sort_by_key(|(_, status)| status["detached"] == Value::Bool(true));
    if let Some((pid, status)) = found.into_iter().next() {
        let streams = rundir::supervisors().await?;
        if let Some((_, stream)) = streams.into_iter().find(|(other, _)| *other == pid) {
            return Ok((stream, status));
        }
    }
    let there = crate::mount::mountinfo::find(&wanted)?;
    Err(match there {
        Some(there) if there.kind == crate::mount::TYPE => Failure::new(
            Kind::NotFound,
            format!("{shown} is a Cairn mount of another user, or its supervisor is gone; umount {shown} ends it"),
        ),
        _ => Failure::new(Kind::NotFound, format!("{shown} is no Cairn mount; cairn mount --status lists them")),
    })
}
