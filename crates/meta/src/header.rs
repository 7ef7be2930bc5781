//! [`Head`]: what the server has to know of a request before it is handed to the namespace or to the log.
//!
//! It reads the protobuf bytes of `MetaHeader` in place: decoding whole messages twice would cost more than the rest of
//! a lookup. Not here: everything else in the message (meta-core).

/// Parts of `MetaHeader`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Head {
    pub(crate) volume: u32,
    pub(crate) partition: u32,
    pub(crate) session: u64,
    pub(crate) slot: u32,
    /// Whether there are credentials.
    pub(crate) who: bool,
}

impl Head {
    /// Finds field 1 of the request, whatever stands before it. `None` for what is no protobuf or has no header.
    pub(crate) fn find(mut message: &[u8]) -> Option<Head> {
        while !message.is_empty() {
            let (field, value) = next_field(&mut message)?;
            if field == 1 {
                return Head::read(value.bytes()?);
            }
        }
        None
    }

    fn read(mut header: &[u8]) -> Option<Head> {
        let mut head = Head::default();
        while !header.is_empty() {
            let (field, value) = next_field(&mut header)?;
            match field {
                1 => head.volume = value.number()? as u32,
                2 => head.partition = value.number()? as u32,
                3 => head.session = value.number()?,
                4 => head.slot = value.number()? as u32,
                6 => {
                    value.bytes()?;
                    head.who = true;
                }
                _ => {}
            }
        }
        Some(head)
    }
}

/// The fields of a message, each with its number and all its bytes. `None` for what is no protobuf.
pub(crate) fn fields(mut message: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let before = message;
        let (number, _) = next_field(&mut message)?;
        fields.push((number, &before[..before.len() - message.len()]));
    }
    Some(fields)
}

pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed,
}

impl<'a> Value<'a> {
    pub(crate) fn number(self) -> Option<u64> {
        if let Self::Number(number) = self { Some(number) } else { None }
    }
    pub(crate) fn bytes(self) -> Option<&'a [u8]> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }
    /// The bytes of packed numbers, or one that stands alone.
    pub(crate) fn packed(self) -> Result<&'a [u8], Option<u64>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            other => Err(other.number()),
        }
    }
}

#[inline]
pub(crate) fn next_field<'a>(rest: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let tag = varint(rest)?;
    let value = match tag & 7 {
        0 => Value::Number(varint(rest)?),
        1 => take(rest, 8).map(|_| Value::Fixed)?,
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            Value::Bytes(take(rest, length)?)
        }
        5 => take(rest, 4).map(|_| Value::Fixed)?,
        _ => return None,
    };
    Some((tag >> 3, value))
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

#[inline]
pub(crate) fn varint(rest: &mut &[u8]) -> Option<u64> {
    // Tags, lengths and most numbers are one byte.
    if let [first, left @ ..] = *rest
        && *first < 0x80
    {
        *rest = left;
        return Some(u64::from(*first));
    }
    let mut value = 0;
    for (at, byte) in rest.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if *byte < 0x80 {
            *rest = &rest[at + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::common::Credentials;
    use cairn_wire::meta::{LookupRequest, MetaHeader};
    use prost::Message;

    fn lookup() -> LookupRequest {
        let who = Some(Credentials { uid: 1000, gid: 1000, groups: vec![1, 2, 3] });
        let header = MetaHeader { volume: 7, partition: 300, session: u64::MAX - 1, slot: 3, sequence: 9, who };
        LookupRequest { header: Some(header), parent: 1 << 60, name: b"name".to_vec() }
    }

    /// A request would go to the wrong partition, or without its session, if this disagreed with the generated code.
    #[test]
    fn agrees_with_the_generated_code() {
        let bytes = lookup().encode_to_vec();
        let head = Head { volume: 7, partition: 300, session: u64::MAX - 1, slot: 3, who: true };
        assert_eq!(Head::find(&bytes), Some(head));
        let mut reordered = Vec::new();
        LookupRequest { header: None, ..lookup() }.encode(&mut reordered).expect("a Vec grows");
        LookupRequest { header: lookup().header, ..Default::default() }.encode(&mut reordered).expect("a Vec grows");
        assert_eq!(Head::find(&reordered), Some(head));
        assert_eq!(Head::find(&LookupRequest { header: None, ..lookup() }.encode_to_vec()), None);
    }

    /// Hostile bytes must be refused, never panic.
    #[test]
    fn any_cut_and_any_garbage_is_survived() {
        let bytes = lookup().encode_to_vec();
        for len in 0..bytes.len() {
            let _ = Head::find(&bytes[..len]);
        }
        for seed in 0..2000u64 {
            let noise: Vec<u8> =
                (0..40).map(|i| (seed.wrapping_mul(0x9E37_79B9) >> (i % 32)) as u8 ^ i as u8).collect();
            let _ = Head::find(&noise);
        }
        assert_eq!(Head::find(&[0xff; 32]), None);
        assert_eq!(Head::find(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]), None);
    }
}
