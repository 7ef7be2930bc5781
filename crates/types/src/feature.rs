//! Feature levels: what a build understands of replicated logs, so that builds of different age work together.
//!
//! Each process announces the highest level that it understands to the members of its groups. A group's state has an
//! *activated* level, which its leader raises when all members announced it; commands of a level are proposed, and
//! fields of a level filled, only when it is activated. So no member meets a command that it cannot apply, and none is
//! needed that was not there before until the last member is new.
//!
//! | level | since then |
//! |---|---|
//! | 0 | nothing is announced: builds from before levels |
//! | 1 | manager: notes and gray disks (log commands 28, 29), activation (34), settings of this level; partitions: `SetFeatureLevel` |
//! | 2 | partitions: files closed before they are durable (`PublishVolatile`, `NoteDurable`, `EndVolatile`, and what they leave in the namespace) |
//! | 3 | manager: settings of this level |
//! | 4 | manager: settings of a volume (log command 35, and what it leaves in the checkpoint); partitions: `PublishAttributes` |
//! | 5 | manager: generations of disks and marks of members (log commands from 36 on), settings of this level; partitions: requests of this level |
//! | 6 | manager: partitions of a volume made later (log commands 41, 42); partitions: `EndRange`, `TakeSessions`, kinds 5 and 6 of what `MendNamespace` mends; both: idle groups sleep (`RaftMessage.sleep`, nodes' own heartbeats) |
//! | 7 | partitions: `AddShard`, sharded directories; the limit of a volume over several partitions (`Lend`, `NoteLent`, `NoteLimit`, `SetBound`, `AtLimit`, `TxDecide.at_limit`) |
//! | 8 | nothing more than 7 |
//! | 9 | partitions: open appends (`OpenAppend`, `PublishAppend`, `CloseAppend`) |
//! | 10 | partitions: snapshots (`CreateSnapshot`, `DeleteSnapshot`, `RenameSnapshot`, births of extents, and what they leave in the namespace) |
//! | 12 | partitions: staged layouts (stages and times in layouts, the list of files that wait); manager: jobs that encode, settings of this level |
//! | 13 | partitions: `CloneRange` out of snapshots, and what that leaves in records of shared blocks |
//! | 14 | partitions: the list of open appends, several of a file at a time (`OpenAppendRequest.lane`) |
//! | 15 | manager: groups of which every disk is given up go on empty (`ForcePg.fresh`) |
//! | 16 | partitions: snapshots of volumes with several partitions (`QuietSnapshots`, `CutSnapshot`, `EndCut`, `FollowSnapshots`, `TxEffects.after_snapshot`, and what they leave in the namespace) |
//! | 17 | partitions: several open appends of a file published at once (`PublishAppendRequest.more`), and none opened where the file has no room left |
//! | 18 | partitions: snapshots and schedules of directories (`CreateSnapshotRequest.directory`, and what they leave in the namespace) |
//! | 19 | manager: stripe groups (log command 43, and what it leaves in the checkpoint), settings of this level |
//! | 20 | partitions: extents in chunks of whole shards, and what those leave in records of shared and kept blocks; manager: their erasure groups |
//! | 22 | manager: whose key a node has (log command 47, and what it leaves in the checkpoint) |
//! | 23 | manager: volumes whose file data is private (`private_data` of the cluster or a volume), which data nodes hold to |
//! | 24 | partitions: sessions that a floor spares (`TakeSessions.live`, and what it leaves in the checkpoint); quotas take in nothing of which others have parts, and let go of what moves to others |
//! | 25 | manager: ranges of inodes that are left out behind a map made anew (what that leaves in the checkpoint); partitions: kinds 7 to 9 of what `MendNamespace` mends |
//! | 26 | partitions: members whose memory is used up (`SetFullness`, and what it leaves in the namespace) |
//! | 27 | manager: names of keys that were revoked (log command 48, and what it leaves in the checkpoint) |
//! | 28 | partitions: delegated directories (`Batch`, `EndDelegations`, `MkdirRequest.ask`, and what they leave in the namespace) |
//! | 29 | partitions: delegations are given (`MkdirRequest.ask` is heeded), and leaders tell which are to end (`KeepAliveResponse.delegations`) |
//! | 30 | partitions: leaders end delegations whose holders do not (`ExpireSessions.delegations`) |
//! | 31 | both: layouts with `rs-6-2`, `rs-8-2`, `rs-10-2`, and groups of these |
//! | 32 | manager: who gets new partitions is said by the commands that make them (field 4 of log command 12, 5 of 41, 4 of 42) |
//!
//! The table is closed: a change of what logs hold gets the next level, whatever it is. Not here: who raises it
//! (manager, meta), how it is announced (raft).

/// The highest level that this build understands.
pub const FEATURE_LEVEL: u32 = 32;

/// What a group's members understand, as its leader has heard since it leads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Understanding {
    /// What every member announced, the leader itself among them; `None`: one was not heard yet.
    pub common: Option<u32>,
    /// Members that announced the least, or were not heard, by their numbers.
    pub behind: Vec<crate::NodeId>,
}

impl Understanding {
    /// From what the leader understands itself and what it heard of each other member.
    pub fn of(own: crate::NodeId, level: u32, heard: impl IntoIterator<Item = (crate::NodeId, Option<u32>)>) -> Self {
        let mut common = Some(level);
        let mut behind = vec![own];
        for (node, heard) in heard {
            // Nothing heard is less than anything.
            match heard.cmp(&common) {
                std::cmp::Ordering::Less => (common, behind) = (heard, vec![node]),
                std::cmp::Ordering::Equal => behind.push(node),
                std::cmp::Ordering::Greater => {}
            }
        }
        behind.sort_unstable();
        Self { common, behind }
    }

    /// All know the level, and its activation is on its way: whoever repeats what needs it soon succeeds.
    pub fn is_about_to_activate(&self, level: u32) -> bool {
        self.common.is_some_and(|common| common >= level)
    }

    /// Why something of a level cannot be done while less is activated, with who is to be upgraded.
    pub fn refusal(&self, what: &str, level: u32) -> String {
        let names: Vec<String> = self.behind.iter().map(ToString::to_string).collect();
        let names = names.join(", ");
        match self.common {
            None => format!(
                "{what} needs feature level {level} of all members, and {names} was not heard yet: start it, then repeat"
            ),
            Some(common) if common < level => format!(
                "{what} needs feature level {level} of all members, and {names} understands {common}: upgrade it (or take \
                 node.feature_level_max out of its configuration), then repeat"
            ),
            Some(_) => {
                format!("{what} needs feature level {level}, which is about to be activated: repeat in a moment")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;

    /// Levels with which nothing came.
    const NOTHING_NEW: &[u32] = &[11, 21];

    /// A level would be activated without what the table says of it, or one be used that another build gave a meaning.
    #[test]
    fn the_table_has_all_levels() {
        let row = |line: &str| line.strip_prefix("//! | ")?.split(' ').next()?.parse().ok();
        let rows: Vec<u32> = include_str!("feature.rs").lines().filter_map(row).collect();
        assert!(rows.is_sorted() && rows.last() == Some(&FEATURE_LEVEL), "{rows:?}");
        let missing: Vec<u32> = (0..=FEATURE_LEVEL).filter(|level| !rows.contains(level)).collect();
        assert_eq!(missing, NOTHING_NEW);
    }

    /// A command would be logged that a member cannot apply, or the wrong one be upgraded.
    #[test]
    fn the_least_counts_and_is_named() {
        let of = |heard: &[(u32, Option<u32>)]| {
            Understanding::of(NodeId(1), 3, heard.iter().map(|(node, level)| (NodeId(*node), *level)))
        };
        assert_eq!(of(&[]), Understanding { common: Some(3), behind: vec![NodeId(1)] });
        assert_eq!(of(&[(2, Some(4)), (3, Some(3))]).common, Some(3), "the leader itself counts");
        let old = of(&[(2, Some(1)), (3, Some(4)), (4, Some(1))]);
        assert_eq!(old, Understanding { common: Some(1), behind: vec![NodeId(2), NodeId(4)] });
        assert!(old.refusal("this", 2).contains("n2, n4 understands 1: upgrade it"), "{}", old.refusal("this", 2));
        let silent = of(&[(2, Some(0)), (3, None)]);
        assert_eq!(silent, Understanding { common: None, behind: vec![NodeId(3)] });
        assert!(silent.refusal("this", 1).contains("n3 was not heard yet"));
        assert!(of(&[]).refusal("this", 2).contains("in a moment"));
        assert!(of(&[]).is_about_to_activate(3) && !of(&[]).is_about_to_activate(4));
        assert!(
            !old.is_about_to_activate(2) && !silent.is_about_to_activate(0),
            "somebody is to be upgraded, or started"
        );
    }
}
