//! fio: random writes of all kinds with checksums that are read back, while a data server is killed and restarted.
use super::Place;
use std::process::Stdio;
use std::time::Duration;

/// Kinds of I/O; each has a file of its own and all run at once.
const JOBS: &str = r#"
[global]
directory=${DIR}
size=24m
bsrange=1k-64k
rw=randwrite
verify=crc32c
do_verify=1
verify_fatal=1
randseed=7
group_reporting=1
[buffered]
ioengine=psync
fsync=50
[direct]
ioengine=libaio
direct=1
bsrange=4k-64k
iodepth=8
[mapped]
ioengine=mmap
bsrange=4k-64k
[appended]
ioengine=psync
rw=write
end_fsync=1
"#;

pub fn run(place: &mut Place) {
    let jobs = place.local.path().join("jobs");
    std::fs::write(&jobs, JOBS).expect("the jobs");
    let script = format!("fio {}", jobs.display());
    let mut command = place.shell(place.local.path(), &script);
    let mut fio = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("sh");
    let mut kills = 0;
    for victim in ["data1", "data3"] {
        std::thread::sleep(Duration::from_secs(2));
        if fio.try_wait().expect("wait").is_some() {
            break;
        }
        place.cluster.kill(victim);
        kills += 1;
        std::thread::sleep(Duration::from_secs(2));
        place.cluster.launch(victim);
        place.cluster.wait_ready(victim);
    }
    let output = fio.wait_with_output().expect("fio");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {}\n{}", output.status, super::last(&out), super::last(&error));
    println!("  {kills} servers killed under it");
    assert!(kills > 0, "no fault fired: fio ended before");
}
