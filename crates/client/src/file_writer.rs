//! A file being written: parts into write streams (`body`), then one metadata operation that makes
//! it visible.
//!
//! Invariant: nothing appears under the file's name before all of its bytes are durable. Files up to
//! [`INLINE_EXTENTS_MAX`] extents are created with their contents in one operation; larger ones grow as a file without
//! a name, which is linked at the end and vanishes with the session if the writer dies.
pub(crate) mod body;
pub(crate) mod places;

use crate::append::SEGMENT_MAX;
use crate::append::segment::segment_buffer;
use crate::attributes::Attributes;
use crate::changes::{CloneRange, SetAttributes};
use crate::error::{ClientError, Result};
use crate::handle::file_data::clone::CLONE_MIN;
use crate::meta::volume::{Volume, shown};
use crate::trash::{Swapped, Trash, beside};
use body::Body;
use cairn_env::buf::{AlignedBuf, SharedBuf};
use cairn_types::{ErrorCode, InodeId, Layout};
use cairn_wire::common::Extent;
use cairn_wire::meta::{CreateRequest, PublishRequest};

/// Extents that a create carries; a file with more is published in parts.
const INLINE_EXTENTS_MAX: usize = 256;
/// Parts whose places are not awaited yet.
const PLACES_BEHIND: usize = 512;
/// Mode bit of a regular file.
const REGULAR: u32 = 0o100_000;
/// Mode bits of the kind of an inode.
const KIND: u32 = 0o170_000;

/// How the file is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteOptions {
    /// Permission bits.
    pub mode: u32,
    /// Since 1970; 0: the server's time.
    pub mtime_ns: i64,
    pub layout: Layout,
    /// Fail if the name exists, instead of replacing the file atomically.
    pub exclusive: bool,
    /// Owner and group to set, where the caller may.
    pub owner: Option<(u32, u32)>,
}

/// Writes one file from its beginning to its end.
pub struct FileWriter {
    volume: Volume,
    path: Vec<u8>,
    /// Inode of the directory, where the caller knows it.
    parent: Option<u64>,
    options: WriteOptions,
    body: Body,
    /// The last push was a short one: nothing may follow.
    short: bool,
    unnamed: Option<u64>,
}

impl Volume {
    /// Begins a file; it appears under `path` when the writer is finished.
    pub async fn write(&self, path: &[u8], options: WriteOptions) -> Result<FileWriter> {
        FileWriter::new(self, path, None, options).await
    }
}

impl FileWriter {
    pub(crate) async fn new(
        volume: &Volume,
        path: &[u8],
        parent: Option<u64>,
        options: WriteOptions,
    ) -> Result<FileWriter> {
        if parent.is_some_and(|parent| is_in_snapshot(parent, path)) {
            // Before its bytes are stored for nothing.
            let text = "snapshots cannot be changed; take another directory";
            return Err(ClientError::remote(&shown(path), ErrorCode::ReadOnly, text));
        }
        let body = Body::new(volume, options.layout).await?;
        Ok(FileWriter {
            volume: volume.clone(),
            path: path.to_vec(),
            parent,
            options,
            body,
            short: false,
            unnamed: None,
        })
    }
    /// A buffer to fill and to [`push`](Self::push).
    pub fn buffer() -> AlignedBuf {
        segment_buffer()
    }
    /// Takes the next bytes of the file. All but the last push of a file have to be [`SEGMENT_MAX`] long.
    pub async fn push(&mut self, data: SharedBuf) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        if data.len() > SEGMENT_MAX || self.short {
            return Err(ClientError::protocol(&shown(&self.path), "only the last part of a file may be short"));
        }
        self.short = data.len() != SEGMENT_MAX;
        self.body.push(data).await.map_err(|e| e.named(&shown(&self.path)))?;
        while self.body.places.awaited() > PLACES_BEHIND {
            self.take_place().await?;
        }
        if self.body.places.extents.len() >= INLINE_EXTENTS_MAX {
            self.publish_part(0).await?;
        }
        Ok(())
    }
    /// Leaves a hole: the next bytes of the file are zeros that take no space. A multiple of [`SEGMENT_MAX`] unless
    /// nothing follows.
    pub async fn skip(&mut self, length: u64) -> Result<()> {
        if length == 0 {
            return Ok(());
        }
        if !self.len().is_multiple_of(SEGMENT_MAX as u64) {
            return Err(ClientError::protocol(&shown(&self.path), "a hole begins behind a whole number of parts"));
        }
        // It may be the last data of the file, so nobody else would ask for its sync.
        self.body.flush().await.map_err(|e| e.named(&shown(&self.path)))?;
        self.body.seek(self.len() + length);
        self.short = false;
        Ok(())
    }
    /// Instead of all pushes: the file shares the bytes of another one of the volume and of the same layout, as it is
    /// at that version. False if that cannot be done; then push them, from the first on.
    pub async fn share(&mut self, source: &Attributes) -> Result<bool> {
        let options = self.options.layout.to_bits();
        if source.size < CLONE_MIN || source.layout != options || self.options.layout.stripe_width().is_some() {
            return Ok(false);
        }
        // Makes the file without a name.
        self.publish_part(0).await?;
        let Some(inode) = self.unnamed else { return Ok(false) };
        let (mut at, mut version) = (0, source.data_version);
        while at < source.size {
            let range = CloneRange {
                source: source.inode,
                source_offset: at,
                inode,
                offset: at,
                length: source.size - at,
                if_source_version: Some(version),
                ..CloneRange::default()
            };
            let Some(cloned) = self.volume.clone_range(&self.path, range).await? else { return Ok(false) };
            (at, version) = (at + cloned.length, cloned.source.data_version);
        }
        Ok(true)
    }
    /// Bytes pushed so far.
    pub fn len(&self) -> u64 {
        self.body.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    async fn take_place(&mut self) -> Result<()> {
        self.body.take_place(&shown(&self.path)).await
    }

    async fn check_session(&self) -> Result<()> {
        self.body.check_current_session().await.map_err(|e| e.named(&shown(&self.path)))
    }

    /// Puts the extents so far into the file without a name, which then has at least `size_min` bytes.
    async fn publish_part(&mut self, size_min: u64) -> Result<()> {
        self.check_session().await?;
        let inode = match self.unnamed {
            Some(inode) => inode,
            None => {
                let mode = REGULAR | self.options.mode;
                let made = self.volume.create_unnamed(&self.path, mode, self.options.layout.to_bits()).await?;
                *self.unnamed.insert(made.inode)
            }
        };
        let (volume, path, mtime_ns, written_by) =
            (&self.volume, &self.path, self.options.mtime_ns as u64, self.body.session.0);
        let publish = async |extents: Vec<Extent>, sets| {
            let size = extents.last().map_or(0, |e| e.file_offset + e.length).max(size_min);
            let request = PublishRequest { extents, sets, size, mtime_ns, written_by, ..Default::default() };
            volume.publish(inode, path, request).await
        };
        self.body.places.publish(publish).await.map(|_| ())
    }

    /// Makes everything durable, then the file visible under its name.
    pub async fn finish(mut self) -> Result<Attributes> {
        self.complete().await?;
        let made = match self.unnamed {
            Some(_) => self.finish_unnamed(self.options.exclusive).await?,
            None => self.create(self.options.exclusive).await?,
        };
        self.tidy().await;
        Ok(made)
    }
    /// The same; a file that has the name already goes to the trash, unless there it is not kept. Whether there was
    /// one. The name always leads to one of the two; a writer that dies in between leaves the new file in the trash.
    pub async fn finish_keeping(mut self, trash: Option<&Trash>) -> Result<(Attributes, bool)> {
        self.complete().await?;
        let made = match self.unnamed {
            Some(_) => self.finish_unnamed(true).await,
            None => self.create(true).await,
        };
        let made = match made {
            Err(error) if error.code() == Some(ErrorCode::Exists) && !self.options.exclusive => {
                (self.replace(trash).await?, true)
            }
            made => (made?, false),
        };
        self.tidy().await;
        Ok(made)
    }
    /// Takes the place of the file that has the name.
    async fn replace(&mut self, trash: Option<&Trash>) -> Result<Attributes> {
        let there = self.volume.try_stat(&self.path, false).await?;
        // What is no file is refused with the reason; what has just gone is not replaced.
        let is_file = there.is_some_and(|there| there.mode & KIND == REGULAR);
        let place = match trash.filter(|_| is_file) {
            Some(trash) => self.place(trash).await?.map(|place| (trash, place)),
            None => None,
        };
        let Some((trash, place)) = place else {
            return match self.unnamed {
                Some(_) => self.finish_unnamed(false).await,
                None => self.create(false).await,
            };
        };
        match self.swap(trash, &place).await {
            Ok(made) => Ok(made),
            Err(error) => {
                trash.give_back(&place).await;
                Err(error)
            }
        }
    }
    /// A place in the trash for the file that has the name; none where nothing is kept, or it has gone meanwhile.
    async fn place(&self, trash: &Trash) -> Result<Option<Vec<u8>>> {
        let error = match trash.place(&self.path).await {
            Err(error) if error.is_not_found() => error,
            place => return place,
        };
        match self.volume.try_stat(&self.path, false).await? {
            Some(_) => Err(error),
            None => Ok(None),
        }
    }
    async fn swap(&mut self, trash: &Trash, place: &[u8]) -> Result<Attributes> {
        if trash.is_far(&self.path).await? {
            return self.swap_beside(trash, place).await;
        }
        let inode = self.fill_unnamed().await?;
        let made = self.volume.link_inode(inode, place, false).await?;
        self.unnamed = None;
        let swapped = trash.swap(place, &self.path).await;
        if let Err(error) = &swapped
            && !error.is_unknown()
        {
            // It is the new file that is there.
            drop(self.volume.unlink(place).await);
        }
        self.volume.release(inode).await?;
        swapped.map(|()| made)
    }
    /// The same where another partition has the directory than the trash.
    async fn swap_beside(&mut self, trash: &Trash, place: &[u8]) -> Result<Attributes> {
        let inode = self.fill_unnamed().await?;
        let new = beside(&self.path, inode);
        let made = self.volume.link_inode(inode, &new, false).await?;
        self.unnamed = None;
        let swapped = trash.swap_beside(&new, &self.path, place).await;
        if let Ok(Swapped::Refused(_)) = &swapped {
            drop(self.volume.unlink(&new).await);
        }
        self.volume.release(inode).await?;
        match swapped? {
            Swapped::Done => Ok(made),
            Swapped::Refused(error) => Err(error),
        }
    }
    /// Makes everything durable.
    async fn complete(&mut self) -> Result<()> {
        self.body.flush().await.map_err(|e| e.named(&shown(&self.path)))?;
        while self.body.places.awaited() > 0 {
            self.take_place().await?;
        }
        self.check_session().await
    }
    /// Creates the file with its contents.
    async fn create(&mut self, exclusive: bool) -> Result<Attributes> {
        let (uid, gid) = self.options.owner.unwrap_or_default();
        let request = CreateRequest {
            mode: REGULAR | self.options.mode,
            layout: self.options.layout.to_bits(),
            exclusive,
            replace: !exclusive,
            size: self.len(),
            mtime_ns: self.options.mtime_ns as u64,
            set_owner: self.options.owner.is_some(),
            uid,
            gid,
            written_by: self.body.session.0,
            ..Default::default()
        };
        let (volume, path, parent) = (&self.volume, &self.path, self.parent);
        let create = async |extents, sets| {
            let request = CreateRequest { extents, sets, ..request };
            match parent {
                Some(parent) => {
                    let cut = path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
                    volume.create_as_at(parent, &path[cut..], path, request).await
                }
                None => volume.create_as(path, request).await,
            }
        };
        self.body.places.publish(create).await
    }

    /// Members may have failed while it was written.
    async fn tidy(&self) {
        if let Err(error) = self.volume.discard_abandoned(self.body.session).await {
            tracing::debug!(%error, "space in chunks that failed was left to the garbage scan");
        }
    }

    async fn finish_unnamed(&mut self, exclusive: bool) -> Result<Attributes> {
        let inode = self.fill_unnamed().await?;
        let made = self.volume.link_inode(inode, &self.path, !exclusive).await?;
        // It has its name: letting go of it is all that is left.
        self.unnamed = None;
        self.volume.release(inode).await?;
        Ok(made)
    }

    /// Gives the file without a name all that it is to have.
    async fn fill_unnamed(&mut self) -> Result<u64> {
        // Again without extents when the file ends with a hole.
        self.publish_part(self.len()).await?;
        let inode = self.unnamed.ok_or_else(|| ClientError::protocol(&shown(&self.path), "the file was not begun"))?;
        if let Some((uid, gid)) = self.options.owner {
            let set = SetAttributes { uid: Some(uid), gid: Some(gid), ..SetAttributes::default() };
            self.volume.setattr(inode, &self.path, set).await?;
        }
        Ok(inode)
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        // A file that was not finished: what it wrote goes with the body, what it published with its inode.
        self.body.unnamed = self.unnamed.take();
    }
}

/// Whether a directory is a snapshot's, or a list of snapshots. A volume that has given out larger numbers has none.
fn is_in_snapshot(directory: u64, path: &[u8]) -> bool {
    InodeId(directory).now().0 != directory && path.split(|byte| *byte == b'/').any(|part| part == b".snapshots")
}
