//! EndSession, before it goes into the log: whose word ends which session.
//!
//! Invariants: who may only read a volume ends no session but one that lives here and came from the same address, so no
//! writer's, and none that nobody has been given yet; whoever it is, no session ends that the manager never gave, as
//! far as was heard. What the end of a session does is meta-core's.

use std::net::IpAddr;

use cairn_meta_core::SessionState;
use cairn_types::ErrorCode;
use cairn_wire::error::WireError;

/// What is known where a session is to be ended.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) session: u64,
    pub(crate) state: SessionState,
    /// Sessions from this one on were not given yet, as far as was heard; 0: nothing was.
    pub(crate) below: u64,
    /// Where it came from, if its lease says so.
    pub(crate) leased_by: Option<IpAddr>,
    pub(crate) from: IpAddr,
    /// The asker has a key that may only read here.
    pub(crate) reads_only: bool,
}

/// What becomes of it.
#[derive(Debug)]
pub(crate) enum End {
    Goes,
    /// There is nothing of it here that its end would release.
    Nothing,
    Refused(WireError),
}

pub(crate) fn judge(asked: &Asked) -> End {
    match asked.state {
        SessionState::Live if asked.reads_only && asked.leased_by != Some(asked.from) => {
            let text = format!(
                "session {} is not known to come from {}; a key that may only read ends no others, this one ends by itself when nothing is \
                 heard of it",
                asked.session, asked.from
            );
            End::Refused(WireError::new(ErrorCode::KeyForbids, text))
        }
        SessionState::Live => End::Goes,
        SessionState::Ended | SessionState::Unknown if asked.reads_only => End::Nothing,
        SessionState::Unknown if asked.below != 0 && asked.session >= asked.below => {
            let text = format!(
                "session {} was not given by the manager yet, as far as was heard here (below {}); repeat in a second",
                asked.session, asked.below
            );
            End::Refused(WireError::new(ErrorCode::Overloaded, text))
        }
        SessionState::Ended | SessionState::Unknown => End::Goes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// A key that may only read would end sessions that are given to others next, and the volume would take no client.
    #[test]
    fn who_may_only_read_ends_its_own_sessions() {
        let at = |last: u8| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        let asked = Asked {
            session: 7,
            state: SessionState::Live,
            below: 100,
            leased_by: Some(at(1)),
            from: at(1),
            reads_only: true,
        };
        assert!(matches!(judge(&asked), End::Goes));
        for other in [Asked { from: at(2), ..asked }, Asked { leased_by: None, ..asked }] {
            assert!(matches!(judge(&other), End::Refused(error) if error.code == ErrorCode::KeyForbids));
            assert!(matches!(judge(&Asked { reads_only: false, ..other }), End::Goes), "a writer harms its own volume");
        }
        let unknown = Asked { state: SessionState::Unknown, ..asked };
        assert!(matches!(judge(&unknown), End::Nothing));
        assert!(matches!(judge(&Asked { state: SessionState::Ended, ..asked }), End::Nothing));
        let writers = Asked { reads_only: false, ..unknown };
        assert!(matches!(judge(&writers), End::Goes));
        assert!(matches!(judge(&Asked { below: 0, session: 1 << 40, ..writers }), End::Goes), "nothing was heard");
        let never = judge(&Asked { session: 100, ..writers });
        assert!(matches!(never, End::Refused(error) if error.code == ErrorCode::Overloaded));
    }
}
