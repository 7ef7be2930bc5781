//! Replay of one chunk at a start: the journal's records about it are brought to its file; see the table of
//! [`cairn_chunk_core::replay`].
//!
//! Invariant: redoing is idempotent; the file is synced before the journal's records may go.

use std::collections::BTreeSet;

use cairn_chunk_core::punch::is_dead;
use cairn_chunk_core::replay::{HomeFile, JournalSays, ReplayPlan, plan, verified_length};
use cairn_env::{Disk, DiskError, File, OpenOptions};
use cairn_format::chunk_header::{CHUNK_HEADER_LEN, ChunkHeader, PUNCHED_OFFSET, STATE_OFFSET, table_offset};
use cairn_format::chunk_state::{CHUNK_STATE_LEN, ChunkState};
use cairn_format::crc_table::{
    PUNCHED_LEN, PunchedBits, TABLE_LEN, blocks_of, decode_crcs, encode_crcs, row_tables_crc, table_crc,
};
use cairn_format::journal_record::JournalRecord;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_types::{BLOCK_SIZE, CHUNK_BLOCKS_MAX, ChunkId, ClusterId, Epoch, crc32c};

use super::append::first_sectors;
use super::chunk::{Chunk, ChunkMem, HomeView};
use super::{OpenError, paths};

/// The number of a chunk whose file is, or may be, of before overwrites that this disk had synced: it was overwritten,
/// and every other member knows better.
const FORGOTTEN: OverwriteNumber = OverwriteNumber { epoch: Epoch(0), count: 1 };

const SECTOR: usize = 512;

/// What became of the chunk.
pub(super) enum Outcome {
    /// It is there. These blocks of it were promised, and are not.
    Keep(Box<Chunk>, Vec<u32>),
    /// It is not, or not any more.
    Gone,
    /// It should be: its file vanished, or was set aside.
    Lost,
}

/// A file as found.
struct Seen {
    kind: HomeFile,
    header: Option<ChunkHeader>,
    state: Option<ChunkState>,
    /// The device failed to read it.
    unreadable: bool,
}

/// Brings a chunk up to date; directories whose names changed go into `dirs`.
pub(super) fn replay_chunk(
    disk: &dyn Disk,
    cluster: ClusterId,
    id: ChunkId,
    records: &[JournalRecord<'_>],
    dirs: &mut BTreeSet<String>,
) -> Result<Outcome, OpenError> {
    let path = paths::chunk(id);
    let mut seen = look(disk, cluster, id, &path)?;
    let (records, again) = of_the_last(records);
    if again {
        // They may be those of the one that was deleted.
        (seen.header, seen.state) = (None, None);
    }
    let says = JournalSays { again, ..summarize(records) };
    let plan = plan(seen.kind, says);
    match plan {
        ReplayPlan::Nothing => Ok(Outcome::Gone),
        ReplayPlan::Lost => {
            tracing::error!(disk = disk.name(), chunk = %id, "a chunk's file is gone; it is copied from other members");
            mark_lost(disk, id, dirs)?;
            Ok(Outcome::Lost)
        }
        ReplayPlan::Remove => remove(disk, id, dirs),
        // The next start may be able to read it, and nothing in the journal would be missing from it then.
        ReplayPlan::SetAside if seen.unreadable && records.is_empty() => Ok(Outcome::Gone),
        ReplayPlan::SetAside => {
            let bad = paths::bad_chunk(id);
            tracing::error!(
                disk = disk.name(),
                file = path,
                kept_as = bad,
                "a chunk's file is damaged; it is copied from other members"
            );
            // First: what was set aside would be forgotten at the next start.
            mark_lost(disk, id, dirs)?;
            disk.rename(&path, &bad)?;
            dirs.insert(paths::pg_dir(id.pg));
            Ok(Outcome::Lost)
        }
        ReplayPlan::Make | ReplayPlan::Rewrite | ReplayPlan::Redo if !records.is_empty() => {
            redo(disk, cluster, id, (records, says), &seen, plan, dirs)
        }
        ReplayPlan::Make | ReplayPlan::Rewrite | ReplayPlan::Redo => {
            let (header, state) = seen.header.zip(seen.state).expect("without records only a good file is used");
            take_over(disk, header, state, dirs)
        }
    }
}

/// So that the next start knows it too, as long as the chunk is not back.
fn mark_lost(disk: &dyn Disk, id: ChunkId, dirs: &mut BTreeSet<String>) -> Result<(), DiskError> {
    let dir = paths::pg_dir(id.pg);
    disk.create_dir_all(&dir)?;
    disk.open(&paths::lost_chunk(id), OpenOptions::CREATE)?.sync_all()?;
    dirs.insert(dir);
    Ok(())
}

fn look(disk: &dyn Disk, cluster: ClusterId, id: ChunkId, path: &str) -> Result<Seen, OpenError> {
    let file = match disk.open(path, OpenOptions::READ) {
        Err(DiskError::NotFound { .. }) => {
            return Ok(Seen { kind: HomeFile::Absent, header: None, state: None, unreadable: false });
        }
        other => other?,
    };
    let mut block = [0; CHUNK_HEADER_LEN + CHUNK_STATE_LEN];
    let (got, unreadable) = match file.read_at(&mut block, 0) {
        Ok(got) => (got, false),
        Err(error) => {
            tracing::error!(disk = disk.name(), chunk = %id, %error, "the header of a chunk cannot be read");
            (0, true)
        }
    };
    let header = block.first_chunk().filter(|_| got >= CHUNK_HEADER_LEN).map(ChunkHeader::decode);
    let header = header.and_then(Result::ok).filter(|header| header.chunk == id && header.cluster == cluster);
    let state = block.last_chunk().filter(|_| got == block.len()).map(ChunkState::decode);
    let state = state.and_then(Result::ok).filter(|state| state.chunk == id);
    let kind = match (&header, &state) {
        (None, _) => HomeFile::BadHeader,
        (Some(_), None) => HomeFile::BadState,
        (Some(_), Some(_)) => HomeFile::Good,
    };
    Ok(Seen { kind, header, state, unreadable })
}

/// The records of the chunk that has the number now, and whether another one that had it was deleted before. A sync
/// that came late may stand behind the deletion as well: it says nothing.
fn of_the_last<'r, 'a>(records: &'r [JournalRecord<'a>]) -> (&'r [JournalRecord<'a>], bool) {
    let is_deletion = |record: &JournalRecord<'_>| matches!(record, JournalRecord::Delete { .. });
    let behind = records.iter().rposition(is_deletion).map_or(records.len(), |last| last + 1);
    let created = records[behind..].iter().position(|record| matches!(record, JournalRecord::Create(_)));
    created.map_or((records, false), |at| (&records[behind + at..], true))
}

fn summarize(records: &[JournalRecord<'_>]) -> JournalSays {
    let mut says = JournalSays::default();
    for record in records {
        match record {
            JournalRecord::Create(_) => says.created = true,
            JournalRecord::Extent(_) | JournalRecord::Overwrite(_) => says.extent = true,
            JournalRecord::Punch { .. } => says.punched = true,
            JournalRecord::Delete { .. } => says.deleted = true,
        }
    }
    says
}

fn remove(disk: &dyn Disk, id: ChunkId, dirs: &mut BTreeSet<String>) -> Result<Outcome, OpenError> {
    disk.remove(&paths::chunk(id))?;
    dirs.insert(paths::pg_dir(id.pg));
    Ok(Outcome::Gone)
}

/// A file that needs nothing.
fn take_over(
    disk: &dyn Disk,
    header: ChunkHeader,
    state: ChunkState,
    dirs: &mut BTreeSet<String>,
) -> Result<Outcome, OpenError> {
    let id = header.chunk;
    if is_dead(state.sealed, state.length, state.punched_blocks) || !state.sealed && state.length == 0 {
        return remove(disk, id, dirs);
    }
    let (mut table, mut punched) = (None, None);
    let mut sums = (state.table_crc, state.row_crc);
    let (mut punched_blocks, mut overwrite) = (state.punched_blocks, state.overwrite);
    let mut marks_lost = false;
    if !state.sealed || state.punched_blocks > 0 {
        let file = disk.open(&paths::chunk(id), OpenOptions::READ)?;
        if !state.sealed {
            let crcs = super::tables_at_home::read_table(file.as_ref(), 0, blocks_of(state.length))?;
            let rows = super::tables_at_home::read_rows(file.as_ref(), &header, blocks_of(state.length))?;
            sums = (table_crc(&crcs), row_tables_crc(rows.iter().map(|row| &row[..])));
            if overwrite.is_some() && sums.0 != state.table_crc {
                overwrite = forgotten(disk, id);
            }
            table = Some((crcs, rows));
        }
        if state.punched_blocks > 0 {
            let bits = super::tables_at_home::read_punched(file.as_ref())?;
            if bits.crc() == state.punched_crc {
                punched = Some(Box::new(bits));
            } else {
                leave_out_marks(disk, id);
                (punched_blocks, marks_lost) = (0, true);
            }
        }
    }
    let ChunkState { length, sealed, .. } = state;
    let mut view = HomeView { length, sealed, punched: punched.clone(), overwrite, ..HomeView::default() };
    if marks_lost {
        // With the next state all of them go home, or what is freed from now on would be left out as well.
        view.punched_sectors = (0..(PUNCHED_LEN / SECTOR) as u32).collect();
    }
    let mut mem = memory(length, sealed, table, sums, punched, punched_blocks);
    (mem.follow.last, mem.marks_lost) = (overwrite, marks_lost);
    Ok(Outcome::Keep(Box::new(Chunk::with_state(header, mem, view)), Vec::new()))
}

/// Freed blocks then read as bad ones, which nobody asks for; a live block is never taken for freed.
fn leave_out_marks(disk: &dyn Disk, id: ChunkId) {
    tracing::warn!(disk = disk.name(), chunk = %id, "the marks of freed blocks are damaged and left out");
}

/// The length that a record speaks of.
fn length_in(record: &JournalRecord<'_>) -> u64 {
    match record {
        JournalRecord::Extent(extent) => extent.length,
        JournalRecord::Overwrite(overwrite) => overwrite.length,
        JournalRecord::Create(_) | JournalRecord::Punch { .. } | JournalRecord::Delete { .. } => 0,
    }
}

/// Whether the marks of freed blocks in the file are not those that its state tells of, but for those that were being
/// written there: a disk that forgot what it had synced leaves noise. Sectors of which the journal has none are as the
/// state has them, or as an earlier one had: in these no more blocks were freed than it says, and without a state none
/// behind the end.
fn marks_are_damaged(state: Option<&ChunkState>, marks: &[u8], records: &[JournalRecord<'_>]) -> bool {
    if state.is_some_and(|state| crc32c(marks) == state.punched_crc) {
        return false;
    }
    let mut others = marks.to_vec();
    let mut journaled = false;
    for record in records {
        if let JournalRecord::Punch { first_sector, bits, .. } = record {
            let at = *first_sector as usize * SECTOR;
            others[at..at + bits.len()].fill(0);
            journaled = true;
        }
    }
    let others = PunchedBits::from_bytes(&others).expect("exactly the bytes of a chunk");
    let Some(state) = state else {
        let end = blocks_of(records.iter().map(length_in).max().unwrap_or(0));
        return (end..CHUNK_BLOCKS_MAX as u32).any(|block| others.get(block));
    };
    let freed = (0..blocks_of(state.length)).filter(|block| others.get(*block)).count();
    !journaled || freed > state.punched_blocks as usize
}

fn forgotten(disk: &dyn Disk, id: ChunkId) -> OverwriteNumber {
    tracing::info!(disk = disk.name(), chunk = %id, "the file of a chunk may be of before its last overwrites; it is compared with those of other members");
    FORGOTTEN
}

/// Whether the file is of before overwrites that came home, on a disk that forgot what it had synced: its table is not
/// the one that its state tells of, or the journal goes on with a later overwrite than the next one; or an earlier
/// start found that. A flush that was interrupted, or members that were made equal, may look the same; then nothing is
/// lost but the time to compare them. Without a state, all but the first overwrite was at home.
fn has_forgotten(state: Option<&ChunkState>, table: &[u32], records: &[JournalRecord<'_>]) -> bool {
    let here = state.map_or(OverwriteNumber::NONE, |state| state.overwrite);
    let numbered = |record: &JournalRecord<'_>| match record {
        JournalRecord::Overwrite(overwrite) => Some(overwrite.number),
        _ => None,
    };
    let gap = records.iter().find_map(numbered).is_some_and(|next| next.count > here.count.saturating_add(1));
    let differs = |state: &ChunkState| table_crc(&table[..blocks_of(state.length) as usize]) != state.table_crc;
    gap || here == FORGOTTEN || here.is_some() && state.is_some_and(differs)
}

fn memory(
    length: u64,
    sealed: bool,
    tables: Option<(Vec<u32>, Vec<Vec<u32>>)>,
    (stored_table_crc, stored_row_crc): (u32, u32),
    punched: Option<Box<PunchedBits>>,
    punched_blocks: u32,
) -> ChunkMem {
    let (table, rows) = tables.map_or((None, Vec::new()), |(table, rows)| (Some(table), rows));
    ChunkMem {
        accepted: length,
        written: length,
        durable: length,
        sealed,
        seal_journaled: sealed,
        created: true,
        file_made: true,
        named: true,
        table,
        rows,
        stored_table_crc,
        stored_row_crc,
        punched,
        punched_blocks,
        allocated: length.next_multiple_of(BLOCK_SIZE as u64),
        ..ChunkMem::default()
    }
}

/// Everything about a chunk while its records are redone.
struct Work {
    header: ChunkHeader,
    /// The CRCs of its own blocks, then the row CRCs.
    tables: Vec<Vec<u32>>,
    bits: Vec<u8>,
    marks_lost: bool,
    length: u64,
    claimed: u64,
    sealed: bool,
    overwrite: OverwriteNumber,
}

impl Work {
    /// Nothing of a file counts.
    fn empty(header: ChunkHeader) -> Self {
        let tables = vec![vec![0; CHUNK_BLOCKS_MAX]; 1 + header.row_tables()];
        let (bits, overwrite) = (vec![0; PUNCHED_LEN], OverwriteNumber::NONE);
        Self { header, tables, bits, marks_lost: false, length: 0, claimed: 0, sealed: false, overwrite }
    }
}

fn redo(
    disk: &dyn Disk,
    cluster: ClusterId,
    id: ChunkId,
    (records, says): (&[JournalRecord<'_>], JournalSays),
    seen: &Seen,
    plan: ReplayPlan,
    dirs: &mut BTreeSet<String>,
) -> Result<Outcome, OpenError> {
    let dir = paths::pg_dir(id.pg);
    if plan == ReplayPlan::Make {
        disk.create_dir_all(&dir)?;
    }
    dirs.insert(dir);
    let file = disk.open(&paths::chunk(id), OpenOptions::CREATE)?;
    let header = match (seen.header, records.first()) {
        (Some(header), _) => header,
        (None, Some(JournalRecord::Create(create))) => {
            let header = ChunkHeader {
                cluster,
                chunk: id,
                scheme: create.scheme,
                shard: create.shard,
                volume: create.volume,
                creation_epoch: create.creation_epoch,
                session: create.session,
            };
            file.write_at(&first_sectors(&header), 0)?;
            header
        }
        (None, _) => {
            return Err(OpenError::Corrupt {
                file: format!("{}/{}", disk.name(), paths::JOURNAL),
                what: format!("changes of {id} stand before its creation"),
            });
        }
    };
    let mut work = match says.again {
        true => Work::empty(header),
        false => read_work(file.as_ref(), header, seen.state)?,
    };
    let forgot = has_forgotten(seen.state.as_ref(), &work.tables[0], records);
    if marks_are_damaged(seen.state.as_ref(), &work.bits, records) {
        leave_out_marks(disk, id);
        work.bits.fill(0);
        work.marks_lost = true;
    }
    for record in records {
        apply(disk, file.as_ref(), record, &mut work)?;
    }
    if forgot {
        work.overwrite = forgotten(disk, id);
    }
    let length = verified_length(work.length, work.claimed, |block| block_is_good(file.as_ref(), &work, block));
    if !work.sealed && length == 0 {
        return remove(disk, id, dirs);
    }
    // What the journal has not got was synced in the file that is gone.
    let bad = match plan {
        ReplayPlan::Make | ReplayPlan::Rewrite => lost_blocks(disk, file.as_ref(), &work),
        _ => Vec::new(),
    };
    let chunk = finish(file.as_ref(), work, length)?;
    let dead = {
        let state = chunk.state.lock();
        is_dead(state.sealed, state.written, state.punched_blocks)
    };
    if dead { remove(disk, id, dirs) } else { Ok(Outcome::Keep(Box::new(chunk), bad)) }
}

/// Blocks that were promised and are not what they were.
fn lost_blocks(disk: &dyn Disk, file: &dyn File, work: &Work) -> Vec<u32> {
    let freed = PunchedBits::from_bytes(&work.bits).expect("exactly the bytes of a chunk");
    let lost = |block: &u32| !freed.get(*block) && !block_is_good(file, work, *block);
    let lost: Vec<u32> = (0..blocks_of(work.length)).filter(lost).collect();
    if !lost.is_empty() {
        tracing::error!(disk = disk.name(), chunk = %work.header.chunk, blocks = lost.len(), "a chunk's file was gone or empty, and the journal has only a part of it; the rest is healed from other members");
    }
    lost
}

fn read_work(file: &dyn File, header: ChunkHeader, state: Option<ChunkState>) -> Result<Work, DiskError> {
    let mut tables = Vec::new();
    for table in 0..=header.row_tables() {
        let mut bytes = vec![0; TABLE_LEN];
        file.read_at(&mut bytes, table_offset(table))?;
        tables.push(decode_crcs(&bytes).expect("exactly a table"));
    }
    let mut bits = vec![0; PUNCHED_LEN];
    file.read_at(&mut bits, PUNCHED_OFFSET)?;
    let (length, sealed) = state.map_or((0, false), |state| (state.length, state.sealed));
    let overwrite = state.map_or(OverwriteNumber::NONE, |state| state.overwrite);
    Ok(Work { header, tables, bits, marks_lost: false, length, claimed: length, sealed, overwrite })
}

fn apply(disk: &dyn Disk, file: &dyn File, record: &JournalRecord<'_>, work: &mut Work) -> Result<(), OpenError> {
    match record {
        JournalRecord::Create(_) | JournalRecord::Delete { .. } => {}
        JournalRecord::Extent(extent) => {
            if extent.row_tables.len() != work.header.row_tables() {
                return Err(OpenError::Corrupt {
                    file: format!("{}/{}", disk.name(), paths::JOURNAL),
                    what: format!("a change of {} is of a chunk of another kind", extent.chunk),
                });
            }
            let first = extent.crcs_first as usize;
            for (table, crcs) in work.tables.iter_mut().zip(std::iter::once(&extent.crcs).chain(&extent.row_tables)) {
                table[first..first + crcs.len()].copy_from_slice(crcs);
            }
            work.length = work.length.max(extent.durable);
            work.claimed = work.claimed.max(extent.length);
            work.sealed |= extent.sealed;
            if !extent.data.is_empty() {
                file.write_at(extent.data, work.header.data_offset() + extent.data_offset)?;
            }
        }
        JournalRecord::Overwrite(overwrite) => {
            if work.header.row_tables() > 0 {
                return Err(OpenError::Corrupt {
                    file: format!("{}/{}", disk.name(), paths::JOURNAL),
                    what: format!("{} is a parity shard and was overwritten", overwrite.chunk),
                });
            }
            for vector in &overwrite.vectors {
                let first = vector.crcs_first as usize;
                work.tables[0][first..first + vector.crcs.len()].copy_from_slice(&vector.crcs);
                let at = u64::from(vector.block) * BLOCK_SIZE as u64;
                file.write_at(vector.data, work.header.data_offset() + at)?;
            }
            work.length = work.length.max(overwrite.durable);
            work.claimed = work.claimed.max(overwrite.length);
            work.sealed |= overwrite.sealed;
            // Members that are made equal go back as well, so the last one counts and not the highest.
            work.overwrite = overwrite.number;
        }
        JournalRecord::Punch { first_sector, bits, .. } => {
            let at = *first_sector as usize * SECTOR;
            work.bits[at..at + bits.len()].copy_from_slice(bits);
        }
    }
    Ok(())
}

fn block_is_good(file: &dyn File, work: &Work, block: u32) -> bool {
    let mut bytes = [0; BLOCK_SIZE];
    let got = file.read_at(&mut bytes, work.header.data_offset() + u64::from(block) * BLOCK_SIZE as u64);
    // A file may end within its last block before that was written home whole; the rest of it is zeros.
    got.is_ok_and(|got| got > 0) && work.tables[0].get(block as usize) == Some(&crc32c(&bytes))
}

/// Writes tables and state, syncs. Holes are punched after the start, where they are missing.
fn finish(file: &dyn File, work: Work, length: u64) -> Result<Chunk, DiskError> {
    let Work { header, mut tables, bits, marks_lost, sealed, overwrite, .. } = work;
    let blocks = blocks_of(length);
    let bits = PunchedBits::from_bytes(&bits).expect("exactly the bytes of a chunk");
    for (number, table) in tables.iter_mut().enumerate() {
        table[blocks as usize..CHUNK_BLOCKS_MAX].fill(0);
        let mut bytes = Vec::new();
        encode_crcs(table, &mut bytes);
        file.write_at(&bytes, table_offset(number))?;
        table.truncate(blocks as usize);
    }
    file.write_at(bits.bytes(), PUNCHED_OFFSET)?;
    let rows = tables.split_off(1);
    let table = tables.pop().expect("every chunk has a table of its own");
    let punched_blocks = (0..blocks).filter(|block| bits.get(*block)).count() as u32;
    let (table_crc, row_crc) = (table_crc(&table), row_tables_crc(rows.iter().map(|row| &row[..])));
    let (chunk, punched_crc) = (header.chunk, bits.crc());
    let state = ChunkState { chunk, length, sealed, punched_blocks, punched_crc, table_crc, row_crc, overwrite };
    file.write_at(&state.encode(), STATE_OFFSET)?;
    let size = header.data_offset() + u64::from(blocks) * BLOCK_SIZE as u64;
    if file.len()? < size || sealed {
        file.set_len(size)?;
    }
    file.sync_all()?;
    let punched = (punched_blocks > 0).then(|| Box::new(bits));
    let view = HomeView { length, sealed, punched: punched.clone(), overwrite, ..HomeView::default() };
    let mut mem = memory(length, sealed, Some((table, rows)), (table_crc, row_crc), punched, punched_blocks);
    (mem.follow.last, mem.marks_lost) = (overwrite, marks_lost);
    Ok(Chunk::with_state(header, mem, view))
}
