//! Nodes and racks that are taken down for a time and come back: nothing is repaired for them meanwhile.
//!
//! Refused is what would leave a placement group with fewer serving members than writes need, a meta partition or the
//! managers without a majority, and a second failure domain at the same time.
use super::Outcome;
use crate::command::Hibernate;
use crate::items::{Node, Roles};
use crate::maintenance::{Hibernation, Target};
use crate::pg::Pg;
use crate::state::State;
use cairn_types::{ErrorCode, MemberState, WallTime};
use cairn_wire::error::WireError;
use std::collections::BTreeSet;

impl State {
    pub(super) fn hibernate(&mut self, time: WallTime, command: &Hibernate) -> Result<Outcome, WireError> {
        let target = command.target.as_ref().and_then(Target::from_command);
        let target = target.filter(|target| !matches!(target, Target::Disk(_))).ok_or_else(|| {
            WireError::new(ErrorCode::BadRequest, "a node or a rack hibernates; for a disk, drain it or stop its node")
        })?;
        if command.end {
            return match self.hibernations.remove(&target) {
                Some(_) => Ok(Outcome::Done),
                None => {
                    let text = format!("{target} does not hibernate; `cairn admin hibernate ls` shows what does");
                    Err(WireError::new(ErrorCode::NotFound, text))
                }
            };
        }
        if !self.nodes().any(|node| covers(&target, node) && !self.is_removed(node.id)) {
            let text = format!("there is no {target}; `cairn admin node ls` shows the nodes and their racks");
            return Err(WireError::new(ErrorCode::NotFound, text));
        }
        if let Some(why) = self.cannot_hibernate(&target) {
            return Err(WireError::new(ErrorCode::Conflict, why));
        }
        let since = self.hibernations.get(&target).map_or(time, |known| known.since);
        self.hibernations.insert(target, Hibernation { since, until: WallTime(command.until_ns) });
        Ok(Outcome::Done)
    }

    fn cannot_hibernate(&self, target: &Target) -> Option<String> {
        let racks = |target: &Target| -> BTreeSet<&str> {
            self.nodes().filter(|node| covers(target, node)).map(|node| node.rack.as_str()).collect()
        };
        let all: BTreeSet<&str> = self.servers().map(|node| node.rack.as_str()).collect();
        let one_domain = |other: &Target| all.len() > 1 && racks(other) == racks(target);
        if let Some(other) = self.hibernations.keys().find(|other| *other != target && !one_domain(other)) {
            return Some(format!(
                "{other} hibernates already, and only one failure domain may be away at a time: wait for it, or `cairn admin \
                 hibernate end {}`",
                other.words()
            ));
        }
        if let Some((pg, left)) = self.groups_short_without(target).next() {
            let others = self.groups_short_without(target).count() - 1;
            let more = if others > 0 { format!(" (and {others} more groups)") } else { String::new() };
            return Some(format!(
                "without {target} {} would have {left} serving members, and writes need {}{more}: wait until `cairn admin \
                 status` is quiet, or use a layout with more copies",
                pg.id,
                pg.scheme.write_minimum()
            ));
        }
        let stays = |node: &Node| node.up && !covers(target, node);
        for partition in self.partitions().filter(|p| !p.removed) {
            let concerned = |id: &&cairn_types::NodeId| self.node(**id).is_some_and(|node| covers(target, node));
            let left = partition.members.iter().filter(|id| self.node(**id).is_some_and(stays)).count();
            if partition.members.iter().any(|id| concerned(&id)) && left <= partition.members.len() / 2 {
                return Some(format!(
                    "without {target} {} would have {left} of {} members, no majority: nobody could use its names; `cairn \
                     admin partition add` or `move` gives it others",
                    partition.id,
                    partition.members.len()
                ));
            }
        }
        let managers: Vec<&Node> = self.nodes().filter(|node| node.roles.has(Roles::MANAGER)).collect();
        let left = managers.iter().filter(|node| stays(node)).count();
        let concerned = managers.iter().any(|node| covers(target, node));
        (concerned && left <= managers.len() / 2)
            .then(|| format!("without {target} {left} of {} managers would run, no majority", managers.len()))
    }

    /// Groups that have members there and could not be written without them, with how many would serve.
    fn groups_short_without(&self, target: &Target) -> impl Iterator<Item = (&Pg, usize)> {
        self.pgs().filter(|pg| !pg.retired).filter_map(move |pg| {
            let serving = || pg.members.iter().filter(|m| m.state == MemberState::Serving);
            let left = serving().filter(|m| !self.is_in(target, m.disk)).count();
            let concerned = serving().count() > left;
            (concerned && left < pg.scheme.write_minimum()).then_some((pg, left))
        })
    }
}

fn covers(target: &Target, node: &Node) -> bool {
    match target {
        Target::Disk(_) => false,
        Target::Node(id) => *id == node.id,
        Target::Rack(rack) => node.rack == *rack,
    }
}

#[cfg(test)]
mod tests;
