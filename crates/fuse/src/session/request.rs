//! One request: header, structure of its operation, names or data behind it. Everything is checked against its length.
use crate::abi::header::InHeader;
use crate::abi::opcode::Opcode;
use bytes::Bytes;
use cairn_vfs::VfsError;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// A request as it was read.
#[derive(Clone, Debug)]
pub struct Request {
    pub header: InHeader,
    /// Behind the header; of a write the structure alone.
    pub args: Bytes,
    /// Of a write: the bytes.
    pub data: Bytes,
}

impl Request {
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::of(self.header.opcode)
    }
    /// The structure at the start.
    pub fn arg<T: FromBytes + KnownLayout + Immutable>(&self) -> Result<T, VfsError> {
        T::read_from_prefix(&self.args).map(|(arg, _)| arg).map_err(|_| self.malformed())
    }
    /// The name behind `skip` bytes.
    pub fn name(&self, skip: usize) -> Result<&[u8], VfsError> {
        self.names(skip, 1).map(|names| names[0])
    }
    /// Two names behind `skip` bytes.
    pub fn two_names(&self, skip: usize) -> Result<(&[u8], &[u8]), VfsError> {
        self.names(skip, 2).map(|names| (names[0], names[1]))
    }
    fn names(&self, skip: usize, count: usize) -> Result<Vec<&[u8]>, VfsError> {
        let mut rest = self.args.get(skip..).ok_or_else(|| self.malformed())?;
        let mut names = Vec::with_capacity(count);
        for _ in 0..count {
            let end = rest.iter().position(|byte| *byte == 0).ok_or_else(|| self.malformed())?;
            names.push(&rest[..end]);
            rest = &rest[end + 1..];
        }
        Ok(names)
    }
    /// `length` bytes behind `skip` bytes.
    pub fn bytes(&self, skip: usize, length: usize) -> Result<&[u8], VfsError> {
        let end = skip.checked_add(length).ok_or_else(|| self.malformed())?;
        self.args.get(skip..end).ok_or_else(|| self.malformed())
    }
    /// The request's number, the same when it is handed out again.
    pub fn number(&self) -> u64 {
        self.header.unique & !crate::abi::header::UNIQUE_RESEND
    }
    /// Another process may have done it already.
    pub fn is_resent(&self) -> bool {
        self.header.unique & crate::abi::header::UNIQUE_RESEND != 0
    }
    fn malformed(&self) -> VfsError {
        let (opcode, length) = (self.header.opcode, self.args.len());
        VfsError::new(libc::EIO, format!("the kernel's request {opcode} is too short: {length} bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that ends early would be read beyond its end.
    #[test]
    fn short_requests_are_errors() {
        let request = |args: &'static [u8]| Request {
            header: InHeader::default(),
            args: Bytes::from_static(args),
            data: Bytes::new(),
        };
        assert_eq!(request(b"ab\0c\0").two_names(0).expect("two"), (&b"ab"[..], &b"c"[..]));
        assert!(request(b"ab\0c").two_names(0).is_err());
        assert!(request(b"ab").name(0).is_err());
        assert!(request(b"ab\0").name(9).is_err());
        assert!(request(b"1234567").arg::<u64>().is_err());
        assert!(request(b"1234").bytes(2, 3).is_err());
        assert!(request(b"1234").bytes(2, usize::MAX).is_err());
    }
}
