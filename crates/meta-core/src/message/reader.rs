//! Reading protobuf fields one after the other from borrowed bytes.
use crate::encoding::varint;
use crate::error::{OpError, Result};

/// Fields of one message, in the order of the bytes.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

/// The value of a field. Fixed-width fields do not occur in `meta.proto` and are skipped as unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next field and its value; `None` at the end.
    #[inline(always)]
    pub fn next(&mut self) -> Result<Option<(u32, Value<'a>)>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = u32::try_from(tag >> 3).map_err(|_| OpError::BAD_REQUEST)?;
        if field == 0 {
            return Err(OpError::BAD_REQUEST);
        }
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| OpError::BAD_REQUEST)?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(OpError::BAD_REQUEST),
        };
        Ok(Some((field, value)))
    }

    /// True at the end of the bytes.
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// A base-128 number of at most ten bytes.
    #[inline]
    pub fn varint(&mut self) -> Result<u64> {
        // Tags, lengths and most numbers.
        if let [first, rest @ ..] = self.rest
            && *first < 0x80
        {
            self.rest = rest;
            return Ok(u64::from(*first));
        }
        let (value, length) = varint::decode(self.rest).ok_or(OpError::BAD_REQUEST)?;
        self.rest = &self.rest[length..];
        Ok(value)
    }

    #[inline]
    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(OpError::BAD_REQUEST)?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Value<'a> {
    #[inline]
    pub fn u64(self) -> Result<u64> {
        match self {
            Self::Varint(value) => Ok(value),
            _ => Err(OpError::BAD_REQUEST),
        }
    }
    /// As protobuf does: a larger number loses its upper half.
    #[inline]
    pub fn u32(self) -> Result<u32> {
        self.u64().map(|v| v as u32)
    }
    #[inline]
    pub fn bool(self) -> Result<bool> {
        self.u64().map(|v| v != 0)
    }
    #[inline]
    pub fn bytes(self) -> Result<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(OpError::BAD_REQUEST),
        }
    }
}

/// A repeated number, packed or not, as it stands in its message: read again at every use.
#[derive(Clone, Copy)]
pub(crate) struct RepeatedNumbers<'a> {
    message: &'a [u8],
    field: u32,
    /// None there at all: the common case costs nothing.
    pub is_empty: bool,
}

impl<'a> RepeatedNumbers<'a> {
    pub const fn new(message: &'a [u8], field: u32, is_empty: bool) -> Self {
        Self { message, field, is_empty }
    }

    /// Gives each number to `f` until it answers false.
    pub fn visit(&self, mut f: impl FnMut(u64) -> bool) -> Result<()> {
        if self.is_empty {
            return Ok(());
        }
        let mut reader = Reader::new(self.message);
        while let Some((field, value)) = reader.next()? {
            if field != self.field {
                continue;
            }
            match value {
                Value::Varint(number) => {
                    if !f(number) {
                        return Ok(());
                    }
                }
                Value::Bytes(packed) => {
                    let mut packed = Reader::new(packed);
                    while !packed.is_at_end() {
                        if !f(packed.varint()?) {
                            return Ok(());
                        }
                    }
                }
                Value::Fixed => return Err(OpError::BAD_REQUEST),
            }
        }
        Ok(())
    }
}

/// A repeated message, as it stands in its parent: read again at every use.
#[derive(Clone, Copy)]
pub(crate) struct RepeatedMessages<'a> {
    message: &'a [u8],
    field: u32,
    /// None there at all: the common case costs nothing.
    pub is_empty: bool,
}

impl<'a> RepeatedMessages<'a> {
    pub const fn new(message: &'a [u8], field: u32, is_empty: bool) -> Self {
        Self { message, field, is_empty }
    }

    /// Gives the bytes of each element to `f`.
    pub fn visit(&self, mut f: impl FnMut(&'a [u8]) -> Result<()>) -> Result<()> {
        if self.is_empty {
            return Ok(());
        }
        let mut reader = Reader::new(self.message);
        while let Some((field, value)) = reader.next()? {
            if field == self.field {
                f(value.bytes()?)?;
            }
        }
        Ok(())
    }
}
