//! Newtypes for every id. An id is never reused unless its doc says so.
use std::fmt;
use std::str::FromStr;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $repr:ty, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $repr);

        impl $name {
            /// The raw number, as it goes on the wire and on disk.
            pub const fn get(self) -> $repr {
                self.0
            }
        }
        impl From<$repr> for $name {
            fn from(raw: $repr) -> Self {
                Self(raw)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(
    /// A server process with a durable identity, given by the manager at first registration. 0 is nobody.
    NodeId, u32, "n"
);
id!(
    /// A disk with a label, given by the manager at first registration. 0 is none.
    DiskId, u32, "d"
);
id!(
    /// A volume: one tree of files. 0 is none.
    VolumeId, u32, "v"
);
id!(
    /// A meta partition: one Raft group that owns a range of inode ids of one volume.
    PartitionId, u32, "p"
);
id!(
    /// A placement group: the disks that hold the same chunks.
    PgId, u32, "pg"
);
id!(
    /// A stripe group: placement groups of copies that were planned together, to become shards where they lie.
    StripeGroupId, u32, "sg"
);
id!(
    /// A Raft group on a node: 0 is the manager's group, a meta partition's group has the partition's number.
    GroupId, u32, "g"
);
id!(
    /// Fencing number of a placement group, raised with every change of its members or of their states.
    Epoch, u64, "e"
);
id!(
    /// One start of one data process; 0 is none. Given by the manager at registration and never repeated.
    Incarnation, u64, "i"
);
id!(
    /// A client session, given by the manager, never repeated. 0 is none.
    SessionId, u64, "s"
);
id!(
    /// An inode of a volume. 1 is the root directory; 0 is none.
    InodeId, u64, ""
);

impl SessionId {
    /// Numbers from here on are no sessions that the manager gives: they stand for the writers of an open append.
    const APPENDS: u64 = 1 << 63;

    /// Who writes the chunks of a file's open appends: all that append records to it, whatever their own sessions are.
    pub const fn of_append(inode: InodeId) -> SessionId {
        SessionId(Self::APPENDS | inode.0)
    }

    /// Whether it stands for the writers of an open append.
    pub const fn is_append(self) -> bool {
        self.0 & Self::APPENDS != 0
    }
}

impl InodeId {
    /// The root directory of every volume.
    pub const ROOT: InodeId = InodeId(1);
    /// A partition of several gives out ids that have the same bits above these.
    pub const RANGE_BITS: u32 = 40;
    /// What is above these says at which snapshot an inode is looked at.
    pub const SNAPSHOT_BITS: u32 = 48;

    /// The number of the same inode as it is now.
    pub const fn now(self) -> InodeId {
        InodeId(self.0 & ((1 << Self::SNAPSHOT_BITS) - 1))
    }
}

impl GroupId {
    /// The manager's Raft group.
    pub const MANAGER: GroupId = GroupId(0);
}

impl From<PartitionId> for GroupId {
    fn from(partition: PartitionId) -> Self {
        GroupId(partition.0)
    }
}

/// A chunk: the `index`-th of its placement group. An index is never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ChunkId {
    pub pg: PgId,
    pub index: u32,
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/c{}", self.pg, self.index)
    }
}
impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! uuid {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// All zero: "none" or "not known yet".
            pub const NONE: $name = $name([0; 16]);

            pub fn is_none(&self) -> bool {
                self.0 == [0; 16]
            }
            /// From a byte string of exactly 16 bytes.
            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                for (i, byte) in self.0.iter().enumerate() {
                    if matches!(i, 4 | 6 | 8 | 10) {
                        f.write_str("-")?;
                    }
                    write!(f, "{byte:02x}")?;
                }
                Ok(())
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl FromStr for $name {
            type Err = ();
            fn from_str(text: &str) -> Result<Self, ()> {
                let digits: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
                if digits.len() != 32 {
                    return Err(());
                }
                let mut out = [0u8; 16];
                for (i, pair) in digits.chunks_exact(2).enumerate() {
                    let pair = std::str::from_utf8(pair).map_err(|_| ())?;
                    out[i] = u8::from_str_radix(pair, 16).map_err(|_| ())?;
                }
                Ok(Self(out))
            }
        }
    };
}

uuid!(
    /// Identity of a cluster, written once when it is bootstrapped.
    ClusterId
);
uuid!(
    /// Identity that a disk label or a node's state directory carries from its first formatting.
    DiskUuid
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_text_round_trips_and_rejects_garbage() {
        let id = ClusterId([0xab; 16]);
        assert_eq!(id.to_string().parse::<ClusterId>(), Ok(id));
        assert!("abc".parse::<ClusterId>().is_err());
        assert!("zz".repeat(16).parse::<ClusterId>().is_err());
        assert!("é".repeat(16).parse::<ClusterId>().is_err());
    }

    #[test]
    fn ids_print_with_their_prefix() {
        assert_eq!(ChunkId { pg: PgId(7), index: 3 }.to_string(), "pg7/c3");
        assert_eq!(Epoch(2).to_string(), "e2");
    }
}
