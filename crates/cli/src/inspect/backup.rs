//! Files that save a cluster: manifests of backups, scans of directories.
use super::Subject;
use super::printer::Printer;
use crate::error::Result;
use crate::human::utc_time;
use cairn_format::backup_manifest::{BACKUP_LEN_MAX, BackupManifest};
use cairn_format::map_scan::{MapScan, ScanKind};
use serde_json::json;

pub fn manifest(subject: &Subject, printer: &mut Printer) -> Result<()> {
    let manifest = match BackupManifest::decode(&subject.read(0, BACKUP_LEN_MAX as u64 + 1)?) {
        Err(error) => return printer.problem(0, &error.to_string()),
        Ok(manifest) => manifest,
    };
    let text = format!(
        "backup {} of cluster {}: begun {}, complete {}, {} groups",
        manifest.number,
        manifest.cluster,
        utc_time(manifest.begun.0),
        utc_time(manifest.ended.0),
        manifest.entries.len()
    );
    let fields = json!({
        "number": manifest.number, "cluster": manifest.cluster.to_string(), "begun_ns": manifest.begun.0,
        "ended_ns": manifest.ended.0, "groups": manifest.entries.len(),
    });
    printer.head("backup", &text, fields)?;
    for entry in &manifest.entries {
        let led = if entry.led { "leader" } else { "member" };
        let text = format!(
            "group {} at entry {} of term {}: {} bytes, checksum {:08x}, from {led} {}{}",
            entry.group,
            entry.index,
            entry.term,
            entry.bytes,
            entry.crc,
            entry.node,
            if entry.cut { ", of its volume's moment" } else { "" }
        );
        let fields = json!({
            "group": entry.group.0, "index": entry.index, "term": entry.term, "time_ns": entry.time.0,
            "bytes": entry.bytes, "crc": entry.crc, "node": entry.node.0, "led": entry.led,
            "cut": entry.cut,
        });
        printer.item("group", &text, fields)?;
    }
    Ok(())
}

pub fn scan(subject: &Subject, printer: &mut Printer) -> Result<()> {
    let scan = match MapScan::decode(&subject.read(0, subject.length)?) {
        Err(error) => return printer.problem(0, &error.to_string()),
        Ok(scan) => scan,
    };
    let fields = json!({ "items": scan.items.len() });
    printer.head("scan", &format!("scan of directories: {} items", scan.items.len()), fields)?;
    for item in &scan.items {
        let kind = match item.kind {
            ScanKind::Label => "label",
            ScanKind::PgState => "state of a placement group",
            ScanKind::PartitionList => "list of partitions",
            ScanKind::CheckpointHead => "head of a checkpoint",
        };
        let text = format!("{kind}: {}, {} bytes", item.path, item.contents.len());
        printer.item("copy", &text, json!({ "of": kind, "path": item.path, "bytes": item.contents.len() }))?;
    }
    Ok(())
}
