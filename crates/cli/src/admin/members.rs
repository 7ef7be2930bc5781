//! What commands that change members share: node numbers, and waiting until a change is done.
use super::status;
use crate::context::Context;
use crate::error::{CliError, Result};
use cairn_wire::manager::{ClusterMap, StatusResponse};
use clap::Args;
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
        left: impl Fn(&StatusResponse, &ClusterMap) -> Option<String>,
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
