//! Vocabulary of Cairn: ids, units, schemes, layouts, error codes, names.
//!
//! Layer 0: no I/O, no clock, no randomness. Every other crate speaks in these types.
pub mod checksum;
pub mod date;
pub mod era;
pub mod error_code;
pub mod feature;
pub mod generation;
pub mod ids;
pub mod layout;
pub mod member;
pub mod name;
pub mod pg_class;
pub mod scheme;
pub mod shard;
pub mod stage;
pub mod stripe;
pub mod time;
pub mod units;

pub use checksum::{crc32c, crc32c_append, crc32c_blocks};
pub use era::{era_of, first_term};
pub use error_code::{ErrorCode, RetryClass};
pub use feature::{FEATURE_LEVEL, Understanding};
pub use ids::{
    ChunkId, ClusterId, DiskId, DiskUuid, Epoch, GroupId, Incarnation, InodeId, NodeId, PartitionId, PgId, SessionId,
    StripeGroupId, VolumeId,
};
pub use layout::{Layout, LayoutError};
pub use member::MemberState;
pub use pg_class::PgClass;
pub use scheme::Scheme;
pub use stage::{Stage, StageAfter, StageHours};
pub use stripe::{ColumnPart, EXTENT_SHARED, ExtentKind, Stripe, WHOLE_SHARD};
pub use time::{Time, WallTime};
pub use units::{BLOCK_SIZE, ByteCount, CHUNK_BLOCKS_MAX, CHUNK_SIZE_MAX};
