//! `cairn fs chown`, and the change of attributes of many files that `chmod` shares.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::owner::NewOwner;
use crate::remote::{NamedFor, expand_all};
use crate::report::{Done, Report};
use crate::walk::{Step, Walk};
use cairn_client::attributes::Attributes;
use cairn_client::changes::SetAttributes;
use cairn_client::{RemotePath, Volume};
use clap::Args;
use std::ffi::OsString;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Changes in flight.
const IN_FLIGHT_MAX: usize = 64;

#[derive(Args, Debug)]
pub struct ChownArgs {
    /// user, user:group or :group, by name (from /etc/passwd and /etc/group) or number
    owner: String,
    /// Remote paths or patterns
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Trees
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Of symbolic links themselves
    #[arg(long)]
    no_dereference: bool,
}

impl ChownArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let owner = NewOwner::parse(&self.owner).map_err(CliError::usage)?;
        let follow = !self.recursive && !self.no_dereference;
        change_all(context, &self.paths, self.recursive, follow, |attributes| {
            let uid = owner.uid.filter(|uid| *uid != attributes.uid);
            let gid = owner.gid.filter(|gid| *gid != attributes.gid);
            let set = SetAttributes { uid, gid, ..SetAttributes::default() };
            (!set.is_empty()).then_some(set)
        })
        .await
    }
}

/// Changes attributes of all operands, and of what is below them. `change` gives none where nothing is to be done.
pub async fn change_all(
    context: &Context,
    paths: &[OsString],
    recursive: bool,
    follow: bool,
    change: impl Fn(&Attributes) -> Option<SetAttributes>,
) -> Result<()> {
    let report = Arc::new(context.plain_report());
    let room = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    let mut tasks = JoinSet::new();
    for found in expand_all(context, paths, follow, &report).await {
        let walk = Walk::new(&found.volume, found.at, found.attributes);
        let mut walk = if recursive { walk } else { walk.depth_max(0) };
        // A directory is changed when it was read, so that a change that closes it comes last.
        while let Some(step) = walk.next().await {
            let node = match step {
                Err(error) => {
                    report.fail(&error);
                    continue;
                }
                Ok(Step::Enter(node)) if recursive && node.is_directory() => continue,
                Ok(Step::Enter(node) | Step::Leave(node)) => node,
            };
            if report.is_stopped() {
                break;
            }
            let Some(set) = change(&node.attributes) else {
                report.done(Done::File(0));
                continue;
            };
            let Ok(permit) = room.clone().acquire_owned().await else { break };
            while tasks.try_join_next().is_some() {}
            let (volume, report) = (found.volume.clone(), report.clone());
            tasks.spawn(async move {
                let _permit = permit;
                change_one(&volume, &node.at, node.attributes.inode, set, &report).await;
            });
        }
    }
    while tasks.join_next().await.is_some() {}
    report.finish()
}

async fn change_one(volume: &Volume, at: &RemotePath, inode: u64, set: SetAttributes, report: &Report) {
    match volume.setattr(inode, &at.path, set).await {
        Ok(_) => report.done(Done::File(0)),
        Err(error) => report.fail(&error.named_for(at).into()),
    }
}
