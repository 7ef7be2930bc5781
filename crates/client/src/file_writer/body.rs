//! The bytes of a file on their way into chunks, by its layout: whole rows striped, the rest in replicated chunks. The
//! end of a file that has striped rows is cut into rows of the smallest unit first: m + 1 copies of half a row would
//! take more space than all its parity.
//!
//! What is pushed is gathered into parts: a row group of an erasure layout, a segment of a replicated one. The last
//! part is held back, because it asks for the sync. Memory: one part, and what the streams' windows hold.
use super::places::{Places, Placing};
use crate::append::part::{Bytes, Part, Placed, Show};
use crate::append::retry::Retry;
use crate::append::segment::{SEGMENT_MAX, block_crcs};
use crate::append::shape::{Shape, round_bytes};
use crate::append::stream::{WriteStream, start};
use crate::append::target::Target;
use crate::discard::send::Remains;
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use crate::stripe::group::{Gather, rows_of_group, take_round};
use crate::volatile::Shown;
use cairn_env::buf::{AlignedBuf, SharedBuf};
use cairn_types::layout::STRIPE_UNIT_MIN;
use cairn_types::{BLOCK_SIZE, ErrorCode, Layout, SessionId, Stripe};
use std::sync::{Arc, OnceLock};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// More rounds of a stripe set than a window holds: of those before them it is known whether they were stored.
const ROUNDS_MAX: usize = 16;

/// Writes parts of one file.
pub(crate) struct Body {
    volume: Volume,
    layout: Layout,
    /// Whose chunks all of it lies in.
    pub(crate) session: SessionId,
    plain: Option<WriteStream>,
    /// Streams that have some of it, and more of which it goes to others: their last parts ask for no sync.
    behind: Vec<WriteStream>,
    striped: Option<(Stripe, WriteStream)>,
    /// Of stripe sets, which no other file shares.
    set: Option<WriteStream>,
    gather: Gather,
    /// File offset of the first gathered byte.
    written: u64,
    pub(crate) places: Places,
    /// Parts that are told of when all members have them in memory, if they are to be; else nobody hears of them before
    /// they are durable.
    pub(crate) shown: Option<Vec<Shown>>,
    /// File without a name to let go of when the writer is dropped.
    pub(crate) unnamed: Option<u64>,
}

impl Body {
    pub(crate) async fn new(volume: &Volume, layout: Layout) -> Result<Body> {
        let session = volume.caller.writer_session().await?.id;
        Ok(Body {
            volume: volume.clone(),
            layout,
            session,
            plain: None,
            behind: Vec::new(),
            striped: None,
            set: None,
            gather: Gather::default(),
            written: 0,
            places: Places::default(),
            shown: None,
            unnamed: None,
        })
    }
    /// The stripe of an erasure layout, where rows may begin: chunk offsets are congruent to the file's.
    fn rows(&self) -> Option<Stripe> {
        let striped = !self.layout.scheme().is_replicated() && self.written.is_multiple_of(BLOCK_SIZE as u64);
        self.layout.stripe().filter(|_| striped)
    }
    /// Rows of the smallest unit, for the end of what has larger ones. (A small file has none: it is read from one
    /// disk.)
    fn small_rows(&self) -> Option<Stripe> {
        let stripe = self.rows().filter(|_| self.striped.is_some())?;
        Stripe::new(stripe.columns(), STRIPE_UNIT_MIN).filter(|small| *small != stripe)
    }
    /// The stripe of a layout of stripe sets.
    fn units(&self) -> Option<Stripe> {
        let striped = self.layout.scheme().is_replicated() && self.written.is_multiple_of(BLOCK_SIZE as u64);
        self.layout.stripe().filter(|_| striped)
    }
    /// Bytes so far.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.gather.len() as u64
    }
    /// Goes on at another place of the file. What was gathered has to be flushed before.
    pub(crate) fn seek(&mut self, offset: u64) {
        assert!(self.gather.len() == 0, "gathered bytes belong before the seek");
        self.written = offset;
    }

    /// Takes the next bytes; buffers of [`SEGMENT_MAX`] are never copied.
    pub(crate) async fn push(&mut self, data: SharedBuf) -> Result<()> {
        self.gather.push(data);
        match self.rows() {
            Some(stripe) => {
                let rows = rows_of_group(stripe);
                // The last rows of a file have to be in the flush, or nobody asks for their sync.
                while self.gather.len() as u64 >= (rows + 1) * stripe.row() {
                    self.send_rows(stripe, rows, false).await?;
                }
            }
            None if self.units().is_some() => {
                while self.units().is_some_and(|stripe| self.gather.len() > round_bytes(stripe)) {
                    self.send_units(false).await?;
                }
            }
            None => {
                // In a striped layout this is the part up to the first whole block. What follows goes to other chunks,
                // so this may be the last one here, and nobody else would ask for its sync.
                let alone = self.layout.stripe().is_some();
                while self.gather.len() > SEGMENT_MAX {
                    self.send_plain(alone).await?;
                }
            }
        }
        Ok(())
    }
    /// Sends what was gathered; it becomes durable soon.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        if let Some(stripe) = self.rows() {
            let rows = self.gather.len() as u64 / stripe.row();
            if rows > 0 {
                self.send_rows(stripe, rows, true).await?;
            }
        }
        if let Some(small) = self.small_rows() {
            loop {
                let rows = (self.gather.len() as u64 / small.row()).min(rows_of_group(small));
                if rows == 0 {
                    break;
                }
                self.send_rows(small, rows, true).await?;
            }
        }
        // What is shorter than a unit is not worth a set of its own.
        let set = self.units().filter(|stripe| self.set.is_some() || self.gather.len() as u64 >= stripe.unit());
        if set.is_some() {
            while self.gather.len() > 0 {
                self.send_units(true).await?;
            }
            return self.finish_set().await;
        }
        while self.gather.len() > 0 {
            self.send_plain(true).await?;
        }
        self.sync_behind();
        Ok(())
    }
    /// Waits for the place of the first part on its way.
    pub(crate) async fn take_place(&mut self, shown_as: &str) -> Result<()> {
        self.sync_behind();
        self.places.take_one(shown_as).await
    }
    /// What lies in other columns than the last part becomes durable soon, unless it is shown: then somebody asks.
    fn sync_behind(&mut self) {
        let behind = std::mem::take(&mut self.behind);
        if self.shown.is_none() {
            behind.iter().for_each(WriteStream::sync_now);
        }
    }

    async fn send_units(&mut self, last: bool) -> Result<()> {
        let Some(stripe) = self.units() else { return Ok(()) };
        let stream = match &self.set {
            Some(stream) => stream.clone(),
            None => {
                let (volume, class, session) = (self.volume.id(), self.layout.pg_class(), self.session);
                let target = Target { volume, class, session };
                self.set.insert(start(self.volume.cluster().clone(), target, Shape::Units(stripe))?).clone()
            }
        };
        let permit = stream.reserve(self.gather.len().min(round_bytes(stripe))).await?;
        let units = take_round(&mut self.gather, stripe);
        self.send_striped(&stream, units, last, permit).await?;
        while self.places.awaited() > ROUNDS_MAX {
            self.places.take_one("file").await?;
        }
        Ok(())
    }
    /// What follows goes to another set. Whoever is interrupted, or fails, gives back what there is.
    async fn finish_set(&mut self) -> Result<()> {
        self.set = None;
        while self.places.awaited() > 0 {
            self.places.take_one("file").await?;
        }
        Ok(())
    }
    async fn send_rows(&mut self, stripe: Stripe, rows: u64, sync: bool) -> Result<()> {
        let stream = self.striped_stream(stripe).await?;
        let permit = stream.reserve((rows * stripe.row()) as usize).await?;
        let units = self.gather.take_units(rows as usize * usize::from(stripe.columns()), stripe.unit() as usize);
        self.send_striped(&stream, units, sync, permit).await
    }
    async fn send_striped(
        &mut self,
        stream: &WriteStream,
        units: Vec<SharedBuf>,
        sync: bool,
        permit: OwnedSemaphorePermit,
    ) -> Result<()> {
        let (bytes, (done, place)) = (Bytes::Units(units), oneshot::channel());
        let length = bytes.len();
        stream.push(Part { bytes, sync, done, show: None, retry: Retry::default(), _permit: permit }).await?;
        self.placing(length, place);
        Ok(())
    }

    /// Sends up to a segment that lies in one buffer. Between parts of a file it is whole blocks.
    async fn send_plain(&mut self, sync: bool) -> Result<()> {
        let lead = (self.written % BLOCK_SIZE as u64) as usize;
        let Some(data) = self.gather.take_part(SEGMENT_MAX - lead) else { return Ok(()) };
        let bytes = data.len() as u64;
        let stream = self.plain_stream(lead as u64 + bytes).await?;
        let permit = stream.reserve(data.len()).await?;
        // A chunk offset is congruent to the file's, so a part that begins within a block has filler before it.
        let (data, lead) = with_lead(data, self.written);
        let runs = vec![(self.written, bytes, 0)];
        let place = self.send_segment(&stream, (data, lead), runs, sync, permit).await?;
        self.placing(bytes, place);
        Ok(())
    }

    /// Sends a segment, all of whose file bytes are in `runs`: file offset, length, distance from the first one in the
    /// segment. Answers where the first one will be.
    pub(crate) async fn send_segment(
        &mut self,
        stream: &WriteStream,
        (data, lead): (SharedBuf, usize),
        runs: Vec<(u64, u64, u64)>,
        sync: bool,
        permit: OwnedSemaphorePermit,
    ) -> Result<oneshot::Receiver<Result<Placed>>> {
        let (done, durable) = oneshot::channel();
        let (place, show) = match &mut self.shown {
            None => (durable, None),
            Some(shown) => {
                let (tell, place) = oneshot::channel();
                let at = Arc::new(OnceLock::new());
                shown.push(Shown { runs, at: at.clone(), durable });
                (place, Some(Show { tell: Some(tell), at }))
            }
        };
        let sync = sync && show.is_none();
        let bytes = Bytes::Segment { crcs: block_crcs(&data), data, lead };
        stream.push(Part { bytes, sync, done, show, retry: Retry::default(), _permit: permit }).await?;
        Ok(place)
    }

    fn placing(&mut self, length: u64, place: oneshot::Receiver<Result<Placed>>) {
        self.places.push(Placing { file_offset: self.written, length, place });
        self.written += length;
    }

    /// The stream for the next segment.
    async fn plain_stream(&mut self, bytes: u64) -> Result<WriteStream> {
        let class = self.layout.pg_class().short();
        let stream = match &self.plain {
            Some(stream) if class.later.is_none() => stream.clone(),
            before => self.volume.stream(class, bytes, before.as_ref()).await?,
        };
        self.check_session(stream.session)?;
        if let Some(before) = self.plain.replace(stream.clone())
            && !before.is_same(&stream)
            && !self.behind.iter().any(|known| known.is_same(&before))
        {
            self.behind.push(before);
        }
        Ok(stream)
    }
    async fn striped_stream(&mut self, stripe: Stripe) -> Result<WriteStream> {
        let stream = match &self.striped {
            Some((present, stream)) if *present == stripe => stream.clone(),
            _ => self.volume.striped_stream(self.layout.scheme(), stripe).await?,
        };
        self.check_session(stream.session)?;
        Ok(self.striped.insert((stripe, stream)).1.clone())
    }

    /// What an ended session wrote may be collected as garbage, so another session never publishes it. The partition
    /// refuses it as well; this only tells it before more is written.
    fn check_session(&self, now: SessionId) -> Result<()> {
        if now == self.session {
            return Ok(());
        }
        let text =
            "the session that wrote the file ended before it was complete; nothing was made visible, write it again";
        Err(ClientError::remote("file", ErrorCode::WrongSession, text))
    }
    /// The session that wrote it is still the volume's.
    pub(crate) async fn check_current_session(&self) -> Result<()> {
        self.check_session(self.volume.caller.session().await?.id)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let places = std::mem::take(&mut self.places);
        if places.is_empty() && self.unnamed.is_none() {
            return;
        }
        let remains = Remains { session: self.session, places, unnamed: self.unnamed.take() };
        self.volume.discard_later(remains);
    }
}

/// `data` for a file offset within a block gets filler up to it.
fn with_lead(data: SharedBuf, file_offset: u64) -> (SharedBuf, usize) {
    let lead = (file_offset % BLOCK_SIZE as u64) as usize;
    if lead == 0 {
        return (data, 0);
    }
    let mut moved = AlignedBuf::unpooled(lead + data.len());
    moved.resize(lead);
    moved.extend_from_slice(&data);
    (moved.freeze(), lead)
}
