//! Reads at members that do not lead.

use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{
    AttributesResponse, CreateRequest, LookupRequest, OpenRequest, ReadStaleRequest, ReadStaleResponse,
};
use prost::Message;

use super::fixture::{Caller, Cluster, eventually};

fn ask(
    caller: &Caller,
    address: &str,
    opcode: Opcode,
    request: &impl Message,
    age_ms_max: u64,
) -> Result<ReadStaleResponse, WireError> {
    let question = ReadStaleRequest {
        header: Some(caller.read_header()),
        opcode: u32::from(opcode.code()),
        request: request.encode_to_vec(),
        age_ms_max,
    };
    caller.call_at(address, Opcode::ReadStale.code(), &question)
}

fn lookup(caller: &Caller, name: &str) -> LookupRequest {
    LookupRequest { header: Some(caller.read_header()), parent: 1, name: name.as_bytes().to_vec() }
}

fn inode(answer: &ReadStaleResponse) -> u64 {
    let answer = AttributesResponse::decode(&answer.answer[..]).expect("attributes");
    answer.attributes.expect("some").inode
}

/// Names would be out of reach while most of a partition's members are down, or be read where nobody asked for old
/// ones.
#[test]
fn whoever_asks_for_it_reads_at_a_member_that_does_not_lead() {
    let mut cluster = Cluster::start(3);
    let mut caller = cluster.caller(1);
    let made = caller.create("a").expect("created");
    eventually("an answer of who leads, which misses nothing", || {
        let answer = ask(&caller, cluster.address(cluster.leader()), Opcode::Lookup, &lookup(&caller, "a"), 0);
        answer.is_ok_and(|answer| answer.age_ms == 0 && inode(&answer) == made)
    });
    let alone = (cluster.leader() + 1) % 3;
    let address = cluster.address(alone).to_owned();
    // With a leader it knows that it is young.
    eventually("a young answer with the file", || {
        ask(&caller, &address, Opcode::Lookup, &lookup(&caller, "a"), 15_000)
            .is_ok_and(|answer| answer.error == 0 && inode(&answer) == made)
    });
    (0..3).filter(|number| *number != alone).for_each(|number| cluster.kill(number));
    eventually("it to get older", || {
        let answer = ask(&caller, &address, Opcode::Lookup, &lookup(&caller, "a"), 0).expect("however old");
        assert_eq!(inode(&answer), made);
        answer.age_ms > 300
    });
    let refused = ask(&caller, &address, Opcode::Lookup, &lookup(&caller, "a"), 300).expect_err("too old");
    assert!(refused.code == ErrorCode::Unavailable && refused.message.contains("0.3 s were allowed"), "{refused}");
    let missing = ask(&caller, &address, Opcode::Lookup, &lookup(&caller, "b"), 0).expect("an answer");
    assert_eq!(missing.error, u32::from(ErrorCode::NotFound.code()), "what is not there is said with its age");
    let plain: Result<AttributesResponse, WireError> =
        caller.call_at(&address, Opcode::Lookup.code(), &lookup(&caller, "a"));
    assert_eq!(plain.map_err(|error| error.code), Err(ErrorCode::NotLeader), "nobody asked for an old answer");
}

/// A member that does not lead would keep files open for nobody, or change names.
#[test]
fn only_names_and_extents_are_read_so() {
    let cluster = Cluster::start(1);
    let mut caller = cluster.caller(1);
    caller.create("a").expect("created");
    let address = cluster.address(0).to_owned();
    let code = |opcode: Opcode, request: &[u8]| {
        let question = ReadStaleRequest {
            header: Some(caller.read_header()),
            opcode: u32::from(opcode.code()),
            request: request.to_vec(),
            age_ms_max: 0,
        };
        let answer: Result<ReadStaleResponse, WireError> =
            caller.call_at(&address, Opcode::ReadStale.code(), &question);
        answer.map(|answer| answer.error).map_err(|error| error.code)
    };
    let open = OpenRequest { header: Some(caller.read_header()), inode: 1, ..OpenRequest::default() }.encode_to_vec();
    let create = CreateRequest { header: Some(caller.read_header()), parent: 1, ..CreateRequest::default() };
    for (opcode, request) in [(Opcode::Open, open), (Opcode::Create, create.encode_to_vec())] {
        assert_eq!(code(opcode, &request), Err(ErrorCode::UnknownOperation), "{}", opcode.name());
    }
    assert_eq!(code(Opcode::ReadStale, &[]), Err(ErrorCode::UnknownOperation));
    assert_eq!(code(Opcode::Lookup, &[0xff; 9]), Err(ErrorCode::BadRequest));
    let mut elsewhere = lookup(&caller, "a");
    elsewhere.header.as_mut().expect("a header").partition += 1;
    assert_eq!(code(Opcode::Lookup, &elsewhere.encode_to_vec()), Err(ErrorCode::BadRequest));
    assert_eq!(code(Opcode::Lookup, &lookup(&caller, "a").encode_to_vec()), Ok(0));
}
