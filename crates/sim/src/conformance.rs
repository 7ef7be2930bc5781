//! What every disk does when nothing fails, as functions that run against any [`Disk`].
//!
//! The simulated disk is worth something only if it behaves as the real one does, so both pass this suite (see
//! `tests/conformance.rs`), and so must a disk that is added later. Each function works in a directory of its own
//! and panics with the broken sentence.
//!
//! Not here: faults and crashes (`disk/tests.rs`).

mod data;
mod names;

use std::sync::Arc;

use cairn_env::buf::AlignedBuf;
use cairn_env::disk::{Disk, File, OpenOptions};

/// Runs everything.
pub fn check_all(disk: &dyn Disk) {
    for (name, check) in CHECKS {
        disk.create_dir_all(name).expect("a directory for the check can be made");
        check(disk, name);
    }
}

type Check = fn(&dyn Disk, &str);

/// Every check with its directory.
pub const CHECKS: &[(&str, Check)] = &[
    ("write-read", data::write_then_read),
    ("holes-read-zeros", data::holes_read_as_zeros),
    ("ends", data::reads_stop_at_the_end),
    ("set-len", data::cut_and_grow),
    ("vectored", data::vectored_writes),
    ("direct", data::direct_io),
    ("space", data::space_is_counted),
    ("read-only", data::read_only_handles),
    ("random-io", data::random_io_against_an_oracle),
    ("open", names::open_modes),
    ("rename", names::rename_replaces),
    ("remove", names::removed_files_live_until_closed),
    ("dirs", names::directories),
    ("paths", names::bad_paths),
    ("lock", names::locks_exclude),
];

/// Opens (and makes) a file of the check's directory.
fn create(disk: &dyn Disk, dir: &str, name: &str) -> Arc<dyn File> {
    disk.open(&format!("{dir}/{name}"), OpenOptions::CREATE).expect("a file can be made")
}

/// All bytes of a file.
fn content(file: &dyn File) -> Vec<u8> {
    let len = usize::try_from(file.len().expect("a file has a size")).expect("test files are small");
    let mut bytes = vec![0xee; len];
    file.read_exact_at(&mut bytes, 0).expect("what the size promises can be read");
    bytes
}

/// An aligned buffer of this content.
fn aligned(bytes: &[u8]) -> AlignedBuf {
    let mut buf = AlignedBuf::unpooled(bytes.len());
    buf.extend_from_slice(bytes);
    buf
}
