//! Answers whose payloads go from a file through a pipe into the socket.

use super::*;
use crate::ReplyBatch;
use cairn_env::{Disk, File, OpenOptions, PIPE_BYTES, PipePool, RealDisk};

fn file(bytes: &[u8]) -> (tempfile::TempDir, Arc<dyn File>) {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(dir.path()).unwrap();
    let file = disk.open("f", OpenOptions::CREATE).unwrap();
    file.write_at(bytes, 0).unwrap();
    (dir, file)
}

fn piped(pool: &PipePool, file: &dyn File, offset: usize, len: usize) -> Payload {
    let mut pipe = pool.take().expect("the pool has as many as the test uses");
    assert_eq!(file.splice_at(&mut pipe, offset as u64, len), Ok(Some(len)));
    Payload::from(pipe)
}

/// Frames would be cut wrong, and every later answer of the connection lost, if a piped payload were out of its place
/// among other answers, or longer or shorter than its header says. More is queued than a socket takes at once.
#[test]
fn piped_payloads_between_others() {
    let (server, told) = serve();
    let client = client();
    let peer = client.peer(&addr(&server));
    let bytes = pattern_bytes(PIPE_BYTES + 8192);
    let (_dir, file) = file(&bytes);
    let pool = PipePool::new(16);
    for round in 0..4usize {
        let calls: Vec<_> = (0..48).map(|n| peer.call(HOLD, &note(n), (), long())).collect();
        until(|| told.held() == 48);
        let lens = [PIPE_BYTES, 1 + round, 4096 * (round + 1)];
        let mut batch = ReplyBatch::new();
        for (n, reply) in told.held.lock().drain(..).rev() {
            let n = n as usize;
            let payload = match n % 3 {
                0 => piped(&pool, file.as_ref(), n / 24 * 4096, lens[n % 9 / 3]),
                1 => Payload::from(pattern(n * 5000)),
                _ => shared(pattern_bytes(n)),
            };
            batch.ok(reply, &note(n as u64), payload);
        }
        batch.flush();
        wait(async {
            for (n, call) in calls.into_iter().enumerate() {
                let response = call.await.unwrap();
                assert_eq!(number_of(&response), n as u64);
                let got = response.payload.as_deref().unwrap_or_default();
                match n % 3 {
                    0 => assert!(got == &bytes[n / 24 * 4096..n / 24 * 4096 + lens[n % 9 / 3]], "answer {n}"),
                    1 => assert!(got == pattern_bytes(n * 5000), "answer {n}"),
                    _ => assert!(got == pattern_bytes(n), "answer {n}"),
                }
            }
        });
    }
}

/// A file that is cut off while its bytes wait to be sent must cost neither the frame's length nor the connection.
#[test]
fn a_file_cut_off_behind_the_pipe() {
    let (server, told) = serve();
    let client = client();
    let peer = client.peer(&addr(&server));
    let bytes = pattern_bytes(PIPE_BYTES);
    let (_dir, file) = file(&bytes);
    let call = peer.call(HOLD, &note(1), (), long());
    until(|| told.held() == 1);
    let payload = piped(&PipePool::new(1), file.as_ref(), 0, PIPE_BYTES);
    file.set_len(0).unwrap();
    let (_, reply) = told.held.lock().pop().unwrap();
    reply.ok(&note(1), payload);
    assert_eq!(wait(call).unwrap().payload.map_or(0, |payload| payload.len()), PIPE_BYTES);
    assert_eq!(number_of(&wait(peer.call(ECHO, &note(2), (), long())).unwrap()), 2);
    assert_eq!(closed(&server, CloseReason::PeerClosed) + closed(&server, CloseReason::Io), 0);
}
