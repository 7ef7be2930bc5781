//! Runs seeds of the proof: one in this process under the deterministic scheduler, or many in processes side by side.

use std::process::ExitCode;

use cairn_proof::fleet::{self, Order};
use cairn_proof::run_log;
use cairn_proof::seed::{Plan, run};

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static MEMORY: cairn_dst::Memory = cairn_dst::Memory;

const USAGE: &str = "\
sim --seed N [--steps N] [--scale N] [--keys] [--log] [--trace]
                                                              one seed; --keys: nobody is served without a key; --log shows what the program logs, --trace every
                                                              step of the scheduler; both leave the run as it is
sim --seeds N [--first N] [--jobs N] [--steps N] [--scale N] [--keys]
                                                              many, each in a process of its own; --until-failure: no
                                                              further one once one has failed
CAIRN_LOG=info,cairn_data=debug shows another part of the log, which makes it another run";
/// Of the log of a seed that failed.
const LINES_SHOWN: usize = 60;

/// One seed's run.
#[derive(Debug, Clone, Copy)]
struct One {
    plan: Plan,
    lane: u64,
    echo: bool,
    show: bool,
}

/// The run's only argument, always equally long.
const RUN: &str = "--run=";

impl One {
    fn to_argument(self) -> String {
        let Self { plan, lane, echo, show } = self;
        let (keys, echo, show) = (plan.keys.is_some().into(), u64::from(echo), u64::from(show));
        let numbers = [plan.seed, plan.steps as u64, plan.scale as u64, keys, lane, echo, show];
        let text: Vec<String> = numbers.iter().map(|number| format!("{number:020}")).collect();
        format!("{RUN}{}", text.join(","))
    }

    fn from_argument(text: &str) -> Option<Self> {
        let numbers: Result<Vec<u64>, _> = text.strip_prefix(RUN)?.split(',').map(str::parse).collect();
        let [seed, steps, scale, keys, lane, echo, show] = numbers.ok()?[..] else { return None };
        let keys = (keys != 0).then(std::process::id);
        let plan = Plan { seed, steps: steps as usize, scale: scale as usize, keys };
        Some(Self { plan, lane, echo: echo != 0, show: show != 0 })
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn one(One { plan, lane, echo, show }: One) -> ExitCode {
    cairn_dst::stay_on_processor(lane as usize);
    let config = cairn_dst::Config { echo, ..cairn_dst::Config::seeded(plan.seed) };
    let log = std::env::var("CAIRN_LOG").ok();
    let (done, report) = cairn_dst::run(config, || {
        run_log::begin(log.is_some() || show, log.filter(|filter| !filter.is_empty()));
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
    eprintln!("{}", run_log::tail(LINES_SHOWN));
    std::process::exit(1)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn one(_one: One) -> ExitCode {
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
    if let Some(known) = args.first().and_then(|arg| One::from_argument(arg)) {
        return one(known);
    }
    let parsed = (|| {
        let order = Order {
            first: number(&args, "--first")?.unwrap_or(0),
            count: number(&args, "--seeds")?.unwrap_or(0),
            jobs: number(&args, "--jobs")?.unwrap_or(2) as usize,
            steps: number(&args, "--steps")?.unwrap_or(16) as usize,
            scale: number(&args, "--scale")?.unwrap_or(1) as usize,
            keys: args.iter().any(|arg| arg == "--keys"),
            until_failure: args.iter().any(|arg| arg == "--until-failure"),
        };
        let lane = number(&args, "--lane")?.unwrap_or(std::process::id().into());
        Ok::<_, String>((number(&args, "--seed")?, lane, order))
    })();
    match parsed {
        Ok((Some(seed), lane, order)) => {
            let keys = order.keys.then(std::process::id);
            let plan = Plan { seed, steps: order.steps, scale: order.scale, keys };
            let flag = |name: &str| args.iter().any(|arg| arg == name);
            let known = One { plan, lane, echo: flag("--trace"), show: flag("--log") };
            #[cfg(all(target_os = "linux", target_env = "gnu"))]
            cairn_dst::restart([known.to_argument()]);
            one(known)
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
