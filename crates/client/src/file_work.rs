//! Work on files for which leaders of meta partitions ask data nodes: [`FileWork`] as it comes in, [`FileWorkDone`] as
//! it is answered. The work itself is done by volumes.
use crate::defragment::{Defragmented, FragmentRules};
use crate::record::TendedAppend;
use crate::stage::{EncodeOutcome, EncodedPart};
use cairn_rpc::{Payload, Reply, Request};
use cairn_types::{ErrorCode, VolumeId};
use cairn_wire::Opcode;
use cairn_wire::data::{
    CompactRequest, CompactResponse, DefragmentRequest, DefragmentResponse, EncodeRequest, EncodeResponse,
    TendAppendRequest, TendAppendResponse,
};
use cairn_wire::error::WireError;
use std::collections::BTreeSet;

/// Parts of files that are to be encoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToEncode {
    /// Of a file, from an offset on.
    Part { inode: u64, from: u64 },
    /// What these files have in stripe groups whose core rack is this node's, as shards where it lies; with rests.
    Together { inodes: Vec<u64>, gently: bool },
}

/// What is to be done in a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileWork {
    /// What files have in chunks (group, index) is moved elsewhere. Files, and where extents in them begin, ascending.
    MoveOut {
        chunks: BTreeSet<(u32, u32)>,
        places: Vec<(u64, Vec<u64>)>,
    },
    /// What files have in these chunks of whole shards of a group becomes a new one.
    MakeDense {
        pg: u32,
        indices: BTreeSet<u32>,
        inodes: Vec<u64>,
    },
    /// What is fragmented in a file from an offset on is written anew.
    Defragment {
        inode: u64,
        from: u64,
        rules: FragmentRules,
    },
    /// A file's open append is looked at, and closed if it is `idle`.
    TendAppend {
        inode: u64,
        number: u64,
        idle: bool,
    },
    Encode(ToEncode),
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileWorkDone {
    /// Files of which something was moved, files that were left, and bytes.
    MovedOut {
        moved: u32,
        kept: u32,
        moved_bytes: u64,
    },
    Defragmented(Defragmented),
    Tended(TendedAppend),
    /// `reason`: of what was left.
    Encoded {
        part: EncodedPart,
        reason: String,
    },
}

/// Whom to answer.
pub struct FileWorkReply(Reply);

/// A request that came in: the volume's number, and what is to be done there.
pub struct FileWorkRequest {
    pub volume: u32,
    pub work: FileWork,
    pub reply: FileWorkReply,
}

fn move_out(request: &CompactRequest) -> FileWork {
    let (pairs, _) = request.places.as_chunks::<2>();
    let of_file = |file: &[[u64; 2]]| (file[0][0], file.iter().map(|place| place[1]).collect());
    FileWork::MoveOut {
        chunks: request.chunks.iter().map(|chunk| (chunk.pg, chunk.index)).collect(),
        places: pairs.chunk_by(|a, b| a[0] == b[0]).map(of_file).collect(),
    }
}

fn make_dense(request: &CompactRequest) -> FileWork {
    let pg = request.chunks.first().map_or(0, |chunk| chunk.pg);
    let indices = request.chunks.iter().filter(|chunk| chunk.pg == pg).map(|chunk| chunk.index).collect();
    let (pairs, _) = request.places.as_chunks::<2>();
    FileWork::MakeDense { pg, indices, inodes: pairs.iter().map(|[inode, _]| *inode).collect() }
}

fn decoded(request: &Request<'_>) -> Result<(u32, FileWork), WireError> {
    Ok(match Opcode::from_code(request.opcode) {
        Some(Opcode::Compact) => {
            let asked: CompactRequest = request.decode()?;
            (asked.volume, if asked.whole_shards { make_dense(&asked) } else { move_out(&asked) })
        }
        Some(Opcode::Defragment) => {
            let DefragmentRequest { volume, inode, from, extent_bytes } = request.decode()?;
            (volume, FileWork::Defragment { inode, from, rules: FragmentRules { extent_bytes } })
        }
        Some(Opcode::TendAppend) => {
            let TendAppendRequest { volume, inode, number, idle } = request.decode()?;
            (volume, FileWork::TendAppend { inode, number, idle })
        }
        Some(Opcode::Encode) => {
            let EncodeRequest { volume, inode, from, together, gently } = request.decode()?;
            let what = match together.is_empty() {
                true => ToEncode::Part { inode, from },
                false => ToEncode::Together { inodes: together, gently },
            };
            (volume, FileWork::Encode(what))
        }
        _ => {
            let text = format!("operation {:#06x} is none of a data node's", request.opcode);
            return Err(WireError::new(ErrorCode::UnknownOperation, text));
        }
    })
}

impl FileWorkRequest {
    /// `None`: it makes no sense, or who asks has no partition of the volume, and was refused.
    pub fn decode(request: &Request<'_>, reply: Reply) -> Option<FileWorkRequest> {
        let judged = decoded(request).and_then(|(volume, work)| {
            request.peer.must_serve(VolumeId(volume))?;
            Ok((volume, work))
        });
        match judged {
            Ok((volume, work)) => Some(FileWorkRequest { volume, work, reply: FileWorkReply(reply) }),
            Err(error) => {
                reply.err(error);
                None
            }
        }
    }
}

fn encoded(part: &EncodedPart) -> EncodeResponse {
    let (outcome, next) = match part.outcome {
        EncodeOutcome::NotWaiting => (0, 0),
        EncodeOutcome::More(next) => (1, next),
        EncodeOutcome::Done => (2, 0),
        EncodeOutcome::Kept => (3, 0),
        EncodeOutcome::Left | EncodeOutcome::Shared => (4, 0),
    };
    EncodeResponse {
        next,
        outcome,
        moved_bytes: part.moved,
        freed_bytes: part.freed,
        reason: String::new(),
        encoded_files: part.files,
        rested_ms: u64::try_from(part.rested.as_millis()).unwrap_or(u64::MAX),
    }
}

impl FileWorkReply {
    pub fn done(self, done: FileWorkDone) {
        let Self(reply) = self;
        match done {
            FileWorkDone::MovedOut { moved, kept, moved_bytes } => {
                reply.ok(&CompactResponse { moved_bytes, moved, kept }, Payload::None);
            }
            FileWorkDone::Defragmented(Defragmented { next, moved, kept }) => {
                let (next, done) = (next.unwrap_or(0), next.is_none());
                reply.ok(&DefragmentResponse { next, done, moved_bytes: moved, kept }, Payload::None);
            }
            FileWorkDone::Tended(TendedAppend { closed, published }) => {
                reply.ok(&TendAppendResponse { closed, published }, Payload::None);
            }
            FileWorkDone::Encoded { part, reason } => {
                reply.ok(&EncodeResponse { reason, ..encoded(&part) }, Payload::None);
            }
        }
    }
    /// It may be asked for again, later or elsewhere.
    pub fn unavailable(self, text: String) {
        self.0.err(WireError::new(ErrorCode::Unavailable, text));
    }
    pub fn overloaded(self, text: &str) {
        self.0.err(WireError::new(ErrorCode::Overloaded, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::data::CompactChunk;

    /// Extents of one file would be looked for in another.
    #[test]
    fn places_go_to_their_files() {
        let chunks = vec![CompactChunk { pg: 1, index: 2 }];
        let asked = CompactRequest { volume: 1, chunks, places: vec![5, 0, 5, 4096, 6, 8192, 7], ..Default::default() };
        let places = vec![(5, vec![0, 4096]), (6, vec![8192])];
        assert_eq!(move_out(&asked), FileWork::MoveOut { chunks: [(1, 2)].into(), places });
    }

    /// The partition's leader would go on with a file that is done, or never again with one that was left.
    #[test]
    fn outcomes_have_their_codes() {
        let code = |outcome| encoded(&EncodedPart::nothing(outcome)).outcome;
        use EncodeOutcome as E;
        let codes =
            [code(E::NotWaiting), code(E::More(7)), code(E::Done), code(E::Kept), code(E::Left), code(E::Shared)];
        assert_eq!(codes, [0, 1, 2, 3, 4, 4]);
        assert_eq!(encoded(&EncodedPart::nothing(E::More(7))).next, 7);
    }
}
