//! Reads that wait for a member that does not answer, while its group gets other members.
//!
//! A request has the deadline of a network that is alive, and the patience of a whole read is not much longer: one that
//! waits for a member that went would fail although another has its bytes by then, because the map is looked at only
//! between attempts.
use crate::cluster::Cluster;
use crate::view::PgView;
use cairn_types::PgId;
use std::sync::Arc;
use std::time::Duration;

/// A read without an outcome looks for a newer map so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What `read`, which begins with the map that is known now, comes to; `None` as soon as its group is known to have a
/// member that serves, and did not then: it is to be begun again.
pub(super) async fn or_news<T>(cluster: &Arc<Cluster>, pg: PgId, read: impl Future<Output = T>) -> Option<T> {
    let then = cluster.view();
    let news = async {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            cluster.refresh_quietly().await;
            let now = cluster.view();
            let (then, now) = (then.pgs.get(&pg.0), now.pgs.get(&pg.0));
            if now.is_some_and(|now| has_others(then, now)) {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        outcome = read => Some(outcome),
        () = news => None,
    }
}

/// Whether a member serves that did not before, or a shard has another disk.
fn has_others(then: Option<&PgView>, now: &PgView) -> bool {
    now.serving().any(|disk| then.is_none_or(|then| then.serving().all(|known| known != disk)))
}
