//! `cairn admin node ls|remove`.
use super::target::{Kind, TargetArgs, remove};
use super::{age, listing, status};
use crate::context::Context;
use crate::error::Result;
use crate::table::Align;
use cairn_client::admin::target::Target;
use clap::{Args, Subcommand};
use serde_json::json;

#[derive(Args, Debug)]
pub struct NodeArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List the nodes
    #[command(alias = "list")]
    Ls,
    /// Take a node that keeps nothing and is stopped out of the cluster for good, with its disks
    Remove {
        /// Its number, such as n17
        node: String,
    },
}

impl NodeArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        if let Verb::Remove { node } = self.verb {
            let target = TargetArgs::new(Kind::Node, node).target()?;
            return remove(context, &target, &key_of(context, &target).await?).await;
        }
        let (status, map) = status(context).await?;
        let rows = map.nodes.iter().filter(|node| !node.removed).map(|node| {
            let disks = map.disks.iter().filter(|disk| disk.node == node.id && !disk.is_removed()).count();
            let leads = map.partitions.iter().filter(|p| !p.removed && p.leader == node.id).count();
            let is_leader = node.id == status.leader_node;
            let value = json!({
                "id": node.id, "up": node.up, "roles": node.roles, "address": node.address,
                "http_address": node.http_address, "host": node.host, "rack": node.rack, "disks": disks,
                "last_heard_ms": node.last_heard_ms, "incarnation": node.incarnation, "version": node.version, "key": node.holder,
                "manager_leader": is_leader, "partitions_led": leads,
            });
            let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
            let cells = vec![
                format!("n{}", node.id),
                if node.up { "up" } else { "down" }.into(),
                dash(&format!("{}{}", node.roles.join(","), if is_leader { "*" } else { "" })),
                dash(&node.address),
                dash(&node.http_address),
                dash(&node.host),
                dash(&node.rack),
                disks.to_string(),
                leads.to_string(),
                age(node.last_heard_ms),
                dash(&node.version),
                dash(&node.holder),
            ];
            (value, cells)
        });
        let columns = [
            ("NODE", Align::Right),
            ("STATE", Align::Left),
            ("ROLES", Align::Left),
            ("ADDRESS", Align::Left),
            ("HTTP", Align::Left),
            ("HOST", Align::Left),
            ("RACK", Align::Left),
            ("DISKS", Align::Right),
            ("LEADS", Align::Right),
            ("HEARD", Align::Right),
            ("VERSION", Align::Left),
            ("KEY", Align::Left),
        ];
        listing::print(context, &columns, rows)
    }
}

/// The name of the key to which a node is bound; empty: none, or one that is another node's by now.
async fn key_of(context: &Context, target: &Target) -> Result<String> {
    let Target::Node(number) = target else { return Ok(String::new()) };
    let (_, map) = status(context).await?;
    let found = map.nodes.into_iter().find(|node| node.id == *number).map(|node| node.holder);
    Ok(found.filter(|holder| !holder.contains('/')).unwrap_or_default())
}
