//! For fuzzing: frames with codes, and somebody in between who changes, repeats, leaves out, swaps and cuts.
//!
//! The input says which frames are sent, what is done to their bytes, and in which pieces they arrive. Whatever that
//! is, the receiving side takes frames from the first one on, each as it was sent, and ends before the first that is
//! not: only payloads may be others. Not here: the frames' form without codes (`wire::frame`).

use cairn_env::buf::AlignedBuf;
use cairn_security::FrameKeys;
use cairn_wire::frame::{Flags, FrameError};

use crate::out::OutBuf;
use crate::payload::Payload;
use crate::reader::{Next, Reader};

/// Longest payload of a frame that is made of an input: one that lies among the bytes of its buffer.
const PAYLOAD_MAX: usize = 2048;
const FRAMES_MAX: u8 = 8;
const CHANGES_MAX: u8 = 4;

/// What is left of the input; zeros when it is used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }
}

/// What of a frame cannot be changed unseen.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Said {
    opcode: u16,
    request_id: u64,
    message: Vec<u8>,
    payload_len: usize,
}

fn keys(is_server: bool) -> FrameKeys {
    FrameKeys::of_secret([7; 32], is_server)
}

/// The frames of one side of a connection, each with what it says.
fn sent(input: &mut Input<'_>) -> Vec<(Vec<u8>, Said)> {
    let mut out = OutBuf::default();
    out.seal_with(Some(keys(false).sealer));
    let mut frames = Vec::new();
    for request_id in 0..u64::from(input.byte() % FRAMES_MAX) {
        let (opcode, message_len) = (u16::from(input.byte()), usize::from(input.byte()));
        let (payload_len, fill) = (input.number() % (PAYLOAD_MAX + 1), input.byte());
        let message = vec![fill; message_len];
        let mut payload = AlignedBuf::unpooled(payload_len);
        payload.extend_from_slice(&vec![fill; payload_len]);
        let payload = if payload_len == 0 { Payload::None } else { Payload::One(payload.freeze()) };
        let before = out.len();
        let pushed = out.push(Flags::RESPONSE, opcode, request_id, payload, |out| out.extend_from_slice(&message));
        pushed.expect("it is a short frame");
        let said = Said { opcode, request_id, message, payload_len };
        frames.push((out.bytes()[before..].to_vec(), said));
    }
    frames
}

/// What comes of them on the way. `false`: nothing was done to them.
fn meddle(frames: &mut Vec<Vec<u8>>, input: &mut Input<'_>) -> bool {
    let changes = input.byte() % CHANGES_MAX;
    for _ in 0..changes {
        let (what, which) = (input.byte() % 5, usize::from(input.byte()));
        if frames.is_empty() {
            return true;
        }
        let which = which % frames.len();
        match what {
            0 => {
                let (at, bits) = (input.number(), input.byte());
                let at = at % frames[which].len();
                frames[which][at] ^= bits;
            }
            1 => frames.swap(0, which),
            2 => frames.insert(which, frames[which].clone()),
            3 => drop(frames.remove(which)),
            _ => {
                let length = input.number() % frames[which].len();
                frames[which].truncate(length);
            }
        }
    }
    changes > 0
}

/// What the other side takes, until the end or the first frame that it refuses.
fn received(stream: &[u8], input: &mut Input<'_>) -> (Vec<Said>, Option<FrameError>) {
    let (mut reader, mut taken, mut rest) = (Reader::new(Some(keys(true).opener)), Vec::new(), stream);
    reader.hello_done();
    loop {
        match reader.next() {
            Ok(Next::Frame(header, message, payload)) => taken.push(Said {
                opcode: header.opcode,
                request_id: header.request_id,
                message: message.to_vec(),
                payload_len: payload.map_or(0, |payload| payload.len()),
            }),
            Ok(Next::NeedBuf(header)) => reader.give(AlignedBuf::unpooled(header.payload_len as usize)),
            Ok(Next::More) if rest.is_empty() => return (taken, None),
            Ok(Next::More) => {
                let some = (1 + input.number()).min(rest.len());
                let count = reader.take_in(&rest[..some]);
                rest = &rest[count..];
            }
            Err(error) => return (taken, Some(error)),
        }
    }
}

/// One connection: must neither panic nor loop, nor take a frame that was not sent as the next one.
#[doc(hidden)]
pub fn fuzz_codes(data: &[u8]) {
    let mut input = Input(data);
    let frames = sent(&mut input);
    let mut stream: Vec<Vec<u8>> = frames.iter().map(|(bytes, _)| bytes.clone()).collect();
    let meddled = meddle(&mut stream, &mut input);
    let (taken, error) = received(&stream.concat(), &mut input);
    let said: Vec<&Said> = frames.iter().map(|(_, said)| said).collect();
    assert!(taken.len() <= said.len() && taken.iter().zip(&said).all(|(taken, said)| taken == *said), "{taken:?}");
    assert!(meddled || (taken.len() == said.len() && error.is_none()), "{error:?} after {} frames", taken.len());
    // What is no work of the other side at all.
    received(data, &mut Input(data));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The corpus of the fuzz target must go through the same function on every push.
    #[test]
    fn the_corpus_of_codes_is_received() {
        let corpus: [&[u8]; 6] = [
            include_bytes!("fuzz/corpus/plain"),
            include_bytes!("fuzz/corpus/flipped"),
            include_bytes!("fuzz/corpus/swapped"),
            include_bytes!("fuzz/corpus/repeated"),
            include_bytes!("fuzz/corpus/left_out"),
            include_bytes!("fuzz/corpus/cut"),
        ];
        corpus.into_iter().for_each(fuzz_codes);
        for (at, input) in corpus.iter().flat_map(|input| (0..input.len()).map(move |at| (at, *input))) {
            for value in [0, 1, 2, 0x7f, 0x80, 0xff] {
                let mut changed = input.to_vec();
                changed[at] = value;
                fuzz_codes(&changed);
            }
        }
    }

    /// The target would never get past the first frame, and find nothing.
    #[test]
    fn whole_streams_are_taken_and_meddled_ones_are_not() {
        let of = |bytes: &[u8]| {
            let mut input = Input(bytes);
            let frames = sent(&mut input);
            let mut stream: Vec<Vec<u8>> = frames.into_iter().map(|(bytes, _)| bytes).collect();
            meddle(&mut stream, &mut input);
            let (taken, error) = received(&stream.concat(), &mut input);
            (taken.len(), error.is_some())
        };
        assert_eq!(of(include_bytes!("fuzz/corpus/plain")), (3, false));
        assert_eq!(of(include_bytes!("fuzz/corpus/flipped")), (1, true));
        assert_eq!(of(include_bytes!("fuzz/corpus/swapped")), (0, true));
        assert_eq!(of(include_bytes!("fuzz/corpus/repeated")), (2, true));
        assert_eq!(of(include_bytes!("fuzz/corpus/left_out")), (1, true));
        assert_eq!(of(include_bytes!("fuzz/corpus/cut")).0, 2);
    }
}
