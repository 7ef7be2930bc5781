//! Conversion of a file to another layout: its bytes are read, written anew by the layout, and the extents swapped.
//!
//! Invariants: the swap is a compare-and-set on the version that was read, so a conversion never covers a newer write;
//! what a reader sees is the same before, between and after; times that are set meanwhile stay. Memory: a reader's and
//! a writer's windows, and the new extents of one file. A file that keeps changing is tried [`TRIES`] times and then
//! left as it is. One that has the layout is written anew only if it takes much more space than it has to (`fat`).
pub(crate) mod fat;
pub(crate) mod parts;

use crate::attributes::Attributes;
use crate::changes::SetAttributes;
use crate::error::{ClientError, Result};
use crate::file_writer::body::Body;
use crate::meta::volume::{Volume, shown};
use crate::read::file_reader::FileReader;
use cairn_types::{ErrorCode, Layout};
use cairn_wire::meta::PublishRequest;
use fat::SpaceCount;
use parts::Parts;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Times that a file is read anew because it was changed meanwhile.
const TRIES: usize = 4;
/// Extents of one publish.
const PUBLISH_EXTENTS: usize = 2048;
const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;

/// What became of a file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conversion {
    /// It has the layout already, or is of a kind that has none.
    Kept,
    /// So many bytes were written anew.
    Done { bytes: u64 },
    /// It was told to stop; the file is as it was.
    Stopped,
}

/// How far the conversion of a file is, and whether it shall go on.
#[derive(Clone, Default, Debug)]
pub struct ConversionControl {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
}

impl ConversionControl {
    /// Of another file, that is told to stop together with this one.
    pub fn of_another(&self) -> ConversionControl {
        ConversionControl { stop: self.stop.clone(), written: Arc::default() }
    }
    /// Has it end soon: before it reads on, or when the file has its new contents.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
    pub(crate) fn set_written(&self, bytes: u64) {
        self.written.store(bytes, Ordering::Relaxed);
    }
    /// Bytes of the file that are written anew so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

impl Volume {
    /// Gives a file another layout, its contents included; a directory's layout is that of new entries. A file that has
    /// the layout and got fat is written anew.
    pub async fn convert(
        &self,
        inode: u64,
        shown_as: &[u8],
        layout: Layout,
        control: &ConversionControl,
    ) -> Result<Conversion> {
        let mut last = None;
        for _ in 0..TRIES {
            control.written.store(0, Ordering::Relaxed);
            if control.is_stopped() {
                return Ok(Conversion::Stopped);
            }
            let found = self.getattr(inode).await.map_err(|e| e.named(&shown(shown_as)))?;
            if !matches!(found.mode & KIND, REGULAR | DIRECTORY) {
                return Ok(Conversion::Kept);
            }
            let is_directory = found.mode & KIND == DIRECTORY;
            // It may be in another stage of it.
            let now = Layout::from_bits(found.layout).filter(|now| now.fresh() == layout);
            if let Some(now) = now
                && (is_directory || !self.is_fat(&found, shown_as, now).await?)
            {
                return Ok(Conversion::Kept);
            }
            if is_directory {
                let request = SetAttributes { layout: Some(layout.to_bits()), ..SetAttributes::default() };
                return self.setattr(inode, shown_as, request).await.map(|_| Conversion::Done { bytes: 0 });
            }
            let stays = Layout::from_bits(found.layout).filter(|_| now.is_none()).and_then(|is| is.relabelled(layout));
            let outcome = match stays {
                Some(stays) => self.relabel(&found, shown_as, stays).await,
                None => self.rewrite(&found, shown_as, now.unwrap_or(layout), control).await,
            };
            match outcome {
                Err(error) if is_race(&error) => last = Some(error),
                outcome => return outcome,
            }
        }
        Err(last.unwrap_or_else(|| ClientError::Changed { what: shown(shown_as) }))
    }

    /// Whether a file that has this layout takes much more space than it would newly written.
    async fn is_fat(&self, found: &Attributes, shown_as: &[u8], layout: Layout) -> Result<bool> {
        if found.stored_bytes == 0 || layout.scheme().is_replicated() {
            return Ok(false);
        }
        let (mut count, mut from) = (SpaceCount::new(layout), 0);
        loop {
            let page = self.extents(found.inode, from, u64::MAX - from).await.map_err(|e| e.named(&shown(shown_as)))?;
            count.push(&page.extents);
            match page.extents.last() {
                Some(last) if !page.end => from = last.file_offset + last.length,
                _ => return Ok(count.finish().is_fat()),
            }
        }
    }

    /// Its bytes are right where they are.
    async fn relabel(&self, found: &Attributes, shown_as: &[u8], layout: Layout) -> Result<Conversion> {
        let mut body = Body::new(self, layout).await?;
        self.swap(found, shown_as, layout, &mut body).await?;
        Ok(Conversion::Done { bytes: 0 })
    }

    async fn rewrite(
        &self,
        found: &Attributes,
        shown_as: &[u8],
        layout: Layout,
        control: &ConversionControl,
    ) -> Result<Conversion> {
        let shown_as_text = shown(shown_as);
        let mut reader = FileReader::new(self, *found, &shown_as_text, 0, u64::MAX).whole_holes();
        let mut body = Body::new(self, layout).await?;
        let mut parts = Parts::of(0);
        let mut bytes = 0;
        while let Some(piece) = reader.next().await? {
            // The body lets go of what it has written.
            if control.is_stopped() {
                return Ok(Conversion::Stopped);
            }
            control.written.store(bytes, Ordering::Relaxed);
            if piece.hole {
                let end = piece.offset + piece.length;
                std::mem::replace(&mut parts, Parts::of(end)).end(&mut body, &shown_as_text).await?;
                body.seek(end);
                continue;
            }
            bytes += piece.data.len() as u64;
            parts.take(&piece.data, &mut body, &shown_as_text).await?;
        }
        parts.end(&mut body, &shown_as_text).await?;
        while body.places.awaited() > 0 {
            body.places.take_one(&shown_as_text).await?;
        }
        control.written.store(bytes, Ordering::Relaxed);
        self.swap(found, shown_as, layout, &mut body).await?;
        Ok(Conversion::Done { bytes })
    }

    /// Puts the new extents in the place of the old ones. In parts if there are many: each part has the bytes that it
    /// replaces, and the file has its new layout only with the last one.
    async fn swap(&self, found: &Attributes, shown_as: &[u8], layout: Layout, body: &mut Body) -> Result<()> {
        let mut extents = std::mem::take(&mut body.places.extents);
        let mut version = found.data_version;
        // A file without contents has one part, without extents.
        loop {
            body.check_current_session().await.map_err(|e| e.named(&shown(shown_as)))?;
            let later = extents.split_off(extents.len().min(PUBLISH_EXTENTS));
            body.places.extents = std::mem::replace(&mut extents, later);
            let new_layout = if extents.is_empty() { layout.to_bits() } else { 0 };
            let written_by = body.session.0;
            let publish = async |extents, sets| {
                let (if_data_version, mtime_ns, layout) = (version, found.mtime_ns as u64, new_layout);
                let request = PublishRequest {
                    extents,
                    sets,
                    if_data_version,
                    // Servers that do not know `keep_mtime` yet take this one.
                    mtime_ns,
                    keep_mtime: true,
                    layout,
                    written_by,
                    ..Default::default()
                };
                self.publish(found.inode, shown_as, request).await
            };
            match body.places.publish(publish).await {
                Ok(_) if extents.is_empty() => return Ok(()),
                Ok(now) => version = now.data_version,
                Err(error) => {
                    // None of the rest was published either.
                    body.places.extents.append(&mut extents);
                    return Err(error);
                }
            }
        }
    }
}

/// Somebody else changed the file, or the session of the conversion ended: worth another try.
pub(crate) fn is_race(error: &ClientError) -> bool {
    matches!(error, ClientError::Changed { .. })
        || matches!(error.code(), Some(ErrorCode::Conflict | ErrorCode::WrongSession))
}
