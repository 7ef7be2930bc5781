//! Exactly once, and what is remembered of ended sessions.
use super::*;

fn is_execute(table: &SessionTable, session: u64, slot: u32, sequence: u64) -> bool {
    matches!(table.gate(session, slot, sequence), Ok(Gate::Execute))
}

/// A request executed twice, or out of its order.
#[test]
fn a_slot_takes_the_next_sequence_and_repeats_the_last() {
    let mut table = SessionTable::default();
    assert!(is_execute(&table, 5, 3, 1));
    assert_eq!(table.gate(5, 3, 2).err().unwrap().code, ErrorCode::BadSequence);
    assert_eq!(table.gate(5, 3, 0).err().unwrap().code, ErrorCode::BadSequence);
    table.keep_answer(5, 3, 1, b"answer");
    assert!(matches!(table.gate(5, 3, 1), Ok(Gate::Kept([KEPT_OK, b'a', ..]))));
    assert!(is_execute(&table, 5, 3, 2));
    table.keep_error(5, 3, 2, OpError::EXISTS);
    let Ok(Gate::Kept(kept)) = table.gate(5, 3, 2) else { panic!("an error is kept too") };
    let mut out = Vec::new();
    assert_eq!(SessionTable::repeat(kept, &mut out), Err(OpError::EXISTS.to_wire()));
    assert_eq!(table.gate(5, 3, 1).err().unwrap().code, ErrorCode::BadSequence);
    // Slots below came to be with it, unused.
    assert!(is_execute(&table, 5, 0, 1));
    assert_eq!(table.gate(5, 0, 0).err().unwrap().code, ErrorCode::BadSequence);
    assert_eq!(table.gate(5, 256, 1).err().unwrap().code, ErrorCode::BadRequest);
    assert_eq!(table.gate(0, 0, 1).err().unwrap().code, ErrorCode::BadRequest);
}

/// A late request of an ended session that is executed after the set of ended ones was cut.
#[test]
fn ended_sessions_stay_ended_in_bounded_memory() {
    let mut table = SessionTable::default();
    table.keep_answer(7, 0, 1, b"");
    let many = 3 * ENDED_SESSIONS_MAX as u64;
    for session in 10..10 + many {
        assert!(table.end(session * 2));
        assert!(!table.end(session * 2), "ending twice is ending once");
        table.bound_ended(ENDED_SESSIONS_MAX);
        assert!(table.ended.len() <= ENDED_SESSIONS_MAX);
    }
    for session in (10..10 + many).step_by(97) {
        assert_eq!(table.state(session * 2), SessionState::Ended);
    }
    assert_eq!(table.state(7), SessionState::Live, "a live session below the floor goes on");
    assert!(is_execute(&table, 7, 0, 2));
    assert!(table.end(7));
    assert_eq!(table.state(7), SessionState::Ended);
    assert_eq!(table.gate(7, 0, 2).err().unwrap().code, ErrorCode::SessionEnded);
    let newest = (10 + many) * 2;
    assert_eq!(table.state(newest), SessionState::Unknown);
    assert!(is_execute(&table, newest, 0, 1));
}

/// What the table says it takes is what bounds it: slots that were never used count as nothing, and what ends is given
/// back.
#[test]
fn a_slot_costs_what_it_holds() {
    let mut table = SessionTable::default();
    assert_eq!(table.memory_bytes(), 0);
    table.keep_answer(1, 255, 1, &[7; 99]);
    let one = table.memory_bytes();
    assert!((100..300).contains(&one), "{one}");
    table.keep_answer(1, 0, 1, b"");
    table.keep_answer(1, 100, 1, b"");
    assert_eq!(table.memory_bytes(), one + 2 * (size_of::<Slot>() as u64 + 1));
    table.keep_error(1, 255, 2, OpError::EXISTS);
    assert!(table.memory_bytes() < one + 2 * 64);
    assert!(is_execute(&table, 1, 255, 3) && is_execute(&table, 1, 100, 2) && is_execute(&table, 1, 99, 1));

    assert!(table.has_slot(1, 100) && !table.has_slot(1, 99) && !table.has_slot(2, 100));
    let before = table.memory_bytes();
    (2..1002).for_each(|session| table.keep_answer(session, 3, 1, &[7; 99]));
    assert_eq!(table.memory_bytes(), before + 1000 * one);
    (1..1002).for_each(|session| _ = table.end(session));
    assert_eq!(table.memory_bytes(), 1001 * 16, "what is remembered of ended ones");
}

/// Sessions that a restart forgets.
#[test]
fn the_table_survives_its_image() {
    let mut table = SessionTable::default();
    for session in 1..300 {
        for sequence in 1..1 + session % 4 {
            table.keep_answer(session, (session * 37 % 256) as u32, sequence, &session.to_le_bytes());
        }
    }
    (1..300).step_by(5).for_each(|session| {
        table.end(session);
    });
    table.take(200, &[], &[3, 5, 77, 190, 201], ENDED_SESSIONS_MAX);
    (3..100).step_by(37).for_each(|session| _ = table.end(session));
    table.end(298);
    table.take(150, &[], &[404], ENDED_SESSIONS_MAX);
    table.take(500, &[], &[404, 405], ENDED_SESSIONS_MAX);
    assert_eq!((table.state(404), table.state(406)), (SessionState::Unknown, SessionState::Ended));
    table.end(600);
    let mut loaded = SessionTable::default();
    let (mut after, mut page, mut pages) = (None, Vec::new(), 0);
    while let Some(last) = table.append_live(after, 1000, &mut page) {
        loaded.load_live(&page).unwrap();
        pages += 1;
        (after, page) = (Some(last), Vec::new());
    }
    assert!(pages > 3);
    assert!(table.append_ended(&mut page));
    loaded.load_ended(&page).unwrap();
    let mut spared = Vec::new();
    assert!(table.append_spared(&mut spared));
    assert!(loaded.load_spared(&spared).is_none(), "none is above the floor");
    loaded.set_floor(table.floor());
    loaded.load_spared(&spared).unwrap();
    assert_eq!(loaded, table);
    for cut in 1..page.len().min(20) {
        let _ = SessionTable::default().load_live(&page[..cut]);
        let _ = SessionTable::default().load_ended(&page[..cut]);
    }
}
