//! Random operations beside a plain vector of bytes.
use crate::*;
use cairn_env::{FastRng, Rng};
use cairn_vfs::{Seek, SetAttr};

struct Beside {
    rng: FastRng,
    model: Vec<u8>,
    most: u64,
}

const PUNCH_KEEP: i32 = 3;
const ZERO: i32 = 16;

impl Beside {
    fn new(seed: u64, most: u64) -> Self {
        Self { rng: FastRng::seeded(seed), model: Vec::new(), most }
    }
    fn below(&self, bound: u64) -> u64 {
        self.rng.u64() % bound.max(1)
    }
    fn range(&self, longest: u64) -> (u64, u64) {
        let offset = self.below(self.most);
        (offset, 1 + self.below(longest).min(self.most - offset))
    }
    fn put(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[offset as usize..end].copy_from_slice(data);
    }

    /// One operation on an open file.
    async fn step(&mut self, vfs: &Vfs, handle: Handle, ino: u64) {
        match self.below(12) {
            0..4 => {
                let small = self.below(3) > 0;
                let (offset, length) = self.range(if small { 10_000 } else { 400_000 });
                let data = vec![self.rng.u64() as u8; length as usize];
                write(vfs, handle, offset, &data).await;
                self.put(offset, &data);
            }
            4..8 => {
                let (offset, length) = self.range(300_000);
                let got = read(vfs, handle, offset, length as u32).await;
                let (from, to) =
                    (self.model.len().min(offset as usize), self.model.len().min((offset + length) as usize));
                assert!(got == self.model[from..to], "{offset} {length}: {} of {}", got.len(), to - from);
            }
            8 => {
                let size = self.below(self.most);
                let set = SetAttr { size: Some(size), ..Default::default() };
                let (attr, _) = vfs.setattr(&root(), ino, Some(handle), set).await.expect("truncated");
                self.model.resize(size as usize, 0);
                assert_eq!(attr.size, size);
            }
            9 => {
                let (offset, length) = self.range(200_000);
                let keep = self.below(2) == 0;
                let mode = if keep { PUNCH_KEEP } else { ZERO };
                vfs.fallocate(handle, mode, (offset, length), &[]).await.expect("punched");
                let end = (offset + length) as usize;
                if !keep && self.model.len() < end {
                    self.model.resize(end, 0);
                }
                let (from, to) = (self.model.len().min(offset as usize), self.model.len().min(end));
                self.model[from..to].fill(0);
            }
            10 => self.seek(vfs, handle).await,
            _ => vfs.fsync(handle, false).await.expect("synced"),
        }
        let (attr, _) = vfs.getattr(&root(), ino, Some(handle)).await.expect("attributes");
        assert_eq!(attr.size, self.model.len() as u64);
    }
    async fn seek(&self, vfs: &Vfs, handle: Handle) {
        let at = self.below(self.most);
        let (data, hole) = (vfs.lseek(handle, at, Seek::Data).await, vfs.lseek(handle, at, Seek::Hole).await);
        if at >= self.model.len() as u64 {
            assert!(data.is_err() && hole.is_err());
            return;
        }
        let hole = hole.expect("there is one at the end at the latest") as usize;
        assert!(hole >= at as usize && hole <= self.model.len());
        let next = self.model[at as usize..].iter().position(|byte| *byte != 0).map(|n| n + at as usize);
        match (data, next) {
            (Ok(data), Some(next)) => assert!(data as usize <= next),
            (Err(_), next) => assert_eq!(next, None, "data was not found"),
            (Ok(_), None) => {}
        }
    }
}

async fn one_handle(layout: u64, seed: u64, memory: usize) {
    let cluster = cluster();
    let few = VfsOptions { memory_max: memory, ..options() };
    let vfs = mount_with(&cluster, Duration::from_secs(8), few).await;
    let (ino, handle) = create(&vfs, "f", RDWR).await;
    if layout != 0 {
        let request = cairn_client::changes::SetAttributes { layout: Some(layout), ..Default::default() };
        vfs.volume().setattr(ino, b"f", request).await.expect("the layout of an empty file");
        close(&vfs, handle).await;
    }
    let handle = if layout == 0 { handle } else { open(&vfs, ino, RDWR).await };
    let mut beside = Beside::new(seed, 1_500_000);
    for _ in 0..250 {
        beside.step(&vfs, handle, ino).await;
        assert!(vfs.status().memory_bytes <= memory as u64, "{:?}", vfs.status());
    }
    close(&vfs, handle).await;
    assert_eq!(vfs.status().memory_bytes, 0, "{:?}", vfs.status());
    assert!(contents(&mount(&cluster).await, ino).await == beside.model);
    cluster.check_namespace();
}

/// A program would read other bytes than it wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_is_its_bytes() {
    one_handle(0, 1, 64 << 20).await;
    one_handle(0, 2, 3 << 20).await;
}

/// The same on a layout whose rows are written anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_of_rows_is_its_bytes() {
    let layout: cairn_types::Layout = "rs-3-2/4k".parse().expect("a layout");
    one_handle(layout.to_bits(), 3, 64 << 20).await;
}

/// The same in directories that the mount leads, until something needs their end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_led_file_is_its_bytes() {
    let cluster = cluster();
    cluster.raise_level();
    let vfs = mount_with(&cluster, Duration::from_secs(8), VfsOptions { lease_new: true, ..options() }).await;
    let other = mount(&cluster).await;
    for seed in 10..14 {
        let directory = vfs.mkdir(&root(), ROOT, format!("d{seed}").as_bytes(), 0o755).await.expect("made").attr.ino;
        assert!(vfs.status().led_directories > 0);
        let (entry, opened) = vfs.create(&root(), directory, b"f", 0o644, RDWR).await.expect("created");
        let mut beside = Beside::new(seed, 600_000);
        for _ in 0..60 {
            beside.step(&vfs, opened.handle, entry.attr.ino).await;
        }
        close(&vfs, opened.handle).await;
        assert!(contents(&other, entry.attr.ino).await == beside.model);
    }
    vfs.shutdown().await.expect("all is stored");
    cluster.check_namespace();
}

/// Whoever opens a file would not see what was closed before on another machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_to_open_between_two_mounts() {
    let cluster = cluster();
    let mounts = [mount(&cluster).await, mount(&cluster).await];
    let (ino, handle) = create(&mounts[0], "f", RDWR).await;
    close(&mounts[0], handle).await;
    close_to_open(&mounts, ino, 4, 40).await;
    cluster.check_namespace();
}

/// The same of files that the one or the other mount leads until both have looked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_to_open_of_led_files() {
    let cluster = cluster();
    cluster.raise_level();
    let options = VfsOptions { lease_new: true, ..options() };
    let mounts = [
        mount_with(&cluster, Duration::from_secs(8), options.clone()).await,
        mount_with(&cluster, Duration::from_secs(8), options).await,
    ];
    for seed in 20..26 {
        let (maker, name) = (&mounts[seed as usize % 2], format!("d{seed}"));
        let directory = maker.mkdir(&root(), ROOT, name.as_bytes(), 0o755).await.expect("made").attr.ino;
        assert!(maker.status().led_directories > 0);
        let (entry, opened) = maker.create(&root(), directory, b"f", 0o644, RDWR).await.expect("created");
        close(maker, opened.handle).await;
        close_to_open(&mounts, entry.attr.ino, seed, 10).await;
    }
    cluster.check_namespace();
}

async fn close_to_open(mounts: &[Vfs; 2], ino: u64, seed: u64, rounds: usize) {
    let mut beside = Beside::new(seed, 600_000);
    for _ in 0..rounds {
        let vfs = &mounts[beside.below(2) as usize];
        let handle = open(vfs, ino, RDWR).await;
        for _ in 0..1 + beside.below(6) {
            beside.step(vfs, handle, ino).await;
        }
        close(vfs, handle).await;
    }
    for vfs in mounts {
        assert!(contents(vfs, ino).await == beside.model);
    }
}

/// Data that gets old in memory would never reach other mounts, or reach them in the wrong order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_becomes_visible_by_itself() {
    let cluster = cluster();
    let quick =
        VfsOptions { write_after: Duration::from_millis(100), publish_after: Duration::from_millis(200), ..options() };
    let vfs = mount_with(&cluster, Duration::from_secs(8), quick).await;
    let (ino, handle) = create(&vfs, "f", RDWR).await;
    let other = mount(&cluster).await;
    for round in 1..=3u8 {
        write(&vfs, handle, 0, &vec![round; 20_000]).await;
        let seen = async {
            while contents(&other, ino).await != vec![round; 20_000] {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(9), seen).await.expect("seen by another mount");
    }
    close(&vfs, handle).await;
}

/// Copies on the server would differ from what is copied, or fill holes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_are_copied_with_their_holes() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (_, source) = create(&vfs, "a", RDWR).await;
    let (target_ino, target) = create(&vfs, "b", RDWR).await;
    write(&vfs, source, 0, &[1; 5000]).await;
    write(&vfs, source, 3 << 20, &[2; 9000]).await;
    let size = (3 << 20) + 9000;
    assert_eq!(vfs.copy_file_range((source, 0), (target, 0), u64::MAX).await.expect("copied"), size);
    assert!(read_all(&vfs, source).await == read_all(&vfs, target).await);
    assert_eq!(vfs.lseek(target, 10_000, Seek::Data).await.expect("data"), 3 << 20);
    close(&vfs, target).await;
    close(&vfs, source).await;
    let (attr, _) = vfs.getattr(&root(), target_ino, None).await.expect("attributes");
    assert!(attr.size == size && attr.blocks < 100, "{attr:?}");
}
