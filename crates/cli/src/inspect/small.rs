//! Files of one block or a short table: labels, states of placement groups and of scrubs, lists of partitions and of
//! disks.
use super::Subject;
use super::printer::Printer;
use crate::error::Result;
use crate::human::utc_time;
use cairn_format::bad_blocks::{BAD_BLOCKS_LEN_MAX, BadBlocks};
use cairn_format::disk_list::{DISK_LIST_LEN_MAX, DiskList};
use cairn_format::label::{LABEL_LEN, Label};
use cairn_format::marks::{LOSS_ACCEPTED, MarkList};
use cairn_format::partition_list::PartitionList;
use cairn_format::pg_state::{PG_STATE_LEN, PgStateRecord};
use cairn_format::scrub_state::{SCRUB_STATE_LEN, ScrubState};
use serde_json::{Value, json};

/// A longer list of marks than any that is written (a million entries of 32 bytes) is no list.
const MARK_LIST_MAX: u64 = 33 << 20;
/// A longer list of partitions than any that is written (65,536 entries of 96 bytes) is no list.
const PARTITION_LIST_MAX: u64 = 8 << 20;

pub fn label(subject: &Subject, printer: &mut Printer) -> Result<()> {
    let Some(block) = subject.block::<LABEL_LEN>(0)? else {
        return printer.problem(subject.length, "the label is cut off: it has 4096 bytes");
    };
    let label = match Label::decode(&block) {
        Ok(label) => label,
        Err(error) => return printer.problem(0, &format!("label: {error}")),
    };
    let known = |text: String, is_known: bool| if is_known { text } else { "not known yet".to_owned() };
    let mut lines = vec![
        format!("label of a {}", label.kind.name()),
        format!("uuid            {}", label.uuid),
        format!("cluster         {}", known(label.cluster.to_string(), !label.cluster.is_none())),
        format!("node            {}", known(label.node.to_string(), label.node.0 != 0)),
    ];
    if label.kind == cairn_format::label::LabelKind::Disk {
        lines.push(format!("disk            {}", known(label.disk.to_string(), label.disk.0 != 0)));
    }
    lines.push(format!("made            {}", utc_time(label.created.0)));
    let fields = json!({
        "of": label.kind.name(), "uuid": label.uuid.to_string(), "cluster": label.cluster.to_string(),
        "node": label.node.0, "disk": label.disk.0, "created_ns": label.created.0,
    });
    printer.head("label", &lines.join("\n"), fields)
}

pub fn pg_state(subject: &Subject, printer: &mut Printer) -> Result<()> {
    let Some(block) = subject.block::<PG_STATE_LEN>(0)? else {
        return printer.problem(subject.length, "the state of the placement group is cut off: it has 512 bytes");
    };
    match PgStateRecord::decode(&block) {
        Err(error) => printer.problem(0, &error.to_string()),
        Ok(state) => {
            let member = |m: &cairn_format::pg_state::PgStateMember| json!({ "disk": m.disk.0, "node": m.node.0, "state": m.state.name() });
            let fields = json!({
                "cluster": state.cluster.to_string(), "pg": state.pg.0, "volume": state.volume.0, "disk": state.disk.0,
                "high_water": state.high_water, "epoch": state.epoch.0, "creation_epoch": state.creation_epoch.0,
                "term": state.term, "scheme": state.scheme.to_string(), "retired": state.retired,
                "members": state.members.iter().map(member).collect::<Vec<Value>>(),
            });
            printer.head("pg_state", &state.to_string(), fields)
        }
    }
}

pub fn scrub_state(subject: &Subject, printer: &mut Printer) -> Result<()> {
    let Some(block) = subject.block::<SCRUB_STATE_LEN>(0)? else {
        return printer.problem(subject.length, "the state of the scrub is cut off: it has 128 bytes");
    };
    match ScrubState::decode(&block) {
        Err(error) => printer.problem(0, &error.to_string()),
        Ok(state) => {
            let time = |ns: u64| if ns == 0 { "-".to_owned() } else { utc_time(ns) };
            let text = format!(
                "scrub of disk {}: pass {}, began {}, ended {}, {} bytes read, {} bad blocks, {} healed, next {}",
                state.disk,
                state.pass,
                time(state.began),
                time(state.ended),
                state.bytes,
                state.bad,
                state.healed,
                state.next
            );
            let fields = json!({
                "disk_uuid": state.disk.to_string(), "pass": state.pass, "began_ns": state.began,
                "ended_ns": state.ended, "bytes": state.bytes, "bad_blocks": state.bad,
                "healed_blocks": state.healed, "next": state.next.to_string(),
            });
            printer.head("scrub_state", &text, fields)
        }
    }
}

pub fn bad_blocks(subject: &Subject, printer: &mut Printer) -> Result<()> {
    if subject.length > BAD_BLOCKS_LEN_MAX as u64 {
        return printer.problem(0, "the list of bad blocks is longer than any list is");
    }
    let list = match BadBlocks::decode(&subject.read(0, subject.length)?) {
        Ok(list) => list,
        Err(error) => return printer.problem(0, &error.to_string()),
    };
    let text = format!("list of bad blocks of disk {}, {} entries", list.disk, list.blocks.len());
    let fields = json!({ "disk_uuid": list.disk.to_string(), "entries": list.blocks.len() });
    printer.head("bad_blocks", &text, fields)?;
    for (chunk, block) in &list.blocks {
        let fields = json!({ "pg": chunk.pg.0, "index": chunk.index, "block": block });
        printer.item("bad_block", &format!("block {block} of {chunk}"), fields)?;
    }
    Ok(())
}

pub fn marks(subject: &Subject, printer: &mut Printer) -> Result<()> {
    if subject.length > MARK_LIST_MAX {
        return printer.problem(0, "the list of marks is longer than any list is");
    }
    let list = match MarkList::decode(&subject.read(0, subject.length)?) {
        Ok(list) => list,
        Err(error) => return printer.problem(0, &error.to_string()),
    };
    let text =
        format!("how far members of Raft groups got, by node directory {}, {} entries", list.node, list.entries.len());
    printer.head("marks", &text, json!({ "node_uuid": list.node.to_string(), "entries": list.entries.len() }))?;
    for entry in &list.entries {
        let text = match entry.node.0 {
            0 if entry.term == LOSS_ACCEPTED => {
                let (group, index) = (entry.group, entry.index);
                format!(
                    "group {group}: members as of entry {index}; a person accepted that the member here has forgotten something"
                )
            }
            0 => format!("group {}: members as of entry {}", entry.group, entry.index),
            _ => format!("group {}, {}: term {}, entry {}", entry.group, entry.node, entry.term, entry.index),
        };
        let fields = json!({ "group": entry.group.0, "node": entry.node.0, "term": entry.term, "index": entry.index });
        printer.item("mark", &text, fields)?;
    }
    Ok(())
}

pub fn partition_list(subject: &Subject, printer: &mut Printer) -> Result<()> {
    if subject.length > PARTITION_LIST_MAX {
        return printer.problem(0, "the list of partitions is longer than any list is");
    }
    let list = match PartitionList::decode(&subject.read(0, subject.length)?) {
        Ok(list) => list,
        Err(error) => return printer.problem(0, &error.to_string()),
    };
    let text = format!("list of partitions of node directory {}, {} entries", list.node, list.entries.len());
    printer.head(
        "partition_list",
        &text,
        json!({ "node_uuid": list.node.to_string(), "entries": list.entries.len() }),
    )?;
    for entry in &list.entries {
        let members: Vec<String> = entry.members.iter().map(|node| node.to_string()).collect();
        let text = format!(
            "partition {} of {}: inodes {} to {}, began with {}{}",
            entry.partition,
            entry.volume,
            entry.inodes.0,
            entry.inodes.1,
            members.join(" "),
            if entry.begun { "" } else { " (has not begun here)" }
        );
        let fields = json!({
            "partition": entry.partition.0, "volume": entry.volume.0, "inode_first": entry.inodes.0,
            "inode_last": entry.inodes.1, "begun": entry.begun,
            "members": entry.members.iter().map(|node| node.0).collect::<Vec<u32>>(),
        });
        printer.item("partition", &text, fields)?;
    }
    Ok(())
}

pub fn disk_list(subject: &Subject, printer: &mut Printer) -> Result<()> {
    if subject.length > DISK_LIST_LEN_MAX as u64 {
        return printer.problem(0, "the list of disks is longer than any list is");
    }
    let list = match DiskList::decode(&subject.read(0, subject.length)?) {
        Ok(list) => list,
        Err(error) => return printer.problem(0, &error.to_string()),
    };
    let text = format!("list of disks of node directory {}, {} entries", list.node, list.disks.len());
    let fields = json!({ "node_uuid": list.node.to_string(), "entries": list.disks.len() });
    printer.head("disk_list", &text, fields)?;
    for (path, uuid) in &list.disks {
        printer.item("disk", &format!("{path}: disk {uuid}"), json!({ "path": path, "uuid": uuid.to_string() }))?;
    }
    Ok(())
}
