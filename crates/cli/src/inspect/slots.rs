//! Files of two slots that are written in turn: the generation of a disk, and the mark of a log. The first may never
//! have been written.
use super::Subject;
use super::printer::Printer;
use crate::error::Result;
use cairn_format::generation::{GENERATION_LEN, GENERATION_SLOT, GenerationRecord};
use cairn_format::wal_mark::{WAL_MARK_LEN, WalMark};
use serde_json::json;

/// First bytes of a file; those of the second slot if the first one is empty.
pub fn magic(subject: &Subject) -> Result<Vec<u8>> {
    let first = subject.read(0, 8)?;
    let empty = first.len() == 8 && first.iter().all(|&byte| byte == 0);
    if empty { subject.read(GENERATION_SLOT, 8) } else { Ok(first) }
}

/// What the slots have that were ever written; damage is said. Both kinds of files have slots of the same length.
fn slots<const N: usize, T>(
    subject: &Subject,
    printer: &mut Printer,
    decode: impl Fn(&[u8; N]) -> std::result::Result<T, String>,
) -> Result<Vec<T>> {
    let mut found = Vec::new();
    for at in [0, GENERATION_SLOT] {
        let Some(block) = subject.block::<N>(at)? else {
            printer.problem(subject.length, "the file is cut off: it has two slots of 4096 bytes")?;
            continue;
        };
        if block.iter().all(|&byte| byte == 0) {
            continue;
        }
        match decode(&block) {
            Ok(slot) => found.push(slot),
            Err(error) => printer.problem(at, &error)?,
        }
    }
    Ok(found)
}

pub fn generation(subject: &Subject, printer: &mut Printer) -> Result<()> {
    let decode = |block: &[u8; GENERATION_LEN]| GenerationRecord::decode(block).map_err(|error| error.to_string());
    let found = slots(subject, printer, decode)?;
    let number = |record: &GenerationRecord| record.lineage.present().map_or(0, |present| present.number);
    let Some(record) = found.iter().max_by_key(|record| number(record)) else { return Ok(()) };
    let text = format!(
        "generation {} of disk {}, which the manager knows up to {}, {} starts",
        number(record),
        record.disk,
        record.lineage.confirmed,
        record.lineage.runs.len()
    );
    let fields = json!({
        "disk_uuid": record.disk.to_string(), "number": number(record), "confirmed": record.lineage.confirmed,
        "starts": record.lineage.runs.len(),
    });
    printer.head("generation", &text, fields)?;
    for run in &record.lineage.runs {
        let text = format!("a start: up to {}, nonce {:016x}", run.number, run.nonce);
        printer.item("start", &text, json!({ "number": run.number, "nonce": format!("{:016x}", run.nonce) }))?;
    }
    Ok(())
}

pub fn wal_mark(subject: &Subject, printer: &mut Printer) -> Result<()> {
    let decode = |block: &[u8; WAL_MARK_LEN]| WalMark::decode(block).map_err(|error| error.to_string());
    let found = slots(subject, printer, decode)?;
    let Some(mark) = found.iter().max_by_key(|mark| mark.sequence) else { return Ok(()) };
    let text = format!(
        "mark {} of log {}: durable up to batch {} of segment {}, which ends at {}",
        mark.sequence, mark.log, mark.batch, mark.segment, mark.end
    );
    let fields = json!({
        "log": mark.log.to_string(), "sequence": mark.sequence, "segment": mark.segment, "batch": mark.batch,
        "end": mark.end,
    });
    printer.head("log_mark", &text, fields)
}
