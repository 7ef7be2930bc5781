//! Encoding of files with a later scheme: a data node is asked for what is due, and for nothing else.

use std::time::Duration;

use cairn_types::{ErrorCode, Layout, Stage, StageHours};
use cairn_wire::Opcode;
use cairn_wire::data::{EncodeRequest, EncodeResponse};
use cairn_wire::meta::{AttributesResponse, PublishRequest, StageStatusRequest, StageStatusResponse};

use super::fixture::{Caller, Cluster, DataNode, VOLUME, eventually, quick};
use crate::MetaTimings;
use crate::stage::StageSettings;

const WRITER: u64 = 9;
const MORE: u32 = 1;
const ENCODED: u32 = 2;
const LEFT: u32 = 4;

fn timings() -> MetaTimings {
    MetaTimings { stage_tick: Duration::from_millis(10), stage_retry: Duration::from_millis(10), ..quick() }
}

fn answer(outcome: u32, next: u64) -> EncodeResponse {
    EncodeResponse {
        outcome,
        next,
        moved_bytes: 1000,
        freed_bytes: 500,
        reason: "because".into(),
        ..Default::default()
    }
}

/// A file of a staged layout with some bytes.
fn make(caller: &mut Caller, name: &str, layout: &str) -> (u64, u64) {
    let inode = caller.create_with_chunks(name, 3);
    let layout = layout.parse::<Layout>().expect("a layout").to_bits();
    let found = set(caller, inode, 1, layout).expect("relabelled");
    (inode, found)
}

/// A conversion without bytes; the new version.
fn set(caller: &mut Caller, inode: u64, version: u64, layout: u64) -> Result<u64, ErrorCode> {
    let header = Some(caller.header());
    let request =
        PublishRequest { header, inode, if_data_version: version, layout, keep_mtime: true, ..Default::default() };
    let answer: AttributesResponse = caller.call(Opcode::Publish, &request)?;
    Ok(answer.attributes.expect("attributes").data_version)
}

fn status(caller: &Caller) -> StageStatusResponse {
    let request = StageStatusRequest { header: Some(caller.read_header()) };
    caller.call(Opcode::StageStatus, &request).expect("told")
}

fn requests(data: &DataNode, count: usize) -> Vec<EncodeRequest> {
    let mut all = Vec::new();
    eventually("requests", || {
        all.extend(data.take_encoded());
        all.len() >= count
    });
    all
}

/// Files would be encoded before their time, outside of the hours that are set, or never; or a part of them be left
/// out.
#[test]
fn what_is_due_is_asked_for_part_by_part() {
    let data: Vec<DataNode> = (0..2).map(|_| DataNode::start()).collect();
    let mut cluster = Cluster::with(1, timings(), |config| config);
    cluster.add_pg(&data.iter().collect::<Vec<_>>());
    let mut writer = cluster.caller(WRITER);
    eventually("the level", || status(&writer).since_ns > 0);
    let common = cluster.meta(0).common();
    *common.stage.write() = StageSettings { rate: Some(0), hours: StageHours::Never };
    data[0].answer_encodes(vec![answer(MORE, 4096), answer(MORE, 8192), answer(LEFT, 0)]);
    let (late, _) = make(&mut writer, "late", "r3>rs-3-2");
    let (soon, version) = make(&mut writer, "soon", "r3>rs-3-2@1s");
    make(&mut writer, "plain", "r3");
    eventually("both to wait, one of them due", || {
        let told = status(&writer);
        (told.waiting_files, told.due_files, told.held) == (2, 1, true) && told.next_due_ns > 0
    });
    assert_eq!(data[0].take_encoded(), [], "not at this hour");
    let waiting = status(&writer).waiting_bytes;
    *common.stage.write() = StageSettings { rate: Some(0), hours: StageHours::Always };
    let asked = |from| EncodeRequest { volume: VOLUME, inode: soon, from, ..Default::default() };
    assert_eq!(requests(&data[0], 3)[..3], [asked(0), asked(4096), asked(8192)]);
    // It is left, and tried again from its beginning.
    assert!(requests(&data[0], 1)[0] == asked(0));
    eventually("the reason", || status(&writer).last_reason == format!("inode {soon}: because"));
    data[0].answer_encodes(vec![answer(ENCODED, 0)]);
    let encoded = "r3>rs-3-2@1s".parse::<Layout>().expect("a layout").in_stage(Stage::Encoded).to_bits();
    set(&mut writer, soon, version, encoded).expect("encoded");
    eventually("one that waits", || status(&writer).waiting_files == 1);
    let told = status(&writer);
    assert_eq!((told.waiting_bytes, told.due_files), (waiting / 2, 0), "of now, like the files");
    eventually("the reason to go with its cause", || status(&writer).last_reason.is_empty());
    // What a request came to is counted when its answer was read.
    eventually("all to be counted", || {
        let told = status(&writer);
        told.freed_bytes >= 2000 && told.encoded_bytes >= 4000 && told.left_times >= 1
    });
    data[0].take_encoded();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(data[0].take_encoded(), [], "nothing is due");
    // A node that refuses keeps nothing from being encoded.
    data[0].refuse(true);
    data[1].answer_encodes(vec![answer(ENCODED, 0)]);
    let (third, _) = make(&mut writer, "third", "r3>rs-3-2@1s");
    assert_eq!(requests(&data[1], 1)[0], EncodeRequest { volume: VOLUME, inode: third, from: 0, ..Default::default() });
    assert!(late != third);
}
