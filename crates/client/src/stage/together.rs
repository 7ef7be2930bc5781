//! Encoding of several files at once, with the placement of EAR: what they have in the columns of a stripe group
//! becomes shards on the disks where copies are, and parity is computed in the core rack, from the copies there. No
//! data crosses racks, and nothing moves afterwards.
//!
//! A chunk of *whole shards* is written and read back ([`shards`]); then each file is moved as by any move (`moving`):
//! its extents name the new places if it still is what was read. So there is nothing to freeze, and nothing to take up
//! when somebody dies: copies are freed file by file, by what names them.
//!
//! Invariants: nothing names a chunk before all of its shards were read from their disks and are what parity was
//! computed of; of a file only what lies in copies that nobody shares is taken; only stripe groups whose core rack is
//! this process's are worked on, and only with a copy there. Bounds: [`FILES_MAX`] files, one chunk a call. Not here:
//! which files, and when (`meta`); what is left over (`stage`).
mod compact;
mod pace;
mod plan;
mod shards;

use super::{Asked, EncodeOutcome, EncodedPart, Waiting, is_shared, waiting};
use crate::append::target::Target;
use crate::convert::is_race;
use crate::defragment::is_in_the_way;
use crate::error::{ClientError, Result};
use crate::file_writer::body::Body;
use crate::meta::volume::Volume;
use crate::read::read_epochs::ReadEpochs;
use crate::view::{ClusterView, ColumnView, PgView};
use cairn_types::{BLOCK_SIZE, ErrorCode, ExtentKind, MemberState, PgId, Scheme, Stripe, StripeGroupId, WHOLE_SHARD};
use cairn_wire::Opcode;
use cairn_wire::common::Extent;
use cairn_wire::manager::{EnsurePgsRequest, EnsurePgsResponse};
use futures_util::stream::{self, StreamExt};
use pace::{Best, Pace};
use plan::{Piece, SHARD_BLOCKS_MAX, Together};
use shards::{Sources, Work, Written};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Files that are looked at in one call, and how many at a time.
const FILES_MAX: usize = 8192;
const FILES_AT_ONCE: usize = 16;
/// Files that get their new extents at a time: these share syncs.
const PUBLISHES_AT_ONCE: usize = 16;
/// Extents of a file that are looked at: the others come when these are encoded.
const EXTENTS_MAX: usize = 4096;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// What is known of the columns of a stripe group.
struct Columns {
    later: Scheme,
    /// By position: the groups, and the disks of their copies in the core rack.
    groups: Vec<(PgId, u32)>,
}

/// The stripe groups whose core rack is `rack` and whose columns all have their copy there.
fn groups_here(view: &ClusterView, volume: u32, rack: &str) -> BTreeMap<StripeGroupId, Columns> {
    let mut found: BTreeMap<StripeGroupId, BTreeMap<u32, &PgView>> = BTreeMap::new();
    let column = |pg: &'_ PgView| -> Option<ColumnView> {
        pg.column.clone().filter(|column| pg.volume == volume && column.core_rack == rack)
    };
    for pg in view.pgs.values() {
        if let Some(column) = column(pg) {
            found.entry(column.group).or_default().insert(column.position, pg);
        }
    }
    let core = |pg: &PgView| {
        let near = |disk: u32| {
            let node = view.disks.get(&disk).and_then(|disk| view.nodes.get(&disk.node));
            node.is_some_and(|node| node.rack == rack)
        };
        let serves = |(disk, state): &&(u32, MemberState)| *state == MemberState::Serving && near(*disk);
        pg.members.iter().find(serves).map(|(disk, _)| (pg.id, *disk))
    };
    let whole = |(id, columns): (StripeGroupId, BTreeMap<u32, &PgView>)| {
        let later = columns.values().next()?.column.as_ref()?.later;
        let Scheme::Erasure { k, .. } = later else { return None };
        let groups: Vec<(PgId, u32)> = columns.values().filter_map(|pg| core(pg)).collect();
        (groups.len() == usize::from(k)).then_some((id, Columns { later, groups }))
    };
    found.into_iter().filter_map(whole).collect()
}

/// Files that name a new chunk, what they have in it, and how many of them waited and do not any more.
#[derive(Clone, Copy, Default, Debug)]
struct NamedFiles {
    files: u32,
    bytes: u64,
    encoded: u32,
}

impl Volume {
    /// Encodes of these files what lies in stripe groups whose core rack is this process's, as much as goes into one
    /// chunk. [`EncodeOutcome::More`]: there is more of that; [`EncodeOutcome::Left`]: they have something in other
    /// columns, or too little in these. `gently`: with rests behind each piece of work, which are told.
    pub async fn encode_together(&self, inodes: &[u64], gently: bool) -> Result<EncodedPart> {
        let rack = self.cluster().here().rack.to_owned();
        let view = self.cluster().view();
        let groups = groups_here(&view, self.id(), &rack);
        let (files, pieces, elsewhere) = self.collect(&view, &groups, inodes).await?;
        let planned = |columns: &Vec<Vec<Piece>>| Together::of(columns);
        let best = pieces.iter().filter_map(|(id, columns)| Some((*id, planned(columns)?)));
        let Some((id, together)) = best.max_by_key(|(_, together)| together.blocks) else {
            let some = elsewhere || pieces.values().flatten().any(|pieces| !pieces.is_empty());
            return Ok(EncodedPart::nothing(if some { EncodeOutcome::Left } else { EncodeOutcome::NotWaiting }));
        };
        let columns = &groups[&id];
        // Whatever fails here has written what nothing names: who asks is told, and leaves time for it to go.
        self.encode_chunk(id, columns, &files, (together, gently)).await
    }

    /// The files as they are, what they have in each column, and whether they have something in other columns.
    async fn collect(
        &self,
        view: &ClusterView,
        groups: &BTreeMap<StripeGroupId, Columns>,
        inodes: &[u64],
    ) -> Result<(Vec<Waiting>, BTreeMap<StripeGroupId, Vec<Vec<Piece>>>, bool)> {
        let place = |pg: u32| {
            let column = view.pgs.get(&pg)?.column.as_ref()?;
            Some((column.group, column.position as usize))
        };
        let empty = |columns: &Columns| vec![Vec::new(); columns.groups.len()];
        let mut pieces: BTreeMap<_, _> = groups.iter().map(|(id, columns)| (*id, empty(columns))).collect();
        let enough = |pieces: &BTreeMap<StripeGroupId, Vec<Vec<Piece>>>| {
            let full = |pieces: &Vec<Piece>| pieces.iter().map(Piece::blocks).sum::<u64>() >= SHARD_BLOCKS_MAX;
            pieces.values().any(|columns: &Vec<Vec<Piece>>| columns.iter().all(full))
        };
        let (mut files, mut elsewhere) = (Vec::new(), false);
        let look = |inode: &u64| self.copies_of(*inode);
        let mut found = stream::iter(inodes.iter().take(FILES_MAX)).map(look).buffered(FILES_AT_ONCE);
        while let Some(of_file) = found.next().await {
            let Some((file, extents)) = of_file? else { continue };
            for extent in extents {
                let Some((group, position)) = place(extent.pg) else { continue };
                let later = groups.get(&group).filter(|columns| columns.later == file.later.scheme());
                match later.and_then(|_| pieces.get_mut(&group)?.get_mut(position)) {
                    Some(column) => column.push(Piece { file: files.len(), extent, at: extent.chunk_offset }),
                    None => elsewhere = true,
                }
            }
            files.push(file);
            if enough(&pieces) {
                break;
            }
        }
        drop(found);
        Ok((files, pieces, elsewhere))
    }

    /// A file that waits, and what of it lies in copies that nobody shares or overwrites in place.
    async fn copies_of(&self, inode: u64) -> Result<Option<(Waiting, Vec<Extent>)>> {
        let found = match self.getattr(inode).await {
            Ok(found) => found,
            Err(error) if matches!(error.code(), Some(ErrorCode::Stale | ErrorCode::NotFound)) => return Ok(None),
            Err(error) => return Err(error),
        };
        // One that is overwritten is called back by whoever encodes it by itself.
        let Some(file) = waiting(found, Asked::ByAge).filter(|file| file.found.overwriter == 0) else {
            return Ok(None);
        };
        let (mut extents, mut from, mut shared) = (Vec::new(), 0, 0);
        while extents.len() < EXTENTS_MAX {
            let page = self.extents_to_move(inode, from).await?;
            if page.data_version != found.data_version {
                return Ok(None);
            }
            let plain = |e: &&Extent| ExtentKind::from_flags(e.flags) == Some(ExtentKind::Plain) && !is_shared(e);
            extents.extend(page.extents.iter().filter(plain).copied());
            shared += page.extents.iter().filter(|e| is_shared(e)).map(|e| e.length).sum::<u64>();
            match page.extents.last() {
                Some(last) if !page.end => from = last.file_offset + last.length,
                _ => break,
            }
        }
        // What is mostly its clones' stays copies: moved, it would be there twice.
        let own: u64 = extents.iter().map(|e| e.length).sum();
        Ok((own >= shared).then_some((file, extents)))
    }

    async fn encode_chunk(
        &self,
        id: StripeGroupId,
        columns: &Columns,
        files: &[Waiting],
        (together, gently): (Together, bool),
    ) -> Result<EncodedPart> {
        let pg = self.shards_of(id).await?;
        let best = self.cluster().shared.of::<Best>();
        let pace = Pace::new(&best, &*self.cluster().clock, gently);
        let disks: Sources = columns.groups.iter().map(|(_, disk)| *disk).collect();
        let (chunk, blocks) = (id.to_string(), together.blocks);
        let mut done = EncodedPart::nothing(EncodeOutcome::More(0));
        let named = self.make_chunk(&chunk, pg, disks, files, (together, &pace)).await?;
        (done.moved, done.files, done.rested) = (named.bytes, named.encoded, pace.rested());
        if done.moved == 0 {
            return Err(ClientError::Changed { what: format!("every file that was to be encoded in {id}") });
        }
        if let Scheme::Erasure { k, .. } = columns.later {
            let copies = files.first().map_or(0, |file| file.copies_now);
            let shards = done.moved * columns.later.members() as u64 / u64::from(k);
            done.freed = (done.moved * copies).saturating_sub(shards);
        }
        tracing::info!(%id, shard_bytes = blocks * BLOCK, moved = done.moved, "copies became shards where they lie");
        Ok(done)
    }

    /// Writes a chunk of whole shards, and lets files name what they have in it.
    async fn make_chunk(
        &self,
        what: &str,
        pg: PgView,
        disks: Sources,
        files: &[Waiting],
        (together, pace): (Together, &Pace<'_>),
    ) -> Result<NamedFiles> {
        let (volume, class) = (self.id(), pg.scheme.into());
        let stripe = match pg.scheme {
            Scheme::Erasure { k, .. } => Stripe::new(u16::from(k), WHOLE_SHARD),
            Scheme::Replicated(_) => None,
        };
        let stripe =
            stripe.ok_or_else(|| ClientError::protocol("encoding", format!("{} has no data shards", pg.scheme)))?;
        let session = self.caller.writer_session().await?.id;
        let (together, epochs) = (Arc::new(together), Arc::new(ReadEpochs::default()));
        for group in together.groups() {
            epochs.of(self.cluster(), group).await?;
        }
        let work = Work {
            cluster: self.cluster(),
            pg,
            target: Target { volume, class, session },
            together: together.clone(),
            disks: Arc::new(disks),
            epochs: epochs.clone(),
            pace,
        };
        let written = work.run().await?;
        epochs.confirm(self.cluster(), what).await?;
        let name = |number: usize| self.name_shards(&files[number], number, &together, &written, stripe);
        let mut named = stream::iter(together.files()).map(name).buffer_unordered(PUBLISHES_AT_ONCE);
        let (mut all, mut failed) = (NamedFiles::default(), None);
        while let Some(moved) = named.next().await {
            match moved {
                Ok((bytes, encoded)) => {
                    all.files += u32::from(bytes > 0);
                    all.bytes += bytes;
                    all.encoded += u32::from(encoded);
                }
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed.filter(|_| all.bytes == 0) {
            return Err(error);
        }
        tracing::debug!(chunk = %written.chunk, files = all.files, bytes = all.bytes, "files name a chunk of whole shards");
        Ok(all)
    }

    /// The erasure group of a stripe group.
    async fn shards_of(&self, id: StripeGroupId) -> Result<PgView> {
        let request = EnsurePgsRequest { volume: self.id(), stripe_group: id.get(), ..EnsurePgsRequest::default() };
        let what = format!("an erasure group for {id}");
        let answer = self.cluster().manager::<EnsurePgsResponse>(&what, Opcode::EnsurePgs, &request).await?;
        if let Some(map) = answer.map {
            self.cluster().learn(map);
        }
        let view = self.cluster().view();
        let pg = view.pgs.get(&answer.pg).cloned();
        pg.ok_or_else(|| ClientError::NotAtRest { what, detail: "the manager made none".into() })
    }

    /// Lets a file name what it has in the chunk, if it still is as it was found. The bytes that moved, and whether it
    /// waited and all of it is encoded now.
    async fn name_shards(
        &self,
        file: &Waiting,
        number: usize,
        together: &Together,
        written: &Written,
        stripe: Stripe,
    ) -> Result<(u64, bool)> {
        let (runs, extents) = together.of_file(number, written.chunk, stripe);
        let bytes = extents.iter().map(|extent| extent.length).sum();
        let shown_as = format!("inode {}", file.found.inode);
        let mut body = Body::new(self, file.later).await?;
        if body.session != written.session {
            // What an ended session wrote may be collected as garbage: another one never names it.
            return Err(ClientError::Changed { what: shown_as });
        }
        body.places.extents = extents;
        match self.swap_moved(&file.found, &shown_as, &runs, &mut body).await {
            // What has something left is looked at when it is encoded by itself.
            Ok(()) if file.stage.waits() => {
                Ok((bytes, matches!(self.finish(file.found.inode, Asked::ByAge).await, Ok(EncodeOutcome::Done))))
            }
            Ok(()) => Ok((bytes, false)),
            Err(error) if may_be_later(&error) => {
                tracing::debug!(%shown_as, %error, "a file was changed while its bytes became shards: it keeps its copies");
                Ok((0, false))
            }
            Err(error) => Err(error),
        }
    }
}

/// The file was changed or removed meanwhile, or somebody is writing it.
fn may_be_later(error: &ClientError) -> bool {
    let is_changed = matches!(
        error.code(),
        Some(ErrorCode::Stale | ErrorCode::NotFound | ErrorCode::LeaseHeld | ErrorCode::SessionEnded)
    );
    is_changed || is_race(error) || is_in_the_way(error)
}

#[cfg(test)]
mod interrupted;
#[cfg(test)]
mod tests;
