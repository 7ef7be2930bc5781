//! The project's own checks, its test runner, and the proof that tests find bugs: `cargo xtask check`, `test`,
//! `mutants`.
//!
//! Owns the rules that no compiler knows: which crate may use which, what the pure layers may touch, how long a
//! function may be, which licences come in. It builds nothing that ships; no other crate depends on it.

mod advisories;
mod cargo;
mod check;
mod cycles;
mod deny;
mod docs;
mod files;
mod findings;
mod layers;
mod licence;
mod manifests;
mod mutants;
mod notices;
mod sim;
mod source;
mod test_run;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask check [NAME…]        run the project's checks (all of them, or those named)
cargo xtask test [-- ARG…]       run every test (ARG goes to test programs); the last line is `N passed, N failed`
cargo xtask sim --seed N [--trace]           a whole cluster that one number decides; --seeds N [--first K] for many;
                                             with --replicas the members of one group, without threads
cargo xtask mutants [NAME…]      put classic bugs back into a copy, one after the other; their tests must fail;
                                 with --seeds, seeds of the whole cluster must
cargo xtask notices FILE         write the licences of all that the binary is linked with

Checks:";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["check", names @ ..] => check::run(names),
        ["test", "--", rest @ ..] => test_run::run(rest),
        ["test"] => test_run::run(&[]),
        ["mutants", names @ ..] => mutants::run(names),
        ["sim", args @ ..] => sim::run(args),
        ["notices", out] => notices::run(out),
        _ => {
            eprintln!("{USAGE}");
            for (name, what, _) in check::CHECKS {
                eprintln!("  {name:<12} {what}");
            }
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}
