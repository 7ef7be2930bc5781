//! Choice of the placement group for a new chunk, from the client's view of the cluster (`cairn_placement::pick`).
//!
//! Invariant: a column of a stripe group gets only what is encoded to its later scheme. Such data goes to groups of no
//! class, too, where fewer columns are complete than a stripe group has: the manager makes those then. Else all writers
//! would meet on the last column, or write less copies than others do.
use crate::cluster::{Cluster, place_of};
use crate::view::{ClusterView, PgView};
use cairn_placement::{Nearness, PgCandidate, pick as pick_of_two, pick_near};
use cairn_types::{PgClass, PgId, Scheme, StripeGroupId};
use std::collections::BTreeMap;

/// Chooses among the groups of the volume for that class that take new chunks, leaving out `avoid`.
pub(crate) fn pick(cluster: &Cluster, volume: u32, class: PgClass, avoid: &[PgId]) -> Option<PgView> {
    let view = cluster.view();
    let (usable, columns) = usable(&view, volume, class, avoid);
    let candidates: Vec<PgCandidate> = usable.iter().map(|pg| candidate(cluster, &view, pg)).collect();
    let random = cluster.rng.u64();
    // Of columns those whose core rack is the writer's: what a rack wrote is encoded there.
    let best = if columns { pick_near(&candidates, random) } else { pick_of_two(&candidates, random) };
    best.map(|i| usable[i].clone())
}

/// Stripe groups of a class all of whose columns are complete and take new chunks: the columns by position.
pub(crate) fn whole_groups(view: &ClusterView, volume: u32, class: PgClass) -> BTreeMap<StripeGroupId, Vec<&PgView>> {
    let Some(Scheme::Erasure { k, .. }) = class.later else { return BTreeMap::new() };
    let mut groups: BTreeMap<StripeGroupId, Vec<&PgView>> = BTreeMap::new();
    for pg in view.pgs.values().filter(|pg| pg.volume == volume && pg.class() == class) {
        if let Some(column) = pg.column.as_ref().filter(|_| pg.writable && pg.is_complete()) {
            groups.entry(column.group).or_default().push(pg);
        }
    }
    groups.retain(|_, columns| columns.len() == usize::from(k));
    let position = |pg: &&PgView| pg.column.as_ref().map(|column| column.position);
    groups.values_mut().for_each(|columns| columns.sort_by_key(position));
    groups
}

/// The best of these columns: one whose core rack is the writer's, if there is one.
pub(crate) fn best_column<'a>(cluster: &Cluster, view: &ClusterView, columns: &[&'a PgView]) -> Option<&'a PgView> {
    let candidates: Vec<PgCandidate> = columns.iter().map(|pg| candidate(cluster, view, pg)).collect();
    pick_near(&candidates, cluster.rng.u64()).map(|i| columns[i])
}

/// Groups that may be taken, and whether they are columns.
fn usable<'a>(view: &'a ClusterView, volume: u32, class: PgClass, avoid: &[PgId]) -> (Vec<&'a PgView>, bool) {
    let of = |class: PgClass| -> Vec<&'a PgView> {
        let takes = |pg: &&PgView| {
            pg.volume == volume && pg.class() == class && pg.writable && pg.can_write() && !avoid.contains(&pg.id)
        };
        view.pgs.values().filter(takes).collect()
    };
    let own = of(class);
    let Some(Scheme::Erasure { k, .. }) = class.later else { return (own, false) };
    let complete = |pgs: &[&'a PgView]| pgs.iter().copied().filter(|pg| pg.is_complete()).collect::<Vec<&'a PgView>>();
    let columns = complete(&own);
    if columns.len() >= usize::from(k) {
        return (own, true);
    }
    let plain = of(class.plain());
    let whole: Vec<&PgView> = columns.into_iter().chain(complete(&plain)).collect();
    match (whole.is_empty(), own.is_empty()) {
        (false, _) => (whole, false),
        (true, false) => (own, true),
        (true, true) => (plain, false),
    }
}

fn candidate(cluster: &Cluster, view: &ClusterView, pg: &PgView) -> PgCandidate {
    let queue_depth = pg.serving().filter_map(|disk| view.disks.get(&disk)).map(|d| d.queue_depth).max().unwrap_or(0);
    let nearness = pg.primary().map_or(Nearness::Other, |disk| Nearness::between(cluster.here(), place_of(view, disk)));
    PgCandidate { pg: pg.id, complete: pg.is_complete(), free_bytes: pg.free_bytes, queue_depth, nearness }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::{Layout, MemberState};
    use cairn_wire::data::{PgMember, PgState};
    use cairn_wire::manager::{ClusterMap, Pg, PgColumn};

    fn pg(id: u32, later: Option<u32>) -> Pg {
        let member = |disk| PgMember { disk, state: u32::from(MemberState::Serving.code()), node: disk };
        let scheme = u32::from(Scheme::Replicated(3).code());
        let state = PgState { pg: id, volume: 1, scheme, epoch: 1, ..PgState::default() };
        let column = later.map(|later| PgColumn { group: 1, later, writable: true, ..PgColumn::default() });
        let state = Some(PgState { members: (1..4).map(member).collect(), ..state });
        Pg { state, writable: column.is_none(), column, ..Pg::default() }
    }

    /// Files that are never encoded would be encoded with others; or those that wait would lie where they cannot be
    /// encoded within a rack, or nowhere.
    #[test]
    fn columns_take_only_what_is_encoded_like_them() {
        let code = |text: &str| u32::from(text.parse::<Scheme>().expect("a scheme").code());
        let (rs32, rs63) = (Some(code("rs-3-2")), Some(code("rs-6-3")));
        let mut view = ClusterView::default();
        // The last one is encoded to what a later version knows.
        let mut pgs = vec![pg(1, None), pg(4, Some(99))];
        pgs.extend((20..23).map(|id| pg(id, rs32)).chain((30..36).map(|id| pg(id, rs63))));
        view.apply(ClusterMap { version: 1, pgs, ..ClusterMap::default() });
        let found = |layout: &str, avoid: &[u32]| {
            let avoid: Vec<PgId> = avoid.iter().copied().map(PgId).collect();
            let class = layout.parse::<Layout>().expect("a layout").pg_class();
            let (usable, columns) = usable(&view, 1, class, &avoid);
            (usable.iter().map(|pg| pg.id.0).collect::<Vec<u32>>(), columns)
        };
        assert_eq!(found("r3>rs-3-2", &[]), (vec![20, 21, 22], true));
        assert_eq!(found("r3>rs-6-3", &[]), ((30..36).collect(), true));
        assert_eq!(found("r3", &[]), (vec![1], false));
        assert_eq!(found("r3>rs-10-4", &[]), (vec![1], false), "there are none of those");
        assert_eq!(found("r3>rs-3-2", &[20, 21, 22]), (vec![1], false), "its own take nothing");
        assert_eq!(found("r3>rs-3-2", &[20, 21]), (vec![22, 1], false), "all writers would meet on one");
        assert_eq!(found("r2>rs-3-2", &[]), (Vec::new(), false));
    }

    /// A session would fill columns of which one takes nothing, so that nothing of it is encoded together.
    #[test]
    fn a_stripe_group_is_filled_only_as_a_whole() {
        let rs32 = Some(u32::from("rs-3-2".parse::<Scheme>().expect("a scheme").code()));
        let class = "r3>rs-3-2".parse::<Layout>().expect("a layout").pg_class();
        let at = |id: u32, group: u32, position: u32| {
            let mut pg = pg(id, rs32);
            pg.column = pg.column.map(|column| PgColumn { group, position, ..column });
            pg
        };
        let mut lacking = at(14, 2, 1);
        lacking.state.as_mut().expect("told").members[2].state = u32::from(MemberState::Offline.code());
        let mut view = ClusterView::default();
        let whole = [at(12, 1, 0), at(10, 1, 1), at(11, 1, 2)];
        let pgs = whole.into_iter().chain([at(13, 2, 0), lacking, at(15, 2, 2), at(16, 3, 0), pg(1, None)]);
        view.apply(ClusterMap { version: 1, pgs: pgs.collect(), ..ClusterMap::default() });
        let found = whole_groups(&view, 1, class);
        let ids: Vec<u32> = found.values().flatten().map(|pg| pg.id.0).collect();
        assert_eq!((found.len(), ids), (1, vec![12, 10, 11]), "by position");
        assert!(whole_groups(&view, 2, class).is_empty() && whole_groups(&view, 1, class.plain()).is_empty());
    }

    /// In the outage of a rack writers would write two copies to the columns that are left, and three elsewhere.
    #[test]
    fn a_column_that_lacks_somebody_gives_way_to_a_complete_group() {
        let rs32 = Some(u32::from("rs-3-2".parse::<Scheme>().expect("a scheme").code()));
        let class = "r3>rs-3-2".parse::<Layout>().expect("a layout").pg_class();
        let lacking = |id| {
            let mut pg = pg(id, rs32);
            let state = pg.state.as_mut().expect("told");
            state.members[0].state = u32::from(MemberState::Offline.code());
            pg
        };
        let view = |plain: &[u32]| {
            let mut view = ClusterView::default();
            let pgs = plain.iter().map(|id| pg(*id, None)).chain((20..23).map(lacking)).collect();
            view.apply(ClusterMap { version: 1, pgs, ..ClusterMap::default() });
            let (usable, columns) = usable(&view, 1, class, &[]);
            (usable.iter().map(|pg| pg.id.0).collect::<Vec<u32>>(), columns)
        };
        assert_eq!(view(&[1]), (vec![1], false));
        assert_eq!(view(&[]), (vec![20, 21, 22], true), "two copies are better than none");
    }

    /// What an answer says of a column's state would make it an ordinary group.
    #[test]
    fn a_newer_state_leaves_a_column_what_it_is() {
        let later = Scheme::from_code(16).expect("rs-3-2");
        let mut view = ClusterView::default();
        view.apply(ClusterMap { version: 1, pgs: vec![pg(2, Some(16))], ..ClusterMap::default() });
        let state = pg(2, None).state.expect("told");
        view.apply_state(&PgState { epoch: 5, ..state });
        let known = &view.pgs[&2];
        assert_eq!((known.epoch.0, known.class().later, known.writable), (5, Some(later), true));
    }
}
