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

/// Sessions that a restart forgets.
#[test]
fn the_table_survives_its_image() {
    let mut table = SessionTable::default();
    for session in 1..300 {
        for sequence in 1..1 + session % 4 {
            table.keep_answer(session, (session % 7) as u32, sequence, &session.to_le_bytes());
        }
    }
    (1..300).step_by(5).for_each(|session| {
        table.end(session);
    });
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
    loaded.set_floor(table.floor());
    assert_eq!(loaded, table);
    for cut in 1..page.len().min(20) {
        let _ = SessionTable::default().load_live(&page[..cut]);
        let _ = SessionTable::default().load_ended(&page[..cut]);
    }
}
