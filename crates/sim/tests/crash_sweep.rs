//! The simulated disk must catch the classic mistakes of crash safety, and find none in code that makes none.
//!
//! The code under test keeps one record in a file that it replaces atomically; the sweep crashes it at every
//! operation, with every subset of what was unsynced.

use cairn_env::disk::{Disk, DiskError, OpenOptions};
use cairn_sim::{CrashPolicy, SimDisk};

/// Which step the code under test forgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    DataSync,
    DirectorySync,
    TemporaryFile,
}

const LEN: usize = 1024;

/// Puts the record `version` in place. Ok means: durable.
fn save(disk: &dyn Disk, version: u8, mistake: Mistake) -> Result<(), DiskError> {
    let name = if mistake == Mistake::TemporaryFile { "record" } else { "record.new" };
    let file = disk.open(name, OpenOptions::CREATE)?;
    file.set_len(0)?;
    file.write_at(&[version; LEN], 0)?;
    if mistake != Mistake::DataSync {
        file.sync_data()?;
    }
    if mistake != Mistake::TemporaryFile {
        disk.rename("record.new", "record")?;
    }
    if mistake != Mistake::DirectorySync {
        disk.sync_dir("")?;
    }
    Ok(())
}

/// The version in place, `None` without a record, or what is wrong with it.
fn load(disk: &dyn Disk) -> Result<Option<u8>, String> {
    let file = match disk.open("record", OpenOptions::READ) {
        Err(DiskError::NotFound { .. }) => return Ok(None),
        other => other.map_err(|e| e.to_string())?,
    };
    let mut bytes = [0; LEN];
    file.read_exact_at(&mut bytes, 0).map_err(|e| e.to_string())?;
    let version = bytes[0];
    if bytes == [version; LEN] { Ok(Some(version)) } else { Err("a mix of versions".into()) }
}

/// Runs saves 1 to 3 and crashes at each operation in each way. Returns the number of images looked at, and what
/// was found broken.
fn sweep(mistake: Mistake) -> (u64, Vec<String>) {
    let (mut images, mut broken) = (0, Vec::new());
    for crash_at in 1.. {
        let disk = SimDisk::new(crash_at);
        disk.crash_at_op(crash_at);
        let saved = (1..=3).take_while(|&version| save(&disk, version, mistake).is_ok()).last();
        let finished = !disk.is_down();
        let image = disk.snapshot();
        let units = disk.unsynced();
        assert!(units < 12, "the case is small enough to try everything");
        let policies = (0..1u64 << units).map(CrashPolicy::Subset).chain([CrashPolicy::random(); 20]);
        for policy in policies {
            disk.restore(&image);
            disk.crash(policy);
            images += 1;
            let next = saved.map_or(1, |v| v + 1);
            match load(&disk) {
                Ok(found) if found == saved || found == Some(next) => {}
                other => broken.push(format!("op {crash_at}, {policy:?}: saved {saved:?}, found {other:?}")),
            }
        }
        if finished {
            return (images, broken);
        }
    }
    unreachable!("the saves end");
}

/// False alarms would make every crash test worthless.
#[test]
fn careful_code_survives_every_crash() {
    let (images, broken) = sweep(Mistake::None);
    println!("{images} images");
    assert!(images > 300);
    assert_eq!(broken, Vec::<String>::new());
}

/// A forgotten sync would go unnoticed until a power cut.
#[test]
fn each_classic_mistake_is_caught() {
    for mistake in [Mistake::DataSync, Mistake::DirectorySync, Mistake::TemporaryFile] {
        let (images, broken) = sweep(mistake);
        println!("{mistake:?}: {} of {images} images broken, such as {:?}", broken.len(), broken.first());
        assert!(!broken.is_empty(), "{mistake:?} was not noticed in {images} images");
    }
}
