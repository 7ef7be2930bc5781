//! A state of before: a copy of the manager's directory that was put back.
use super::*;

const NOW: WallTime = WallTime(1_795_000_000 * SECOND);

fn sessions(state: &mut State, time: WallTime) -> u64 {
    match state.apply(time, &Command::GrantSessions(GrantSessions { count: 4096 })).outcome {
        Ok(Outcome::Sessions(first, _)) => first.get(),
        other => panic!("{other:?}"),
    }
}

/// The same session id for two clients: the kept answer of one would be the other's, and a mkdir that was answered
/// would not be done. What an older start of a node does would count as done by the present one.
#[test]
fn a_copy_gives_no_session_and_no_incarnation_again() {
    let mut state = cluster(3);
    ok(&mut state, Command::ActivateLevel(ActivateLevel { level: 5 }));
    let mut restored = state.clone();
    let first = sessions(&mut state, NOW);
    let again = Register { node: 16, ..register(0, Roles::DATA, 1) };
    let register =
        |state: &mut State, time: WallTime| match state.apply(time, &Command::Register(again.clone())).outcome {
            Ok(Outcome::Registered(done)) => done.incarnation,
            other => panic!("{other:?}"),
        };
    let incarnation = register(&mut state, WallTime(NOW.0 + SECOND));
    state.check_invariants();
    // An hour later, from a copy of before: nobody tells it anything.
    let later = WallTime(NOW.0 + 3600 * SECOND);
    assert!(sessions(&mut restored, later) >= first + 4096);
    assert!(register(&mut restored, later) > incarnation);
    // Many at once are given one after the other.
    let (a, b) = (sessions(&mut restored, later), sessions(&mut restored, later));
    assert_eq!(b, a + 4096);
    // Members of before the level count as they did.
    let mut old = cluster(1);
    assert_eq!(sessions(&mut old, NOW), 1);
}
