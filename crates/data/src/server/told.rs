//! [`Told`]: a state that was told and is not on the disk. Mostly that lasts as long as a sync; a disk without room
//! takes none.
//!
//! Invariant: nothing is answered against a state that was told, whether the disk has it or not. It is told on to the
//! disk with each heartbeat: nobody else repeats it to a member that left.

use std::sync::Arc;

use cairn_format::pg_state::PgStateRecord;
use cairn_types::{DiskId, Epoch, PgId};
use cairn_wire::data::PgState;
use parking_lot::Mutex;

use super::Inner;
use super::epochs::Teller;

/// The newest of them.
#[derive(Default)]
pub(super) struct Told {
    newest: Mutex<Option<News>>,
}

/// A state as it was told.
#[derive(Clone)]
struct News {
    record: Arc<PgStateRecord>,
    state: PgState,
    teller: Teller,
}

impl Told {
    /// A state was told that the disk has not got.
    pub(super) fn note(&self, record: &PgStateRecord, state: &PgState, teller: Teller) {
        let mut newest = self.newest.lock();
        if newest.as_ref().is_none_or(|known| known.record.epoch < record.epoch) {
            *newest = Some(News { record: Arc::new(record.clone()), state: state.clone(), teller });
        }
    }

    /// The disk has one of this epoch.
    pub(super) fn stored(&self, epoch: Epoch) {
        let mut newest = self.newest.lock();
        if newest.as_ref().is_some_and(|known| known.record.epoch <= epoch) {
            *newest = None;
        }
    }

    pub(super) fn record(&self) -> Option<Arc<PgStateRecord>> {
        self.newest.lock().as_ref().map(|news| news.record.clone())
    }
}

impl Inner {
    /// Tries once more to store what disks had no room for.
    pub(super) fn store_told(self: &Arc<Self>) {
        let news = |((disk, _), runtime): (&(DiskId, PgId), &Arc<super::member::PgRuntime>)| {
            Some((*disk, runtime.told.newest.lock().clone()?))
        };
        let left: Vec<(DiskId, News)> = self.runtimes.lock().iter().filter_map(news).collect();
        for (disk, News { record, state, teller }) in left {
            self.take_state_on(disk, &state, record.term, teller, |_, _| {});
        }
    }
}
