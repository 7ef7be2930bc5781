//! Encoding of files with a later scheme (`r3>rs-6-3`): what is kept as copies is read, written anew as rows, read back
//! from the disks of all members, and only then swapped in.
//!
//! A file is worked through from front to back in parts of [`PART`] bytes; each is a move like any other (`moving`), so
//! a newer write is never covered, attributes stay, and whoever comes after a server that died goes on with what is not
//! encoded yet. At the end the file is looked through once more, and gets its new stage on top of the version in which
//! everything was right.
//!
//! Invariants: no copy is given up before [`read_back`] found all of what replaces it on the disks; a file that would
//! not take a tenth less stays copies; bytes that clones share with a file are left to them where they are most of it,
//! and it waits until they are not.
//! Memory: a part's extents, the windows of a reader and a writer. Not here: which files, and when (`meta`, `jobs`).
pub(crate) mod read_back;
mod soon;
mod together;

use crate::append::SEGMENT_MAX;
use crate::attributes::Attributes;
use crate::convert::fat::{Space, SpaceCount};
use crate::convert::{ConversionControl, is_race};
use crate::defragment::is_in_the_way;
use crate::defragment::plan::cell_of;
use crate::error::{ClientError, Result};
use crate::meta::volume::{Volume, shown};
use crate::moving::Run;
use cairn_types::{BLOCK_SIZE, EXTENT_SHARED, ErrorCode, ExtentKind, Layout, Scheme, Stage};
use cairn_wire::common::Extent;
use cairn_wire::meta::PublishRequest;
use std::time::Duration;

/// Bytes of a file that are read, written and read back together.
const PART: u64 = 64 << 20;
/// Times that a part is read because others changed it.
const TRIES: u32 = 4;
/// A file is encoded if it takes a tenth less then,
const GAIN_PART: u64 = 10;
/// and at least so much less.
const GAIN_BYTES: u64 = 64 << 10;
const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

/// What became of a file, or a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EncodeOutcome {
    /// It has no later scheme, or does not wait (any more).
    NotWaiting,
    /// There is more of it, from here on.
    More(u64),
    /// All of it is of the later scheme.
    Done,
    /// It stays copies: encoding would not save enough.
    Kept,
    /// Others share most of it, so it stays copies until they do not.
    Shared,
    /// Others were in the way, or it was told to stop; it waits on.
    Left,
}

/// What was done in one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EncodedPart {
    pub outcome: EncodeOutcome,
    /// Bytes that were written anew.
    pub moved: u64,
    /// Bytes on all disks that it takes less.
    pub freed: u64,
    /// Of several files together: those of which nothing waits any more.
    pub files: u32,
    /// Time in which others were given way.
    pub rested: Duration,
}

impl EncodedPart {
    /// Nothing was written anew.
    pub fn nothing(outcome: EncodeOutcome) -> EncodedPart {
        EncodedPart { outcome, moved: 0, freed: 0, files: 0, rested: Duration::ZERO }
    }
}

/// Which files a call is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// Those that wait.
    ByAge,
    /// Also those that were kept as copies: somebody asks.
    Now,
}

/// Whether a file of copies is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Worth {
    Enough,
    TooLittle,
    /// What others share with it stays where it is, and that is most of it.
    Shared,
}

/// A file that is worked on, as it was found.
struct Waiting {
    found: Attributes,
    stage: Stage,
    /// By which it is written anew.
    later: Layout,
    /// What does not lie in rows is kept as so many copies at present.
    copies_now: u64,
}

impl Volume {
    /// Encodes the part of a file that begins at `from`, if it waits.
    pub async fn encode_part(&self, inode: u64, from: u64) -> Result<EncodedPart> {
        self.encode_from(inode, from, Asked::ByAge).await
    }

    /// Encodes a whole file now, also one that was kept.
    pub async fn encode(&self, inode: u64, shown_as: &[u8], control: &ConversionControl) -> Result<EncodedPart> {
        let (mut from, mut sum) = (0, EncodedPart::nothing(EncodeOutcome::Left));
        loop {
            if control.is_stopped() {
                return Ok(sum);
            }
            let part = self.encode_from(inode, from, Asked::Now).await.map_err(|e| e.named(&shown(shown_as)))?;
            (sum.moved, sum.freed) = (sum.moved + part.moved, sum.freed + part.freed);
            control.set_written(sum.moved);
            match part.outcome {
                EncodeOutcome::More(next) if next > from => from = next,
                // It was written meanwhile, behind which this would run for ever.
                EncodeOutcome::More(_) => return Ok(sum),
                outcome => return Ok(EncodedPart { outcome, ..sum }),
            }
        }
    }

    async fn encode_from(&self, inode: u64, from: u64, asked: Asked) -> Result<EncodedPart> {
        let mut length = PART;
        for _ in 0..TRIES {
            match self.try_part(inode, from, length, asked).await {
                Ok(part) => return Ok(part),
                Err(error) if matches!(error.code(), Some(ErrorCode::Stale | ErrorCode::NotFound)) => {
                    return Ok(EncodedPart::nothing(EncodeOutcome::NotWaiting));
                }
                Err(error) if is_race(&error) || error.code() == Some(ErrorCode::SessionEnded) => {}
                Err(error) if is_in_the_way(&error) || error.code() == Some(ErrorCode::LeaseHeld) => break,
                Err(error) => return Err(error),
            }
            length /= 4;
        }
        Ok(EncodedPart::nothing(EncodeOutcome::Left))
    }

    async fn try_part(&self, inode: u64, from: u64, length: u64, asked: Asked) -> Result<EncodedPart> {
        let found = self.getattr(inode).await?;
        let Some(file) = waiting(found, asked) else { return Ok(EncodedPart::nothing(EncodeOutcome::NotWaiting)) };
        if found.overwriter != 0 {
            // Read after that, so that what was changed in place is encoded as it is.
            self.call_lease_back(&found).await?;
            return Err(ClientError::Changed { what: format!("inode {inode}") });
        }
        if from == 0 && !file.stage.is_encoded() {
            match self.worth(&file).await? {
                Worth::Enough => {}
                // Its stage stays: it is looked at again when its clones are gone.
                Worth::Shared => return Ok(EncodedPart::nothing(EncodeOutcome::Shared)),
                Worth::TooLittle => {
                    // It may be put together with others when its time comes: by itself only because somebody asks.
                    let waits = asked == Asked::Now && self.may_be_put_together(&file).await?;
                    if !waits && file.stage != Stage::Kept {
                        self.set_stage(&file, Stage::Kept).await?;
                    }
                    return Ok(EncodedPart::nothing(EncodeOutcome::Kept));
                }
            }
        }
        let (extents, end) = self.part_of(inode, from, length, cell_of(file.later)).await?;
        let runs = self.to_encode(&file, &extents, true);
        let mut done = EncodedPart::nothing(EncodeOutcome::More(end));
        if !runs.is_empty() {
            done.freed = file.space_of(runs.iter().flat_map(|run| &run.extents)).saved();
            done.moved = self.move_checked(&found, file.later, &runs, true).await?;
        }
        if end == u64::MAX {
            done.outcome = self.finish(inode, asked).await?;
        }
        Ok(done)
    }

    /// Gives the file its stage if nothing is left to encode.
    async fn finish(&self, inode: u64, asked: Asked) -> Result<EncodeOutcome> {
        let Some(file) = waiting(self.getattr(inode).await?, asked) else { return Ok(EncodeOutcome::NotWaiting) };
        let (mut from, mut shared) = (0, 0);
        while from != u64::MAX {
            let (extents, end) = self.part_of(inode, from, PART, cell_of(file.later)).await?;
            if !self.to_encode(&file, &extents, false).is_empty() {
                return Ok(EncodeOutcome::More(from));
            }
            let copies = |e: &&Extent| is_shared(e) && ExtentKind::from_flags(e.flags) == Some(ExtentKind::Plain);
            shared += extents.iter().filter(copies).map(|e| e.length).sum::<u64>();
            from = end;
        }
        if shared >= GAIN_BYTES {
            return Ok(EncodeOutcome::Shared);
        }
        // Refused if anything was changed since it was asked for.
        self.set_stage(&file, Stage::Encoded).await?;
        Ok(EncodeOutcome::Done)
    }

    async fn set_stage(&self, file: &Waiting, stage: Stage) -> Result<()> {
        let found = &file.found;
        let request = PublishRequest {
            if_data_version: found.data_version,
            mtime_ns: found.mtime_ns as u64,
            keep_mtime: true,
            layout: file.later.in_stage(stage).to_bits(),
            ..Default::default()
        };
        self.publish(found.inode, format!("inode {}", found.inode).as_bytes(), request).await.map(|_| ())
    }

    /// Whether a file of copies takes enough less when it is encoded.
    async fn worth(&self, file: &Waiting) -> Result<Worth> {
        let (mut count, mut from) = (file.count(), 0);
        let (mut shared, mut all) = (0, 0);
        loop {
            let page = self.extents_to_move(file.found.inode, from).await?;
            count.push(&page.extents);
            all += page.extents.iter().map(|e| e.length).sum::<u64>();
            if page.extents.iter().any(is_in_whole_shards) {
                // It was begun, and takes less already.
                return Ok(Worth::Enough);
            }
            shared += page.extents.iter().filter(|e| is_shared(e)).map(|e| e.length).sum::<u64>();
            match page.extents.last() {
                Some(last) if !page.end => from = last.file_offset + last.length,
                _ => break,
            }
        }
        let space = count.finish();
        let saved = space.saved();
        Ok(match saved >= GAIN_BYTES && saved >= space.now / GAIN_PART {
            false => Worth::TooLittle,
            true if shared > all / 2 => Worth::Shared,
            true => Worth::Enough,
        })
    }

    /// What of a part has to be written anew. `fat`: also rows that take much more than they have to.
    fn to_encode(&self, file: &Waiting, extents: &[Extent], fat: bool) -> Vec<Run> {
        let shared: u64 = extents.iter().filter(|e| is_shared(e)).map(|e| e.length).sum();
        let own: u64 = extents.iter().map(|e| e.length).sum::<u64>() - shared;
        let mostly_shared = shared > own;
        // What was encoded together with others stays where it is.
        let together = extents.iter().any(is_in_whole_shards);
        let is_fat = fat && !mostly_shared && !together && file.space_of(extents).is_fat();
        let view = self.cluster().view();
        let short = file.later.scheme().short_scheme();
        // Where the map does not say of which scheme they are it was said when they were moved.
        let scheme_of = |e: &Extent| view.pgs.get(&e.pg).map(|group| group.scheme);
        let is_other = |e: &Extent| scheme_of(e).map_or(fat, |scheme: Scheme| scheme != short);
        let (mut runs, mut open): (Vec<Run>, bool) = (Vec::new(), false);
        for extent in extents {
            let kind = ExtentKind::from_flags(extent.flags);
            let taken = match kind {
                _ if mostly_shared && is_shared(extent) => false,
                Some(ExtentKind::Plain) => true,
                Some(ExtentKind::Erasure(stripe)) => {
                    is_fat || file.later.stripe().is_some_and(|later| later.columns() != stripe.columns())
                }
                _ => false,
            };
            if taken && !(open && runs.last_mut().is_some_and(|run| run.push(*extent))) {
                let mut run = Run::default();
                run.push(*extent);
                runs.push(run);
            }
            open = taken;
        }
        runs.retain(|run| is_fat || fills_a_row(file.later, run) || run.extents.iter().any(is_other));
        runs
    }
}

/// A file that the call is about.
fn waiting(found: Attributes, asked: Asked) -> Option<Waiting> {
    let layout = Layout::from_bits(found.layout).filter(|_| found.mode & KIND == REGULAR)?;
    layout.staged()?;
    let stage = layout.stage();
    let is_asked = stage.waits() || asked == Asked::Now && stage == Stage::Kept;
    if !is_asked || found.stored_bytes == 0 {
        return None;
    }
    let later = layout.in_stage(Stage::Encoded);
    let copies_now = layout.scheme().short_scheme().members() as u64;
    Some(Waiting { found, stage, later, copies_now })
}

impl Waiting {
    fn count(&self) -> SpaceCount {
        SpaceCount::new(self.later).with_copies_now(self.copies_now)
    }
    fn space_of<'a>(&self, extents: impl IntoIterator<Item = &'a Extent>) -> Space {
        let mut count = self.count();
        count.push(&extents.into_iter().copied().collect::<Vec<_>>());
        count.finish()
    }
}

fn is_shared(extent: &Extent) -> bool {
    extent.flags & EXTENT_SHARED != 0
}

/// Whether it was encoded together with others.
fn is_in_whole_shards(extent: &Extent) -> bool {
    matches!(ExtentKind::from_flags(extent.flags), Some(ExtentKind::Erasure(stripe)) if stripe.is_whole_shards())
}

/// Whether some of it would lie in rows.
fn fills_a_row(later: Layout, run: &Run) -> bool {
    let head = if run.offset.is_multiple_of(BLOCK_SIZE as u64) { 0 } else { SEGMENT_MAX as u64 };
    later.stripe().is_some_and(|stripe| run.bytes >= head + stripe.row())
}

#[cfg(test)]
mod tests;
