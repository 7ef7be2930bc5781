//! Copied ranges share their bytes until one of the files is written.
use crate::*;
use cairn_env::{FastRng, Rng};
use cairn_vfs::SetAttr;

const BLOCK: usize = 4096;

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i / 512) as u8 ^ seed).collect()
}

async fn shared_bytes(vfs: &Vfs, ino: u64) -> u64 {
    let extents = vfs.volume().all_extents(ino).await.expect("extents");
    extents.iter().filter(|e| e.shared).map(|e| e.length).sum()
}

/// A copy would cost what writing the bytes again costs, or a later write to one of the files would change the other.
async fn a_copy_shares(layout: u64) {
    let cluster = cluster();
    let vfs = still_mount(&cluster).await;
    let mut open_both = Vec::new();
    for name in ["a", "b"] {
        let (ino, handle) = create(&vfs, name, RDWR).await;
        if layout != 0 {
            let request = cairn_client::changes::SetAttributes { layout: Some(layout), ..Default::default() };
            vfs.volume().setattr(ino, b"f", request).await.expect("the layout of an empty file");
        }
        close(&vfs, handle).await;
        open_both.push((ino, open(&vfs, ino, RDWR).await));
    }
    let [(a, source), (b, target)] = open_both[..] else { panic!("two files") };
    let mut first = pattern(1, 3_000_000);
    write(&vfs, source, 0, &first).await;
    vfs.fsync(source, false).await.expect("synced");
    // Not synced: a copy has it as well.
    write(&vfs, source, 100_000, &[7; 5000]).await;
    first[100_000..105_000].fill(7);
    vfs.fsync(source, false).await.expect("synced");
    cluster.take_calls();
    assert_eq!(vfs.copy_file_range((source, 0), (target, 0), u64::MAX).await.expect("copied"), 3_000_000);
    let calls = cluster.take_calls();
    let data: Vec<_> = calls.keys().filter(|op| ["Append", "Read", "Overwrite"].contains(op)).collect();
    assert!(data.is_empty() && calls.get("CloneRange") == Some(&1), "{calls:?}");
    let mut second = first.clone();
    assert_eq!((shared_bytes(&vfs, a).await, shared_bytes(&vfs, b).await), (3_000_000, 3_000_000));
    assert!(read_all(&vfs, target).await == second && read_all(&vfs, source).await == first);
    let rng = FastRng::seeded(3);
    let overwrites = cluster.overwrites();
    for round in 0..6u8 {
        let (handle, model) = if round % 2 == 0 { (source, &mut first) } else { (target, &mut second) };
        for _ in 0..20 {
            let at = rng.below(700) as usize * BLOCK;
            write(&vfs, handle, at as u64, &[round; BLOCK]).await;
            model[at..at + BLOCK].fill(round);
        }
        vfs.fsync(handle, false).await.expect("synced");
    }
    let other = mount(&cluster).await;
    assert!(contents(&other, a).await == first, "the source has only its own writes");
    assert!(contents(&other, b).await == second, "the copy has only its own writes");
    if layout == 0 {
        // What was written since is a file's own: there blocks go in place again, as soon as there is a lease.
        assert!(cluster.overwrites() > overwrites || shared_bytes(&vfs, a).await > 0);
    }
    cluster.check_namespace();
    close(&vfs, source).await;
    vfs.unlink(&root(), ROOT, b"a").await.expect("removed");
    assert!(contents(&other, b).await == second, "the copy outlives its source");
    close(&vfs, target).await;
    cluster.check_namespace();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_replicated_file_shares_its_bytes() {
    a_copy_shares(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_rows_shares_their_bytes() {
    let layout: cairn_types::Layout = "rs-3-2/4k".parse().expect("a layout");
    a_copy_shares(layout.to_bits()).await;
}

/// A mount that overwrites a file in place would go on doing that in blocks that a copy has, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_overwrites_in_place_stops_when_another_mount_copies() {
    let cluster = cluster();
    let (one, two) = (mount(&cluster).await, mount(&cluster).await);
    let (a, writing) = create(&one, "a", RDWR).await;
    let mut model = pattern(9, 64 * BLOCK);
    write(&one, writing, 0, &model).await;
    one.fsync(writing, false).await.expect("synced");
    for round in 0..4u8 {
        write(&one, writing, 7 * BLOCK as u64, &[round; BLOCK]).await;
        model[7 * BLOCK..8 * BLOCK].fill(round);
        one.fsync(writing, false).await.expect("synced");
    }
    let before = cluster.overwrites();
    assert!(before > 0, "it overwrites in place");
    let reading = open(&two, a, RDONLY).await;
    let (b, target) = create(&two, "b", RDWR).await;
    let length = 32 * BLOCK as u64;
    assert_eq!(two.copy_file_range((reading, 0), (target, 0), length).await.expect("copied"), length);
    assert_eq!(shared_bytes(&two, b).await, length, "shared, not copied");
    let copy = model[..length as usize].to_vec();
    for round in 10..20u8 {
        for block in [7, 20, 40] {
            write(&one, writing, (block * BLOCK) as u64, &[round; BLOCK]).await;
            model[block * BLOCK..(block + 1) * BLOCK].fill(round);
        }
        one.fsync(writing, false).await.expect("synced");
    }
    close(&two, target).await;
    close(&two, reading).await;
    let third = mount(&cluster).await;
    assert!(contents(&third, a).await == model);
    assert!(contents(&third, b).await == copy, "the copy is as the file was");
    close(&one, writing).await;
    cluster.check_namespace();
}

/// Random copies between and within files, beside vectors of bytes.
async fn random(layout: u64, seed: u64) {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let rng = FastRng::seeded(seed);
    let mut files: Vec<(u64, Handle, Vec<u8>)> = Vec::new();
    for i in 0..3 {
        let (ino, handle) = create(&vfs, &format!("f{i}"), RDWR).await;
        if layout != 0 {
            let request = cairn_client::changes::SetAttributes { layout: Some(layout), ..Default::default() };
            vfs.volume().setattr(ino, b"f", request).await.expect("the layout of an empty file");
            close(&vfs, handle).await;
        }
        let handle = if layout == 0 { handle } else { open(&vfs, ino, RDWR).await };
        files.push((ino, handle, Vec::new()));
    }
    let most = 1_200_000;
    let mut names = 3;
    for _ in 0..100 {
        let at = rng.below(3) as usize;
        let (ino, handle) = (files[at].0, files[at].1);
        let offset = rng.below(most);
        match rng.below(10) {
            0..4 => {
                let long = [3_000, 60_000, 300_000][rng.below(3) as usize];
                let data = pattern(rng.u64() as u8, 1 + rng.below(long) as usize);
                write(&vfs, handle, offset, &data).await;
                let end = offset as usize + data.len();
                let model = &mut files[at].2;
                model.resize(model.len().max(end), 0);
                model[offset as usize..end].copy_from_slice(&data);
            }
            4..7 => {
                let other = rng.below(3) as usize;
                let from = if rng.below(4) > 0 { rng.below(250) * 4096 + offset % 4096 } else { rng.below(most) };
                let length = (1 + rng.below(500_000)).min((files[other].2.len() as u64).saturating_sub(from));
                if length == 0 || other == at && from.abs_diff(offset) < length {
                    continue;
                }
                let copied = vfs.copy_file_range((files[other].1, from), (handle, offset), length).await;
                assert_eq!(copied.expect("copied"), length);
                let bytes = files[other].2[from as usize..(from + length) as usize].to_vec();
                let end = offset as usize + bytes.len();
                let model = &mut files[at].2;
                model.resize(model.len().max(end), 0);
                model[offset as usize..end].copy_from_slice(&bytes);
            }
            7 => {
                let set = SetAttr { size: Some(offset), ..Default::default() };
                vfs.setattr(&root(), ino, Some(handle), set).await.expect("truncated");
                files[at].2.resize(offset as usize, 0);
            }
            8 => vfs.fsync(handle, false).await.expect("synced"),
            _ => {
                let mut name = None;
                for i in 0..names {
                    let found = vfs.lookup(&root(), ROOT, format!("f{i}").as_bytes()).await;
                    if found.is_ok_and(|entry| entry.attr.ino == ino) {
                        name = Some(format!("f{i}"));
                    }
                }
                close(&vfs, handle).await;
                if let Some(name) = name.filter(|_| layout == 0) {
                    vfs.unlink(&root(), ROOT, name.as_bytes()).await.expect("removed");
                    let (ino, handle) = create(&vfs, &format!("f{names}"), RDWR).await;
                    files[at] = (ino, handle, Vec::new());
                    names += 1;
                } else {
                    files[at].1 = open(&vfs, ino, RDWR).await;
                }
            }
        }
        let (_, handle, model) = &files[at];
        let from = rng.below(most).min(model.len() as u64);
        let got = read(&vfs, *handle, from, 200_000).await;
        assert!(got == model[from as usize..(from as usize + 200_000).min(model.len())], "seed {seed} at {from}");
    }
    let other = mount(&cluster).await;
    for (ino, handle, model) in files {
        close(&vfs, handle).await;
        assert!(contents(&other, ino).await == model, "seed {seed}");
    }
    assert!(cluster.take_calls().get("CloneRange").is_some_and(|calls| *calls > 5), "ranges were shared");
    cluster.check_namespace();
}

/// A file would get bytes that were written to another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_copies_are_copies() {
    for seed in 1..3 {
        random(0, seed).await;
    }
}

/// The same where rows are written anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_copies_of_rows_are_copies() {
    let layout: cairn_types::Layout = "rs-3-2/4k".parse().expect("a layout");
    random(layout.to_bits(), 5).await;
}

/// Two copies in opposite directions would wait for each other for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn copies_back_and_forth_do_not_block_each_other() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (_, a) = create(&vfs, "a", RDWR).await;
    let (_, b) = create(&vfs, "b", RDWR).await;
    let length = 50 * BLOCK as u64;
    write(&vfs, a, 0, &pattern(1, length as usize)).await;
    write(&vfs, b, length, &pattern(2, length as usize)).await;
    for _ in 0..10 {
        let there = vfs.copy_file_range((a, 0), (b, 0), length);
        let back = vfs.copy_file_range((b, length), (a, length), length);
        let (there, back) = tokio::join!(there, back);
        assert_eq!((there.expect("copied"), back.expect("copied")), (length, length));
    }
    let whole = [pattern(1, length as usize), pattern(2, length as usize)].concat();
    assert!(read_all(&vfs, a).await == whole && read_all(&vfs, b).await == whole);
    close(&vfs, a).await;
    close(&vfs, b).await;
    cluster.check_namespace();
}
