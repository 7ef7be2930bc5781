//! How the primary ends an open chunk of an earlier epoch: sealed everywhere at the longest verified prefix, which is
//! first copied to the serving members that have less.
//!
//! Invariant: nothing is cut off. A member that is sealed already keeps its length: what it lacks was never acknowledged
//! by it, so no extent names it.

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
    let open = || holdings.iter().filter(|h| !h.sealed);
    let copies = open().filter(|h| h.length.unwrap_or(0) < longest).map(|h| (h.disk, h.length.unwrap_or(0))).collect();
    let seals = open().filter(|h| h.length.is_some() || longest > 0).map(|h| h.disk).collect();
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
        assert_eq!(plan.copies, [(DiskId(1), 10), (DiskId(3), 0)]);
        assert_eq!(plan.seals, [DiskId(1), DiskId(2), DiskId(3)]);
        let sealed = plan_seal(&[holding(1, Some(10), true), holding(2, Some(30), false)]).expect("somebody has it");
        assert_eq!((sealed.copies, sealed.seals), (vec![], vec![DiskId(2)]));
        assert_eq!(plan_seal(&[holding(1, None, false)]), None);
        let empty = plan_seal(&[holding(1, Some(0), false), holding(2, None, false)]).expect("somebody has it");
        assert_eq!((empty.copies, empty.seals), (vec![], vec![DiskId(1)]));
    }
}
