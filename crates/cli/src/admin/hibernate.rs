//! `cairn admin hibernate start|end|ls`: a node or a rack is taken down for a time, and nothing is repaired for it
//! meanwhile.
use super::target::TargetArgs;
use super::{age, listing, status};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::table::Align;
use cairn_client::admin::status::HibernationStatus;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Args, Debug)]
pub struct HibernateArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Announce that a node or a rack goes down and comes back: until then nothing is repaired for it
    Start {
        #[command(flatten)]
        target: TargetArgs,
        /// For how long, such as 45m or 2h; afterwards it is repaired as usual
        #[arg(long = "for", default_value = "30m")]
        window: String,
    },
    /// It is back, or is expected no more
    End {
        #[command(flatten)]
        target: TargetArgs,
    },
    /// What hibernates, and for how long still
    #[command(alias = "list")]
    Ls,
}

impl HibernateArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.verb {
            Verb::Start { target, window } => start(context, &target, window_ms(&window)?).await,
            Verb::End { target } => end(context, &target).await,
            Verb::Ls => list(context).await,
        }
    }
}

/// `90s`, `45m`, `2h`.
fn window_ms(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        _ => None,
    };
    let number: Option<u64> = digits.parse().ok();
    let window = number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit)).filter(|ms| *ms > 0);
    window.ok_or_else(|| CliError::usage(format!("{text:?} is no time: write it as 90s, 45m, 2h or 1d")))
}

async fn start(context: &Context, target: &TargetArgs, window_ms: u64) -> Result<()> {
    let target = target.target()?;
    let client = context.client().await?;
    client.hibernate(&format!("letting hibernate {target}"), &target, Duration::from_millis(window_ms)).await?;
    if context.out.is_json() {
        return context.out.json(&json!({ "target": target.to_string(), "hibernates": true, "left_ms": window_ms }));
    }
    context.out.line(format!(
        "{target} may be stopped: for {} nothing is repaired for it; afterwards, or with cairn admin hibernate end, it is",
        age(window_ms)
    ))
}

async fn end(context: &Context, target: &TargetArgs) -> Result<()> {
    let target = target.target()?;
    let client = context.client().await?;
    client.end_hibernation(&format!("ending the hibernation of {target}"), &target).await?;
    if context.out.is_json() {
        return context.out.json(&json!({ "target": target.to_string(), "hibernates": false, "left_ms": null }));
    }
    context.out.line(format!("{target} does not hibernate any more: it is repaired as usual when it is away"))
}

/// One line for people.
pub fn sentence(hibernation: &HibernationStatus) -> String {
    let name = hibernation.target.to_string();
    format!("{name}, for {} more: nothing is repaired for it", age(hibernation.left_ms))
}

async fn list(context: &Context) -> Result<()> {
    let (status, _) = status(context).await?;
    if status.hibernations.is_empty() && !context.out.is_json() {
        return context.out.line("nothing hibernates");
    }
    let row = |hibernation: &HibernationStatus| -> (Value, Vec<String>) {
        let name = hibernation.target.to_string();
        let HibernationStatus { since_ns, until_ns, left_ms, .. } = *hibernation;
        let value = json!({ "target": name, "since_ns": since_ns, "until_ns": until_ns, "left_ms": left_ms });
        (value, vec![name, age(left_ms)])
    };
    let rows: Vec<_> = status.hibernations.iter().map(row).collect();
    listing::print(context, &[("WHAT", Align::Left), ("LEFT", Align::Right)], rows.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window would be taken for another one, or for none.
    #[test]
    fn windows_have_units() {
        for (text, wanted) in [("90s", 90_000), ("45m", 2_700_000), ("2h", 7_200_000), ("1d", 86_400_000)] {
            assert_eq!(window_ms(text).expect(text), wanted);
        }
        for text in ["", "30", "m", "0m", "1w", "-1h", "99999999999999999h"] {
            assert!(window_ms(text).is_err(), "{text}");
        }
    }
}
