//! Tests of defragmentation against a cluster in memory: how fragmented files get, what becomes of them, and writers in
//! the middle of it.
use super::*;
use crate::changes::{CloneRange, SetAttributes};
use crate::connect::Client;
use crate::fake::{Fake, FakeCluster};
use crate::file_writer::WriteOptions;
use crate::handle::FileHandle;
use crate::net::{LocalCall, LocalServers};
use cairn_env::{FastRng, Rng};
use cairn_types::Scheme;
use cairn_wire::Opcode;
use cairn_wire::meta::PunchRequest;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const RULES: FragmentRules = FragmentRules { extent_bytes: 64 << 10 };
const LONG: Duration = Duration::from_secs(600);
const GROUPS: [Scheme; 3] = [Scheme::Replicated(3), Scheme::Replicated(3), Scheme::Erasure { k: 3, m: 2 }];

async fn make(volume: &Volume, path: &[u8], layout: &str) -> FileHandle {
    let layout: Layout = layout.parse().expect("a layout");
    let options = WriteOptions { mode: 0o644, mtime_ns: 77, layout, exclusive: false, owner: None };
    volume.write(path, options).await.expect("begun").finish().await.expect("made");
    volume.open(path).await.expect("opened")
}

fn noise(length: usize, seed: u64) -> Vec<u8> {
    (0..length).map(|i| (i as u64 * 31 + seed * 17 + (i as u64 >> 8)) as u8).collect()
}

async fn put(handle: &mut FileHandle, model: &mut Vec<u8>, at: usize, data: &[u8]) {
    model.resize(model.len().max(at + data.len()), 0);
    model[at..at + data.len()].copy_from_slice(data);
    handle.write_at(at as u64, data).await.expect("written");
    handle.sync().await.expect("synced");
}

/// Blocks at random places, each synced by itself.
async fn scatter(handle: &mut FileHandle, model: &mut Vec<u8>, count: usize, seed: u64) {
    let rng = FastRng::seeded(seed);
    for i in 0..count {
        let at = rng.below(model.len() as u64 / 4096) as usize * 4096;
        put(handle, model, at, &noise(4096, seed + i as u64)).await;
    }
}

async fn contents(volume: &Volume, path: &[u8]) -> Vec<u8> {
    let mut reader = volume.read(path, 0, u64::MAX).await.expect("a reader");
    let mut all = Vec::new();
    while let Some(piece) = reader.next().await.expect("read") {
        all.extend_from_slice(&piece.data);
    }
    all
}

/// Extents and seams.
async fn count(volume: &Volume, inode: u64) -> (u64, u64) {
    let extents = volume.all_extents(inode).await.expect("extents");
    let seams = extents.windows(2).filter(|pair| pair[0].file_offset + pair[0].length == pair[1].file_offset).count();
    (extents.len() as u64, seams as u64)
}

fn bound(bytes: u64) -> u64 {
    64 + bytes / RULES.extent_bytes
}

/// The file keeps its bytes and attributes and is within its bound, or half of it.
async fn defragmented(cluster: &FakeCluster, volume: &Volume, mover: &Volume, path: &[u8], model: &[u8]) -> (u64, u64) {
    let before = volume.stat(path, true).await.expect("there");
    let (extents, _) = count(volume, before.inode).await;
    let done = mover.defragment(before.inode, 0, RULES, LONG).await.expect("defragmented");
    assert_eq!((done.next, done.kept), (None, 0));
    let after = volume.stat(path, true).await.expect("there");
    // Whoever overwrote it in place had to give his lease back.
    let same = |a: Attributes| Attributes { data_version: 0, generation: 0, overwriter: 0, ..a };
    assert_eq!(same(after), same(before), "only the version changes");
    assert!(contents(volume, path).await == model, "its bytes differ");
    cluster.check_namespace();
    let (left, seams) = count(volume, before.inode).await;
    eprintln!("{}: {extents} extents, then {left}, {} bytes written anew", String::from_utf8_lossy(path), done.moved);
    // What is done is not done again.
    let again = mover.defragment(before.inode, 0, RULES, LONG).await.expect("looked at");
    assert_eq!((again.moved, again.next), (0, None));
    (left, seams)
}

async fn start() -> (FakeCluster, [Client; 2], Volume, Volume) {
    let cluster = FakeCluster::start(5, &GROUPS);
    let clients = [cluster.connect().await, cluster.connect().await];
    let volume = clients[0].volume("default").await.expect("the volume");
    let mover = clients[1].volume("default").await.expect("the volume").with_one_stream();
    (cluster, clients, volume, mover)
}

/// The extent maps of files that are overwritten at random would grow up to an extent a block.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_writes_are_put_together() {
    let (cluster, _clients, volume, mover) = start().await;
    // An erasure layout, and a replicated one whose journals take nothing.
    for (path, layout) in [(b"/e", "rs-3-2/4k"), (b"/r", "r3")] {
        let mut handle = make(&volume, path, layout).await;
        let mut model = Vec::new();
        put(&mut handle, &mut model, 0, &noise(2 << 20, 1)).await;
        cluster.fake.state.lock().saturated = true;
        scatter(&mut handle, &mut model, 150, 5).await;
        cluster.fake.state.lock().saturated = false;
        let (_, before) = count(&volume, handle.inode()).await;
        assert!(before > 2 * bound(2 << 20), "{before} seams");
        let (_, seams) = defragmented(&cluster, &volume, &mover, path, &model).await;
        assert!(seams <= bound(2 << 20) / 2, "{layout}: {seams}");
        // Its blocks are its own: they are overwritten where they are, or in new space, as before.
        scatter(&mut handle, &mut model, 10, 77).await;
        handle.close().await.expect("closed");
        assert!(contents(&volume, path).await == model);
    }
    cluster.check_namespace();
}

/// A log would have an extent a line for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appended_lines_are_put_together() {
    let (cluster, _clients, volume, mover) = start().await;
    for (path, layout) in [(b"/log-r", "r3"), (b"/log-e", "rs-3-2/4k")] {
        let mut handle = make(&volume, path, layout).await;
        let mut model = Vec::new();
        for line in 0..250u64 {
            let data = noise(300 + (line * 37 % 900) as usize, line);
            handle.append(&data).await.expect("appended");
            handle.sync().await.expect("synced");
            model.extend_from_slice(&data);
        }
        let (_, seams) = defragmented(&cluster, &volume, &mover, path, &model).await;
        assert!(seams <= 9, "{layout}: {seams}");
        handle.append(b"more").await.expect("appended");
        handle.close().await.expect("closed");
        model.extend_from_slice(b"more");
        assert!(contents(&volume, path).await == model);
    }
    cluster.check_namespace();
}

/// Holes would be filled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holes_stay() {
    let (cluster, _clients, volume, mover) = start().await;
    let mut handle = make(&volume, b"/h", "r3").await;
    let mut model = Vec::new();
    put(&mut handle, &mut model, 0, &noise(1 << 20, 1)).await;
    cluster.fake.state.lock().saturated = true;
    scatter(&mut handle, &mut model, 100, 9).await;
    for hole in 0..20usize {
        let (at, length) = (hole * 50_000 + 1234, 9000);
        model[at..at + length].fill(0);
        let request = PunchRequest { offset: at as u64, length: length as u64, ..Default::default() };
        volume.punch(handle.inode(), b"/h", request).await.expect("punched");
    }
    handle.close().await.expect("closed");
    let stored = volume.stat(b"/h", true).await.expect("there").stored_bytes;
    assert_eq!(stored, (1 << 20) - 20 * 9000);
    let (extents, _) = defragmented(&cluster, &volume, &mover, b"/h", &model).await;
    assert!(extents <= 21 + 8, "{extents}");
}

/// A clone would lose what it shares with its source.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clones_go_on_sharing() {
    let (cluster, _clients, volume, mover) = start().await;
    let mut source = make(&volume, b"/s", "r3").await;
    let mut model = Vec::new();
    put(&mut source, &mut model, 0, &noise(2 << 20, 1)).await;
    let (original, from) = (model.clone(), source.inode());
    source.close().await.expect("closed");
    let handle = make(&volume, b"/c", "r3").await;
    let request = CloneRange { source: from, inode: handle.inode(), length: 2 << 20, ..Default::default() };
    let cloned = volume.clone_range(b"/c", request).await.expect("cloned").expect("shared");
    assert_eq!(cloned.length, 2 << 20);
    handle.close().await.expect("closed");
    let mut handle = volume.open(b"/c").await.expect("opened");
    // A little everywhere, and most of a part.
    for block in (0..256).step_by(16) {
        put(&mut handle, &mut model, block * 4096, &noise(4096, block as u64)).await;
    }
    for block in (256..440).filter(|block| block % 8 != 0) {
        put(&mut handle, &mut model, block * 4096, &noise(4096, block as u64)).await;
    }
    let inode = handle.inode();
    handle.close().await.expect("closed");
    let shared = async || {
        let extents = volume.all_extents(inode).await.expect("extents");
        extents.iter().filter(|e| e.shared).map(|e| e.length).sum::<u64>()
    };
    let before = shared().await;
    defragmented(&cluster, &volume, &mover, b"/c", &model).await;
    let after = shared().await;
    assert!(
        before > after && before - after <= 128 * 4096 && after >= (1 << 20) - 16 * 4096,
        "{before} shared bytes, then {after}"
    );
    assert!(contents(&volume, b"/s").await == original);
}

/// What was overwritten in place since a member was removed would be as before for ever, moved from that member's
/// blocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_blocks_of_a_removed_member_are_not_moved() {
    let mut old_reads = 0;
    for place in 0..3 {
        let (cluster, _clients, volume, mover) = start().await;
        let mut handle = make(&volume, b"/f", "r3").await;
        let mut model = Vec::new();
        put(&mut handle, &mut model, 0, &noise(1 << 20, 1)).await;
        cluster.fake.state.lock().saturated = true;
        scatter(&mut handle, &mut model, 60, 5).await;
        cluster.fake.state.lock().saturated = false;
        handle.close().await.expect("closed");
        let mut handle = volume.open(b"/f").await.expect("opened");
        let extents = volume.all_extents(handle.inode()).await.expect("extents");
        // The mover's map is from before.
        assert!(mover.cluster().view().pgs.contains_key(&extents[0].chunk.pg.0));
        for pg in extents.iter().map(|extent| extent.chunk.pg.0).collect::<std::collections::BTreeSet<u32>>() {
            let removed = cluster.members(pg)[place];
            let mut state = cluster.fake.state.lock();
            let known = state.pgs[&pg].epoch;
            state.behind.insert(removed, known);
            state.set_member(pg, removed, cairn_types::MemberState::Offline);
        }
        // All at once, so that the lease is asked for.
        let before = cluster.fake.state.lock().overwrites;
        for block in (0..256usize).step_by(2) {
            let data = noise(4096, 1000 + block as u64);
            handle.write_at(block as u64 * 4096, &data).await.expect("written");
            model[block * 4096..][..4096].copy_from_slice(&data);
        }
        handle.sync().await.expect("synced");
        handle.close().await.expect("closed");
        assert!(cluster.fake.state.lock().overwrites > before, "in place");
        let inode = volume.stat(b"/f", true).await.expect("there").inode;
        let done = mover.defragment(inode, 0, RULES, LONG).await.expect("defragmented");
        assert!(done.moved > 0, "nothing was moved");
        old_reads += cluster.fake.state.lock().old_reads;
        cluster.fake.state.lock().behind.clear();
        assert!(contents(&volume, b"/f").await == model, "old blocks cover newer ones");
        cluster.check_namespace();
    }
    assert!(old_reads > 0, "no removed member was asked");
}

type Act = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Has something done before one of the calls that the mover makes.
struct Interposed {
    fake: Arc<Fake>,
    calls: AtomicUsize,
    at: usize,
    act: Mutex<Option<Act>>,
    /// It goes on although the call is given up, as reads are that take longer than others.
    acting: Mutex<Option<JoinHandle<()>>>,
}

impl LocalServers for Interposed {
    fn call(&self, address: &str, opcode: u16, message: &[u8], payload: &[u8], deadline: Duration) -> LocalCall {
        use Opcode as O;
        let counts =
            matches!(O::from_code(opcode), Some(O::Getattr | O::GetExtents | O::Read | O::Publish | O::Discard));
        let number = if counts { self.calls.fetch_add(1, Ordering::SeqCst) } else { usize::MAX };
        let act = if number == self.at { self.act.lock().take() } else { None };
        let Some(act) = act else { return self.fake.call(address, opcode, message, payload, deadline) };
        let (fake, address, message, payload) =
            (self.fake.clone(), address.to_owned(), message.to_vec(), payload.to_vec());
        let (done, acted) = oneshot::channel();
        *self.acting.lock() = Some(tokio::spawn(async move {
            act.await;
            // Nobody may wait for it any more.
            let _ = done.send(());
        }));
        Box::pin(async move {
            acted.await.expect("it comes to its end");
            fake.call(&address, opcode, &message, &payload, deadline).await
        })
    }
}

/// What others do meanwhile.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    /// A block of what is moved, and one of what is not, to new space.
    Write(u64),
    Append,
    Truncate,
    Punch,
    /// A block in place, and the lease stays, or is given back.
    InPlace {
        gives_back: bool,
    },
    Clone(&'static str),
    Remove,
    Chmod,
}

const FRAGMENTS: usize = 7;

async fn fragmented_file(cluster: &FakeCluster, volume: &Volume, layout: &str) -> (FileHandle, Vec<u8>) {
    let mut handle = make(volume, b"/f", layout).await;
    let mut model = Vec::new();
    put(&mut handle, &mut model, 0, &noise(FRAGMENTS * 8192, 1)).await;
    // What follows is not fragmented.
    put(&mut handle, &mut model, 2 << 20, &noise(40_000, 2)).await;
    cluster.fake.state.lock().saturated = true;
    for i in 0..FRAGMENTS {
        put(&mut handle, &mut model, i * 8192, &noise(4096, i as u64)).await;
    }
    cluster.fake.state.lock().saturated = false;
    // Nobody has the lease, and nobody wanted it.
    handle.close().await.expect("closed");
    (volume.open(b"/f").await.expect("opened"), model)
}

async fn meanwhile(
    what: Meanwhile,
    cluster: Arc<FakeCluster>,
    volume: Volume,
    mut handle: FileHandle,
    model: Arc<Mutex<Vec<u8>>>,
) {
    let mut bytes = model.lock().clone();
    match what {
        Meanwhile::Write(at) => {
            cluster.fake.state.lock().saturated = true;
            put(&mut handle, &mut bytes, at as usize, &noise(5000, 99)).await;
        }
        Meanwhile::Append => {
            let end = bytes.len();
            put(&mut handle, &mut bytes, end, &noise(3000, 98)).await;
        }
        Meanwhile::Truncate => {
            handle.truncate(45_000).await.expect("cut");
            bytes.truncate(45_000);
        }
        Meanwhile::Punch => {
            let request = PunchRequest { offset: 30_000, length: 10_000, ..Default::default() };
            volume.punch(handle.inode(), b"/f", request).await.expect("punched");
            bytes[30_000..40_000].fill(0);
        }
        Meanwhile::InPlace { .. } => {
            // The first two times go to new space, elsewhere; and for a while members were said to take none.
            tokio::time::sleep(Duration::from_secs(1)).await;
            for (round, at) in [(2 << 20) + 8192, (2 << 20) + 8192, 12_288, 20_480].into_iter().enumerate() {
                put(&mut handle, &mut bytes, at, &noise(4096, 90 + round as u64)).await;
            }
        }
        Meanwhile::Clone(layout) => {
            let target = make(&volume, b"/clone", layout).await;
            let length = bytes.len() as u64;
            let request = CloneRange { source: handle.inode(), inode: target.inode(), length, ..Default::default() };
            volume.clone_range(b"/clone", request).await.expect("cloned").expect("shared");
            target.close().await.expect("closed");
        }
        Meanwhile::Remove => volume.unlink(b"/f").await.expect("removed"),
        Meanwhile::Chmod => {
            let request = SetAttributes { mode: Some(0o600), ..Default::default() };
            volume.setattr(handle.inode(), b"/f", request).await.expect("changed");
        }
    }
    *model.lock() = bytes;
    if matches!(what, Meanwhile::InPlace { gives_back: false }) {
        // It keeps the file open, and the lease.
        tokio::spawn(async move {
            tokio::time::sleep(LONG).await;
            drop(handle);
        });
    } else {
        handle.close().await.expect("closed");
    }
}

/// Whether there was a call of that number, bytes that were moved, overwrites in place. What is left of the file is
/// right.
async fn one_race(layout: &str, what: Meanwhile, at: usize) -> (bool, u64, u64) {
    let cluster = Arc::new(FakeCluster::local(5, &GROUPS));
    let writer = cluster.connect_local().await;
    let volume = writer.volume("default").await.expect("the volume");
    let (handle, model) = fragmented_file(&cluster, &volume, layout).await;
    let inode = handle.inode();
    let model = Arc::new(Mutex::new(model));
    let act: Act = Box::pin(meanwhile(what, cluster.clone(), volume.clone(), handle, model.clone()));
    let through = Arc::new(Interposed {
        fake: cluster.fake.clone(),
        calls: AtomicUsize::new(0),
        at,
        act: Mutex::new(Some(act)),
        acting: Mutex::new(None),
    });
    let client = cluster.connect_through(through.clone()).await;
    let mover = client.volume("default").await.expect("the volume").with_one_stream();
    through.calls.store(0, Ordering::SeqCst);
    let done = mover.defragment(inode, 0, RULES, LONG).await.expect("defragmented, or left as it is");
    let happened = through.act.lock().is_none();
    let acting = through.acting.lock().take();
    if let Some(acting) = acting {
        acting.await.expect("it comes to its end");
    }
    if happened && !matches!(what, Meanwhile::Remove) {
        let bytes = contents(&volume, b"/f").await;
        assert!(bytes == *model.lock(), "{layout} {what:?} before call {at}: its bytes differ");
        if matches!(what, Meanwhile::Clone(_)) {
            assert!(
                contents(&volume, b"/clone").await == *model.lock(),
                "{layout} before call {at}: the clone's differ"
            );
        }
    }
    mover.close().await;
    cluster.check_namespace();
    let overwrites = cluster.fake.state.lock().overwrites;
    (happened, done.moved, overwrites)
}

/// A write would be lost that comes in the middle of a defragmentation, whatever it is and before whichever call it
/// comes.
#[tokio::test(start_paused = true)]
async fn whatever_happens_meanwhile_is_not_lost() {
    use Meanwhile as M;
    let elsewhere = M::Write((2 << 20) + 8192);
    let of_copies = [
        M::Write(20_000),
        elsewhere,
        M::Append,
        M::Truncate,
        M::Punch,
        M::InPlace { gives_back: true },
        M::InPlace { gives_back: false },
        M::Clone("r3"),
        M::Remove,
        M::Chmod,
    ];
    // Rows are never overwritten in place.
    let of_rows = [M::Write(20_000), elsewhere, M::Truncate, M::Clone("rs-3-2/4k")];
    let (mut races, mut moved, mut in_place) = (0, 0, 0);
    for (layout, all) in [("r3", &of_copies[..]), ("rs-3-2/4k", &of_rows)] {
        for what in all.iter().copied() {
            for at in 0.. {
                let (happened, bytes, overwrites) = one_race(layout, what, at).await;
                if !happened {
                    break;
                }
                races += 1;
                moved += u64::from(bytes > 0);
                in_place += u64::from(overwrites > 0);
            }
        }
    }
    eprintln!("{races} races, in {in_place} of them in place; in {moved} the file was defragmented all the same");
    assert!(races > 100 && moved > races / 2 && in_place > 10, "{races} races, {in_place} in place, {moved} moved");
}
