//! Files that are overwritten at random, where that cannot be done in place, keep few extents and take little more than
//! they have to.
use crate::disks::chunk_use;
use crate::mount::seeds::Rng;
use crate::support::{Cluster, Shape, lines};
use crate::trees::noise;
use crate::wait::{eventually, until, until_told};
use cairn_client::{Client, ConnectOptions, FileHandle, Volume, WriteOptions};
use cairn_types::Layout;
use std::fs;
use std::time::Duration;

const MIB: usize = 1 << 20;
const BYTES: usize = 6 * MIB;
const ROUNDS: u64 = 6;
const WRITES: u64 = 120;
/// Seams that the file may have, and so extents but one: one for 64 KiB, and 64 more.
const BOUND: u64 = 64 + BYTES as u64 / (64 << 10);

async fn open(cluster: &Cluster, path: &[u8], layout: &str) -> (Client, Volume, FileHandle) {
    let addresses = cluster.address.split(',').map(str::to_owned).collect();
    let mut options = ConnectOptions::new(addresses);
    options.patience = Duration::from_secs(240);
    let client = Client::connect(options).await.expect("connected");
    let volume = client.volume("default").await.expect("volume");
    let layout: Layout = layout.parse().expect("a layout");
    let options = WriteOptions { mode: 0o644, mtime_ns: 1, layout, exclusive: false, owner: None };
    volume.write(path, options).await.expect("begun").finish().await.expect("made");
    let handle = volume.open(path).await.expect("opened");
    (client, volume, handle)
}

fn extents(cluster: &Cluster, path: &str) -> u64 {
    lines(cluster, &["fs", "stat", path])[0]["extent_count"].as_u64().expect("a number")
}

/// Extents of a file would grow with each write, and with them the memory of the metadata servers; or a write would be
/// lost that comes while others move what is around it, or when servers are killed in the middle.
#[test]
fn random_writes_leave_few_extents() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 5, racks: 5 });
    cluster.ok(&["admin", "config", "set", "garbage_period=1s", "garbage_grace=1s"]);
    // Managers take it when all of them have said that they know it.
    let set = |value: &str| cluster.cairn(&["admin", "config", "set", value]).status.success();
    until("it is off", || set("defragment_extent=0"));
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let (client, volume, mut handle) = runtime.block_on(open(&cluster, b"/file", "rs-3-2/64k"));
    let mut model = noise(BYTES, 1);
    let rng = &mut Rng::new(7);
    let mut most = 0;
    runtime.block_on(async {
        handle.write_at(0, &model).await.expect("written");
        handle.sync().await.expect("synced");
    });
    for round in 0..ROUNDS {
        runtime.block_on(async {
            for write in 0..WRITES {
                let at = rng.below((BYTES / 4096) as u64) as usize * 4096;
                let data = noise(4096, 1000 * (round + 1) + write);
                model[at..at + 4096].copy_from_slice(&data);
                handle.write_at(at as u64, &data).await.expect("written");
                handle.sync().await.expect("synced");
            }
        });
        most = most.max(extents(&cluster, "/file"));
        match round {
            1 => {
                cluster.ok(&["admin", "config", "set", "defragment_extent=64k"]);
                continue;
            }
            2 => cluster.kill("data1"),
            3 => cluster.kill("meta1"),
            _ => continue,
        }
        cluster.start_all();
    }
    assert!(most > BOUND, "at most {most} extents: nothing was fragmented");
    let has_few = || extents(&cluster, "/file") <= BOUND + 1;
    eventually(&cluster, "few extents", has_few);
    // It is still open, and written.
    runtime.block_on(async {
        handle.append(b"the end").await.expect("appended");
        model.extend_from_slice(b"the end");
        handle.close().await.expect("closed");
        volume.close().await;
        drop(client);
    });
    cluster.wait_healthy();
    let local = cluster.path("back");
    cluster.ok(&["fs", "get", "/file", local.to_str().expect("utf-8")]);
    assert!(fs::read(&local).expect("there") == model, "the file differs");
    cluster.ok(&["admin", "fsck"]);
    // Five thirds of its bytes, what may still be in rows of which a part lives, and tables of some chunks.
    let enough = (BYTES * 5 / 3 * 2 + 8 * MIB) as u64;
    until_told(
        "the space of what was moved is free",
        || chunk_use(&cluster).1 <= enough,
        || format!("{:?}", chunk_use(&cluster)),
    );
    let (count, bytes) = chunk_use(&cluster);
    eprintln!(
        "{most} extents, then {}; {count} chunks take {bytes} bytes, {} servers killed",
        extents(&cluster, "/file"),
        cluster.kills
    );
}
