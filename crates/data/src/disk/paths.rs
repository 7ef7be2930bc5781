//! Names of files on a disk: `journal`, `generation`, `scrub`, `pg/<pg>/state`, `pg/<pg>/<index>.chunk`.

use cairn_types::{ChunkId, PgId};

/// The journal.
pub const JOURNAL: &str = "journal";
/// A journal in the making.
pub const JOURNAL_TEMP: &str = "journal.tmp";
/// Directory of the placement groups.
pub const PGS: &str = "pg";
/// Says that a sync failed, so everything is read again before the disk serves.
pub const SUSPECT: &str = "suspect";

/// How far the scrub came.
pub const SCRUB: &str = "scrub";
/// The same in the making.
pub const SCRUB_TEMP: &str = "scrub.tmp";

/// Blocks that are bad and could not be healed yet.
pub const BAD_BLOCKS: &str = "bad-blocks";
/// The same in the making.
pub const BAD_BLOCKS_TEMP: &str = "bad-blocks.tmp";

/// The disk's generation.
pub const GENERATION: &str = "generation";
/// The same in the making.
pub const GENERATION_TEMP: &str = "generation.tmp";

/// Directory of a placement group.
pub fn pg_dir(pg: PgId) -> String {
    format!("{PGS}/{}", pg.0)
}

/// State of a placement group.
pub fn pg_state(pg: PgId) -> String {
    format!("{PGS}/{}/state", pg.0)
}

/// The same in the making.
pub fn pg_state_temp(pg: PgId) -> String {
    format!("{PGS}/{}/state.tmp", pg.0)
}

/// A chunk file.
pub fn chunk(chunk: ChunkId) -> String {
    format!("{PGS}/{}/{:010}.chunk", chunk.pg.0, chunk.index)
}

/// A chunk file that was set aside.
pub fn bad_chunk(chunk: ChunkId) -> String {
    format!("{PGS}/{}/{:010}.bad", chunk.pg.0, chunk.index)
}

/// Empty; there as long as a chunk that a start found gone or damaged is looked for on other members.
pub fn lost_chunk(chunk: ChunkId) -> String {
    format!("{PGS}/{}/{:010}.lost", chunk.pg.0, chunk.index)
}

/// The index in the name of such a file.
pub fn lost_index(name: &str) -> Option<u32> {
    name.strip_suffix(".lost").filter(|digits| digits.len() == 10)?.parse().ok()
}

/// The index in the name of a chunk file.
pub fn chunk_index(name: &str) -> Option<u32> {
    name.strip_suffix(".chunk").filter(|digits| digits.len() == 10)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chunk would not be found again after a restart.
    #[test]
    fn names_round_trip() {
        let id = ChunkId { pg: PgId(7), index: 42 };
        assert_eq!(chunk(id), "pg/7/0000000042.chunk");
        assert_eq!(chunk_index("0000000042.chunk"), Some(42));
        assert_eq!(chunk_index("0000000042.bad"), None);
        assert_eq!(chunk_index("42.chunk"), None);
        assert_eq!(lost_chunk(id), "pg/7/0000000042.lost");
        assert_eq!((lost_index("0000000042.lost"), lost_index("0000000042.chunk")), (Some(42), None));
    }
}
