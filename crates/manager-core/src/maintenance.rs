//! What an operator wants of disks, nodes and racks: that everything leaves them (drain), that nothing is repaired for
//! them for a time (hibernate), or that they are no part of the cluster any more (remove).
//!
//! A drain is a wish in the manager's log. What follows from it is decided anew each round ([`crate::moves`]), so it
//! survives a change of leaders. A node that is drained is drained with the disks that it gets later, a rack with its
//! nodes. Not here: the log (`apply/maintain.rs`, `apply/hibernate.rs`, `apply/remove.rs`).
use crate::command::{TargetKind, TargetOf};
use crate::items::clip;
use crate::state::State;
use cairn_types::{DiskId, NodeId, WallTime};
use std::fmt;

/// Most drains at a time.
pub const DRAINS_MAX: usize = 1024;

/// A disk, a node, or all nodes of a rack.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Target {
    Disk(DiskId),
    Node(NodeId),
    Rack(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(disk) => write!(f, "disk {disk}"),
            Self::Node(node) => write!(f, "node {node}"),
            Self::Rack(rack) => write!(f, "rack {rack:?}"),
        }
    }
}

impl Target {
    /// `None`: of a later version, or nothing.
    pub fn from_command(target: &TargetOf) -> Option<Target> {
        Some(match target.kind.as_ref()? {
            TargetKind::Disk(disk) => Self::Disk(DiskId(*disk)),
            TargetKind::Node(node) => Self::Node(NodeId(*node)),
            TargetKind::Rack(rack) => Self::Rack(clip(rack)),
        })
    }
}

impl Target {
    /// As a command names it.
    pub fn words(&self) -> String {
        match self {
            Self::Rack(rack) => format!("rack {rack}"),
            other => other.to_string(),
        }
    }
}

impl From<&Target> for TargetOf {
    fn from(target: &Target) -> Self {
        let kind = match target {
            Target::Disk(disk) => TargetKind::Disk(disk.get()),
            Target::Node(node) => TargetKind::Node(node.get()),
            Target::Rack(rack) => TargetKind::Rack(rack.clone()),
        };
        Self { kind: Some(kind) }
    }
}

/// Everything is to leave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drain {
    pub since: WallTime,
}

/// It is away for a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hibernation {
    pub since: WallTime,
    /// By the clock of whoever leads then.
    pub until: WallTime,
}

impl State {
    /// What is away for a time, in a fixed order.
    pub fn hibernations(&self) -> impl Iterator<Item = (&Target, &Hibernation)> {
        self.hibernations.iter()
    }

    /// Nothing is repaired for the disk now.
    pub fn hibernates(&self, disk: DiskId) -> bool {
        self.hibernations.keys().any(|target| self.is_in(target, disk))
    }

    /// The node was taken out of the cluster for good.
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.gone.contains(&node)
    }

    /// What is being emptied, in a fixed order.
    pub fn drains(&self) -> impl Iterator<Item = (&Target, &Drain)> {
        self.drains.iter()
    }

    /// The disk is part of what is meant.
    pub fn is_in(&self, target: &Target, disk: DiskId) -> bool {
        let Some(disk) = self.disk(disk) else { return false };
        match target {
            Target::Disk(id) => *id == disk.id,
            Target::Node(id) => *id == disk.node,
            Target::Rack(rack) => self.node(disk.node).is_some_and(|node| node.rack == *rack),
        }
    }

    /// Everything is to leave the disk.
    pub fn is_drained(&self, disk: DiskId) -> bool {
        self.drains.keys().any(|target| self.is_in(target, disk))
    }

    /// Where a disk that is added helps as one of this rack does: what comes to a rack that is drained is drained as
    /// well.
    pub(crate) fn where_to_add(&self, rack: &str) -> String {
        match self.drains.contains_key(&Target::Rack(rack.to_owned())) {
            true => "in a new rack".to_owned(),
            false => format!("in rack {rack:?} or in a new one"),
        }
    }
    /// The disk is in service, and may get more.
    pub fn takes_more(&self, disk: DiskId) -> bool {
        self.is_able(disk) && !self.is_drained(disk) && !self.is_gray(disk)
    }

    /// Disks that may get more, as far as their state goes.
    pub fn disks_that_take_more(&self) -> usize {
        self.disks().filter(|disk| self.takes_more(disk.id)).count()
    }
}

/// What only the managers knew when all of them are lost. It is not taken from a backup, which may be from before it
/// was over.
pub(crate) fn forgotten(backup: Option<&State>) -> String {
    let drains = backup.into_iter().flat_map(|state| state.drains().map(|(target, _)| format!("drain of {target}")));
    let sleeps = backup.into_iter().flat_map(|state| state.hibernations().map(|(t, _)| format!("hibernation of {t}")));
    let known: Vec<String> = drains.chain(sleeps).collect();
    let known = if known.is_empty() { String::new() } else { format!(" (the backup has: {})", known.join(", ")) };
    format!(
        "drains, hibernations, marks of gray disks and events are forgotten{known}: begin drains and hibernations again where they are \
         still wanted; keys that were taken away since the backup are unknown to servers that are new, others keep their names in the file \
         revoked.told: give these again (cairn admin key revoke)"
    )
}
