//! [`FrameKeys`]: codes that go along with frames which anybody on the way can read, so that none is changed, left out,
//! repeated or put in another order.
//!
//! A code is that of AES-128-GCM over the frame's head as data that stays readable, with nothing to encrypt. Its nonce
//! is the number of the frame in its direction. Invariants: each direction of each connection has a key of its own,
//! made of the handshake of TLS that went before, so no nonce is used twice with one key; a frame whose code is wrong
//! is the last one that is looked at, for the number has gone on. Not here: what of a frame is covered and when
//! (`rpc`).

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::{ConnectionCommon, SideData};

/// Bytes of a code.
pub const CODE_LEN: usize = 16;
/// What the keys are made for, as TLS wants it named.
const LABEL: &[u8] = b"EXPORTER-cairn-frames/1";
const KEY_LEN: usize = 16;

/// One direction: a key, and the number of the next frame.
struct Direction {
    key: LessSafeKey,
    next: u64,
}

impl Direction {
    fn new(key: &[u8]) -> Self {
        let key = UnboundKey::new(&AES_128_GCM, key).expect("a key has its length");
        Self { key: LessSafeKey::new(key), next: 0 }
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&self.next.to_be_bytes());
        self.next = self.next.checked_add(1).expect("no connection carries so many frames");
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Makes the codes of the frames that this side sends.
pub struct Sealer(Direction);

impl Sealer {
    /// The code of the next frame. Every frame has to be asked for in the order in which they leave, and has to leave.
    pub fn seal(&mut self, head: &[u8]) -> [u8; CODE_LEN] {
        let nonce = self.0.nonce();
        let tag = self.0.key.seal_in_place_separate_tag(nonce, Aad::from(head), &mut []);
        tag.expect("a frame is shorter than what GCM takes").as_ref().try_into().expect("a code has its length")
    }
}

/// Checks the codes of the frames that the other side sends.
pub struct Opener(Direction);

impl Opener {
    /// Whether this is the next frame, as the other side sent it.
    pub fn open(&mut self, head: &[u8], code: &[u8; CODE_LEN]) -> bool {
        let nonce = self.0.nonce();
        let mut code = *code;
        self.0.key.open_in_place(nonce, Aad::from(head), &mut code).is_ok()
    }
}

/// Both directions of one connection.
pub struct FrameKeys {
    /// Of what this side sends.
    pub sealer: Sealer,
    /// Of what the other side sends.
    pub opener: Opener,
}

impl FrameKeys {
    /// Of a handshake that is done. Both sides make the same of it, and nobody else can.
    pub fn of<S: SideData>(handshake: &ConnectionCommon<S>, is_server: bool) -> Result<Self, rustls::Error> {
        Ok(Self::of_secret(handshake.export_keying_material([0; 2 * KEY_LEN], LABEL, None)?, is_server))
    }

    /// Of a secret that both sides have. It is that of one connection: with a second one, numbers would be used twice.
    #[doc(hidden)]
    pub fn of_secret(both: [u8; 2 * KEY_LEN], is_server: bool) -> Self {
        let (to_server, to_client) = both.split_at(KEY_LEN);
        let (sent, received) = if is_server { (to_client, to_server) } else { (to_server, to_client) };
        Self { sealer: Sealer(Direction::new(sent)), opener: Opener(Direction::new(received)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Sealer, Opener) {
        (Sealer(Direction::new(&[7; KEY_LEN])), Opener(Direction::new(&[7; KEY_LEN])))
    }

    /// A frame that was changed, repeated, left out or moved would be taken; or one that is as it was sent would not
    /// be.
    #[test]
    fn only_the_next_frame_as_it_was_sent_is_taken() {
        let heads: [&[u8]; 3] = [b"first", b"", b"third"];
        let (mut sealer, mut opener) = pair();
        let codes = heads.map(|head| sealer.seal(head));
        assert!(heads.iter().zip(&codes).all(|(head, code)| opener.open(head, code)));
        let taken = |order: &[usize]| {
            let mut opener = pair().1;
            order.iter().all(|&i| opener.open(heads[i], &codes[i]))
        };
        assert!(taken(&[0, 1, 2]));
        for order in [&[1][..], &[0, 0], &[0, 2], &[0, 1, 1]] {
            assert!(!taken(order), "{order:?}");
        }
        for bit in 0..8 {
            let mut head = *b"first";
            head[2] ^= 1 << bit;
            assert!(!pair().1.open(&head, &codes[0]));
            let mut code = codes[0];
            code[15] ^= 1 << bit;
            assert!(!pair().1.open(heads[0], &code));
        }
        assert!(!Opener(Direction::new(&[8; KEY_LEN])).open(heads[0], &codes[0]), "of another key");
    }

    /// Two builds would not understand each other: the layout of nonces and codes is a format.
    #[test]
    fn codes_are_as_they_were() {
        let (mut sealer, _) = pair();
        let codes = [sealer.seal(b"head"), sealer.seal(b"head")];
        assert_ne!(codes[0], codes[1]);
        let hex: Vec<String> =
            codes.iter().map(|code| code.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
        assert_eq!(hex, ["e7aa402ce83df96d493117f7725bfc3f", "713b7fe7110d0f9055016f0dbaf1c069"]);
    }
}
