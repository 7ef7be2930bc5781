//! Waiting for the contents of a file to change.

use std::time::{Duration, Instant};

use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::meta::*;

use super::fixture::{Caller, Cluster, quick};

fn wait(caller: &Caller, inode: u64, data_version: u64, wait_ms: u32) -> Result<Attributes, ErrorCode> {
    let request = WaitChangeRequest { header: Some(caller.read_header()), inode, data_version, wait_ms };
    let answer: AttributesResponse = caller.call(Opcode::WaitChange, &request)?;
    Ok(answer.attributes.expect("attributes"))
}

fn truncate(caller: &mut Caller, inode: u64, size: u64) -> Attributes {
    let header = Some(caller.header());
    let request = SetattrRequest { header, inode, valid: 1 << 3, size, ..Default::default() };
    let answer: AttributesResponse = caller.call(Opcode::Setattr, &request).expect("changed");
    answer.attributes.expect("attributes")
}

/// Who follows a file would have to look again and again, or never hear of what is new.
#[test]
fn who_waits_for_a_change_is_woken_by_it() {
    let cluster = Cluster::with(3, quick(), |config| config);
    let mut writer = cluster.caller(1);
    let (inode, other) = (writer.create("f").expect("created"), writer.create("g").expect("created"));
    let before = wait(&writer, inode, u64::MAX, 5000).expect("known").data_version;
    assert_eq!(wait(&writer, inode, before, 100).expect("the time is over").data_version, before);
    let waiter = std::thread::spawn({
        let caller = cluster.caller(2);
        move || {
            // Longer than one request is parked.
            let mut found = wait(&caller, inode, before, 5000);
            for _ in 0..20 {
                if found.as_ref().is_ok_and(|found| found.data_version == before) {
                    found = wait(&caller, inode, before, 5000);
                }
            }
            (found, Instant::now())
        }
    });
    std::thread::sleep(Duration::from_millis(200));
    truncate(&mut writer, other, 5);
    let begun = Instant::now();
    let now = truncate(&mut writer, inode, 4096);
    let (found, heard) = waiter.join().expect("no panic");
    assert_eq!(found.expect("woken"), now);
    assert!(heard > begun, "not before");
    assert_eq!(wait(&writer, 1 << 50, 0, 5000).map(drop), Err(ErrorCode::Stale));
}
