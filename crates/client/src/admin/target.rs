//! [`Target`]: what maintenance is about.
use crate::malformed::Malformed;
use cairn_wire::manager;
use std::fmt;

const DISK: u32 = 1;
const NODE: u32 = 2;
const RACK: u32 = 3;

/// A disk, a node with all its disks, or a rack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    Disk(u32),
    Node(u32),
    Rack(String),
    /// Of a later version.
    Unknown(u32),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(id) => write!(f, "disk d{id}"),
            Self::Node(id) => write!(f, "node n{id}"),
            Self::Rack(name) => write!(f, "rack {name}"),
            Self::Unknown(_) => f.write_str("something of a later version"),
        }
    }
}

impl Target {
    pub(super) fn of_wire(found: Option<manager::Target>) -> Result<Self, Malformed> {
        let manager::Target { kind, id, rack } = found.ok_or(Malformed::Missing("target"))?;
        Ok(match kind {
            DISK => Self::Disk(id),
            NODE => Self::Node(id),
            RACK => Self::Rack(rack),
            kind => Self::Unknown(kind),
        })
    }
    pub(super) fn to_wire(&self) -> manager::Target {
        match self {
            Self::Disk(id) => manager::Target { kind: DISK, id: *id, rack: String::new() },
            Self::Node(id) => manager::Target { kind: NODE, id: *id, rack: String::new() },
            Self::Rack(name) => manager::Target { kind: RACK, id: 0, rack: name.clone() },
            Self::Unknown(kind) => manager::Target { kind: *kind, id: 0, rack: String::new() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another thing would be emptied than was meant.
    #[test]
    fn a_target_comes_back_as_it_was() {
        for (target, name) in [
            (Target::Disk(3), "disk d3"),
            (Target::Node(17), "node n17"),
            (Target::Rack("r1".into()), "rack r1"),
            (Target::Unknown(9), "something of a later version"),
        ] {
            assert_eq!(target.to_string(), name);
            assert_eq!(Target::of_wire(Some(target.to_wire())), Ok(target));
        }
        assert_eq!(Target::of_wire(None), Err(Malformed::Missing("target")));
    }
}
