//! A member whose node has no memory left for more metadata.

use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::meta::{AttributesResponse, SetattrRequest, UnlinkRequest};

use super::fixture::{Caller, Cluster, eventually, quick};

/// Of the smallest node: some hundred files.
const MEMORY: u64 = 64 << 10;

fn unlink(caller: &mut Caller, name: &str) -> Result<(), ErrorCode> {
    let request = UnlinkRequest { header: Some(caller.header()), parent: 1, name: name.as_bytes().to_vec() };
    caller.call::<Empty>(Opcode::Unlink, &request).map(drop)
}

/// The answer of the leader as it is.
fn create_at_leader(cluster: &Cluster, caller: &mut Caller, name: &str) -> Result<AttributesResponse, WireError> {
    let request = caller.create_request(name);
    caller.call_at(cluster.address(cluster.leader()), Opcode::Create.code(), &request)
}

/// The node with the least memory would be ended by the kernel, one after the other; or nobody could remove anything
/// that would make room.
#[test]
fn the_fullest_member_counts_wherever_the_leader_is() {
    let mut cluster = Cluster::prepare(3, quick(), |config| config);
    cluster.memory[2] = MEMORY;
    (0..3).for_each(|number| cluster.run(number));
    cluster.share_map();
    let mut caller = cluster.caller(9);
    let mut made = Vec::new();
    let refused = loop {
        let name = format!("a-file-with-a-name-that-takes-some-memory-{}", made.len());
        match caller.create(&name) {
            Ok(_) => made.push(name),
            Err(code) => break code,
        }
        assert!(made.len() < 50_000, "nothing was refused");
        // A look at the memory comes in between.
        std::thread::sleep(std::time::Duration::from_micros(200));
    };
    assert_eq!(refused, ErrorCode::NoSpace);
    assert!(made.len() > 100, "{} files fit into {MEMORY} bytes", made.len());
    let error = create_at_leader(&cluster, &mut caller, "one-more").expect_err("full");
    assert!(error.message.contains("meta node n18 is used up") && error.message.contains("p5"), "{}", error.message);

    let inode = caller.lookup(&made[0]).expect("served");
    let set = SetattrRequest { header: Some(caller.header()), inode, valid: 1, mode: 0o600, ..Default::default() };
    caller.call::<AttributesResponse>(Opcode::Setattr, &set).expect("attributes change");

    // The next leader starts from the log, and has heard nobody yet.
    let leader = cluster.leader();
    if leader != 2 {
        cluster.kill(leader);
        assert_eq!(caller.create("still"), Err(ErrorCode::NoSpace));
        cluster.run(leader);
        cluster.share_map();
    }
    for name in &made {
        unlink(&mut caller, name).expect("removed");
    }
    let mut tries = 0;
    eventually("room", || {
        tries += 1;
        caller.create(&format!("new{tries}")).is_ok()
    });
    let full = |number: usize| cluster.meta(number).partition_reports().iter().any(|report| report.full_node != 0);
    eventually("that all know it", || (0..3).all(|number| !full(number)));
    assert!(cluster.meta(2).common().memory.problem().is_none());
}
