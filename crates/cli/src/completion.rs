//! `cairn completion SHELL`: the script that completes command lines.
use crate::error::{CliError, Result};
use clap::Args;
use clap_complete::{Shell, generate};
use std::io::Write;

#[derive(Args, Debug)]
#[command(after_help = "Example: cairn completion bash > /etc/bash_completion.d/cairn")]
pub struct CompletionArgs {
    /// Whose script
    shell: Shell,
}

impl CompletionArgs {
    pub fn run(self, mut cli: clap::Command) -> Result<()> {
        let name = cli.get_name().to_owned();
        let mut script = Vec::new();
        generate(self.shell, &mut cli, name, &mut script);
        std::io::stdout().write_all(&script).map_err(CliError::stdout)
    }
}
