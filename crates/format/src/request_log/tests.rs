//! Golden bytes, damage and contradictions of request logs.
use super::*;

fn samples() -> Vec<RequestRecord<'static>> {
    let record = |time: u64, event| RequestRecord { connection: 0x0102, time, event };
    vec![
        record(5, RequestEvent::Connection { peer_kind: 1, node: 0, address: "10.0.0.1:99" }),
        record(
            6,
            RequestEvent::Request {
                id: 9,
                trace_id: 0x0a0b,
                opcode: 0x0301,
                oneway: true,
                of_server: true,
                payload: 4096,
                length: 3,
                message: &[7, 8, 9],
            },
        ),
        record(7, RequestEvent::Answer { id: 9, opcode: 0x0301, error: 12, payload: 0, length: 40 }),
    ]
}

fn encoded() -> Vec<u8> {
    let mut out = Vec::new();
    samples().iter().for_each(|record| record.encode(&mut out));
    out
}

fn decoded(mut bytes: &[u8]) -> Result<Vec<RequestRecord<'_>>, RequestLogError> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (record, rest) = split_record(bytes)?;
        all.push(record);
        bytes = rest;
    }
    Ok(all)
}

/// A later version would not read what this one wrote.
#[test]
fn golden_bytes() {
    let header = RequestLogHeader { begun: 0x0506 }.encode();
    assert_eq!(&header[..12], b"CAIRNREQ\x01\0\0\0");
    assert_eq!(&header[16..24], &[6, 5, 0, 0, 0, 0, 0, 0]);
    assert!(header[24..].iter().all(|byte| *byte == 0));
    assert_eq!(RequestLogHeader::decode(&header), Ok(RequestLogHeader { begun: 0x0506 }));
    let records = encoded();
    let conn = [2, 1, 0, 0, 0, 0, 0, 0];
    let time = |t: u8| [t, 0, 0, 0, 0, 0, 0, 0];
    let expected = [
        &[39, 0, 1, 0][..],
        &conn,
        &time(5),
        &[1, 0, 0, 0, 0, 0, 0, 0],
        b"10.0.0.1:99",
        &[51, 0, 2, 5],
        &conn,
        &time(6),
        &time(9),
        &[0x0b, 0x0a, 0, 0, 0, 0, 0, 0],
        &[1, 3, 0, 0, 0, 16, 0, 0, 3, 0, 0, 0],
        &[7, 8, 9],
        &[40, 0, 3, 0],
        &conn,
        &time(7),
        &time(9),
        &[1, 3, 12, 0, 0, 0, 0, 0, 40, 0, 0, 0],
    ]
    .concat();
    assert_eq!(records, expected);
    assert_eq!(decoded(&records), Ok(samples()));
    let batch = encode_batch_header(&records, 3);
    assert_eq!((&batch[..8], &batch[12..]), (&b"RQB1\x82\0\0\0"[..], &[3, 0, 0, 0][..]));
    let file = [&batch[..], &records, b"more"].concat();
    assert_eq!(split_batch(&file), Ok((&records[..], 3, &b"more"[..])));
}

/// Long messages and addresses would make records of any size.
#[test]
fn what_is_too_long_is_cut() {
    let message = vec![1; 5000];
    let event = RequestEvent::Request {
        id: 1,
        trace_id: 2,
        opcode: 3,
        oneway: false,
        of_server: false,
        payload: 0,
        length: 5000,
        message: &message,
    };
    let mut out = Vec::new();
    RequestRecord { connection: 1, time: 1, event }.encode(&mut out);
    let all = decoded(&out).expect("decoded");
    let RequestEvent::Request { length, message, .. } = &all[0].event else { panic!("{all:?}") };
    assert_eq!((*length, message.len()), (5000, REQUEST_MESSAGE_KEPT));
}

/// Damage would be taken for requests that nobody made.
#[test]
fn every_flipped_bit_and_every_length_is_detected() {
    let header = RequestLogHeader { begun: 77 }.encode();
    for bit in 0..header.len() * 8 {
        let mut bad = header;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(RequestLogHeader::decode(&bad).is_err(), "bit {bit}");
    }
    let records = encoded();
    let good = [&encode_batch_header(&records, 0)[..], &records].concat();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(split_batch(&bad).is_err(), "bit {bit}");
    }
    for length in 0..good.len() {
        assert!(split_batch(&good[..length]).is_err(), "{length} bytes");
    }
}

/// What a checksum covers could still contradict itself, or make a reader panic.
#[test]
fn contradictions_are_refused() {
    let good = encoded();
    for at in 0..good.len() {
        for value in [0, 1, 2, 3, 4, 19, 0x7f, 0xff] {
            let mut bad = good.clone();
            bad[at] = value;
            // Any outcome but a panic, and never more than there is.
            let count = decoded(&bad).map_or(0, |all| all.len());
            assert!(count <= 4, "{count} records");
        }
    }
    let change = |at: usize, value: u8| {
        let mut bad = good.clone();
        bad[at] = value;
        decoded(&bad).map(|all| all.len())
    };
    assert_eq!(change(2, 4), Err(RequestLogError::Shape), "an unknown kind");
    assert_eq!(change(3, 1), Err(RequestLogError::Shape), "flags of another kind");
    assert_eq!(change(39 + 3, 2), Err(RequestLogError::Shape), "cut, and all is there");
    assert_eq!(change(39 + 20 + 18, 1), Err(RequestLogError::Shape), "reserved");
    let mut header = RequestLogHeader { begun: 1 }.encode();
    header[8] = 2;
    let crc = without_field(&header, 12);
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(RequestLogHeader::decode(&header), Err(RequestLogError::Version(2)));
}
