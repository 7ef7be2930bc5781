//! Times and sizes of a replica.

use std::time::Duration;

/// Times and sizes. The order of deadlines is the owner's.
#[derive(Debug, Clone)]
pub struct Config {
    /// Pause after something that an epoch begins with failed.
    pub retry_pause: Duration,
    /// How long an epoch may fail to begin before the leader reports the member that is in the way.
    pub start_patience: Duration,
    /// So long nothing is overwritten in place after a member left.
    pub quiet: Duration,
    /// Readers who want to be sure are answered while the manager's word is younger.
    pub word_max: Duration,
    /// And only so long after the first word, where others serve.
    pub compared_within: Duration,
    /// So long after its start a member that serves looks for what others have and it has not.
    pub look_after: Duration,
    /// And then again and again.
    pub compare_every: Duration,
    /// Pause before a chunk that was missed is brought back: a deletion under way reaches everybody.
    pub restore_delay: Duration,
    /// Pauses of what is looked after: after the first failure, and the longest.
    pub care_pause: (Duration, Duration),
    /// Indices made durable on all members at a time.
    pub reserve_step: u32,
    /// Blocks that are moved at a time.
    pub piece_blocks: u32,
    /// Chunks that are brought at the same time.
    pub jobs_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            retry_pause: Duration::from_millis(200),
            start_patience: Duration::from_secs(1),
            quiet: Duration::from_secs(6),
            word_max: Duration::from_secs(5),
            compared_within: Duration::from_secs(1),
            look_after: Duration::from_secs(5),
            compare_every: Duration::from_secs(600),
            restore_delay: Duration::from_secs(10),
            care_pause: (Duration::from_millis(400), Duration::from_secs(30)),
            reserve_step: 256,
            piece_blocks: 256,
            jobs_max: 4,
        }
    }
}
