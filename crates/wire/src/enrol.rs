//! What is said between a machine and the authority of its cluster: [`Asked`], its answer, and the [`JoinToken`] with
//! which a machine without a key comes.
//!
//! One request and one answer a connection, each a length of four bytes (little-endian) and a message (protobuf).
//! Invariants: nothing longer than [`MESSAGE_MAX`] is read; keys, proofs and secrets have one length each, and anything
//! else is no request; the secret is in no text for people but the token itself. Not here: TLS and what is signed
//! (`security`), who gets a certificate (`security::Authority`).

use crate::audience::Roles;
use prost::Message;

mod messages {
    include!(concat!(env!("OUT_DIR"), "/cairn.enrol.rs"));
}

/// Longest request and longest answer: a certificate that names the most volumes fits.
pub const MESSAGE_MAX: usize = 32 << 10;
/// Bytes of the length before a message.
pub const LENGTH_LEN: usize = 4;
/// Bytes of a secret.
pub const SECRET_LEN: usize = 16;
/// Bytes of the fingerprint (SHA-256) of an authority's certificate.
pub const FINGERPRINT_LEN: usize = 32;
/// Longest text of a refusal.
const WHY_MAX: usize = 1024;

/// What every token begins with, its version included.
const TOKEN_PREFIX: &str = "cairn1";

/// The public half of a key, and the signature that shows that the caller has the other one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proven {
    /// Ed25519.
    pub public_key: [u8; 32],
    /// Of this connection.
    pub proof: [u8; 64],
}

/// A server that wants a key, as its configuration says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// What it does.
    pub roles: Roles,
    /// Its number among the managers; 0: it is none.
    pub member: u32,
}

/// A request.
#[derive(Clone, PartialEq, Eq)]
pub enum Asked {
    /// The first key of a machine, for a token's secret; and what it is for, if that is known.
    Enrol([u8; SECRET_LEN], Proven, Option<Place>),
    /// The next key of whoever showed his present one.
    Renew(Proven),
}

impl std::fmt::Debug for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Enrol(..) => "Enrol",
            Self::Renew(_) => "Renew",
        })
    }
}

/// An answer: a certificate (DER), or why there is none.
pub type Answer = Result<Vec<u8>, String>;

fn framed(message: &impl Message) -> Vec<u8> {
    let length = u32::try_from(message.encoded_len()).unwrap_or(u32::MAX);
    let mut out = length.to_le_bytes().to_vec();
    out.extend(message.encode_to_vec());
    out
}

/// Bytes of the message behind a length; `None`: longer than anybody has to say.
pub fn length(bytes: [u8; LENGTH_LEN]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(bytes)).ok().filter(|length| *length <= MESSAGE_MAX)
}

/// A request with its length.
pub fn encode_asked(asked: &Asked) -> Vec<u8> {
    use messages::request::Asked as One;
    let one = match asked {
        Asked::Enrol(secret, Proven { public_key, proof }, place) => One::Enrol(messages::Enrol {
            secret: secret.to_vec(),
            public_key: public_key.to_vec(),
            proof: proof.to_vec(),
            place: place.map(|Place { roles, member }| messages::Place { roles: roles.to_string(), member }),
        }),
        Asked::Renew(Proven { public_key, proof }) => {
            One::Renew(messages::Renew { public_key: public_key.to_vec(), proof: proof.to_vec() })
        }
    };
    framed(&messages::Request { asked: Some(one) })
}

/// Reads a request; `None`: it is none.
pub fn decode_asked(message: &[u8]) -> Option<Asked> {
    use messages::request::Asked as One;
    let proven = |public_key: Vec<u8>, proof: Vec<u8>| {
        Some(Proven { public_key: public_key.try_into().ok()?, proof: proof.try_into().ok()? })
    };
    match messages::Request::decode(message).ok()?.asked? {
        One::Enrol(messages::Enrol { secret, public_key, proof, place }) => {
            let place = match place {
                Some(messages::Place { roles, member }) => Some(Place { roles: Roles::parse(&roles)?, member }),
                None => None,
            };
            Some(Asked::Enrol(secret.try_into().ok()?, proven(public_key, proof)?, place))
        }
        One::Renew(renew) => Some(Asked::Renew(proven(renew.public_key, renew.proof)?)),
    }
}

/// An answer with its length.
pub fn encode_answer(answer: &Answer) -> Vec<u8> {
    let (certificate, refused) = match answer {
        Ok(certificate) => (certificate.clone(), String::new()),
        Err(why) => (Vec::new(), why[..why.floor_char_boundary(WHY_MAX)].to_owned()),
    };
    framed(&messages::Answer { certificate, refused })
}

/// Reads an answer; `None`: it is none.
pub fn decode_answer(message: &[u8]) -> Option<Answer> {
    let messages::Answer { certificate, refused } = messages::Answer::decode(message).ok()?;
    match (certificate.is_empty(), refused.is_empty()) {
        (false, true) => Some(Ok(certificate)),
        // It is printed for people.
        (true, false) if refused.len() <= WHY_MAX => {
            Some(Err(refused.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()))
        }
        _ => None,
    }
}

/// With it a machine gets its first key: once, for an hour. `cairn1_FINGERPRINT_SECRET`, both in hexadecimal digits.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Of the authority's certificate: whom the secret may be told.
    pub fingerprint: [u8; FINGERPRINT_LEN],
    /// Who knows it gets the key.
    pub secret: [u8; SECRET_LEN],
}

impl std::fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JoinToken")
    }
}

impl JoinToken {
    /// As people copy it.
    pub fn text(&self) -> String {
        format!("{TOKEN_PREFIX}_{}_{}", to_hex(&self.fingerprint), to_hex(&self.secret))
    }

    /// Reads what [`text`](Self::text) writes, and nothing else.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(TOKEN_PREFIX)?.strip_prefix('_')?;
        let (fingerprint, secret) = rest.split_once('_')?;
        Some(Self { fingerprint: from_hex(fingerprint)?, secret: from_hex(secret)? })
    }
}

/// Two digits a byte.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads what [`to_hex`] writes of so many bytes.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let bytes: [u8; N] = bytes_from_hex(text)?.try_into().ok()?;
    Some(bytes)
}

/// The same of any number of bytes.
pub fn bytes_from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes().chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// Decodes requests, answers and tokens from hostile bytes, for fuzzing: must not panic, and what decodes is written
/// again as the same.
#[doc(hidden)]
pub fn fuzz_enrol(data: &[u8]) {
    if let Some(asked) = decode_asked(data) {
        let bytes = encode_asked(&asked);
        assert_eq!(decode_asked(&bytes[LENGTH_LEN..]).as_ref(), Some(&asked), "a request is read as it was written");
    }
    if let Some(answer) = decode_answer(data) {
        let bytes = encode_answer(&answer);
        let again = decode_answer(&bytes[LENGTH_LEN..]).expect("an answer is read again");
        assert_eq!(again.is_ok(), answer.is_ok(), "a refusal stays one");
        assert!(answer.is_err() || again == answer, "a certificate is read as it was written");
    }
    if let Some(token) = std::str::from_utf8(data).ok().and_then(JoinToken::parse) {
        assert_eq!(token.text().as_bytes(), data, "a token has one text");
    }
}

#[cfg(test)]
mod tests;
