//! How many bytes went over the border, and by how many copies: what a test holds against "one copy each".
use crate::border::{Env, bytes_of, guard};
use jni_sys::{JNIEnv, jbyteArray, jclass};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that Java asked for or gave, and bytes that were copied for that, in all of the process.
#[derive(Default)]
pub struct Copies {
    read: AtomicU64,
    written: AtomicU64,
    copied: AtomicU64,
    calls: AtomicU64,
}

pub static COPIES: Copies =
    Copies { read: AtomicU64::new(0), written: AtomicU64::new(0), copied: AtomicU64::new(0), calls: AtomicU64::new(0) };

impl Copies {
    pub(crate) fn read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn written(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
    /// Where a copy is made.
    pub(crate) fn copied(&self, bytes: usize) {
        self.copied.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    fn all(&self) -> [u64; 4] {
        [&self.read, &self.written, &self.copied, &self.calls].map(|count| count.load(Ordering::Relaxed))
    }
}

/// Bytes read, written, copied, calls that read or wrote.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_copies(env: *mut JNIEnv, _class: jclass) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(std::ptr::null_mut(), || bytes_of(&env, &COPIES.all().map(u64::to_le_bytes).concat()))
}
