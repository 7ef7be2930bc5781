//! The table of member states of a placement group: the only place that decides what a member becomes.
//!
//! | is | event | when | becomes |
//! |---|---|---|---|
//! | serving | down | without it the group can be written | offline |
//! | serving | down | else | waiting |
//! | serving | failed | without it the group can be written | offline |
//! | serving | failed | else, without it the group can be read | waiting |
//! | serving | failed | else | – |
//! | serving | registered | enough others serve and are heard | syncing |
//! | serving | registered | else | serving, new epoch |
//! | syncing | down, failed | | offline |
//! | syncing | registered | | syncing, new epoch |
//! | syncing | caught up | the group can be read | serving |
//! | syncing | caught up | else | – |
//! | waiting | registered, rejoined | | serving |
//! | waiting | writes back | | offline |
//! | offline | registered, rejoined | the group can be read | syncing |
//! | offline | registered, rejoined | else | – |
//! | serving, waiting | older | the group can be read | syncing |
//! | serving, waiting | older | else, others that hold everything are enough to read | offline |
//! | serving, waiting | older | else | – |
//! | syncing | older | | syncing, new epoch |
//! | offline | older | the group can be read | syncing |
//! | offline | older | else | – |
//! | offline | sources back | it is up | syncing |
//! | offline | sources back | it is down | – |
//! | any other | | | – |
//!
//! Every row but "–" raises the epoch.
//!
//! A group *can be written* when as many members serve as the minimum of its scheme for writes, and *can be read* when
//! as many serve as hold every byte: one copy, or k shards. *Down*: the node or disk is marked down. All that go down
//! in one command fall together. *Failed*: somebody reported this member and a probe confirmed it; it leaves this group
//! only. *Registered*: its process started anew. *Rejoined*: it had to leave, and answers again. *Writes back*: the
//! group can be written, by a change of other members. *Sources back*: it can be read and could not before.
//!
//! *Older*: it registered as an older copy of itself ([`crate::generation`]); neither it nor others that came so with
//! it are among those that serve or hold. Where too few are left, the group decides ([`crate::pg::Older`]).
//!
//! Why *waiting*: an acknowledgement needs every serving member. Who served until the group could no longer be written
//! therefore holds all that was ever acknowledged, and misses nothing for as long as nothing can be written. So it
//! serves again at once when it is back, whoever comes first; and when the group can be written without it, it is
//! offline: from then on it may miss something. For the same reason a member that registers while it still counts as
//! serving may go on serving at once. It catches up first only if at least the minimum for writes of other members
//! serve and are known to live: after a power failure of the whole cluster that leaves no group waiting for one
//! particular disk.
//!
//! **Invariant:** serving and waiting members together are enough to read everything acknowledged, and each of them
//! holds its part of it. Nobody is waiting while the group can be written.
use cairn_types::MemberState;

/// What happened to a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberEvent {
    Down,
    Failed,
    Registered,
    CaughtUp,
    Rejoined,
    WritesBack,
    SourcesBack,
    Older,
}

impl MemberEvent {
    /// Every event.
    pub const ALL: [MemberEvent; 8] = [
        Self::Down,
        Self::Failed,
        Self::Registered,
        Self::CaughtUp,
        Self::Rejoined,
        Self::WritesBack,
        Self::SourcesBack,
        Self::Older,
    ];
}

/// What the table looks at besides state and event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Around {
    /// As many *other* members serve as reads need, not counting those that the same command takes down.
    pub readable: bool,
    /// As many *other* members serve as writes need, not counting those that the same command takes down.
    pub writable: bool,
    /// As many *other* members as reads need serve or are waited for.
    pub held: bool,
    /// As many *other* members as writes need serve, and the leader has heard of their nodes.
    pub heard: bool,
    /// This member's node is up and its disk in service.
    pub able: bool,
}

/// The member's next state under a new epoch, or `None`: nothing changes.
pub fn next(state: MemberState, event: MemberEvent, around: Around) -> Option<MemberState> {
    use MemberEvent as E;
    use MemberState as S;
    match (state, event) {
        (S::Serving | S::Waiting | S::Offline, E::Older) if around.readable => Some(S::Syncing),
        (S::Serving | S::Waiting, E::Older) => around.held.then_some(S::Offline),
        (S::Syncing, E::Older) => Some(S::Syncing),
        (S::Offline, E::Older) => None,

        (S::Serving, E::Down) => Some(if around.writable { S::Offline } else { S::Waiting }),
        (S::Serving, E::Failed) if around.writable => Some(S::Offline),
        (S::Serving, E::Failed) => around.readable.then_some(S::Waiting),
        (S::Serving, E::Registered) => Some(if around.heard { S::Syncing } else { S::Serving }),
        (S::Serving, E::CaughtUp | E::Rejoined | E::WritesBack | E::SourcesBack) => None,

        (S::Syncing, E::Down | E::Failed) => Some(S::Offline),
        (S::Syncing, E::Registered) => Some(S::Syncing),
        (S::Syncing, E::CaughtUp) => around.readable.then_some(S::Serving),
        (S::Syncing, E::Rejoined | E::WritesBack | E::SourcesBack) => None,

        (S::Waiting, E::Registered | E::Rejoined) => Some(S::Serving),
        (S::Waiting, E::WritesBack) => Some(S::Offline),
        (S::Waiting, E::Down | E::Failed | E::CaughtUp | E::SourcesBack) => None,

        (S::Offline, E::Registered | E::Rejoined) => around.readable.then_some(S::Syncing),
        (S::Offline, E::SourcesBack) => around.able.then_some(S::Syncing),
        (S::Offline, E::Down | E::Failed | E::CaughtUp | E::WritesBack) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberEvent as E;
    use MemberState::{self as S, Offline, Serving, Syncing, Waiting};

    /// (state, event, (readable, writable, heard, able, held), next): `None` in a condition = either.
    type Row = (S, E, [Option<bool>; 5], Option<S>);
    const YES: Option<bool> = Some(true);
    const NO: Option<bool> = Some(false);
    const ANY: [Option<bool>; 5] = [None; 5];
    const READABLE: [Option<bool>; 5] = [YES, None, None, None, None];
    const UNREADABLE: [Option<bool>; 5] = [NO, None, None, None, None];
    const WRITABLE: [Option<bool>; 5] = [None, YES, None, None, None];
    const UNWRITABLE: [Option<bool>; 5] = [None, NO, None, None, None];

    /// The whole table, row by row; written apart from the code on purpose.
    const ROWS: &[Row] = &[
        (Serving, E::Down, WRITABLE, Some(Offline)),
        (Serving, E::Down, UNWRITABLE, Some(Waiting)),
        (Serving, E::Failed, WRITABLE, Some(Offline)),
        (Serving, E::Failed, [YES, NO, None, None, None], Some(Waiting)),
        (Serving, E::Failed, [NO, NO, None, None, None], None),
        (Serving, E::Registered, [None, None, YES, None, None], Some(Syncing)),
        (Serving, E::Registered, [None, None, NO, None, None], Some(Serving)),
        (Serving, E::CaughtUp, ANY, None),
        (Serving, E::Rejoined, ANY, None),
        (Serving, E::WritesBack, ANY, None),
        (Serving, E::SourcesBack, ANY, None),
        (Serving, E::Older, READABLE, Some(Syncing)),
        (Serving, E::Older, [NO, None, None, None, YES], Some(Offline)),
        (Serving, E::Older, [NO, None, None, None, NO], None),
        (Syncing, E::Older, ANY, Some(Syncing)),
        (Waiting, E::Older, READABLE, Some(Syncing)),
        (Waiting, E::Older, [NO, None, None, None, YES], Some(Offline)),
        (Waiting, E::Older, [NO, None, None, None, NO], None),
        (Offline, E::Older, READABLE, Some(Syncing)),
        (Offline, E::Older, UNREADABLE, None),
        (Syncing, E::Down, ANY, Some(Offline)),
        (Syncing, E::Failed, ANY, Some(Offline)),
        (Syncing, E::Registered, ANY, Some(Syncing)),
        (Syncing, E::CaughtUp, READABLE, Some(Serving)),
        (Syncing, E::CaughtUp, UNREADABLE, None),
        (Syncing, E::Rejoined, ANY, None),
        (Syncing, E::WritesBack, ANY, None),
        (Syncing, E::SourcesBack, ANY, None),
        (Waiting, E::Down, ANY, None),
        (Waiting, E::Failed, ANY, None),
        (Waiting, E::Registered, ANY, Some(Serving)),
        (Waiting, E::CaughtUp, ANY, None),
        (Waiting, E::Rejoined, ANY, Some(Serving)),
        (Waiting, E::WritesBack, ANY, Some(Offline)),
        (Waiting, E::SourcesBack, ANY, None),
        (Offline, E::Down, ANY, None),
        (Offline, E::Failed, ANY, None),
        (Offline, E::Registered, READABLE, Some(Syncing)),
        (Offline, E::Registered, UNREADABLE, None),
        (Offline, E::CaughtUp, ANY, None),
        (Offline, E::Rejoined, READABLE, Some(Syncing)),
        (Offline, E::Rejoined, UNREADABLE, None),
        (Offline, E::WritesBack, ANY, None),
        (Offline, E::SourcesBack, [None, None, None, YES, None], Some(Syncing)),
        (Offline, E::SourcesBack, [None, None, None, NO, None], None),
    ];

    /// A member would serve what it does not hold, or a group would lose its last copy, if any row were wrong.
    #[test]
    fn every_case_is_exactly_one_row() {
        for state in [Serving, Syncing, Waiting, Offline] {
            for event in MemberEvent::ALL {
                for bits in 0..32u8 {
                    let is = [0, 1, 2, 3, 4].map(|bit| bits >> bit & 1 != 0);
                    let [readable, writable, heard, able, held] = is;
                    // Writes need at least as many members as reads, and those that are heard serve.
                    if (writable && !readable) || (heard && !writable) || (readable && !held) {
                        continue;
                    }
                    let around = Around { readable, writable, held, heard, able };
                    let fits = |row: &&Row| {
                        let conditions = row.2.iter().zip(is).all(|(want, is)| want.is_none_or(|want| want == is));
                        row.0 == state && row.1 == event && conditions
                    };
                    let rows: Vec<&Row> = ROWS.iter().filter(fits).collect();
                    assert_eq!(rows.len(), 1, "{state} {event:?} {around:?}");
                    assert_eq!(next(state, event, around), rows[0].3, "{state} {event:?} {around:?}");
                }
            }
        }
    }
}
