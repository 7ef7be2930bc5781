//! Scrub: bad blocks that nobody reads are found and healed, and it goes on where it was after a restart.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cairn_node_agent::{Contributor, Settings};
use cairn_rpc::Payload;
use cairn_types::MemberState::Serving;
use cairn_types::{CHUNK_SIZE_MAX, DiskId};
use cairn_wire::Opcode;
use cairn_wire::data::{ScrubReport, ScrubRequest, ScrubResponse};
use cairn_wire::manager::ConfigItem;

use super::cluster::{Cluster, eventually, pattern};
use super::rebuilds::damage;
use super::repairs::{free, id};
use super::restores::remove;
use super::shards::UNIT;
use super::sources::sealed;

fn scrub(cluster: &Cluster, i: usize, start: bool) -> ScrubReport {
    let request = ScrubRequest { disk: cluster.nodes[i].disk, start };
    let answer: ScrubResponse = cluster.call(i, Opcode::Scrub, &request, Payload::None).expect("answered").0;
    answer.disks[0]
}

fn set(cluster: &Cluster, i: usize, settings: &[(&str, &str)]) {
    let item =
        |(key, value): &(&str, &str)| ConfigItem { key: (*key).into(), value: (*value).into(), ..Default::default() };
    let items: Vec<ConfigItem> = settings.iter().map(item).collect();
    cluster.nodes[i].data.settings(&Settings::new(&items));
}

/// Sealed chunks of 300,000 bytes on all members.
fn chunks(cluster: &Cluster, count: usize) -> Vec<u32> {
    let write = |seed: usize| {
        let index = cluster.allocate(0).expect("an index");
        cluster.append(0, &[1, 2], index, 0, &pattern(seed as u64, 300_000)).expect("appended");
        cluster.sync(0, &[1, 2], index).expect("synced");
        cluster.seal(0, &[1, 2], index).expect("sealed");
        index
    };
    (0..count).map(write).collect()
}

/// Damage of what nobody reads would be found when the other copies are gone as well.
#[test]
fn bad_blocks_are_found_and_healed() {
    let cluster = Cluster::start(3);
    let indices = chunks(&cluster, 3);
    assert_eq!((scrub(&cluster, 1, false).pass, scrub(&cluster, 1, false).running), (0, false), "not while all starts");
    damage(&cluster, 1, indices[0], 3);
    damage(&cluster, 1, indices[2], 70);
    assert!(scrub(&cluster, 1, true).running, "asked for");
    eventually("the end of the pass", || scrub(&cluster, 1, false).ended_ns > 0);
    let report = scrub(&cluster, 1, false);
    assert_eq!((report.pass, report.bad_blocks, report.healed_blocks), (1, 2, 2));
    assert_eq!(report.bytes, 3 * 300_000u64.next_multiple_of(4096), "each block once");
    for index in &indices {
        let store = cluster.nodes[1].store();
        let chunk = store.chunk(id(*index)).expect("there");
        assert_eq!(store.verify_chunk(&chunk), Ok(vec![]));
    }
    assert_eq!(scrub(&cluster, 0, false).pass, 0, "only the disk that was asked for");
    let nowhere = ScrubRequest { disk: 4711, start: true };
    assert!(cluster.call::<ScrubResponse>(1, Opcode::Scrub, &nowhere, Payload::None).is_err());
}

/// What a disk that has too much to do refuses would be left out until the next pass, with a warning for each chunk.
#[test]
fn a_busy_disk_is_read_later() {
    let cluster = Cluster::start(3);
    chunks(&cluster, 3);
    let store = cluster.nodes[1].store();
    set(&cluster, 1, &[("scrub_rate_max", "1m")]);
    let refused = || store.metrics().overloads.load(std::sync::atomic::Ordering::Relaxed);
    for pass in 1..=50 {
        scrub(&cluster, 1, true);
        eventually("something is read", || {
            scrub(&cluster, 1, false).pass == pass && scrub(&cluster, 1, false).bytes > 0
        });
        let (release, wait) = std::sync::mpsc::channel::<()>();
        store.control(move |_| assert!(wait.recv().is_err())).expect("room");
        while store.control(|_| ()).is_ok() {}
        // It may wait for what it asked for just before.
        let before = refused();
        let was_refused = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            refused() > before
        });
        drop(release);
        eventually("the end of the pass", || scrub(&cluster, 1, false).ended_ns > 0);
        assert_eq!(scrub(&cluster, 1, false).bytes, 3 * 300_000u64.next_multiple_of(4096), "each block");
        if was_refused {
            return;
        }
    }
    panic!("the scrub was never refused");
}

/// A disk would never be read to its end if its node is restarted more often than a pass takes.
#[test]
fn a_pass_goes_on_after_a_restart() {
    let mut cluster = Cluster::start(3);
    let indices = chunks(&cluster, 4);
    let mut state = cluster.nodes[2].store().read_scrub_state();
    assert_eq!(state.disk, cluster.nodes[2].store().read_scrub_state().disk);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    (state.pass, state.began, state.next, state.bytes) = (5, now, id(indices[2]), 1000);
    cluster.nodes[2].store().write_scrub_state(&state).expect("kept");
    cluster.kill(2);
    cluster.restart(2);
    eventually("the end of the pass", || scrub(&cluster, 2, false).ended_ns > 0);
    let report = scrub(&cluster, 2, false);
    assert_eq!((report.pass, report.bytes), (5, 1000 + 2 * 300_000u64.next_multiple_of(4096)), "the rest only");
    assert_eq!(cluster.nodes[2].store().read_scrub_state().bytes, report.bytes, "kept");
}

/// Disks would be read through once and never again, or all the time.
#[test]
fn passes_follow_each_other_with_the_period() {
    let cluster = Cluster::start(3);
    chunks(&cluster, 1);
    set(&cluster, 0, &[("scrub_period", "2s"), ("scrub_rate_max", "1g")]);
    eventually("two passes", || scrub(&cluster, 0, false).pass >= 2);
    set(&cluster, 0, &[("scrub_period", "2h")]);
    eventually("the end of a pass", || scrub(&cluster, 0, false).ended_ns > 0);
    let report = scrub(&cluster, 0, false);
    assert!(report.last_ended_ns > 0 && report.last_ended_ns < report.ended_ns, "{report:?}");
    assert_eq!(report.bad_blocks, 0);
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(scrub(&cluster, 0, false).pass, report.pass, "the next one is in two hours");
    assert_eq!(DiskId(report.disk), DiskId(cluster.nodes[0].disk));
}

/// A file that vanished and that nobody reads would be missing until the others are lost as well; only fsck named it.
#[test]
fn chunks_that_vanished_unnoticed_are_brought_back() {
    let mut cluster = Cluster::start_tuned(3, |config| config.restore_delay = Duration::from_millis(50));
    let indices = chunks(&cluster, 3);
    // What was deleted everywhere does not come back.
    (0..3).for_each(|i| assert_eq!(free(&cluster, i, indices[2], 0, CHUNK_SIZE_MAX), [0]));
    cluster.restart_with(1, |dir| {
        remove(dir, indices[0]);
        remove(dir, indices[1]);
    });
    cluster.raise(&[Serving; 3]);
    scrub(&cluster, 1, true);
    for (seed, index) in indices[..2].iter().enumerate() {
        let is_back = || cluster.nodes[1].store().info(id(*index)).is_some_and(|info| info.sealed);
        eventually("the chunk is back", is_back);
        assert_eq!(cluster.read(1, *index, 0, 300_000).expect("read").expect("intact"), pattern(seed as u64, 300_000));
    }
    assert!(cluster.nodes[1].store().info(id(indices[2])).is_none());

    let (mut cluster, index, shards) = sealed(|config| config.restore_delay = Duration::from_millis(50), 1, 6 * UNIT);
    cluster.restart_with(2, |dir| remove(dir, index));
    cluster.raise(&[Serving; 5]);
    scrub(&cluster, 2, true);
    eventually("the shard is back", || cluster.nodes[2].store().info(id(index)).is_some_and(|info| info.sealed));
    shards.check_all(&cluster, 2, index);
}
