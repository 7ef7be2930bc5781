//! The generator matrix and its inversion.
//!
//! Invariant: [`coefficient`] is fixed for ever, because parity computed with it is on disk. It does not depend on k
//! and m: every code is the upper left corner of one matrix, so another parity row changes no other, and a data shard
//! that is not there counts as zeros. Every square part of it is invertible (it is a Cauchy matrix with rows and
//! columns scaled), hence any k shards of k + m are enough.
use crate::gf::{inverse, mul};
use crate::{SHARDS_MAX, ShardSet};

/// By data shard, then by parity: the factor of the data shard in the parity.
static COLUMNS: [[u8; SHARDS_MAX]; SHARDS_MAX] = {
    let mut table = [[0; SHARDS_MAX]; SHARDS_MAX];
    let mut data = 0;
    while data < SHARDS_MAX {
        let mut parity = 0;
        while parity < SHARDS_MAX {
            table[data][parity] = compute(parity, data);
            parity += 1;
        }
        data += 1;
    }
    table
};

/// Cauchy: 1 / (x + y) with x = parity and y = 32 + data, all of which are distinct. Then each column is scaled so that
/// the first row is ones, and each row so that the first column is ones.
const fn compute(parity: usize, data: usize) -> u8 {
    let (x, y, y0) = (parity as u8, (SHARDS_MAX + data) as u8, SHARDS_MAX as u8);
    let row_0 = y; // 1 / (1 / (0 + y))
    let column_0 = mul(inverse(x ^ y0), y0); // the first column after its own scaling
    mul(mul(inverse(x ^ y), row_0), inverse(column_0))
}

/// The factor of a data shard in a parity shard, `parity` counted from 0.
///
/// # Panics
/// When one of them is 32 or more.
pub fn coefficient(parity: usize, data: usize) -> u8 {
    COLUMNS[data][parity]
}

/// The factors of one data shard in the first parities.
pub(crate) fn column(data: usize, parities: usize) -> &'static [u8] {
    &COLUMNS[data][..parities]
}

/// The factor of each source in one shard: the sources are `k` shards, ascending.
pub(crate) struct Decoder {
    k: usize,
    sources: Vec<usize>,
    /// Data shards that are not among the sources, and for each its factors by source.
    lost: Vec<(usize, [u8; SHARDS_MAX])>,
}

impl Decoder {
    /// `sources` are k shards of the stripe.
    pub fn new(k: usize, sources: ShardSet) -> Self {
        assert_eq!(sources.len(), k, "a decoder needs k sources");
        let lost: Vec<usize> = (ShardSet::first(k) - sources).iter().collect();
        let parities: Vec<usize> = sources.iter().filter(|s| *s >= k).map(|s| s - k).collect();
        // parity p + Σ c[p][kept] · kept = Σ c[p][lost] · lost, solved for the lost.
        let solved = invert_cauchy(&parities, &lost);
        let sources: Vec<usize> = sources.iter().collect();
        let rows = lost.iter().zip(&solved).map(|(shard, by_parity)| {
            let mut row = [0; SHARDS_MAX];
            for (factor, source) in row.iter_mut().zip(&sources) {
                *factor = match source.checked_sub(k) {
                    Some(parity) => by_parity[parities.iter().position(|p| *p == parity).expect("it is a source")],
                    None => parities
                        .iter()
                        .zip(by_parity)
                        .fold(0, |sum, (parity, f)| sum ^ mul(*f, coefficient(*parity, *source))),
                };
            }
            (*shard, row)
        });
        let lost = rows.collect();
        Decoder { k, sources, lost }
    }

    /// The factor of each source in `wanted`, which may be any shard, also one of the sources.
    pub fn row(&self, wanted: usize) -> Vec<u8> {
        match wanted.checked_sub(self.k) {
            None => self.data_row(wanted),
            Some(parity) => {
                if let Some(at) = self.sources.iter().position(|s| *s == wanted) {
                    return self.unit(at);
                }
                let mut row = vec![0; self.k];
                for data in 0..self.k {
                    for (sum, factor) in row.iter_mut().zip(self.data_row(data)) {
                        *sum ^= mul(coefficient(parity, data), factor);
                    }
                }
                row
            }
        }
    }

    fn data_row(&self, data: usize) -> Vec<u8> {
        if let Some((_, row)) = self.lost.iter().find(|(shard, _)| *shard == data) {
            return row[..self.k].to_vec();
        }
        self.unit(self.sources.iter().position(|s| *s == data).expect("a data shard is lost or a source"))
    }

    fn unit(&self, at: usize) -> Vec<u8> {
        let mut row = vec![0; self.k];
        row[at] = 1;
        row
    }
}

/// The inverse of the part of the matrix with these parities and data shards: by data shard, then by parity.
fn invert_cauchy(parities: &[usize], data: &[usize]) -> Vec<Vec<u8>> {
    assert_eq!(parities.len(), data.len(), "as many parities as lost data shards");
    let n = data.len();
    // Gauss–Jordan on [matrix | unit matrix].
    let mut rows: Vec<Vec<u8>> = parities
        .iter()
        .enumerate()
        .map(|(i, parity)| {
            let mut row: Vec<u8> = data.iter().map(|d| coefficient(*parity, *d)).collect();
            row.extend((0..n).map(|j| u8::from(i == j)));
            row
        })
        .collect();
    for at in 0..n {
        let pivot = (at..n).find(|i| rows[*i][at] != 0).expect("every square part of a Cauchy matrix is invertible");
        rows.swap(at, pivot);
        let scale = inverse(rows[at][at]);
        rows[at].iter_mut().for_each(|x| *x = mul(*x, scale));
        let pivot_row = rows[at].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(i, _)| *i != at) {
            let factor = row[at];
            for (x, p) in row.iter_mut().zip(&pivot_row) {
                *x ^= mul(factor, *p);
            }
        }
    }
    rows.into_iter().map(|row| row[n..].to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_row_and_first_column_are_ones() {
        for i in 0..SHARDS_MAX {
            assert_eq!((coefficient(0, i), coefficient(i, 0)), (1, 1));
        }
    }

    /// A changed factor makes parity on disk worthless.
    #[test]
    fn the_matrix_is_the_one_on_disk() {
        let rows: Vec<Vec<u8>> = (0..4).map(|p| (0..12).map(|d| coefficient(p, d)).collect()).collect();
        assert_eq!(
            rows,
            [
                [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
                [1, 232, 220, 240, 194, 14, 124, 170, 53, 144, 186, 162],
                [1, 220, 130, 32, 10, 134, 21, 182, 128, 3, 55, 126],
                [1, 240, 32, 107, 251, 161, 117, 26, 184, 35, 74, 166],
            ]
        );
        // The rest by a hash that was computed elsewhere from the formula.
        let sum = COLUMNS.iter().flatten().fold(0u64, |sum, c| sum.wrapping_mul(31).wrapping_add(u64::from(*c)));
        assert_eq!(sum, 0xfdfb_536a_035d_2990);
    }

    /// Parts of up to four rows by up to twelve columns, one by one: all that the schemes in use can need.
    #[test]
    #[cfg_attr(miri, ignore = "long, and no unsafe code")]
    fn every_square_part_is_invertible() {
        let mut tried = 0;
        for parities in 1u32..16 {
            for data in (0u32..1 << 12).filter(|data| data.count_ones() == parities.count_ones()) {
                let parities: Vec<usize> = ShardSet::from_bits(parities).iter().collect();
                let data: Vec<usize> = ShardSet::from_bits(data).iter().collect();
                assert_inverse(&parities, &data, &invert_cauchy(&parities, &data));
                tried += 1;
            }
        }
        assert_eq!(tried, 4 * 12 + 6 * 66 + 4 * 220 + 495);
    }

    /// The largest parts of the whole matrix.
    #[test]
    fn large_parts_are_invertible() {
        for n in 1..SHARDS_MAX / 2 {
            let (parities, data): (Vec<usize>, Vec<usize>) =
                ((n..2 * n).collect(), (SHARDS_MAX - n..SHARDS_MAX).collect());
            assert_inverse(&parities, &data, &invert_cauchy(&parities, &data));
        }
    }

    fn assert_inverse(parities: &[usize], data: &[usize], inverse: &[Vec<u8>]) {
        for (i, row) in inverse.iter().enumerate() {
            for (j, d) in data.iter().enumerate() {
                let sum = parities.iter().zip(row).fold(0, |sum, (p, x)| sum ^ mul(*x, coefficient(*p, *d)));
                assert_eq!(sum, u8::from(i == j), "parities {parities:?}, data {data:?}");
            }
        }
    }
}
