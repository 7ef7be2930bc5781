//! `cairn admin manager ls|add|remove|renew|accept-loss|go-on`: members of the manager's own group.
use super::members::{Wait, accept_loss, node_number};
use super::{listing, status};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::table::Align;
use cairn_client::admin::members::MemberChange;
use cairn_client::admin::status::{Awaited, ClusterMap, ClusterStatus, ManagerMember};
use cairn_types::{DiskId, GroupId, NodeId};
use clap::{Args, Subcommand};
use serde_json::json;

#[derive(Args, Debug)]
pub struct ManagerArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List the managers
    #[command(alias = "list")]
    Ls,
    /// Make a process that runs with an empty directory a manager
    Add {
        /// Its number (manager.member of its configuration) and address, such as 2@10.0.0.2:7400
        manager: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Add a manager anew that is an older copy of itself: the others fill it
    Renew {
        /// Its number, such as 2
        manager: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Let a manager that is an older copy of itself vote and lead as it is, when those that know more are lost for
    /// good: what was decided since is gone
    AcceptLoss {
        /// Its address, such as 10.0.0.2:7400
        address: String,
        /// Yes, what it has forgotten is lost
        #[arg(long)]
        yes: bool,
    },
    /// Let managers that were restored from a copy wait no longer for nodes that have not said what they know: what
    /// only those know is given up
    GoOn {
        /// Yes, the nodes that `admin status` names are lost for good
        #[arg(long)]
        yes: bool,
    },
    /// Take a manager out; it may be lost for good
    Remove {
        /// Its number, such as 2
        manager: String,
        #[command(flatten)]
        wait: Wait,
    },
}

impl ManagerArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.verb {
            Verb::Ls => list(context).await,
            Verb::Add { manager, wait } => add(context, &manager, &wait).await,
            Verb::Renew { manager, wait } => renew(context, &manager, &wait).await,
            Verb::AcceptLoss { address, yes } => accept_loss(context, GroupId::MANAGER, &address, yes).await,
            Verb::GoOn { yes } => go_on(context, yes).await,
            Verb::Remove { manager, wait } => remove(context, &manager, &wait).await,
        }
    }
}

fn role(status: &ClusterStatus, member: &ManagerMember) -> &'static str {
    match (member.node == status.leader_node, member.votes) {
        (true, _) => "leads",
        (_, true) => "votes",
        (_, false) => "catches up",
    }
}

async fn list(context: &Context) -> Result<()> {
    let (status, map) = status(context).await?;
    let rows = status.manager_members.iter().map(|member| {
        let node = map.nodes.iter().find(|node| node.id == member.node);
        let address = node.map_or("", |node| node.address.as_str());
        let http = node.map_or("", |node| node.http_address.as_str());
        let value = json!({
            "id": member.node, "address": address, "http_address": http, "leads": member.node == status.leader_node,
            "votes": member.votes, "answers": member.answers, "lacks_entries": member.lacks,
        });
        let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        let cells = vec![
            member.node.to_string(),
            role(&status, member).to_owned(),
            if member.answers { "yes" } else { "no" }.to_owned(),
            member.lacks.to_string(),
            dash(address),
            dash(http),
        ];
        (value, cells)
    });
    let columns = [
        ("MANAGER", Align::Right),
        ("PART", Align::Left),
        ("ANSWERS", Align::Left),
        ("LACKS ENTRIES", Align::Right),
        ("ADDRESS", Align::Left),
        ("HTTP", Align::Left),
    ];
    listing::print(context, &columns, rows)
}

async fn add(context: &Context, manager: &str, wait: &Wait) -> Result<()> {
    let Some((number, address)) = manager.split_once('@').filter(|(_, address)| address.contains(':')) else {
        let text = format!("{manager:?} is no manager: write number@host:port, such as 2@10.0.0.2:7400");
        return Err(CliError::usage(text));
    };
    let number = node_number(number)?;
    let addresses = vec![(number, address.to_owned())];
    let new = MemberChange { add: vec![number], addresses, ..MemberChange::default() };
    let client = context.client().await?;
    client.change_members("adding a manager", GroupId::MANAGER, new).await?;
    let voting = |status: &ClusterStatus, _: &ClusterMap| match status.managers.contains(&number) {
        true => None,
        false => Some(format!("manager {number} catches up")),
    };
    let done = wait.until(context, voting).await?;
    said(context, number, if done { "votes" } else { "catches up" }).await
}

async fn renew(context: &Context, manager: &str, wait: &Wait) -> Result<()> {
    let number = node_number(manager)?;
    let anew = MemberChange { add: vec![number], remove: vec![number], ..MemberChange::default() };
    let client = context.client().await?;
    client.change_members("adding a manager anew", GroupId::MANAGER, anew).await?;
    let voting = |status: &ClusterStatus, _: &ClusterMap| match status.managers.contains(&number) {
        true => None,
        false => Some(format!("manager {number} catches up")),
    };
    let done = wait.until(context, voting).await?;
    said(context, number, if done { "votes" } else { "catches up" }).await
}

async fn go_on(context: &Context, yes: bool) -> Result<()> {
    context.managers_only();
    let client = context.client().await?;
    let status = client.status("asking whom the managers wait for").await?;
    let Some(awaited) = status.awaited else {
        let text = "the managers wait for no node: there is nothing to go on from";
        return Err(CliError::refused(Exit::Usage, text));
    };
    let names = given_up(&awaited);
    if !yes {
        let text = format!(
            "what only {names} know is given up then; `cairn admin status` says more of them: start them instead if they can be. If they \
             are lost for good, say --yes"
        );
        return Err(CliError::refused(Exit::Usage, text));
    }
    client.go_on_without("going on without the missing nodes", awaited).await?;
    if context.out.is_json() {
        return context.out.json(&json!({ "gone_on": true, "given_up": names }));
    }
    context.out.line(format!("the managers go on with what the others have said; given up: {names}"))
}

/// Who is given up, for people.
fn given_up(awaited: &Awaited) -> String {
    let nodes = awaited.nodes.iter().map(|id| NodeId(*id).to_string());
    let disks = awaited.disks.iter().map(|id| DiskId(*id).to_string());
    let groups = (awaited.pgs_in_all > 0).then(|| format!("whoever has {} placement groups", awaited.pgs_in_all));
    let all: Vec<String> = nodes.chain(disks).chain(groups).collect();
    if all.is_empty() { "nobody".to_owned() } else { all.join(", ") }
}

async fn remove(context: &Context, manager: &str, wait: &Wait) -> Result<()> {
    let number = node_number(manager)?;
    let gone = MemberChange { remove: vec![number], ..MemberChange::default() };
    let client = context.client().await?;
    client.change_members("removing a manager", GroupId::MANAGER, gone).await?;
    let there = |status: &ClusterStatus, _: &ClusterMap| {
        let there = status.manager_members.iter().any(|member| member.node == number);
        there.then(|| format!("manager {number} leaves"))
    };
    let done = wait.until(context, there).await?;
    said(context, number, if done { "removed" } else { "leaves" }).await?;
    match context.out.is_json() {
        true => Ok(()),
        false => context.out.line(format!("when its process is stopped, cairn admin node remove n{number} takes it out of the list of nodes; its number is not given again then")),
    }
}

/// What became of it, and a word about even numbers.
async fn said(context: &Context, number: u32, outcome: &str) -> Result<()> {
    let (status, _) = status(context).await?;
    let voters = status.managers.len();
    if context.out.is_json() {
        return context.out.json(&json!({ "id": number, "outcome": outcome, "managers": status.managers }));
    }
    context.out.line(format!("manager {number}: {outcome}; {voters} vote"))?;
    if voters.is_multiple_of(2) {
        context.out.line(format!(
            "{voters} managers survive no more losses than {}: add or remove one more, and name all of them in \
             manager.members of every process",
            voters - 1
        ))?;
    }
    Ok(())
}
