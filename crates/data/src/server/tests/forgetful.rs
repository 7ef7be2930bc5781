//! A disk that forgot what it had synced, and leads when everything starts again: what others have counts.

use cairn_types::BLOCK_SIZE;
use cairn_types::MemberState::{Serving, Syncing};

use super::cluster::{Cluster, eventually, pattern};
use super::overwrites::{block, chunk, equal, overwrite_soon, start};
use super::rebuilds::damage;
use super::repairs::{free, id};
use super::sources::at_home;

const BLOCKS: usize = 40;

/// A sealed chunk whose block 2 was overwritten on all members, and what the file of the first one was before that.
fn overwritten(cluster: &Cluster) -> (u32, Vec<u8>) {
    overwritten_of(cluster, BLOCKS, true)
}

/// The same of so many blocks; it may still be open.
fn overwritten_of(cluster: &Cluster, blocks: usize, sealed: bool) -> (u32, Vec<u8>) {
    let index = chunk(cluster, blocks * BLOCK_SIZE, sealed);
    at_home(cluster, 0, index);
    let before = std::fs::read(cluster.nodes[0].file(index)).expect("at home");
    cluster.overwrite(0, &[1, 2], index, 1, &[(2, block(9))]).expect("done");
    at_home(cluster, 0, index);
    (index, before)
}

/// The first member starts again with the file of before.
fn forget(cluster: &mut Cluster, index: u32, before: &[u8]) {
    let path = cluster.nodes[0].file(index);
    cluster.restart_with(0, |_| std::fs::write(path, before).expect("written"));
    let number = cluster.nodes[0].store().info(id(index)).expect("here").overwrite;
    assert!(!number.is_some(), "it has forgotten it: {number}");
}

/// A file of before with the state of now.
fn with_state_of(now: &[u8], before: &[u8]) -> Vec<u8> {
    use cairn_format::chunk_header::STATE_OFFSET;
    let mut mixed = before.to_vec();
    let state = STATE_OFFSET as usize..STATE_OFFSET as usize + cairn_format::chunk_state::CHUNK_STATE_LEN;
    mixed[state.clone()].copy_from_slice(&now[state]);
    mixed
}

/// The same, but what says how far it is was kept.
fn forget_all_but_the_state(cluster: &mut Cluster, index: u32, before: &[u8]) {
    let path = cluster.nodes[0].file(index);
    cluster.restart_with(0, |_| {
        let now = std::fs::read(&path).expect("at home");
        std::fs::write(&path, with_state_of(&now, before)).expect("written");
    });
    let number = cluster.nodes[0].store().info(id(index)).expect("here").overwrite;
    assert!(number.is_some(), "it does not know that it has forgotten it");
}

/// A member would take old blocks under old checksums for complete, because the chunk's state says that they are new,
/// and serve them.
#[test]
fn a_table_of_before_is_not_taken_for_the_present_one() {
    let old = pattern(7, BLOCKS * BLOCK_SIZE);
    for leads in [false, true] {
        let mut cluster = start();
        let (index, before) = overwritten(&cluster);
        forget_all_but_the_state(&mut cluster, index, &before);
        if !leads {
            cluster.raise(&[Syncing, Serving, Serving]);
            eventually("catching up", || cluster.nodes[0].report().is_some_and(|report| report.caught_up));
            let found = cluster.nodes[0].store();
            let chunk = found.chunk(id(index)).expect("here");
            assert!(found.read_now(&chunk, 8192, 4096).expect("read").data[..] == block(9)[..], "before it serves");
        }
        cluster.raise(&[Serving; 3]);
        overwrite_soon(&cluster, 0, &[1, 2], index, 2, 3, 3);
        assert!(equal(&cluster, &[0, 1, 2], index), "leads: {leads}");
        for i in 0..3 {
            let found = cluster.read(i, index, 4096, 4 * 4096).expect("read").expect("intact");
            let wanted = [&old[4096..8192], &block(9), &block(3), &old[4 * 4096..5 * 4096]].concat();
            assert!(found == wanted, "member {i}, leads: {leads}");
        }
    }
}

/// Whose state a file has that is of before otherwise.
#[derive(Debug, Clone, Copy)]
enum Of {
    Before,
    Now,
    /// Noise.
    Nobody,
}

/// Old blocks would count as those of the last overwrite because the journal has that one, and the primary would give
/// them to everybody.
#[test]
fn what_the_journal_kept_does_not_hide_what_was_forgotten() {
    // Behind all whose checksums a record of the first one has.
    const LATER: u32 = 200;
    let old = pattern(7, BLOCKS * BLOCK_SIZE);
    for (state, sealed) in [(Of::Before, true), (Of::Now, true), (Of::Now, false), (Of::Nobody, true)] {
        let mut cluster = start();
        let (index, before) = overwritten_of(&cluster, 300, sealed);
        let path = cluster.nodes[0].file(index);
        let home = std::fs::read(&path).expect("at home");
        cluster.overwrite(0, &[1, 2], index, 2, &[(LATER, block(5))]).expect("done");
        let journal = std::fs::read(cluster.nodes[0].dir.path().join("journal")).expect("a journal");
        cluster.restart_with(0, |dir| {
            let file = match state {
                Of::Before => before,
                Of::Now => with_state_of(&home, &before),
                Of::Nobody => with_state_of(&vec![0x5a; home.len()], &before),
            };
            std::fs::write(&path, file).expect("written");
            std::fs::write(dir.join("journal"), journal).expect("written");
        });
        cluster.raise(&[Serving; 3]);
        overwrite_soon(&cluster, 0, &[1, 2], index, 3, 3, 3);
        assert!(equal(&cluster, &[0, 1, 2], index), "state: {state:?}, sealed: {sealed}");
        for i in 0..3 {
            for (at, wanted) in [(1, &old[4096..8192]), (2, &block(9)), (3, &block(3)), (LATER, &block(5))] {
                let found = cluster.read(i, index, u64::from(at) * 4096, 4096).expect("read").expect("intact");
                assert!(found == wanted, "member {i}, block {at}, state: {state:?}, sealed: {sealed}");
            }
        }
    }
}

/// An open chunk would be taken at its state's word where a sealed one is not.
#[test]
fn a_table_of_before_of_an_open_chunk_is_not_believed() {
    let mut cluster = start();
    let (index, before) = overwritten_of(&cluster, BLOCKS, false);
    forget_all_but_the_state(&mut cluster, index, &before);
    cluster.raise(&[Serving; 3]);
    overwrite_soon(&cluster, 0, &[1, 2], index, 2, 3, 3);
    for i in 0..3 {
        let found = cluster.read(i, index, 2 * 4096, 8192).expect("read").expect("intact");
        assert!(found == [block(9), block(3)].concat(), "member {i}");
    }
}

/// A primary that comes upon a table of before in the middle of an epoch would give its next overwrite a number of its
/// own, and then its old blocks to everybody; or fail its writer.
#[test]
fn a_table_that_changes_while_the_primary_serves_is_not_spread() {
    for is_read in [false, true] {
        let cluster = Cluster::start_tuned(3, |config| {
            config.hop_deadline = std::time::Duration::from_secs(20);
            config.overwrite_deadline = std::time::Duration::from_secs(20);
            config.disk.tables_max = 1;
        });
        let (index, before) = overwritten(&cluster);
        // Another chunk's table takes the place of this one's in memory.
        let other = chunk(&cluster, BLOCKS * BLOCK_SIZE, true);
        cluster.nodes[0].store().checkpoint();
        cluster.read(0, other, 0, 4096).expect("read").expect("intact");
        let here = cluster.nodes[0].store().chunk(id(index)).expect("here");
        assert!(here.state.lock().table.is_none(), "its table is at home only");
        std::fs::write(cluster.nodes[0].file(index), before).expect("written");
        if is_read {
            cluster.read(0, index, 0, 4096).expect("read").expect("intact");
        }
        overwrite_soon(&cluster, 0, &[1, 2], index, 2, 3, 3);
        assert!(equal(&cluster, &[0, 1, 2], index), "read: {is_read}");
        for i in 0..3 {
            let found = cluster.read(i, index, 2 * 4096, 8192).expect("read").expect("intact");
            assert!(found == [block(9), block(3)].concat(), "member {i}, read: {is_read}");
        }
    }
}

/// Blocks that were overwritten, acknowledged and synced by all would become old ones again on those that kept them.
#[test]
fn later_overwrites_of_others_count() {
    let mut cluster = start();
    let (index, before) = overwritten(&cluster);
    forget(&mut cluster, index, &before);
    cluster.raise(&[Serving; 3]);
    overwrite_soon(&cluster, 0, &[1, 2], index, 2, 3, 3);
    assert!(equal(&cluster, &[0, 1, 2], index));
    let old = pattern(7, BLOCKS * BLOCK_SIZE);
    for i in 0..3 {
        let found = cluster.read(i, index, 4096, 4 * 4096).expect("read").expect("intact");
        let wanted = [&old[4096..8192], &block(9), &block(3), &old[4 * 4096..5 * 4096]].concat();
        assert!(found == wanted, "member {i}");
    }
}

/// A chunk whose end this disk has forgotten is open there: its partial last block would not be compared with that of
/// others, who have overwritten it since, and as primary's count for all of them in the next epoch.
#[test]
fn the_last_block_is_compared_although_the_end_was_forgotten() {
    const LAST: u32 = BLOCKS as u32;
    for leads in [true, false] {
        let mut cluster = start();
        let index = chunk(&cluster, BLOCKS * BLOCK_SIZE + 1000, false);
        let (i, chain) = if leads { (0, [1, 2]) } else { (1, [1, 2]) };
        at_home(&cluster, i, index);
        let before = std::fs::read(cluster.nodes[i].file(index)).expect("at home");
        cluster.seal(0, &chain, index).expect("sealed");
        let tail = [pattern(9, 1000), vec![0; BLOCK_SIZE - 1000]].concat();
        cluster.overwrite(0, &chain, index, 1, &[(LAST, tail)]).expect("done");
        at_home(&cluster, i, index);
        let path = cluster.nodes[i].file(index);
        // What was not home yet when the node ended would be written over it.
        eventually("it to be forgotten", || {
            cluster.restart_with(i, |_| std::fs::write(&path, &before).expect("written"));
            !cluster.nodes[i].store().info(id(index)).expect("here").sealed
        });
        for _ in 0..2 {
            cluster.raise(&[Serving; 3]);
            overwrite_soon(&cluster, 0, &[1, 2], index, cluster.epoch, 3, 3);
            eventually("the seal", || cluster.nodes[i].store().info(id(index)).is_some_and(|info| info.sealed));
            for member in 0..3 {
                let found = cluster.read(member, index, u64::from(LAST) * 4096, 1000).expect("read").expect("intact");
                assert!(found == pattern(9, 1000), "member {member}, leads: {leads}");
            }
        }
    }
}

/// Members that freed a block would wait for ever for the good bytes of one that forgot that it had freed it, and lost
/// them.
#[test]
fn what_was_freed_here_is_not_waited_for() {
    let mut cluster = start();
    let (index, before) = overwritten(&cluster);
    assert!([1, 2].iter().all(|i| free(&cluster, *i, index, 8192, 4096) == [0]));
    forget(&mut cluster, index, &before);
    damage(&cluster, 0, index, 2);
    cluster.raise(&[Serving, Syncing, Syncing]);
    for i in [1, 2] {
        eventually("catching up", || cluster.nodes[i].report().is_some_and(|report| report.caught_up));
    }
    // The first one frees it as well as soon as there is somebody to ask.
    cluster.raise(&[Serving; 3]);
    super::rebuilds::report(&cluster, 0, index, 2).expect("freed here as well");
    let old = pattern(7, BLOCKS * BLOCK_SIZE);
    for i in 0..3 {
        assert!(cluster.read(i, index, 8192, 10).is_err(), "member {i}");
        let found = cluster.read(i, index, 12_288, 4096).expect("read").expect("intact");
        assert!(found == old[12_288..16_384], "member {i}");
    }
}
