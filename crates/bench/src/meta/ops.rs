//! The measured operations: which request the n-th call of a slot is. They are messages of the wire, as `driver` sends
//! them.
use cairn_rpc::{Connection, ConnectionError};
use cairn_types::shard::shard_of;
use cairn_wire::Opcode;
use cairn_wire::common::{Credentials, Extent};
use cairn_wire::frame::CallHeader;
use cairn_wire::meta::*;
use clap::ValueEnum;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Operation {
    Create,
    Stat,
    Readdir,
    Rename,
    Unlink,
    /// Directories, each with a name of its own.
    Mkdir,
    /// Each file goes to a second directory.
    Move,
}

/// Deadline that servers are told.
const CALL: CallHeader = CallHeader { deadline_ms: 10_000, trace_id: 0 };

/// A directory.
#[derive(Clone)]
pub struct Place {
    pub partition: u32,
    /// Address of who leads it.
    pub leader: String,
    pub directory: u64,
}

/// What a call needs to know.
pub struct Target {
    pub volume: u32,
    pub session: u64,
    /// Clients of one directory have other names each.
    pub client: usize,
    /// Where the files are.
    pub at: Place,
    /// Where `Move` takes them.
    pub beside: Place,
    /// Where `Mkdir` has its directories made; 0: the servers choose.
    pub partition_of_new: u32,
    /// `at` is this shard of so many: only names that belong there are used.
    pub shard: Option<(usize, usize)>,
    /// Files are created with one extent.
    pub extent: bool,
}

impl Target {
    /// 16 bytes: a letter, the slot, the client, the number, and what brings it to the shard.
    fn name(&self, letter: char, slot: u32, number: u64) -> Vec<u8> {
        let here = |name: &Vec<u8>| self.shard.is_none_or(|(index, count)| shard_of(name, count) == index);
        let named = |tail: u32| format!("{letter}{slot:02}{:04}{number:07}{tail:02x}", self.client).into_bytes();
        (0..u32::MAX).map(named).find(here).expect("some of so many names belong to each shard")
    }
}

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Readdir => "readdir",
            Self::Rename => "rename",
            Self::Unlink => "unlink",
            Self::Mkdir => "mkdir",
            Self::Move => "move",
        }
    }
    /// Logged, with a sequence number.
    pub fn is_mutation(self) -> bool {
        matches!(self, Self::Create | Self::Rename | Self::Unlink | Self::Mkdir | Self::Move)
    }

    /// Sends the call about the `number`-th file of the slot; `renamed`: files have their second name.
    pub fn send(
        self,
        connection: &mut Connection,
        target: &Target,
        (slot, sequence, number): (u32, u64, u64),
        renamed: bool,
        cookie: &[u8],
    ) -> Result<u64, ConnectionError> {
        let header = Some(MetaHeader {
            volume: target.volume,
            partition: target.at.partition,
            session: target.session,
            slot,
            sequence,
            who: Some(Credentials::default()),
        });
        let parent = target.at.directory;
        let name = target.name(if renamed { 'r' } else { 'f' }, slot, number);
        match self {
            Self::Create => {
                let extents = if target.extent { vec![extent(target.session, slot, number)] } else { Vec::new() };
                let size = extents.iter().map(|extent| extent.length).sum();
                let mode = 0o100_644;
                let written_by = target.session;
                let request = CreateRequest {
                    header,
                    parent,
                    name,
                    mode,
                    exclusive: true,
                    size,
                    extents,
                    written_by,
                    ..Default::default()
                };
                connection.send(Opcode::Create.code(), CALL, &request, ())
            }
            Self::Stat => {
                let request = LookupRequest { header, parent, name };
                connection.send(Opcode::Lookup.code(), CALL, &request, ())
            }
            Self::Readdir => {
                let after = cookie.to_vec();
                let request =
                    ReaddirRequest { header, inode: parent, after, count_max: 1024, attributes: true, shards: false };
                connection.send(Opcode::Readdir.code(), CALL, &request, ())
            }
            Self::Rename => {
                let new_name = target.name('r', slot, number);
                let request = RenameRequest { header, parent, name, new_parent: parent, new_name, flags: 0 };
                connection.send(Opcode::Rename.code(), CALL, &request, ())
            }
            Self::Unlink => {
                let request = UnlinkRequest { header, parent, name };
                connection.send(Opcode::Unlink.code(), CALL, &request, ())
            }
            Self::Mkdir => {
                let (name, partition) = (target.name('d', slot, number), target.partition_of_new);
                let request = MkdirRequest { header, parent, name, mode: 0o755, partition, ..Default::default() };
                connection.send(Opcode::Mkdir.code(), CALL, &request, ())
            }
            Self::Move => {
                let (new_parent, new_name) = (target.beside.directory, name.clone());
                let request = RenameRequest { header, parent, name, new_parent, new_name, flags: 0 };
                connection.send(Opcode::Rename.code(), CALL, &request, ())
            }
        }
    }
}

/// An extent as a small file has one, 4 KiB somewhere in a chunk. There is no placement group 0, and what is in it
/// counts as gone: removing the file frees nothing on any data node.
fn extent(session: u64, slot: u32, number: u64) -> Extent {
    let index = (session as u32) << 12 | slot << 6 | (number >> 14) as u32;
    Extent { length: 4096, index, chunk_offset: number % (1 << 14) * 4096, ..Default::default() }
}
