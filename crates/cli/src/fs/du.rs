//! `cairn fs du`: sizes of trees: what files contain, and what that takes on all disks together.
use crate::context::Context;
use crate::entry::{raw_bytes, stage_of};
use crate::error::Result;
use crate::fs::read_flags::StaleFlags;
use crate::fs::stat::Contents;
use crate::human;
use crate::mode::is_regular;
use crate::output::put_name;
use crate::redundancy::{Look, losses_text};
use crate::remote::{Found, expand_all};
use crate::report::{Done, Report};
use crate::walk::{Linked, Node, Step, Walk};
use cairn_types::Layout;
use clap::Args;
use serde_json::{Map, Value, json};
use std::ffi::OsString;

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
    /// Also the copies and shards that are missing, and how many more losses the weakest file survives
    #[arg(short, long)]
    redundancy: bool,
    /// Sizes such as 1.5M
    #[arg(short = 'h', long)]
    human: bool,
    #[command(flatten)]
    stale: StaleFlags,
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
    missing: u64,
    /// The least of all files with contents.
    losses: Option<usize>,
    /// Files that cannot be read as a whole.
    unreadable: u64,
    /// Of files that wait to be encoded.
    waiting: u64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.bytes += other.bytes;
        self.raw += other.raw;
        self.files += other.files;
        self.directories += other.directories;
        self.missing += other.missing;
        self.unreadable += other.unreadable;
        self.waiting += other.waiting;
        self.losses = match (self.losses, other.losses) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
    }
}

impl DuArgs {
    pub async fn run(mut self, context: &Context) -> Result<()> {
        self.stale.apply(context);
        if self.paths.is_empty() {
            self.paths.push("/".into());
        }
        let report = context.walk_report();
        for found in expand_all(context, &self.paths, false, &report).await {
            self.sum(context, &found, &report).await?;
        }
        report.finish()
    }

    async fn sum(&self, context: &Context, found: &Found, report: &Report) -> Result<()> {
        let mut walk = Walk::new(&found.volume, found.at.clone(), found.attributes);
        let mut open: Vec<Sum> = vec![Sum::default()];
        let mut linked = Linked::default();
        let mut look = None;
        while let Some(step) = walk.next().await {
            report.progress().looked();
            match step {
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => report.fail(&error),
                Ok(Step::Enter(node)) if node.is_directory() => open.push(Sum { directories: 1, ..Sum::default() }),
                Ok(Step::Enter(node)) => {
                    let one = match linked.was_seen(&node.attributes) {
                        true => Sum::default(),
                        false => match self.of_file(context, found, &node, &mut look).await {
                            Ok(sum) => sum,
                            Err(error) if error.is_fatal() => return Err(error),
                            Err(error) => {
                                report.fail(&error);
                                Sum::default()
                            }
                        },
                    };
                    if let Some(top) = open.last_mut() {
                        top.add(one);
                    }
                    if node.depth == 0 || self.all && !self.summarize {
                        report.progress().aside(|| self.print(context, &node, one))?;
                    }
                }
                Ok(Step::Leave(node)) => {
                    let sum = open.pop().unwrap_or_default();
                    if let Some(top) = open.last_mut() {
                        top.add(sum);
                    }
                    report.done(Done::Directory);
                    if node.depth == 0 || !self.summarize {
                        report.progress().aside(|| self.print(context, &node, sum))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// From the extents where the attributes do not say it: rows and tails of striped files take different space.
    async fn of_file(&self, context: &Context, found: &Found, node: &Node, look: &mut Option<Look>) -> Result<Sum> {
        let a = &node.attributes;
        let waits = stage_of(a).is_some_and(|layout| layout.stage().waits());
        let waiting = if waits { a.stored_bytes } else { 0 };
        let sum = Sum { bytes: a.size, raw: raw_bytes(a), files: 1, waiting, ..Sum::default() };
        let layout = Layout::from_bits(a.layout).filter(|layout| !layout.scheme().is_replicated());
        let striped = layout.and_then(Layout::stripe).is_some_and(|stripe| a.stored_bytes >= stripe.row());
        if !is_regular(a.mode) || a.stored_bytes == 0 || !(striped || self.redundancy) {
            return Ok(sum);
        }
        let look = match look {
            Some(look) => look,
            None => look.insert(Look::new(context, &found.at).await?),
        };
        let r = Contents::look_up(look, &found.volume, a).await?.redundancy;
        let unreadable = u64::from(r.unreadable.is_some());
        Ok(Sum { raw: r.raw, missing: r.missing, losses: r.losses, unreadable, ..sum })
    }

    fn print(&self, context: &Context, node: &Node, sum: Sum) -> Result<()> {
        if context.out.is_json() {
            let mut object = Map::new();
            put_name(&mut object, "path", &node.at.path);
            let rest = json!({ "volume": node.at.volume, "bytes": sum.bytes, "raw_bytes": sum.raw, "files": sum.files,
                               "directories": sum.directories,
                               "waiting_bytes": sum.waiting });
            if let Value::Object(rest) = rest {
                object.extend(rest);
            }
            if self.redundancy {
                object.insert("shards_missing".into(), json!(sum.missing));
                object.insert("losses_survived".into(), json!(sum.losses.filter(|_| sum.unreadable == 0)));
                object.insert("unreadable_files".into(), json!(sum.unreadable));
            }
            return context.out.json(&Value::Object(object));
        }
        let mut line = format!("{:>12} {:>12}  ", human::size(sum.bytes, self.human), human::size(sum.raw, self.human));
        if self.redundancy {
            let fate = match (sum.unreadable, sum.losses) {
                (0, None) => "-".into(),
                (0, Some(losses)) => format!("survives {}", losses_text(losses)),
                (n, _) => format!("{n} cannot be read now"),
            };
            line.push_str(&format!("{:>6} missing  {fate:<23}  ", sum.missing));
        }
        let mut line = line.into_bytes();
        line.extend(context.out.name(node.at.to_string().as_bytes()));
        if sum.waiting > 0 {
            line.extend(format!("  ({} to be encoded)", human::bytes(sum.waiting)).into_bytes());
        }
        context.out.line(line)
    }
}
