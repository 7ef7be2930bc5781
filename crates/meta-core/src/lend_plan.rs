//! Who gets how much of a volume's limit: decisions of its home's leader, without effects. What comes of them is
//! checked again by the entries (`lend`), so that a decision on old numbers does no harm.
//!
//! A partition gets room for what waits there, and beyond that a share of what is left, so shares become smaller near
//! the limit. When there is not enough, the others are to give back half of what they do not use, or all of it.
use crate::lend::Amounts;

/// A partition that asks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asker {
    pub limits: Amounts,
    /// What others use or may use.
    pub taken: Amounts,
    pub used: Amounts,
    /// It has at most this.
    pub ceiling: Amounts,
    /// What the smallest request that waits there needs; `NONE`: nothing waits.
    pub least: Amounts,
    /// What all of them need.
    pub wanted: Amounts,
}

impl Asker {
    /// The bound it gets in a volume of so many partitions; `None`: not enough for what waits.
    pub fn bound(&self, partitions: u64) -> Option<Amounts> {
        let all = self.limits.minus(self.taken);
        let available = all.minus(self.used);
        if !available.covers(self.least) {
            return None;
        }
        let share = |available: u64, wanted: u64| match available {
            u64::MAX => u64::MAX,
            _ => (available / (2 * partitions.max(1))).max(wanted).min(available),
        };
        // What it has is not taken from it.
        Some(self.used.plus(available.both(self.wanted, share)).max(self.ceiling.min(all)))
    }

    /// What has to come back from others before it fits.
    pub fn lacks(&self) -> Amounts {
        let needs = self.taken.plus(self.used).plus(self.least);
        let short =
            needs.both(self.limits, |needs, limit| if limit == u64::MAX { 0 } else { needs.saturating_sub(limit) });
        short.both(self.least, |short, least| if least == 0 { 0 } else { short })
    }
}

/// A partition that may give back.
#[derive(Clone, Copy, Debug)]
pub struct Lender {
    pub partition: u32,
    pub used: Amounts,
    pub ceiling: Amounts,
}

/// The bounds that others are to have, so that `lacking` comes back; those that have nothing to give are left out.
pub fn recall(lenders: &[Lender], lacking: Amounts) -> Vec<(u32, Amounts)> {
    let unused = |lender: &Lender| lender.ceiling.both(lender.used, u64::saturating_sub);
    let halves = lenders.iter().map(|lender| unused(lender).both(Amounts::NONE, |unused, _| unused / 2));
    let halves = halves.fold(Amounts::NONE, Amounts::plus);
    let target = |lack: u64, halves: u64, used: u64, ceiling: u64| match ceiling.saturating_sub(used) {
        _ if lack == 0 => ceiling,
        unused if halves >= lack => ceiling - unused / 2,
        _ => used.min(ceiling),
    };
    let plan = lenders.iter().map(|lender| {
        let (used, ceiling) = (lender.used, lender.ceiling);
        let bytes = target(lacking.bytes, halves.bytes, used.bytes, ceiling.bytes);
        (lender.partition, Amounts::new(bytes, target(lacking.inodes, halves.inodes, used.inodes, ceiling.inodes)))
    });
    plan.zip(lenders).filter(|((_, target), lender)| *target != lender.ceiling).map(|(planned, _)| planned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inodes(count: u64) -> Amounts {
        Amounts::new(u64::MAX, count)
    }

    /// A partition would take all that is left, or ask for each file; or wait for what nobody has.
    #[test]
    fn shares_become_smaller_near_the_limit() {
        let asker = |used, ceiling, least, taken| Asker {
            limits: inodes(10_000),
            taken: Amounts::new(77, taken),
            used: Amounts::new(0, used),
            ceiling: inodes(ceiling),
            least: Amounts::new(0, least),
            wanted: Amounts::new(0, least),
        };
        let bound = |asker: Asker| asker.bound(3).map(|bound| bound.inodes);
        assert_eq!(bound(asker(0, 0, 0, 4000)), Some(1000));
        assert_eq!(bound(asker(100, 100, 1, 9840)), Some(110));
        assert_eq!(bound(asker(100, 100, 1, 9897)), Some(101));
        assert_eq!(bound(asker(100, 100, 7, 9892)), Some(107), "what waits counts more than the share");
        assert_eq!(bound(asker(100, 104, 7, 9893)), Some(107), "with what it has");
        assert_eq!(bound(asker(100, 100, 7, 9894)), None);
        assert_eq!(asker(100, 102, 7, 9895).lacks(), Amounts::new(0, 2));
        assert_eq!(asker(100, 102, 7, 10_500).lacks(), Amounts::new(0, 607), "more is in use than the limit");
        assert_eq!(bound(asker(100, 4000, 1, 5000)), Some(4000), "a raise takes nothing away");
        assert_eq!(bound(asker(100, 4000, 0, 9990)), Some(100), "but what is not there");
        assert_eq!(Asker { limits: Amounts::ANY, ..Asker::default() }.bound(3), Some(Amounts::ANY));
    }

    /// What nobody uses would not be found, or more be taken back than is needed.
    #[test]
    fn others_give_back_half_or_all_of_what_they_do_not_use() {
        let lender =
            |partition, used, ceiling| Lender { partition, used: Amounts::new(9, used), ceiling: inodes(ceiling) };
        let lenders = [lender(2, 10, 20), lender(3, 7, 7), lender(4, 0, 5)];
        let of = |lack| recall(&lenders, Amounts::new(0, lack));
        assert_eq!(of(0), []);
        assert_eq!(of(7), [(2, inodes(15)), (4, inodes(3))]);
        assert_eq!(of(8), [(2, inodes(10)), (4, inodes(0))]);
        assert_eq!(recall(&[lender(2, 30, 20)], Amounts::new(0, 9)), [], "it has more than it should");
    }
}
