//! How the primary ends an open chunk of an earlier epoch: sealed everywhere at the longest verified prefix, which is
//! first copied to the serving members that have less.
//!
//! Invariant: nothing is cut off. A member that is sealed already keeps its length, and one that has not got the chunk
//! at all does not get it: what a serving member lacks it never acknowledged, so no extent names it, or it was freed
//! there and must not come back.

use cairn_types::DiskId;

/// What a serving member has of the chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// The member.
    pub disk: DiskId,
    /// Bytes it has; `None`: not even the file.
    pub length: Option<u64>,
    /// It takes no more.
    pub sealed: bool,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealPlan {
    /// Who has the longest prefix; the primary when several have.
    pub source: DiskId,
    /// Its length.
    pub length: u64,
    /// Members to be brought up to it, and what they have.
    pub copies: Vec<(DiskId, u64)>,
    /// Members to be sealed after that.
    pub seals: Vec<DiskId>,
}

/// Makes the plan; `None` when nobody has the chunk. Members in the group's order, the primary first.
pub fn plan_seal(holdings: &[Holding]) -> Option<SealPlan> {
    let longest = holdings.iter().filter_map(|h| h.length).max()?;
    let source = holdings.iter().find(|h| h.length == Some(longest))?.disk;
    let open = || holdings.iter().filter(|h| !h.sealed).filter_map(|h| h.length.map(|length| (h.disk, length)));
    let copies = open().filter(|(_, length)| *length < longest).collect();
    let seals = open().map(|(disk, _)| disk).collect();
    Some(SealPlan { source, length: longest, copies, seals })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(disk: u32, length: Option<u64>, sealed: bool) -> Holding {
        Holding { disk: DiskId(disk), length, sealed }
    }

    /// Acknowledged bytes that one survivor has would not reach the others.
    #[test]
    fn short_members_are_copied_up_and_all_are_sealed() {
        let plan = plan_seal(&[holding(1, Some(10), false), holding(2, Some(30), false), holding(3, None, false)]);
        let plan = plan.expect("somebody has it");
        assert_eq!((plan.source, plan.length), (DiskId(2), 30));
        assert_eq!(plan.copies, [(DiskId(1), 10)]);
        assert_eq!(plan.seals, [DiskId(1), DiskId(2)], "the third never had it, or freed it");
        let sealed = plan_seal(&[holding(1, Some(10), true), holding(2, Some(30), false)]).expect("somebody has it");
        assert_eq!((sealed.copies, sealed.seals), (vec![], vec![DiskId(2)]));
        assert_eq!(plan_seal(&[holding(1, None, false)]), None);
        let empty = plan_seal(&[holding(1, Some(0), false), holding(2, None, false)]).expect("somebody has it");
        assert_eq!((empty.copies, empty.seals), (vec![], vec![DiskId(1)]));
    }
}
