//! The client library under every front: command line, mount, C, Python, Hadoop, benchmarks.
//!
//! Caches the cluster map, finds leaders, holds sessions with exactly-once slots, writes through write streams, reads
//! with fail-over and checksums. Every call has a deadline and three outcomes: done, certainly not done, unknown.
//! Not here: what a person sees (`cli`), rules of the namespace (`meta-core`), placement of members (`placement`).
pub mod admin;
mod admin_way;
mod again;
mod append;
pub mod attributes;
pub mod changes;
mod cluster;
mod compact;
mod connect;
mod convert;
pub mod credentials;
mod defragment;
mod discard;
mod encoded_message;
pub mod error;
pub mod extent;
#[cfg(any(test, feature = "test-support"))]
pub mod fake;
pub mod file_work;
pub mod file_writer;
pub mod fsck;
pub mod handle;
pub mod job;
pub mod key;
mod late;
mod leader;
pub mod listing;
pub mod locks;
pub mod malformed;
mod managers;
pub mod map;
mod meta;
mod moving;
mod net;
pub mod opened;
pub mod operations;
mod overwrite;
pub mod own_process;
pub mod process_use;
mod read;
pub mod record;
pub mod refusal;
mod shared_state;
pub mod snapshot;
mod stage;
pub mod stage_status;
mod stale;
mod stripe;
pub mod trash;
mod tree_walk;
pub mod uri;
pub mod view;
mod volatile;
pub mod volume_counts;
mod waits;

/// What servers see as the client's name.
pub(crate) const CLIENT_NAME: &str = concat!("cairn-client ", env!("CARGO_PKG_VERSION"));

pub use admin_way::AdminVia;
pub use append::SEGMENT_MAX;
pub use cairn_rpc::client::near::{belong_to, hand_on, handed_on};
pub use connect::{Client, ConnectOptions};
pub use convert::{Conversion, ConversionControl};
pub use defragment::{Defragmented, FragmentRules};
pub use error::{ClientError, Result};
pub use file_writer::{FileWriter, WriteOptions};
pub use handle::FileHandle;
pub use handle::budget::Budget;
pub use handle::file_data::read::ReadPattern;
pub use handle::file_data::{DataStatus, FileData, Writer};
pub use meta::delegations::dead::{DeadSession, QUEUE_SUCCESSORS_MAX};
pub use meta::delegations::memory::{LeftQueue, QueueLog, QueueMemory, QueueName};
pub use meta::volume::by_inode::MadeAt;
pub use meta::volume::posix::LockWait;
pub use meta::volume::snapshots::ChangedBetween;
pub use meta::volume::{READDIR_PAGE, RenameMode, Volume};
pub use overwrite::{BlockWrite, Overwritten};
pub use read::file_reader::{FilePiece, FileReader, READ_AHEAD};
pub use read::health::HedgeBounds;
pub use stage::{EncodeOutcome, EncodedPart};
pub use stale::{StaleReads, Staleness};
pub use tree_walk::{TreeNode, TreeStep, TreeWalk};
pub use uri::{RemotePath, UriError};
pub use waits::ToldWaits;
