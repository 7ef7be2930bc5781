//! Tests of moves against a cluster in memory.
use super::*;
use crate::attributes::Attributes;
use crate::changes::{SetAttributes, SetTime};
use crate::fake::FakeCluster;
use crate::file_writer::WriteOptions;
use cairn_types::Scheme;

async fn start() -> (FakeCluster, Volume, Volume) {
    let groups = [Scheme::Replicated(3), Scheme::Replicated(3), Scheme::Erasure { k: 3, m: 2 }];
    let cluster = FakeCluster::start(5, &groups);
    let writer = cluster.connect().await.volume("default").await.expect("the volume");
    let mover = cluster.connect().await.volume("default").await.expect("the volume");
    (cluster, writer, mover)
}

async fn make(volume: &Volume, path: &[u8], layout: &str) {
    let layout: Layout = layout.parse().expect("a layout");
    let options = WriteOptions { mode: 0o644, mtime_ns: 77, layout, exclusive: false, owner: None };
    volume.write(path, options).await.expect("begun").finish().await.expect("made");
}

async fn packs_of(volume: &Volume, inode: u64) -> (Vec<u64>, BTreeSet<(u32, u32)>) {
    let extents = volume.all_extents(inode).await.expect("extents");
    (extents.iter().map(|e| e.file_offset).collect(), extents.iter().map(|e| (e.chunk.pg.0, e.chunk.index)).collect())
}

async fn contents(volume: &Volume, path: &[u8]) -> Vec<u8> {
    let mut reader = volume.read(path, 0, u64::MAX).await.expect("a reader");
    let mut all = Vec::new();
    while let Some(piece) = reader.next().await.expect("read") {
        all.extend_from_slice(&piece.data);
    }
    all
}

fn without_version(attributes: Attributes) -> Attributes {
    Attributes { data_version: 0, generation: 0, ..attributes }
}

/// A file would change, or lose its times or its capability, when its bytes are moved; or stay where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_of_all_kinds_are_moved_as_they_are() {
    let (cluster, volume, mover) = start().await;
    for (name, layout) in [(b"/r", "r3"), (b"/e", "rs-3-2/4k")] {
        make(&volume, name, layout).await;
        let mut handle = volume.open(name).await.expect("opened");
        let mut model = vec![0; 3_000_000];
        // Pieces that begin and end within blocks, holes, and one that is longer than a segment.
        for (number, (at, bytes)) in
            [(0, 5000), (5000, 4000), (20_001, 70_000), (900_123, 2_000_000), (2_999_000, 1000)].into_iter().enumerate()
        {
            let data: Vec<u8> = (0..bytes).map(|i| (i * 31 + number * 7) as u8 | 1).collect();
            model[at..at + bytes].copy_from_slice(&data);
            handle.write_at(at as u64, &data).await.expect("written");
            handle.sync().await.expect("synced");
        }
        handle.close().await.expect("closed");
        let before = volume.stat(name, true).await.expect("there");
        let times = SetAttributes { mtime: Some(SetTime::At(12_345)), ..Default::default() };
        let before = volume.setattr(before.inode, name, times).await.map_or(before, |now| now);
        let (offsets, packs) = packs_of(&volume, before.inode).await;
        let moved = mover.move_out(before.inode, &offsets, &packs).await.expect("moved").expect("nobody is in the way");
        // Rows stay where they are.
        assert!(moved > if layout == "r3" { 1_000_000 } else { 10_000 }, "{moved}");
        let (_, after) = packs_of(&volume, before.inode).await;
        assert_eq!(packs.intersection(&after).count(), usize::from(layout != "r3"), "{packs:?} {after:?}");
        let now = volume.stat(name, true).await.expect("there");
        assert_eq!(without_version(now), without_version(before), "only the version changes");
        assert!(now.data_version > before.data_version);
        assert!(contents(&volume, name).await == model);
        assert_eq!(mover.move_out(before.inode, &offsets, &packs).await.expect("asked"), None, "nothing is left there");
    }
    cluster.check_namespace();
}

/// A move that wins against a write, a removal or an overwrite in place would lose it, or bring bytes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moves_lose_against_everybody() {
    let (cluster, volume, mover) = start().await;
    make(&volume, b"/f", "r3").await;
    let mut handle = volume.open(b"/f").await.expect("opened");
    let mut model = vec![1u8; 400_000];
    handle.write_at(0, &model).await.expect("written");
    handle.sync().await.expect("synced");
    let inode = handle.inode();
    for round in 0..40u8 {
        let (offsets, packs) = packs_of(&volume, inode).await;
        let write = async {
            for part in 0..3usize {
                let at = (usize::from(round) * 9973 + part * 50_000) % 390_000;
                model[at..at + 5000].fill(round);
                handle.write_at(at as u64, &vec![round; 5000]).await.expect("written");
                handle.sync().await.expect("synced");
            }
        };
        let (moved, ()) = tokio::join!(mover.move_out(inode, &offsets, &packs), write);
        moved.expect("moved, or left as it is");
        assert!(contents(&volume, b"/f").await == model, "round {round}");
    }
    handle.close().await.expect("closed");
    let (offsets, packs) = packs_of(&volume, inode).await;
    volume.unlink(b"/f").await.expect("removed");
    assert_eq!(mover.move_out(inode, &offsets, &packs).await.expect("gone"), None);
    cluster.check_namespace();
}

/// A plain read of a file that nobody changed would fail because its bytes were moved at that moment; or one that was
/// changed be read half as it was and half as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_follows_what_is_moved() {
    let (cluster, _, _) = start().await;
    // What is missing everywhere is looked for as long as this.
    let client = cluster.connect_for(std::time::Duration::from_secs(3)).await;
    let volume = client.volume("default").await.expect("the volume");
    let model: Vec<u8> = (0..14 << 20).map(|i: u32| (i / 1000 * 31 + i % 7) as u8).collect();
    let options = WriteOptions {
        mode: 0o644,
        mtime_ns: 77,
        layout: "r3".parse().expect("a layout"),
        exclusive: false,
        owner: None,
    };
    let mut writer = volume.write(b"/f", options).await.expect("begun");
    for part in model.chunks(1 << 20) {
        writer.push(cairn_env::buf::SharedBuf::from_owner(part.to_vec())).await.expect("pushed");
    }
    writer.finish().await.expect("written");
    let inode = volume.stat(b"/f", true).await.expect("there").inode;
    for pieces in [0, 1, 3] {
        let mut reader = volume.read(b"/f", 0, u64::MAX).await.expect("a reader");
        let mut got = Vec::new();
        for _ in 0..pieces {
            got.extend_from_slice(&reader.next().await.expect("read").expect("not the end").data);
        }
        let (offsets, packs) = packs_of(&volume, inode).await;
        // Each writes to chunks of its own.
        let mover = cluster.connect().await.volume("default").await.expect("the volume");
        mover.move_out(inode, &offsets, &packs).await.expect("moved").expect("nobody is in the way");
        packs.iter().for_each(|(pg, index)| cluster.forget_chunk(*pg, *index));
        while let Some(piece) = reader.next().await.expect("read where it is now") {
            assert_eq!(piece.offset, got.len() as u64);
            got.extend_from_slice(&piece.data);
        }
        assert!(got == model, "moved after {pieces} pieces");
    }
    let mut reader = volume.read(b"/f", 0, u64::MAX).await.expect("a reader");
    reader.next().await.expect("read");
    let (_, packs) = packs_of(&volume, inode).await;
    let mut handle = volume.open(b"/f").await.expect("opened");
    handle.write_at(9 << 20, &[1; 5000]).await.expect("written");
    handle.sync().await.expect("synced");
    packs.iter().for_each(|(pg, index)| cluster.forget_chunk(*pg, *index));
    let error = loop {
        match reader.next().await {
            Ok(piece) => assert!(piece.is_some(), "it was read to its end"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, crate::error::ClientError::Changed { .. }), "{error}");
}
