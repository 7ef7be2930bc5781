//! Tests of the frame: golden bytes, every flipped bit, limits, and random frames there and back.

use super::*;
use proptest::prelude::*;

fn frame(flags: Flags, opcode: u16, id: u64, message: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let start = begin_frame(&mut out);
    out.extend_from_slice(message);
    finish_frame(&mut out, start, flags, opcode, id, payload.len()).unwrap();
    out.extend_from_slice(payload);
    out
}

/// Decodes the first frame's header and message.
fn decode(bytes: &[u8]) -> Result<(FrameHeader, Vec<u8>), FrameError> {
    let header = FrameHeader::decode(bytes.first_chunk().unwrap())?;
    let mut head = bytes[..header.head_len().min(bytes.len())].to_vec();
    head.resize(header.head_len(), 0);
    check_frame(&header, &mut head)?;
    Ok((header, head[HEADER_LEN..].to_vec()))
}

fn golden() -> Vec<u8> {
    let mut message = Vec::new();
    CallHeader { deadline_ms: 1500, trace_id: 0x1122_3344_5566_7788 }.encode(&mut message);
    message.extend_from_slice(b"hello");
    frame(Flags::REQUEST, 0x0401, 0x0102_0304_0506_0708, &message, b"pay")
}

/// A change of the layout would cut off every process of another version.
#[test]
fn golden_bytes() {
    #[rustfmt::skip]
    let expected: [u8; 56] = [
        b'C', b'R', b'N', b'F', 1, 0, 0x01, 0x04,
        8, 7, 6, 5, 4, 3, 2, 1,
        21, 0, 0, 0, 3, 0, 0, 0,
        0x47, 0xd6, 0x48, 0x02, 0, 0, 0, 0,
        0xdc, 0x05, 0, 0, 0, 0, 0, 0,
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
        b'h', b'e', b'l', b'l', b'o', b'p', b'a', b'y',
    ];
    assert_eq!(golden(), expected);
    let (header, message) = decode(&expected).unwrap();
    assert_eq!((header.flags, header.opcode, header.request_id), (Flags::REQUEST, 0x0401, 0x0102_0304_0506_0708));
    assert_eq!((header.head_len(), header.frame_len()), (53, 56));
    let (call, body) = CallHeader::split(&message).unwrap();
    assert_eq!(call, CallHeader { deadline_ms: 1500, trace_id: 0x1122_3344_5566_7788 });
    assert_eq!(body, b"hello");
}

/// Damage in header or message would be taken for another request.
#[test]
fn any_flipped_bit_is_detected() {
    let good = golden();
    let covered = good.len() - 3;
    for bit in 0..covered * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&bad).is_err(), "bit {} of byte {} went through", bit % 8, bit / 8);
    }
}

/// A length beyond the limits would make the receiver allocate what the sender says.
#[test]
fn limits_hold_on_both_sides() {
    let good = golden();
    let with = |at: usize, value: u32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        FrameHeader::decode(bytes.first_chunk().unwrap())
    };
    assert!(with(16, MESSAGE_MAX as u32).is_ok());
    assert_eq!(with(16, MESSAGE_MAX as u32 + 1), Err(FrameError::MessageTooLong { length: MESSAGE_MAX + 1 }));
    assert_eq!(with(16, u32::MAX), Err(FrameError::MessageTooLong { length: u32::MAX as usize }));
    assert!(with(20, PAYLOAD_MAX as u32).is_ok());
    assert_eq!(with(20, PAYLOAD_MAX as u32 + 1), Err(FrameError::PayloadTooLong { length: PAYLOAD_MAX + 1 }));
    assert_eq!(with(16, 15), Err(FrameError::NoCallHeader { length: 15 }));

    let mut out = b"before".to_vec();
    let start = begin_frame(&mut out);
    out.resize(start + HEADER_LEN + MESSAGE_MAX + 1, 0);
    let error = finish_frame(&mut out, start, Flags::RESPONSE, 1, 1, 0);
    assert_eq!(error, Err(FrameError::MessageTooLong { length: MESSAGE_MAX + 1 }));
    assert_eq!(out, b"before", "a frame that was refused leaves nothing behind");
    let start = begin_frame(&mut out);
    let error = finish_frame(&mut out, start, Flags::RESPONSE, 1, 1, usize::MAX);
    assert_eq!(error, Err(FrameError::PayloadTooLong { length: usize::MAX }));
}

/// What is not understood would be misread in silence.
#[test]
fn each_header_fault_has_its_own_error() {
    let good = golden();
    let decode_with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        FrameHeader::decode(bytes.first_chunk().unwrap()).map(|_| ())
    };
    assert!(matches!(decode_with(0, b'X'), Err(FrameError::BadMagic { .. })));
    assert_eq!(decode_with(4, 2), Err(FrameError::UnknownVersion { found: 2 }));
    for bits in (0..=255u8).filter(|b| ![0, 1, 3, 4].contains(b)) {
        assert_eq!(decode_with(5, bits), Err(FrameError::UnknownFlags { found: bits }));
    }
    for at in 28..32 {
        assert_eq!(decode_with(at, 1), Err(FrameError::ReservedNotZero));
    }
    let mut message = golden()[HEADER_LEN..HEADER_LEN + 21].to_vec();
    message[5] = 1;
    assert_eq!(CallHeader::split(&message), Err(FrameError::ReservedNotZero));
    assert_eq!(CallHeader::split(&message[..15]), Err(FrameError::NoCallHeader { length: 15 }));
}

/// The corpus of the fuzz target must go through the same function on every push.
#[test]
fn fuzz_corpus_and_its_mutations() {
    let mut stream = golden();
    stream.extend(frame(Flags::RESPONSE, 7, 1, b"", b""));
    stream.extend(frame(Flags::ERROR, 7, 2, b"why", b""));
    stream.extend(frame(Flags::REQUEST, OPCODE_HELLO, 3, b"", b""));
    let corpus = [&b""[..], b"CRNF", b"GET / HTTP/1.1\r\n\r\n and so on, longer than a header", &[0xff; 64], &stream];
    for seed in corpus {
        fuzz_frame(seed);
        for at in 0..seed.len() {
            fuzz_frame(&seed[..at]);
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = seed.to_vec();
                bytes[at] = value;
                fuzz_frame(&bytes);
            }
        }
    }
}

fn any_flags() -> impl Strategy<Value = Flags> {
    prop_oneof![Just(Flags::REQUEST), Just(Flags::RESPONSE), Just(Flags::ERROR), Just(Flags::ONEWAY)]
}

proptest! {
    /// A frame that is sent is the frame that is received.
    #[test]
    fn round_trip(flags in any_flags(), opcode in any::<u16>(), id in any::<u64>(),
                  deadline_ms in any::<u32>(), trace_id in any::<u64>(),
                  body in prop::collection::vec(any::<u8>(), 0..600), payload in 0..=PAYLOAD_MAX) {
        let mut message = Vec::new();
        CallHeader { deadline_ms, trace_id }.encode(&mut message);
        message.extend_from_slice(&body);
        let mut bytes = Vec::new();
        let start = begin_frame(&mut bytes);
        bytes.extend_from_slice(&message);
        finish_frame(&mut bytes, start, flags, opcode, id, payload).unwrap();
        let (header, decoded) = decode(&bytes).unwrap();
        prop_assert_eq!((header.flags, header.opcode, header.request_id), (flags, opcode, id));
        prop_assert_eq!(header.payload_len as usize, payload);
        prop_assert_eq!(&decoded, &message);
        let (call, rest) = CallHeader::split(&decoded).unwrap();
        prop_assert_eq!(call, CallHeader { deadline_ms, trace_id });
        prop_assert_eq!(rest, &body[..]);
    }

    /// No bytes panic the decoder.
    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz_frame(&bytes);
        let mut with_magic = FRAME_MAGIC.to_le_bytes().to_vec();
        with_magic.extend_from_slice(&[FRAME_VERSION, 0]);
        with_magic.extend_from_slice(&bytes);
        fuzz_frame(&with_magic);
    }
}
