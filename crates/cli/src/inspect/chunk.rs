//! A chunk file: header, state, CRC tables; every block is compared with its CRC.
use super::Subject;
use super::printer::Printer;
use crate::error::Result;
use cairn_format::chunk_header::{
    CHUNK_HEADER_LEN, ChunkHeader, PUNCHED_OFFSET, STATE_OFFSET, TABLE_OFFSET, table_offset,
};
use cairn_format::chunk_state::{CHUNK_STATE_LEN, ChunkState};
use cairn_format::crc_table::{PUNCHED_LEN, PunchedBits, blocks_of, decode_crcs, row_tables_crc, table_crc};
use cairn_types::{BLOCK_SIZE, crc32c};
use serde_json::json;

/// Blocks read at a time.
const BLOCKS_AT_ONCE: u32 = 256;
/// What the newest changes may still be in.
const JOURNAL: &str = "unless the disk's journal holds newer contents, it will be healed from another copy";

pub fn inspect(subject: &Subject, printer: &mut Printer) -> Result<()> {
    let Some(sector) = subject.block::<CHUNK_HEADER_LEN>(0)? else {
        return printer.problem(subject.length, "the header of the chunk is cut off: it has 512 bytes");
    };
    let header = match ChunkHeader::decode(&sector) {
        Ok(header) => header,
        Err(error) => return printer.problem(0, &error.to_string()),
    };
    let fields = json!({
        "cluster": header.cluster.to_string(), "pg": header.chunk.pg.0, "index": header.chunk.index,
        "volume": header.volume.0, "scheme": header.scheme.to_string(), "shard": header.shard,
        "creation_epoch": header.creation_epoch.0, "session": header.session.0,
    });
    printer.head("chunk", &header.to_string(), fields)?;
    let Some(sector) = subject.block::<CHUNK_STATE_LEN>(STATE_OFFSET)? else {
        return printer.problem(subject.length, "the state of the chunk is cut off");
    };
    let state = match ChunkState::decode(&sector) {
        Ok(state) => state,
        Err(error) => return printer.problem(STATE_OFFSET, &format!("{error}; the journal may hold it")),
    };
    let fields = json!({ "length": state.length, "sealed": state.sealed, "punched_blocks": state.punched_blocks,
                         "table_crc": format!("{:08x}", state.table_crc) });
    printer.item("state", &state.to_string(), fields)?;
    if state.chunk != header.chunk {
        printer.problem(
            STATE_OFFSET,
            &format!("the state is that of {}, the header that of {}", state.chunk, header.chunk),
        )?;
    }
    let Some((crcs, punched)) = tables(subject, printer, &state)? else { return Ok(()) };
    row_tables(subject, printer, &header, &state)?;
    let found = Found { data: header.data_offset(), blocks: blocks_of(state.length), crcs, punched };
    let (good, bad) = blocks(subject, printer, &found)?;
    let text = format!("{good} blocks match their CRC, {bad} do not, {} are punched", state.punched_blocks);
    printer.item(
        "end",
        &text,
        json!({ "good_blocks": good, "bad_blocks": bad, "punched_blocks": state.punched_blocks }),
    )
}

fn tables(subject: &Subject, printer: &mut Printer, state: &ChunkState) -> Result<Option<(Vec<u32>, PunchedBits)>> {
    let blocks = blocks_of(state.length);
    let bits = PunchedBits::from_bytes(&subject.read(PUNCHED_OFFSET, PUNCHED_LEN as u64)?);
    let bytes = subject.read(TABLE_OFFSET, u64::from(blocks) * 4)?;
    let crcs = decode_crcs(&bytes).filter(|crcs| crcs.len() == blocks as usize);
    let (Some(bits), Some(crcs)) = (bits, crcs) else {
        printer.problem(TABLE_OFFSET, "the CRC table is cut off")?;
        return Ok(None);
    };
    if (bits.crc(), bits.count()) != (state.punched_crc, state.punched_blocks) {
        printer.problem(PUNCHED_OFFSET, &format!("the PUNCHED bits do not match their checksum; {JOURNAL}"))?;
    }
    if table_crc(&crcs) != state.table_crc {
        printer.problem(TABLE_OFFSET, &format!("the CRC table does not match its checksum; {JOURNAL}"))?;
    }
    Ok(Some((crcs, bits)))
}

/// The row CRCs of a parity shard.
fn row_tables(subject: &Subject, printer: &mut Printer, header: &ChunkHeader, state: &ChunkState) -> Result<()> {
    let mut tables = Vec::new();
    for number in 1..=header.row_tables() {
        let bytes = subject.read(table_offset(number), u64::from(blocks_of(state.length)) * 4)?;
        let table = decode_crcs(&bytes).filter(|crcs| crcs.len() == blocks_of(state.length) as usize);
        let Some(table) = table else {
            return printer.problem(table_offset(number), "a table of row CRCs is cut off");
        };
        tables.push(table);
    }
    let sum = row_tables_crc(tables.iter().map(|table| &table[..]));
    if sum != state.row_crc {
        let text = format!("the tables of row CRCs do not match their checksum; {JOURNAL}");
        printer.problem(table_offset(1), &text)?;
    } else if !tables.is_empty() {
        let text = format!("row CRCs of {} data shards match their checksum", tables.len());
        printer.item("rows", &text, json!({ "data_shards": tables.len(), "row_crc": format!("{sum:08x}") }))?;
    }
    Ok(())
}

/// Where the blocks are and what they should be.
struct Found {
    data: u64,
    blocks: u32,
    crcs: Vec<u32>,
    punched: PunchedBits,
}

fn blocks(subject: &Subject, printer: &mut Printer, found: &Found) -> Result<(u64, u64)> {
    let Found { data: data_offset, blocks: count, crcs, punched } = found;
    let (data_offset, count) = (*data_offset, *count);
    let (mut good, mut bad) = (0, 0);
    let mut first = 0;
    while first < count {
        let here = BLOCKS_AT_ONCE.min(count - first);
        let offset = data_offset + u64::from(first) * BLOCK_SIZE as u64;
        let mut data = subject.read(offset, u64::from(here) * BLOCK_SIZE as u64)?;
        let stored = data.len();
        // A trimmed tail reads as zeros.
        data.resize(here as usize * BLOCK_SIZE, 0);
        for (block, bytes) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            let at = data_offset + u64::from(block) * BLOCK_SIZE as u64;
            let (wanted, found) = (crcs[block as usize], crc32c(bytes));
            let is_punched = punched.get(block);
            if printer.is_verbose() {
                let mark = if is_punched {
                    " punched"
                } else if wanted == found {
                    ""
                } else {
                    " BAD"
                };
                let text = format!("block {block} at offset {at}: crc {wanted:08x}{mark}");
                printer.item(
                    "block",
                    &text,
                    json!({ "block": block, "offset": at, "crc": wanted, "punched": is_punched,
                                                     "good": is_punched || wanted == found }),
                )?;
            }
            if is_punched {
                continue;
            }
            if wanted == found {
                good += 1;
                continue;
            }
            bad += 1;
            let cut = (block - first) as usize * BLOCK_SIZE >= stored;
            let why = if cut { "is behind the end of the file" } else { "does not match its CRC" };
            printer.problem(at, &format!("block {block} {why} ({found:08x} instead of {wanted:08x}); {JOURNAL}"))?;
        }
        first += here;
    }
    Ok((good, bad))
}
