//! [`ShardReads`]: what all striped reads of a client share.
use super::health::{Health, HedgeBounds};
use cairn_env::buf::BufPool;

/// Pages that decoded columns keep; what is beyond is allocated as it is needed.
const DECODE_POOL_BYTES: usize = 32 << 20;

/// What all striped reads of a client share.
pub(crate) struct ShardReads {
    pub health: Health,
    pub pool: BufPool,
}

impl ShardReads {
    pub(crate) fn new(bounds: HedgeBounds) -> Self {
        Self { health: Health::new(bounds), pool: BufPool::new(DECODE_POOL_BYTES) }
    }
}
