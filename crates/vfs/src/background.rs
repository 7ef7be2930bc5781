//! Work behind the operations: writing out what is old, publishing, letting go of closed files, renewing after the
//! session was lost.
//!
//! Bounds: one publish of a file at a time; [`LINGERING_MAX`] closed files are still held; [`ATIMES_MAX`] access times
//! wait to be sent, more are forgotten.
use crate::error::VfsError;
use crate::file::File;
use crate::ops::open::end_lease;
use crate::vfs::Inner;
use cairn_client::changes::{SetAttributes, SetTime};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// Pause between rounds, unless memory runs short.
const TICK: Duration = Duration::from_millis(100);
/// A hold outlasts the last handle so long.
const LINGER: Duration = Duration::from_secs(1);
const LINGERING_MAX: usize = 4096;
/// Access times are sent so often.
const ATIMES_EVERY: Duration = Duration::from_secs(30);
/// Durable bytes of a file that are published without waiting for their age.
const PUBLISH_BYTES: usize = 64 << 20;
/// Scattered bytes of a file that are overwritten in place without waiting for their age.
const IN_PLACE_BYTES: usize = 4 << 20;
/// Calls of one kind at a time.
const PARALLEL: usize = 32;
/// Files that were closed before they were durable are looked after so often: so all are durable within five seconds
/// while members answer.
const VOLATILE_EVERY: Duration = Duration::from_secs(1);
/// Files that were closed a while ago are let go of so often: each time is an entry in the log.
const RELEASE_EVERY: Duration = Duration::from_millis(250);
/// Whether the session is still the same is looked at so often.
const SESSION_EVERY: Duration = Duration::from_secs(1);

/// State of the background work.
#[derive(Default)]
pub(crate) struct Background {
    hurry: Notify,
    /// Closed files that are still held, by inode: under which session, since when.
    lingering: Mutex<BTreeMap<u64, (u64, Option<Instant>)>>,
    /// Those that are being let go of: an open waits for that.
    releasing: Mutex<BTreeSet<u64>>,
    released: Notify,
    pub(crate) sessions_lost: AtomicU64,
    pub(crate) write_errors: AtomicU64,
    last_error: Mutex<Option<String>>,
    /// Closed files are being made durable.
    settling: std::sync::atomic::AtomicBool,
    stopped: std::sync::atomic::AtomicBool,
}

impl Background {
    /// Memory is short: write now.
    pub(crate) fn hurry(&self) {
        self.hurry.notify_one();
    }
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.hurry();
    }
    pub(crate) fn linger(&self, ino: u64, session: u64) {
        let mut lingering = self.lingering.lock();
        // With too many the next round lets go of all of them.
        let since = (lingering.len() < LINGERING_MAX).then(Instant::now);
        lingering.insert(ino, (session, since));
        if since.is_none() {
            self.hurry();
        }
    }
    /// The session under which a closed file is still held; whoever asks goes on with the hold.
    pub(crate) fn take_lingering(&self, ino: u64) -> Option<u64> {
        self.lingering.lock().remove(&ino).map(|(session, _)| session)
    }
    /// Takes out what is to be let go of.
    fn over(&self, all: bool) -> Vec<(u64, u64)> {
        let mut lingering = self.lingering.lock();
        let full = all || lingering.len() >= LINGERING_MAX;
        let is_over = |since: &Option<Instant>| full || since.is_none_or(|since| since.elapsed() >= LINGER);
        let over: Vec<_> =
            lingering.iter().filter(|(_, (_, since))| is_over(since)).map(|(i, (s, _))| (*i, *s)).collect();
        lingering.retain(|_, (_, since)| !is_over(since));
        self.releasing.lock().extend(over.iter().map(|(ino, _)| *ino));
        over
    }
    fn are_released(&self, inodes: &[u64]) {
        let mut releasing = self.releasing.lock();
        inodes.iter().for_each(|ino| {
            releasing.remove(ino);
        });
        drop(releasing);
        self.released.notify_waiters();
    }
    /// A hold that is taken while an older one is let go of might go with it.
    pub(crate) async fn wait_released(&self, ino: u64) {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            // From here on no notification is missed.
            released.as_mut().enable();
            if !self.releasing.lock().contains(&ino) {
                return;
            }
            released.await;
        }
    }
    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }
    fn failed(&self, file: &File, error: &VfsError) {
        if error.errno == libc::ESTALE && file.data.is_clean() {
            // Its writers are told when they flush or close it.
            tracing::info!(inode = file.ino, %error, "what was written behind is dropped");
            return;
        }
        self.write_errors.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(inode = file.ino, %error, "written data could not be stored yet; it is kept and tried again");
        *self.last_error.lock() = Some(error.to_string());
    }
}

/// Rounds until the mount ends.
pub(crate) async fn run(inner: Weak<Inner>) {
    let publishes = Arc::new(Semaphore::new(PARALLEL));
    let (mut session, mut session_at, mut atimes_at) = (0, Instant::now(), Instant::now());
    let (mut released_at, mut settled_at) = (Instant::now(), Instant::now());
    loop {
        {
            let Some(inner) = inner.upgrade() else { return };
            let hurry = inner.background.hurry.notified();
            let _tick_or_hurry = tokio::time::timeout(TICK, hurry).await;
        }
        let Some(inner) = inner.upgrade() else { return };
        if inner.background.stopped.load(Ordering::Acquire) {
            return;
        }
        write_round(&inner, &publishes);
        if released_at.elapsed() >= RELEASE_EVERY {
            released_at = Instant::now();
            release_round(&inner, false).await;
        }
        if settled_at.elapsed() >= VOLATILE_EVERY {
            settled_at = Instant::now();
            settle_round(&inner);
        }
        if session_at.elapsed() >= SESSION_EVERY {
            session_at = Instant::now();
            session = check_session(&inner, session).await;
        }
        if atimes_at.elapsed() >= ATIMES_EVERY {
            atimes_at = Instant::now();
            send_atimes(&inner).await;
        }
    }
}

fn write_round(inner: &Arc<Inner>, publishes: &Arc<Semaphore>) {
    let short = inner.budget.used() > inner.budget.limit() / 4 * 3;
    for file in inner.files.all() {
        inner.tell_changes(&file);
        let status = file.data.status();
        if file.data.has_idle_lease() {
            end_lease(&file);
        }
        let told = status.untold_age.is_none() && status.later_age.is_none();
        let idle = status.dirty_bytes == 0 && status.flights == 0 && told;
        if idle || !file.may_write_behind() {
            continue;
        }
        let old = |age: Option<Duration>, limit| age.is_some_and(|age| age >= limit);
        if old(status.later_age, inner.options.write_after) {
            behind(inner, &file, publishes, |file| async move { file.data.send_later().await.map(|()| true) });
        }
        let in_place =
            status.dirty_bytes >= IN_PLACE_BYTES || short || old(status.dirty_age, inner.options.write_after);
        if in_place && file.data.goes_in_place() {
            behind(inner, &file, publishes, |file| async move { file.data.flush().await.map(|()| true) });
            continue;
        }
        if short || old(status.dirty_age, inner.options.write_after) {
            file.data.write_all_behind();
        }
        if old(status.untold_age, inner.options.publish_after) {
            behind(inner, &file, publishes, |file| async move { file.data.tell().await.map(|()| true) });
            continue;
        }
        let aged = old(status.unpublished_age, inner.options.publish_after);
        let much = status.durable_bytes >= PUBLISH_BYTES || short && status.flights > 0;
        if aged || much {
            behind(inner, &file, publishes, move |file| async move {
                match aged || short {
                    // Also what is not durable yet, so that a slow one is waited for.
                    true => file.data.publish_flights().await,
                    false => file.data.publish_durable().await,
                }
            });
        }
    }
}

/// Work of one kind on a file at a time, whose outcome is noted; it answers whether something was done.
fn behind<F: Future<Output = cairn_client::Result<bool>> + Send + 'static>(
    inner: &Arc<Inner>,
    file: &Arc<File>,
    publishes: &Arc<Semaphore>,
    work: impl FnOnce(Arc<File>) -> F + Send + 'static,
) {
    if file.publishing.swap(true, Ordering::AcqRel) {
        return;
    }
    let (inner, file, publishes) = (inner.clone(), file.clone(), publishes.clone());
    tokio::spawn(async move {
        let _one_of_a_few = publishes.acquire().await;
        match work(file.clone()).await.map_err(VfsError::from) {
            Ok(true) => drop(file.note(Ok(()))),
            Ok(false) => {}
            Err(error) => {
                inner.background.failed(&file, &error);
                drop(file.note(Err(error)));
            }
        }
        file.publishing.store(false, Ordering::Release);
    });
}

/// Makes files durable that were closed a while ago.
fn settle_round(inner: &Arc<Inner>) {
    if inner.volume.volatile_count() == 0 || inner.background.settling.swap(true, Ordering::AcqRel) {
        return;
    }
    let inner = inner.clone();
    tokio::spawn(async move {
        if let Err(error) = inner.volume.make_older_durable(inner.options.durable_after).await {
            inner.background.write_errors.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "closed files could not be made durable yet; it is tried again");
            *inner.background.last_error.lock() = Some(error.to_string());
        }
        inner.background.settling.store(false, Ordering::Release);
    });
}

/// Lets go of files that were closed a while ago, or of all.
pub(crate) async fn release_round(inner: &Arc<Inner>, all: bool) {
    let over = inner.background.over(all);
    if over.is_empty() {
        return;
    }
    let inner = inner.clone();
    let work = async move {
        let session = inner.volume.session_number().await.unwrap_or_default();
        let held: Vec<u64> = over.iter().filter(|(_, under)| *under == session).map(|(ino, _)| *ino).collect();
        if let Err(error) = inner.volume.release_inodes(&held).await {
            tracing::debug!(%error, "closed files are released with the session");
        }
        inner.background.are_released(&over.iter().map(|(ino, _)| *ino).collect::<Vec<_>>());
    };
    if all { work.await } else { drop(tokio::spawn(work)) }
}

pub(crate) async fn send_atimes(inner: &Arc<Inner>) {
    for file in inner.files.all() {
        let told = file.data.attributes().atime_ns;
        if file.atime() > told {
            inner.atimes.note(file.ino, file.atime());
        }
    }
    let send = |inner: Arc<Inner>, (ino, atime_ns): (u64, i64)| async move {
        let atime = Some(SetTime::At(atime_ns));
        let set = SetAttributes { atime, atime_is_late: true, ..SetAttributes::default() };
        // Removed meanwhile, or not this user's: access times are worth no more than one attempt.
        match inner.volume.setattr(ino, format!("inode {ino}").as_bytes(), set).await {
            Ok(found) => drop(inner.attr(&found)),
            Err(error) => tracing::debug!(inode = ino, %error, "an access time was not kept"),
        }
        inner.atimes.was_sent(ino, atime_ns);
    };
    in_parallel(inner, inner.atimes.all(), send).await;
}

async fn in_parallel<T: Send + 'static, F: Future<Output = ()> + Send + 'static>(
    inner: &Arc<Inner>,
    items: Vec<T>,
    work: impl Fn(Arc<Inner>, T) -> F,
) {
    let mut running = tokio::task::JoinSet::new();
    for item in items {
        if running.len() == PARALLEL {
            running.join_next().await;
        }
        running.spawn(work(inner.clone(), item));
    }
    while running.join_next().await.is_some() {}
}

/// After another session was opened, everything that is open is opened under it again.
async fn check_session(inner: &Arc<Inner>, known: u64) -> u64 {
    if known == 0 && inner.files.count() == 0 {
        return 0;
    }
    let now = match inner.volume.session_number().await {
        Ok(now) => now,
        Err(error) => {
            tracing::debug!(%error, "no session at present");
            return known;
        }
    };
    let files = inner.files.all();
    let other = |session: u64| session != 0 && session != now;
    if !other(known) && !files.iter().any(|file| other(file.held()) || other(file.soft())) {
        return now;
    }
    inner.background.sessions_lost.fetch_add(1, Ordering::Relaxed);
    tracing::warn!(session = now, before = known, "the session was lost: opening files again under a new one");
    let renew = |inner: Arc<Inner>, file: Arc<File>| async move {
        let _opening = inner.opening(file.ino).lock().await;
        file.lose_locks();
        let shown_as = format!("inode {}", file.ino);
        if file.held() != 0 && file.held() != now {
            match inner.volume.hold_inode(file.ino, shown_as.as_bytes(), true).await {
                Ok(_) => file.set_held(now),
                Err(error) => tracing::warn!(inode = file.ino, %error, "an open file is gone"),
            }
        } else if file.soft() != 0 && file.soft() != now {
            match inner.volume.open_for_read(file.ino, 0, 0).await {
                Ok(opened) => {
                    file.data.reopened(&opened);
                    file.set_soft(now);
                }
                Err(error) => tracing::warn!(inode = file.ino, %error, "an open file is gone"),
            }
        }
    };
    in_parallel(inner, files, renew).await;
    now
}
