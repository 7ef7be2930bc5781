//! Writing runs of a file to new space: long ones by the file's layout, short ones many at a time.
//!
//! Short runs of a file are laid into common segments, each from a block of its own on, so that thousands of scattered
//! writes cost few requests and one sync. Invariant: filler between them is never named by an extent.
use super::dirty::Run;
use super::tail::first_row;
use crate::append::SEGMENT_MAX;
use crate::append::part::Placed;
use crate::error::{ClientError, Result};
use crate::file_writer::body::Body;
use crate::file_writer::places::Placing;
use crate::meta::volume::Volume;
use cairn_env::buf::{AlignedBuf, SharedBuf};
use cairn_types::{BLOCK_SIZE, Layout, Stripe};
use tokio::sync::oneshot;

/// Runs shorter than this go into common segments.
const SHORT: u64 = 256 << 10;

/// Rows of an erasure layout.
pub(crate) fn rows_of(layout: Layout) -> Option<Stripe> {
    layout.stripe().filter(|_| !layout.scheme().is_replicated())
}

/// Whether a range is long enough for what the layout does with long runs.
fn is_short(layout: Layout, from: u64, to: u64) -> bool {
    let rows = match layout.stripe() {
        Some(stripe) if rows_of(layout).is_some() => first_row(stripe, from, to).is_none(),
        Some(stripe) => to - from < stripe.unit(),
        None => true,
    };
    rows && to - from < SHORT
}

/// Whether all of a range goes to replicated chunks, whose members can be asked what they have.
pub(crate) fn is_replicated(layout: Layout, from: u64, to: u64) -> bool {
    layout.stripe().is_none() || is_short(layout, from, to)
}

/// A segment that is being filled.
struct Vector {
    data: AlignedBuf,
    /// File offset, length, and where in the segment.
    runs: Vec<(u64, u64, u64)>,
}

impl Vector {
    fn new(bytes: usize) -> Self {
        Self { data: AlignedBuf::unpooled(bytes.min(SEGMENT_MAX)), runs: Vec::new() }
    }
    /// Where a run would begin.
    fn place(&self, run: &Run) -> usize {
        self.data.len().next_multiple_of(BLOCK_SIZE) + (run.offset % BLOCK_SIZE as u64) as usize
    }
    fn has_room(&self, run: &Run) -> bool {
        self.place(run) + run.len() as usize <= self.data.capacity()
    }
    fn push(&mut self, run: &Run) {
        let at = self.place(run);
        self.data.resize(at);
        run.parts.iter().for_each(|part| self.data.extend_from_slice(part));
        self.runs.push((run.offset, run.len(), at as u64));
    }
}

/// Starts writing them. The body's places are known when all is durable on every serving member, or with `show` when
/// all is in their memory.
pub(crate) async fn write_runs(volume: &Volume, layout: Layout, runs: &[Run], show: bool) -> Result<Body> {
    let mut body = Body::new(volume, layout).await?;
    body.shown = show.then(Vec::new);
    let (short, long): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(|run| is_short(layout, run.offset, run.end()));
    for run in long {
        write_long(&mut body, layout, run).await?;
    }
    let mut left: usize = short.iter().map(|run| (run.len() as usize + BLOCK_SIZE).next_multiple_of(BLOCK_SIZE)).sum();
    let mut vector = Vector::new(left);
    let count = short.len();
    for (i, run) in short.into_iter().enumerate() {
        if let ([part], 1) = (&run.parts[..], count)
            && run.offset % BLOCK_SIZE as u64 == 0
        {
            let placed = vec![(run.offset, run.len(), 0)];
            send(volume, layout, &mut body, part.clone(), placed).await?;
            return Ok(body);
        }
        if !vector.has_room(run) {
            let full = std::mem::replace(&mut vector, Vector::new(left));
            send(volume, layout, &mut body, full.data.freeze(), full.runs).await?;
        }
        vector.push(run);
        left -= (run.len() as usize + BLOCK_SIZE).next_multiple_of(BLOCK_SIZE).min(left);
        if i + 1 == count {
            let last = std::mem::replace(&mut vector, Vector::new(0));
            send(volume, layout, &mut body, last.data.freeze(), last.runs).await?;
        }
    }
    Ok(body)
}

async fn write_long(body: &mut Body, layout: Layout, run: &Run) -> Result<()> {
    // Bytes before the first row, or before the first block, go apart.
    let cut = rows_of(layout).and_then(|stripe| first_row(stripe, run.offset, run.end()));
    let mut head = cut.map_or(0, |row| row - run.offset) as usize;
    body.seek(run.offset);
    for part in &run.parts {
        let mut data = part.clone();
        while !data.is_empty() {
            let most = if head > 0 { head.min(SEGMENT_MAX) } else { SEGMENT_MAX };
            let next = data.split_to(data.len().min(most));
            let whole = next.len();
            body.push(next).await?;
            if head > 0 {
                head -= whole;
                if head == 0 {
                    body.flush().await?;
                }
            }
        }
    }
    body.flush().await
}

/// Sends a segment; `runs` say what of it lies where in the file.
async fn send(
    volume: &Volume,
    layout: Layout,
    body: &mut Body,
    data: SharedBuf,
    runs: Vec<(u64, u64, u64)>,
) -> Result<()> {
    let Some(first) = runs.first().map(|run| run.2) else { return Ok(()) };
    let stream = volume.stream(layout.pg_class().short(), data.len() as u64, None).await?;
    if stream.session != body.session {
        // Another one was opened meanwhile; whoever publishes finds out and writes all of it again.
        body.check_current_session().await?;
    }
    let permit = stream.reserve(data.len()).await?;
    let within = runs.iter().map(|(offset, length, at)| (*offset, *length, at - first)).collect();
    let place = body.send_segment(&stream, (data, first as usize), within, true, permit).await?;
    if let [(file_offset, length, _)] = runs[..] {
        body.places.push(Placing { file_offset, length, place });
        return Ok(());
    }
    let mut tell = Vec::with_capacity(runs.len());
    for (file_offset, length, at) in runs {
        let (done, place) = oneshot::channel::<Result<Placed>>();
        body.places.push(Placing { file_offset, length, place });
        tell.push((done, at - first));
    }
    tokio::spawn(async move {
        let placed =
            place.await.unwrap_or_else(|_| Err(ClientError::protocol("file", "the stream that wrote it ended")));
        for (done, behind) in tell {
            let own = placed.clone().map(|placed| Placed { offset: placed.offset + behind, ..placed });
            // A writer that was dropped no longer asks.
            let _gone = done.send(own);
        }
    });
    Ok(())
}
