//! The table of member states of a placement group: the only place that decides what a member becomes.
//!
//! | is | event | when | becomes |
//! |---|---|---|---|
//! | serving | down | another serving member remains | offline |
//! | serving | down | none remains | waiting |
//! | serving | failed | another serving member remains | offline |
//! | serving | failed | none remains | – |
//! | serving | registered | enough others serve and are heard | syncing |
//! | serving | registered | else | serving, new epoch |
//! | syncing | down, failed | | offline |
//! | syncing | registered | | syncing, new epoch |
//! | syncing | caught up | a member serves | serving |
//! | syncing | caught up | none serves | – |
//! | waiting | registered | | serving |
//! | waiting | source back | it is up | syncing |
//! | waiting | source back | it is down | offline |
//! | offline | registered, rejoined | a member serves | syncing |
//! | offline | registered, rejoined | none serves | – |
//! | offline | source back | it is up | syncing |
//! | offline | source back | it is down | – |
//! | any other | | | – |
//!
//! Every row but "–" raises the epoch.
//!
//! *Down*: the node or disk is marked down. All that go down in one command fall together: those that served until
//! then held everything that was acknowledged, since an acknowledgement needs all of them, so if nobody is left all of
//! them wait and the first to come back serves. *Failed*: somebody reported this member and a probe confirmed it; it
//! leaves this group only. *Registered*: its process started anew. A member that still counts as serving then holds
//! everything acknowledged (nothing could be acknowledged without it), so it may go on serving at once. It catches up
//! first only if at least the minimum for writes of other members serve and are known to live: after a power failure of the
//! whole cluster that leaves no group waiting for one particular disk. *Source back*: another member began to serve
//! where none did.
//!
//! **Invariant:** a group has a serving or a waiting member, never both kinds.
use cairn_types::MemberState;

/// What happened to a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberEvent {
    Down,
    Failed,
    Registered,
    CaughtUp,
    Rejoined,
    SourceBack,
}

impl MemberEvent {
    /// Every event.
    pub const ALL: [MemberEvent; 6] =
        [Self::Down, Self::Failed, Self::Registered, Self::CaughtUp, Self::Rejoined, Self::SourceBack];
}

/// What the table looks at besides state and event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Around {
    /// Another member serves, not counting those that the same command takes down.
    pub source: bool,
    /// At least the minimum for writes of *other* members serve, and the leader has heard of their nodes.
    pub enough: bool,
    /// This member's node is up and its disk in service.
    pub able: bool,
}

/// The member's next state under a new epoch, or `None`: nothing changes.
pub fn next(state: MemberState, event: MemberEvent, around: Around) -> Option<MemberState> {
    use MemberEvent as E;
    use MemberState as S;
    match (state, event) {
        (S::Serving, E::Down) => Some(if around.source { S::Offline } else { S::Waiting }),
        (S::Serving, E::Failed) => around.source.then_some(S::Offline),
        (S::Serving, E::Registered) => Some(if around.enough { S::Syncing } else { S::Serving }),
        (S::Serving, E::CaughtUp | E::Rejoined | E::SourceBack) => None,

        (S::Syncing, E::Down | E::Failed) => Some(S::Offline),
        (S::Syncing, E::Registered) => Some(S::Syncing),
        (S::Syncing, E::CaughtUp) => around.source.then_some(S::Serving),
        (S::Syncing, E::Rejoined | E::SourceBack) => None,

        (S::Waiting, E::Registered) => Some(S::Serving),
        (S::Waiting, E::SourceBack) => Some(if around.able { S::Syncing } else { S::Offline }),
        (S::Waiting, E::Down | E::Failed | E::CaughtUp | E::Rejoined) => None,

        (S::Offline, E::Registered | E::Rejoined) => around.source.then_some(S::Syncing),
        (S::Offline, E::SourceBack) => around.able.then_some(S::Syncing),
        (S::Offline, E::Down | E::Failed | E::CaughtUp) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberEvent as E;
    use MemberState::{self as S, Offline, Serving, Syncing, Waiting};

    /// (state, event, source, enough, able, next): `None` in a condition = either.
    type Row = (S, E, Option<bool>, Option<bool>, Option<bool>, Option<S>);
    const YES: Option<bool> = Some(true);
    const NO: Option<bool> = Some(false);

    /// The whole table, row by row; written apart from the code on purpose.
    const ROWS: &[Row] = &[
        (Serving, E::Down, YES, None, None, Some(Offline)),
        (Serving, E::Down, NO, None, None, Some(Waiting)),
        (Serving, E::Failed, YES, None, None, Some(Offline)),
        (Serving, E::Failed, NO, None, None, None),
        (Serving, E::Registered, None, YES, None, Some(Syncing)),
        (Serving, E::Registered, None, NO, None, Some(Serving)),
        (Serving, E::CaughtUp, None, None, None, None),
        (Serving, E::Rejoined, None, None, None, None),
        (Serving, E::SourceBack, None, None, None, None),
        (Syncing, E::Down, None, None, None, Some(Offline)),
        (Syncing, E::Failed, None, None, None, Some(Offline)),
        (Syncing, E::Registered, None, None, None, Some(Syncing)),
        (Syncing, E::CaughtUp, YES, None, None, Some(Serving)),
        (Syncing, E::CaughtUp, NO, None, None, None),
        (Syncing, E::Rejoined, None, None, None, None),
        (Syncing, E::SourceBack, None, None, None, None),
        (Waiting, E::Down, None, None, None, None),
        (Waiting, E::Failed, None, None, None, None),
        (Waiting, E::Registered, None, None, None, Some(Serving)),
        (Waiting, E::CaughtUp, None, None, None, None),
        (Waiting, E::Rejoined, None, None, None, None),
        (Waiting, E::SourceBack, None, None, YES, Some(Syncing)),
        (Waiting, E::SourceBack, None, None, NO, Some(Offline)),
        (Offline, E::Down, None, None, None, None),
        (Offline, E::Failed, None, None, None, None),
        (Offline, E::Registered, YES, None, None, Some(Syncing)),
        (Offline, E::Registered, NO, None, None, None),
        (Offline, E::CaughtUp, None, None, None, None),
        (Offline, E::Rejoined, YES, None, None, Some(Syncing)),
        (Offline, E::Rejoined, NO, None, None, None),
        (Offline, E::SourceBack, None, None, YES, Some(Syncing)),
        (Offline, E::SourceBack, None, None, NO, None),
    ];

    /// A member would serve what it does not hold, or a group would lose its last copy, if any row were wrong.
    #[test]
    fn every_case_is_exactly_one_row() {
        let fits = |want: Option<bool>, is: bool| want.is_none_or(|w| w == is);
        for state in [Serving, Syncing, Waiting, Offline] {
            for event in MemberEvent::ALL {
                for bits in 0..8u8 {
                    let around = Around { source: bits & 1 != 0, enough: bits & 2 != 0, able: bits & 4 != 0 };
                    let rows: Vec<&Row> = ROWS
                        .iter()
                        .filter(|(s, e, source, enough, able, _)| {
                            *s == state
                                && *e == event
                                && fits(*source, around.source)
                                && fits(*enough, around.enough)
                                && fits(*able, around.able)
                        })
                        .collect();
                    assert_eq!(rows.len(), 1, "{state} {event:?} {around:?}");
                    assert_eq!(next(state, event, around), rows[0].5, "{state} {event:?} {around:?}");
                }
            }
        }
    }
}
