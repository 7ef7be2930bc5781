//! Stripe groups that lack a member: their files wait for it instead of being encoded by themselves, which would load
//! the racks when these have least to spare.
//!
//! Invariant: from when a group first lacked one, its files wait for [`WAIT_MAX`] in all, however often the member
//! comes and goes, until something of it was encoded together. It counts under one leader of the partition.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_types::Time;

/// As long as it takes until others have the member's place.
const WAIT_MAX: Duration = Duration::from_secs(20 * 60);

/// Since when a group lacks members, and whether it did in the last look.
#[derive(Clone, Copy, Debug)]
struct Lack {
    since: Time,
    lasts: bool,
}

/// What a look means for a stripe group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outlook {
    /// Nothing special.
    Usual,
    /// Its files wait.
    Waits,
    /// Its members are all there again: what failed meanwhile says nothing any more.
    WholeAgain,
}

/// By stripe group.
#[derive(Debug, Default)]
pub(super) struct Degraded(BTreeMap<u32, Lack>);

impl Degraded {
    /// A look has found whether a group lacks a member.
    pub(super) fn look(&mut self, group: u32, lacks: bool, now: Time) -> Outlook {
        if lacks {
            self.0.entry(group).or_insert(Lack { since: now, lasts: true });
        }
        let Some(lack) = self.0.get_mut(&group) else { return Outlook::Usual };
        let lasted = std::mem::replace(&mut lack.lasts, lacks);
        match (now.since(lack.since) < WAIT_MAX, lasted, lacks) {
            (true, _, true) => Outlook::Waits,
            (true, true, false) => Outlook::WholeAgain,
            _ => Outlook::Usual,
        }
    }

    /// Something of a group was encoded together.
    pub(super) fn forget(&mut self, group: u32) {
        self.0.remove(&group);
    }

    /// Groups of which nothing is due any more are forgotten.
    pub(super) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        self.0.retain(|group, _| keep(*group));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(minutes: u64) -> Time {
        Time(0) + Duration::from_secs(minutes * 60)
    }

    /// Files would be encoded through other racks while a server restarts; or stay copies for ever, because a member
    /// comes and goes; or a failure be tried again with every look.
    #[test]
    fn files_wait_for_a_member_once_and_not_for_ever() {
        let mut degraded = Degraded::default();
        assert_eq!(degraded.look(7, false, minutes(0)), Outlook::Usual);
        assert_eq!(degraded.look(7, true, minutes(1)), Outlook::Waits);
        assert_eq!(degraded.look(7, false, minutes(3)), Outlook::WholeAgain);
        assert_eq!(degraded.look(7, false, minutes(4)), Outlook::Usual, "told once");
        assert_eq!(degraded.look(7, true, minutes(20)), Outlook::Waits);
        assert_eq!(degraded.look(7, true, minutes(21)), Outlook::Usual, "20 minutes behind the first time");
        assert_eq!(degraded.look(7, false, minutes(22)), Outlook::Usual);
        assert_eq!(degraded.look(8, true, minutes(22)), Outlook::Waits, "each by itself");
        degraded.forget(7);
        assert_eq!(degraded.look(7, true, minutes(30)), Outlook::Waits);
        degraded.retain(|group| group == 8);
        assert_eq!(degraded.look(7, false, minutes(31)), Outlook::Usual);
        assert_eq!(degraded.look(8, false, minutes(31)), Outlook::WholeAgain);
    }
}
