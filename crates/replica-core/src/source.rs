//! Where bytes come from: copies of other members, k of their shards, or the member that leaves.
//!
//! [`Hunt`] is the search for some blocks of one chunk: who is asked next, and what is made of the answers. Invariant:
//! what it finds matches the checksums that were wanted, or was decoded and proven.

use std::collections::BTreeMap;
use std::ops::Range;

use cairn_types::{BLOCK_SIZE, DiskId, Epoch, ErrorCode};

use crate::message::{Data, Refused};

/// Who has the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Copies: the table of the first one counts, any of them may have its blocks.
    Copy(Vec<DiskId>),
    /// Shards, each with its place: k of them make any other one. Who serves first.
    Rebuild {
        /// How many are needed.
        k: usize,
        /// Who has which.
        shards: Vec<(DiskId, u8)>,
    },
    /// The member whose place this one is to have: it has just this shard. Where it fails, it is rebuilt.
    Leaver {
        /// That member.
        disk: DiskId,
        /// As in `Rebuild`.
        k: usize,
        /// The others.
        shards: Vec<(DiskId, u8)>,
    },
}

/// The kinds of [`Source`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceKind {
    /// Copies of whoever serves.
    Copy,
    /// This member's own copy, for others.
    Own,
    /// k shards.
    Rebuild,
    /// The member that leaves.
    Leaver,
}

impl Source {
    /// Whose table counts.
    pub fn first(&self) -> Option<DiskId> {
        match self {
            Self::Copy(disks) => disks.first().copied(),
            Self::Leaver { disk, .. } => Some(*disk),
            Self::Rebuild { .. } => None,
        }
    }

    /// Its kind, as seen by `me`.
    pub fn kind(&self, me: DiskId) -> SourceKind {
        match self {
            Self::Copy(disks) if disks.first() == Some(&me) => SourceKind::Own,
            Self::Copy(_) => SourceKind::Copy,
            Self::Rebuild { .. } => SourceKind::Rebuild,
            Self::Leaver { .. } => SourceKind::Leaver,
        }
    }
}

/// What a search asks for next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<P> {
    /// These bytes of a member; `last_resort`: of one that does not serve.
    Ask {
        /// The member.
        disk: DiskId,
        /// From where.
        offset: u64,
        /// How much.
        bytes: u64,
    },
    /// Some are asked and have not answered.
    Pending,
    /// A shard of these.
    Decode(Vec<(u8, Data<P>)>),
    /// Found.
    Found(Data<P>),
    /// Nobody has all of it; fewer blocks at a time may be found.
    Lacking(Refused),
}

/// The search for some blocks.
#[derive(Debug, Clone)]
pub struct Hunt<P> {
    source: Source,
    /// The blocks.
    pub blocks: Range<u32>,
    /// Where the chunk ends.
    end: u64,
    /// Checksums that they must have; none for shards, which are proven otherwise.
    wanted: Option<Vec<u32>>,
    asked: usize,
    pending: usize,
    shards: BTreeMap<u8, Data<P>>,
    decoded_of: usize,
    found: Option<Data<P>>,
    first_problem: Option<Refused>,
    unanswered: bool,
}

impl<P: Clone> Hunt<P> {
    /// Begins to look for blocks of a chunk that ends at `end`.
    pub fn new(source: Source, blocks: Range<u32>, end: u64, wanted: Option<Vec<u32>>) -> Self {
        Self {
            source,
            blocks,
            end,
            wanted,
            asked: 0,
            pending: 0,
            shards: BTreeMap::new(),
            decoded_of: 0,
            found: None,
            first_problem: None,
            unanswered: false,
        }
    }

    /// Whom to ask, in order, with the shard that each has (of copies: all the same).
    fn candidate(&self, turn: usize) -> Option<(DiskId, Option<u8>)> {
        match &self.source {
            Source::Copy(disks) => disks.get(turn).map(|disk| (*disk, None)),
            Source::Rebuild { shards, .. } => shards.get(turn).map(|(disk, shard)| (*disk, Some(*shard))),
            Source::Leaver { disk, .. } if turn == 0 => Some((*disk, None)),
            Source::Leaver { shards, .. } => shards.get(turn - 1).map(|(disk, shard)| (*disk, Some(*shard))),
        }
    }

    fn needed(&self) -> usize {
        match &self.source {
            Source::Copy(_) => 1,
            Source::Rebuild { k, .. } => *k,
            Source::Leaver { .. } if self.asked == 0 => 1,
            Source::Leaver { k, .. } => *k,
        }
    }

    /// What is to be done now; to be called until it is not [`Next::Ask`].
    pub fn go_on(&mut self) -> Next<P> {
        if let Some(found) = self.found.take() {
            return Next::Found(found);
        }
        let needed = self.needed();
        if self.shards.len() >= needed && self.shards.len() > self.decoded_of && self.pending == 0 {
            self.decoded_of = self.shards.len();
            self.pending = 1;
            return Next::Decode(self.shards.iter().map(|(shard, data)| (*shard, data.clone())).collect());
        }
        // After a decoding that failed one more is asked at a time.
        let wanted = if self.decoded_of > 0 { 1 } else { needed.saturating_sub(self.shards.len()) };
        if self.pending < wanted.max(usize::from(self.shards.is_empty()))
            && let Some((disk, _)) = self.candidate(self.asked)
        {
            self.asked += 1;
            self.pending += 1;
            let offset = u64::from(self.blocks.start) * BLOCK_SIZE as u64;
            let to = (u64::from(self.blocks.end) * BLOCK_SIZE as u64).min(self.end);
            return Next::Ask { disk, offset, bytes: to - offset };
        }
        if self.pending > 0 {
            return Next::Pending;
        }
        let code = match self.first_problem {
            _ if self.unanswered => ErrorCode::Unavailable,
            // The first one decides what is freed.
            Some(Refused { code: ErrorCode::ChunkDeleted, .. }) => ErrorCode::ChunkDeleted,
            _ => ErrorCode::ChecksumMismatch,
        };
        Next::Lacking(Refused::because(code))
    }

    /// A member answered.
    pub fn came(&mut self, disk: DiskId, outcome: Result<(Data<P>, Epoch), Refused>) {
        self.pending -= 1;
        let shard = (0..self.asked).filter_map(|turn| self.candidate(turn)).find(|(of, _)| *of == disk);
        let shard = shard.and_then(|(_, shard)| shard);
        match outcome {
            Ok((data, _)) => {
                let fits = data.crcs.len() == self.blocks.len();
                match shard {
                    Some(shard) if fits => drop(self.shards.insert(shard, data)),
                    None if fits && self.wanted.as_ref().is_none_or(|wanted| *wanted == data.crcs) => {
                        self.found = Some(data);
                    }
                    _ => self.note(Refused::because(ErrorCode::ChecksumMismatch)),
                }
            }
            Err(refused) => self.note(refused),
        }
    }

    /// What was asked for was decoded, or could not be proven.
    pub fn decoded(&mut self, outcome: Result<Data<P>, Refused>) {
        self.pending -= 1;
        match outcome {
            Ok(data) => self.found = Some(data),
            Err(refused) => self.note(refused),
        }
    }

    fn note(&mut self, refused: Refused) {
        self.unanswered |= !refused.is_about_bytes();
        self.first_problem.get_or_insert(refused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(crcs: &[u32]) -> Data<()> {
        Data { crcs: crcs.to_vec(), bytes: Some(()) }
    }

    /// A block that is bad on the first source would be taken, or not looked for elsewhere.
    #[test]
    fn copies_are_asked_one_after_the_other() {
        let source = Source::Copy(vec![DiskId(1), DiskId(2), DiskId(3)]);
        let mut hunt = Hunt::new(source, 2..4, 4 * 4096 - 96, Some(vec![7, 8]));
        assert_eq!(hunt.go_on(), Next::Ask { disk: DiskId(1), offset: 8192, bytes: 8192 - 96 });
        assert_eq!(hunt.go_on(), Next::Pending);
        hunt.came(DiskId(1), Ok((data(&[7, 9]), Epoch(1))));
        assert!(matches!(hunt.go_on(), Next::Ask { disk: DiskId(2), .. }));
        hunt.came(DiskId(2), Err(Refused::because(ErrorCode::Unavailable)));
        assert!(matches!(hunt.go_on(), Next::Ask { disk: DiskId(3), .. }));
        hunt.came(DiskId(3), Ok((data(&[7, 8]), Epoch(1))));
        assert_eq!(hunt.go_on(), Next::Found(data(&[7, 8])));
        let mut hunt: Hunt<()> = Hunt::new(Source::Copy(vec![DiskId(1)]), 0..1, 4096, Some(vec![7]));
        assert!(matches!(hunt.go_on(), Next::Ask { .. }));
        hunt.came(DiskId(1), Err(Refused::because(ErrorCode::Missing)));
        assert_eq!(hunt.go_on(), Next::Lacking(Refused::because(ErrorCode::ChecksumMismatch)));
    }

    /// A shard would be given up although k of the others are good, or be made of bad ones.
    #[test]
    fn shards_are_made_of_k_that_can_be_proven() {
        let shards = vec![(DiskId(1), 0), (DiskId(3), 2), (DiskId(4), 3)];
        let mut hunt = Hunt::new(Source::Leaver { disk: DiskId(2), k: 2, shards }, 0..1, 4096, None);
        assert!(matches!(hunt.go_on(), Next::Ask { disk: DiskId(2), .. }));
        hunt.came(DiskId(2), Err(Refused::because(ErrorCode::ChecksumMismatch)));
        assert!(matches!(hunt.go_on(), Next::Ask { disk: DiskId(1), .. }));
        assert!(matches!(hunt.go_on(), Next::Ask { disk: DiskId(3), .. }));
        assert_eq!(hunt.go_on(), Next::Pending);
        hunt.came(DiskId(3), Ok((data(&[3]), Epoch(1))));
        hunt.came(DiskId(1), Ok((data(&[1]), Epoch(1))));
        assert_eq!(hunt.go_on(), Next::Decode(vec![(0, data(&[1])), (2, data(&[3]))]));
        hunt.decoded(Err(Refused::because(ErrorCode::ChecksumMismatch)));
        assert!(matches!(hunt.go_on(), Next::Ask { disk: DiskId(4), .. }));
        hunt.came(DiskId(4), Ok((data(&[4]), Epoch(1))));
        assert!(matches!(hunt.go_on(), Next::Decode(of) if of.len() == 3));
        hunt.decoded(Ok(data(&[2])));
        assert_eq!(hunt.go_on(), Next::Found(data(&[2])));
    }
}
