//! What was freed stays freed, on whoever heard of it before the others: once a member has answered, nobody asks it
//! again, and what came back would take its space until garbage is collected.

use cairn_types::MemberState::{Serving, Syncing};
use cairn_types::{CHUNK_SIZE_MAX, DiskId, ErrorCode, PgId};

use super::cluster::{Cluster, PG, eventually, pattern};
use super::repairs::{append_unsynced, free, id};

const HALF: usize = 8192;

/// A chunk of which the third of three members has the first half.
fn half(cluster: &Cluster) -> u32 {
    let (index, all) = (cluster.allocate(0).expect("an index"), pattern(1, 2 * HALF));
    cluster.append(0, &[1, 2], index, 0, &all[..HALF]).expect("appended");
    [0, 1].iter().for_each(|i| append_unsynced(cluster, *i, index, HALF, &all[HALF..]));
    index
}

fn seal_all(cluster: &Cluster, index: u32) {
    for i in 0..3 {
        cluster.seal(i, &[], index).expect("sealed");
    }
}

fn length(cluster: &Cluster, i: usize, index: u32) -> Option<u64> {
    cluster.nodes[i].store().info(id(index)).map(|info| info.length)
}

/// The third member is in the present epoch.
fn heard(cluster: &Cluster) {
    let record = || cluster.nodes[2].store().pg_files().get(PgId(PG));
    eventually("the new epoch", || record().is_some_and(|record| record.epoch.get() == cluster.epoch));
}

fn later() -> Vec<u32> {
    vec![u32::from(ErrorCode::Unavailable.code())]
}

/// The primary hears of an epoch, that the others are in already, only now.
fn tell_primary(cluster: &mut Cluster, states: &[cairn_types::MemberState]) {
    cluster.answer_again(0);
    cluster.tell_state(cluster.state(states));
}

/// A member would copy again what it has freed, from a primary that has not: while it catches up, or when it was freed
/// in an epoch before that, by the map of a metadata server that was ahead of it or behind.
#[test]
fn what_a_member_freed_is_not_copied_to_it_again() {
    for before in [true, false] {
        let mut cluster = Cluster::start(3);
        let (freed, part, kept) = (half(&cluster), half(&cluster), half(&cluster));
        [freed, part, kept].iter().for_each(|index| seal_all(&cluster, *index));
        let all = |cluster: &Cluster| {
            // All of it, of which half is here; and what is here, of which others have as much more.
            assert_eq!(free(cluster, 2, freed, 0, CHUNK_SIZE_MAX), [0]);
            assert_eq!(free(cluster, 2, part, 0, HALF as u64), [0]);
            assert_eq!((length(cluster, 2, freed), length(cluster, 2, part)), (None, None));
        };
        if before {
            all(&cluster);
        }
        cluster.kill(0);
        let states = [Serving, Serving, Syncing];
        cluster.tell(&states);
        if !before {
            heard(&cluster);
            all(&cluster);
        }
        tell_primary(&mut cluster, &states);
        eventually("catching up", || cluster.nodes[2].report().is_some_and(|report| report.caught_up));
        assert_eq!(length(&cluster, 2, freed), None, "it came back; freed before: {before}");
        // What was here may have been less.
        let whole = Some(2 * HALF as u64);
        assert_eq!((length(&cluster, 2, part), length(&cluster, 2, kept)), (whole, whole));
        cluster.raise(&[Serving; 3]);
        assert_eq!(free(&cluster, 2, part, 0, CHUNK_SIZE_MAX), [0]);
        assert_eq!(length(&cluster, 2, part), None);
    }
}

/// A member would free the part that it has, answer, and get the rest.
#[test]
fn who_has_a_part_answers_when_it_has_the_rest() {
    let mut cluster = Cluster::start(3);
    let index = half(&cluster);
    seal_all(&cluster, index);
    cluster.kill(0);
    let states = [Serving, Serving, Syncing];
    cluster.tell(&states);
    heard(&cluster);
    let all = 2 * HALF as u64;
    assert_eq!(free(&cluster, 2, index, 4096, all - 4096), later(), "the rest is not here");
    tell_primary(&mut cluster, &states);
    eventually("catching up", || cluster.nodes[2].report().is_some_and(|report| report.caught_up));
    assert_eq!(length(&cluster, 2, index), Some(all));
    assert_eq!(free(&cluster, 2, index, 4096, all - 4096), [0]);
    let info = cluster.nodes[2].store().info(id(index)).expect("its first block");
    assert_eq!(info.punched_blocks, 3);
}

/// The same of a chunk that is open, and closed at the longest of all by a primary that has not freed it.
#[test]
fn what_is_open_is_freed_when_it_is_closed() {
    let mut cluster = Cluster::start(3);
    let index = half(&cluster);
    cluster.kill(0);
    cluster.tell(&[Serving; 3]);
    heard(&cluster);
    let all = 2 * HALF as u64;
    assert_eq!(free(&cluster, 2, index, 0, all), later());
    assert_eq!(free(&cluster, 2, index, 0, CHUNK_SIZE_MAX), later());
    tell_primary(&mut cluster, &[Serving; 3]);
    eventually("its end", || {
        cluster.nodes[2].store().info(id(index)).is_none_or(|info| info.sealed && info.length == all)
    });
    for i in 0..3 {
        eventually("an answer", || free(&cluster, i, index, 0, all) == [0]);
        eventually("its end", || length(&cluster, i, index).is_none());
    }
}

/// A chunk that was freed between a look at it and its copy would be copied all the same.
#[test]
fn what_is_freed_since_it_was_looked_at_is_not_brought() {
    let cluster = Cluster::start(3);
    let index = half(&cluster);
    seal_all(&cluster, index);
    let (inner, disk) = (&cluster.nodes[2].data.inner, DiskId(cluster.nodes[2].disk));
    let member = inner.member(disk.get(), PG, 0).expect("a member");
    let bringing = inner.begin_bringing(&member, id(index), 2 * HALF as u64).expect("nothing is in the way");
    assert_eq!(free(&cluster, 2, index, 0, CHUNK_SIZE_MAX), later(), "a part of it may be on its way");
    drop(bringing);
    member.runtime.state.lock().begin_free(index);
    assert!(inner.begin_bringing(&member, id(index), 2 * HALF as u64).is_none(), "it is freed at this moment");
    member.runtime.state.lock().end_free(index);
    assert_eq!(free(&cluster, 2, index, 0, HALF as u64), [0]);
    assert!(inner.begin_bringing(&member, id(index), HALF as u64).is_none(), "so much was freed");
    drop(inner.begin_bringing(&member, id(index), 2 * HALF as u64).expect("others have more"));
    assert_eq!(free(&cluster, 2, index, 0, CHUNK_SIZE_MAX), [0]);
    assert!(inner.begin_bringing(&member, id(index), 2 * HALF as u64).is_none(), "all of it was freed");
}
