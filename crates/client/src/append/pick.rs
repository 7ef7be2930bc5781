//! Choice of the placement group for a new chunk, from the client's view of the cluster (`cairn_placement::pick`).
use crate::cluster::{Cluster, place_of};
use crate::view::{ClusterView, PgView};
use cairn_placement::{Nearness, PgCandidate, pick as pick_of_two};
use cairn_types::{PgId, Scheme};

/// Chooses among the groups of the volume with that scheme that take new chunks, leaving out `avoid`.
pub(crate) fn pick(cluster: &Cluster, volume: u32, scheme: Scheme, avoid: &[PgId]) -> Option<PgView> {
    let view = cluster.view();
    let usable = |pg: &&PgView| {
        pg.volume == volume && pg.scheme == scheme && pg.writable && pg.can_write() && !avoid.contains(&pg.id)
    };
    let usable: Vec<&PgView> = view.pgs.values().filter(usable).collect();
    let candidates: Vec<PgCandidate> = usable.iter().map(|pg| candidate(cluster, &view, pg)).collect();
    pick_of_two(&candidates, cluster.rng.u64()).map(|i| usable[i].clone())
}

fn candidate(cluster: &Cluster, view: &ClusterView, pg: &PgView) -> PgCandidate {
    let queue_depth = pg.serving().filter_map(|disk| view.disks.get(&disk)).map(|d| d.queue_depth).max().unwrap_or(0);
    let nearness = pg.primary().map_or(Nearness::Other, |disk| Nearness::between(cluster.here(), place_of(view, disk)));
    PgCandidate { pg: pg.id, complete: pg.is_complete(), free_bytes: pg.free_bytes, queue_depth, nearness }
}
