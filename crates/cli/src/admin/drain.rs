//! `cairn admin drain start|cancel|ls`: emptying disks, nodes and racks while they serve.
//!
//! A drain is a wish that the manager keeps and carries out by itself; `start --wait` looks on until nothing is left.
use super::target::TargetArgs;
use super::{age, listing, status};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::human::bytes;
use crate::table::Align;
use cairn_client::admin::status::{ClusterStatus, DrainReason, DrainStatus};
use cairn_client::admin::target::Target;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::time::Duration;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Args, Debug)]
pub struct DrainArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Begin to empty a disk, a node or a rack: what it keeps is copied or rebuilt elsewhere, and it serves until then
    Start {
        #[command(flatten)]
        target: TargetArgs,
        /// Wait until nothing is left there
        #[arg(long)]
        wait: bool,
    },
    /// Take a drain back: what has not left stays
    Cancel {
        #[command(flatten)]
        target: TargetArgs,
    },
    /// What is being emptied, how far it is, and what it waits for
    #[command(alias = "list")]
    Ls,
}

impl DrainArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.verb {
            Verb::Start { target, wait } => start(context, target.target()?, wait).await,
            Verb::Cancel { target } => cancel(context, target.target()?).await,
            Verb::Ls => list(context).await,
        }
    }
}

async fn ask(context: &Context, target: &Target, cancel: bool) -> Result<()> {
    let client = context.client().await?;
    let what = format!("{} {}", if cancel { "cancelling the drain of" } else { "draining" }, target);
    Ok(client.drain(&what, target, cancel).await?)
}

async fn start(context: &Context, target: Target, wait: bool) -> Result<()> {
    ask(context, &target, false).await?;
    let mut said = String::new();
    loop {
        let (status, _) = status(context).await?;
        let drain = status.drains.iter().find(|drain| drain.target == target);
        let Some(drain) = drain else {
            let text = format!("the drain of {} was cancelled meanwhile", target);
            return Err(CliError::refused(Exit::NotFound, text));
        };
        if !wait || drain.groups == 0 {
            return match context.out.is_json() {
                true => context.out.json(&drain_json(drain)),
                false => context.out.line(sentence(drain)),
            };
        }
        let news = sentence(drain);
        if news != said && !context.out.is_json() {
            eprintln!("{news}");
        }
        said = news;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn cancel(context: &Context, target: Target) -> Result<()> {
    ask(context, &target, true).await?;
    match context.out.is_json() {
        true => context.out.json(&json!({ "target": target.to_string(), "outcome": "cancelled" })),
        false => context.out.line(format!("{} keeps what it has, and gets new data again", target)),
    }
}

/// How far a drain is, in one line.
pub fn sentence(drain: &DrainStatus) -> String {
    let name = drain.target.to_string();
    if drain.disks == 0 {
        return format!(
            "{name} has no disks any more, and new ones there would get nothing: cairn admin drain cancel {name}"
        );
    }
    if drain.groups == 0 {
        return format!("{name} is empty: it may be taken away");
    }
    let left = left_ms(drain)
        .map_or_else(String::new, |ms| format!(", {} left at {}/s", age(ms), bytes(drain.bytes_per_second)));
    let mut text = format!(
        "{name} still has members of {} placement {}, about {}; {} {} being moved{left}",
        drain.groups,
        if drain.groups == 1 { "group" } else { "groups" },
        bytes(drain.bytes_left),
        drain.moving,
        if drain.moving == 1 { "is" } else { "are" }
    );
    if drain.blocked > 0 {
        text.push_str(&format!("; {}", waits(drain)));
    }
    text
}

/// Who cannot leave, and every reason.
fn waits(drain: &DrainStatus) -> String {
    // A manager of an earlier build names the first one only.
    if drain.reasons.is_empty() {
        return format!("{} cannot leave: {}", drain.blocked, drain.waits_for);
    }
    let of = |reason: &DrainReason| match reason.members {
        0 | 1 => format!("{}: {}", reason.first, reason.why),
        members => format!("{} and {} more: {}", reason.first, members - 1, reason.why),
    };
    let mut told: Vec<String> = drain.reasons.iter().map(of).collect();
    let named: u32 = drain.reasons.iter().map(|reason| reason.members).sum();
    if named < drain.blocked {
        told.push(format!("{} for other reasons", drain.blocked - named));
    }
    format!("{} cannot leave: {}", drain.blocked, told.join("; "))
}

fn left_ms(drain: &DrainStatus) -> Option<u64> {
    (drain.bytes_per_second > 0).then(|| (drain.bytes_left as f64 * 1000.0 / drain.bytes_per_second as f64) as u64)
}

fn drain_json(drain: &DrainStatus) -> Value {
    json!({
        "target": drain.target.to_string(), "since_ns": drain.since_ns, "disks": drain.disks,
        "groups": drain.groups, "moving": drain.moving, "bytes_left": drain.bytes_left,
        "bytes_per_second": drain.bytes_per_second, "left_ms": left_ms(drain), "blocked": drain.blocked,
        "waits_for": drain.waits_for, "empty": drain.groups == 0,
        "reasons": drain.reasons.iter().map(|r| json!({ "why": r.why, "members": r.members, "first": r.first })).collect::<Vec<_>>(),
    })
}

async fn list(context: &Context) -> Result<()> {
    let (status, _) = status(context).await?;
    if status.drains.is_empty() && !context.out.is_json() {
        return context.out.line("nothing is being drained");
    }
    let columns = [
        ("WHAT", Align::Left),
        ("DISKS", Align::Right),
        ("GROUPS", Align::Right),
        ("MOVING", Align::Right),
        ("BYTES", Align::Right),
        ("RATE", Align::Right),
        ("LEFT", Align::Right),
        ("WAITS FOR", Align::Left),
    ];
    listing::print(context, &columns, rows(&status).into_iter())
}

fn rows(status: &ClusterStatus) -> Vec<(Value, Vec<String>)> {
    let row = |drain: &DrainStatus| {
        let waits = match (drain.groups, drain.blocked) {
            _ if drain.disks == 0 => "nothing: its disks are gone; cancel it before new ones come".into(),
            (0, _) => "nothing: it is empty".into(),
            (_, 0) => "-".into(),
            _ => waits(drain),
        };
        let cells = vec![
            drain.target.to_string(),
            drain.disks.to_string(),
            drain.groups.to_string(),
            drain.moving.to_string(),
            bytes(drain.bytes_left),
            format!("{}/s", bytes(drain.bytes_per_second)),
            left_ms(drain).map_or_else(|| "-".into(), age),
            waits,
        ];
        (drain_json(drain), cells)
    };
    status.drains.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody would take away a node that is not empty, or wait for what never comes by itself.
    #[test]
    fn says_how_far_and_why_not() {
        let target = Target::Node(17);
        let drain = DrainStatus {
            target,
            disks: 2,
            groups: 7,
            moving: 2,
            bytes_left: 3 << 30,
            bytes_per_second: 100 << 20,
            blocked: 1,
            waits_for: "d3 in pg9: no disk that may take it is outside pg9".into(),
            since_ns: 0,
            reasons: Vec::new(),
        };
        let text = sentence(&drain);
        assert!(
            text.starts_with("node n17 still has members of 7 placement groups, about 3.0 GiB; 2 are being moved"),
            "{text}"
        );
        assert!(text.contains("30 s left at 100.0 MiB/s; 1 cannot leave: d3 in pg9: no disk"), "{text}");
        let reason = |members, first: &str, why: &str| DrainReason { why: why.into(), members, first: first.into() };
        let reasons = vec![reason(3, "d3 in pg9", "add a disk"), reason(1, "d4 in pg2", "others do not serve")];
        let all = DrainStatus { blocked: 6, reasons, ..drain.clone() };
        let wanted =
            "; 6 cannot leave: d3 in pg9 and 2 more: add a disk; d4 in pg2: others do not serve; 2 for other reasons";
        assert!(sentence(&all).ends_with(wanted), "{}", sentence(&all));
        let one = sentence(&DrainStatus { groups: 1, moving: 1, blocked: 0, ..drain.clone() });
        assert!(one.contains("of 1 placement group, about 3.0 GiB; 1 is being moved"), "{one}");
        let done = DrainStatus { groups: 0, ..drain.clone() };
        assert_eq!(sentence(&done), "node n17 is empty: it may be taken away");
        // A rack whose nodes were removed is drained for ever, with whatever is put there in their place.
        let gone = sentence(&DrainStatus { disks: 0, ..done.clone() });
        assert!(
            gone.starts_with("node n17 has no disks any more") && gone.ends_with("drain cancel node n17"),
            "{gone}"
        );
        assert_eq!((&drain_json(&drain)["empty"], &drain_json(&done)["empty"]), (&json!(false), &json!(true)));
        let rows = rows(&ClusterStatus { drains: vec![drain, done], ..ClusterStatus::default() });
        assert!(rows[0].1[7].starts_with("1 cannot leave") && rows[1].1[7].contains("empty"));
    }
}
