//! Damage and loss found at the start: what redundancy on the disk allows is used, the rest is refused by name.

use std::sync::Arc;

use cairn_env::{Clock, DiskOp, FastRng, RealClock};
use cairn_sim::{FaultRule, FaultWhen, SimDisk};
use cairn_store::{CheckpointStore, Record, Wal, WalConfig};
use cairn_types::{ClusterId, NodeId};

use super::fixture::{Adder, Fate, GROUP, Port, Switch, config, wait_for};
use crate::error::HostError;
use crate::{DropReason, GroupHandle, HostConfig, RaftHost};

struct Solo {
    host: RaftHost,
    handle: GroupHandle<std::sync::mpsc::Sender<Fate>>,
    sum: Arc<parking_lot::Mutex<super::fixture::Sum>>,
}

fn settings() -> HostConfig {
    HostConfig {
        checkpoint_log_bytes: u64::MAX,
        segment_bytes: 64 << 10,
        item_bytes_max: 8 << 10,
        batch_bytes_max: 8 << 10,
        ..config(1)
    }
}

fn host(disk: &SimDisk) -> RaftHost {
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let port = Arc::new(Port { node: NodeId(1), switch: Arc::new(Switch::default()) });
    RaftHost::start(settings(), clock, Arc::new(FastRng::seeded(1)), Arc::new(disk.clone()), port).unwrap()
}

fn open(disk: &SimDisk) -> Result<Solo, HostError> {
    let host = host(disk);
    let sum = Arc::default();
    let handle = host.open_group(GROUP, &[NodeId(1)], Adder { padding: 1000, ..Adder::new(&sum) })?;
    wait_for("leadership", || handle.leads() || handle.status().failure.is_some());
    Ok(Solo { host, handle, sum })
}

impl Solo {
    fn add(&self) -> Fate {
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut item = vec![0; 3000];
        item[0] = 1;
        self.handle.propose(item, sender).unwrap();
        receiver.recv().unwrap()
    }

    fn checkpoint(&self) {
        let before = self.handle.status().checkpoints;
        wait_for("a checkpoint", || {
            self.handle.checkpoint_soon();
            self.handle.status().checkpoints > before
        });
    }
}

/// A disk with three checkpoints made and some entries behind the last one.
fn prepared() -> (SimDisk, u64) {
    let disk = SimDisk::new(1);
    let solo = open(&disk).unwrap();
    for _ in 0..3 {
        (0..30).for_each(|_| assert!(matches!(solo.add(), Fate::Done(_))));
        solo.checkpoint();
    }
    (0..5).for_each(|_| assert!(matches!(solo.add(), Fate::Done(_))));
    let sum = solo.sum.lock().sum;
    drop(solo);
    (disk, sum)
}

fn checkpoints(disk: &SimDisk) -> Vec<String> {
    use cairn_env::Disk;
    let dir = format!("checkpoints/{:010}", GROUP.0);
    let names = disk.list(&dir).unwrap();
    names.iter().filter(|e| e.name.ends_with(".ckpt")).map(|e| format!("{dir}/{}", e.name)).collect()
}

/// A damaged newest checkpoint must cost nothing: the older one and the log behind it hold the same.
#[test]
fn the_older_checkpoint_replaces_a_damaged_one() {
    for offset in [100, 4096 + 500, 8192 + 100] {
        let (disk, sum) = prepared();
        let files = checkpoints(&disk);
        assert_eq!(files.len(), 2);
        disk.flip_bit(&files[1], offset, 2);
        let solo = open(&disk).unwrap();
        assert_eq!(solo.sum.lock().sum, sum, "flipped at {offset}");
        assert_eq!(checkpoints(&disk), files[..1]);
        assert_eq!(solo.add(), Fate::Done(sum + 1));
        // And it goes on making checkpoints.
        solo.checkpoint();
        drop(solo);
        assert_eq!(open(&disk).unwrap().sum.lock().sum, sum + 1);
    }
}

/// Without both checkpoints the log has a gap; starting from nothing would lose everything silently.
#[test]
fn missing_parts_are_refused_by_name() {
    use cairn_env::Disk;
    let (disk, _) = prepared();
    let files = checkpoints(&disk);
    files.iter().for_each(|file| disk.flip_bit(file, 100, 2));
    let error = open(&disk).err().unwrap().to_string();
    assert!(error.contains("group 7") && error.contains("log starts after entry"), "{error}");

    let (disk, _) = prepared();
    for entry in disk.list("log").unwrap() {
        disk.remove(&format!("log/{}", entry.name)).unwrap();
    }
    let error = open(&disk).err().unwrap();
    assert!(matches!(error, HostError::LogLost { .. }), "{error}");

    let fresh = host(&SimDisk::new(2));
    let error = fresh.open_existing(GROUP, Adder::new(&Arc::default())).err().unwrap();
    assert!(matches!(error, HostError::Missing { .. }), "{error}");
    assert!(!fresh.knows_group(GROUP).unwrap());
}

/// Removes the end of the log in files that are sound, and whatever notes how far it reached: the batches of the last
/// segment become zeros.
fn without_end(disk: &SimDisk) {
    use cairn_env::{Disk, OpenOptions};
    let mut names: Vec<String> = disk.list("log").unwrap().into_iter().map(|entry| entry.name).collect();
    names.retain(|name| name.starts_with("seg-"));
    let open_segment = |name: &String| disk.open(&format!("log/{name}"), OpenOptions::READ_WRITE).unwrap();
    let is_used = |name: &String| {
        let mut magic = [0; 8];
        open_segment(name).read_exact_at(&mut magic, 4096).unwrap();
        &magic == b"CAIRNBAT"
    };
    names.retain(is_used);
    assert!(names.len() > 1, "{names:?}");
    let last = open_segment(names.iter().max().unwrap());
    let len = usize::try_from(last.len().unwrap()).unwrap();
    last.write_at(&vec![0; len - 4096], 4096).unwrap();
    last.sync_all().unwrap();
    disk.remove("log/mark").unwrap();
}

/// A member that lost the end of its log lost votes with it: its own checkpoint, which reaches further, proves it. One
/// that was fetched proves nothing, because it gets its name before the log begins anew behind it.
#[test]
fn a_log_that_ends_before_a_checkpoint_of_its_own_is_refused() {
    let (disk, _) = prepared();
    without_end(&disk);
    let error = open(&disk).err().unwrap();
    assert!(matches!(error, HostError::LogCut { .. }), "{error}");
    assert!(error.to_string().contains("let the node join again"), "{error}");
    let HostError::LogCut { index, last, .. } = error else { unreachable!("matched above") };
    assert!(last < index);
    let solo = open(&disk);
    assert!(matches!(solo.err(), Some(HostError::LogCut { .. })), "nothing was changed");

    let store = CheckpointStore::new(Arc::new(disk.clone()), crate::host::CHECKPOINT_DIR, ClusterId::NONE);
    let term = store.open(GROUP, index).unwrap().header().term;
    drop(store);
    let wal = WalConfig { segment_bytes: settings().segment(), ..WalConfig::new(crate::host::LOG_DIR, settings().log) };
    let (wal, _) = Wal::open(Arc::new(disk.clone()), wal).unwrap();
    wal.append(vec![Record::Fetched { group: GROUP, index, term }]).unwrap();
    drop(wal);
    let solo = open(&disk).unwrap();
    assert_eq!(solo.sum.lock().sum, 90, "the state of the checkpoint");
    assert_eq!(solo.add(), Fate::Done(91));
}

/// After a failed sync the member must acknowledge nothing any more; after a restart all it acknowledged is there.
#[test]
fn a_failing_disk_stops_the_member() {
    let disk = SimDisk::new(3);
    let solo = open(&disk).unwrap();
    let mut done = 0;
    for _ in 0..10 {
        done += u64::from(matches!(solo.add(), Fate::Done(_)));
    }
    let rule = disk.inject(FaultRule::io(&[DiskOp::Sync]).on_path("log/seg-*").when(FaultWhen::Nth(3)));
    let mut unknown = 0;
    for _ in 0..10 {
        match solo.add() {
            Fate::Done(_) => done += 1,
            Fate::Dropped(DropReason::Unknown) => unknown += 1,
            Fate::Dropped(DropReason::NotLeader { .. }) => {}
        }
    }
    assert_eq!((disk.hits(rule), unknown, done), (1, 1, 12));
    assert!(solo.handle.status().failure.is_some() && solo.handle.read_permit().is_err());
    drop(solo);
    disk.kill();
    let solo = open(&disk).unwrap();
    let sum = solo.sum.lock().sum;
    assert!((done..=done + unknown).contains(&sum), "{sum}");
    solo.host.shutdown();
    let (sender, receiver) = std::sync::mpsc::channel();
    assert!(solo.handle.propose(vec![0; 8], sender).is_err(), "a closed group takes nothing");
    assert!(receiver.try_recv().is_err());
}
