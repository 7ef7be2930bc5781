//! The pieces that a chunk's job moves, one after the other, and where it looks for blocks that a source lacks.
use super::{ChunkJob, Moves, Moving, Phase, Piece, Progress, failed, pieces_of, same_kind, span};
use crate::member_op::{Came, MemberDone, MemberOp, OwnOp};
use crate::message::{Data, Refused, Run};
use crate::reconcile::How;
use crate::roster::Roster;
use crate::source::{Hunt, Next, Source};
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_types::{DiskId, ErrorCode};
use std::collections::VecDeque;
use std::ops::Range;

impl<P: Clone> ChunkJob<P> {
    /// The next piece.
    pub(super) fn move_on(&mut self, roster: &Roster, mut moving: Moving<P>) -> Progress<P> {
        let Some(piece) = moving.pieces.pop_front() else {
            if let Moves::Mend(_) = moving.how {
                // What is to be sent was bad here and is good now: from the beginning.
                return failed(Refused::because(ErrorCode::ChecksumMismatch));
            }
            return self.next_step(roster);
        };
        let target = moving.target;
        let op = match &piece {
            Piece::Replace(blocks) | Piece::Append(blocks) => {
                if blocks.len() as u32 > self.piece_blocks {
                    let pieces: Vec<Range<u32>> = pieces_of(blocks, self.piece_blocks).collect();
                    let again = |blocks| same_kind(&piece, blocks);
                    pieces.into_iter().rev().map(again).for_each(|piece| moving.pieces.push_front(piece));
                    return self.move_on(roster, moving);
                }
                return self.look_for(roster, moving, piece.clone(), blocks.clone());
            }
            Piece::Begin(block, _) => {
                let blocks = *block..*block + 1;
                return self.look_for(roster, moving, piece, blocks);
            }
            Piece::Fill(blocks) => {
                let (offset, bytes) = span(blocks, moving.end);
                let crcs = match &moving.crcs {
                    Some(crcs) => crcs[blocks.start as usize..blocks.end as usize].to_vec(),
                    None => vec![0; blocks.len()],
                };
                MemberOp::Write { offset, bytes, data: Data { crcs, bytes: None } }
            }
            Piece::Free(runs) => MemberOp::Free(runs.clone()),
            Piece::Sync => MemberOp::Own(OwnOp::Sync),
            Piece::Seal => MemberOp::Seal,
            Piece::InStep(number) => MemberOp::Own(OwnOp::InStep { number: *number }),
        };
        if let (Piece::Fill(blocks), Moves::Extend) = (&piece, moving.how) {
            // Freed at once: others behind them may be in use.
            moving.pieces.push_front(Piece::Free(vec![blocks.clone()]));
        }
        self.phase = Phase::Moving(moving);
        Progress::Calls(vec![(target, op)])
    }

    fn look_for(&mut self, roster: &Roster, mut moving: Moving<P>, piece: Piece, blocks: Range<u32>) -> Progress<P> {
        let wanted = match &moving.how {
            Moves::Mend(_) => None,
            _ => moving.crcs.as_ref().map(|crcs| crcs[blocks.start as usize..blocks.end as usize].to_vec()),
        };
        moving.hunt = Some((piece, Hunt::new(moving.source.clone(), blocks, moving.end, wanted)));
        self.hunt_on(roster, moving)
    }

    fn hunt_on(&mut self, roster: &Roster, mut moving: Moving<P>) -> Progress<P> {
        let mut calls = Vec::new();
        let made = self.made.0;
        loop {
            let Some((_, hunt)) = moving.hunt.as_mut() else { return failed(Refused::because(ErrorCode::Internal)) };
            match hunt.go_on() {
                Next::Ask { disk, offset, bytes } => {
                    let last_resort = !roster.serves(disk);
                    calls.push((disk, MemberOp::Read { offset, bytes, made, last_resort }));
                }
                Next::Decode(shards) => {
                    let op = OwnOp::Decode { shards, shard: roster.shard(), blocks: hunt.blocks.clone() };
                    calls.push((roster.me, MemberOp::Own(op)));
                }
                Next::Pending => {
                    self.phase = Phase::Moving(moving);
                    return if calls.is_empty() { Progress::Pending } else { Progress::Calls(calls) };
                }
                Next::Found(data) => return self.found(moving, data),
                Next::Lacking(refused) => return self.lacking(roster, moving, refused),
            }
        }
    }

    /// Bytes of a piece: they are written.
    fn found(&mut self, mut moving: Moving<P>, data: Data<P>) -> Progress<P> {
        let Some((piece, hunt)) = moving.hunt.take() else { return failed(Refused::because(ErrorCode::Internal)) };
        let (offset, bytes) = span(&hunt.blocks, moving.end);
        let block = hunt.blocks.start;
        let op = match (&piece, moving.how) {
            (Piece::Begin(_, known), Moves::Level(_, as_of)) => {
                MemberOp::Own(OwnOp::Begin { block, data, known: *known, as_of })
            }
            (Piece::Replace(_), Moves::Level(How::Copy, as_of)) => MemberOp::Own(OwnOp::Replace { block, data, as_of }),
            (Piece::Replace(_), Moves::Level(How::Later(number) | How::Equal(number), _) | Moves::Mend(number)) => {
                MemberOp::Number { number, runs: vec![Run { block, data }] }
            }
            _ => MemberOp::Write { offset, bytes, data },
        };
        let target = moving.target;
        self.phase = Phase::Moving(moving);
        Progress::Calls(vec![(target, op)])
    }

    /// Nobody has a piece good.
    fn lacking(&mut self, roster: &Roster, mut moving: Moving<P>, refused: Refused) -> Progress<P> {
        let Some((piece, hunt)) = moving.hunt.take() else { return failed(Refused::because(ErrorCode::Internal)) };
        let freed = refused.code == ErrorCode::ChunkDeleted;
        match (moving.how, &piece) {
            (Moves::Extend, Piece::Append(_)) if freed => {
                let Some(first) = moving.source.first() else { return failed(refused) };
                self.phase = Phase::ExtendTable(moving, piece);
                Progress::Calls(vec![(first, MemberOp::Table)])
            }
            _ if hunt.blocks.len() > 1 && !freed => {
                let singles: Vec<Range<u32>> = pieces_of(&hunt.blocks, 1).collect();
                let again = |blocks| same_kind(&piece, blocks);
                singles.into_iter().rev().map(again).for_each(|piece| moving.pieces.push_front(piece));
                self.move_on(roster, moving)
            }
            // The end cannot be verified: it ends before.
            (Moves::Extend, _) if refused.is_about_bytes() => self.next_step(roster),
            // The earlier one stays.
            (Moves::Level(How::Later(_), _), _) if refused.is_about_bytes() => self.move_on(roster, moving),
            (Moves::Level(How::Equal(_), _), Piece::Replace(_)) if refused.code == ErrorCode::ChecksumMismatch => {
                // Bad here, and to be sent to others: what another one who serves has is taken.
                let number = self.own(roster).map_or(OverwriteNumber::NONE, |own| own.number);
                let mend = Moving {
                    source: Source::Copy(roster.others().collect()),
                    target: roster.me,
                    how: Moves::Mend(number),
                    crcs: None,
                    end: moving.end,
                    pieces: VecDeque::from([piece]),
                    hunt: None,
                };
                self.move_on(roster, mend)
            }
            _ => failed(refused),
        }
    }

    pub(super) fn moved(&mut self, roster: &Roster, mut moving: Moving<P>, from: DiskId, came: Came<P>) -> Progress<P> {
        if let Some((_, hunt)) = moving.hunt.as_mut() {
            match came {
                Ok(MemberDone::Data(data)) if from == roster.me && matches!(moving.how, Moves::Rebuild) => {
                    hunt.decoded(Ok(data));
                }
                Err(refused) if from == roster.me && matches!(moving.how, Moves::Rebuild) => {
                    hunt.decoded(Err(refused));
                }
                Ok(MemberDone::Data(data)) => hunt.came(from, Ok((data, self.made.0))),
                Ok(_) => hunt.came(from, Err(Refused::because(ErrorCode::Internal))),
                Err(refused) => hunt.came(from, Err(refused)),
            }
            return self.hunt_on(roster, moving);
        }
        match came {
            Ok(MemberDone::Is(is)) => {
                self.same &= is;
                self.move_on(roster, moving)
            }
            Ok(_) => self.move_on(roster, moving),
            // Freed just now: nobody asks for them.
            Err(refused) if refused.code == ErrorCode::ChunkDeleted || self.may_be_gone(&refused) => {
                self.same = false;
                self.move_on(roster, moving)
            }
            Err(refused) => failed(refused),
        }
    }
}
