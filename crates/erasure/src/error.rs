//! What can be wrong with a call. All of these but the parity mismatch and the missing shards are mistakes of the
//! caller.
use crate::{Kernel, SHARDS_MAX, ShardSet};
use cairn_types::Scheme;

/// Whose shards a count or a length was wrong of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Data,
    Parity,
    Source,
    Output,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Role::Data => "data shard",
            Role::Parity => "parity shard",
            Role::Source => "source shard",
            Role::Output => "output",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErasureError {
    #[error("no code with {k} data and {m} parity shards: at least one of each, at most {SHARDS_MAX} together")]
    Shape { k: usize, m: usize },
    #[error("{0} keeps copies, it has no shards to compute")]
    NotErasure(Scheme),
    #[error("this processor cannot run the {kernel} kernel; it can run {}", crate::kernel::names(&Kernel::available()))]
    KernelUnavailable { kernel: Kernel },
    #[error("{got} {role}s given, {expected} expected")]
    Count { role: Role, expected: usize, got: usize },
    #[error("{role} {index} has {got} bytes, the others have {expected}")]
    Length { role: Role, index: usize, expected: usize, got: usize },
    #[error("there is no shard {shard} among {shards}")]
    NoSuchShard { shard: usize, shards: usize },
    #[error("{wanted} shards wanted, there are only {shards}")]
    TooManyWanted { wanted: usize, shards: usize },
    #[error("{needed} shards are needed, only {have} are there ({present})")]
    NotEnoughShards { needed: usize, have: usize, present: ShardSet },
    /// `parity` has shard numbers, k and up; `offset` is the first byte known to differ in one of them.
    #[error("shard {parity}: parity does not fit the data, first at byte {offset}")]
    ParityMismatch { parity: ShardSet, offset: usize },
}
