//! Heads that came back as older copies of themselves: what a person does of whom the status asks it, and when such a
//! head is whole again.

use std::time::Duration;

use cairn_types::PartitionId;
use cairn_wire::Opcode;
use cairn_wire::manager::{ChangeMembersRequest, StatusRequest, StatusResponse};

use crate::cluster::Cluster;
use crate::head::Head;

/// Time in which a head is whole again once nothing is wrong any more.
const PATIENCE: Duration = Duration::from_secs(300);
/// What the status says that a person shall do, in front of who it is about.
const PARTITION: &str = "`cairn admin partition renew ";
const MANAGER: &str = "`cairn admin manager renew ";

/// `(group, member)` of each command that a status names.
fn asked_for(status: &StatusResponse) -> Vec<(u32, u32)> {
    let number = |text: &str| text.trim_start_matches('n').parse::<u32>().ok();
    let mut found = Vec::new();
    for problem in &status.problems {
        for rest in problem.split(PARTITION).skip(1) {
            let mut words = rest.split(['`', ' ']);
            found.extend(words.next().and_then(number).zip(words.next().and_then(number)));
        }
        for rest in problem.split(MANAGER).skip(1) {
            found.extend(rest.split('`').next().and_then(number).map(|member| (0, member)));
        }
    }
    found
}

impl Cluster {
    pub(crate) fn status(&self) -> Option<StatusResponse> {
        let answer = self.runtime.block_on(self.ask_manager(Opcode::Status, &StatusRequest {}));
        answer.ok()?.decode().ok()
    }

    /// Does what the status asks for: members that are older copies of themselves are added anew. How many of them
    /// were.
    pub fn renew_older(&self) -> u64 {
        let Some(status) = self.status() else { return 0 };
        let mut renewed = 0;
        for (group, member) in asked_for(&status) {
            let (add, remove) = (vec![member], vec![member]);
            let request = ChangeMembersRequest { group, add, remove, ..ChangeMembersRequest::default() };
            let taken = self.runtime.block_on(self.ask_manager(Opcode::ChangeMembers, &request)).map(|_| ());
            tracing::info!(group, member, ?taken, "a member is to be added anew");
            renewed += u64::from(taken.is_ok());
        }
        renewed
    }

    /// Why a head that was an older copy of itself may still lack something.
    pub fn lacks_something(&self, place: usize) -> Option<String> {
        let Some(status) = self.status() else { return Some("no manager answers".into()) };
        let Some(number) = self.heads[place].lock().number() else { return Some("it has no number".into()) };
        if let Some(problem) = status.problems.iter().find(|problem| problem.contains("older copy of itself")) {
            return Some(problem.clone());
        }
        let map = status.map.unwrap_or_default();
        for partition in map.partitions.iter().filter(|partition| !partition.removed) {
            if !partition.target.is_empty() {
                return Some(format!("the members of partition {} are being changed", partition.id));
            }
            if !partition.nodes.contains(&number) {
                continue;
            }
            // Of operations: what the members themselves have changed in the log since is none of a partition that
            // rests.
            let applied_at = |head: &parking_lot::Mutex<Head>| {
                head.lock().digests(PartitionId(partition.id)).0.map_or(0, |digest| digest.applied)
            };
            let is_member = |head: &&parking_lot::Mutex<Head>| {
                head.lock().number().is_some_and(|number| partition.nodes.contains(&number))
            };
            let applied = self.heads.iter().filter(is_member).map(applied_at).max().unwrap_or(0);
            let has = applied_at(&self.heads[place]);
            if has < applied {
                return Some(format!("it has {has} of {applied} entries of partition {}", partition.id));
            }
        }
        if self.roster.has(place) && number != status.leader_node {
            let member = status.manager_members.iter().find(|member| member.node == number);
            if member.is_none_or(|member| !member.votes || !member.answers || member.lacks > 0) {
                return Some(format!("as a manager it is {member:?}"));
            }
        }
        None
    }

    /// Waits until these heads are whole again, with what a person has to do for that. How often that was anything.
    pub fn renew_heads(&self, places: impl Iterator<Item = usize>) -> Result<u64, String> {
        let mut renewed = 0;
        for place in places {
            let mut last = String::new();
            let whole = self.eventually("a head that was an older copy of itself is whole again", PATIENCE, || {
                renewed += self.renew_older();
                last = self.lacks_something(place).unwrap_or_default();
                last.is_empty()
            });
            whole.map_err(|why| format!("{why}: place {place}: {last}"))?;
        }
        Ok(renewed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody would be added anew, and the reason not be known.
    #[test]
    fn commands_of_a_status_are_found() {
        let problems = vec![
            "n3: p1: the state of partition 1 here is an older copy of itself: have it added anew: `cairn admin partition renew 1 n3` (`all` …)"
                .to_owned(),
            "n2: … `cairn admin manager renew 2`. If no majority; … `cairn admin partition renew 7 n2` (`all`".to_owned(),
        ];
        let status = StatusResponse { problems, ..StatusResponse::default() };
        assert_eq!(asked_for(&status), [(1, 3), (7, 2), (0, 2)]);
    }
}
