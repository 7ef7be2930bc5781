//! Runs seeds of the proof: one in this process under the deterministic scheduler, or many in processes side by side.

use std::process::ExitCode;

use cairn_proof::fleet::{self, Order};
use cairn_proof::seed::{Plan, run};

const USAGE: &str = "\
sim --seed N [--steps N] [--scale N] [--trace]              one seed; --trace prints every step of the scheduler
sim --seeds N [--first N] [--jobs N] [--steps N] [--scale N]  many, each in a process of its own
CAIRN_LOG=info,cairn_data=debug shows what the program logs";

/// Time since the run began. To ask a clock would make it another run.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
struct RunTime;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
impl tracing_subscriber::fmt::time::FormatTime for RunTime {
    fn format_time(&self, to: &mut tracing_subscriber::fmt::format::Writer<'_>) -> std::fmt::Result {
        let (now, host) = (cairn_dst::host::elapsed(), cairn_dst::host::current());
        write!(to, "{:>4}.{:06} host {host:<2}", now.as_secs(), now.subsec_micros())
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn one(plan: Plan, echo: bool, lane: u64) -> ExitCode {
    cairn_dst::fix_layout();
    cairn_dst::stay_on_processor(lane as usize);
    let config = cairn_dst::Config { echo, ..cairn_dst::Config::seeded(plan.seed) };
    let log = std::env::var("CAIRN_LOG").ok();
    let (done, report) = cairn_dst::run(config, || {
        if let Some(filter) = log {
            let lines = tracing_subscriber::fmt().with_ansi(false).with_env_filter(filter).with_timer(RunTime);
            lines.with_writer(std::io::stderr).init();
        }
        run(plan)
    });
    let trace = format!(
        "trace {:016x} of {} records, {} switches, {:.1} s of its own time",
        report.hash,
        report.records,
        report.switches,
        report.time.as_secs_f64()
    );
    // Threads that are left stand still, so nothing is taken down: the process just ends.
    match done {
        Ok(summary) if summary.faults > 0 => {
            println!("{}; {trace}", summary.text);
            std::process::exit(0)
        }
        Ok(_) => println!("seed {} FAILED: it had no fault, so it proves nothing; {trace}", plan.seed),
        Err(why) => println!("seed {} FAILED: {why}; {trace}", plan.seed),
    }
    std::process::exit(1)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn one(_plan: Plan, _echo: bool, _lane: u64) -> ExitCode {
    println!("skipped: the scheduler needs Linux with glibc");
    ExitCode::SUCCESS
}

fn number(args: &[String], name: &str) -> Result<Option<u64>, String> {
    let Some(at) = args.iter().position(|arg| arg == name) else { return Ok(None) };
    let value = args.get(at + 1).and_then(|text| text.parse().ok());
    value.map(Some).ok_or_else(|| format!("{name} wants a number"))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let parsed = (|| {
        let order = Order {
            first: number(&args, "--first")?.unwrap_or(0),
            count: number(&args, "--seeds")?.unwrap_or(0),
            jobs: number(&args, "--jobs")?.unwrap_or(2) as usize,
            steps: number(&args, "--steps")?.unwrap_or(16) as usize,
            scale: number(&args, "--scale")?.unwrap_or(1) as usize,
        };
        let lane = number(&args, "--lane")?.unwrap_or(std::process::id().into());
        Ok::<_, String>((number(&args, "--seed")?, lane, order))
    })();
    match parsed {
        Ok((Some(seed), lane, order)) => {
            let plan = Plan { seed, steps: order.steps, scale: order.scale };
            one(plan, args.iter().any(|arg| arg == "--trace"), lane)
        }
        Ok((None, _, order)) if order.count > 0 => match std::env::current_exe().map(|exe| fleet::run(&exe, order)) {
            Ok(outcome) if outcome.failed.is_empty() => ExitCode::SUCCESS,
            Ok(_) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::from(2)
            }
        },
        Ok(_) => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}
