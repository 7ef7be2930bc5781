//! [`EncodedMessage`]: a message as bytes, so that what carries messages to whoever leads is compiled once, in this
//! crate.
//!
//! Without it the compiler makes the whole way of a call anew for each kind of request and answer, in each crate that
//! asks. With optimisation it does so even for an `async fn` without type parameters, unless a function of this crate
//! gives it as [`Coming`]: that is why some do.
use crate::error::ClientError;
use bytes::{Buf, BufMut, Bytes};
use futures_util::future::BoxFuture;
use prost::encoding::{DecodeContext, WireType, skip_field};
use prost::{DecodeError, Message};

/// What a call that is compiled here comes to.
pub(crate) type Coming<'a, T> = BoxFuture<'a, T>;

/// The bytes of a request or an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct EncodedMessage(Bytes);

impl EncodedMessage {
    pub(crate) fn of(message: &impl Message) -> Self {
        message.encode_to_vec().into()
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// The answer of a read, about the thing `what`.
    pub(crate) fn answer<A: Message + Default>(self, what: &str) -> Result<A, ClientError> {
        self.read().map_err(|why| ClientError::protocol(what, why))
    }

    /// The answer that these bytes are, or what is to be said of it.
    pub(crate) fn read<A: Message + Default>(self) -> Result<A, String> {
        A::decode(self.0).map_err(|error| format!("the answer is not understood: {error}"))
    }
}

impl From<Bytes> for EncodedMessage {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl From<Vec<u8>> for EncodedMessage {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl Message for EncodedMessage {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.0);
    }
    fn encoded_len(&self) -> usize {
        self.0.len()
    }
    fn clear(&mut self) {
        self.0.clear();
    }
    /// Takes all bytes as they are, without a copy where they are [`Bytes`] already.
    fn decode(mut buf: impl Buf) -> Result<Self, DecodeError> {
        Ok(Self(buf.copy_to_bytes(buf.remaining())))
    }
    /// Nothing is decoded by fields.
    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        skip_field(wire_type, tag, buf, ctx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::manager::OpenSessionRequest;

    /// A request would reach a server as another one, or an answer be taken for one that it is not.
    #[test]
    fn bytes_go_and_come_as_they_are() {
        let message = OpenSessionRequest { client: "somebody".into(), volume: 7 };
        let sent = EncodedMessage::of(&message);
        assert_eq!(sent.encode_to_vec(), message.encode_to_vec());
        let come = EncodedMessage::decode(Bytes::from(sent.encode_to_vec())).expect("bytes");
        assert_eq!(come.read::<OpenSessionRequest>(), Ok(message));
        let torn = EncodedMessage::decode(Bytes::from_static(&[0x0a, 200, b'x'])).expect("bytes");
        assert!(torn.read::<OpenSessionRequest>().is_err_and(|why| why.contains("not understood")));
    }
}
