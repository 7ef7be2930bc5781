//! The `cairn` binary: a cluster in one process, a server process, and every front in one command.
//!
//! Not here: what the commands do (`cli`, `bench`), what the roles do (`manager`, `meta`, `data`).
mod audit;
mod config;
mod descriptors;
mod dev;
mod doctor;
mod examples;
mod hints;
mod joining;
mod keys;
mod memory;
mod mount;
mod node;
mod notify;
mod private;
#[cfg(test)]
mod reference;
mod router;
mod rpc_metrics;
mod security;
mod server;
mod version;

use cairn_bench::{BenchCommand, BenchContext};
use cairn_cli::{Exit, GlobalArgs, expand_args};
use cairn_telemetry::{LogConfig, init_logging};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// A distributed file system: many ordinary machines, one tree of files, cheap redundancy.
#[derive(Parser, Debug)]
#[command(name = "cairn", version, long_version = version::long(), propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: TopCommand,
}

#[derive(Subcommand, Debug)]
enum TopCommand {
    #[command(flatten)]
    Front(cairn_cli::Command),
    /// Run a whole cluster in this process, kept in one directory
    Dev(dev::DevArgs),
    /// Run one server process with the roles of a configuration file
    Server(server::ServerArgs),
    Doctor(doctor::DoctorArgs),
    Key(keys::KeyArgs),
    /// Measure a cluster
    Bench {
        #[command(subcommand)]
        command: BenchCommand,
    },
    Mount(cairn_fuse::MountArgs),
    Umount(cairn_fuse::UmountArgs),
    /// Started by `cairn mount`: holds the connection to the kernel
    #[command(hide = true)]
    MountSupervisor,
    /// Started by the supervisor of a mount: serves it
    #[command(hide = true)]
    MountWorker,
}

/// All commands with their help.
fn command_line() -> clap::Command {
    examples::add(Cli::command())
}

fn main() -> std::process::ExitCode {
    if cairn_cli::complete_if_asked(command_line) {
        return std::process::ExitCode::SUCCESS;
    }
    let args = expand_args(std::env::args_os());
    let parsed = command_line().try_get_matches_from(&args).and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => refuse(&error, &args),
    };
    if let (TopCommand::Front(_) | TopCommand::Bench { .. }, Ok(filter)) = (&cli.command, std::env::var("CAIRN_LOG")) {
        let config = LogConfig { filter, ..LogConfig::default() };
        if let Err(why) = init_logging(&config) {
            eprintln!("cairn: CAIRN_LOG: {why}");
            return std::process::ExitCode::from(Exit::Usage as u8);
        }
    }
    let exit = match cli.command {
        TopCommand::Front(command) => cairn_cli::run(command, cli.global, command_line),
        TopCommand::Dev(args) => server::report(dev::run(args)),
        TopCommand::Server(args) => server::report(server::run(&args)),
        TopCommand::Doctor(args) => doctor::run(&args, &cli.global).unwrap_or_else(|error| server::report(Err(error))),
        TopCommand::Key(args) => server::report(keys::run(args, &cli.global)),
        TopCommand::Bench { command } => bench(command, &cli.global),
        TopCommand::Mount(args) => mount::mount(&args, &cli.global),
        TopCommand::Umount(args) => mount::umount(&args, &cli.global),
        TopCommand::MountSupervisor => mount::process("supervisor", cairn_fuse::supervisor_main()),
        TopCommand::MountWorker => mount::process("worker", cairn_fuse::worker_main()),
    };
    std::process::ExitCode::from(exit as u8)
}

/// Help and versions go to standard output, mistakes with the next step to standard error, as JSON if that was asked
/// for.
fn refuse(error: &clap::Error, args: &[std::ffi::OsString]) -> ! {
    let hint = hints::hint(error, &command_line(), args);
    if error.use_stderr() && args.iter().any(|arg| arg == "--json") {
        let text = error.to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
        let text = hint.map_or(text.to_owned(), |hint| format!("{text}\n{hint}"));
        eprintln!("{}", cairn_cli::json_error(&cairn_cli::CliError::usage(text)));
        std::process::exit(Exit::Usage as i32);
    }
    // Nobody is left to be told where the terminal is gone.
    let _ = error.print();
    if let Some(hint) = hint {
        eprintln!("{hint}");
    }
    std::process::exit(error.exit_code())
}

fn bench(command: BenchCommand, global: &GlobalArgs) -> Exit {
    let local = matches!(command, BenchCommand::Erasure(_));
    if !local && let Err(error) = cairn_cli::check_default_address(global) {
        eprintln!("cairn bench: {error}");
        return error.exit();
    }
    let text = global.cluster.as_deref().unwrap_or(cairn_client::uri::DEFAULT_CLUSTER);
    let result = cairn_client::uri::parse_addresses(text)
        .map_err(|bad| anyhow::anyhow!("--cluster: {bad:?} is no host:port; write for example 127.0.0.1:7400"))
        .and_then(|cluster| {
            cairn_bench::run(command, &BenchContext { cluster, json: global.json, key: global.shown_key() })
        });
    match result {
        Ok(()) => Exit::Done,
        Err(error) => {
            eprintln!("cairn bench: {error:#}");
            Exit::Other
        }
    }
}
