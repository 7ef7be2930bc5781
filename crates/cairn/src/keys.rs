//! `cairn key`: makes the authority of a cluster and the keys that it signs, on one machine and without any server.
//!
//! The authority's directory is needed for nothing else. Invariant: a key that was printed to a file exists only there.
use crate::config;
use crate::security::roles_of;
use crate::server::ServeError;
use anyhow::Context;
use cairn_cli::GlobalArgs;
use cairn_security::{Authority, CA_CERTIFICATE, KeyFile, Wanted, date, write_secret};
use cairn_types::NodeId;
use cairn_wire::audience::Caller;
use cairn_wire::holder::Holder;
use clap::{Args, Subcommand};
use std::collections::BTreeSet;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Make keys: who may speak to a cluster with security
#[derive(Args, Debug)]
pub struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Subcommand, Debug)]
enum KeyCommand {
    /// Make the authority of a cluster, in a directory that only you need
    Init {
        /// Directory to be made; keep it, and a copy of it, where no server is
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Make the keys of servers from their configurations
    Node {
        #[command(flatten)]
        from: FromArgs,
        /// Configurations of the servers; each key goes to the file that security.key names
        #[arg(value_name = "CONFIG", required = true)]
        configs: Vec<PathBuf>,
        /// Put the keys into this directory instead, each named as its configuration and ending in .key
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Name of the server, of one configuration; without it the name of its file. Each server has its own, by which its key is revoked
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Replace keys that are there, of the same servers
        #[arg(long)]
        replace: bool,
    },
    /// Make a key for somebody or something that works with files
    Client(PersonArgs),
    /// Make a key for an administrator of the cluster
    Admin(PersonArgs),
    /// List the keys that an authority gave out
    Ls {
        /// Directory of the authority
        #[arg(long, value_name = "DIR")]
        ca: PathBuf,
    },
    /// Tell whose key a file has, and until when
    Show {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Of all commands that make a key.
#[derive(Args, Debug)]
struct FromArgs {
    /// Directory of the authority (cairn key init)
    #[arg(long, value_name = "DIR")]
    ca: PathBuf,
    /// For so many days
    #[arg(long, value_name = "N", default_value_t = 3650, value_parser = clap::value_parser!(u64).range(1..=36_500))]
    days: u64,
}

#[derive(Args, Debug)]
struct PersonArgs {
    #[command(flatten)]
    from: FromArgs,
    /// Name of the holder, given to nobody else: letters, digits, dots, dashes, underscores
    #[arg(value_name = "NAME")]
    name: String,
    /// File to be written instead of NAME.key
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Does it.
pub fn run(args: KeyArgs, global: &GlobalArgs) -> Result<(), ServeError> {
    match args.command {
        KeyCommand::Init { dir } => {
            Authority::create(&dir).map_err(anyhow::Error::from)?;
            let text =
                "keep it where no server is, and a copy of it: whoever has it makes keys, and nobody can without it";
            println!("{}: the authority of a cluster; {text}", dir.display());
        }
        KeyCommand::Node { from, configs, out, name, replace } => {
            let authority = Authority::open(&from.ca).map_err(anyhow::Error::from)?;
            let servers = named(configs, name)?;
            if let Some(dir) = &out {
                make_directory(dir)?;
            }
            for server in &servers {
                node(&authority, server, out.as_deref(), (from.days, replace), global)?;
            }
        }
        KeyCommand::Client(person) => self::person(person, Caller::Client, global)?,
        KeyCommand::Admin(person) => self::person(person, Caller::Admin, global)?,
        KeyCommand::Ls { ca } => {
            let authority = Authority::open(&ca).map_err(anyhow::Error::from)?;
            for holder in authority.issued().map_err(anyhow::Error::from)? {
                tell(&ca.join(CA_CERTIFICATE), &holder, false, global);
            }
        }
        KeyCommand::Show { file } => {
            let key = KeyFile::read_any(&file).map_err(anyhow::Error::from)?;
            tell(&file, key.holder(), true, global);
        }
    }
    Ok(())
}

/// Configurations with the names of their servers, each its own.
fn named(configs: Vec<PathBuf>, name: Option<String>) -> Result<Vec<(PathBuf, String)>, ServeError> {
    if name.is_some() && configs.len() > 1 {
        return Err(ServeError::Usage("--name is of one server: make the keys of the others by themselves".to_owned()));
    }
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let servers: Vec<(PathBuf, String)> = configs
        .into_iter()
        .map(|path| (name.clone().unwrap_or_else(|| stem(&path)), path))
        .map(|(n, p)| (p, n))
        .collect();
    let mut seen = BTreeSet::new();
    if let Some((path, name)) = servers.iter().find(|(_, name)| !seen.insert(name)) {
        let why = format!(
            "{} is the second configuration of the name {name}: give each server its own with --name, one after the other, so that each can be revoked by itself",
            path.display()
        );
        return Err(ServeError::Usage(why));
    }
    Ok(servers)
}

fn make_directory(dir: &Path) -> Result<(), ServeError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    Ok(made.with_context(|| format!("making the directory {} for keys", dir.display()))?)
}

/// The key of the server that a configuration describes.
fn node(
    authority: &Authority,
    (path, name): &(PathBuf, String),
    out: Option<&Path>,
    (days, replace): (u64, bool),
    global: &GlobalArgs,
) -> Result<(), ServeError> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| ServeError::NoConfig { path: shown.clone(), source })?;
    let config = config::parse(&shown, &text)?;
    let file = match (out, &config.security) {
        (Some(dir), _) => dir.join(format!("{name}.key")),
        (None, Some(security)) => security.key.clone(),
        (None, None) => {
            let why = format!(
                "{shown} has no [security] section with a key: add one, or say where the key goes with --out DIR"
            );
            return Err(ServeError::Usage(why));
        }
    };
    let roles = roles_of(config.manager.member.is_some(), config.meta, config.data.is_some());
    let node = NodeId(config.manager.member.unwrap_or(0));
    if !replace && file.exists() {
        let why = format!("{} is there already; say --replace for a new key in its place", file.display());
        return Err(ServeError::Usage(why));
    }
    let wanted = Wanted { name: name.clone(), caller: Caller::Node(roles), node, days, again: replace };
    write(authority, &wanted, &file, replace, global)
}

fn person(args: PersonArgs, caller: Caller, global: &GlobalArgs) -> Result<(), ServeError> {
    let PersonArgs { from, name, out } = args;
    let authority = Authority::open(&from.ca).map_err(anyhow::Error::from)?;
    let file = out.unwrap_or_else(|| PathBuf::from(format!("{name}.key")));
    if file.exists() {
        return Err(ServeError::Usage(format!("{} is there already; name another file with --out", file.display())));
    }
    // Before the name is given out, for good.
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    if let Some(dir) = dir.filter(|dir| !dir.is_dir()) {
        return Err(ServeError::Usage(format!(
            "{} is no directory: make it, or name another file with --out",
            dir.display()
        )));
    }
    let wanted = Wanted { name, caller, node: NodeId(0), days: from.days, again: false };
    write(&authority, &wanted, &file, false, global)
}

fn write(
    authority: &Authority,
    wanted: &Wanted,
    file: &Path,
    replace: bool,
    global: &GlobalArgs,
) -> Result<(), ServeError> {
    let text = authority.issue(wanted).map_err(anyhow::Error::from)?;
    write_secret(file, &text, replace).map_err(anyhow::Error::from)?;
    let written = KeyFile::read(file).context("the key that was just made")?;
    tell(file, written.holder(), true, global);
    Ok(())
}

fn tell(file: &Path, holder: &Holder, named: bool, global: &GlobalArgs) {
    let (name, kind, until) = (&holder.name, holder.kind(), date(holder.until));
    let roles = match holder.caller {
        Caller::Node(roles) => roles.to_string(),
        _ => String::new(),
    };
    if global.json {
        let file = named.then(|| file.display().to_string());
        let node = holder.node.get();
        println!(
            "{}",
            serde_json::json!({ "name": name, "kind": kind, "roles": roles, "node": node, "until": until, "file": file })
        );
        return;
    }
    let roles = if roles.is_empty() { roles } else { format!(" ({roles})") };
    match named {
        true => println!("{}: key of {kind} {name}{roles}, until {until}", file.display()),
        false => println!("{kind} {name}{roles}, until {until}"),
    }
}
