//! What `put` and `cp` have in common: their flags, and how they end.
use crate::context::Context;
use crate::error::Result;
use crate::fs::layout::parse_layout;
use crate::report::Report;
use crate::transfer::Overwrite;
use crate::transfer::remote_make::MakeOptions;
use clap::Args;
use std::time::Instant;

#[derive(Args, Debug)]
pub struct StoreFlags {
    /// Leave what exists as it is, instead of replacing it
    #[arg(short, long)]
    no_clobber: bool,
    /// Keep owner and group too (root may give files away)
    #[arg(short, long)]
    preserve: bool,
    /// Layout of new files and directories, such as r2; without it that of the target directory
    #[arg(short, long)]
    layout: Option<String>,
    /// Read each file again from the cluster and compare it with its source
    #[arg(short, long)]
    checksum: bool,
}

impl StoreFlags {
    pub fn options(&self) -> Result<MakeOptions> {
        Ok(MakeOptions {
            layout: self.layout.as_deref().map(parse_layout).transpose()?,
            overwrite: overwrite(self.no_clobber),
            owner: self.preserve,
            checksum: self.checksum,
        })
    }
}

/// What `--no-clobber` says.
pub fn overwrite(no_clobber: bool) -> Overwrite {
    if no_clobber { Overwrite::Keep } else { Overwrite::Replace }
}

/// The summary, and what the whole command came to.
pub fn end(context: &Context, report: &Report, verb: &str, started: Instant) -> Result<()> {
    let result = report.finish();
    let seconds = started.elapsed().as_secs_f64();
    if context.out.is_json() {
        context.out.json(&report.json_summary(seconds))?;
    } else if !context.args.quiet {
        report.say_summary(verb, seconds);
    }
    result
}
