//! `cairn fs rmdir`: empty directories only.
use crate::context::Context;
use crate::error::Result;
use crate::remote::{NamedFor, expand_all};
use crate::report::Done;
use clap::Args;
use std::ffi::OsString;

#[derive(Args, Debug)]
pub struct RmdirArgs {
    /// Empty remote directories or patterns
    #[arg(required = true)]
    paths: Vec<OsString>,
}

impl RmdirArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let report = context.plain_report();
        for found in expand_all(context, &self.paths, false, &report).await {
            match found.volume.rmdir(&found.at.path).await {
                Ok(()) => report.done(Done::Directory),
                Err(error) => report.fail(&error.named_for(&found.at).into()),
            }
        }
        report.finish()
    }
}
