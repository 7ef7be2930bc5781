//! Space of writers that are killed comes back by itself; what a slow writer has not published yet stays.
use crate::disks::chunk_use;
use crate::support::{Cluster, Shape, text};
use crate::trees::noise;
use crate::wait::LIMIT;
use std::io::Write;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// Begins `put -`, gives it these bytes and leaves it waiting for more.
fn begin_put(cluster: &Cluster, target: &str, bytes: &[u8]) -> Child {
    let mut child = cluster.command(&["fs", "put", "-", target]).stdin(Stdio::piped()).spawn().expect("put");
    child.stdin.as_mut().expect("a pipe").write_all(bytes).expect("taken");
    child
}

/// Each killed writer would cost its space for ever; or a file would be lost because its writer was slow.
#[test]
fn killed_writers_leave_nothing_and_slow_ones_lose_nothing() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    let kept = noise(3 * MIB + 17, 1);
    let local = cluster.path("kept");
    std::fs::write(&local, &kept).expect("file");
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), "/kept"]);
    let (_, before) = chunk_use(&cluster);

    // One is killed before it named anything to the metadata, others only after some renewals of their leases.
    let slow_bytes = noise(20 * MIB, 2);
    let mut slow = begin_put(&cluster, "/slow", &slow_bytes);
    let mut known = begin_put(&cluster, "/known", &noise(20 * MIB, 3));
    assert!(cluster.wait_stored(&mut known, 90 * MIB as u64), "it waits for more");
    std::thread::sleep(Duration::from_secs(7));
    let mut unknown = begin_put(&cluster, "/unknown", &noise(20 * MIB, 4));
    assert!(cluster.wait_stored(&mut unknown, 150 * MIB as u64), "it waits for more");
    for writer in [&mut known, &mut unknown] {
        writer.kill().expect("killed");
        writer.wait().expect("ended");
    }
    // With a new epoch open chunks are closed at once.
    for name in ["data1", "data2", "data3"] {
        cluster.kill(name);
    }
    cluster.start_all();
    cluster.wait_healthy();
    cluster.ok(&["admin", "config", "set", "garbage_period=1s", "garbage_grace=1s"]);
    // What is kept, what the slow one wrote (three copies each), and some room for headers and reserved space.
    let live = before + 3 * 20 * MIB as u64;
    let started = Instant::now();
    while chunk_use(&cluster).1 > live + 8 * MIB as u64 {
        let (count, bytes) = chunk_use(&cluster);
        assert!(started.elapsed() < LIMIT, "{count} chunks use {bytes} bytes, {live} would do");
        assert!(slow.try_wait().expect("wait").is_none(), "the slow writer lives");
        std::thread::sleep(Duration::from_millis(200));
    }
    eprintln!("2 writers and {} data nodes killed, space back after {:?}", cluster.kills, started.elapsed());

    let rest = noise(MIB, 5);
    let mut pipe = slow.stdin.take().expect("a pipe");
    pipe.write_all(&rest).expect("taken");
    drop(pipe);
    let ended = slow.wait_with_output().expect("put ends");
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let whole: Vec<u8> = slow_bytes.into_iter().chain(rest).collect();
    for (path, bytes) in [("/slow", &whole), ("/kept", &kept)] {
        let output = cluster.cairn(&["fs", "cat", path]);
        assert!(output.status.success(), "{path}: {}", text(&output.stderr));
        assert!(output.stdout == *bytes, "{path} differs");
    }
    let names = cluster.ok(&["fs", "ls", "/"]);
    assert!(!names.contains("known"), "nothing of the killed ones is visible: {names}");
}
