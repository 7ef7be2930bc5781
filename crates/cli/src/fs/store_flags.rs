//! What `put` and `cp` have in common: their flags, and how they end.
use crate::context::Context;
use crate::error::Result;
use crate::fs::layout::parse_layout;
use crate::report::Report;
use crate::transfer::Overwrite;
use crate::transfer::remote_make::MakeOptions;
use crate::transfer::replace::ReplaceOptions;
use clap::Args;
use std::time::Instant;

/// What becomes of files that are in the way.
#[derive(Args, Debug)]
pub struct ReplaceFlags {
    /// Leave what exists as it is, instead of replacing it
    #[arg(short, long)]
    no_clobber: bool,
    /// Ask before a file is replaced
    #[arg(short, long, conflicts_with = "no_clobber")]
    interactive: bool,
    /// What is replaced is removed for good, not moved to the trash
    #[arg(long)]
    skip_trash: bool,
}

impl ReplaceFlags {
    pub fn options(&self) -> Result<ReplaceOptions> {
        let overwrite = overwrite(self.no_clobber);
        let options = ReplaceOptions { overwrite, update: false, ask: self.interactive, skip_trash: self.skip_trash };
        options.check().map(|()| options)
    }
}

#[derive(Args, Debug)]
pub struct StoreFlags {
    #[command(flatten)]
    replace: ReplaceFlags,
    /// Leave out files that are there already with the same size and time of change
    #[arg(short, long, conflicts_with = "no_clobber")]
    update: bool,
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
            replace: ReplaceOptions { update: self.update, ..self.replace.options()? },
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
