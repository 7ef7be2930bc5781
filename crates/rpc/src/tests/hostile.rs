//! Peers that send garbage, too much, too little or nothing: each costs its own connection and bounded memory.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;
use cairn_wire::common::ErrorInfo;
use cairn_wire::frame::{
    CallHeader, Flags, FrameHeader, HEADER_LEN, MESSAGE_MAX, OPCODE_HELLO, PAYLOAD_MAX, begin_frame, finish_frame,
};
use cairn_wire::hello::Hello;
use prost::Message;

pub(super) fn frame(flags: Flags, opcode: u16, fill: impl FnOnce(&mut Vec<u8>), payload_len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let start = begin_frame(&mut out);
    fill(&mut out);
    finish_frame(&mut out, start, flags, opcode, 5, payload_len).unwrap();
    out
}

pub(super) fn hello_frame(cluster: ClusterId, change: impl FnOnce(&mut Hello)) -> Vec<u8> {
    let mut hello = Hello::new(cluster, PeerKind::Client, NodeId(0));
    change(&mut hello);
    frame(Flags::REQUEST, OPCODE_HELLO, |out| hello.encode(out), 0)
}

pub(super) fn request(opcode: u16, number: u64, payload_len: usize) -> Vec<u8> {
    let fill = |out: &mut Vec<u8>| {
        CallHeader { deadline_ms: 1000, trace_id: 0 }.encode(out);
        note(number).encode(out).unwrap();
    };
    frame(Flags::REQUEST, opcode, fill, payload_len)
}

pub(super) fn read_frame(stream: &mut TcpStream) -> Option<(FrameHeader, Vec<u8>)> {
    let mut raw = [0; HEADER_LEN];
    stream.read_exact(&mut raw).ok()?;
    let header = FrameHeader::decode(&raw).unwrap();
    let mut rest = vec![0; header.frame_len() - HEADER_LEN];
    stream.read_exact(&mut rest).ok()?;
    Some((header, rest))
}

pub(super) fn dial(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.local_addr()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// A connection on which both said hello.
pub(super) fn greeted(server: &Server) -> TcpStream {
    let mut stream = dial(server);
    stream.write_all(&hello_frame(CLUSTER, |_| ())).unwrap();
    let (header, message) = read_frame(&mut stream).unwrap();
    assert_eq!((header.flags, header.opcode, header.request_id), (Flags::RESPONSE, OPCODE_HELLO, 5));
    assert_eq!(Hello::decode(&message).unwrap().cluster, CLUSTER);
    stream
}

pub(super) fn is_cut_off(mut stream: TcpStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => rest.is_empty(),
        Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Sends bytes to a greeted connection and expects it to be cut off for the reason given.
fn cut_off_for(server: &Server, bytes: &[u8], reason: CloseReason) {
    let before = closed(server, reason);
    let mut stream = greeted(server);
    // The server may cut it off before all is written.
    let _ = stream.write_all(bytes);
    assert!(is_cut_off(stream), "{reason:?}");
    until(|| closed(server, reason) == before + 1);
}

/// Each kind of garbage must end its connection, be counted, and leave other connections alone.
#[test]
fn garbage_after_the_hello() {
    let (server, told) = serve();
    let bystander = client();
    let peer = bystander.peer(&addr(&server));
    let held = peer.call(HOLD, &note(1), (), long());
    until(|| told.held() == 1);

    let good = request(ECHO, 1, 0);
    let changed = |at: usize, bytes: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let bad_frames: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: example\r\n\r\n".to_vec(),
        vec![0; 64],
        changed(0, b"X"),
        changed(4, &[9]),
        changed(5, &[0x80]),
        changed(28, &[1]),
        changed(24, &[good[24] ^ 1]),
        changed(40, &[good[40] ^ 1]),
        changed(16, &(MESSAGE_MAX as u32 + 1).to_le_bytes()),
        changed(16, &u32::MAX.to_le_bytes()),
        changed(16, &3u32.to_le_bytes()),
        changed(20, &(PAYLOAD_MAX as u32 + 1).to_le_bytes()),
        changed(20, &u32::MAX.to_le_bytes()),
    ];
    for bytes in &bad_frames {
        cut_off_for(&server, bytes, CloseReason::BadFrame);
    }
    cut_off_for(&server, &frame(Flags::RESPONSE, ECHO, |_| (), 0), CloseReason::OutOfPlace);
    cut_off_for(&server, &hello_frame(CLUSTER, |_| ()), CloseReason::OutOfPlace);
    assert_eq!(closed(&server, CloseReason::BadFrame), bad_frames.len() as u64);

    let (_, reply) = told.held.lock().pop().unwrap();
    reply.ok(&note(42), ());
    assert_eq!(number_of(&wait(held).unwrap()), 42, "another connection noticed nothing");
    assert_eq!(told.echoed.lock().len(), 0, "no damaged request was carried out");
}

/// A message that is a frame but no protobuf must be answered, not cut off: other requests share the connection.
#[test]
fn a_malformed_message_is_answered() {
    let (server, _) = serve();
    let mut stream = greeted(&server);
    let garbage = frame(Flags::REQUEST, ECHO, |out| out.extend([0xff; 40].map(|b| b & 0xf7 | 0x88)), 0);
    // Reserved bytes of the call header are in use: not a frame of ours.
    stream.write_all(&garbage).unwrap();
    assert!(is_cut_off(stream));
    let mut stream = greeted(&server);
    let body = |out: &mut Vec<u8>| {
        CallHeader::default().encode(out);
        out.extend([0xff; 20]);
    };
    stream.write_all(&frame(Flags::REQUEST, ECHO, body, 0)).unwrap();
    let (header, message) = read_frame(&mut stream).unwrap();
    assert_eq!(header.flags, Flags::ERROR);
    assert_eq!(ErrorInfo::decode(&message[..]).unwrap().code, u32::from(ErrorCode::BadRequest.code()));
    stream.write_all(&request(ECHO, 3, 0)).unwrap();
    assert_eq!(read_frame(&mut stream).unwrap().0.flags, Flags::RESPONSE);
}

/// Who does not say hello properly, or belongs elsewhere, must learn why and get no further.
#[test]
fn bad_hellos() {
    let (server, told) = serve();
    let refused = |bytes: &[u8], reason: CloseReason, code: ErrorCode| {
        let before = closed(&server, reason);
        let mut stream = dial(&server);
        stream.write_all(bytes).unwrap();
        let (header, message) = read_frame(&mut stream).unwrap();
        assert_eq!((header.flags, header.opcode), (Flags::ERROR, OPCODE_HELLO));
        let info = ErrorInfo::decode(&message[..]).unwrap();
        assert_eq!(info.code, u32::from(code.code()), "{}", info.message);
        assert!(is_cut_off(stream));
        until(|| closed(&server, reason) == before + 1);
        info.message
    };
    let other = ClusterId([0xd2; 16]);
    let text = refused(&hello_frame(other, |_| ()), CloseReason::WrongCluster, ErrorCode::WrongCluster);
    assert!(text.contains(&other.to_string()) && text.contains(&CLUSTER.to_string()), "{text}");
    let later = hello_frame(CLUSTER, |hello| (hello.version_min, hello.version_max) = (50, 60));
    let text = refused(&later, CloseReason::NoCommonVersion, ErrorCode::VersionUnsupported);
    assert!(text.contains("50 to 60"), "{text}");
    refused(&request(ECHO, 1, 0), CloseReason::BadHello, ErrorCode::BadRequest);
    let garbage = frame(Flags::REQUEST, OPCODE_HELLO, |out| out.extend([0xff; 30]), 0);
    refused(&garbage, CloseReason::BadHello, ErrorCode::BadRequest);

    // Before the hello not even a good frame may be large.
    for bytes in [frame(Flags::REQUEST, OPCODE_HELLO, |out| out.resize(out.len() + 5000, 0), 0), request(ECHO, 1, 100)]
    {
        let before = closed(&server, CloseReason::BadFrame);
        let mut stream = dial(&server);
        stream.write_all(&bytes).unwrap();
        assert!(is_cut_off(stream));
        until(|| closed(&server, CloseReason::BadFrame) == before + 1);
    }
    assert!(told.echoed.lock().is_empty());
}

/// Connections on which nothing is said, or half a hello, must not stay for ever.
#[test]
fn silence_before_the_hello() {
    let (server, _) = serve_with(ServerConfig { hello_timeout: Duration::from_millis(150), ..config() });
    let silent = dial(&server);
    let mut half_hello = dial(&server);
    half_hello.write_all(&hello_frame(CLUSTER, |_| ())[..20]).unwrap();
    assert!(is_cut_off(silent) && is_cut_off(half_hello));
    until(|| closed(&server, CloseReason::HelloTimeout) == 2);
}

/// A frame that stops half-way must not hold memory for ever; silence between frames is no offence.
#[test]
fn slow_half_frames() {
    let (server, told) = serve_with(ServerConfig { frame_timeout: Duration::from_millis(150), ..config() });
    let mut idle = greeted(&server);
    let mut half_header = greeted(&server);
    half_header.write_all(&request(ECHO, 1, 0)[..HEADER_LEN - 1]).unwrap();
    let mut half_message = greeted(&server);
    half_message.write_all(&request(ECHO, 1, 0)[..HEADER_LEN + 5]).unwrap();
    let mut half_payload = greeted(&server);
    half_payload.write_all(&request(ECHO, 1, 1 << 20)).unwrap();
    half_payload.write_all(&[1; 1000]).unwrap();
    // Drips: each byte comes in time, the frame as a whole does not.
    let mut drip = greeted(&server);
    let bytes = request(ECHO, 1, 0);
    let dripping = std::thread::spawn(move || {
        for byte in bytes {
            if drip.write_all(&[byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        is_cut_off(drip)
    });
    assert!(is_cut_off(half_header) && is_cut_off(half_message) && is_cut_off(half_payload));
    assert!(dripping.join().unwrap());
    until(|| closed(&server, CloseReason::FrameTimeout) == 4);
    assert!(told.echoed.lock().is_empty());

    idle.write_all(&request(ECHO, 3, 0)).unwrap();
    assert_eq!(read_frame(&mut idle).unwrap().0.flags, Flags::RESPONSE, "idle between frames is no offence");
}

/// Announcing much and sending little must not make the server hold much.
#[test]
fn announced_payloads_take_no_more_than_the_pool() {
    let pool = cairn_env::buf::BufPool::new(10 << 20);
    let (server, _) = serve_with(ServerConfig { pool: pool.clone(), ..config() });
    let mut streams: Vec<_> = (0..20).map(|_| greeted(&server)).collect();
    for stream in &mut streams {
        stream.write_all(&request(ECHO, 1, 4 << 20)).unwrap();
        stream.write_all(&[1; 100]).unwrap();
    }
    until(|| pool.in_use() == 4 << 20);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(pool.in_use(), 4 << 20, "one fits the half that an address may have, the others wait");
    assert_eq!(number_of(&wait(client().call(&addr(&server), ECHO, &note(4), (), long())).unwrap()), 4);
    // Those that wait get their turn when others go.
    let mut last = streams.pop().unwrap();
    drop(streams);
    last.write_all(&vec![2; (4 << 20) - 100]).unwrap();
    let (header, _) = read_frame(&mut last).unwrap();
    assert_eq!((header.flags, header.payload_len), (Flags::RESPONSE, 4 << 20));
    drop(last);
    until(|| pool.in_use() == 0);
}

/// Frames cut at every byte, and many in one piece, must be put together the same way.
#[test]
fn any_segmentation_gives_the_same_frames() {
    let (server, told) = serve();
    let mut stream = greeted(&server);
    stream.set_nodelay(true).unwrap();
    let payload = pattern_bytes(3000);
    let mut bytes = request(ECHO, 10, payload.len());
    bytes.extend(&payload);
    bytes.extend(request(ECHO, 11, 0));
    for cut in (1..bytes.len()).step_by(61) {
        stream.write_all(&bytes[..cut]).unwrap();
        std::thread::sleep(Duration::from_micros(300));
        stream.write_all(&bytes[cut..]).unwrap();
        let (header, rest) = read_frame(&mut stream).unwrap();
        assert_eq!(rest[header.message_len as usize..], payload);
        assert_eq!(read_frame(&mut stream).unwrap().0.payload_len, 0);
    }
    let seen = told.echoed.lock().len();
    let many = bytes.repeat(200);
    let mut reading = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || stream.write_all(&many).unwrap());
    for _ in 0..200 {
        let (header, rest) = read_frame(&mut reading).unwrap();
        assert_eq!(rest[header.message_len as usize..], payload);
        assert_eq!(read_frame(&mut reading).unwrap().0.payload_len, 0);
    }
    writing.join().unwrap();
    assert_eq!(told.echoed.lock().len() - seen, 400);
}
