//! `cargo xtask sim`: builds the program that runs seeds of the whole cluster (crate `proof`), or with `--replicas` of
//! one group's members (crate `replica-sim`), and hands everything on to it.

use crate::cargo::cargo;
use anyhow::{Context, Result};

/// Whether all seeds passed. What it can be told is said by the program itself.
pub fn run(args: &[&str]) -> Result<bool> {
    let mut command = cargo();
    let (replicas, args): (Vec<&str>, Vec<&str>) = args.iter().partition(|arg| **arg == "--replicas");
    let (package, bin) = if replicas.is_empty() { ("cairn-proof", "sim") } else { ("cairn-replica-sim", "replicas") };
    let sim = ["--package", package, "--bin", bin, "--profile", "sim"];
    command.args(["run", "--quiet", "--locked"]).args(sim).arg("--").args(args);
    Ok(command.status().context("starting the program of the seeds")?.success())
}
