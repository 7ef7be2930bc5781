//! `cairn fs du`: sizes of trees: what files contain, and what that takes on all disks together.
use crate::context::Context;
use crate::entry::raw_bytes;
use crate::error::Result;
use crate::human;
use crate::output::put_name;
use crate::remote::{Found, expand_all};
use crate::report::{Done, Report};
use crate::walk::{Node, Step, Walk};
use clap::Args;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;

/// Files with several names that are remembered, so that they count once.
const LINKED_MAX: usize = 1_000_000;

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct DuArgs {
    /// Remote paths or patterns; without any, the root of the volume "default"
    paths: Vec<OsString>,
    /// One line for each operand
    #[arg(short, long)]
    summarize: bool,
    /// Files too
    #[arg(short, long)]
    all: bool,
    /// Sizes such as 1.5M
    #[arg(short = 'h')]
    human: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    bytes: u64,
    raw: u64,
    files: u64,
    directories: u64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.bytes += other.bytes;
        self.raw += other.raw;
        self.files += other.files;
        self.directories += other.directories;
    }
}

impl DuArgs {
    pub async fn run(mut self, context: &Context) -> Result<()> {
        if self.paths.is_empty() {
            self.paths.push("/".into());
        }
        let report = context.plain_report();
        for found in expand_all(context, &self.paths, false, &report).await {
            self.sum(context, &found, &report).await?;
        }
        report.finish()
    }

    async fn sum(&self, context: &Context, found: &Found, report: &Report) -> Result<()> {
        let mut walk = Walk::new(&found.volume, found.at.clone(), found.attributes);
        let mut open: Vec<Sum> = vec![Sum::default()];
        let mut linked = BTreeSet::new();
        while let Some(step) = walk.next().await {
            match step {
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => report.fail(&error),
                Ok(Step::Enter(node)) if node.is_directory() => open.push(Sum { directories: 1, ..Sum::default() }),
                Ok(Step::Enter(node)) => {
                    let again = node.attributes.nlink > 1
                        && (linked.len() < LINKED_MAX || linked.contains(&node.attributes.inode))
                        && !linked.insert(node.attributes.inode);
                    let one = match again {
                        true => Sum::default(),
                        false => {
                            let a = &node.attributes;
                            Sum { bytes: a.size, raw: raw_bytes(a), files: 1, directories: 0 }
                        }
                    };
                    if let Some(top) = open.last_mut() {
                        top.add(one);
                    }
                    if node.depth == 0 || self.all && !self.summarize {
                        self.print(context, &node, one)?;
                    }
                }
                Ok(Step::Leave(node)) => {
                    let sum = open.pop().unwrap_or_default();
                    if let Some(top) = open.last_mut() {
                        top.add(sum);
                    }
                    report.done(Done::Directory);
                    if node.depth == 0 || !self.summarize {
                        self.print(context, &node, sum)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn print(&self, context: &Context, node: &Node, sum: Sum) -> Result<()> {
        if context.out.is_json() {
            let mut object = Map::new();
            put_name(&mut object, "path", &node.at.path);
            let rest = json!({ "volume": node.at.volume, "bytes": sum.bytes, "raw_bytes": sum.raw, "files": sum.files,
                               "directories": sum.directories });
            if let Value::Object(rest) = rest {
                object.extend(rest);
            }
            return context.out.json(&Value::Object(object));
        }
        let mut line = format!("{:>12} {:>12}  ", human::size(sum.bytes, self.human), human::size(sum.raw, self.human))
            .into_bytes();
        line.extend(context.out.name(node.at.to_string().as_bytes()));
        context.out.line(line)
    }
}
