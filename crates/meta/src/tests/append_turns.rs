//! Turns of those who append to one file at the same time.

use std::time::Duration;

use cairn_meta_core::NO_TURN;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::meta::*;

use super::fixture::{Caller, Cluster, eventually, quick};

const FIRST: u32 = 1;
const GONE: u32 = 2;

fn turn(caller: &Caller, inode: u64, length: u64, number: u64) -> AppendTurnResponse {
    let request =
        AppendTurnRequest { header: Some(caller.read_header()), inode, length, number, wait_ms: 5000, give_up: false };
    caller.call(Opcode::AppendTurn, &request).expect("answered")
}

/// Makes the file longer, as an append does.
fn grow(header: MetaHeader, inode: u64, (if_size, size): (u64, u64), turn: u64) -> PublishRequest {
    PublishRequest { header: Some(header), inode, size, check_size: true, if_size, turn, ..Default::default() }
}

fn publish(caller: &Caller, request: &PublishRequest) -> Result<u64, ErrorCode> {
    let answer: AttributesResponse = caller.call(Opcode::Publish, request)?;
    Ok(answer.attributes.expect("attributes").size)
}

/// Of those who append at once all but one would write in vain, and the slow ones never come to it.
#[test]
fn turns_come_one_after_the_other() {
    let cluster = Cluster::with(3, quick(), |config| config);
    let (mut a, mut b) = (cluster.caller(1), cluster.caller(2));
    let inode = a.create("f").expect("created");
    let first = turn(&a, inode, 100, 0);
    let second = turn(&b, inode, 50, 0);
    assert_eq!((first.begin, first.state, second.begin, second.state), (0, FIRST, 100, 0));
    let waiter = std::thread::spawn({
        let (caller, number) = (cluster.caller(2), second.number);
        move || {
            // Longer than one request is parked, on a machine that is busy; but not than the first one is waited for.
            turn(&caller, inode, 0, number)
        }
    });
    std::thread::sleep(Duration::from_millis(100));
    let header = a.header();
    let (done, mut heard) =
        (publish(&a, &grow(header, inode, (0, 100), first.number)), waiter.join().expect("no panic"));
    assert_eq!(done, Ok(100));
    if heard.state == GONE {
        // The machine stood still for a second.
        heard = turn(&b, inode, 50, 0);
    }
    assert_eq!((heard.state, heard.attributes.expect("attributes").size), (FIRST, 100));
    let header = b.header();
    assert_eq!(publish(&b, &grow(header, inode, (100, 150), heard.number)), Ok(150));
    assert_eq!(turn(&b, inode, 0, heard.number).state, GONE);
}

/// Who comes and knows of no turns would push himself in, and all who wait write again; or an append that was done be
/// done twice, because its repetition is taken for another one.
#[test]
fn who_has_no_turn_waits_for_one_and_what_was_done_stays_done() {
    let cluster = Cluster::with(1, quick(), |config| config);
    let (mut a, mut b) = (cluster.caller(1), cluster.caller(2));
    let inode = a.create("f").expect("created");
    let header = b.header();
    let alone = grow(header, inode, (0, 10), NO_TURN);
    assert_eq!(publish(&b, &alone), Ok(10), "nobody has a turn");
    eventually("a refusal while somebody has a turn", || {
        let held = turn(&a, inode, 20, 0);
        let size = held.attributes.expect("attributes").size;
        let header = b.header();
        let pushes = publish(&b, &grow(header.clone(), inode, (size, size + 10), NO_TURN));
        // The same request again is the same outcome, whatever the file is now.
        assert_eq!(publish(&b, &grow(header, inode, (size, size + 10), NO_TURN)), pushes);
        pushes == Err(ErrorCode::Conflict)
    });
    let held = turn(&a, inode, 5, 0);
    // Of a build that knows of no turns.
    let size = held.attributes.expect("attributes").size;
    let header = b.header();
    let old = grow(header, inode, (size, size + 10), 0);
    assert_eq!(publish(&b, &old), Ok(size + 10));
    let now = turn(&a, inode, 5, 0);
    assert_eq!(publish(&b, &old), Ok(size + 10), "it was done, whoever has a turn now");
    let header = b.header();
    let after = publish(&b, &grow(header, inode, (size, size + 10), NO_TURN));
    assert_eq!((after, now.begin), (Err(ErrorCode::Conflict), size + 10), "nothing was appended twice");
    let gone = AppendTurnRequest { header: Some(a.read_header()), inode: 1 << 50, length: 1, ..Default::default() };
    assert_eq!(a.call::<AppendTurnResponse>(Opcode::AppendTurn, &gone).map(drop), Err(ErrorCode::Stale));
}

/// Whoever waits behind a writer that died would do so for ever.
#[test]
fn nobody_waits_for_one_who_does_not_come() {
    let cluster = Cluster::with(1, quick(), |config| config);
    let (dead, b) = (cluster.caller(1), cluster.caller(2));
    let inode = cluster.caller(3).create("f").expect("created");
    let first = turn(&dead, inode, 100, 0);
    let second = turn(&b, inode, 50, 0);
    assert_eq!(turn(&b, inode, 0, second.number).state, GONE);
    assert_eq!(turn(&dead, inode, 0, first.number).state, GONE);
    let first = turn(&b, inode, 50, 0);
    assert_eq!(first.begin, 0);
    let request = AppendTurnRequest { number: first.number, give_up: true, inode, ..Default::default() };
    let request = AppendTurnRequest { header: Some(b.read_header()), ..request };
    assert_eq!(b.call::<AppendTurnResponse>(Opcode::AppendTurn, &request).expect("given up").state, GONE);
    assert_eq!(turn(&dead, inode, 10, 0).begin, 0, "nobody is before it");
}
