//! Seals at an epoch's change, catching up, healing, freeing, restarts.

use std::cell::RefCell;
use std::sync::Arc;

use cairn_env::AlignedBuf;
use cairn_env::disk::DiskOp;
use cairn_format::chunk_header::ChunkHeader;
use cairn_format::journal_record::CreateRecord;
use cairn_rpc::Payload;
use cairn_sim::{FaultRule, SimDisk};
use cairn_types::MemberState::{Offline, Serving, Syncing};
use cairn_types::{BLOCK_SIZE, ChunkId, ErrorCode, PgId, Scheme, crc32c};
use cairn_wire::Opcode;
use cairn_wire::common::{ChunkRange, Empty};
use cairn_wire::data::{AppendRequest, AppendResponse, FreeItem, FreeRequest, FreeResponse, ReportBadBlockRequest};

use super::super::seal_old::freed_crc;
use super::cluster::{Cluster, PG, eventually, pattern};
use super::rebuilds::damage;
use super::shards::RS32;
use super::sources::at_rest;
use super::stripes::Shards;
use crate::disk::AppendOp;

pub(super) fn id(index: u32) -> ChunkId {
    ChunkId { pg: PgId(PG), index }
}

pub(super) fn free(cluster: &Cluster, i: usize, index: u32, offset: u64, length: u64) -> Vec<u32> {
    let ranges = vec![ChunkRange { offset, length }];
    let item = FreeItem { disk: cluster.nodes[i].disk, pg: PG, index, ranges };
    let request = FreeRequest { items: vec![item] };
    let answer: FreeResponse = cluster.call(i, Opcode::Free, &request, Payload::None).expect("freed").0;
    answer.codes
}

/// Bytes that one survivor has would be missing on the others, and so be lost with it.
#[test]
fn open_chunks_end_at_the_longest_prefix() {
    let mut cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(1, 200_000);
    cluster.append(0, &[1, 2], index, 0, &bytes).expect("appended");
    // The frame after it reached only the second member, and a whole chunk only the third: nobody acknowledged that
    // one.
    let at = 200_000usize.next_multiple_of(4096) as u64;
    let more = pattern(2, 3000);
    cluster.append(1, &[], index, at, &more).expect("as from the primary");
    let second = cluster.allocate(0).expect("an index");
    cluster.append(2, &[], second, 0, &pattern(3, 90_000)).expect("as from the member before");
    cluster.raise(&[Serving, Serving, Serving]);
    for i in 0..3 {
        eventually("the seal", || {
            let info = cluster.nodes[i].store().info(id(index));
            info.is_some_and(|info| info.sealed && info.length == at + 3000 && info.durable == at + 3000)
        });
        assert_eq!(cluster.read(i, index, 0, 200_000).expect("read").expect("intact"), bytes);
        assert_eq!(cluster.read(i, index, at, 3000).expect("read").expect("intact"), more);
    }
    eventually("the seal", || cluster.nodes[2].store().info(id(second)).is_some_and(|info| info.sealed));
    assert!(cluster.nodes[0].store().info(id(second)).is_none(), "it could be one that was freed there");
}

/// What lies behind a block that was freed would stay on one member alone, where others never had it, or forgot it:
/// they were sealed before that block.
#[test]
fn what_follows_a_freed_block_is_copied_too() {
    let mut cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(1, 10_000);
    cluster.append(0, &[1, 2], index, 0, &bytes).expect("appended");
    let more = pattern(2, 90_000);
    // To another node, and to the primary itself.
    cluster.append(1, &[], index, 12_288, &more).expect("as from the primary");
    assert_eq!(free(&cluster, 1, index, 4096, 4096), [0]);
    assert_eq!(free(&cluster, 1, index, 20_480, 8192), [0]);
    cluster.raise(&[Serving, Serving, Serving]);
    for i in 0..3 {
        eventually("the seal", || cluster.nodes[i].store().info(id(index)).is_some_and(|info| info.sealed));
        let info = cluster.nodes[i].store().info(id(index)).expect("here");
        assert_eq!(info.length, 12_288 + 90_000, "member {i}");
        assert_eq!(cluster.read(i, index, 12_288, 8192).expect("read").expect("intact"), more[..8192], "member {i}");
        let behind = cluster.read(i, index, 28_672, 73_000).expect("read").expect("intact");
        assert!(behind == more[16_384..89_384], "member {i}");
        let gone = cluster.read(i, index, 20_480, 8192).expect_err("freed");
        assert_eq!(gone.code(), Some(ErrorCode::ChunkDeleted), "member {i}");
    }
}

/// A member whose disk forgot a part would be sealed without it because of a bad block on another one, although a third
/// one has it good.
#[test]
fn the_longest_prefix_is_copied_from_whoever_has_it_good() {
    let mut cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(1, 10 * 4096);
    cluster.append(0, &[1, 2], index, 0, &bytes[..8192]).expect("appended");
    append_unsynced(&cluster, 0, index, 8192, &bytes[8192..]);
    append_unsynced(&cluster, 1, index, 8192, &bytes[8192..]);
    [0, 1].iter().for_each(|i| at_rest(&cluster, *i, index));
    damage(&cluster, 0, index, 4);
    damage(&cluster, 1, index, 6);
    cluster.raise(&[Serving, Serving, Serving]);
    eventually("the seal", || cluster.nodes[2].store().info(id(index)).is_some_and(|info| info.sealed));
    assert_eq!(cluster.nodes[2].store().info(id(index)).expect("here").length, bytes.len() as u64);
    assert_eq!(cluster.read(2, index, 0, bytes.len()).expect("read").expect("intact"), bytes);
}

/// What stands for a freed block would stay, as a bad one, where the copy ends behind it.
#[test]
fn a_copy_that_ends_early_leaves_no_fillers() {
    let mut cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    cluster.append(0, &[1, 2], index, 0, &pattern(1, 8192)).expect("appended");
    cluster.append(1, &[], index, 8192, &pattern(2, 90_000)).expect("as from the primary");
    cluster.nodes[1].store().checkpoint();
    assert_eq!(free(&cluster, 1, index, 12_288, 8192), [0]);
    damage(&cluster, 1, index, 6);
    cluster.raise(&[Serving, Serving, Serving]);
    for i in [0, 2] {
        eventually("the seal", || cluster.nodes[i].store().info(id(index)).is_some_and(|info| info.sealed));
        let info = cluster.nodes[i].store().info(id(index)).expect("here");
        assert_eq!((info.length, info.punched_blocks), (24_576, 2), "member {i}");
    }
}

/// Appends to a chunk that is there, sealed or not, without a sync: as an attempt does whose epoch ends before it comes
/// to that.
pub(super) fn append_unsynced(cluster: &Cluster, i: usize, index: u32, offset: usize, bytes: &[u8]) {
    let store = cluster.nodes[i].store();
    let ChunkHeader { chunk, scheme, shard, volume, creation_epoch, session, .. } =
        store.chunk(id(index)).expect("here").header;
    let create = CreateRecord { chunk, scheme, shard, volume, creation_epoch, session };
    let mut data = AlignedBuf::unpooled(bytes.len());
    data.extend_from_slice(bytes);
    let (data, crcs) = (data.freeze(), bytes.chunks(BLOCK_SIZE).map(crc32c).collect());
    let (may_create, sync, repair, row_crcs) = (false, false, true, Vec::new());
    let (offset, bytes) = (offset as u64, bytes.len());
    let as_of = None;
    let op = AppendOp { create, may_create, offset, follows: None, bytes, data, crcs, row_crcs, sync, repair, as_of };
    let (sender, appended) = std::sync::mpsc::channel();
    store.append(op, Box::new(move |outcome| sender.send(outcome).expect("awaited"))).expect("begun");
    appended.recv().expect("answered").expect("appended");
}

/// A member would say that it caught up, and lose what it has not synced when power goes: by then the disk that it
/// replaces may have been told to delete it.
#[test]
fn who_caught_up_has_it_durably() {
    const HALF: usize = 1 << 20;
    for scheme in [Scheme::Replicated(3), RS32] {
        let mut cluster = Cluster::start_scheme(scheme, |_| {});
        let index = cluster.allocate(0).expect("an index");
        let members = cluster.nodes.len();
        // All of it on the others, the first half of it here.
        let all = if scheme.is_replicated() {
            let all = pattern(1, 2 * HALF);
            cluster.append(0, &[1, 2], index, 0, &all[..HALF]).expect("appended");
            [0, 2].iter().for_each(|i| append_unsynced(&cluster, *i, index, HALF, &all[HALF..]));
            all
        } else {
            let mut shards = Shards::new(scheme, 1, 2 * HALF);
            for i in 0..members {
                shards.write(&cluster, i, index, 0, if i == 1 { HALF } else { 2 * HALF }).expect("appended");
            }
            shards.bytes.remove(1)
        };
        for i in 0..members {
            cluster.seal(i, &[], index).expect("sealed");
        }
        append_unsynced(&cluster, 1, index, HALF, &all[HALF..]);
        let info = cluster.nodes[1].store().info(id(index)).expect("here");
        assert!(info.sealed && info.durable < info.length, "nothing is left to do: {info:?}");
        let mut states = vec![Serving; members];
        states[1] = Syncing;
        cluster.raise(&states);
        eventually("catching up", || cluster.nodes[1].report().is_some_and(|report| report.caught_up));
        let info = cluster.nodes[1].store().info(id(index)).expect("here");
        assert_eq!((info.length, info.durable), (2 * HALF as u64, 2 * HALF as u64), "{scheme:?}");
    }
}

/// A reader with an old map would get zeros for a block that others have freed and that is not freed here yet.
#[test]
fn what_stands_for_freed_blocks_is_never_read_as_zeros() {
    let cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    cluster.append(0, &[1, 2], index, 0, &pattern(1, 8192)).expect("appended");
    let send = |bytes: &[u8], crc: u32, repair: bool| {
        let request = cluster.append_request(1, &[], index, 8192, bytes);
        let request = AppendRequest { crcs: crc.to_le_bytes().to_vec(), repair, ..request };
        let payload = Payload::One(bytes.to_vec().into());
        cluster.call_as_server::<AppendResponse>(1, Opcode::Append, &request, payload).map(drop)
    };
    let refused = |bytes: &[u8], crc, repair| send(bytes, crc, repair).expect_err("refused").code();
    let damaged = Some(ErrorCode::ChecksumMismatch);
    assert_eq!(refused(&[7; 4096], freed_crc(), true), damaged, "other bytes");
    assert_eq!(refused(&[0; 4096], freed_crc() ^ 1, true), damaged, "another checksum");
    assert_eq!(refused(&[0; 4096], freed_crc(), false), damaged, "of a writer");
    send(&[0; 4096], freed_crc(), true).expect("taken");
    assert_eq!(cluster.read(1, index, 8192, 4096).expect("read"), None, "its checksum does not match");
}

/// A member that was away would come back without what it missed, or with what was deleted meanwhile.
#[test]
fn a_member_catches_up_just_what_it_missed() {
    let mut cluster = Cluster::start(3);
    let write = |cluster: &Cluster, chain: &[usize], seed: u64, bytes: usize| {
        let index = cluster.allocate(0).expect("an index");
        cluster.append(0, chain, index, 0, &pattern(seed, bytes)).expect("appended");
        cluster.sync(0, chain, index).expect("synced");
        index
    };
    let kept = write(&cluster, &[1, 2], 1, 300_000);
    let doomed = write(&cluster, &[1, 2], 2, 100_000);
    let holed = write(&cluster, &[1, 2], 3, 400_000);
    let open = write(&cluster, &[1, 2], 4, 50_000);
    cluster.kill(2);
    cluster.raise(&[Serving, Serving, Offline]);
    for index in [kept, doomed, holed, open] {
        eventually("the seal", || cluster.nodes[0].store().info(id(index)).is_some_and(|chunk| chunk.sealed));
    }
    let missed = write(&cluster, &[1], 5, 700_000);
    cluster.seal(0, &[1], missed).expect("sealed");
    let large = write(&cluster, &[1], 6, 1_000_000);
    cluster.append(0, &[1], large, 1_003_520, &pattern(7, 900_000)).expect("appended");
    cluster.seal(0, &[1], large).expect("sealed");
    for i in 0..2 {
        assert_eq!(free(&cluster, i, doomed, 0, 1 << 20), [0]);
        assert_eq!(free(&cluster, i, holed, 40_960, 81_920), [0]);
        assert_eq!(free(&cluster, i, large, 0, 409_600), [0]);
    }
    cluster.restart(2);
    cluster.raise(&[Serving, Serving, Syncing]);
    let refused = cluster.read(2, kept, 0, 10).expect_err("it does not serve yet");
    assert_eq!(refused.code(), Some(ErrorCode::NotServing));
    // Writing goes on while it catches up, through the chain.
    let during = write(&cluster, &[1, 2], 8, 200_000);
    // What was freed while it was away: the metadata service repeats it until it is done. Of a chunk that is not here
    // yet it is not done, for a copy could be under way.
    let unknown = free(&cluster, 2, 7_000_000, 0, 4096);
    assert_eq!(unknown, [u32::from(ErrorCode::Unavailable.code())]);
    // Others may have more of it; what is here is gone, and does not come back.
    assert_eq!(free(&cluster, 2, doomed, 0, 1 << 20), unknown);
    eventually("catching up", || cluster.nodes[2].report().is_some_and(|report| report.caught_up));
    let copied = cluster.nodes[2].store().metrics().catch_up_bytes.load(std::sync::atomic::Ordering::Relaxed);
    assert!((2_100_000..3_000_000).contains(&copied), "{copied} bytes were copied: too much or too little");
    cluster.raise(&[Serving, Serving, Serving]);
    eventually("its answer", || free(&cluster, 2, doomed, 0, 1 << 20) == [0]);
    for i in 0..3 {
        eventually("the seal", || cluster.nodes[i].store().info(id(during)).is_some_and(|chunk| chunk.sealed));
        for (index, seed, bytes) in [(kept, 1, 300_000), (open, 4, 50_000), (missed, 5, 700_000), (during, 8, 200_000)]
        {
            assert_eq!(cluster.read(i, index, 0, bytes).expect("read").expect("intact"), pattern(seed, bytes), "{i}");
        }
        let tail = cluster.read(i, large, 1_003_520, 900_000).expect("read").expect("intact");
        assert_eq!(tail, pattern(7, 900_000));
        assert_eq!(
            cluster.read(i, large, 409_600, 590_400).expect("read").expect("intact"),
            pattern(6, 1_000_000)[409_600..]
        );
        let gone = cluster.read(i, holed, 40_960, 10).expect_err("freed");
        assert_eq!(gone.code(), Some(ErrorCode::ChunkDeleted));
        assert!(cluster.read(i, doomed, 0, 10).is_err());
        let mut infos: Vec<_> = cluster.nodes[i].store().list(PgId(PG), 0, 100).iter().map(|c| c.info()).collect();
        infos.retain(|info| info.sealed);
        assert_eq!(infos.len(), 6, "{infos:?}");
    }
    let tables = |i: usize| -> Vec<_> {
        cluster.nodes[i]
            .store()
            .list(PgId(PG), 0, 100)
            .iter()
            .map(|c| (c.info().id, c.info().table_crc, c.info().punched_blocks))
            .collect()
    };
    assert_eq!(tables(2), tables(0));
}

/// A flipped bit would be served for ever, or healed with something else.
#[test]
fn a_bad_block_is_healed_from_another_member() {
    let cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(1, 200_000);
    cluster.append(0, &[1, 2], index, 0, &bytes).expect("appended");
    cluster.seal(0, &[1, 2], index).expect("sealed");
    {
        use std::os::unix::fs::FileExt;
        let file =
            std::fs::OpenOptions::new().read(true).write(true).open(cluster.nodes[1].file(index)).expect("a file");
        let mut byte = [0];
        let at = 69_632 + 5 * 4096 + 99;
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ 0x10], at).expect("written");
        file.sync_all().expect("synced");
    }
    assert_eq!(cluster.read(1, index, 0, 200_000).expect("read"), None, "the reader notices");
    assert!(cluster.read(0, index, 0, 200_000).expect("read").is_some());
    let request = ReportBadBlockRequest { chunk: Some(cluster.header(1, index)), block: 5 };
    let _done: (Empty, _) = cluster.call(1, Opcode::ReportBadBlock, &request, Payload::None).expect("healed");
    assert_eq!(cluster.read(1, index, 0, 200_000).expect("read").expect("intact"), bytes);
    let metrics = cluster.nodes[1].store();
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!((count(&metrics.metrics().crc_errors), count(&metrics.metrics().heals)), (1, 1));
    // A report about a good block changes nothing.
    let request = ReportBadBlockRequest { chunk: Some(cluster.header(0, index)), block: 5 };
    let _done: (Empty, _) = cluster.call(0, Opcode::ReportBadBlock, &request, Payload::None).expect("looked at");
    assert_eq!(count(&cluster.nodes[0].store().metrics().heals), 0);
}

/// Deleted files would keep their space.
#[test]
fn freed_space_comes_back() {
    let cluster = Cluster::start(1);
    let index = cluster.allocate(0).expect("an index");
    for piece in 0..4u64 {
        cluster.append(0, &[], index, piece << 20, &pattern(piece, 1 << 20)).expect("appended");
    }
    cluster.seal(0, &[], index).expect("sealed");
    let used = || {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(cluster.nodes[0].file(index)).map_or(0, |about| about.blocks() * 512)
    };
    assert!(used() >= 4 << 20);
    assert_eq!(free(&cluster, 0, index, 1 << 20, 2 << 20), [0]);
    eventually("the hole", || used() < 3 << 20);
    assert_eq!(cluster.read(0, index, 0, 1 << 20).expect("read").expect("intact"), pattern(0, 1 << 20));
    let gone = cluster.read(0, index, 2 << 20, 10).expect_err("freed");
    assert_eq!(gone.code(), Some(ErrorCode::ChunkDeleted));
    assert_eq!(free(&cluster, 0, index, 0, 1 << 20), [0]);
    assert_eq!(free(&cluster, 0, index, 3 << 20, 1 << 20), [0]);
    eventually("the file's end", || !cluster.nodes[0].file(index).exists());
    assert_eq!(free(&cluster, 0, index, 0, 4 << 20), [0], "again");
    // A late repeat of the first append does not bring it back.
    let late = cluster.append(0, &[], index, 0, &pattern(0, 100)).expect_err("it is gone");
    assert!(matches!(late.code(), Some(ErrorCode::OffsetMismatch | ErrorCode::ChunkDeleted)), "{late}");
    assert_eq!(cluster.read(0, index, 0, 10).expect_err("gone").code(), Some(ErrorCode::ChunkDeleted));
}

/// A restart would lose what was acknowledged, or answer before it knows its epoch.
#[test]
fn everything_is_there_after_a_restart_of_all() {
    let mut cluster = Cluster::start(2);
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(1, 150_000);
    cluster.append(0, &[1], index, 0, &bytes).expect("appended");
    cluster.append(0, &[1], index, 151_552, &pattern(2, 700)).expect("appended");
    cluster.sync(0, &[1], index).expect("synced");
    cluster.restart(0);
    cluster.restart(1);
    cluster.raise(&[Serving, Serving]);
    for i in 0..2 {
        eventually("the seal", || cluster.nodes[i].store().info(id(index)).is_some_and(|chunk| chunk.sealed));
        assert_eq!(cluster.read(i, index, 0, 150_000).expect("read").expect("intact"), bytes);
        assert_eq!(cluster.read(i, index, 151_552, 700).expect("read").expect("intact"), pattern(2, 700));
    }
}

/// A primary that lost a chunk to damage would have the last good copies deleted when the others catch up with it.
#[test]
fn a_primary_that_lost_a_chunk_deletes_nobodys_copy() {
    let mut cluster = Cluster::start(2);
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(1, 100_000);
    cluster.append(0, &[1], index, 0, &bytes).expect("appended");
    cluster.seal(0, &[1], index).expect("sealed");
    cluster.restart(0);
    cluster.kill(0);
    let broken = cluster.nodes[0].file(index);
    std::fs::write(&broken, vec![0u8; 200_000]).expect("damaged");
    cluster.restart(0);
    cluster.restart(1);
    cluster.raise(&[Serving, Syncing]);
    eventually("catching up", || cluster.nodes[1].report().is_some_and(|report| report.caught_up));
    cluster.raise(&[Serving, Serving]);
    assert!(cluster.read(0, index, 0, 10).is_err(), "it was set aside");
    assert_eq!(cluster.read(1, index, 0, 100_000).expect("read").expect("intact"), bytes);
}

/// The space of a deleted volume would stay in use for ever; of any other group nothing may go.
#[test]
fn the_chunks_of_a_retired_group_go() {
    let mut cluster = Cluster::start(2);
    let sealed = cluster.allocate(0).expect("an index");
    cluster.append(0, &[1], sealed, 0, &pattern(1, 300_000)).expect("appended");
    cluster.seal(0, &[1], sealed).expect("sealed");
    let open = cluster.allocate(0).expect("an index");
    cluster.append(0, &[1], open, 0, &pattern(2, 5000)).expect("appended");
    let left = |cluster: &Cluster| -> Vec<usize> {
        (0..2).map(|i| cluster.nodes[i].store().list(PgId(PG), 0, 100).len()).collect()
    };
    assert_eq!(cluster.nodes.iter().filter(|node| node.report().is_some()).count(), 2);
    assert_eq!(left(&cluster), [2, 2], "nothing is retired yet");
    cluster.retire();
    eventually("the chunks are gone", || {
        let reported = cluster.nodes.iter().filter(|node| node.report().is_some()).count();
        reported <= 2 && left(&cluster) == [0, 0]
    });
    for i in 0..2 {
        eventually("the files are gone", || {
            !cluster.nodes[i].file(sealed).exists() && !cluster.nodes[i].file(open).exists()
        });
    }
}

thread_local! {
    /// That of the node that this test started.
    static DISK: RefCell<Option<SimDisk>> = const { RefCell::new(None) };
}

/// One chunk whose table the device cannot read would keep all others of a deleted volume, and the disk among those
/// that have not deleted yet what they had. And a free of a part of it would count as done.
#[test]
fn a_chunk_that_cannot_be_read_keeps_no_other_one_of_a_retired_group() {
    let mut cluster = Cluster::start_tuned(1, |config| {
        let disk = SimDisk::new(1);
        config.disks = vec![Arc::new(disk.clone())];
        config.disk.tables_max = 1;
        DISK.set(Some(disk));
    });
    let disk = DISK.take().expect("started");
    let store = cluster.nodes[0].store();
    let chunks: Vec<u32> = (0..3).map(|_| cluster.allocate(0).expect("an index")).collect();
    for (seed, index) in chunks.iter().enumerate() {
        cluster.append(0, &[], *index, 0, &pattern(seed as u64, 300_000)).expect("appended");
        cluster.seal(0, &[], *index).expect("sealed");
        store.checkpoint();
    }
    let path = format!("pg/{PG}/{:010}.chunk", chunks[0]);
    let rule = disk.inject(FaultRule::io(&[DiskOp::Read]).on_path(&path).on_range(4096..4097));
    assert_eq!(free(&cluster, 0, chunks[0], 0, 4096), [u32::from(ErrorCode::Unavailable.code())], "it is there");
    assert!(disk.hits(rule) > 0, "no fault fired");
    cluster.retire();
    eventually("the chunks are gone", || {
        cluster.nodes[0].report();
        store.list(PgId(PG), 0, 100).is_empty()
    });
    assert!(store.failure().is_none());
}

/// Why metadata has to ask again under another epoch: what was freed here comes back from a member that has not freed
/// it.
#[test]
fn what_was_freed_comes_back_with_a_new_epoch_until_all_freed_it() {
    let mut cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    cluster.append(0, &[1, 2], index, 0, &pattern(1, 100_000)).expect("appended");
    cluster.seal(0, &[1, 2], index).expect("sealed");
    for i in [0, 2] {
        assert_eq!(free(&cluster, i, index, 0, 1 << 26), [0]);
        eventually("it to go", || cluster.nodes[i].store().info(id(index)).is_none());
    }
    cluster.restart(2);
    cluster.raise(&[Serving, Serving, Syncing]);
    eventually("catching up", || cluster.nodes[2].report().is_some_and(|report| report.caught_up));
    assert!(cluster.nodes[2].store().info(id(index)).is_some(), "the second member has it");
    for i in [1, 2] {
        assert_eq!(free(&cluster, i, index, 0, 1 << 26), [0]);
    }
    cluster.raise(&[Serving, Serving, Serving]);
    for i in 0..3 {
        eventually("it to go", || cluster.nodes[i].store().info(id(index)).is_none());
    }
}
