//! `cairn fs shard`: spreads the names of a directory over the partitions of its volume.
use crate::context::Context;
use crate::error::Result;
use crate::mode::is_directory;
use crate::remote::{Found, NamedFor, expand_all};
use crate::report::Done;
use clap::Args;
use serde_json::json;
use std::ffi::OsString;

#[derive(Args, Debug)]
pub struct ShardArgs {
    /// Remote directories or patterns, such as those that are going to have millions of entries
    #[arg(required = true)]
    paths: Vec<OsString>,
}

impl ShardArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let report = context.plain_report();
        for found in expand_all(context, &self.paths, true, &report).await {
            match shard(context, &found).await {
                Ok(()) => {
                    report.done(if is_directory(found.attributes.mode) { Done::Directory } else { Done::File(0) })
                }
                Err(error) => report.fail(&error),
            }
        }
        report.finish()
    }
}

async fn shard(context: &Context, found: &Found) -> Result<()> {
    let shards = found.volume.shard_directory(&found.at.path).await.map_err(|error| error.named_for(&found.at))?;
    if context.out.is_json() {
        return context.out.json(&json!({ "path": found.at.to_string(), "shards": shards }));
    }
    context.out.line(format!("{}: {shards} shards; new names go there, what was there stays where it is", found.at))
}
