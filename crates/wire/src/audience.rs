//! Who may ask what: the [`Audience`] of every operation, and the [`Caller`] that a certificate makes somebody.
//!
//! Invariants: every operation of the table has an audience, for the match below has no arm for the rest; what only
//! servers ask each other is never a client's or an administrator's. It counts on connections whose peer showed a
//! certificate. Not here: how the certificate is checked (`security`), where this is enforced (the server of `rpc`).

use crate::Opcode;

/// The roles of a server, as its certificate names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Roles(u8);

impl Roles {
    /// It is a member of the managers' group.
    pub const MANAGER: Self = Self(1);
    /// It serves partitions of names.
    pub const META: Self = Self(2);
    /// It serves placement groups.
    pub const DATA: Self = Self(4);
    /// Any of them.
    pub const ALL: Self = Self(7);
    /// None of them.
    pub const NONE: Self = Self(0);

    const NAMES: [(Self, &'static str); 3] = [(Self::MANAGER, "manager"), (Self::META, "meta"), (Self::DATA, "data")];

    /// The roles of both.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether there is a role that both have.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether it has all roles of the other.
    pub const fn covers(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether there is none.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// `manager+meta`
    pub fn parse(text: &str) -> Option<Self> {
        let role = |name: &str| Self::NAMES.iter().find(|(_, known)| *known == name).map(|(role, _)| *role);
        text.split('+').try_fold(Self::default(), |all, name| role(name).map(|role| all.with(role)))
    }
}

impl std::fmt::Display for Roles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> =
            Self::NAMES.iter().filter(|(role, _)| self.meets(*role)).map(|(_, name)| *name).collect();
        f.write_str(&names.join("+"))
    }
}

/// What a certificate makes its holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caller {
    /// Works with files.
    Client,
    /// Changes the cluster, and works with files.
    Admin,
    /// A server of the cluster. It asks some of what clients ask, too (jobs, moves of packs). A manager passes on what
    /// administrators of its machine ask.
    Node(Roles),
}

/// What of volumes an operation that clients ask for is about. The service that does it holds that against the rights
/// of the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// No volume is named, and none is told of.
    NoVolume,
    /// The answer tells of the volumes that the key opens, and of no other.
    Own,
    /// One volume, of which nothing is changed for others.
    Read,
    /// One volume, which is changed.
    Write,
}

/// Who may ask for an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Audience {
    /// Everybody who has a key, as far as it reaches.
    Clients(Reach),
    /// Clients and administrators, as far as their keys reach, managers, and servers with one of the roles. A server
    /// has no rights of a user that anybody could look at: what it does not need for files is not for its key.
    ClientsAndNodes(Reach, Roles),
    /// Administrators, and managers, which could change the cluster without being asked.
    Admins,
    /// Servers with one of the roles.
    Nodes(Roles),
    /// Administrators, and servers with one of the roles.
    AdminsAndNodes(Roles),
    /// Nobody: what a leader puts into its own log, and what comes in on the admin socket alone.
    Nobody,
}

impl Audience {
    /// Whether this caller belongs to it.
    pub const fn has(self, caller: Caller) -> bool {
        match (self, caller) {
            (Self::Clients(_), _)
            | (Self::ClientsAndNodes(..), Caller::Client | Caller::Admin)
            | (Self::Admins | Self::AdminsAndNodes(_), Caller::Admin) => true,
            (Self::Admins, Caller::Node(has)) => has.meets(Roles::MANAGER),
            (Self::ClientsAndNodes(_, roles), Caller::Node(has)) => has.meets(Roles::MANAGER.with(roles)),
            (Self::Nodes(roles) | Self::AdminsAndNodes(roles), Caller::Node(has)) => roles.meets(has),
            _ => false,
        }
    }

    /// What of volumes it is about, where clients ask for it.
    pub const fn reach(self) -> Option<Reach> {
        match self {
            Self::Clients(reach) | Self::ClientsAndNodes(reach, _) => Some(reach),
            _ => None,
        }
    }
}

impl std::fmt::Display for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NoVolume => "holders of any key",
            Self::Own => "holders of any key, who are told of their volumes",
            Self::Read => "holders of a key for the volume",
            Self::Write => "holders of a key that may change the volume",
        })
    }
}

impl std::fmt::Display for Audience {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Clients(reach) => write!(f, "{reach}"),
            Self::ClientsAndNodes(reach, roles) if roles.is_none() => {
                write!(f, "{reach}; of servers managers alone")
            }
            Self::ClientsAndNodes(reach, roles) => {
                let roles = Roles::MANAGER.with(*roles).to_string().replace('+', " or ");
                write!(f, "{reach}; of servers those with the role {roles}")
            }
            Self::Admins => f.write_str("administrators and managers"),
            Self::Nodes(roles) if *roles == Roles::ALL => f.write_str("servers"),
            Self::Nodes(roles) => write!(f, "servers with the role {}", roles.to_string().replace('+', " or ")),
            Self::AdminsAndNodes(roles) => {
                write!(f, "administrators, and servers with the role {}", roles.to_string().replace('+', " or "))
            }
            Self::Nobody => f.write_str("nobody"),
        }
    }
}

impl Opcode {
    /// Servers with one of these roles answer it; nobody else's answer is believed.
    pub const fn served_by(self) -> Roles {
        match self.code() >> 8 {
            0x01 => Roles::MANAGER.with(Roles::META),
            0x02 | 0x07 => Roles::MANAGER,
            0x03 | 0x06 => Roles::DATA,
            0x04 | 0x05 => Roles::META,
            _ => Roles::ALL,
        }
    }

    /// Who may ask for it.
    pub const fn audience(self) -> Audience {
        use Opcode::*;
        const LOGS: Roles = Roles::MANAGER.with(Roles::META);
        // Data servers write files anew: they move what is in packs, encode, convert. Anything else that changes a
        // volume, names above all, no server asks for; each ends its own changes in its own log.
        const FILE_WORK: Audience = Audience::ClientsAndNodes(Reach::Write, Roles::DATA);
        const NO_SERVER: Audience = Audience::ClientsAndNodes(Reach::Write, Roles::NONE);
        match self {
            Ping | ProcessStats | GetConfig => Audience::Clients(Reach::NoVolume),
            GetMap | OpenSession | Status | ListJobs | BadBlocks => Audience::Clients(Reach::Own),
            ReportMember | Read | ReportBadBlock | ListChunks => Audience::Clients(Reach::Read),
            // Leaders of partitions have what was written without a sync sealed.
            Seal => Audience::Clients(Reach::Write),
            EnsurePgs | Allocate | Append | Sync | Overwrite | RecordAppend => FILE_WORK,
            StartJob | CancelJob => NO_SERVER,
            Lookup | Resolve | Getattr | Readlink | Readdir | GetExtents | GetXattr | ListXattr | Statfs | Access
            | Open | GetattrMany | GetLock | WaitLock | GetQuota | ListQuotas | ReadStale | GetAppend | WaitChange
            | ListSnapshots | ListChanged | StageStatus => Audience::Clients(Reach::Read),
            // What a reader needs as well: it holds what it has open, and locks it.
            Hold | Release | KeepAlive | EndSession => Audience::ClientsAndNodes(Reach::Read, Roles::DATA),
            SetLock => Audience::ClientsAndNodes(Reach::Read, Roles::NONE),
            // Of Setattr and Publish no more than layout and places (`meta`, `file_work.rs`).
            Setattr | Publish | Discard | PublishAppend | CloseAppend => FILE_WORK,
            // A check mends, and is for root. Only who writes needs a turn.
            Fsck | ShardDirectory | AppendTurn | Mkdir | Create | Symlink | CreateUnnamed | Link | Unlink | Rmdir
            | RemoveTree | Rename | SetXattr | RemoveXattr | Punch | SetQuota | OverwriteLease | CloneRange
            | NoteDurable | PublishVolatile | PublishAttributes | OpenAppend | Batch | EndDelegations
            | CreateSnapshot | DeleteSnapshot | RenameSnapshot | SetSnapshotSchedule => NO_SERVER,

            CreateVolume | DeleteVolume | RestoreVolume | PurgeVolume | SetVolume | SetConfig | ChangeMembers
            | ForcePg | Drain | Remove | Hibernate | ClearGray | GoOn | SplitPartition | ListEvents | Scrub
            | CutCheckpoints | RevokeKeys => Audience::Admins,
            // Members of a group compare what they have.
            ListDigests => Audience::AdminsAndNodes(Roles::DATA.with(Roles::MANAGER)),

            Register | Heartbeat => Audience::Nodes(Roles::ALL),
            RaftMessages => Audience::Nodes(LOGS),
            // Managers drive the changes of all groups, their own among them.
            GroupMembers => Audience::Nodes(Roles::MANAGER),
            FetchCheckpoint | TakeCheckpoint | AcceptLoss => Audience::AdminsAndNodes(LOGS),
            TakeJob | ReportJob | ReserveIndices | ChunkTable | EncodeSoon => Audience::Nodes(Roles::DATA),
            Free => Audience::Nodes(Roles::META.with(Roles::DATA)),
            // Primaries tell the members of their groups, too.
            ApplyPgs => Audience::Nodes(Roles::MANAGER.with(Roles::DATA)),
            PrepareTx | FinishTx | AskTx | AboveTx | StrikeNamed | EndedSessions | ListNamed | CheckPart | AskBound
            | TellBound | HoldCut | MakeCut | TellSnapshots | CutCheckpoint | Compact | Defragment | TendAppend
            | Encode => Audience::Nodes(Roles::META),

            ExpireSessions | ReclaimBatch | FreeDone | SetDeferral | FreeGarbage | MendNamespace | ExpireTrash
            | SetFeatureLevel | EndVolatile | SkipInodes | TxPrepare | TxDecide | TxFinish | TxDone | ReclaimEntry
            | RunSchedule | QuietSnapshots | CutSnapshot | EndCut | FollowSnapshots | EndRange | TakeSessions
            | AddShard | SetFullness | Lend | NoteLent | NoteLimit | SetBound | AtLimit | Relay => Audience::Nobody,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client's key could do what only servers and administrators may, or a server's role what is another's.
    #[test]
    fn every_operation_has_the_audience_that_its_kind_has() {
        for opcode in Opcode::ALL {
            let (name, audience) = (opcode.name(), opcode.audience());
            if opcode.is_admin_change() && *opcode != Opcode::AcceptLoss {
                assert_eq!(audience, Audience::Admins, "{name}");
            }
            // The key of a data server is the first to be stolen: disks and machines with it are the most.
            let changes = opcode.is_admin_change() || audience == Audience::Admins;
            assert!(!changes || !audience.has(Caller::Node(Roles::DATA)), "{name}");
            assert!(!changes || audience.has(Caller::Admin) && audience.has(Caller::Node(Roles::MANAGER)), "{name}");
            if opcode.is_between_servers() {
                assert_eq!(audience, Audience::Nodes(Roles::META), "{name}");
            }
            if opcode.is_meta_mutation() {
                assert_eq!(audience == Audience::Nobody, opcode.is_internal(), "{name}");
            }
            let is_for_clients = audience.reach().is_some();
            assert!(!audience.has(Caller::Client) || is_for_clients, "{name}");
            // What is logged changes the volume, but for what readers hold.
            let holds = ["Hold", "Release", "KeepAlive", "EndSession", "SetLock"].contains(&name);
            if is_for_clients && opcode.is_meta_mutation() {
                assert_eq!(audience.reach() == Some(Reach::Read), holds, "{name}");
            }
            assert!(!audience.has(Caller::Client) || audience.has(Caller::Admin), "{name}");
        }
    }

    /// A stolen server's key would be root in every volume, or servers could not do their work on files.
    #[test]
    fn servers_ask_of_volumes_what_work_on_files_needs() {
        use Opcode::*;
        let asks = |opcode: &Opcode, roles| opcode.audience().has(Caller::Node(roles));
        let of_data = |opcode: &&Opcode| opcode.is_meta_mutation() && asks(opcode, Roles::DATA);
        let work: Vec<Opcode> = Opcode::ALL.iter().filter(of_data).copied().collect();
        let wanted = [Setattr, Publish, Discard, PublishAppend, CloseAppend, Hold, Release, KeepAlive, EndSession];
        assert!(work.len() == wanted.len() && wanted.iter().all(|opcode| work.contains(opcode)), "{work:?}");
        for opcode in Opcode::ALL {
            let name = opcode.name();
            assert!(!opcode.is_meta_mutation() || !asks(opcode, Roles::META), "{name} of a metadata server");
            // Combined nodes have one key, and whoever has a manager has the cluster.
            let with_manager = opcode.audience().reach().is_none() || asks(opcode, Roles::MANAGER);
            assert!(with_manager, "{name} of a manager");
            for reader in [Roles::DATA, Roles::META].into_iter().filter(|_| !opcode.is_meta_mutation()) {
                let reads = opcode.audience().reach().is_some_and(|reach| reach != Reach::Write);
                assert!(!reads || asks(opcode, reader), "{name} only reads");
            }
        }
        for needed in [EnsurePgs, Allocate, Append, Sync, Seal, RecordAppend, Overwrite, GetExtents, OpenSession] {
            assert!(asks(&needed, Roles::DATA), "{}", needed.name());
        }
        for other in [StartJob, CancelJob, Fsck, ShardDirectory, AppendTurn, SetLock, SetQuota, RemoveTree] {
            assert!(!asks(&other, Roles::DATA) && other.audience().has(Caller::Client), "{}", other.name());
        }
    }

    /// The page would tell others who may ask for what than the program does.
    #[test]
    fn the_table_of_the_documentation_is_this_one() {
        let page = include_str!("../../../docs/reference/protocol.md");
        let mut rows: Vec<(String, Vec<&str>)> = Vec::new();
        for opcode in Opcode::ALL {
            let audience = opcode.audience().to_string();
            match rows.iter_mut().find(|(of, _)| *of == audience) {
                Some((_, names)) => names.push(opcode.name()),
                None => rows.push((audience, vec![opcode.name()])),
            }
        }
        let rows = rows.iter().map(|(audience, names)| format!("| {audience} | {} |\n", names.join(", ")));
        let table = rows.collect::<String>();
        assert!(page.contains(&table), "docs/reference/protocol.md has to say:\n{table}");
    }

    /// A role would be written so that it is read as another.
    #[test]
    fn roles_are_read_as_they_are_written() {
        for roles in (1..8).map(Roles) {
            assert_eq!(Roles::parse(&roles.to_string()), Some(roles));
        }
        for bad in ["", "client", "meta+", "META", "manager meta"] {
            assert_eq!(Roles::parse(bad), None, "{bad}");
        }
    }
}
