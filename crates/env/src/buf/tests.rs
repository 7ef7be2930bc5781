//! Tests of the buffers: alignment, bounds, reuse, order of waiting, and views that share one owner.

use super::pool::*;
use super::*;
use std::time::Duration;

/// Direct I/O fails with EINVAL when a buffer's start or capacity is not aligned.
#[test]
fn buffers_are_aligned_and_bounded() {
    let pool = BufPool::new(64 << 20);
    for want in [0, 1, 4096, 4097, 65_536, 70_000, 1 << 20, (1 << 20) + 4096, 64 << 20] {
        let buf = pool.try_take(want).unwrap();
        assert_eq!(buf.as_ptr() as usize % BUF_ALIGN, 0);
        assert_eq!(buf.capacity() % BUF_ALIGN, 0);
        assert!(buf.capacity() >= want);
        assert!(buf.capacity() <= want.max(4096) * 5 / 4 + 4096, "{want} gave {}", buf.capacity());
    }
    assert_eq!(pool.in_use(), 0);
}

/// Memory of a server is unbounded if the pool hands out, or keeps idle, more than its limit.
#[test]
fn limit_holds_and_idle_memory_makes_room() {
    let pool = BufPool::new(1 << 20);
    let held: Vec<_> = (0..16).map(|_| pool.try_take(65_536).unwrap()).collect();
    assert!(matches!(pool.try_take(1), Err(BufError::Exhausted { .. })));
    assert!(matches!(pool.try_take(2 << 20), Err(BufError::TooLarge { .. })));
    assert!(matches!(pool.try_take(usize::MAX), Err(BufError::TooLarge { .. })));
    drop(held);
    assert_eq!((pool.in_use(), pool.idle()), (0, 1 << 20));
    let big = pool.try_take(1 << 20).unwrap();
    assert_eq!((pool.in_use(), pool.idle()), (1 << 20, 0));
    drop(big);
}

/// Without reuse each payload would fault in fresh pages.
#[test]
fn returned_memory_is_reused() {
    let pool = BufPool::new(1 << 20);
    let first = pool.try_take(65_536).unwrap();
    let address = first.as_ptr();
    drop(first);
    assert_eq!(pool.try_take(60_000).unwrap().as_ptr(), address);
}

/// What a burst took would stay with the process for ever, also when nobody needs it any more.
#[test]
fn idle_memory_goes_back_when_nobody_needs_it() {
    let pool = BufPool::new(16 << 20);
    let burst: Vec<_> = (0..4).map(|_| pool.try_take(4 << 20).unwrap()).collect();
    drop(burst);
    pool.trim();
    assert_eq!(pool.idle(), 16 << 20, "all of it was in use a moment ago");
    drop(pool.try_take(4 << 20).unwrap());
    pool.trim();
    assert_eq!(pool.idle(), 4 << 20, "one was needed meanwhile, three were not");
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    drop(pool);
    // The allocator must not keep it instead: with something small in use above, it would.
    let before = resident();
    let pool = BufPool::new(512 << 20);
    let mut burst: Vec<_> = (0..100).map(|_| (pool.try_take(4 << 20).unwrap(), vec![1u8; 100_000])).collect();
    burst.iter_mut().for_each(|(buf, _)| buf.resize(4 << 20));
    let small: Vec<_> = burst.into_iter().map(|(_, small)| small).collect();
    pool.trim();
    pool.trim();
    assert_eq!(pool.held(), 0);
    let kept = resident().saturating_sub(before);
    assert!(kept < 100 << 20, "{kept} bytes are still resident");
    drop(small);
}

/// A wrong length arithmetic would expose stale bytes or write past the end.
#[test]
fn lengths_and_padding() {
    let mut buf = AlignedBuf::unpooled(5000);
    assert_eq!(buf.capacity(), 8192);
    buf.extend_from_slice(b"hello");
    buf.spare_mut()[..3].copy_from_slice(b"abc");
    buf.advance(3);
    assert_eq!(&buf[..], b"helloabc");
    assert_eq!(buf.pad_to_align(), 4088);
    assert!(buf[8..].iter().all(|&b| b == 0));
    buf.truncate(2);
    buf.resize(4);
    assert_eq!(&buf[..], b"he\0\0");
    buf.clear();
    assert!(buf.is_empty());
}

/// A forwarded payload would go back to the pool while a send still reads it.
#[test]
fn shared_views_keep_the_buffer() {
    let pool = BufPool::new(1 << 20);
    let mut buf = pool.try_take(100).unwrap();
    buf.extend_from_slice(b"0123456789");
    let mut whole = buf.freeze();
    let part = whole.slice(2..=4);
    let head = whole.split_to(3);
    assert_eq!((&part[..], &head[..], &whole[..]), (&b"234"[..], &b"012"[..], &b"3456789"[..]));
    drop((whole, head));
    assert_eq!(pool.in_use(), 4096);
    drop(part);
    assert_eq!(pool.in_use(), 0);
    assert!(SharedBuf::empty().is_empty());
    assert_eq!(SharedBuf::from(vec![1, 2]), SharedBuf::from_static(&[1, 2]));
}

/// A large request would starve, or a wake-up get lost, if the queue were not first come, first served.
#[test]
fn waiters_are_served_in_order() {
    let pool = BufPool::new(1 << 20);
    let half = pool.try_take(512 << 10).unwrap();
    let other = pool.try_take(256 << 10).unwrap();
    let big = std::thread::spawn({
        let pool = pool.clone();
        move || pool.take_blocking(1 << 20, Duration::from_secs(30)).map(|b| b.capacity())
    });
    // Once the big one waits, a small request is refused although it would fit.
    let mut refused = false;
    for _ in 0..30_000 {
        if pool.try_take(4096).is_err() {
            refused = true;
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(refused);
    drop(half);
    drop(other);
    assert_eq!(big.join().unwrap(), Ok(1 << 20));
    assert_eq!(pool.in_use(), 0);
}

/// A wait that timed out would block everybody behind it for ever if it kept its place.
#[test]
fn a_given_up_wait_lets_the_next_in() {
    let pool = BufPool::new(1 << 20);
    let half = pool.try_take(512 << 10).unwrap();
    assert!(matches!(pool.take_blocking(1 << 20, Duration::from_millis(5)), Err(BufError::Exhausted { .. })));
    assert!(pool.try_take(512 << 10).is_ok());
    drop(half);
}

/// A lost wake-up would hang a server under memory pressure for ever; a wrong account would break the bound.
#[test]
fn many_threads_share_a_tight_pool() {
    const LIMIT: usize = 256 << 10;
    let pool = BufPool::new(LIMIT);
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..500usize {
                    let size = 1 + (round * 7919 + thread * 104_729) % LIMIT;
                    let wait = Duration::from_secs(if round % 10 == 0 { 0 } else { 60 });
                    let Ok(mut buf) = pool.take_blocking(size, wait) else {
                        assert!(wait.is_zero(), "a waiter was forgotten");
                        continue;
                    };
                    assert!(pool.held() <= LIMIT);
                    buf.resize(size);
                    buf.fill(thread as u8);
                    if round % 3 == 0 {
                        std::thread::yield_now();
                    }
                    let shared = buf.freeze();
                    assert!(shared.iter().all(|&b| b == thread as u8), "two threads had one buffer");
                }
            });
        }
    });
    assert_eq!(pool.in_use(), 0);
}

/// A dropped future must pass its turn on; otherwise everybody behind it hangs.
#[test]
fn a_dropped_future_wakes_the_next() {
    use std::future::Future;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let pool = BufPool::new(8192);
    let held = pool.try_take(4096).unwrap();
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    let mut big = Box::pin(pool.take(8192));
    let mut small = Box::pin(pool.take(4096));
    assert!(big.as_mut().poll(&mut context).is_pending());
    assert!(small.as_mut().poll(&mut context).is_pending(), "the small one must not overtake");
    drop(big);
    assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    assert!(matches!(small.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    drop(held);
}
