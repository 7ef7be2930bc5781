//! A checkpoint of a Raft group: header, pages (each verified), footer.
use super::Subject;
use super::printer::Printer;
use crate::error::Result;
use crate::human::{bytes, utc_time};
use cairn_format::checkpoint::{CHECKPOINT_BLOCK, CheckpointFooter, CheckpointHeader, PAGE_LEN, PageHeader};
use cairn_types::crc32c_append;
use serde_json::json;

pub fn inspect(subject: &Subject, printer: &mut Printer) -> Result<()> {
    let block = CHECKPOINT_BLOCK as u64;
    let Some(head) = subject.block::<CHECKPOINT_BLOCK>(0)? else {
        return printer.problem(subject.length, "the header of the checkpoint is cut off: it has 4096 bytes");
    };
    let header = match CheckpointHeader::decode(&head) {
        Ok(header) => header,
        Err(error) => return printer.problem(0, &format!("checkpoint header: {error}")),
    };
    let text = format!(
        "checkpoint of group {} at index {}, term {}, {}\ncluster         {}\nvoters          {:?}, learners {:?}",
        header.group,
        header.index,
        header.term,
        utc_time(header.time.0),
        header.cluster,
        header.voters,
        header.learners
    );
    let fields = json!({
        "cluster": header.cluster.to_string(), "group": header.group.0, "index": header.index, "term": header.term,
        "time_ns": header.time.0, "voters": header.voters, "learners": header.learners,
    });
    printer.head("checkpoint", &text, fields)?;
    if subject.length < 2 * block || !subject.length.is_multiple_of(block) {
        return printer.problem(subject.length, "the file is cut off; the server takes the checkpoint before it");
    }
    let footer_at = subject.length - block;
    let footer = subject.block::<CHECKPOINT_BLOCK>(footer_at)?.map(|block| CheckpointFooter::decode(&block));
    let footer = match footer {
        Some(Ok(footer)) => Some(footer),
        Some(Err(error)) => {
            printer.problem(footer_at, &format!("footer: {error}; the checkpoint is not complete"))?;
            None
        }
        None => None,
    };
    let (pages, data, pages_crc) = pages(subject, printer, &header, footer_at)?;
    if let Some(footer) = footer
        && ((footer.pages, footer.bytes, footer.index) != (pages, data, header.index) || footer.pages_crc != pages_crc)
    {
        let text = format!(
            "the footer names {} pages with {} bytes of index {}, and there are {pages} with {data} of index {}",
            footer.pages, footer.bytes, footer.index, header.index
        );
        printer.problem(footer_at, &text)?;
    }
    printer.item(
        "end",
        &format!("{pages} pages with {} of state", bytes(data)),
        json!({ "pages": pages, "bytes": data }),
    )
}

/// Verifies the pages; gives their number, their data bytes and the checksum over their checksums.
fn pages(subject: &Subject, printer: &mut Printer, header: &CheckpointHeader, end: u64) -> Result<(u64, u64, u32)> {
    let (mut number, mut data, mut crcs) = (0, 0, Vec::new());
    let mut offset = CHECKPOINT_BLOCK as u64;
    while offset < end {
        let length = (PAGE_LEN as u64).min(end - offset);
        let page = subject.read(offset, length)?;
        match PageHeader::decode(&page) {
            Ok(page) if (page.number, page.index, page.group) == (number, header.index, header.group) => {
                data += u64::from(page.length);
                crcs.extend_from_slice(&page.crc.to_le_bytes());
                if printer.is_verbose() {
                    let text = format!("page {number} at offset {offset}: {} bytes, crc {:08x}", page.length, page.crc);
                    printer.item("page", &text, json!({ "page": number, "offset": offset, "bytes": page.length }))?;
                }
            }
            Ok(page) => {
                let text = format!(
                    "page {} of group {} index {} stands where page {number} should be",
                    page.number, page.group, page.index
                );
                printer.problem(offset, &text)?;
            }
            Err(error) => printer.problem(offset, &format!("page {number}: {error}"))?,
        }
        number += 1;
        offset += length;
    }
    Ok((number, data, crc32c_append(0, &crcs)))
}
