//! Mounts of one volume on a cluster in memory: files beside plain vectors of bytes, several mounts at once, faults.
mod across;
mod append;
mod calls;
mod clones;
mod directories;
mod faults;
mod huge;
mod in_place;
mod later;
mod leases;
mod random;
mod sharing;
mod visible;

use bytes::Bytes;
use cairn_client::fake::FakeCluster;
use cairn_types::Scheme;
use cairn_vfs::{Caller, Handle, ROOT, Vfs, VfsOptions};
use std::time::Duration;

pub const RDWR: i32 = 2;
pub const RDONLY: i32 = 0;
pub const WRONLY: i32 = 1;
pub const APPEND: i32 = 0o2000;
pub const TRUNC: i32 = 0o1000;
pub const EXCL: i32 = 0o200;

pub fn cluster() -> FakeCluster {
    FakeCluster::start(5, &[Scheme::Replicated(3), Scheme::Replicated(3), Scheme::Erasure { k: 3, m: 2 }])
}
pub fn options() -> VfsOptions {
    VfsOptions { timeout: Duration::from_secs(20), ..VfsOptions::default() }
}
/// Nothing expires and nothing is written by itself, however slow the machine is: for tests that count calls.
pub fn still() -> VfsOptions {
    let never = Duration::from_secs(24 * 3600);
    let ttls = VfsOptions { attr_ttl: never, entry_ttl: never, negative_ttl: never, ..options() };
    VfsOptions { write_after: never, publish_after: never, ..ttls }
}
pub async fn still_mount(cluster: &FakeCluster) -> Vfs {
    mount_with(cluster, Duration::from_secs(8), still()).await
}
pub async fn mount_with(cluster: &FakeCluster, patience: Duration, options: VfsOptions) -> Vfs {
    let client = cluster.connect_for(patience).await;
    let volume = client.volume("default").await.expect("the volume");
    Vfs::new(client, volume, options)
}
pub async fn mount(cluster: &FakeCluster) -> Vfs {
    mount_with(cluster, Duration::from_secs(8), options()).await
}
pub fn root() -> Caller {
    Caller::root()
}
/// A new file, open.
pub async fn create(vfs: &Vfs, name: &str, flags: i32) -> (u64, Handle) {
    let (entry, opened) = vfs.create(&root(), ROOT, name.as_bytes(), 0o644, flags).await.expect("created");
    (entry.attr.ino, opened.handle)
}
pub async fn open(vfs: &Vfs, ino: u64, flags: i32) -> Handle {
    vfs.open(&root(), ino, flags).await.expect("opened").handle
}
pub async fn write(vfs: &Vfs, handle: Handle, offset: u64, data: &[u8]) {
    let written = vfs.write(handle, offset, Bytes::copy_from_slice(data)).await.expect("written");
    assert_eq!(written as usize, data.len());
}
pub async fn read(vfs: &Vfs, handle: Handle, offset: u64, size: u32) -> Vec<u8> {
    vfs.read(handle, offset, size).await.expect("read").concat()
}
pub async fn read_all(vfs: &Vfs, handle: Handle) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let part = read(vfs, handle, all.len() as u64, 100_000).await;
        if part.is_empty() {
            return all;
        }
        all.extend(part);
    }
}
/// As close(2) of the last descriptor.
pub async fn close(vfs: &Vfs, handle: Handle) {
    vfs.flush(handle, 0).await.expect("flushed");
    vfs.release(handle, None).await.expect("released");
}
/// Contents as another mount reads them after opening.
pub async fn contents(vfs: &Vfs, ino: u64) -> Vec<u8> {
    let handle = open(vfs, ino, RDONLY).await;
    let all = read_all(vfs, handle).await;
    close(vfs, handle).await;
    all
}
