//! Rebuilding shards: members that were away, several at once, sources that fail, and what cannot be rebuilt.

use std::sync::atomic::Ordering::Relaxed;

use cairn_node_agent::Contributor;
use cairn_rpc::Payload;
use cairn_types::MemberState::{self, Offline, Serving, Syncing};
use cairn_types::{ErrorCode, PgId, Scheme};
use cairn_wire::Opcode;
use cairn_wire::common::{ChunkRange, Empty};
use cairn_wire::data::{FreeItem, FreeRequest, FreeResponse, ReportBadBlockRequest};
use cairn_wire::manager::{ClusterMap, Node};

use super::cluster::{Cluster, PG, eventually};
use super::repairs::id;
use super::shards::{ALL, RS32, UNIT};
use super::stripes::{Shards, read_shard};

/// States of a group: all serve but these.
fn but(members: usize, others: &[(usize, MemberState)]) -> Vec<MemberState> {
    let mut states = vec![Serving; members];
    others.iter().for_each(|(i, state)| states[*i] = *state);
    states
}

/// A chunk with content of its seed on these members, sealed on them.
fn put(cluster: &Cluster, primary: usize, members: &[usize], seed: u64, length: usize) -> (u32, Shards) {
    let index = cluster.allocate(primary).expect("an index");
    let shards = Shards::new(cluster.scheme, seed, length);
    shards.put(cluster, members, index);
    (index, shards)
}

fn caught_up(cluster: &Cluster, i: usize) {
    eventually("catching up", || cluster.nodes[i].report().is_some_and(|report| report.caught_up));
}

fn free(cluster: &Cluster, i: usize, index: u32, from: usize, length: usize) -> u32 {
    let ranges = vec![ChunkRange { offset: from as u64, length: length as u64 }];
    let item = FreeItem { disk: cluster.nodes[i].disk, pg: PG, index, ranges };
    let answer = cluster.call(i, Opcode::Free, &FreeRequest { items: vec![item] }, Payload::None);
    let answer: (FreeResponse, _) = answer.expect("answered");
    answer.0.codes[0]
}

/// Frees as the metadata service does: again and again until it is done.
pub(super) fn free_all(cluster: &Cluster, i: usize, index: u32, from: usize, length: usize) {
    eventually("the free", || free(cluster, i, index, from, length) == 0);
}

/// Flips a bit of a block at rest.
pub(super) fn damage(cluster: &Cluster, i: usize, index: u32, block: u64) {
    damage_at(cluster, i, index, block, 77);
}

pub(super) fn damage_at(cluster: &Cluster, i: usize, index: u32, block: u64, at: u64) {
    use std::os::unix::fs::FileExt;
    let data = cluster.nodes[i].store().chunk(id(index)).expect("there").header.data_offset();
    let path = cluster.nodes[i].file(index);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("a file");
    let (mut byte, at) = ([0], data + block * 4096 + at);
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 0x40], at).expect("written");
    file.sync_all().expect("synced");
}

pub(super) fn report(cluster: &Cluster, i: usize, index: u32, block: u64) -> Result<(), cairn_rpc::CallError> {
    let request = ReportBadBlockRequest { chunk: Some(cluster.header(i, index)), block };
    cluster.call::<Empty>(i, Opcode::ReportBadBlock, &request, Payload::None).map(|_| ())
}

/// A member that was away would come back without its shards of what was written meanwhile, or with made-up ones.
#[test]
fn a_member_that_was_away_rebuilds_its_shards() {
    for away in [1, 4] {
        let mut cluster = Cluster::start_scheme(RS32, |_| {});
        let (before, at_first) = put(&cluster, 0, &ALL, 1, 2 * UNIT);
        cluster.kill(away);
        cluster.raise(&but(5, &[(away, Offline)]));
        let here: Vec<usize> = ALL.into_iter().filter(|i| *i != away).collect();
        let (meanwhile, missed) = put(&cluster, 0, &here, 2, 20 * UNIT);
        // A writer died in the middle: of four shards the third longest counts.
        let ragged = cluster.allocate(0).expect("an index");
        let torn = Shards::new(RS32, 3, 4 * UNIT);
        for (i, units) in here.iter().zip([4, 3, 2, 1]) {
            torn.write(&cluster, *i, ragged, 0, units * UNIT).expect("appended");
        }
        cluster.restart(away);
        cluster.raise(&but(5, &[(away, Syncing)]));
        let (during, written) = put(&cluster, 0, &ALL, 4, UNIT);
        caught_up(&cluster, away);
        cluster.raise(&but(5, &[]));
        at_first.check_all(&cluster, away, before);
        missed.check_all(&cluster, away, meanwhile);
        written.check_all(&cluster, away, during);
        torn.check(&cluster, away, ragged, 0, 2 * UNIT);
        let beyond = read_shard(&cluster, away, ragged, 2 * UNIT, 4096).expect_err("two others have no more");
        assert_eq!(beyond.code(), Some(ErrorCode::Missing));
        let store = cluster.nodes[away].store();
        let chunk = store.chunk(id(meanwhile)).expect("there");
        assert_eq!((usize::from(chunk.shard()), chunk.header.scheme), (away, RS32));
        assert_eq!(store.verify_chunk(&chunk), Ok(vec![]), "at rest");
        assert_eq!(store.metrics().rebuilt_bytes.load(Relaxed), 22 * UNIT as u64, "just what was missed");
    }
}

/// Two members that were away at the same time would wait for each other, or take each other for sources.
#[test]
fn two_members_rebuild_at_once() {
    let scheme = Scheme::Erasure { k: 6, m: 3 };
    let mut cluster = Cluster::start_scheme(scheme, |_| {});
    cluster.kill(2);
    cluster.kill(7);
    cluster.raise(&but(9, &[(2, Offline), (7, Offline)]));
    let (index, shards) = put(&cluster, 0, &[0, 1, 3, 4, 5, 6, 8], 1, 12 * UNIT);
    cluster.restart(2);
    cluster.restart(7);
    // One of the seven dies and its group has not been told yet: the others do.
    cluster.kill(0);
    cluster.tell(&but(9, &[(2, Syncing), (7, Syncing)]));
    for i in [2, 7] {
        caught_up(&cluster, i);
    }
    cluster.tell(&but(9, &[]));
    for i in [2, 7] {
        eventually("it serves", || read_shard(&cluster, i, index, 0, 4096).is_ok());
        shards.check_all(&cluster, i, index);
    }
}

/// A source that hangs would hold a rebuild for as long as it likes.
#[test]
fn a_source_that_hangs_is_left_out() {
    let mut cluster = Cluster::start_scheme(RS32, |config| {
        config.peer_deadline = std::time::Duration::from_millis(1500);
        config.rebuild_hedge = std::time::Duration::from_millis(100);
    });
    let (index, shards) = put(&cluster, 0, &ALL, 1, 24 * UNIT);
    cluster.restart_with(4, |dir| std::fs::remove_dir_all(dir.join("pg")).expect("removed"));
    cluster.raise(&but(5, &[(4, Syncing)]));
    // Data shard 1 accepts and never says a word.
    let hole = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = hole.local_addr().expect("an address").to_string();
    let map = ClusterMap { nodes: vec![Node { id: 17, address, ..Node::default() }], ..ClusterMap::default() };
    cluster.nodes[4].data.map_changed(&map, 1);
    caught_up(&cluster, 4);
    cluster.raise(&but(5, &[]));
    shards.check_all(&cluster, 4, index);
}

/// With exactly k shards left everything has to come back; with one less nothing may be made up.
#[test]
fn k_sources_are_enough_and_fewer_are_an_error() {
    let mut cluster = Cluster::start_scheme(RS32, |_| {});
    let (index, shards) = put(&cluster, 0, &ALL, 1, 8 * UNIT);
    for i in [0, 3] {
        cluster.restart_with(i, |dir| std::fs::remove_dir_all(dir.join("pg")).expect("removed"));
    }
    cluster.raise(&but(5, &[(0, Syncing), (3, Syncing)]));
    for i in [0, 3] {
        caught_up(&cluster, i);
    }
    cluster.raise(&but(5, &[]));
    for i in ALL {
        shards.check_all(&cluster, i, index);
    }
    // Now two are away and one of the other three has a bad block: that one, and nothing else, cannot be had.
    for i in [1, 4] {
        cluster.restart_with(i, |dir| std::fs::remove_dir_all(dir.join("pg")).expect("removed"));
    }
    cluster.raise(&but(5, &[(1, Offline), (4, Offline)]));
    damage(&cluster, 2, index, 40);
    let error = report(&cluster, 2, index, 40).expect_err("two others serve");
    assert!(matches!(error.code(), Some(ErrorCode::Missing | ErrorCode::Unavailable)), "{error}");
    cluster.raise(&but(5, &[(1, Syncing), (4, Syncing)]));
    std::thread::sleep(std::time::Duration::from_millis(600));
    for i in [1, 4] {
        assert!(!cluster.nodes[i].report().is_some_and(|report| report.caught_up), "it cannot be complete");
        let store = cluster.nodes[i].store();
        assert!(store.info(id(index)).is_none_or(|info| info.length <= 40 * 4096), "something was made up");
    }
}

/// A flipped bit would be served for ever, or healed with something else, in data and in parity.
#[test]
fn bad_blocks_are_rebuilt() {
    let cluster = Cluster::start_scheme(RS32, |_| {});
    let (index, shards) = put(&cluster, 0, &ALL, 1, 4 * UNIT);
    for i in ALL {
        cluster.seal(i, &[], index).expect("sealed");
    }
    let mut faults = 0;
    for i in ALL {
        for block in [0, 9, 63] {
            damage(&cluster, i, index, block);
            let store = cluster.nodes[i].store();
            assert_eq!(store.verify_block(id(index), block as u32), Ok(false));
            report(&cluster, i, index, block).expect("healed");
            faults += store.metrics().crc_errors.load(Relaxed);
            shards.check_all(&cluster, i, index);
        }
        assert_eq!(cluster.nodes[i].store().metrics().heals.load(Relaxed), 3);
        // A report about a good block changes nothing.
        report(&cluster, i, index, 5).expect("looked at");
        assert_eq!(cluster.nodes[i].store().metrics().heals.load(Relaxed), 3);
    }
    assert!(faults >= 15, "{faults}");
}

/// A source whose bytes or checksums of rows are not those of the row would be believed.
#[test]
fn sources_that_do_not_belong_together_are_found_out() {
    use std::os::unix::fs::FileExt;
    let mut cluster = Cluster::start_scheme(RS32, |config| config.idle_seal = std::time::Duration::from_secs(5));
    let (index, shards) = put(&cluster, 0, &ALL, 1, 4 * UNIT);
    for i in ALL {
        cluster.seal(i, &[], index).expect("sealed");
    }
    // Parity 3 comes back with a wrong checksum of block 7 of data shard 1; it notices at its start.
    cluster.restart_with(3, |dir| {
        let path = dir.join(format!("pg/{PG}/{index:010}.chunk"));
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("a file");
        file.write_all_at(&[1, 2, 3, 4], 69_632 + 65_536 + 7 * 4).expect("written");
    });
    cluster.raise(&but(5, &[]));
    damage(&cluster, 1, index, 7);
    report(&cluster, 1, index, 7).expect("healed with the other parity");
    shards.check_all(&cluster, 1, index);
    assert_eq!(cluster.nodes[1].store().metrics().heals.load(Relaxed), 1);
    // And a parity block whose data blocks are good is made of those.
    damage(&cluster, 4, index, 7);
    report(&cluster, 4, index, 7).expect("healed");
    shards.check_all(&cluster, 4, index);
    // The wrong checksum is mended, with the block that it belongs to.
    eventually("mending", || {
        let store = cluster.nodes[3].store();
        store.metrics().heals.load(Relaxed) == 1
            && store.tables(id(index)).is_ok_and(|tables| {
                let whole: Vec<Vec<u32>> =
                    cairn_format::crc_table::rows_to_tables(&shards.row_crcs(0, 4 * UNIT), tables.rows.len());
                tables.rows == whole
            })
    });
    shards.check_all(&cluster, 3, index);
}

/// Freed rows would come back to life on a member that was away, or keep their space; deleted chunks too.
#[test]
fn freed_rows_stay_freed() {
    let mut cluster = Cluster::start_scheme(RS32, |_| {});
    let (holed, shards) = put(&cluster, 0, &ALL, 1, 8 * UNIT);
    let (doomed, _) = put(&cluster, 0, &ALL, 2, UNIT);
    cluster.kill(3);
    cluster.raise(&but(5, &[(3, Offline)]));
    let (meanwhile, missed) = put(&cluster, 0, &[0, 1, 2, 4], 3, 8 * UNIT);
    for i in [0, 1, 2, 4] {
        assert_eq!(cluster.seal(i, &[], meanwhile).expect("sealed").length, 8 * UNIT as u64);
        eventually("the seal", || cluster.nodes[i].store().info(id(doomed)).is_none_or(|info| info.sealed));
        assert_eq!(free(&cluster, i, holed, UNIT, 2 * UNIT), 0);
        assert_eq!(free(&cluster, i, doomed, 0, UNIT), 0);
        // One of them hears of this later than the others.
        if i != 2 {
            assert_eq!(free(&cluster, i, meanwhile, 5 * UNIT, UNIT), 0);
        }
    }
    cluster.restart(3);
    cluster.raise(&but(5, &[(3, Syncing)]));
    // What it has of a shard is freed at once; for what it does not have yet the free has to come again.
    free_all(&cluster, 3, holed, UNIT, 2 * UNIT);
    assert_eq!(free(&cluster, 3, holed, 7 * UNIT, 9 * UNIT), u32::from(ErrorCode::Unavailable.code()));
    // It was told of the deletion too, and that of a chunk that it lacks it was told too early.
    free_all(&cluster, 3, doomed, 0, UNIT);
    assert_eq!(free(&cluster, 3, 7_000_000, 0, UNIT), u32::from(ErrorCode::Unavailable.code()));
    caught_up(&cluster, 3);
    free_all(&cluster, 2, meanwhile, 5 * UNIT, UNIT);
    cluster.raise(&but(5, &[]));
    shards.check(&cluster, 3, holed, 0, UNIT);
    shards.check(&cluster, 3, holed, 3 * UNIT, 7 * UNIT);
    missed.check(&cluster, 3, meanwhile, 0, 5 * UNIT);
    missed.check(&cluster, 3, meanwhile, 6 * UNIT, 8 * UNIT);
    for (index, at) in [(holed, UNIT), (holed, 2 * UNIT), (meanwhile, 5 * UNIT)] {
        let gone = read_shard(&cluster, 3, index, at, UNIT).expect_err("freed");
        assert_eq!(gone.code(), Some(ErrorCode::ChunkDeleted));
    }
    let counts: Vec<u32> =
        ALL.map(|i| cluster.nodes[i].store().info(id(meanwhile)).expect("there").punched_blocks).into();
    assert_eq!(counts, [16; 5]);
    eventually("the file's end", || !cluster.nodes[3].file(doomed).exists());
    eventually("two chunks", || cluster.nodes[3].store().list(PgId(PG), 0, 100).len() == 2);
    // A bad block that the others have freed is freed.
    damage(&cluster, 0, meanwhile, 3);
    for i in [1, 2, 3, 4] {
        free_all(&cluster, i, meanwhile, 0, UNIT);
    }
    report(&cluster, 0, meanwhile, 3).expect("looked at");
    let gone = read_shard(&cluster, 0, meanwhile, 3 * 4096, 4096).expect_err("freed");
    assert_eq!(gone.code(), Some(ErrorCode::ChunkDeleted));
}
