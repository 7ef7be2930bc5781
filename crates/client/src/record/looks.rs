//! Looking into what went wrong when many requests fail at the same moment: each thing once, not once for each of them.
//!
//! Bounds: the cluster's groups and their members.
use crate::cluster::Cluster;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is being looked into.
#[derive(Default)]
pub(super) struct Looks(Mutex<BTreeSet<Look>>);

/// In a group, under an epoch.
type Look = (u32, u64, What);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum What {
    /// Whether the members answer.
    Members,
    /// Whether there is another map.
    Map,
    /// This disk is reported.
    Report(u32),
}

/// Ends it, whatever comes.
struct Ends(Arc<Cluster>, Look);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.shared.of::<Looks>().0.lock().remove(&self.1);
    }
}

/// Looks into something, unless that is being done.
pub(super) fn look_once<F: Future<Output = ()> + Send + 'static>(
    cluster: &Arc<Cluster>,
    look: Look,
    into: impl FnOnce(Arc<Cluster>) -> F,
) {
    if cluster.shared.of::<Looks>().0.lock().insert(look) {
        let (ends, looking) = (Ends(cluster.clone(), look), into(cluster.clone()));
        tokio::spawn(async move {
            looking.await;
            drop(ends);
        });
    }
}
