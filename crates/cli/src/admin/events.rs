//! `cairn admin events`: what happened, as the managers keep it: one line an event, what it means with `--meaning`.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::human::utc_time;
use cairn_client::admin::events::{Event, EventFilter};
use cairn_client::admin::status::ClusterMap;
use clap::Args;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Between two looks of `--follow`.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub struct EventsArgs {
    /// Only of the last so much time, such as 30s, 15m, 2h or 7d
    #[arg(long)]
    since: Option<String>,
    /// Only of this node, such as n17
    #[arg(long)]
    node: Option<String>,
    /// Only of these kinds, such as node-down; may be given several times
    #[arg(long = "kind", value_delimiter = ',')]
    kinds: Vec<String>,
    /// The newest so many
    #[arg(long, short = 'n')]
    lines: Option<u32>,
    /// Also say what each kind of event means
    #[arg(long)]
    meaning: bool,
    /// Go on with what happens from now on
    #[arg(long, short)]
    follow: bool,
}

impl EventsArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let since_ns = self.since.as_deref().map(|text| since(text, now_ns())).transpose()?.unwrap_or(0);
        let node = self.node.as_deref().map(number).transpose()?.unwrap_or(0);
        if node != 0 {
            let (_, map) = super::status(context).await?;
            known(&map, node)?;
        }
        let client = context.client().await?;
        let (kinds, max) = (self.kinds.clone(), self.lines.unwrap_or(0));
        let mut wanted = EventFilter { after: 0, since_ns, node, kinds, max };
        loop {
            let page = client.events(&wanted).await?;
            for event in &page.events {
                match context.out.is_json() {
                    true => context.out.json(&event_json(event))?,
                    false => context.out.line(line(event, self.meaning))?,
                }
            }
            if !self.follow {
                return Ok(());
            }
            // Whoever looks on sees it now.
            context.out.flush()?;
            (wanted.after, wanted.max) = (page.last, 0);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// `30s`, `15m`, `2h`, `7d` before now.
fn since(text: &str, now_ns: u64) -> Result<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3_600),
        "d" => Some(86_400),
        _ => None,
    };
    let number: Option<u64> = digits.parse().ok();
    let ns = number.zip(seconds).and_then(|(number, unit)| number.checked_mul(unit)?.checked_mul(1_000_000_000));
    let ns = ns.ok_or_else(|| CliError::usage(format!("{text:?} is no time: write it as 30s, 15m, 2h or 7d")))?;
    Ok(now_ns.saturating_sub(ns))
}

fn number(text: &str) -> Result<u32> {
    let number = text.strip_prefix('n').unwrap_or(text).parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| {
        CliError::usage(format!("{text:?} is no node: write its number, such as n17; see cairn admin node ls"))
    })
}

/// A node that there never was has no events, which would look as if nothing had happened to it.
fn known(map: &ClusterMap, node: u32) -> Result<()> {
    match map.nodes.iter().any(|known| known.id == node) {
        true => Ok(()),
        false => {
            let text = format!("there is no node n{node}; cairn admin node ls shows all");
            Err(CliError::refused(Exit::NotFound, text))
        }
    }
}

fn line(event: &Event, with_meaning: bool) -> String {
    let (name, meaning) = (&event.kind, &event.meaning);
    // To the millisecond.
    let at = utc_time(event.time_ns);
    let mut line = format!("{}Z  {name:<17}  {}", at.get(..23).unwrap_or(&at), event.text);
    if with_meaning {
        line.push_str(&format!(" [{meaning}]"));
    }
    line
}

fn event_json(event: &Event) -> Value {
    let some = |id: u32| (id != 0).then_some(id);
    json!({
        "number": event.number, "time_ns": event.time_ns, "time": utc_time(event.time_ns), "kind": event.kind,
        "node": some(event.node), "disk": some(event.disk), "pg": some(event.pg), "text": event.text, "meaning": event.meaning,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window would be taken for another one, or a disk for a node.
    #[test]
    fn windows_and_nodes_are_read() {
        assert_eq!(since("2m", 200_000_000_000).expect("a time"), 80_000_000_000);
        assert_eq!(since("9d", 5).expect("a time"), 0);
        assert!(since("2", 5).is_err() && since("m", 5).is_err() && since("2w", 5).is_err());
        let node = cairn_client::map::Node { id: 17, ..Default::default() };
        let map = ClusterMap { nodes: vec![node], ..ClusterMap::default() };
        assert!(known(&map, 17).is_ok() && known(&map, 99).is_err(), "a node that never was");
        assert!(number("n17").is_ok_and(|n| n == 17) && number("d3").is_err());
    }
}
