//! `cargo xtask sim`: builds the program that runs seeds of the whole cluster (crate `proof`) and hands everything on to it.

use crate::cargo::cargo;
use anyhow::{Context, Result};

/// Whether all seeds passed. What it can be told is said by the program itself.
pub fn run(args: &[&str]) -> Result<bool> {
    let mut command = cargo();
    let sim = ["--package", "cairn-proof", "--bin", "sim", "--profile", "sim"];
    command.args(["run", "--quiet", "--locked"]).args(sim).arg("--").args(args);
    Ok(command.status().context("starting the program of the seeds")?.success())
}
