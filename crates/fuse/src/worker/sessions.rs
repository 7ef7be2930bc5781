//! Which session of the cluster a worker uses, noted where the next worker finds it: that one ends it if this worker
//! dies, so that locks of programs that may be gone, too, do not wait for the lease to expire.
//!
//! Invariants: a session is ended by another worker only when its own is dead, and after everything open is open under
//! the new worker's session; the first one is noted before the worker serves anything.
use crate::session::Session;
use cairn_vfs::Vfs;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// A new session is noted within this.
const LOOK: Duration = Duration::from_millis(250);
/// The first one is waited for so long.
const FIRST: Duration = Duration::from_secs(2);

/// What the worker before this one led ends where it is in the way of what is opened again; until this is dropped.
pub(super) async fn end_wanted(vfs: &Vfs, dead: u64) -> Infallible {
    match dead {
        0 => std::future::pending().await,
        _ => vfs.volume().end_wanted_of(dead).await,
    }
}

/// Ends the session of the worker before this one, if that died with it.
pub(super) fn end_dead(vfs: &Vfs, dead: u64) {
    if dead == 0 {
        return;
    }
    let volume = vfs.volume().clone();
    tokio::spawn(async move {
        match volume.end_session_of(dead).await {
            Ok(()) => tracing::info!(session = dead, "the session of the worker that died is ended"),
            Err(error) => {
                tracing::warn!(session = dead, %error, "the session of the worker that died is left to expire")
            }
        }
    });
}

/// Notes the session as long as this worker serves, from now on.
pub(super) async fn note(session: &Arc<Session>) {
    let mut noted = match tokio::time::timeout(FIRST, session.vfs.volume().session_number()).await {
        Ok(Ok(first)) => first,
        // Whatever needs one says why there is none.
        Ok(Err(_)) | Err(_) => 0,
    };
    session.table.note_session(noted);
    let weak = Arc::downgrade(session);
    tokio::spawn(async move {
        while let Some(session) = weak.upgrade().filter(|session| !session.is_abandoned()) {
            let present = session.vfs.volume().present_session().unwrap_or_default();
            if present != noted {
                session.table.note_session(present);
                noted = present;
            }
            drop(session);
            tokio::time::sleep(LOOK).await;
        }
    });
}
