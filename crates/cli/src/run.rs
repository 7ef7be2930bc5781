//! [`run`]: one command from its options to its exit code, with the runtime, signals and the message of a failure.
use crate::args::GlobalArgs;
use crate::context::Context;
use crate::ending::{EndSignals, carry_out};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::report::error_line;
use crate::transfer::temp_file;
use crate::{admin, completion, fs, inspect, man};
use clap::Subcommand;
use std::io::Write;

/// Threads of the runtime: small files cost mostly system calls, a few threads carry thousands a second.
const THREADS_MAX: usize = 4;

/// Commands of this crate; the binary adds its own beside them.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Files and directories
    Fs(fs::FsArgs),
    /// State and settings of the cluster
    Admin(admin::AdminArgs),
    /// Print a file that Cairn wrote on disk: labels, logs, checkpoints, chunks, journals
    Inspect(inspect::InspectArgs),
    /// Print the completion script of a shell
    Completion(completion::CompletionArgs),
    /// Write the manual pages into a directory
    Man(man::ManArgs),
}

/// Runs a command to its end and tells how it went. `cli` is the whole command line, for manual pages.
pub fn run(command: Command, args: GlobalArgs, cli: fn() -> clap::Command) -> Exit {
    let json = args.json;
    let result = match command {
        Command::Completion(completion) => completion.run(),
        Command::Man(man) => man.run(cli()),
        Command::Inspect(inspect) => inspect.run(&Context::new(args)),
        Command::Fs(command) => block_on(args, async move |context| command.run(context).await),
        Command::Admin(command) => block_on(args, async move |context| command.run(context).await),
    };
    match result {
        Ok(()) => Exit::Done,
        Err(error) => {
            if !matches!(error, CliError::Reported { .. } | CliError::BrokenPipe) {
                // Nobody reads standard error any more: the exit code still tells.
                drop(writeln!(std::io::stderr(), "{}", error_line(&error, json)));
            }
            error.exit()
        }
    }
}

fn block_on(args: GlobalArgs, work: impl AsyncFnOnce(&Context) -> Result<()>) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(1, THREADS_MAX);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|error| CliError::refused(Exit::Other, format!("the runtime cannot start: {error}")))?;
    let context = Context::new(args);
    let result = runtime.block_on(async {
        let mut signals = EndSignals::listen();
        let work = async { work(&context).await.and_then(|()| context.out.flush()) };
        let close = async || {
            context.tell_staleness().await;
            context.close().await;
        };
        let ended = carry_out(work, close, async || context.give_up().await, async || signals.next().await);
        ended.await.unwrap_or_else(|| Err(context.interrupted()))
    });
    temp_file::remove_all();
    // Threads that wait in a read of standard input end with the process.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser, Debug)]
    #[command(name = "cairn")]
    struct Cli {
        #[command(flatten)]
        global: GlobalArgs,
        #[command(subcommand)]
        command: Command,
    }

    /// A command line that contradicts itself is found here and not by a person.
    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Scripts that use these forms would break.
    #[test]
    fn what_people_type_is_understood() {
        for line in [
            "cairn fs ls",
            "cairn --json fs ls -laRh / v:/x",
            "cairn fs ls --json --cluster h:1",
            "cairn fs mkdir -p -m 755 /a",
            "cairn fs mkdir --partition p3 v:/a",
            "cairn fs put -rpc --layout r3 a b /t",
            "cairn fs put - /x",
            "cairn fs get /a /b .",
            "cairn fs get /a -",
            "cairn fs cat --offset 1k --length 5 /a",
            "cairn fs rm -rf /a",
            "cairn fs du -sh",
            "cairn fs find / --name x --size -5k --type f",
            "cairn fs chmod -R u+x,g-w /a",
            "cairn fs chmod -w /a",
            "cairn fs chown :5 /a",
            "cairn fs tail -f -c 5 /a",
            "cairn fs cat --stale-ok /a",
            "cairn fs --stale-ok=30s ls -l /a",
            "cairn fs touch -d @5 /a",
            "cairn fs layout set r2 /a",
            "cairn fs xattr set /a user.x y",
            "cairn admin status",
            "cairn admin pg 7",
            "cairn admin pg ls --unhealthy --volume v",
            "cairn admin volume create v --layout r2",
            "cairn admin volume create v --partitions 12",
            "cairn admin partition ls v",
            "cairn admin config set a=b c=d",
            "cairn inspect -v file",
            "cairn completion bash",
            "cairn man .",
        ] {
            if let Err(error) = Cli::try_parse_from(line.split(' ')) {
                panic!("{line}: {error}");
            }
        }
        for line in [
            "cairn fs put a",
            "cairn fs rm",
            "cairn fs cat --offset x /a",
            "cairn fs ls --stale-ok=x",
            "cairn fs mkdir --partition 0 v:/a",
            "cairn admin volume create v --partitions x",
            "cairn admin config set",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
