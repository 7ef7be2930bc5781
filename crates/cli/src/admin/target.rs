//! What commands of maintenance are about: a disk, a node or a rack, and its name for people.
use crate::context::Context;
use crate::error::{CliError, Result};
use cairn_client::admin::target::Target;
use clap::{Args, ValueEnum};
use serde_json::json;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Kind {
    Disk,
    Node,
    Rack,
}

#[derive(Args, Debug)]
pub struct TargetArgs {
    /// What it is
    #[arg(value_enum)]
    kind: Kind,
    /// Which one: a disk such as d3, a node such as n17, or the name of a rack
    name: String,
}

impl TargetArgs {
    /// Of what is named elsewhere.
    pub fn new(kind: Kind, name: String) -> Self {
        Self { kind, name }
    }

    pub fn target(&self) -> Result<Target> {
        let number = |letter: char, what: &str| {
            let digits = self.name.strip_prefix(letter).unwrap_or(&self.name);
            digits.parse().ok().filter(|number: &u32| *number > 0).ok_or_else(|| {
                let name = &self.name;
                CliError::usage(format!(
                    "{name:?} is no {what}: write its number, such as {letter}3; see cairn admin {what} ls"
                ))
            })
        };
        Ok(match self.kind {
            Kind::Disk => Target::Disk(number('d', "disk")?),
            Kind::Node => Target::Node(number('n', "node")?),
            Kind::Rack => Target::Rack(self.name.clone()),
        })
    }
}

/// Takes a disk or a node that is empty out of the cluster; `key`: by what name the node's key is revoked, if it has
/// one.
pub async fn remove(context: &Context, target: &Target, key: &str) -> Result<()> {
    let client = context.client().await?;
    let name = target.to_string();
    client.remove(&format!("removing {name}"), target).await?;
    if context.out.is_json() {
        return context.out.json(&json!({ "target": name, "outcome": "removed", "key": key }));
    }
    let again = "to use it again, delete everything in its directory";
    context.out.line(format!("{name} is no part of the cluster any more; {again}"))?;
    match key.is_empty() {
        true => Ok(()),
        false => context.out.line(format!(
            "its key {key} still counts, and makes whoever has it a new node: cairn admin key revoke {key}"
        )),
    }
}

/// `d3` or `3`.
pub fn disk_number(text: String) -> Result<u32> {
    match TargetArgs::new(Kind::Disk, text).target()? {
        Target::Disk(number) => Ok(number),
        other => Err(CliError::usage(format!("{other} is no disk"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slip of the pen would empty another thing than was meant.
    #[test]
    fn names_are_read_as_they_are_written() {
        let read = |kind, name: &str| TargetArgs { kind, name: name.into() }.target();
        for (kind, name, wanted) in [
            (Kind::Disk, "d3", "disk d3"),
            (Kind::Disk, "3", "disk d3"),
            (Kind::Node, "n17", "node n17"),
            (Kind::Rack, "17", "rack 17"),
        ] {
            assert_eq!(read(kind, name).expect(name).to_string(), wanted);
        }
        for (kind, name) in [(Kind::Disk, "n3"), (Kind::Node, "d3"), (Kind::Disk, "0"), (Kind::Disk, "")] {
            assert!(read(kind, name).is_err(), "{name}");
        }
    }
}
