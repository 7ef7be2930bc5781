//! Garbage: blocks that a session wrote which has ended, and that nothing names.
//!
//! Invariant: a block is garbage only if the end of the session that wrote it is in the volume's log, and no version of
//! the namespace taken after that end and after the data node listed the block names it. A file comes to name bytes
//! only by a request of the session that wrote them (`writer_session`), so what is unnamed then stays so for ever. What
//! no data node listed is never judged. What was written for an open append (`SessionId::is_append`) is named by it
//! until it is closed, and by its file after that: it counts as of an ended session from the first byte on, for the
//! append was opened before.
//!
//! [`Suspects`] are listed blocks of ended sessions; what a walk over a later version names is struck out, the rest is
//! garbage. The leader puts it into the log (`FreeGarbage`), where each range is held against the sessions once more.
use crate::block_set::BlockSet;
use crate::error::{OpError, Result};
use crate::message::request;
use crate::named::Named;
use crate::namespace::Namespace;
use crate::session::SessionState;
use cairn_types::{CHUNK_BLOCKS_MAX, ErrorCode};

/// Ranges of one `FreeGarbage`.
pub const GARBAGE_RANGES_MAX: usize = 4096;

/// Blocks of a chunk that are to be freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GarbageRange {
    pub pg: u32,
    pub index: u32,
    pub first_block: u32,
    pub blocks: u32,
    /// That wrote them.
    pub session: u64,
}

#[derive(Debug)]
struct Suspect {
    pg: u32,
    index: u32,
    session: u64,
    blocks: BlockSet,
}

/// Listed blocks that ended sessions wrote, by chunk.
#[derive(Debug, Default)]
pub struct Suspects {
    /// Ascending in placement group and index.
    chunks: Vec<Suspect>,
    sets_bytes: usize,
}

impl Suspects {
    /// Adds the listed blocks of a chunk: first, one past the last. Chunks come in ascending order, each once.
    pub fn add(&mut self, pg: u32, index: u32, session: u64, blocks: impl IntoIterator<Item = (u32, u32)>) {
        if let Some(last) = self.chunks.last() {
            assert!((last.pg, last.index) < (pg, index), "lists of chunks are merged in their order");
        }
        let mut set = BlockSet::default();
        blocks.into_iter().for_each(|(first, end)| set.insert(u64::from(first), u64::from(end)));
        if !set.is_empty() {
            self.sets_bytes += set.memory_bytes();
            self.chunks.push(Suspect { pg, index, session, blocks: set });
        }
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Chunks in it.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Memory that it takes; grows while it is struck, up to 2 KiB a chunk.
    pub fn memory_bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Suspect>() + self.sets_bytes
    }

    /// Lets go of the last chunks until `bytes` are enough. They come again with the next pass.
    pub fn shrink_to(&mut self, bytes: usize) {
        while self.chunks.len() * size_of::<Suspect>() + self.sets_bytes > bytes {
            let Some(last) = self.chunks.pop() else { break };
            self.sets_bytes -= last.blocks.memory_bytes();
        }
    }

    /// Something names these blocks.
    pub fn strike(&mut self, named: &Named) {
        let wanted = (named.pg, named.index);
        let Ok(at) = self.chunks.binary_search_by_key(&wanted, |suspect| (suspect.pg, suspect.index)) else { return };
        let set = &mut self.chunks[at].blocks;
        let before = set.memory_bytes();
        set.remove(named.first_block, named.end_block);
        self.sets_bytes = self.sets_bytes + set.memory_bytes() - before;
    }

    /// What is left: nothing names it.
    pub fn into_garbage(self) -> impl Iterator<Item = GarbageRange> {
        self.chunks.into_iter().flat_map(|Suspect { pg, index, session, blocks }| {
            let range = move |(first, end): (u32, u32)| GarbageRange {
                pg,
                index,
                first_block: first,
                blocks: end - first,
                session,
            };
            blocks.runs().into_iter().map(range)
        })
    }
}

impl Namespace {
    /// Puts garbage into the list of what is to be freed. A range whose session has not ended is left alone.
    pub(crate) fn free_garbage(&mut self, bytes: &[u8]) -> Result<()> {
        let mut freed = Vec::new();
        request::FreeGarbage::decode(bytes)?.ranges.visit(|bytes| {
            let range = request::GarbageRange::decode(bytes)?;
            let (first, end) = (u64::from(range.first_block), u64::from(range.first_block) + u64::from(range.blocks));
            if range.blocks == 0 || end > CHUNK_BLOCKS_MAX as u64 || freed.len() == GARBAGE_RANGES_MAX {
                return Err(OpError::new(ErrorCode::BadRequest, "ranges of garbage lie within a chunk, at most 4096"));
            }
            if self.sessions.state(range.session) == SessionState::Ended {
                freed.push((range.pg, range.index, first, end));
            }
            Ok(())
        })?;
        self.add_free_records(&mut freed);
        Ok(())
    }
}
