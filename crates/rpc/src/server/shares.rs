//! [`Shares`]: how much of the payload pool the unfinished payloads of one address may hold.
//!
//! Invariants: the payloads that an address has begun and not finished hold at most half of the pool, so that others
//! find the rest; whoever waits for its share is served in the order of arrival. What was received whole counts no
//! more. Not here: the pool itself, how long a payload may take (`progress.rs`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use cairn_env::buf::BUF_ALIGN;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::crowd::site;

/// The part of the pool for each address is one of so many.
const PARTS: usize = 2;

/// The shares of all addresses that have connections.
pub(crate) struct Shares {
    pages: u32,
    by_site: Mutex<HashMap<IpAddr, Weak<Share>>>,
}

/// The share of one address.
pub(crate) struct Share {
    room: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// A part of a share, as long as a payload is being received.
pub(crate) struct Held {
    _permit: OwnedSemaphorePermit,
}

impl Shares {
    pub(crate) fn new(pool_bytes: usize) -> Self {
        Self { pages: pages(pool_bytes / PARTS), by_site: Mutex::default() }
    }

    /// The share of an address, common to all of its connections.
    pub(crate) fn of(&self, address: IpAddr) -> Arc<Share> {
        let mut shares = self.by_site.lock();
        if shares.len() == shares.capacity() {
            shares.retain(|_, share| share.strong_count() > 0);
        }
        let known = shares.entry(site(address)).or_default();
        if let Some(share) = known.upgrade() {
            return share;
        }
        let room = Arc::new(Semaphore::new(self.pages as usize));
        let share = Arc::new(Share { room, waiting: AtomicUsize::new(0) });
        *known = Arc::downgrade(&share);
        share
    }
}

impl Share {
    /// Whether connections of the address wait for each other.
    pub(crate) fn is_contended(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Room for a payload, at once or not at all.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<Held> {
        // Those that wait come first: the semaphore gives nothing away that is meant for them.
        let permit = self.room.clone().try_acquire_many_owned(pages(bytes)).ok()?;
        Some(Held { _permit: permit })
    }

    /// Waits for it.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Taking {
        self.waiting.fetch_add(1, Relaxed);
        let room = self.room.clone();
        let future = Box::pin(async move { room.acquire_many_owned(pages(bytes)).await });
        Taking { share: self.clone(), future }
    }
}

type Permit = Result<OwnedSemaphorePermit, tokio::sync::AcquireError>;

/// The wait for a part of a share.
pub(crate) struct Taking {
    share: Arc<Share>,
    future: Pin<Box<dyn Future<Output = Permit> + Send>>,
}

impl Taking {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Held> {
        let permit = ready!(self.future.as_mut().poll(cx)).expect("the semaphore of a share is never closed");
        Poll::Ready(Held { _permit: permit })
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.share.waiting.fetch_sub(1, Relaxed);
    }
}

fn pages(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BUF_ALIGN)).unwrap_or(u32::MAX)
}
