//! A crash of the machine at every position of the queue, and what a partition says that its holder did not expect.
use crate::driver::{Driver, ROOT};
use cairn_delegate_core::config::Config;
use cairn_delegate_core::delegate::{Delegate, Read};
use cairn_delegate_core::input::{Input, Lost, Output};
use cairn_delegate_core::succession::Succession;
use cairn_types::{ErrorCode, PartitionId, Time, VolumeId};
use cairn_wire::Opcode;
use cairn_wire::common::Credentials;
use cairn_wire::error::WireError;
use cairn_wire::meta::{
    AttributesResponse, BatchRequest, BatchResponse, CreateRequest, DelegationAsk, MetaHeader, MkdirRequest,
};
use prost::Message;
use std::time::Duration;

/// A partition, and a machine that leads a directory in it with batches of three items.
fn pair() -> (Driver, Delegate) {
    let mut partition = Driver::new();
    partition.set_feature_level(29);
    let header = partition.next();
    let ask = Some(DelegationAsk { ids: 64, token: 77, level: 29 });
    let request =
        MkdirRequest { header, parent: ROOT, name: b"led".into(), mode: 0o755, ask, ..MkdirRequest::default() };
    let answer: AttributesResponse = partition.mutate(Opcode::Mkdir, &request).unwrap();
    let config = Config { batch_items: 3, flush_age: Duration::ZERO, ..Config::default() };
    let told = answer.delegation.unwrap();
    let place = (VolumeId(1), PartitionId(1));
    let machine = Delegate::new(place, 1, &told, config, Time(0), Time(0)).unwrap();
    (partition, machine)
}

fn create(machine: &mut Delegate, number: u64) -> Vec<Output> {
    let who = Some(Credentials { uid: 0, gid: 0, groups: vec![] });
    let header = Some(MetaHeader { who, ..MetaHeader::default() });
    let (parent, name) = (machine.number(), format!("f{number:02}").into_bytes());
    let request = CreateRequest { header, parent, name, mode: 0o644, exclusive: true, ..CreateRequest::default() };
    let request = request.encode_to_vec();
    step(machine, Input::Change { id: number, opcode: Opcode::Create, request })
}

fn step(machine: &mut Delegate, input: Input) -> Vec<Output> {
    let mut out = Vec::new();
    machine.step(Time(1), input, &mut out);
    machine.check_invariants().unwrap();
    out
}

fn sent(out: &[Output]) -> Option<(u64, BatchRequest)> {
    out.iter().find_map(|output| match output {
        Output::Send(call, request) => Some((*call, request.clone())),
        _ => None,
    })
}

fn lost(out: &[Output]) -> Option<Lost> {
    out.iter().find_map(|output| match output {
        Output::Lost(lost) => Some(lost.clone()),
        _ => None,
    })
}

fn names(count: u64) -> Vec<String> {
    (0..count).map(|number| format!("f{number:02}")).collect()
}

/// After a crash something would be there without what was done before it, or something synced be missing.
#[test]
fn a_crash_at_any_position_leaves_a_prefix_with_everything_that_was_synced() {
    const ITEMS: u64 = 10;
    const SYNCED: u64 = 7;
    let mut seen = [0; 2];
    for stored_batches in 0..=4 {
        for is_heard in [false, true] {
            let (mut partition, mut machine) = pair();
            let mut out = Vec::new();
            for number in 0..ITEMS {
                out.extend(create(&mut machine, number));
                if number + 1 == SYNCED {
                    out.extend(step(&mut machine, Input::Commit { id: 100 }));
                }
            }
            let mut committed = false;
            for batch in 0..stored_batches {
                let (call, request) = sent(&out).expect("something is under way");
                let header = partition.next();
                let answer: BatchResponse =
                    partition.mutate(Opcode::Batch, &BatchRequest { header, ..request }).unwrap();
                if batch + 1 == stored_batches && !is_heard {
                    break;
                }
                out = step(&mut machine, Input::Answered { call, answer: Ok(answer) });
                committed |= out.contains(&Output::Committed(100, Ok(())));
            }
            // The first batch had one item: nothing else waited then.
            let stored = [0, 1, 4, 7, 10][stored_batches];
            assert!(!committed || stored >= SYNCED);
            assert_eq!(committed, is_heard && stored >= SYNCED || stored > SYNCED);
            seen[usize::from(committed)] += 1;
            partition.expire(&[1]);
            partition.check();
            assert_eq!(partition.names(machine.number()), names(stored), "a prefix");
            let out = step(&mut machine, Input::SessionEnded);
            match lost(&out) {
                Some(lost) => {
                    assert!(lost.from <= stored && lost.from + lost.count == ITEMS && !lost.give_back);
                    assert_eq!(committed, !matches!(out.first(), Some(Output::Committed(100, Err(_)))));
                }
                None => assert_eq!((out, stored), (vec![Output::Ended], ITEMS)),
            }
            assert_eq!(sent(&create(&mut machine, 50)), None);
        }
    }
    assert!(seen[0] > 2 && seen[1] > 2, "{seen:?}");
}

fn refusal(code: ErrorCode) -> WireError {
    WireError::new(code, "refused")
}

/// Programs that go on behind a crash of their mount's process would find undone what they were told was done, or find
/// it done twice.
#[test]
fn a_successor_stores_what_waits_at_any_position() {
    const ITEMS: u64 = 10;
    let mut seen = [0; 3];
    for stored_batches in 0..=4 {
        for (is_heard, late) in [(false, false), (true, false), (true, true)] {
            let (mut partition, mut machine) = pair();
            let mut out = Vec::new();
            (0..ITEMS).for_each(|number| out.extend(create(&mut machine, number)));
            for batch in 0..stored_batches {
                let (call, request) = sent(&out).expect("something is under way");
                let header = partition.next();
                let answer: BatchResponse =
                    partition.mutate(Opcode::Batch, &BatchRequest { header, ..request }).unwrap();
                if batch + 1 == stored_batches && !is_heard {
                    break;
                }
                out = step(&mut machine, Input::Answered { call, answer: Ok(answer) });
            }
            // What the dead one sent last, and which comes when its successor is at work.
            let mut under_way = sent(&out).map(|(_, request)| request).filter(|_| late);
            let (number, first) = (machine.number(), machine.stored());
            let items: Vec<_> = machine.waiting(0).map(|(_, item)| item.clone()).collect();
            assert_eq!(first + items.len() as u64, ITEMS);
            if items.is_empty() {
                seen[2] += 1;
                continue;
            }
            let config = Config { batch_items: 2, ..Config::default() };
            let mut succession = Succession::new(number, first, items);
            for round in 0.. {
                let header = partition.next();
                let request = BatchRequest { header, ..succession.batch(&config) };
                let is_last = request.items.is_empty();
                let answer = partition.mutate::<BatchResponse>(Opcode::Batch, &request).map_err(refusal);
                assert!(answer.is_ok() && is_last == request.end, "it ends when it is known that all is stored");
                if succession.answered(answer).unwrap() {
                    break;
                }
                if let Some(request) = under_way.take() {
                    let header = partition.next();
                    partition.mutate::<BatchResponse>(Opcode::Batch, &BatchRequest { header, ..request }).unwrap();
                    seen[0] += 1;
                }
                assert!(round < ITEMS, "it gets on");
            }
            assert_eq!(succession.left(), 0);
            partition.check();
            assert_eq!(partition.names(number), names(ITEMS), "each once");
            // Another one, which does not know that it has ended.
            let header = partition.next();
            let mut another = Succession::new(number, ITEMS, []);
            let again = BatchRequest { header, ..another.batch(&config) };
            let refused = partition.mutate::<BatchResponse>(Opcode::Batch, &again).map_err(refusal);
            assert!(refused.is_err() && another.answered(refused).unwrap(), "nothing was left, so nothing is lost");
            seen[1] += 1;
        }
    }
    assert!(seen[0] > 1 && seen[1] > 8 && seen[2] > 0, "{seen:?}");
}

/// A holder would go on above a gap, or whoever waits for what it led wait for ever.
#[test]
fn a_refusal_of_a_whole_batch_loses_what_waits_and_gives_the_directory_back() {
    let (_, mut machine) = pair();
    let out = create(&mut machine, 0);
    let (call, request) = sent(&out).unwrap();
    assert_eq!((request.from, request.items.len(), request.end), (0, 1, false));
    let passing = Err(WireError::not_leader(None));
    assert_eq!(sent(&step(&mut machine, Input::Answered { call, answer: passing })), Some((call, request)));
    let answer = Err(WireError::new(ErrorCode::Conflict, "put back from a copy"));
    let lost = lost(&step(&mut machine, Input::Answered { call, answer })).unwrap();
    assert_eq!((lost.from, lost.count, lost.give_back), (0, 1, true));
    assert_eq!(lost.inodes, [machine.number()]);
    let answer = create(&mut machine, 1);
    assert!(matches!(&answer[..], [Output::Answer(1, Err(error))] if error.code == ErrorCode::Internal));
}

/// Whoever removes a directory that it made would wait for the end, and the removal be done under items that wait.
#[test]
fn the_top_is_removed_when_nothing_waits() {
    let (_, mut machine) = pair();
    let (call, _) = sent(&create(&mut machine, 0)).unwrap();
    assert_eq!(step(&mut machine, Input::RemoveTop { id: 7 }), []);
    assert_eq!(create(&mut machine, 1), [Output::Wait(1)]);
    let answer = Ok(BatchResponse { next: 1, ..BatchResponse::default() });
    let out = step(&mut machine, Input::Answered { call, answer });
    assert_eq!(out, [Output::Again, Output::AskToRemove(7)]);
    assert_eq!(create(&mut machine, 2), [Output::Wait(2)]);
    assert_eq!(step(&mut machine, Input::TopRemoved { gone: false }), [Output::Again]);
    assert_eq!(step(&mut machine, Input::RemoveTop { id: 8 }), [Output::AskToRemove(8)]);
    assert_eq!(step(&mut machine, Input::TopRemoved { gone: true }), [Output::Ended]);
    assert_eq!(create(&mut machine, 3), [Output::Elsewhere(3)]);
}

/// A directory that nobody uses would be led for ever.
#[test]
fn what_is_not_used_ends_by_itself() {
    let (_, mut machine) = pair();
    let mut out = Vec::new();
    machine.step(machine.tick_at().unwrap(), Input::Tick, &mut out);
    let (call, request) = sent(&out).unwrap();
    assert!(request.end);
    assert_eq!(machine.tick_at(), None, "nothing is to be done before it is answered");
    // It has ended there already: nothing is lost.
    let answer = Err(WireError::new(ErrorCode::Stale, "there is no such delegation"));
    assert_eq!(step(&mut machine, Input::Answered { call, answer }), [Output::Ended]);
    assert_eq!(machine.tick_at(), None);
}

/// A removal whose program is gone would keep others out for ever, or end somebody else's.
#[test]
fn who_removes_the_top_and_goes_away_leaves_it_led() {
    let (_, mut machine) = pair();
    assert_eq!(step(&mut machine, Input::RemoveTop { id: 7 }), [Output::AskToRemove(7)]);
    assert_eq!((machine.tick_at(), create(&mut machine, 1)), (None, vec![Output::Wait(1)]));
    assert_eq!(step(&mut machine, Input::Withdrawn { id: 6 }), []);
    assert_eq!(step(&mut machine, Input::Withdrawn { id: 7 }), [Output::Again]);
    assert!(matches!(&create(&mut machine, 2)[..], [Output::Answer(2, Ok(_)), ..]));
}

/// What was left half done would be believed.
#[test]
fn what_is_broken_is_lost_and_given_back() {
    let (_, mut machine) = pair();
    create(&mut machine, 0);
    assert_eq!(step(&mut machine, Input::RemoveTop { id: 7 }), []);
    let out = step(&mut machine, Input::Broken);
    assert!(out.contains(&Output::Elsewhere(7)), "{out:?}");
    let lost = lost(&out).unwrap();
    assert_eq!((lost.count, lost.give_back), (1, true));
    assert_eq!(step(&mut machine, Input::Broken), []);
    assert!(matches!(&create(&mut machine, 1)[..], [Output::Answer(1, Err(_))]));
    let mut answer = Vec::new();
    let read = machine.read(Time(0), Opcode::Getattr, &[], &mut answer);
    assert!(matches!(read, Read::Refused(_)), "{read:?}");
    machine.check_invariants().unwrap();
}
