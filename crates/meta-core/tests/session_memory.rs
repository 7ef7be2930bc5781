//! What a session and a slot of it take from the allocator, and that it agrees with what is accounted. One test,
//! because it watches the allocator of the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use cairn_meta_core::{AppliedAt, Namespace, NamespaceConfig};
use cairn_types::{PartitionId, VolumeId, WallTime};
use cairn_wire::Opcode;
use cairn_wire::common::Credentials;
use cairn_wire::meta::{EndSessionRequest, MetaHeader, RmdirRequest};
use prost::Message;

struct Counting;

thread_local! {
    static ALLOCATED: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // The thread may be ending, when its counter is gone and of no interest.
    let _ = ALLOCATED.try_with(|total| total.set(total.get() + bytes));
}

// SAFETY: passes every call through to the system's allocator unchanged; the counter never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocated() -> isize {
    ALLOCATED.with(Cell::get)
}

/// Removes a directory that is not there, in a slot of a session: the error is kept.
fn fail(namespace: &mut Namespace, index: u64, session: u64, slot: u32) {
    let who = Some(Credentials { uid: 0, gid: 0, groups: Vec::new() });
    let header = Some(MetaHeader { volume: 1, partition: 1, session, slot, sequence: 1, who });
    let request = RmdirRequest { header, parent: 1, name: b"none".to_vec() }.encode_to_vec();
    let at = AppliedAt { index, term: 1, time: WallTime(index) };
    assert!(namespace.apply(at, Opcode::Rmdir, &request, &mut Vec::new()).is_err());
}

/// 200,000 sessions that each made one failing request in slot 255 took 1.6 GiB of every member. A slot costs what it
/// holds, whatever its number, all of it is accounted, and it is given back when the session ends.
#[test]
fn sessions_cost_what_their_used_slots_hold() {
    const SESSIONS: u64 = 20_000;
    let mut namespace =
        Namespace::new(&NamespaceConfig::new(VolumeId(1), PartitionId(1), cairn_types::Layout::replicated(3)));
    fail(&mut namespace, 1, 1, 0);
    let (before, accounted_before) = (allocated(), namespace.memory_bytes());
    (2..2 + SESSIONS).for_each(|session| fail(&mut namespace, session, session, 255));
    let real = u64::try_from(allocated() - before).expect("sessions are kept");
    let accounted = namespace.memory_bytes() - accounted_before;
    println!("{} bytes a session, {} accounted", real / SESSIONS, accounted / SESSIONS);
    assert!(real <= 300 * SESSIONS, "{} bytes a session", real / SESSIONS);
    assert!(accounted * 5 >= real * 4 && accounted * 4 <= real * 5, "{real} bytes taken, {accounted} accounted");

    let one = (allocated(), namespace.memory_bytes());
    (0..255).for_each(|slot| fail(&mut namespace, 1_000_000 + u64::from(slot), 2, slot));
    let (real, accounted) = (allocated() - one.0, namespace.memory_bytes() - one.1);
    assert!(real <= 255 * 200 && accounted <= 255 * 200, "{real} bytes for 255 slots, {accounted} accounted");

    for session in 2..2 + SESSIONS {
        let header = Some(MetaHeader { volume: 1, partition: 1, session, ..MetaHeader::default() });
        let header = header.map(|header| MetaHeader { who: Some(Credentials::default()), ..header });
        let request = EndSessionRequest { header }.encode_to_vec();
        let at = AppliedAt { index: 2_000_000 + session, term: 1, time: WallTime(session) };
        namespace.apply(at, Opcode::EndSession, &request, &mut Vec::new()).expect("ended");
    }
    assert!(allocated() - before <= 20 * SESSIONS as isize, "{} bytes stay", allocated() - before);
}
