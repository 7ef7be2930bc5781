//! Attributes of a file that this client made and nobody has seen contents of: set here at once, told to the servers
//! with the first contents, in one request where the partition knows that, or soon after. A program that unpacks an
//! archive sets times, owner and mode of each file it writes.
//!
//! Invariants: contents are published only after the attributes that were set before them; a file is not clean while
//! some wait; what the servers refuse keeps no contents from being published. Not here: who may set them, and which of
//! them may wait (`vfs`).
use super::{By, FileData, State};
use crate::attributes::Attributes;
use crate::changes::{SetAttributes, SetTime};
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use cairn_types::{ErrorCode, Time};
use std::time::Duration;

const PERMISSIONS: u32 = 0o7777;

/// What depends on nothing that others may change, and can all be set by one request.
fn can_wait(set: &SetAttributes) -> bool {
    let SetAttributes { size, atime, mtime, layout, kill_privileges, atime_is_late, .. } = *set;
    let now = [atime, mtime].contains(&Some(SetTime::Now));
    size.is_none() && layout.is_none() && !kill_privileges && !atime_is_late && !now
}

/// The time in nanoseconds, of what can wait.
fn at(set: Option<SetTime>) -> Option<i64> {
    match set {
        Some(SetTime::At(ns)) => Some(ns),
        Some(SetTime::Now) | None => None,
    }
}

/// Attributes that wait.
#[derive(Clone)]
pub(super) struct Later {
    set: SetAttributes,
    writer: Volume,
    pub since: Time,
    ctime_ns: i64,
    /// Another one after each addition.
    number: u64,
}

impl Later {
    fn add(&mut self, more: &SetAttributes, ctime_ns: i64) {
        let set = &mut self.set;
        set.mode = more.mode.or(set.mode);
        set.uid = more.uid.or(set.uid);
        set.gid = more.gid.or(set.gid);
        set.atime = more.atime.or(set.atime);
        set.mtime = more.mtime.or(set.mtime);
        self.ctime_ns = ctime_ns;
        self.number += 1;
    }
    /// As the servers will answer them.
    pub fn put_over(&self, attributes: &mut Attributes) {
        let set = &self.set;
        if let Some(mode) = set.mode {
            attributes.mode = attributes.mode & !PERMISSIONS | mode & PERMISSIONS;
        }
        attributes.uid = set.uid.unwrap_or(attributes.uid);
        attributes.gid = set.gid.unwrap_or(attributes.gid);
        attributes.atime_ns = at(set.atime).unwrap_or(attributes.atime_ns);
        attributes.mtime_ns = at(set.mtime).unwrap_or(attributes.mtime_ns);
        attributes.ctime_ns = attributes.ctime_ns.max(self.ctime_ns);
    }
}

/// Before a partition is asked again that did not know how to take them along with contents.
const APART: Duration = Duration::from_secs(60);

/// Attributes on their way along with contents.
pub(super) struct Along<'a> {
    pub set: SetAttributes,
    number: u64,
    _telling: tokio::sync::MutexGuard<'a, ()>,
}

/// He may not set them any more: it will never be otherwise, and the file's contents wait for it.
fn is_refused(error: &ClientError) -> bool {
    matches!(error.code(), Some(ErrorCode::NotPermitted | ErrorCode::PermissionDenied))
}

impl State {
    /// It was published along with contents.
    pub(super) fn went_along(&mut self, along: &Along<'_>) {
        self.later.take_if(|waiting| waiting.number == along.number);
    }
    /// Bytes are written: the time of modification is theirs, and no longer what was set before.
    pub(super) fn wrote_later(&mut self) {
        if let Some(later) = &mut self.later {
            later.set.mtime = None;
        }
    }
}

impl FileData {
    /// This client made the file a moment ago, with that version of its contents: nobody has seen any of it.
    pub fn was_made(&self, data_version: u64) {
        self.state.lock().made_at = Some(data_version);
    }
    /// Sets attributes that the servers are told of later. False if they have to be told now: others may have seen
    /// contents of the file, somebody else's attributes wait, or these cannot.
    pub fn set_later(&self, writer: &Volume, set: &SetAttributes, ctime_ns: i64) -> bool {
        let now = self.now();
        let mut state = self.state.lock();
        let unseen = state.made_at == Some(state.attributes.data_version) && state.attributes.nlink > 0;
        let other = state.later.as_ref().is_some_and(|later| later.writer.who() != writer.who());
        if !can_wait(set) || !unseen || other {
            return false;
        }
        if let Some(mtime_ns) = at(set.mtime)
            && state.unpublished_since.is_some()
        {
            // What is published keeps it.
            state.mtime_ns = Some(mtime_ns);
        }
        let writer = writer.clone();
        let new = || Later { set: SetAttributes::default(), writer, since: now, ctime_ns, number: 0 };
        state.later.get_or_insert_with(new).add(set, ctime_ns);
        true
    }
    /// Whether what waits can go along with a publish: it is of the user for whom that is done.
    pub(super) fn goes_along(&self) -> bool {
        let cluster = self.volume.cluster();
        let apart = cluster.apart.read().is_some_and(|since| self.now().since(since) < APART);
        let state = self.state.lock();
        !apart && state.later.as_ref().is_some_and(|later| later.writer.who() == state.writer.who())
    }
    /// What is to go along with a publish; if that cannot be, the servers are told of it before.
    pub(super) async fn take_along(&self) -> Result<Option<Along<'_>>> {
        if self.goes_along() {
            let telling = self.telling.lock().await;
            let later = self.state.lock().later.clone();
            // Nobody may have waited for it but for the lock.
            if let Some(later) = later.filter(|_| self.goes_along()) {
                return Ok(Some(Along { set: later.set, number: later.number, _telling: telling }));
            }
        }
        self.send_later().await.map(|()| None)
    }
    /// Whether a publish is to be tried again without what went along with it: the partition does not know that, or
    /// refuses it.
    pub(super) fn goes_apart(&self, error: &ClientError) -> bool {
        let unknown = error.code() == Some(ErrorCode::UnknownOperation);
        if unknown {
            *self.volume.cluster().apart.write() = Some(self.now());
        }
        unknown || is_refused(error)
    }
    /// Nothing waits from now on: what is set goes to the servers at once.
    pub fn end_later(&self) {
        self.state.lock().made_at = None;
    }
    pub fn has_later(&self) -> bool {
        self.state.lock().later.is_some()
    }
    /// Tells the servers of attributes that wait. After an error they wait on.
    pub async fn send_later(&self) -> Result<()> {
        while self.has_later() {
            let _one_at_a_time = self.telling.lock().await;
            let Some(later) = self.state.lock().later.clone() else { break };
            let answer = match later.writer.setattr(self.inode, &self.shown_as, later.set).await {
                Ok(answer) => Some(answer),
                Err(error) if is_refused(&error) => {
                    let text =
                        "somebody else changed the owner of a new file; what its maker set just before does not count";
                    tracing::warn!(inode = self.inode, %error, "{text}");
                    None
                }
                Err(error) => return Err(self.named(error)),
            };
            let now = self.now();
            self.with(0, |state| {
                if let Some(answer) = answer {
                    state.learn(answer, now, By::Unknown);
                }
                // What was added meanwhile goes with all before it once more.
                state.later.take_if(|waiting| waiting.number == later.number);
            });
        }
        Ok(())
    }
}
