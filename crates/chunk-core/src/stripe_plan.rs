//! Which chunks of a stripe group are encoded together: stripes matched by length, as few parity blocks as there can
//! be.
//!
//! Each column's chunks are sorted by length, and stripe j has the j-th longest of each column: no other matching has a
//! smaller sum of longest chunks, and parity is as long as the longest. What a stripe lacks (a column with fewer
//! chunks, blocks behind the end of a shorter one, punched blocks) counts as zeros. Left out, to be written anew by
//! file: chunks of which more than [`DEAD_PERCENT_MAX`] is dead, and stripes with which all of the group would take
//! more than [`SLACK`] beyond (k + m) ÷ k.
//!
//! Invariants: a plan has each chunk at most once, at its own column; equal input gives an equal plan and digest on any
//! machine; what is in the plan and what is left out make up all chunks that have blocks. Not here: who makes it and
//! when, and whether members have what it says ([`stripe_rules`](crate::stripe_rules)).

/// A chunk of which more is dead is not encoded: its blocks would be kept for decoding alone.
pub const DEAD_PERCENT_MAX: u32 = 30;
/// A thirtieth: `rs-6-3` may take 1.55 times the data instead of 1.5.
pub const SLACK: u64 = 30;

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// A sealed chunk of a column, of which all copies are equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColumnChunk {
    pub index: u32,
    pub blocks: u32,
    /// Of these, blocks that nobody needs any more.
    pub dead: u32,
    /// [`content_of`](crate::stripe_rules::content_of) its tables.
    pub content: u32,
}

/// A chunk in a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StripePart {
    pub index: u32,
    pub blocks: u32,
    pub content: u32,
}

/// Chunks that are encoded together: one of each column, or zeros.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedStripe {
    pub parts: Vec<Option<StripePart>>,
}

impl PlannedStripe {
    /// Blocks of each parity shard.
    pub fn parity_blocks(&self) -> u32 {
        self.parts.iter().flatten().map(|part| part.blocks).max().unwrap_or(0)
    }
    /// Blocks of data.
    pub fn data_blocks(&self) -> u64 {
        self.parts.iter().flatten().map(|part| u64::from(part.blocks)).sum()
    }
}

/// All stripes of a stripe group; what is at a number stays there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripePlan {
    pub k: u8,
    pub m: u8,
    pub stripes: Vec<PlannedStripe>,
}

impl StripePlan {
    /// Tells plans of one stripe group apart: FNV-1a, 64 bits.
    pub fn digest(&self) -> u64 {
        let mut hash = OFFSET;
        let mut eat = |bytes: &[u8]| {
            for byte in bytes {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
            }
        };
        eat(&[self.k, self.m]);
        for part in self.stripes.iter().flat_map(|stripe| &stripe.parts) {
            match part {
                None => eat(&[0]),
                Some(StripePart { index, blocks, content }) => {
                    eat(&[1]);
                    [index, blocks, content].iter().for_each(|number| eat(&number.to_le_bytes()));
                }
            }
        }
        hash
    }

    /// The stripe that a chunk of a column is in.
    pub fn stripe_of(&self, column: usize, index: u32) -> Option<usize> {
        let here =
            |stripe: &PlannedStripe| stripe.parts.get(column).copied().flatten().is_some_and(|p| p.index == index);
        self.stripes.iter().position(here)
    }

    /// Chunks of a column, with their stripes.
    pub fn of_column(&self, column: usize) -> impl Iterator<Item = (usize, StripePart)> + '_ {
        let part =
            move |(at, stripe): (usize, &PlannedStripe)| Some((at, stripe.parts.get(column).copied().flatten()?));
        self.stripes.iter().enumerate().filter_map(part)
    }

    /// Blocks of data, and blocks on all disks when it is encoded.
    pub fn space(&self) -> (u64, u64) {
        let data: u64 = self.stripes.iter().map(PlannedStripe::data_blocks).sum();
        let parity: u64 = self.stripes.iter().map(|stripe| u64::from(stripe.parity_blocks())).sum();
        (data, data + parity * u64::from(self.m))
    }
}

/// A plan, and what is not worth being in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Matched {
    pub plan: StripePlan,
    /// Column and index of chunks that are to be written anew by file.
    pub left: Vec<(usize, u32)>,
}

/// Matches the chunks of k columns.
///
/// # Panics
/// Without columns or parity.
pub fn match_by_length(columns: &[Vec<ColumnChunk>], m: u8) -> Matched {
    let k = u8::try_from(columns.len()).expect("a scheme has few shards");
    assert!(k > 0 && m > 0, "a stripe has data and parity");
    let mut left: Vec<(usize, u32)> = Vec::new();
    let mut sorted: Vec<Vec<StripePart>> = Vec::with_capacity(columns.len());
    for (column, chunks) in columns.iter().enumerate() {
        let mut parts = Vec::with_capacity(chunks.len());
        for ColumnChunk { index, blocks, dead, content } in chunks.iter().copied().filter(|chunk| chunk.blocks > 0) {
            match u64::from(dead) * 100 > u64::from(blocks) * u64::from(DEAD_PERCENT_MAX) {
                true => left.push((column, index)),
                false => parts.push(StripePart { index, blocks, content }),
            }
        }
        parts.sort_by_key(|part| (std::cmp::Reverse(part.blocks), part.index));
        sorted.push(parts);
    }
    let count = sorted.iter().map(Vec::len).max().unwrap_or(0);
    let stripe = |at: usize| PlannedStripe { parts: sorted.iter().map(|parts| parts.get(at).copied()).collect() };
    let mut stripes: Vec<PlannedStripe> = (0..count).map(stripe).collect();
    // Those with least parity for their data first: so many as fit are a beginning.
    stripes.sort_by(|a, b| {
        let (x, y) = (u64::from(a.parity_blocks()) * b.data_blocks(), u64::from(b.parity_blocks()) * a.data_blocks());
        x.cmp(&y)
    });
    let (mut data, mut parity, mut taken) = (0, 0, 0);
    for stripe in &stripes {
        (data, parity) = (data + stripe.data_blocks(), parity + u64::from(stripe.parity_blocks()));
        if !is_worthwhile(data, parity, k, m) {
            break;
        }
        taken += 1;
    }
    for stripe in stripes.split_off(taken) {
        left.extend(stripe.parts.iter().enumerate().filter_map(|(column, part)| Some((column, part.as_ref()?.index))));
    }
    left.sort_unstable();
    Matched { plan: StripePlan { k, m, stripes }, left }
}

/// (data + m × parity) ÷ data is at most (k + m) ÷ k × (1 + 1 ÷ SLACK).
fn is_worthwhile(data: u64, parity: u64, k: u8, m: u8) -> bool {
    let (k, m) = (u64::from(k), u64::from(m));
    (data + m * parity) * k * SLACK <= data * (k + m) * (SLACK + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(index: u32, blocks: u32) -> ColumnChunk {
        ColumnChunk { index, blocks, dead: 0, content: index * 1000 + blocks }
    }

    fn lengths(stripe: &PlannedStripe) -> Vec<u32> {
        stripe.parts.iter().map(|part| part.map_or(0, |part| part.blocks)).collect()
    }

    struct Random(u64);
    impl Random {
        fn below(&mut self, bound: u32) -> u32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) % u64::from(bound)) as u32
        }
    }

    /// Short chunks of real streams would take up to 3 times their bytes, as copies do.
    #[test]
    fn chunks_of_equal_length_meet() {
        let columns =
            vec![vec![chunk(0, 10), chunk(1, 99)], vec![chunk(7, 100), chunk(9, 9)], vec![chunk(3, 10), chunk(4, 100)]];
        let Matched { plan, left } = match_by_length(&columns, 2);
        assert_eq!(
            (plan.stripes.iter().map(lengths).collect::<Vec<_>>(), left),
            (vec![vec![99, 100, 100], vec![10, 9, 10]], vec![])
        );
        assert_eq!(plan.space(), (328, 328 + 2 * 110));
        assert_eq!((plan.stripe_of(1, 9), plan.stripe_of(0, 9), plan.stripe_of(2, 4)), (Some(1), None, Some(0)));
        assert_eq!(plan.of_column(0).map(|(at, part)| (at, part.index)).collect::<Vec<_>>(), [(0, 1), (1, 0)]);
    }

    /// Encoding would cost more space than it saves, or be put off by a few chunks that do not fit.
    #[test]
    fn what_does_not_pay_is_left_out() {
        let dead = ColumnChunk { dead: 31, ..chunk(5, 100) };
        let lone =
            vec![vec![chunk(0, 100), dead], vec![chunk(1, 100)], vec![chunk(2, 100), chunk(3, 100), chunk(8, 0)]];
        let found = match_by_length(&lone, 2);
        assert_eq!(found.plan.stripes.iter().map(lengths).collect::<Vec<_>>(), [[100, 100, 100]]);
        assert_eq!(found.left, [(0, 5), (2, 3)], "one of a stripe alone, and one that is mostly dead");
        let lively = ColumnChunk { dead: 30, ..dead };
        let pair = vec![vec![lively], vec![chunk(1, 100)], vec![chunk(2, 100)]];
        assert!(match_by_length(&pair, 2).left.is_empty());
        let nothing = match_by_length(&[vec![], vec![], vec![]], 2);
        assert_eq!((nothing.plan.stripes.len(), nothing.plan.space()), (0, (0, 0)));
    }

    /// A plan would have a chunk twice, lose one, or take more parity than another matching.
    #[test]
    fn random_columns_are_matched_as_well_as_can_be() {
        for seed in 0..400 {
            let mut random = Random(seed);
            let columns: Vec<Vec<ColumnChunk>> =
                (0..3).map(|_| (0..random.below(4)).map(|index| chunk(index, random.below(6))).collect()).collect();
            let Matched { plan, left } = match_by_length(&columns, 2);
            let planned = plan.stripes.iter().flat_map(|stripe| {
                stripe.parts.iter().enumerate().filter_map(|(column, part)| Some((column, part.as_ref()?.index)))
            });
            let mut all: Vec<(usize, u32)> = planned.chain(left.iter().copied()).collect();
            all.sort_unstable();
            let there = columns.iter().enumerate().flat_map(|(column, chunks)| {
                chunks.iter().filter(|chunk| chunk.blocks > 0).map(move |chunk| (column, chunk.index))
            });
            assert_eq!(all, there.collect::<Vec<_>>(), "seed {seed}");
            let (data, raw) = plan.space();
            assert!(raw * 3 * SLACK <= data * 5 * (SLACK + 1), "seed {seed}: {data} take {raw}");
            if left.is_empty() {
                assert_eq!((raw - data) / 2, least_parity(&columns), "seed {seed}");
            }
            assert_eq!(plan.digest(), match_by_length(&columns, 2).plan.digest());
        }
    }

    /// The least sum of longest chunks over all ways to put chunks together.
    fn least_parity(columns: &[Vec<ColumnChunk>]) -> u64 {
        let count = columns.iter().map(Vec::len).max().unwrap_or(0);
        let padded: Vec<Vec<u32>> = columns
            .iter()
            .map(|chunks| (0..count).map(|at| chunks.get(at).map_or(0, |chunk| chunk.blocks)).collect())
            .collect();
        fn orders(left: &mut Vec<u32>, order: &mut Vec<u32>, out: &mut Vec<Vec<u32>>) {
            if left.is_empty() {
                out.push(order.clone());
            }
            for at in 0..left.len() {
                let one = left.remove(at);
                order.push(one);
                orders(left, order, out);
                order.pop();
                left.insert(at, one);
            }
        }
        let all = |column: &Vec<u32>| {
            let mut out = Vec::new();
            orders(&mut column.clone(), &mut Vec::new(), &mut out);
            out
        };
        let (second, third) = (all(&padded[1]), all(&padded[2]));
        let sum = |b: &[u32], c: &[u32]| (0..count).map(|i| u64::from(padded[0][i].max(b[i]).max(c[i]))).sum::<u64>();
        second.iter().flat_map(|b| third.iter().map(|c| sum(b, c))).min().unwrap_or(0)
    }

    /// Parity of one plan would be taken for that of another.
    #[test]
    fn digests_tell_plans_apart() {
        let columns =
            vec![vec![chunk(0, 10), chunk(1, 10)], vec![chunk(0, 10), chunk(1, 10)], vec![chunk(0, 10), chunk(1, 10)]];
        let plan = match_by_length(&columns, 2).plan;
        let changed = |change: &dyn Fn(&mut StripePlan)| {
            let mut plan = plan.clone();
            change(&mut plan);
            plan.digest()
        };
        let part = |plan: &mut StripePlan, change: &dyn Fn(&mut StripePart)| {
            change(plan.stripes[1].parts[2].as_mut().expect("it is there"));
        };
        let all = [
            plan.digest(),
            changed(&|plan| plan.m = 3),
            changed(&|plan| plan.stripes.swap(0, 1)),
            changed(&|plan| plan.stripes[0].parts[1] = None),
            changed(&|plan| part(plan, &|part| part.index += 1)),
            changed(&|plan| part(plan, &|part| part.blocks += 1)),
            changed(&|plan| part(plan, &|part| part.content ^= 1)),
        ];
        let distinct: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        // Whoever writes it down compares it with what another build made.
        assert_eq!(plan.digest(), 3_667_540_562_661_728_818, "the digest of a plan changed");
    }
}
