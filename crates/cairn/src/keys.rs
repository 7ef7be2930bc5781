//! `cairn key`: makes the authority of a cluster and the keys that it signs, on one machine and without any server; and
//! gives keys out to machines that come with a token.
//!
//! The authority's directory is needed for nothing else. Invariant: a key that was printed to a file exists only there.
mod enrol;
mod serve;
mod token;

use crate::config;
use crate::security::roles_of;
use crate::server::ServeError;
use anyhow::Context;
use cairn_cli::GlobalArgs;
use cairn_security::{Authority, CA_CERTIFICATE, DAY, KeyFile, Wanted, date, write_secret};
use cairn_types::NodeId;
use cairn_wire::audience::Caller;
use cairn_wire::holder::{Holder, MANAGER_ID_MAX};
use cairn_wire::rights::{Access, Rights, USERS_MAX, Users};
use clap::{ArgGroup, Args, Subcommand};
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
        /// Name of the server, of one configuration; without it the name of its file. Each server has its own, by which
        /// its key is revoked
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Id of the node, of one configuration, as cairn admin node ls shows it: the key then speaks for no other.
        /// Managers have theirs
        #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u32).range(i64::from(MANAGER_ID_MAX) + 1..))]
        node: Option<u32>,
        /// Replace keys that are there, of the same servers
        #[arg(long)]
        replace: bool,
    },
    /// Make a key for somebody or something that works with files
    Client(ClientArgs),
    /// Make a key for an administrator of the cluster
    Admin(PersonArgs),
    /// Make a token, with which one machine fetches its key from the authority
    Token(token::TokenArgs),
    /// Give out keys to machines with a token, and the next key to holders of the present one, until SIGTERM or SIGINT
    Serve(serve::ServeArgs),
    /// Fetch the key of this machine from the authority, for a token; the private key is made here
    Enrol(enrol::EnrolArgs),
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

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("reach").required(true).multiple(true).args(["volumes", "all_volumes"]))]
struct ClientArgs {
    #[command(flatten)]
    person: PersonArgs,
    #[command(flatten)]
    rights: RightsArgs,
}

#[derive(Args, Debug)]
struct RightsArgs {
    /// A volume that the key opens, for reading alone (:ro) or for reading and writing (:rw, also without); may be
    /// repeated
    #[arg(long = "volume", value_name = "VOLUME[:ro|:rw]", conflicts_with = "all_volumes")]
    volumes: Vec<String>,
    /// Every volume that there is or will be, for reading alone (ro) or for reading and writing (rw)
    #[arg(long, value_name = "ro|rw", num_args = 0..=1, default_missing_value = "rw", require_equals = true)]
    all_volumes: Option<String>,
    /// Whom servers make nobody (65534): root, all, or none, with which root on the holder's machine is root in the
    /// files
    #[arg(long, value_name = "root|all|none", default_value = "root", value_parser = ["root", "all", "none"], conflicts_with = "uids")]
    squash: String,
    /// Only this user may ask with the key; may be repeated
    #[arg(long = "uid", value_name = "N")]
    uids: Vec<u32>,
    /// With --uid, a group that these users may have; without it the groups with the users' numbers
    #[arg(long = "gid", value_name = "N", requires = "uids")]
    gids: Vec<u32>,
}

/// The rights that the options name.
fn rights_of(args: &RightsArgs) -> Result<Rights, ServeError> {
    let users = match (&args.uids[..], args.squash.as_str()) {
        ([], "none") => Users::Any,
        ([], "all") => Users::Nobody,
        ([], _) => Users::NoRoot,
        (uids, _) => {
            let gids = if args.gids.is_empty() { uids } else { &args.gids[..] };
            let only = Users::only(uids.to_vec(), gids.to_vec());
            only.ok_or_else(|| {
                ServeError::Usage(format!("a key names at most {USERS_MAX} users and {USERS_MAX} groups"))
            })?
        }
    };
    let access =
        |text: &str| Access::parse(text).ok_or_else(|| ServeError::Usage(format!("{text:?} is no right: ro or rw")));
    if let Some(every) = &args.all_volumes {
        return Ok(Rights::in_every_volume(access(every)?, users));
    }
    let volume = |text: &String| {
        let (name, right) = text.split_once(':').unwrap_or((text.as_str(), "rw"));
        Ok((name.to_owned(), access(right)?))
    };
    let volumes = args.volumes.iter().map(volume).collect::<Result<Vec<_>, ServeError>>()?;
    Rights::in_volumes(volumes, users).map_err(ServeError::Usage)
}

/// Does it.
pub fn run(args: KeyArgs, global: &GlobalArgs) -> Result<(), ServeError> {
    match args.command {
        KeyCommand::Init { dir } => {
            Authority::create(&dir).map_err(anyhow::Error::from)?;
            write_secret(&dir.join(serve::REVOKED), "", false).map_err(anyhow::Error::from)?;
            let text =
                "keep it where no server is, and a copy of it: whoever has it makes keys, and nobody can without it";
            println!("{}: the authority of a cluster; {text}", dir.display());
        }
        KeyCommand::Node { from, configs, out, name, node: id, replace } => {
            let authority = Authority::open(&from.ca).map_err(anyhow::Error::from)?;
            if id.is_some() && configs.len() > 1 {
                let why = "--node is of one server: make the keys of the others by themselves";
                return Err(ServeError::Usage(why.to_owned()));
            }
            let servers = named(configs, name)?;
            if let Some(dir) = &out {
                make_directory(dir)?;
            }
            for server in &servers {
                node(&authority, server, (out.as_deref(), id), (from.days, replace), global)?;
            }
        }
        KeyCommand::Client(client) => {
            let rights = rights_of(&client.rights)?;
            person(client.person, Caller::Client, rights, global)?;
        }
        KeyCommand::Admin(admin) => person(admin, Caller::Admin, Rights::everything(), global)?,
        KeyCommand::Token(token) => token::run(&token, global)?,
        KeyCommand::Serve(serve) => serve::run(&serve)?,
        KeyCommand::Enrol(enrol) => enrol::run(enrol, global)?,
        KeyCommand::Ls { ca } => {
            let authority = Authority::open(&ca).map_err(anyhow::Error::from)?;
            for holder in authority.issued().map_err(anyhow::Error::from)? {
                tell(&ca.join(CA_CERTIFICATE), &holder, Target::Listed, global);
            }
        }
        KeyCommand::Show { file } => {
            let key = KeyFile::read_any(&file).map_err(anyhow::Error::from)?;
            tell(&file, key.holder(), Target::Written, global);
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
    (out, id): (Option<&Path>, Option<u32>),
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
    if let (Some(member), Some(id)) = (config.manager.member, id) {
        let why = format!("{shown} is manager {member}, and has no other id: leave --node {id} out");
        return Err(ServeError::Usage(why));
    }
    let node = NodeId(config.manager.member.or(id).unwrap_or(0));
    if !replace && file.exists() {
        let why = format!("{} is there already; say --replace for a new key in its place", file.display());
        return Err(ServeError::Usage(why));
    }
    let wanted = Wanted {
        name: name.clone(),
        caller: Caller::Node(roles),
        node,
        life: days * DAY,
        rights: Rights::everything(),
        again: replace,
    };
    write(authority, &wanted, &file, replace, global)
}

fn person(args: PersonArgs, caller: Caller, rights: Rights, global: &GlobalArgs) -> Result<(), ServeError> {
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
    let wanted = Wanted { name, caller, node: NodeId(0), life: from.days * DAY, rights, again: false };
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
    tell(file, written.holder(), Target::Written, global);
    Ok(())
}

/// Whether a key is in a file of its own, or in the list of an authority.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Written,
    Listed,
}

fn tell(file: &Path, holder: &Holder, target: Target, global: &GlobalArgs) {
    let named = target == Target::Written;
    let (name, kind, until) = (&holder.name, holder.kind(), date(holder.until));
    let roles = match holder.caller {
        Caller::Node(roles) => roles.to_string(),
        _ => String::new(),
    };
    let rights = (holder.caller == Caller::Client).then_some(&holder.rights);
    if global.json {
        let file = named.then(|| file.display().to_string());
        let node = holder.node.get();
        let (volumes, users) = rights.map(Rights::texts).unzip();
        println!(
            "{}",
            serde_json::json!({
                "name": name, "kind": kind, "roles": roles, "node": node, "until": until, "file": file, "volumes": volumes, "users": users
            })
        );
        return;
    }
    let roles = if roles.is_empty() { roles } else { format!(" ({roles})") };
    let rights = rights.map(|rights| format!("; volumes: {rights}")).unwrap_or_default();
    match named {
        true => println!("{}: key of {kind} {name}{roles}, until {until}{rights}", file.display()),
        false => println!("{kind} {name}{roles}, until {until}{rights}"),
    }
}
