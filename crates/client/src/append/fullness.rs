//! [`FullVolumes`]: volumes of which somebody was told that they take nothing more. Others are told at once then, for
//! [`KNOWN_FOR`], unless this client removed something since. A volume and class that gets a chunk is not full.
//! Not here: how long the first one waits (`wait`).
pub(crate) mod wait;

use super::target::Target;
use cairn_types::{PgClass, Time};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// After somebody was told that a volume is full, it is not waited for.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// Volumes and classes of which somebody was told that they are full, and when. Bounded by their number.
#[derive(Default)]
pub(crate) struct FullVolumes(Mutex<BTreeMap<(u32, PgClass), Time>>);

impl FullVolumes {
    fn is_known(&self, target: Target, now: Time) -> bool {
        self.0.lock().get(&(target.volume, target.class)).is_some_and(|at| now.since(*at) < KNOWN_FOR)
    }
    /// Somebody hears that it is full.
    pub(crate) fn told(&self, target: Target, now: Time) {
        self.0.lock().insert((target.volume, target.class), now);
    }
    /// This client removed something, which is going to be free again.
    pub(crate) fn removed(&self, volume: u32) {
        self.0.lock().retain(|(full, _), _| *full != volume);
    }
    /// It took a chunk.
    pub(crate) fn has_room(&self, target: Target) {
        self.0.lock().remove(&(target.volume, target.class));
    }
}
