//! Sources with bad blocks: whatever is good anywhere is enough, and those that are bad are told.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use cairn_rpc::Payload;
use cairn_sim::SimRng;
use cairn_types::MemberState::{self, Offline, Serving, Syncing};
use cairn_types::{ErrorCode, Scheme};
use cairn_wire::Opcode;
use cairn_wire::common::ChunkRange;
use cairn_wire::data::{ChunkHeader, FreeItem, FreeRequest, FreeResponse, ReadRequest, ReadResponse};

use super::cluster::{Cluster, PG, Tune, eventually, pattern};
use super::rebuilds::{damage, damage_at, report};
use super::repairs::id;
use super::shards::{ALL, RS32, UNIT};
use super::stripes::Shards;

/// A replicated chunk of so many blocks, of which the last is a part.
const BLOCKS: usize = 400;
const BYTES: usize = BLOCKS * 4096 - 1000;

fn caught_up(cluster: &Cluster, i: usize) {
    eventually("catching up", || cluster.nodes[i].report().is_some_and(|report| report.caught_up));
}

/// A sealed chunk on two of three members; the third is away.
fn copied(cluster: &Cluster, seed: u64) -> u32 {
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(seed, BYTES);
    for at in (0..BYTES).step_by(1 << 20) {
        let end = (at + (1 << 20)).min(BYTES);
        cluster.append(0, &[1], index, at as u64, &bytes[at..end]).expect("appended");
    }
    cluster.seal(0, &[1], index).expect("sealed");
    for i in 0..2 {
        at_rest(cluster, i, index);
    }
    index
}

/// A sealed chunk on all members.
pub(super) fn put_sealed(cluster: &Cluster, seed: u64, length: usize) -> (u32, Shards) {
    let index = cluster.allocate(0).expect("an index");
    let shards = Shards::new(RS32, seed, length);
    shards.put(cluster, &ALL, index);
    for i in ALL {
        cluster.seal(i, &[], index).expect("sealed");
    }
    (index, shards)
}

/// A group with one.
pub(super) fn sealed(tune: Tune, seed: u64, length: usize) -> (Cluster, u32, Shards) {
    let cluster = Cluster::start_scheme(RS32, tune);
    let (index, shards) = put_sealed(&cluster, seed, length);
    (cluster, index, shards)
}

/// The same with all of it at rest, so that it can be damaged.
pub(super) fn sealed_at_rest(tune: Tune, seed: u64, length: usize) -> (Cluster, u32, Shards) {
    let (cluster, index, shards) = sealed(tune, seed, length);
    ALL.iter().for_each(|i| at_rest(&cluster, *i, index));
    (cluster, index, shards)
}

/// What is still on its way home would be written over the damage.
pub(super) fn at_rest(cluster: &Cluster, i: usize, index: u32) {
    let store = cluster.nodes[i].store();
    eventually("it is at rest", || store.chunk(id(index)).is_some_and(|chunk| chunk.state.lock().overlay.is_empty()));
}

/// The same with its tables and its state.
pub(super) fn at_home(cluster: &Cluster, i: usize, index: u32) {
    at_rest(cluster, i, index);
    let store = cluster.nodes[i].store();
    let chunk = store.chunk(id(index)).expect("here");
    eventually("it is at home", || {
        store.checkpoint();
        chunk.state.lock().pending == 0
    });
}

fn healed(cluster: &Cluster, i: usize, index: u32, block: u32) {
    let store = cluster.nodes[i].store();
    eventually(&format!("member {i} heals its block {block}"), || store.verify_block(id(index), block) == Ok(true));
}

fn check_copy(cluster: &Cluster, i: usize, index: u32, seed: u64) {
    let bytes = pattern(seed, BYTES);
    for at in (0..BYTES).step_by(1 << 20) {
        let end = (at + (1 << 20)).min(BYTES);
        let found = cluster.read(i, index, at as u64, end - at).expect("read").expect("intact");
        assert!(found == bytes[at..end], "member {i}, {at}..{end}");
    }
}

/// One flipped bit on the primary would keep a member out that comes back, for as long as nobody reads just that block.
#[test]
fn copies_with_different_bad_blocks_make_a_good_one() {
    let mut cluster = Cluster::start(3);
    cluster.kill(2);
    cluster.raise(&[Serving, Serving, Offline]);
    let index = copied(&cluster, 1);
    let bad = [(0, 5), (0, 280), (0, BLOCKS - 1), (1, 4), (1, 6), (1, 300)];
    for (member, block) in bad {
        damage(&cluster, member, index, block as u64);
    }
    cluster.restart(2);
    cluster.raise(&[Serving, Serving, Syncing]);
    caught_up(&cluster, 2);
    cluster.raise(&[Serving; 3]);
    check_copy(&cluster, 2, index, 1);
    // The source was told of its bad blocks. The other one may not have been asked for its own.
    for block in [5, 280, BLOCKS - 1] {
        healed(&cluster, 0, index, block as u32);
    }
    check_copy(&cluster, 0, index, 1);
    let noticed = cluster.nodes[0].store().metrics().crc_errors.load(Relaxed);
    assert!(noticed >= 3, "{noticed}");
}

/// A block that is bad everywhere would hold up everything else that the member lacks, and nobody would know of it.
#[test]
fn a_chunk_that_nobody_has_whole_waits_alone_and_is_named() {
    let mut cluster = Cluster::start(3);
    cluster.kill(2);
    cluster.raise(&[Serving, Serving, Offline]);
    let (lost, sound) = (copied(&cluster, 1), copied(&cluster, 2));
    for member in [0, 1] {
        damage(&cluster, member, lost, 7);
    }
    damage(&cluster, 0, sound, 9);
    cluster.restart(2);
    cluster.raise(&[Serving, Serving, Syncing]);
    eventually("the other chunk", || cluster.nodes[2].store().info(id(sound)).is_some_and(|info| info.sealed));
    eventually("it is named", || {
        let text = cluster.nodes[2].report().map(|report| report.waits_for).unwrap_or_default();
        text.contains(&format!("{}: no member has block 7", id(lost)))
    });
    assert!(!cluster.nodes[2].report().is_some_and(|report| report.caught_up), "it is not complete");
    healed(&cluster, 0, sound, 9);
    assert_eq!(cluster.read(0, lost, 7 * 4096, 10).expect("answered"), None, "it is still bad, and seen to be");
    // The file is deleted: nothing is lacking any more.
    for i in 0..2 {
        let ranges = vec![ChunkRange { offset: 0, length: BYTES as u64 }];
        let item = FreeItem { disk: cluster.nodes[i].disk, pg: PG, index: lost, ranges };
        let answer: (FreeResponse, _) =
            cluster.call(i, Opcode::Free, &FreeRequest { items: vec![item] }, Payload::None).expect("answered");
        assert_eq!(answer.0.codes, [0]);
    }
    caught_up(&cluster, 2);
    assert_eq!(cluster.nodes[2].report().map(|report| report.waits_for), Some(String::new()));
    cluster.raise(&[Serving; 3]);
    check_copy(&cluster, 2, sound, 2);
}

/// A bad copy that is asked while another one heals would stay bad until a reader comes upon it.
#[test]
fn healing_tells_other_bad_copies() {
    let cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(3, 300_000);
    cluster.append(0, &[1, 2], index, 0, &bytes).expect("appended");
    cluster.seal(0, &[1, 2], index).expect("sealed");
    for i in 0..3 {
        at_rest(&cluster, i, index);
    }
    damage(&cluster, 0, index, 11);
    damage(&cluster, 1, index, 11);
    report(&cluster, 0, index, 11).expect("healed from the third");
    healed(&cluster, 1, index, 11);
    for i in 0..3 {
        assert!(cluster.read(i, index, 0, 300_000).expect("read").expect("intact") == bytes);
    }
}

/// A member that had taken more of a chunk than the others were sealed at, and then led, would keep its bad block in
/// which they end, and nobody could catch up from it.
#[test]
fn a_bad_block_in_which_all_others_end_is_healed() {
    const END: usize = 23_514;
    let bytes = pattern(4, 7 * 4096);
    // What is bad is what the others have of the block, what they have not, and a block behind. Or they have all that
    // is in it.
    for (block, at, next) in [(5, 77, 5), (5, 4000, 5), (6, 77, 5), (5, 77, 6), (5, 4000, 6)] {
        let mut cluster = Cluster::start(3);
        let index = cluster.allocate(0).expect("an index");
        cluster.append(0, &[1, 2], index, 0, &bytes[..END]).expect("appended");
        cluster.append(2, &[], index, next * 4096, &bytes[next as usize * 4096..]).expect("as from the member before");
        cluster.raise(&[Serving, Serving, Offline]);
        eventually("the seal", || cluster.nodes[0].store().info(id(index)).is_some_and(|info| info.sealed));
        cluster.raise(&[Serving, Serving, Syncing]);
        caught_up(&cluster, 2);
        cluster.raise(&[Serving; 3]);
        let length = |i: usize| cluster.nodes[i].store().info(id(index)).map(|info| info.length);
        assert_eq!([length(0), length(2)], [Some(END as u64), Some(7 * 4096)]);
        at_rest(&cluster, 2, index);
        let sum = cluster.nodes[2].store().info(id(index)).map(|info| info.table_crc);
        damage_at(&cluster, 2, index, block, at);
        assert_eq!(cluster.nodes[2].store().verify_block(id(index), block as u32), Ok(false));
        report(&cluster, 2, index, block).expect("healed");
        healed(&cluster, 2, index, block as u32);
        let now = cluster.nodes[2].store().info(id(index)).map(|info| info.table_crc);
        assert_eq!(now == sum, at == 77 && block == 5 || next == 6, "only what nobody else has may become another one");
        assert_eq!(cluster.read(2, index, 0, END).expect("read").expect("intact"), bytes[..END]);
        // Another one catches up from it.
        cluster.restart_with(0, |dir| std::fs::remove_dir_all(dir.join("pg")).expect("removed"));
        cluster.raise(&[Syncing, Offline, Serving]);
        caught_up(&cluster, 0);
        cluster.raise(&[Serving, Offline, Serving]);
        assert_eq!(cluster.read(0, index, 0, END).expect("read").expect("intact"), bytes[..END]);
    }
}

/// The same where the device cannot read what is behind: nobody would ever catch up from that member.
#[test]
fn an_unreadable_block_behind_which_nobody_has_anything_is_healed() {
    let bytes = pattern(4, 7 * 4096);
    let mut cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    cluster.append(0, &[1, 2], index, 0, &bytes[..5 * 4096]).expect("appended");
    cluster.append(2, &[], index, 5 * 4096, &bytes[5 * 4096..]).expect("as from the member before");
    for i in 0..3 {
        cluster.seal(i, &[], index).expect("sealed");
    }
    at_rest(&cluster, 2, index);
    let header = cluster.nodes[2].store().chunk(id(index)).expect("here").header.data_offset();
    let path = cluster.nodes[2].file(index);
    cluster.restart_with(2, |_| {
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("a file");
        file.set_len(header + 6 * 4096).expect("cut off");
    });
    cluster.raise(&[Serving; 3]);
    cluster.read(2, index, 6 * 4096, 10).expect_err("it cannot be read");
    report(&cluster, 2, index, 6).expect("healed");
    cluster.restart_with(0, |dir| std::fs::remove_dir_all(dir.join("pg")).expect("removed"));
    cluster.raise(&[Syncing, Offline, Serving]);
    caught_up(&cluster, 0);
    cluster.raise(&[Serving, Offline, Serving]);
    assert_eq!(cluster.read(0, index, 0, 6 * 4096).expect("read").expect("intact"), bytes[..6 * 4096]);
}

fn but(members: usize, away: usize, state: MemberState) -> Vec<MemberState> {
    (0..members).map(|i| if i == away { state } else { Serving }).collect()
}

/// A shard could not be rebuilt although every row has k good blocks: no k shards are good from end to end.
#[test]
fn every_row_is_made_of_what_is_good_of_it() {
    let mut faults = 0;
    for (scheme, away, seed) in [(RS32, 4, 1), (RS32, 0, 2), (Scheme::Erasure { k: 6, m: 3 }, 3, 3)] {
        let members = scheme.members();
        let spare = members - 1 - scheme.read_minimum();
        let mut cluster = Cluster::start_scheme(scheme, |_| {});
        let index = cluster.allocate(0).expect("an index");
        let shards = Shards::new(scheme, seed, 5 * UNIT);
        let all: Vec<usize> = (0..members).collect();
        shards.put(&cluster, &all, index);
        for i in 0..members {
            cluster.seal(i, &[], index).expect("sealed");
            at_rest(&cluster, i, index);
        }
        cluster.restart_with(away, |dir| std::fs::remove_dir_all(dir.join("pg")).expect("removed"));
        let rng = SimRng::seeded(seed);
        let mut bad = BTreeSet::new();
        for block in (0..5 * UNIT / 4096).step_by(3) {
            for _ in 0..spare {
                let member = rng.range(0..members as u64) as usize;
                if member != away && bad.insert((member, block)) {
                    damage(&cluster, member, index, block as u64);
                }
            }
        }
        cluster.raise(&but(members, away, Syncing));
        caught_up(&cluster, away);
        cluster.raise(&vec![Serving; members]);
        shards.check_all(&cluster, away, index);
        // Everybody was asked for everything, and healed.
        for (member, block) in &bad {
            healed(&cluster, *member, index, *block as u32);
        }
        for i in 0..members {
            shards.check_all(&cluster, i, index);
        }
        faults += bad.len();
    }
    assert!(faults > 40, "{faults}");
}

/// The bad blocks of a row would be healed one by one only as readers find them, and each new loss be the one too many.
#[test]
fn a_row_with_several_bad_blocks_heals_as_a_whole() {
    let (cluster, index, shards) = sealed_at_rest(|_| {}, 7, 4 * UNIT);
    damage(&cluster, 0, index, 20);
    damage(&cluster, 2, index, 20);
    report(&cluster, 0, index, 20).expect("healed from the other three");
    healed(&cluster, 2, index, 20);
    for i in ALL {
        shards.check_all(&cluster, i, index);
    }
    // One too many, and it is said so.
    for i in [0, 2, 3] {
        at_rest(&cluster, i, index);
        damage(&cluster, i, index, 30);
    }
    let error = report(&cluster, 0, index, 30).expect_err("two are left");
    assert_eq!(error.code(), Some(ErrorCode::Missing), "{error}");
    assert!(error.to_string().contains("2 of 3 shards"), "{error}");
}

/// Checksums of rows that were found damaged while a member was away would stay so until the process starts anew.
#[test]
fn row_checksums_are_mended_when_the_others_are_back() {
    use std::os::unix::fs::FileExt;
    let (mut cluster, index, shards) = sealed(|_| {}, 8, 4 * UNIT);
    // Parity 3 has a wrong checksum of block 7 of data shard 1, and hears nothing from that one.
    cluster.kill(1);
    cluster.restart_with(3, |dir| {
        let path = dir.join(format!("pg/{PG}/{index:010}.chunk"));
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("a file");
        file.write_all_at(&[1, 2, 3, 4], 69_632 + 65_536 + 7 * 4).expect("written");
    });
    cluster.tell(&[Serving; 5]);
    let inner = cluster.nodes[3].data.inner.clone();
    let _either = super::stripes::read_shard(&cluster, 3, index, 0, 4096);
    eventually("an attempt", || !inner.unmended.lock().is_empty());
    assert_eq!(cluster.nodes[3].store().metrics().heals.load(Relaxed), 0);
    cluster.restart(1);
    cluster.raise(&[Serving; 5]);
    eventually("mending", || cluster.nodes[3].store().metrics().heals.load(Relaxed) == 1);
    eventually("the end of it", || inner.unmended.lock().is_empty());
    shards.check_all(&cluster, 3, index);
}

/// One row that nobody can make any more would keep all others of its shard from being mended.
#[test]
fn a_lost_row_does_not_keep_others_from_being_mended() {
    use std::os::unix::fs::FileExt;
    let (mut cluster, index, shards) = sealed_at_rest(|_| {}, 8, 4 * UNIT);
    [0, 1, 4].iter().for_each(|i| damage(&cluster, *i, index, 3));
    cluster.restart_with(3, |dir| {
        let path = dir.join(format!("pg/{PG}/{index:010}.chunk"));
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("a file");
        for block in [3, 7] {
            file.write_all_at(&[1, 2, 3, 4], 69_632 + 65_536 + block * 4).expect("written");
        }
    });
    cluster.raise(&[Serving; 5]);
    let _either = super::stripes::read_shard(&cluster, 3, index, 0, 4096);
    eventually("mending", || cluster.nodes[3].store().metrics().heals.load(Relaxed) > 0);
    shards.check(&cluster, 3, index, 7 * 4096, 8 * 4096);
    eventually("the other one to be tried again", || !cluster.nodes[3].data.inner.unmended.lock().is_empty());
}

/// One block that nobody has would keep a whole range that a device cannot read from being healed.
#[test]
fn a_lost_block_does_not_keep_a_range_from_being_healed() {
    let (mut cluster, index, shards) = sealed_at_rest(|_| {}, 8, 4 * UNIT);
    [1, 2, 3].iter().for_each(|i| damage(&cluster, *i, index, 40));
    let header = cluster.nodes[0].store().chunk(id(index)).expect("here").header.data_offset();
    cluster.restart_with(0, |dir| {
        let path = dir.join(format!("pg/{PG}/{index:010}.chunk"));
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("a file");
        file.set_len(header + 40 * 4096).expect("cut off");
    });
    cluster.raise(&[Serving; 5]);
    super::stripes::read_shard(&cluster, 0, index, 40 * 4096, 8 * 4096).expect_err("it cannot be read");
    let store = cluster.nodes[0].store();
    eventually("the rest to be healed", || (41..48).all(|block| store.verify_block(id(index), block) == Ok(true)));
    assert_eq!(store.verify_block(id(index), 40), Ok(false));
    shards.check(&cluster, 0, index, 41 * 4096, 48 * 4096);
}

/// A bad block that was found while too few members answered would stay bad until somebody reads it again.
#[test]
fn a_bad_block_is_healed_when_the_others_are_back() {
    let (mut cluster, index, shards) = sealed_at_rest(|_| {}, 9, 4 * UNIT);
    damage(&cluster, 2, index, 12);
    [0, 4].iter().for_each(|i| cluster.kill(*i));
    let error = report(&cluster, 2, index, 12).expect_err("two of four others answer");
    assert_eq!(error.code(), Some(ErrorCode::Unavailable), "{error}");
    [0, 4].iter().for_each(|i| cluster.restart(*i));
    cluster.raise(&[Serving; 5]);
    healed(&cluster, 2, index, 12);
    shards.check_all(&cluster, 2, index);
}

/// A row would be lost, and its member catch up for ever, although enough of it is on members that catch up themselves.
#[test]
fn members_that_catch_up_are_the_last_source() {
    let (mut cluster, index, shards) = sealed_at_rest(|_| {}, 11, 4 * UNIT);
    // Two of three serving members are good in each of these rows.
    let bad = [(0, 5), (1, 22), (2, 63)];
    for (member, block) in bad {
        damage(&cluster, member, index, block);
    }
    cluster.restart_with(3, |dir| std::fs::remove_dir_all(dir.join("pg")).expect("removed"));
    // This one has all of it, and is kept from saying that it caught up.
    cluster.raise(&[Serving, Serving, Serving, Syncing, Syncing]);
    caught_up(&cluster, 3);
    let refused = super::stripes::read_shard(&cluster, 4, index, 0, 4096).expect_err("readers ask it only as the last");
    assert_eq!(refused.code(), Some(ErrorCode::NotServing), "{refused}");
    cluster.raise(&[Serving, Serving, Serving, Serving, Syncing]);
    shards.check_all(&cluster, 3, index);
}

/// A member that was away while an index was given again would have its old chunk taken for the new one; or a shard
/// that is whole could not be had because its member waits for others.
#[test]
fn a_member_that_does_not_serve_answers_only_for_the_epoch_of_the_chunk() {
    let mut cluster = Cluster::start_scheme(RS32, |_| {});
    let index = cluster.allocate(0).expect("an index");
    let shards = Shards::new(RS32, 12, UNIT);
    shards.put(&cluster, &ALL, index);
    cluster.raise(&[Serving, Serving, Serving, Serving, Syncing]);
    let ask = |cluster: &Cluster, creation_epoch: u64, catching_up: bool| {
        let chunk = Some(ChunkHeader { epoch: 0, ..cluster.header(4, index) });
        let request = ReadRequest { chunk, length: 4096, creation_epoch, catching_up, ..ReadRequest::default() };
        cluster.call::<ReadResponse>(4, Opcode::Read, &request, Payload::None).map_err(|error| error.code())
    };
    let (answer, payload) = ask(&cluster, 1, true).expect("the same chunk");
    assert_eq!((answer.creation_epoch, payload.map(|p| p.to_vec())), (1, Some(shards.bytes[4][..4096].to_vec())));
    assert_eq!(ask(&cluster, 2, true).expect_err("another chunk"), Some(ErrorCode::ChunkDeleted));
    assert_eq!(ask(&cluster, 0, true).expect_err("it may be another chunk"), Some(ErrorCode::NotServing));
    assert_eq!(ask(&cluster, 1, false).expect_err("not asked as the last resort"), Some(ErrorCode::NotServing));
    cluster.raise(&[Serving, Serving, Offline, Offline, Offline]);
    assert!(ask(&cluster, 1, true).is_ok(), "it waits for others, and its shard is whole");
    assert_eq!(ask(&cluster, 2, true).expect_err("another chunk"), Some(ErrorCode::ChunkDeleted));
    // What copies have there may have been overwritten meanwhile.
    let mut copies = Cluster::start(3);
    let index = copies.allocate(0).expect("an index");
    copies.append(0, &[1, 2], index, 0, &pattern(1, 4096)).expect("appended");
    copies.raise(&[Serving, Serving, Syncing]);
    let chunk = Some(ChunkHeader { epoch: 0, ..copies.header(2, index) });
    let request = ReadRequest { chunk, length: 4096, creation_epoch: 1, catching_up: true, ..ReadRequest::default() };
    let error = copies.call::<ReadResponse>(2, Opcode::Read, &request, Payload::None).expect_err("a copy");
    assert_eq!(error.code(), Some(ErrorCode::NotServing), "{error}");
}

/// One row that is lost for good would keep its member out of the group for ever, and every other row of it a shard
/// short.
#[test]
fn a_row_that_is_lost_keeps_nobody_out() {
    let (mut cluster, index, shards) =
        sealed_at_rest(|config| config.lose_after = std::time::Duration::from_millis(200), 13, 4 * UNIT);
    let (lost, at) = (21, 21 * 4096);
    [0, 2].iter().for_each(|i| damage(&cluster, *i, index, lost));
    cluster.restart_with(4, |dir| std::fs::remove_dir_all(dir.join("pg")).expect("removed"));
    // While a member is away that may have it, it is waited for.
    cluster.kill(3);
    cluster.raise(&[Serving, Serving, Serving, Offline, Syncing]);
    let waits = |cluster: &Cluster| cluster.nodes[4].report().map(|report| report.waits_for).unwrap_or_default();
    eventually("it waits", || waits(&cluster).contains("1 of 3 shards"));
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert!(!cluster.nodes[4].report().is_some_and(|report| report.caught_up), "it did not wait");
    // It comes back, and does not.
    cluster.restart_with(3, |_| {});
    damage(&cluster, 3, index, lost);
    cluster.raise(&[Serving, Serving, Serving, Serving, Syncing]);
    caught_up(&cluster, 4);
    cluster.raise(&[Serving; 5]);
    shards.check(&cluster, 4, index, 0, at);
    shards.check(&cluster, 4, index, at + 4096, 4 * UNIT);
    assert_eq!(cluster.read(4, index, at as u64, 4096).expect("answered"), None, "what is lost looks like data");
    // Enough of the row turns up after all.
    damage(&cluster, 0, index, lost);
    damage(&cluster, 2, index, lost);
    healed(&cluster, 4, index, lost as u32);
    shards.check_all(&cluster, 4, index);
}
