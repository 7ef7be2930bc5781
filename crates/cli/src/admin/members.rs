//! What commands that change members share: node numbers, and waiting until a change is done.
use super::status;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use cairn_client::StaleReads;
use cairn_client::admin::status::{ClusterMap, ClusterStatus};
use cairn_types::GroupId;
use clap::Args;
use serde_json::json;
use std::time::Duration;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(300);

/// How long a command waits for what goes on in the cluster.
#[derive(Args, Debug)]
pub struct Wait {
    /// Do not wait until it is done: it goes on by itself, admin status shows how
    #[arg(long)]
    no_wait: bool,
}

impl Wait {
    /// Looks until nothing is left to do; each news goes to standard error. False: nobody waited.
    pub async fn until(
        &self,
        context: &Context,
        left: impl Fn(&ClusterStatus, &ClusterMap) -> Option<String>,
    ) -> Result<bool> {
        if self.no_wait {
            return Ok(false);
        }
        let mut said = String::new();
        loop {
            let (status, map) = status(context).await?;
            let Some(news) = left(&status, &map) else { return Ok(true) };
            if news != said && !context.out.is_json() {
                eprintln!("{news}");
            }
            said = news;
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// `n19` or `19`.
pub fn node_number(text: &str) -> Result<u32> {
    let number = text.strip_prefix('n').unwrap_or(text).parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| {
        CliError::usage(format!("{text:?} is no node: write its number, such as n19; see admin node ls"))
    })
}

/// Tells a member that what it has forgotten is lost. It is asked itself: without it there may be nobody who leads.
pub async fn accept_loss(context: &Context, group: GroupId, address: &str, yes: bool) -> Result<()> {
    if !yes {
        let text = "what this member has forgotten is lost for good then; start the members that know more instead if there \
                    are any. If there are none, say --yes";
        return Err(CliError::refused(Exit::Usage, text));
    }
    // There may be no manager that leads: that is why this is done.
    context.allow_stale(StaleReads::default());
    let client = context.client().await?;
    client.accept_loss("accepting what a member has forgotten", group, address).await?;
    if context.out.is_json() {
        return context.out.json(&json!({ "group": group.0, "address": address, "accepted": true }));
    }
    context.out.line(format!("the member at {address} votes and leads as it is, until it starts anew"))
}
