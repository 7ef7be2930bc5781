//! Servers over real TCP on loopback, on real directories, with the manager's part played by the test.

mod appends;
mod cluster;
mod compared;
mod failures;
mod forgetful;
mod frees;
mod joins;
mod local_shards;
mod older;
mod overwrite_lives;
mod overwrites;
mod rebuilds;
mod record_appends;
mod repairs;
mod replacements;
mod restores;
mod scrubs;
mod shard_lives;
mod shards;
mod sources;
mod stalls;
mod stripes;
mod tellers;
mod unhealed;
mod words;
