//! What lies on the disks of a cluster under test: chunk files, counted, found and damaged.
use crate::support::{Cluster, lines};
use crate::wait::eventually;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Chunk files below a directory, which may change meanwhile.
pub fn chunks(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut stack) = (Vec::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = stack.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => stack.push(path),
                _ if path.extension().is_some_and(|e| e == "chunk") => found.push(path),
                _ => {}
            }
        }
    }
    found
}

/// Number and disk use of all chunk files of a cluster.
pub fn chunk_use(cluster: &Cluster) -> (usize, u64) {
    let sizes = chunks(&cluster.path("disks")).into_iter().filter_map(|path| fs::metadata(path).ok());
    sizes.fold((0, 0), |(count, bytes), about| (count + 1, bytes + about.blocks() * 512))
}

/// Changes bits of a byte so far before the end of a file.
pub fn flip(path: &Path, before_end: u64) {
    let file = fs::File::options().read(true).write(true).open(path).expect("chunk");
    let at = file.metadata().expect("about").len() - before_end;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 8], at).expect("written");
}

/// How far the scrub of a disk is.
struct Pass {
    number: u64,
    running: bool,
    bad: u64,
    healed: u64,
}

fn passes(cluster: &Cluster) -> Vec<Pass> {
    let disks = lines(cluster, &["admin", "scrub", "status"]);
    let number = |disk: &Value, key: &str| disk[key].as_u64().expect("a number");
    let pass = |disk: &Value| Pass {
        number: number(disk, "pass"),
        running: disk["state"].as_str().expect("a text").starts_with("running"),
        bad: number(disk, "bad_blocks"),
        healed: number(disk, "healed_blocks"),
    };
    disks.iter().map(pass).collect()
}

/// Has every disk read through until nothing is bad any more; bad blocks that the first time found. On a busy machine a
/// member may answer too late to heal one: it is healed the next time.
pub fn scrubbed_until_whole(cluster: &Cluster) -> u64 {
    let (bad, _) = scrubbed(cluster);
    eventually(cluster, "everything to be healed", || scrubbed(cluster) == (0, 0));
    bad
}

/// Has every disk read through from the beginning; bad blocks that were found, and those healed.
fn scrubbed(cluster: &Cluster) -> (u64, u64) {
    // A pass that is under way has not seen what was damaged since it began: another one follows it.
    let more = if passes(cluster).iter().any(|pass| pass.running) { 2 } else { 1 };
    let (mut bad, mut healed) = (0, 0);
    for _ in 0..more {
        let (before, mut now) = (passes(cluster), Vec::new());
        cluster.ok(&["admin", "scrub", "start"]);
        eventually(cluster, "the end of the scrub", || {
            now = passes(cluster);
            let done = |now: &Pass, before: &Pass| !now.running && (now.number > before.number || before.running);
            now.len() == before.len() && now.iter().zip(&before).all(|(now, before)| done(now, before))
        });
        bad += now.iter().map(|pass| pass.bad).sum::<u64>();
        healed += now.iter().map(|pass| pass.healed).sum::<u64>();
    }
    (bad, healed)
}
