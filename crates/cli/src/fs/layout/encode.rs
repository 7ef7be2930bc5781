//! `cairn fs layout encode`: files with a later scheme are encoded now; and how encoding in the background goes on.
//!
//! What is asked for here is a job like a conversion. What comes by age is done by the leaders of meta partitions,
//! which tell how far they are.
use super::convert;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::human::{bytes, local_time};
use crate::redundancy::whole_view;
use crate::remote::expand_all;
use cairn_client::RemotePath;
use cairn_client::stage_status::StageStatus;
use cairn_types::{Layout, Stage};
use clap::Args;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

#[derive(Args, Debug)]
pub struct EncodeArgs {
    /// Remote files, or directories with all that is below them
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Do not wait: print the number of the job and end
    #[arg(short, long)]
    background: bool,
}

impl EncodeArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let report = context.report("encoding", None);
        for found in expand_all(context, &self.paths, true, &report).await {
            let layout = Layout::from_bits(found.attributes.layout).filter(|layout| layout.staged().is_some());
            let outcome = match layout {
                Some(layout) => {
                    convert::start(context, &found, layout.in_stage(Stage::Encoded), self.background, &report).await
                }
                None => Err(not_staged(&found.at, found.attributes.layout)),
            };
            if let Err(error) = outcome {
                report.fail(&error);
            }
        }
        report.finish()
    }
}

fn not_staged(at: &RemotePath, bits: u64) -> CliError {
    let layout = crate::entry::layout_text(bits);
    CliError::BadLayout(format!(
        "{at}: its layout is {layout}, with which nothing is encoded later: name directories or files whose layout is such as \
         r3>rs-6-3, or convert it: cairn fs layout convert 'r3>rs-6-3' {at}"
    ))
}

/// What to know of a staged layout where there are fewer racks than encoded files have members.
pub(super) async fn racks_text(context: &Context, at: &RemotePath, layout: Layout) -> Result<Option<String>> {
    let Some(later) = layout.staged() else { return Ok(None) };
    let view = whole_view(context, at).await?;
    let racks: BTreeSet<&str> =
        view.disks.values().filter_map(|disk| view.nodes.get(&disk.node)).map(|node| node.rack.as_str()).collect();
    let encoded = fewer_racks(later.members(), later.members() - later.read_minimum(), racks.len()).map(|survives| {
        format!(
            "{later} has {} members and this cluster {} rack{}: encoded files survive the loss of {survives}",
            later.members(),
            racks.len(),
            if racks.len() == 1 { "" } else { "s" }
        )
    });
    let volume = context.volume(at).await?.id();
    let in_columns = view.pgs.values().any(|pg| pg.volume == volume && pg.class() == layout.pg_class() && pg.writable);
    let waiting = in_columns.then(|| {
        "until they are encoded their copies lie in two racks, of which one may fail (cairn admin config set stripe_groups=off: in as \
         many as there are)"
            .to_string()
    });
    let texts: Vec<String> = encoded.into_iter().chain(waiting).collect();
    Ok(Some(texts.join("; ")).filter(|text| !text.is_empty()))
}

/// Racks that may be lost where members lie spread evenly over fewer racks than there are members.
fn fewer_racks(members: usize, losses: usize, racks: usize) -> Option<String> {
    if racks == 0 || racks >= members {
        return None;
    }
    Some(match losses / members.div_ceil(racks) {
        0 => format!("no whole rack, only of {losses} disks or hosts"),
        1 => "one rack".into(),
        n => format!("{n} racks"),
    })
}

/// Prints how encoding goes on in each volume in which something waits or was done.
pub(super) async fn show_background(context: &Context) -> Result<()> {
    let client = context.client().await?;
    let view = client.refresh().await?;
    let names: BTreeMap<u32, String> = view.volumes.iter().map(|(id, volume)| (*id, volume.name.clone())).collect();
    for name in names.into_values() {
        let status = match client.volume(&name).await {
            Ok(volume) => {
                let status = volume.stage_status().await;
                volume.close().await;
                status
            }
            Err(error) => Err(error),
        };
        let parts = match status {
            Ok(parts) => parts,
            Err(error) => {
                // In the trash, of an earlier version, or away: others are shown.
                tracing::debug!(volume = name, %error, "how encoding goes on is not known");
                continue;
            }
        };
        for (partition, status) in parts.into_iter().filter(|(_, status)| is_of_interest(status)) {
            if context.out.is_json() {
                context.out.json(&status_json(&name, partition, &status))?;
            } else {
                context.out.line(status_text(&name, partition, &status))?;
            }
        }
    }
    Ok(())
}

fn is_of_interest(status: &StageStatus) -> bool {
    status.waiting_files + status.encoded_files + status.kept_files + status.left_times > 0
}

fn status_text(volume: &str, partition: u32, s: &StageStatus) -> String {
    let mut text = format!(
        "encoding in volume {volume}, p{partition}: {} files wait ({})",
        s.waiting_files,
        bytes(s.waiting_bytes)
    );
    if s.due_files > 0 {
        text.push_str(&format!(", {} of them due ({})", s.due_files, bytes(s.due_bytes)));
    }
    if s.shared_files > 0 {
        text.push_str(&format!(
            ", {} of them ({}) stay copies until clones with the same bytes are gone",
            s.shared_files,
            bytes(s.shared_bytes)
        ));
    }
    if s.next_due_ns > 0 {
        text.push_str(&format!(", the next one {}", local_time(s.next_due_ns)));
    }
    if s.inode > 0 {
        text.push_str(&format!("; inode {} runs, at {}", s.inode, bytes(s.from)));
    }
    if s.held {
        text.push_str("; held at this hour (stage_hours)");
    }
    text.push_str(&format!(
        "; since {}: {} encoded ({} written, {} came back), {} stay copies",
        local_time(s.since_ns),
        s.encoded_files,
        bytes(s.encoded_bytes),
        bytes(s.freed_bytes),
        s.kept_files
    ));
    if s.left_times > 0 {
        text.push_str(&format!(", {} times left for later", s.left_times));
    }
    if !s.last_reason.is_empty() {
        text.push_str(&format!(", the last: {}", s.last_reason));
    }
    text
}

fn status_json(volume: &str, partition: u32, s: &StageStatus) -> Value {
    let mut object = Map::new();
    let fields = json!({
        "background": "encode", "volume": volume, "partition": partition, "waiting_files": s.waiting_files,
        "waiting_bytes": s.waiting_bytes, "due_files": s.due_files, "due_bytes": s.due_bytes,
        "shared_files": s.shared_files, "shared_bytes": s.shared_bytes,
        "next_due_ns": s.next_due_ns, "inode": s.inode, "from": s.from, "held": s.held, "since_ns": s.since_ns,
        "encoded_files": s.encoded_files, "encoded_bytes": s.encoded_bytes, "freed_bytes": s.freed_bytes,
        "kept_files": s.kept_files, "left_times": s.left_times, "last_reason": s.last_reason,
    });
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody would believe that a rack may burn.
    #[test]
    fn racks_that_may_be_lost() {
        let racks = |members, losses, racks| fewer_racks(members, losses, racks).unwrap_or_default();
        assert_eq!(racks(9, 3, 9), "");
        assert_eq!(racks(9, 3, 3), "one rack");
        assert_eq!(racks(9, 3, 6), "one rack");
        assert_eq!(racks(14, 4, 7), "2 racks");
        assert!(racks(14, 4, 3).starts_with("no whole rack"));
        assert!(racks(5, 2, 1).starts_with("no whole rack"));
    }

    /// What waits, runs and was done would not be told.
    #[test]
    fn all_that_is_known_is_told() {
        let mut status = StageStatus { waiting_files: 3, waiting_bytes: 3 << 20, ..Default::default() };
        assert!(is_of_interest(&status) && !is_of_interest(&StageStatus::default()));
        let text = status_text("v", 2, &status);
        assert!(text.starts_with("encoding in volume v, p2: 3 files wait (3.0 MiB); since"), "{text}");
        (status.inode, status.from, status.encoded_files, status.freed_bytes) = (7, 1 << 20, 5, 1 << 30);
        (status.held, status.left_times, status.last_reason) = (true, 1, "inode 9: away".into());
        let text = status_text("v", 2, &status);
        for part in
            ["inode 7 runs, at 1.0 MiB", "stage_hours", "5 encoded", "1.0 GiB came back", "the last: inode 9: away"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(status_json("v", 2, &status)["freed_bytes"], 1 << 30);
        (status.last_reason, status.shared_files) = (String::new(), 2);
        let text = status_text("v", 2, &status);
        assert!(
            text.ends_with("1 times left for later") && text.contains("2 of them (0 B) stay copies until"),
            "{text}"
        );
    }
}
