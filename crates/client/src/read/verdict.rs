//! [`Verdict`]: whether bytes are lost for certain, so that nobody waits for what cannot come.
//!
//! Lost for certain is what members have answered for and cannot have any more: blocks that do not match their
//! checksums on so many of them that the others, were they all here, would not be enough. Members that are away, that
//! lack a block, or that gave no answer may still help: for them a read waits as long as its patience. Two looks have
//! to agree, [`CERTAIN_AFTER`] apart: a block may be in the middle of being healed or overwritten, or bad only on its
//! way here.
use cairn_types::Time;
use std::time::Duration;

/// Between the first look that found no hope and the one that ends a read.
const CERTAIN_AFTER: Duration = Duration::from_secs(1);

/// The looks at one range.
#[derive(Default, Debug)]
pub(super) struct Verdict {
    hopeless_since: Option<Time>,
}

impl Verdict {
    /// Another look; `true`: it was hopeless for long enough.
    pub(super) fn is_final(&mut self, hopeless: bool, now: Time) -> bool {
        if !hopeless {
            self.hopeless_since = None;
            return false;
        }
        now.since(*self.hopeless_since.get_or_insert(now)) >= CERTAIN_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One look alone may meet a block that is being healed; and nobody wants to wait half a minute for a certain no.
    #[test]
    fn two_looks_have_to_agree() {
        let (mut verdict, start) = (Verdict::default(), Time(5_000_000_000));
        assert!(!verdict.is_final(true, start));
        assert!(!verdict.is_final(true, start + CERTAIN_AFTER / 2));
        assert!(verdict.is_final(true, start + CERTAIN_AFTER));
        assert!(!verdict.is_final(false, start + CERTAIN_AFTER));
        assert!(!verdict.is_final(true, start + CERTAIN_AFTER * 2), "there was hope between");
    }
}
