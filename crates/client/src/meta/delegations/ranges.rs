//! [`Ranges`]: which numbers of inodes this client leads.
use cairn_delegate_core::way::{Led, Way};
use cairn_wire::Opcode;
use parking_lot::RwLock;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Default)]
pub(super) struct Ranges {
    /// There is one: requests are looked at.
    any: AtomicBool,
    led: RwLock<Led>,
}

impl Ranges {
    pub(super) fn is_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Whether requests are looked at from now on.
    pub(super) fn look(&self, looked_at: bool) {
        self.any.store(looked_at, Ordering::Release);
    }

    pub(super) fn add(&self, number: u64, covered: RangeInclusive<u64>) {
        self.led.write().add(number, covered);
    }

    pub(super) fn remove(&self, number: u64) {
        self.led.write().remove(number);
    }

    /// The delegation that covers an inode.
    pub(super) fn of(&self, inode: u64) -> Option<u64> {
        if self.is_any() { self.led.read().of(inode) } else { None }
    }

    pub(super) fn way(&self, opcode: Opcode, request: &[u8]) -> Way {
        self.led.read().way(opcode, request)
    }
}
