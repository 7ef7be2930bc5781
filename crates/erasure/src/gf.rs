//! The field GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11D), and what the kernels need of each factor.
//!
//! Invariant: the polynomial is part of what is on disk and never changes. All tables are computed at compile time from
//! [`mul`]. Not here: the matrix (`matrix`), multiplication of whole shards (`kernel`).

/// The reduction polynomial without its x^8.
const POLYNOMIAL: u8 = 0x1D;

/// Product of two elements, bit by bit.
pub const fn mul(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut product) = (a, b, 0);
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = double(a);
        b >>= 1;
    }
    product
}

/// The element times x.
pub const fn double(a: u8) -> u8 {
    (a << 1) ^ (POLYNOMIAL * (a >> 7))
}

/// The inverse of an element, which is its 254th power. Zero has none.
pub const fn inverse(a: u8) -> u8 {
    assert!(a != 0, "zero has no inverse");
    // 254 = 2 + 4 + … + 128.
    let (mut power, mut result, mut i) = (a, 1, 0);
    while i < 7 {
        power = mul(power, power);
        result = mul(result, power);
        i += 1;
    }
    result
}

/// Products of one factor with the 16 low and the 16 high nibbles, as byte shuffles look them up.
#[repr(C, align(32))]
#[derive(Clone, Copy)]
#[cfg(any(test, target_arch = "x86_64", target_arch = "aarch64"))]
pub struct NibbleProducts {
    pub low: [u8; 16],
    pub high: [u8; 16],
}

/// By factor.
#[cfg(any(test, target_arch = "x86_64", target_arch = "aarch64"))]
pub static NIBBLES: [NibbleProducts; 256] = {
    let mut table = [NibbleProducts { low: [0; 16], high: [0; 16] }; 256];
    let mut factor = 0;
    while factor < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            table[factor].low[nibble] = mul(factor as u8, nibble as u8);
            table[factor].high[nibble] = mul(factor as u8, (nibble << 4) as u8);
            nibble += 1;
        }
        factor += 1;
    }
    table
};

/// By factor: the 8 × 8 bit matrix of the multiplication, as `gf2p8affineqb` takes it: byte 7 − i holds the bits of
/// the operand that bit i of the product is the parity of.
#[cfg(any(test, target_arch = "x86_64"))]
pub static AFFINE: [u64; 256] = {
    let mut table = [0; 256];
    let mut factor = 0;
    while factor < 256 {
        let mut operand_bit = 0;
        while operand_bit < 8 {
            let product = mul(factor as u8, 1 << operand_bit);
            let mut bit = 0;
            while bit < 8 {
                if product >> bit & 1 != 0 {
                    table[factor] |= 1 << ((7 - bit) * 8 + operand_bit);
                }
                bit += 1;
            }
            operand_bit += 1;
        }
        factor += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inverses_are_inverses() {
        for a in 1..=255 {
            assert_eq!(mul(a, inverse(a)), 1, "{a}");
        }
    }

    /// A wrong table entry would corrupt parity on the machines that use that table.
    #[test]
    #[cfg_attr(miri, ignore = "long, and no unsafe code")]
    fn nibble_products_add_up_to_every_product() {
        for factor in 0..=255u8 {
            for x in 0..=255u8 {
                let table = &NIBBLES[usize::from(factor)];
                let sum = table.low[usize::from(x & 15)] ^ table.high[usize::from(x >> 4)];
                assert_eq!(sum, mul(factor, x));
            }
        }
    }

    /// Powers of the generator 2, as tables of this field that others published begin (ISA-L `gff_base`, klauspost's
    /// `expTable`, Plank's tutorial for w = 8).
    #[test]
    fn powers_of_two_are_the_published_ones() {
        let published = [
            1, 2, 4, 8, 16, 32, 64, 128, 29, 58, 116, 232, 205, 135, 19, 38, 76, 152, 45, 90, 180, 117, 234, 201, 143,
            3, 6, 12, 24, 48, 96, 192,
        ];
        let mut power = 1;
        for expected in published {
            assert_eq!(power, expected);
            power = mul(power, 2);
        }
    }
}
