//! `cairn fs count`: how many directories, files and links trees have, and how many bytes.
use crate::context::Context;
use crate::error::Result;
use crate::fs::read_flags::StaleFlags;
use crate::human;
use crate::mode::is_regular;
use crate::output::put_name;
use crate::remote::{Found, expand_all};
use crate::report::{Done, Report};
use crate::walk::{Linked, Node, Step, Walk};
use clap::Args;
use serde_json::{Map, Value, json};
use std::ffi::OsString;

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
#[command(
    after_help = "Columns: directories (with the one that is named), files, links and what else there is, bytes of \
    all files, path. A file with several names is counted under each, its bytes once.\n\nExamples:\n  \
    cairn fs count /datasets\n  \
    cairn fs count -h '/users/*'\n  \
    cairn fs count --json /datasets | jq .files"
)]
pub struct CountArgs {
    /// Remote paths or patterns; without any, the root of the volume "default"
    paths: Vec<OsString>,
    /// Sizes such as 1.5M
    #[arg(short = 'h', long)]
    human: bool,
    #[command(flatten)]
    stale: StaleFlags,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// What a tree has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    directories: u64,
    files: u64,
    others: u64,
    bytes: u64,
}

impl Counts {
    fn add(&mut self, node: &Node, linked: &mut Linked) {
        let attributes = &node.attributes;
        if node.is_directory() {
            self.directories += 1;
        } else if is_regular(attributes.mode) {
            self.files += 1;
            self.bytes += if linked.was_seen(attributes) { 0 } else { attributes.size };
        } else {
            self.others += 1;
        }
    }
}

impl CountArgs {
    pub async fn run(mut self, context: &Context) -> Result<()> {
        self.stale.apply(context);
        if self.paths.is_empty() {
            self.paths.push("/".into());
        }
        let report = context.walk_report();
        for found in expand_all(context, &self.paths, false, &report).await {
            self.count(context, &found, &report).await?;
            if report.is_stopped() {
                break;
            }
        }
        report.finish()
    }

    async fn count(&self, context: &Context, found: &Found, report: &Report) -> Result<()> {
        let mut walk = Walk::new(&found.volume, found.at.clone(), found.attributes);
        let (mut counts, mut linked, failed_before) = (Counts::default(), Linked::default(), report.failed());
        while let Some(step) = walk.next().await {
            match step {
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => report.fail(&error),
                Ok(Step::Enter(node)) => {
                    report.progress().looked();
                    counts.add(&node, &mut linked);
                }
                Ok(Step::Leave(_)) => {}
            }
        }
        report.done(Done::Directory);
        let complete = report.failed() == failed_before;
        report.progress().aside(|| self.print(context, found, counts, complete))
    }

    fn print(&self, context: &Context, found: &Found, counts: Counts, complete: bool) -> Result<()> {
        let Counts { directories, files, others, bytes } = counts;
        if context.out.is_json() {
            let mut object = Map::new();
            put_name(&mut object, "path", &found.at.path);
            let rest = json!({ "volume": found.at.volume, "directories": directories, "files": files, "others": others,
                               "bytes": bytes, "complete": complete });
            if let Value::Object(rest) = rest {
                object.extend(rest);
            }
            return context.out.json(&Value::Object(object));
        }
        let size = human::size(bytes, self.human);
        let mut line = format!("{directories:>12} {files:>12} {others:>8} {size:>16}  ").into_bytes();
        line.extend(context.out.name(found.at.to_string().as_bytes()));
        context.out.line(line)
    }
}
