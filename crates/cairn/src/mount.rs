//! `cairn mount`, `cairn umount`, and the processes of a mount, with their exit codes. What they do is in `fuse`.
use cairn_cli::{CliError, Exit, GlobalArgs};
use cairn_client::uri::RemotePath;
use cairn_fuse::failure::{Failure, Kind, Result};
use cairn_fuse::{Front, MountArgs, UmountArgs};
use std::os::unix::ffi::OsStrExt;

pub fn mount(args: &MountArgs, global: &GlobalArgs) -> Exit {
    if asks_default_address(args)
        && let Err(error) = cairn_cli::check_default_address(global)
    {
        let failure = Failure { kind: Kind::Unreachable, text: error.to_string() };
        return told(global, Err(failure));
    }
    told(global, front(global).and_then(|front| cairn_fuse::run_mount(args, &front)))
}

/// Whether the managers are those that are taken when none are named: what is mounted names its own, and mounts that
/// are there know theirs.
fn asks_default_address(args: &MountArgs) -> bool {
    let [what, _] = &args.operands[..] else { return false };
    let names_none =
        |what: &std::ffi::OsStr| RemotePath::parse(what.as_bytes()).is_ok_and(|path| path.cluster.is_none());
    !args.status && !args.upgrade && names_none(what)
}

pub fn umount(args: &UmountArgs, global: &GlobalArgs) -> Exit {
    told(global, front(global).and_then(|front| cairn_fuse::run_umount(args, &front)))
}

/// A process in the background: whoever started it is told over a socket, its log has the rest.
pub fn process(name: &str, outcome: Result<()>) -> Exit {
    match outcome {
        Ok(()) => Exit::Done,
        Err(failure) => {
            eprintln!("cairn mount: {name}: {failure}");
            exit_of(&failure)
        }
    }
}

fn front(global: &GlobalArgs) -> Result<Front> {
    let text = global.cluster.as_deref().unwrap_or(cairn_client::uri::DEFAULT_CLUSTER);
    let cluster = cairn_client::uri::parse_addresses(text).map_err(|bad| {
        Failure::usage(format!("--cluster: {bad:?} is no host:port; write for example 127.0.0.1:7400"))
    })?;
    let key = global.key.clone().filter(|file| !file.as_os_str().is_empty());
    Ok(Front { cluster, json: global.json, quiet: global.quiet, key })
}

fn told(global: &GlobalArgs, outcome: Result<()>) -> Exit {
    let Err(failure) = outcome else { return Exit::Done };
    let exit = exit_of(&failure);
    match global.json {
        true => eprintln!("{}", cairn_cli::json_error(&CliError::Refused { exit, text: failure.text })),
        false => eprintln!("cairn: {failure}"),
    }
    exit
}

fn exit_of(failure: &Failure) -> Exit {
    match failure.kind {
        Kind::Other => Exit::Other,
        Kind::Usage => Exit::Usage,
        Kind::NotFound => Exit::NotFound,
        Kind::Permission => Exit::Permission,
        Kind::Unreachable => Exit::Unreachable,
        Kind::OutcomeUnknown => Exit::OutcomeUnknown,
        Kind::WrongKind => Exit::WrongKind,
        Kind::InUse => Exit::InUse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: MountArgs,
    }

    /// A mount of a cluster that its URI names would be refused, since no other cluster is at the default address.
    #[test]
    fn who_names_managers_is_not_sent_to_the_default_ones() {
        let asks = |line: &[&str]| asks_default_address(&Line::parse_from([&["mount"], line].concat()).args);
        assert!(asks(&["/", "/mnt"]) && asks(&["data:/dir", "/mnt"]));
        assert!(!asks(&["cairn://host:7400/data", "/mnt"]) && !asks(&["--status"]) && !asks(&["--upgrade", "/mnt"]));
        assert!(!asks(&["-o", "remount,ro", "/mnt"]));
    }
}
