//! `cairn admin key revoke|ls`: keys that are taken away at all servers, and those that were.
//!
//! Not here: making keys, and the list of an authority (`cairn key`).
use super::listing;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::human::utc_time;
use crate::table::Align;
use cairn_client::admin::keys::RevokedKeys;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::time::Duration;

/// Servers hear of it with their next heartbeat.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(300);

#[derive(Args, Debug)]
pub struct KeyArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Take keys away: all servers refuse them from now on, and for ever
    Revoke {
        /// Names in the keys, as cairn key ls shows them
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Keys that were taken away
    #[command(alias = "list")]
    Ls,
}

impl KeyArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.verb {
            Verb::Revoke { names } => revoke(context, &names).await,
            Verb::Ls => list(context).await,
        }
    }
}

async fn revoke(context: &Context, names: &[String]) -> Result<()> {
    let client = context.client().await?;
    let mut known = client.revoke_keys("taking keys away", names).await?;
    let mut left = PATIENCE;
    while !known.unheard.is_empty() && !left.is_zero() {
        tokio::time::sleep(PAUSE).await;
        left = left.saturating_sub(PAUSE);
        known = client.revoke_keys("asking who knows of it", &[]).await?;
    }
    let unheard: Vec<String> = known.unheard.iter().map(ToString::to_string).collect();
    if context.out.is_json() {
        context.out.json(&json!({ "revoked": names, "unheard": unheard }))?;
    } else if unheard.is_empty() {
        context.out.line(format!(
            "{}: revoked; all servers that are up know it, and others hear it when they start",
            names.join(", ")
        ))?;
    }
    match unheard.is_empty() {
        true => Ok(()),
        false => Err(CliError::refused(Exit::Partial, not_everywhere(names, &unheard))),
    }
}

fn not_everywhere(names: &[String], unheard: &[String]) -> String {
    format!(
        "{}: revoked, but {} did not take it within {} s: it has no key, is of an earlier build, or cannot be reached by the managers; put the \
         name into the file of its security.revoked, or restart it with this build",
        names.join(", "),
        unheard.join(", "),
        PATIENCE.as_secs()
    )
}

async fn list(context: &Context) -> Result<()> {
    let client = context.client().await?;
    let RevokedKeys { keys, .. } = client.revoke_keys("asking for revoked keys", &[]).await?;
    if keys.is_empty() && !context.out.is_json() {
        return context.out.line("no key was revoked here; servers may have files that name some (security.revoked)");
    }
    let row = |(name, since): &(String, u64)| -> (Value, Vec<String>) {
        let value = json!({ "name": name, "since_ns": since, "since": utc_time(*since) });
        (value, vec![name.clone(), utc_time(*since)])
    };
    let rows: Vec<_> = keys.iter().map(row).collect();
    listing::print(context, &[("NAME", Align::Left), ("REVOKED", Align::Left)], rows.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever took a key away would believe that it counts nowhere, and one server would go on to serve it.
    #[test]
    fn servers_that_did_not_hear_it_are_named() {
        let text = not_everywhere(&["alice".to_owned()], &["n16".to_owned(), "n18".to_owned()]);
        assert!(text.contains("alice: revoked, but n16, n18 did not") && text.contains("security.revoked"), "{text}");
    }
}
