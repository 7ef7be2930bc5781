//! The code once more, slowly and in another way: bit-by-bit multiplication, inverses by search, the matrix from its
//! formula, and decoding by elimination of the whole generator matrix. It shares nothing with the crate.

/// Product modulo 0x11D.
pub fn mul(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut product) = (u16::from(a), b, 0u16);
    while b != 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        a <<= 1;
        if a & 0x100 != 0 {
            a ^= 0x11D;
        }
        b >>= 1;
    }
    product as u8
}

/// By search.
pub fn inverse(a: u8) -> u8 {
    (1..=255).find(|b| mul(a, *b) == 1).expect("zero has no inverse")
}

/// 1 / (parity + 32 + data), columns and then rows divided by their first element.
pub fn coefficient(parity: usize, data: usize) -> u8 {
    let cauchy = |p: usize, d: usize| inverse((p ^ (32 + d)) as u8);
    let column_scaled = |p: usize, d: usize| mul(cauchy(p, d), inverse(cauchy(0, d)));
    mul(column_scaled(parity, data), inverse(column_scaled(parity, 0)))
}

/// The row of the systematic generator matrix that makes a shard.
pub fn generator_row(k: usize, shard: usize) -> Vec<u8> {
    (0..k).map(|d| if shard < k { u8::from(shard == d) } else { coefficient(shard - k, d) }).collect()
}

/// All shards of a stripe, data first.
pub fn encode(k: usize, m: usize, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut shards = data.to_vec();
    for parity in 0..m {
        let row = generator_row(k, k + parity);
        shards.push((0..data[0].len()).map(|i| (0..k).fold(0, |sum, d| sum ^ mul(row[d], data[d][i]))).collect());
    }
    shards
}

/// The data of k shards given with their numbers; `None` when they do not determine it.
pub fn decode(k: usize, given: &[(usize, &[u8])]) -> Option<Vec<Vec<u8>>> {
    let mut rows: Vec<(Vec<u8>, Vec<u8>)> =
        given.iter().take(k).map(|(shard, bytes)| (generator_row(k, *shard), bytes.to_vec())).collect();
    for at in 0..k {
        let pivot = (at..k).find(|i| rows[*i].0[at] != 0)?;
        rows.swap(at, pivot);
        let scale = inverse(rows[at].0[at]);
        let scaled = |bytes: &[u8]| bytes.iter().map(|x| mul(scale, *x)).collect::<Vec<u8>>();
        rows[at] = (scaled(&rows[at].0), scaled(&rows[at].1));
        let (factors, bytes) = rows[at].clone();
        for (i, row) in rows.iter_mut().enumerate() {
            let factor = row.0[at];
            if i != at && factor != 0 {
                row.0.iter_mut().zip(&factors).for_each(|(x, p)| *x ^= mul(factor, *p));
                row.1.iter_mut().zip(&bytes).for_each(|(x, p)| *x ^= mul(factor, *p));
            }
        }
    }
    Some(rows.into_iter().map(|(_, bytes)| bytes).collect())
}

/// Bytes that depend on seed and place.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 56) as u8
        })
        .collect()
}

/// `count` shards of random bytes.
pub fn shards(seed: u64, count: usize, length: usize) -> Vec<Vec<u8>> {
    (0..count as u64).map(|i| bytes(seed * 1000 + i, length)).collect()
}
