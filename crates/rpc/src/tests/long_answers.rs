//! Answers of managers, which may be longer than other messages, and who takes them.
use crate::reader::{Reader, Step};
use cairn_wire::frame::{ANSWER_MAX, Flags, FrameError, MESSAGE_MAX, begin_frame, finish_frame};

/// Operations of a manager and of a data server.
const OF_MANAGER: u16 = 0x0203;
const OF_DATA: u16 = 0x0306;

fn frame(flags: Flags, opcode: u16, length: usize) -> Result<Vec<u8>, FrameError> {
    let mut out = Vec::new();
    let start = begin_frame(&mut out);
    out.resize(out.len() + length, 7);
    finish_frame(&mut out, start, flags, opcode, 1, 0).map(|()| out)
}

/// The length of the message of a frame, as it comes out of a reader.
fn read(mut reader: Reader, bytes: &[u8]) -> Result<usize, FrameError> {
    reader.hello_done();
    let mut rest = bytes;
    loop {
        match reader.advance()? {
            Step::Frame(_, message, _) => return Ok(message.len()),
            Step::More => rest = &rest[reader.take_in(rest)..],
            Step::NeedBuf(_) => panic!("it has no payload"),
        }
    }
}

/// The map of a large cluster would reach nobody; or a stranger could have a server keep as much of his as he likes.
#[test]
fn who_asks_takes_long_answers_of_managers_and_nobody_else_does() {
    let long = frame(Flags::RESPONSE, OF_MANAGER, 3 * MESSAGE_MAX).expect("a frame");
    assert_eq!(read(Reader::new(None).of_answers(), &long), Ok(3 * MESSAGE_MAX));
    let refused = read(Reader::new(None), &long);
    assert!(matches!(refused, Err(FrameError::MessageTooLong { .. })), "{refused:?}");
    for (flags, opcode, length) in [
        (Flags::RESPONSE, OF_MANAGER, ANSWER_MAX + 1),
        (Flags::RESPONSE, OF_DATA, MESSAGE_MAX + 1),
        (Flags::REQUEST, OF_MANAGER, MESSAGE_MAX + 1),
    ] {
        let made = frame(flags, opcode, length);
        assert!(matches!(made, Err(FrameError::MessageTooLong { .. })), "{opcode:#06x}, {length} bytes");
    }
}
