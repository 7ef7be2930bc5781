//! Base-128 numbers in values.

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
        let mut value = 0u64;
        for shift in 0..10 {
            let byte = self.byte()?;
            if shift == 9 && byte > 1 {
                return None;
            }
            value |= u64::from(byte & 0x7f) << (7 * shift);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
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
