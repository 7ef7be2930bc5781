//! Base-128 numbers, as in protobuf: in values, in requests and in answers.
//!
//! Times take nine bytes each, so numbers are spread and gathered in a register instead of byte by byte.

/// Bytes of the longest number.
pub(crate) const VARINT_MAX: usize = 10;
/// The continuation bits of eight bytes.
const MORE: u64 = 0x8080_8080_8080_8080;

/// The bytes of a number, and how many they are.
#[inline]
pub(crate) fn encode(value: u64) -> ([u8; VARINT_MAX], usize) {
    let length = (70 - (value | 1).leading_zeros() as usize) / 7;
    // 56 bits to eight groups of seven, by halves.
    let mut groups = value & 0x00ff_ffff_ffff_ffff;
    groups = groups & 0x0000_0000_0fff_ffff | (groups & 0x00ff_ffff_f000_0000) << 4;
    groups = groups & 0x0000_3fff_0000_3fff | (groups & 0x0fff_c000_0fff_c000) << 2;
    groups = groups & 0x007f_007f_007f_007f | (groups & 0x3f80_3f80_3f80_3f80) << 1;
    let followed = if length > 8 { MORE } else { MORE & ((1 << (8 * (length - 1))) - 1) };
    let mut bytes = [0; VARINT_MAX];
    bytes[..8].copy_from_slice(&(groups | followed).to_le_bytes());
    bytes[8] = (value >> 56) as u8 & 0x7f | u8::from(length > 9) << 7;
    bytes[9] = (value >> 63) as u8;
    (bytes, length)
}

/// The number at the front and how many bytes it takes; `None` if it does not end or exceeds 64 bits.
#[inline]
pub(crate) fn decode(bytes: &[u8]) -> Option<(u64, usize)> {
    let Some(first) = bytes.first_chunk::<8>() else { return decode_short(bytes) };
    if first[0] < 0x80 {
        return Some((u64::from(first[0]), 1));
    }
    let word = u64::from_le_bytes(*first);
    let ends = !word & MORE;
    if ends != 0 {
        // All up to and including the first byte without a continuation bit.
        return Some((gather(word & (ends ^ (ends - 1))), ends.trailing_zeros() as usize / 8 + 1));
    }
    let (ninth, low) = (*bytes.get(8)?, gather(word));
    if ninth < 0x80 {
        return Some((low | u64::from(ninth) << 56, 9));
    }
    let tenth = *bytes.get(9)?;
    (tenth <= 1).then_some((low | u64::from(ninth & 0x7f) << 56 | u64::from(tenth) << 63, 10))
}

/// Eight groups of seven bits to 56 bits.
#[inline]
fn gather(word: u64) -> u64 {
    let mut groups = word & !MORE;
    groups = groups & 0x007f_007f_007f_007f | (groups & 0x7f00_7f00_7f00_7f00) >> 1;
    groups = groups & 0x0000_3fff_0000_3fff | (groups & 0x3fff_0000_3fff_0000) >> 2;
    groups & 0x0000_0000_0fff_ffff | (groups & 0x0fff_ffff_0000_0000) >> 4
}

/// Fewer than eight bytes are left: the number is shorter than that, or cut off.
#[inline]
fn decode_short(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (i, byte) in bytes.iter().enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if *byte < 0x80 {
            return Some((value, i + 1));
        }
    }
    None
}

/// Reads numbers off the front of a value.
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    #[inline]
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    /// At most ten bytes.
    #[inline]
    pub fn varint(&mut self) -> Option<u64> {
        if let [first, rest @ ..] = self.rest
            && *first < 0x80
        {
            self.rest = rest;
            return Some(u64::from(*first));
        }
        let (value, length) = decode(self.rest)?;
        self.rest = &self.rest[length..];
        Some(value)
    }

    #[inline]
    pub fn varint_u32(&mut self) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }

    /// A block of bytes with its length in front.
    pub fn block(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    /// All that is left over.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// `Some` when nothing is left over.
    #[inline]
    pub fn end(&self) -> Option<()> {
        self.rest.is_empty().then_some(())
    }
}

/// A signed difference as a number that is small when the difference is.
#[inline]
pub(crate) fn zigzag(difference: i64) -> u64 {
    (difference << 1) as u64 ^ (difference >> 63) as u64
}

/// Undoes [`zigzag`].
#[inline]
pub(crate) fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}
