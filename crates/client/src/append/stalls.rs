//! How long a writer stands still when a member of a group does, whatever is written and whenever it happens. The clock
//! is tokio's and stands still while nothing happens, so the figures are those of the code alone.
use crate::fake::FakeCluster;
use crate::file_writer::WriteOptions;
use crate::meta::volume::Volume;
use cairn_env::buf::SharedBuf;
use cairn_types::Scheme;
use std::time::Duration;
use tokio::time::Instant;

const MIB: usize = 1 << 20;
const RS: Scheme = Scheme::Erasure { k: 3, m: 2 };
const R2: Scheme = Scheme::Replicated(2);
const R3: Scheme = Scheme::Replicated(3);
/// No write stands still for longer.
const STALL_MAX: Duration = Duration::from_secs(2);

/// A disk may be busy for a while before it is said to stand still.
const HANG_MAX: Duration = Duration::from_secs(3);

/// From one MiB to the next.
const PACE: Duration = Duration::from_millis(5);

fn options(layout: &str) -> WriteOptions {
    WriteOptions { mode: 0o644, mtime_ns: 0, layout: layout.parse().expect("a layout"), exclusive: false, owner: None }
}

/// When a fault comes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum When {
    /// Before the first byte.
    First,
    /// After so many MiB were pushed.
    After(usize),
    /// When all was pushed and the end of the file is to be made durable.
    End,
}

/// Writes a file, with `fault` in the middle; the longest time for which a push or the end did not return.
async fn longest_pause(
    volume: &Volume,
    path: &str,
    layout: &str,
    length: usize,
    when: When,
    fault: impl Fn(),
) -> Duration {
    let data: Vec<u8> = (0..length).map(|i| (i / 4096) as u8 ^ i as u8).collect();
    let mut longest = Duration::ZERO;
    if when == When::First {
        fault();
    }
    let mut writer = volume.write(path.as_bytes(), options(layout)).await.expect("begun");
    for (i, part) in data.chunks(MIB).enumerate() {
        if when == When::After(i) {
            fault();
        }
        let began = Instant::now();
        writer.push(SharedBuf::from_owner(part.to_vec())).await.expect("pushed");
        longest = longest.max(began.elapsed());
        // As a program that reads what it writes from somewhere: the streams keep up.
        tokio::time::sleep(PACE).await;
    }
    if when == When::End {
        fault();
    }
    let began = Instant::now();
    writer.finish().await.expect("written");
    longest = longest.max(began.elapsed());
    let mut reader = volume.read(path.as_bytes(), 0, u64::MAX).await.expect("opened");
    let mut back = Vec::new();
    while let Some(piece) = reader.next().await.expect("read") {
        back.extend_from_slice(&piece.data);
    }
    assert!(back == data, "{path} {layout}: other bytes than were written");
    longest
}

/// What happens to a member.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    /// Its process stands still.
    Stop,
    /// Its disk does, and the process answers what needs no disk.
    Hang,
}

/// Every disk in turn stands still at every one of these moments.
async fn check(layout: &str, disks: u32, groups: &[Scheme], length: usize) {
    check_fault(Fault::Stop, layout, disks, groups, length).await;
}

async fn check_fault(fault: Fault, layout: &str, disks: u32, groups: &[Scheme], length: usize) {
    let (most, strike): (_, fn(&FakeCluster, u32)) = match fault {
        Fault::Stop => (STALL_MAX, FakeCluster::stop),
        Fault::Hang => (HANG_MAX, FakeCluster::hang),
    };
    let moments = [When::First, When::After(3), When::After(length / MIB / 2), When::After(length / MIB), When::End];
    let mut fired = 0;
    let moments = if fault == Fault::Hang { &moments[1..2] } else { &moments[..] };
    for when in moments.iter().copied() {
        for disk in 1..=disks {
            let cluster = FakeCluster::local(disks, groups);
            let client = cluster.connect_local().await;
            let volume = client.volume("default").await.expect("the volume");
            let pause = longest_pause(&volume, "/f", layout, length, when, || strike(&cluster, disk)).await;
            let state = cluster.fake.state.lock();
            // What hangs need not be reported where it was only asked for a new chunk.
            fired += state.reports + state.hung_met;
            drop(state);
            assert!(pause < most, "{layout}: {pause:?} with {fault:?} of d{disk} at {when:?}");
            cluster.check_namespace();
        }
    }
    let least = u64::from(disks) * moments.len() as u64 / 5;
    assert!(fired > least, "hardly a fault was met: {fired}");
}

/// A writer would wait for the deadline of a chain, several seconds, for one member that stands still.
#[tokio::test(start_paused = true)]
async fn replicated_files_stall_for_less_than_two_seconds() {
    check("r3", 5, &[R3, R3, R3, R3], 11 * MIB + 77).await;
}

/// The rows of a file would be written in time and then its end wait for seconds.
#[tokio::test(start_paused = true)]
async fn striped_files_stall_for_less_than_two_seconds() {
    check("rs-3-2/64k", 6, &[RS, RS, R3, R3, R3], 11 * MIB + 77).await;
}

/// The same where every group has every disk, so that there is no group to go to before the manager has decided.
#[tokio::test(start_paused = true)]
async fn files_stall_no_longer_where_every_group_has_every_disk() {
    check("rs-3-2/64k", 5, &[RS, RS, R3, R3], 11 * MIB + 77).await;
}

/// One column that stands still would hold up a file with many.
#[tokio::test(start_paused = true)]
async fn stripe_sets_stall_for_less_than_two_seconds() {
    check("r2x4/64k", 5, &[R2, R2, R2, R2, R2], 11 * MIB + 77).await;
}

/// A write would wait for the deadline of a chain, several seconds, for a disk that hangs while its process answers
/// pings.
#[tokio::test(start_paused = true)]
async fn disks_that_hang_hold_up_no_write_for_long() {
    check_fault(Fault::Hang, "r3", 5, &[R3, R3, R3, R3], 11 * MIB + 77).await;
    check_fault(Fault::Hang, "rs-3-2/64k", 6, &[RS, RS, R3, R3, R3], 11 * MIB + 77).await;
    check_fault(Fault::Hang, "r2x4/64k", 5, &[R2, R2, R2, R2, R2], 11 * MIB + 77).await;
}

/// Somebody whose nodes are down would be told to delete files.
#[tokio::test(start_paused = true)]
async fn dead_disks_are_not_called_want_of_space() {
    for (disks, members, dead) in [(5, 5, 3), (4, 4, 0)] {
        let scheme = if disks == 5 { Scheme::Replicated(3) } else { Scheme::Replicated(2) };
        let cluster = FakeCluster::local(disks, &[scheme]);
        let client = cluster.connect_local().await;
        let volume = client.volume("default").await.expect("the volume");
        {
            let mut state = cluster.fake.state.lock();
            state.lack_disks = true;
            state.pgs.clear();
            state.down = (1..=dead).collect();
        }
        let error = match volume.write(b"/f", options("r5")).await {
            Ok(mut writer) => {
                let pushed = writer.push(SharedBuf::from_owner(vec![1; 100])).await;
                pushed.expect("gathered");
                writer.finish().await.expect_err("nobody to write to").to_string()
            }
            Err(error) => error.to_string(),
        };
        let alive = format!("only {} of the cluster's {disks} disks are alive", members - dead);
        assert_eq!(error.contains(&alive), dead > 0, "{error}");
        assert!(!error.contains("remove something"), "{error}");
    }
}

/// Healthy members would be reported, and writes sent again and again, because all disks are slow.
#[tokio::test(start_paused = true)]
async fn slow_disks_are_waited_for() {
    for layout in ["r3", "rs-3-2/64k", "r2x4/64k"] {
        let cluster = FakeCluster::local(5, &[RS, R3, R2, R2]);
        let client = cluster.connect_local().await;
        let volume = client.volume("default").await.expect("the volume");
        let slow = |cluster: &FakeCluster| {
            let mut state = cluster.fake.state.lock();
            state.slow = (1..=5).map(|disk| (disk, Duration::from_millis(1700))).collect();
        };
        longest_pause(&volume, "/f", layout, 5 * MIB, When::First, || slow(&cluster)).await;
        assert_eq!(cluster.fake.state.lock().reports, 0, "{layout}");
    }
}
