//! What the state consists of besides placement groups: nodes, disks, volumes, meta partitions.
//!
//! Each item carries the map version of its last change.
use crate::volume_settings::VolumeSettings;
use cairn_types::generation::Generation;
use cairn_types::{ClusterId, DiskId, DiskUuid, Incarnation, Layout, NodeId, PartitionId, VolumeId, WallTime};

/// Lowest id of a node that is no member of the manager's group.
pub const NODE_ID_FIRST: u32 = 16;
/// Most disks of one node.
pub const DISKS_MAX: usize = 1024;
/// Longest name of a volume in bytes.
pub const VOLUME_NAME_MAX: usize = 63;
/// Longest text (address, host, rack, path, version) that is kept of what a node tells about itself.
pub const TEXT_MAX: usize = 255;

/// The id of the whole cluster and its name for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cluster {
    pub id: ClusterId,
    pub name: String,
    pub created: WallTime,
}

/// What a node does. A closed table of bits: add, never edit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Roles(pub u32);

impl Roles {
    pub const MANAGER: Roles = Roles(1);
    pub const META: Roles = Roles(2);
    pub const DATA: Roles = Roles(4);
    const TABLE: [(Roles, &'static str); 3] = [(Self::MANAGER, "manager"), (Self::META, "meta"), (Self::DATA, "data")];

    /// From names; unknown ones are left out.
    pub fn from_names<S: AsRef<str>>(names: &[S]) -> Roles {
        let known = Self::TABLE.iter().filter(|(_, name)| names.iter().any(|n| n.as_ref() == *name));
        Roles(known.fold(0, |bits, (role, _)| bits | role.0))
    }
    pub fn names(self) -> Vec<String> {
        Self::TABLE.iter().filter(|(role, _)| self.has(*role)).map(|(_, name)| (*name).to_string()).collect()
    }
    pub fn has(self, role: Roles) -> bool {
        self.0 & role.0 != 0
    }
}

/// A server process with an identity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub id: NodeId,
    /// Of its state directory; none for members of the manager's group.
    pub uuid: DiskUuid,
    pub roles: Roles,
    /// host:port of the RPC port.
    pub address: String,
    pub http_address: String,
    pub rack: String,
    pub host: String,
    pub software: String,
    /// Of its present start.
    pub incarnation: Incarnation,
    pub up: bool,
    /// When `up` last changed.
    pub since: WallTime,
    /// Name in the key that it has; empty: it showed none yet, or is a manager.
    pub holder: String,
    pub version: u64,
}

/// Whether a disk may be used. The numbers are on disk and on the wire: add, never edit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum DiskState {
    InService = 0,
    /// A sync failed or it returns errors.
    Failed = 1,
    /// Its label or contents are not trusted.
    Quarantined = 2,
    /// Its node came without it.
    Absent = 3,
    /// It is no part of the cluster any more.
    Removed = 4,
}

impl DiskState {
    pub fn from_code(code: u32) -> Option<DiskState> {
        Some(match code {
            0 => Self::InService,
            1 => Self::Failed,
            2 => Self::Quarantined,
            3 => Self::Absent,
            4 => Self::Removed,
            _ => return None,
        })
    }
    /// A state that a node may tell: no node says that a disk was removed.
    pub fn of_node(code: u32) -> Option<DiskState> {
        Self::from_code(code).filter(|state| *state != Self::Removed)
    }
    /// From the health that a node reports; what a later version may say counts as failed.
    pub fn from_health(health: u32) -> DiskState {
        match health {
            0 => Self::InService,
            2 => Self::Quarantined,
            _ => Self::Failed,
        }
    }
    pub fn code(self) -> u32 {
        self as u32
    }
    pub fn name(self) -> &'static str {
        match self {
            Self::InService => "in service",
            Self::Failed => "failed",
            Self::Quarantined => "quarantined",
            Self::Absent => "absent",
            Self::Removed => "removed",
        }
    }
}

/// A disk with a label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    pub id: DiskId,
    pub uuid: DiskUuid,
    pub node: NodeId,
    pub path: String,
    /// At its last registration.
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub state: DiskState,
    /// When `state` last changed; zero: never since it was entered.
    pub since: WallTime,
    pub problem: String,
    /// The last one that it told; none: it never told any.
    pub generation: Option<Generation>,
    /// At its last registration it knew of a later generation than this state does.
    pub is_ahead: bool,
    pub version: u64,
}

/// One tree of files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Volume {
    pub id: VolumeId,
    pub name: String,
    pub layout: Layout,
    pub deleted: bool,
    /// Since when it is in the trash: it serves nobody, and can be restored.
    pub trashed: Option<WallTime>,
    pub created: WallTime,
    pub version: u64,
    pub settings: VolumeSettings,
    /// Ranges of inodes below this one may have been given to partitions that are not known; 0: all are known.
    pub ranges_from: u64,
}

/// A range of inode ids of a volume and the nodes that replicate it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    pub id: PartitionId,
    pub volume: VolumeId,
    pub inode_first: u64,
    pub inode_last: u64,
    /// All that have it or shall have it.
    pub members: Vec<NodeId>,
    /// Who shall be a member, while that differs; part of `members`.
    pub target: Vec<NodeId>,
    /// The version of the last wish for other members: what was decided for an older one is void.
    pub wish: u64,
    /// No members any more: they drop what they have.
    pub left: Vec<NodeId>,
    /// Its members were changed once: from then on nobody may begin it, only join it.
    pub changed: bool,
    /// Members that are known to have opened it: their logs must not be missing.
    pub begun: Vec<NodeId>,
    /// So many more partitions are made for the volume when this one has ended its range.
    pub add: u32,
    /// Made later than its volume, of members that understand this feature level; 0: with its volume.
    pub level: u32,
    pub removed: bool,
    pub version: u64,
}

/// Why a name cannot be a volume's, or `None` if it can: 1 to 63 of `A-Z a-z 0-9 . _ -`, not beginning with `.` or `-`
/// (hidden names and options of commands).
pub fn volume_name_flaw(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("it is empty");
    }
    if name.len() > VOLUME_NAME_MAX {
        return Some("it is longer than 63 characters");
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        return Some("only letters, digits, '.', '_' and '-' are allowed");
    }
    if name.starts_with(['.', '-']) {
        return Some("it begins with '.' or '-'");
    }
    None
}

/// At most [`TEXT_MAX`] bytes of a text that a node sent, without control characters.
pub fn clip(text: &str) -> String {
    clip_to(text, TEXT_MAX)
}

/// Bytes of a problem that a node tells: they are kept in memory only.
pub const PROBLEM_MAX: usize = 2048;

/// At most `most` bytes of what is wrong, in whole words: of a long one the beginning and the end, where the next step
/// stands.
pub fn shorten(text: &str, most: usize) -> String {
    const GAP: &str = " … ";
    let clean = clip_to(text, usize::MAX);
    if clean.len() <= most {
        return clean;
    }
    let half = most.saturating_sub(GAP.len()) / 2;
    let head = (0..=half).rev().find(|at| clean.is_char_boundary(*at)).unwrap_or(0);
    let head = clean[..head].rfind(' ').unwrap_or(head);
    let tail = (clean.len() - half..=clean.len()).find(|at| clean.is_char_boundary(*at)).unwrap_or(clean.len());
    let tail = clean[tail..].find(' ').map_or(tail, |space| tail + space + 1);
    format!("{}{GAP}{}", clean[..head].trim_end(), &clean[tail..])
}

/// At most `most` bytes of a text that somebody sent, without control characters.
pub fn clip_to(text: &str, most: usize) -> String {
    let mut clean: String = text.chars().filter(|c| !c.is_control()).take(most).collect();
    while clean.len() > most {
        clean.pop();
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that a path or a command cannot express would make a volume unreachable.
    #[test]
    fn volume_names() {
        for good in ["a", "default", "A-1_b.c", &"x".repeat(63)] {
            assert_eq!(volume_name_flaw(good), None, "{good}");
        }
        for bad in ["", "a/b", "a:b", "ä", ".a", "-a", "a b", &"x".repeat(64)] {
            assert!(volume_name_flaw(bad).is_some(), "{bad}");
        }
    }

    /// A node of a later version would be refused, or its role lost, if unknown roles were not skipped.
    #[test]
    fn roles_by_name() {
        let roles = Roles::from_names(&["data", "meta", "cache"]);
        assert!(roles.has(Roles::DATA) && roles.has(Roles::META) && !roles.has(Roles::MANAGER));
        assert_eq!(roles.names(), ["meta", "data"]);
    }

    /// A node could fill the manager's memory, or forge log lines.
    #[test]
    fn texts_are_clipped() {
        assert_eq!(clip("a\nb\u{7}"), "ab");
        assert!(clip(&"ä".repeat(300)).len() <= TEXT_MAX);
    }

    /// The status would break off in a word before it says what to do.
    #[test]
    fn long_problems_keep_whole_words_and_the_next_step() {
        let cause = "the disk in /srv/data is empty, but disk 5f was here ".repeat(9);
        let text = format!("{cause}put replaced_disks = [\"5f\"] into data");
        let short = shorten(&text, TEXT_MAX);
        assert!(short.len() <= TEXT_MAX && short.starts_with("the disk in /srv/data"), "{short}");
        assert!(short.ends_with("put replaced_disks = [\"5f\"] into data"), "{short}");
        assert!(short.split(' ').all(|word| word == "…" || text.split(' ').any(|whole| whole == word)), "{short}");
        assert_eq!(shorten("all of it", TEXT_MAX), "all of it");
        assert!(shorten(&"ä".repeat(300), TEXT_MAX).len() <= TEXT_MAX && shorten("a b", 1).len() <= 5);
    }
}
