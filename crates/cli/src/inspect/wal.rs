//! A segment of the write-ahead log: header, batches, and with `--verbose` their records.
use super::Subject;
use super::printer::Printer;
use crate::error::Result;
use cairn_format::wal_batch::{BATCH_ALIGN, BATCH_HEADER_LEN, BatchHeader};
use cairn_format::wal_record::WalRecord;
use cairn_format::wal_segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use cairn_types::GroupId;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub fn inspect(subject: &Subject, printer: &mut Printer) -> Result<()> {
    let Some(block) = subject.block::<SEGMENT_HEADER_LEN>(0)? else {
        return printer.problem(subject.length, "the header of the log segment is cut off: it has 4096 bytes");
    };
    let header = match SegmentHeader::decode(&block) {
        Ok(header) => header,
        Err(error) => return printer.problem(0, &format!("segment header: {error}")),
    };
    let text = format!("segment {} of write-ahead log {}, {} bytes", header.number, header.log, subject.length);
    let fields = json!({ "log": header.log.to_string(), "segment": header.number, "bytes": subject.length });
    printer.head("wal_segment", &text, fields)?;
    if let Some(made) = header.length
        && made != subject.length
    {
        let text = format!("the file has {} bytes and was made with {made}: its end is missing", subject.length);
        printer.problem(subject.length.min(made), &text)?;
    }
    let mut counts = BTreeMap::new();
    let mut offset = SEGMENT_HEADER_LEN as u64;
    let mut last = None;
    while let Some(batch) = batch_at(subject, &header, offset, last)? {
        match batch {
            Ok((found, bytes)) => {
                print_batch(printer, offset, &found, &bytes, &mut counts)?;
                last = Some(found.number);
                offset += u64::from(found.length);
            }
            Err((text, length)) => {
                let after = later_batch(subject, &header, offset + length.max(BATCH_ALIGN as u64), last)?;
                match after {
                    Some(at) => printer.problem(offset, &format!("{text}, and a valid batch follows at {at}"))?,
                    None => printer.item(
                        "torn",
                        &format!("at offset {offset}: {text}; it is the last one and was torn by a crash, its writers were not answered"),
                        json!({ "offset": offset, "text": text }),
                    )?,
                }
                break;
            }
        }
    }
    if last.is_some()
        && batch_at(subject, &header, offset, last)?.is_none()
        && let Some(at) = later_batch(subject, &header, offset, last)?
    {
        printer.problem(offset, &format!("no batch, although a later one is at {at}"))?;
    }
    let counts: BTreeMap<String, u64> = counts.into_iter().map(|((g, kind), n)| (format!("{g} {kind}"), n)).collect();
    let text = counts.iter().map(|(what, n)| format!("  {what}: {n}")).collect::<Vec<_>>().join("\n");
    let text = if text.is_empty() { "no batches".to_owned() } else { format!("records by group and kind:\n{text}") };
    printer.item("end", &text, json!({ "end_offset": offset, "records": counts }))
}

type Batch = std::result::Result<(BatchHeader, Vec<u8>), (String, u64)>;

/// The batch at an offset: none where there never was one of this segment (recycled files keep older ones).
fn batch_at(subject: &Subject, segment: &SegmentHeader, offset: u64, last: Option<u64>) -> Result<Option<Batch>> {
    let head = subject.read(offset, BATCH_HEADER_LEN as u64)?;
    let header = match BatchHeader::decode(&head) {
        Ok(header) => header,
        Err(cairn_format::wal_batch::BatchError::NoHeader) => return Ok(None),
        Err(error) => return Ok(Some(Err((error.to_string(), 0)))),
    };
    if header.log != segment.log || header.segment != segment.number || last.is_some_and(|l| header.number <= l) {
        return Ok(None);
    }
    let length = u64::from(header.length);
    if offset + length > subject.length {
        return Ok(Some(Err((format!("batch {} ends behind the end of the file", header.number), length))));
    }
    let bytes = subject.read(offset, length)?;
    Ok(Some(match header.body(&bytes) {
        Ok(records) => Ok((header, records.to_vec())),
        Err(error) => Err((error.to_string(), length)),
    }))
}

/// Offset of a valid batch of this segment at or behind `from` that is newer than `last`.
fn later_batch(subject: &Subject, segment: &SegmentHeader, from: u64, last: Option<u64>) -> Result<Option<u64>> {
    let mut offset = from;
    while offset < subject.length {
        if let Some(Ok(_)) = batch_at(subject, segment, offset, last)? {
            return Ok(Some(offset));
        }
        offset += BATCH_ALIGN as u64;
    }
    Ok(None)
}

fn print_batch(
    printer: &mut Printer,
    offset: u64,
    header: &BatchHeader,
    records: &[u8],
    counts: &mut BTreeMap<(GroupId, &'static str), u64>,
) -> Result<()> {
    let text = format!(
        "batch {} at offset {offset}: {} records, {} bytes in {}",
        header.number, header.records, header.used, header.length
    );
    let fields = json!({ "batch": header.number, "offset": offset, "records": header.records, "used": header.used,
                         "length": header.length });
    printer.item("batch", &text, fields)?;
    let mut at = 0;
    while at < records.len() {
        let place = offset + (BATCH_HEADER_LEN + at) as u64;
        match WalRecord::decode(&records[at..]) {
            Ok((group, record, length)) => {
                *counts.entry((group, kind(&record))).or_default() += 1;
                if printer.is_verbose() {
                    let (text, mut fields) = describe(&record);
                    fields["group"] = json!(group.0);
                    fields["kind"] = json!(kind(&record));
                    printer.item("record", &format!("  {group} {} {text}", kind(&record)), fields)?;
                }
                at += length;
            }
            Err(error) => {
                printer.problem(place, &format!("record in batch {}: {error}", header.number))?;
                break;
            }
        }
    }
    Ok(())
}

fn kind(record: &WalRecord) -> &'static str {
    match record {
        WalRecord::Entries(_) => "entries",
        WalRecord::HardState { .. } => "hard_state",
        WalRecord::Truncate { .. } => "truncate",
        WalRecord::Reset { .. } => "reset",
        WalRecord::Tombstone => "tombstone",
        WalRecord::Bootstrap { .. } => "bootstrap",
        WalRecord::Fetched { .. } => "fetched",
    }
}

fn describe(record: &WalRecord) -> (String, Value) {
    match record {
        WalRecord::Entries(entries) => {
            let bytes: usize = entries.iter().map(|entry| entry.data.len()).sum();
            let (first, last) = (entries.first().map_or(0, |e| e.index), entries.last().map_or(0, |e| e.index));
            let term = entries.last().map_or(0, |e| e.term);
            let fields = json!({ "first": first, "last": last, "term": term, "bytes": bytes });
            (format!("{first} to {last}, term {term}, {bytes} bytes"), fields)
        }
        WalRecord::HardState { term, vote, commit } => (
            format!("term {term}, voted for {vote}, committed {commit}"),
            json!({ "term": term, "vote": vote, "commit": commit }),
        ),
        WalRecord::Truncate { index, term } | WalRecord::Reset { index, term } | WalRecord::Fetched { index, term } => {
            (format!("at {index}, term {term}"), json!({ "index": index, "term": term }))
        }
        WalRecord::Tombstone => (String::new(), json!({})),
        WalRecord::Bootstrap { index, term, voters } => (
            format!("at {index}, term {term}, voters {voters:?}"),
            json!({ "index": index, "term": term, "voters": voters }),
        ),
    }
}
