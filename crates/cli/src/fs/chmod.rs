//! `cairn fs chmod`: octal and symbolic modes.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::fs::chown::change_all;
use crate::mode::{ModeChange, is_symlink};
use cairn_client::changes::SetAttributes;
use clap::Args;
use std::ffi::OsString;

#[derive(Args, Debug)]
pub struct ChmodArgs {
    /// Octal such as 644, or symbolic such as u+rwX,go-w
    #[arg(allow_hyphen_values = true)]
    mode: String,
    /// Remote paths or patterns
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Trees
    #[arg(short = 'R', long)]
    recursive: bool,
}

impl ChmodArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let change = ModeChange::parse(&self.mode).map_err(CliError::usage)?;
        let umask = context.umask;
        // Links have no mode of their own; in trees they are left alone.
        change_all(context, &self.paths, self.recursive, !self.recursive, |attributes| {
            let mode = change.apply(attributes.mode, umask);
            let same = is_symlink(attributes.mode) || mode == attributes.mode & 0o7777;
            (!same).then_some(SetAttributes { mode: Some(mode), ..SetAttributes::default() })
        })
        .await
    }
}
