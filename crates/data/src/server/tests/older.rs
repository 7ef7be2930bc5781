//! Members that all came back as older copies of themselves: what they have together serves, once it was compared.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_rpc::CallError;
use cairn_types::MemberState::{Serving, Syncing};
use cairn_types::{BLOCK_SIZE, ErrorCode, PgId};
use cairn_wire::data::PgState;

use super::cluster::{Cluster, PG, TestNode, eventually, pattern};
use super::overwrites::{block, chunk, overwrite_soon};
use super::repairs::id;
use crate::disk::LOST_MARK_SKIP;

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("listed") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_all(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).expect("copied");
        }
    }
}

/// A copy of a member's directory as it is now; it begins anew, and catches up.
fn save(cluster: &mut Cluster, i: usize) -> (tempfile::TempDir, PathBuf) {
    let kept = tempfile::tempdir().expect("a directory");
    let at = kept.path().join("copy");
    cluster.restart_with(i, |dir| copy_all(dir, &at));
    let mut states = [Serving; 3];
    states[i] = Syncing;
    cluster.raise(&states);
    eventually("catching up", || cluster.nodes[i].report().is_some_and(|report| report.caught_up));
    cluster.raise(&[Serving; 3]);
    (kept, at)
}

/// It starts on a copy of before.
fn set_back(cluster: &mut Cluster, i: usize, copy: &Path) {
    cluster.restart_with(i, |dir| {
        for entry in std::fs::read_dir(dir).expect("listed") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.expect("removed");
        }
        copy_all(copy, dir);
    });
}

fn start() -> Cluster {
    Cluster::start_tuned(3, |config| {
        config.hop_deadline = Duration::from_secs(20);
        config.overwrite_deadline = Duration::from_secs(20);
        config.look_after = Duration::ZERO;
        config.restore_delay = Duration::from_millis(50);
        config.restore_again = Duration::from_millis(200);
    })
}

fn code(error: CallError) -> Option<ErrorCode> {
    match error {
        CallError::Remote(error) => Some(error.code),
        _ => None,
    }
}

/// Readers would get what one of the copies lacks, or had before it was overwritten; an index would be given twice.
#[test]
fn older_copies_are_put_together_before_they_serve() {
    let mut cluster = start();
    let first = chunk(&cluster, 8 * BLOCK_SIZE, true);
    let (_kept0, copy0) = save(&mut cluster, 0);
    overwrite_soon(&cluster, 0, &[1, 2], first, 1, 9, 2);
    let second = chunk(&cluster, 3 * BLOCK_SIZE, true);
    let third = chunk(&cluster, 5 * BLOCK_SIZE, false);
    let (_kept1, copy1) = save(&mut cluster, 1);
    let (_kept2, copy2) = save(&mut cluster, 2);
    let lost = chunk(&cluster, BLOCK_SIZE, true);
    for (i, copy) in [&copy0, &copy1, &copy2].into_iter().enumerate() {
        set_back(&mut cluster, i, copy);
    }
    assert!(cluster.nodes[0].store().info(id(second)).is_none(), "it is older");
    let marks: Vec<u32> =
        cluster.nodes.iter().map(|node| node.store().pg_files().get(PgId(PG)).expect("known").high_water).collect();
    // One of them cannot be compared yet.
    cluster.kill(2);
    cluster.epoch += 1;
    let older =
        |cluster: &Cluster| PgState { comparing: true, older_epoch: cluster.epoch, ..cluster.state(&[Serving; 3]) };
    cluster.tell_state(older(&cluster));
    eventually("the epoch", || cluster.nodes[0].store().pg_files().get(PgId(PG)).is_some_and(|pg| pg.comparing));
    for i in 0..2 {
        let refused = cluster.read(i, first, 0, BLOCK_SIZE).expect_err("it was not compared");
        assert_eq!(code(refused), Some(ErrorCode::Unavailable), "member {i}");
    }
    assert_eq!(cluster.allocate(0).err().and_then(code), Some(ErrorCode::Overloaded));
    assert!(!cluster.nodes[0].report().is_some_and(|report| report.caught_up), "one is missing");
    cluster.answer_again(2);
    cluster.tell_state(older(&cluster));
    eventually("the comparison", || cluster.nodes[0].report().is_some_and(|report| report.caught_up));
    cluster.epoch += 1;
    let together = PgState { older_epoch: cluster.epoch - 1, ..cluster.state(&[Serving; 3]) };
    cluster.tell_state(together);
    eventually("every chunk on every member", || {
        let whole = |node: &TestNode| {
            [(first, 8), (second, 3), (third, 5)].iter().all(|(index, blocks)| {
                node.store().info(id(*index)).is_some_and(|info| info.length == blocks * BLOCK_SIZE as u64)
            })
        };
        cluster.nodes.iter().all(whole)
    });
    for i in 0..3 {
        let found = cluster.read(i, first, 2 * BLOCK_SIZE as u64, BLOCK_SIZE).expect("read");
        assert_eq!(found, Some(block(9)), "what was overwritten last, on member {i}");
        assert_eq!(cluster.read(i, third, 0, 5 * BLOCK_SIZE).expect("read"), Some(pattern(7, 5 * BLOCK_SIZE)));
        let gone = cluster.read(i, lost, 0, BLOCK_SIZE).expect_err("nobody has it");
        assert_eq!(code(gone), Some(ErrorCode::Missing), "it is said to be missing, never zeros");
    }
    let mut index = None;
    eventually("an index", || {
        index = cluster.allocate(0).ok();
        index.is_some()
    });
    let highest = marks.into_iter().max().expect("three");
    assert!(index >= Some(highest + LOST_MARK_SKIP), "{index:?} after {highest}");
}
