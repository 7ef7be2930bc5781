//! Which session of the cluster a worker uses, noted where the next worker finds it: that one stores what it had queued
//! and ends it if this worker dies, so that locks of programs that may be gone, too, do not wait for the lease to
//! expire.
//!
//! Invariants: a session is ended by another worker only when its own is dead, and after everything open is open under
//! the new worker's session and everything that was acknowledged is stored; the first one is noted before the worker
//! serves anything.
use crate::failure::{Failure, Result};
use crate::queue_file::QueueFile;
use crate::session::Session;
use cairn_client::LeftQueue;
use cairn_vfs::Vfs;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// A new session is noted within this.
const LOOK: Duration = Duration::from_millis(250);
/// A worker does not serve for so long, where what a dead one acknowledged is not stored yet.
const STORE: Duration = Duration::from_secs(10);
/// The first one is waited for so long.
const FIRST: Duration = Duration::from_secs(2);

/// Sessions of workers before this one, which died with them.
pub(super) struct Dead {
    /// The one that served last; 0: none.
    session: u64,
    storing: JoinSet<()>,
    renewing: JoinSet<Infallible>,
}

impl Dead {
    /// What they had acknowledged and not stored is stored, and their sessions are kept alive. What takes longer than a
    /// while goes on behind: nobody gets to what it covers before.
    pub(super) async fn begin(vfs: &Vfs, session: u64, queues: Option<QueueFile>) -> Result<Dead> {
        let (mut worker, mut left) = (0, Vec::new());
        if let Some(mut queues) = queues {
            let found = queues.take_over();
            (worker, left) = found.map_err(|error| Failure::io("what was done in led directories", &error))?;
            vfs.volume().keep_queues_in(Arc::new(queues));
        }
        let mut sessions: BTreeMap<u64, Vec<LeftQueue>> = BTreeMap::new();
        if session != 0 {
            sessions.insert(session, Vec::new());
        }
        left.into_iter().for_each(|queue| sessions.entry(queue.of.session).or_default().push(queue));
        let mut dead = Dead { session, storing: JoinSet::new(), renewing: JoinSet::new() };
        for (session, left) in sessions {
            let session = Arc::new(vfs.volume().dead_session(session, worker));
            let storing = session.clone();
            dead.storing.spawn(async move { storing.store(left).await });
            dead.renewing.spawn(async move { session.renew().await });
        }
        if tokio::time::timeout(STORE, dead.stored()).await.is_err() {
            tracing::warn!(
                "what a dead worker acknowledged in directories that it led is not stored yet; it goes on behind"
            );
        }
        Ok(dead)
    }

    async fn stored(&mut self) {
        while self.storing.join_next().await.is_some() {}
    }

    /// Everything that was open is open again: the session ends, when all is stored.
    pub(super) fn end(mut self, vfs: &Vfs) {
        let volume = vfs.volume().clone();
        tokio::spawn(async move {
            self.stored().await;
            let dead = self.session;
            match volume.end_session_of(dead).await {
                Ok(()) if dead == 0 => {}
                Ok(()) => tracing::info!(session = dead, "the session of the worker that died is ended"),
                Err(error) => {
                    tracing::warn!(session = dead, %error, "the session of the worker that died is left to expire")
                }
            }
        });
    }
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
