//! A disk's journal: header, the batches that are still needed, and with `--verbose` their records.
use super::Subject;
use super::printer::Printer;
use crate::error::Result;
use cairn_format::journal_batch::{JOURNAL_BATCH_LEN, JournalBatch, RING_BLOCK};
use cairn_format::journal_header::{JOURNAL_HEADER_LEN, JournalHeader, RING_OFFSET};
use cairn_format::journal_record::{JournalRecord, decode_record};
use serde_json::json;
use std::collections::BTreeMap;

pub fn inspect(subject: &Subject, printer: &mut Printer) -> Result<()> {
    let Some(block) = subject.block::<JOURNAL_HEADER_LEN>(0)? else {
        return printer.problem(subject.length, "the header of the journal is cut off: it has 64 bytes");
    };
    let header = match JournalHeader::decode(&block) {
        Ok(header) => header,
        Err(error) => return printer.problem(0, &error.to_string()),
    };
    let fields = json!({ "disk_uuid": header.disk.to_string(), "journal": header.journal.to_string(),
                         "ring_blocks": header.ring_blocks });
    printer.head("disk_journal", &header.to_string(), fields)?;
    let ring_end = RING_OFFSET + u64::from(header.ring_blocks) * RING_BLOCK as u64;
    if subject.length < ring_end {
        printer.problem(subject.length, &format!("the file ends within its ring, which ends at {ring_end}"))?;
    }
    let found = scan(subject, &header)?;
    let Some(newest) = found.values().next_back().cloned() else {
        return printer.item("end", "no batches: nothing is waiting to be written home", json!({ "batches": 0 }));
    };
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    for sequence in newest.tail_sequence.max(1)..=newest.sequence {
        // The ring bounds how many can be missing: one report for a gap.
        let Some(batch) = found.get(&sequence) else {
            printer.problem(
                RING_OFFSET,
                &format!("batch {sequence} is missing or damaged, and batch {} still needs it", newest.sequence),
            )?;
            break;
        };
        print_batch(subject, printer, batch, &mut counts)?;
    }
    let needed = newest.sequence + 1 - newest.tail_sequence.max(1);
    let text = counts.iter().map(|(kind, n)| format!("{n} {kind}")).collect::<Vec<_>>().join(", ");
    let text = format!(
        "{needed} batches needed, {} older ones in the ring; records: {text}",
        found.len() as u64 - needed.min(found.len() as u64)
    );
    printer.item("end", &text, json!({ "batches": needed, "records": counts }))
}

fn offset_of(block: u32) -> u64 {
    RING_OFFSET + u64::from(block) * RING_BLOCK as u64
}

/// Every batch of this journal in the ring whose records are whole, by sequence.
fn scan(subject: &Subject, header: &JournalHeader) -> Result<BTreeMap<u64, JournalBatch>> {
    let mut found = BTreeMap::new();
    let mut block = 0;
    while block < header.ring_blocks && offset_of(block) < subject.length {
        let head = subject.read(offset_of(block), JOURNAL_BATCH_LEN as u64)?;
        let batch = JournalBatch::decode(&head).filter(|b| b.journal == header.journal && b.block == block);
        if let Some(batch) = batch {
            let bytes = subject.read(offset_of(block), u64::from(batch.blocks) * RING_BLOCK as u64)?;
            if batch.records(&bytes).is_some() {
                found.insert(batch.sequence, batch);
            }
        }
        // A newer batch may begin within the blocks of an older one.
        block += 1;
    }
    Ok(found)
}

fn print_batch(
    subject: &Subject,
    printer: &mut Printer,
    batch: &JournalBatch,
    counts: &mut BTreeMap<&'static str, u64>,
) -> Result<()> {
    let offset = offset_of(batch.block);
    let fields = json!({ "batch": batch.sequence, "offset": offset, "blocks": batch.blocks, "used": batch.used,
                         "tail": batch.tail_sequence });
    printer.item("batch", &format!("{batch}, offset {offset}"), fields)?;
    let bytes = subject.read(offset, u64::from(batch.blocks) * RING_BLOCK as u64)?;
    let Some(mut records) = batch.records(&bytes) else {
        return printer
            .problem(offset, &format!("the records of batch {} do not match their checksum", batch.sequence));
    };
    while !records.is_empty() {
        match decode_record(&mut records) {
            Ok(record) => {
                *counts.entry(kind(&record)).or_default() += 1;
                if printer.is_verbose() {
                    let chunk = record.chunk();
                    let fields = json!({ "kind": kind(&record), "pg": chunk.pg.0, "index": chunk.index, "text": record.to_string() });
                    printer.item("record", &format!("  {record}"), fields)?;
                }
            }
            Err(error) => return printer.problem(offset, &format!("batch {}: {error}", batch.sequence)),
        }
    }
    Ok(())
}

fn kind(record: &JournalRecord) -> &'static str {
    match record {
        JournalRecord::Create(_) => "create",
        JournalRecord::Extent(_) => "extent",
        JournalRecord::Punch { .. } => "punch",
        JournalRecord::Delete { .. } => "delete",
        JournalRecord::Overwrite(_) => "overwrite",
    }
}
