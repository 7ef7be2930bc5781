//! Memory of the worker goes back to the system when nobody needs it any more.
//!
//! The C library keeps what was freed below anything that is in use, in one heap for each few threads, and after the
//! first large block that was freed it takes large ones from these heaps, too. A worker that wrote much once would stay
//! as large as it ever was.
use std::time::Duration;

/// How often freed memory is given back.
const EVERY: Duration = Duration::from_secs(20);
/// Blocks of at least this are asked of the system and given back to it one by one. The C library's own first value;
/// setting it ends that it grows.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 << 10;

/// At the start, before there are threads.
pub fn begin() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE)
    };
}

/// Gives back what was freed, from time to time, for ever.
pub async fn give_back() {
    loop {
        tokio::time::sleep(EVERY).await;
        // It looks through all heaps, each under its lock: not where requests are served.
        let _tells_nothing = tokio::task::spawn_blocking(give_back_now).await;
    }
}

fn give_back_now() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers; frees pages that hold nothing.
    unsafe {
        libc::malloc_trim(0)
    };
}
