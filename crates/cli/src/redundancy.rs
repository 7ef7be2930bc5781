//! What is there of files and placement groups: copies and shards present and missing, losses that they survive, and how
//! many members one failure domain has.
//!
//! A member counts as present while it serves: what waits or catches up answers no reads. Not here: any request; the
//! callers bring the cluster map and the extents.
use crate::context::Context;
use crate::error::Result;
use cairn_client::RemotePath;
use cairn_client::view::{ClusterView, PgView};
use cairn_types::{ExtentKind, Layout, MemberState, Scheme};
use cairn_wire::Opcode;
use cairn_wire::common::{Extent, StripeSet};
use cairn_wire::manager::{StatusRequest, StatusResponse};
use std::collections::{BTreeMap, BTreeSet};

/// The cluster map with all placement groups, as the manager's leader has it.
pub async fn whole_view(context: &Context, at: &RemotePath) -> Result<ClusterView> {
    let client = context.client_of(at.cluster.as_deref()).await?;
    let status: StatusResponse =
        client.manager("asking for the state of the cluster", Opcode::Status, &StatusRequest {}).await?;
    let mut view = ClusterView::default();
    view.apply(status.map.unwrap_or_default());
    Ok(view)
}

/// Losses that a group survives with so many serving members; `None`: it cannot be read as it is.
pub fn losses_survived(scheme: Scheme, serving: usize) -> Option<usize> {
    serving.checked_sub(scheme.read_minimum())
}

/// "2 more losses" and the like.
pub fn losses_text(losses: usize) -> String {
    match losses {
        0 => "no more loss".into(),
        1 => "1 more loss".into(),
        n => format!("{n} more losses"),
    }
}

/// What is there of a file.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Redundancy {
    /// Chunks that the file has bytes in; those of erasure groups span all their members.
    pub chunks: u64,
    /// Copies and shards of these chunks.
    pub present: u64,
    pub missing: u64,
    /// Least over all chunks; `None`: some bytes cannot be read now, or there are none.
    pub losses: Option<usize>,
    /// The group that can be read no more, and why.
    pub unreadable: Option<String>,
    /// Of one of the groups that survive least, for what is said of domains.
    pub weakest: Option<u32>,
    /// Bytes on all disks.
    pub raw: u64,
    /// Some of it is striped over shards.
    pub has_shards: bool,
}

impl Redundancy {
    /// Of a file with these extents. `layout`: of the file, for extents whose group the map does not have.
    pub fn of(view: &ClusterView, layout: u64, extents: &[Extent], sets: &[StripeSet]) -> Redundancy {
        let mut sum = Redundancy::default();
        let mut counted: BTreeSet<(u32, u32)> = BTreeSet::new();
        let named: BTreeMap<(u32, u32), &StripeSet> = sets.iter().map(|set| ((set.pg, set.index), set)).collect();
        for extent in extents {
            sum.raw += raw_of(view, layout, extent);
            let chunks: Vec<(u32, u32)> = match named.get(&(extent.pg, extent.index)) {
                Some(set) => set.column_pgs.iter().copied().zip(set.column_indices.iter().copied()).collect(),
                None => vec![(extent.pg, extent.index)],
            };
            for chunk in chunks.into_iter().filter(|chunk| counted.insert(*chunk)) {
                sum.count(view, chunk.0);
            }
        }
        sum
    }

    fn count(&mut self, view: &ClusterView, pg: u32) {
        self.chunks += 1;
        let Some(group) = view.pgs.get(&pg) else {
            self.unreadable.get_or_insert_with(|| format!("the cluster map has no pg{pg}"));
            self.losses = None;
            return;
        };
        self.has_shards |= !group.scheme.is_replicated();
        let serving = group.serving().count();
        self.present += serving as u64;
        self.missing += group.members.len().saturating_sub(serving) as u64;
        match losses_survived(group.scheme, serving) {
            Some(losses) if self.unreadable.is_none() => {
                if self.weakest.is_none() || self.losses.is_none_or(|least| losses < least) {
                    (self.losses, self.weakest) = (Some(losses), Some(pg));
                }
            }
            Some(_) => {}
            None => {
                let needed = group.scheme.read_minimum();
                let why = format!(
                    "pg{pg} ({}) has {serving} of {} members in service, {needed} {} needed",
                    group.scheme,
                    group.members.len(),
                    if needed == 1 { "is" } else { "are" }
                );
                self.unreadable.get_or_insert(why);
                (self.losses, self.weakest) = (None, Some(pg));
            }
        }
    }

    /// `9 of 9 shards present in 1 chunk; survives 3 more losses`.
    pub fn text(&self) -> String {
        if self.chunks == 0 {
            return "nothing is stored yet".into();
        }
        let kind = if self.has_shards { "shards and copies" } else { "copies" };
        let chunks = if self.chunks == 1 { "1 chunk".into() } else { format!("{} chunks", self.chunks) };
        let missing = match self.missing {
            0 => String::new(),
            n => format!(", {n} missing"),
        };
        let fate = match (&self.unreadable, self.losses) {
            (Some(why), _) => format!("cannot be read as a whole now: {why}"),
            (None, Some(losses)) => format!("survives {}", losses_text(losses)),
            (None, None) => "nothing is known of its members".into(),
        };
        format!("{} of {} {kind} present in {chunks}{missing}; {fate}", self.present, self.present + self.missing)
    }
}

/// Bytes that an extent takes on all disks.
fn raw_of(view: &ClusterView, layout: u64, extent: &Extent) -> u64 {
    let known = view.pgs.get(&extent.pg).map(|pg| pg.scheme);
    let assumed = Layout::from_bits(layout).map(|layout| match ExtentKind::from_flags(extent.flags) {
        Some(ExtentKind::Erasure(_)) => layout.scheme(),
        _ => layout.scheme().short_scheme(),
    });
    known.or(assumed).map_or(extent.length, |scheme| raw_bytes_of(scheme, extent.length))
}

/// Bytes that so many take on all disks.
pub fn raw_bytes_of(scheme: Scheme, bytes: u64) -> u64 {
    let raw = u128::from(bytes) * scheme.members() as u128;
    raw.div_ceil(scheme.read_minimum() as u128).try_into().unwrap_or(u64::MAX)
}

/// A failure domain that has several members of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Crowd {
    /// `rack` or `host`.
    pub kind: &'static str,
    pub name: String,
    pub members: usize,
    /// Serving members elsewhere.
    pub left: usize,
}

/// Racks with more than one member of the group, and hosts; in a cluster of one rack only hosts. Most members first.
pub fn crowds(view: &ClusterView, pg: &PgView) -> Vec<Crowd> {
    let place = |disk: u32| {
        let node = view.disks.get(&disk).and_then(|disk| view.nodes.get(&disk.node));
        node.map(|node| (node.rack.clone(), node.host.clone()))
    };
    let racks: BTreeSet<String> = view.disks.keys().filter_map(|disk| place(*disk)).map(|(rack, _)| rack).collect();
    let placed: Vec<_> = pg.members.iter().map(|(disk, state)| (place(*disk), *state)).collect();
    let crowd = |kind: &'static str, name: String, is_in: &dyn Fn(&(String, String)) -> bool| {
        let here = |place: &Option<(String, String)>| place.as_ref().is_some_and(is_in);
        let members = placed.iter().filter(|(place, _)| here(place)).count();
        let serves = |state: &MemberState| *state == MemberState::Serving;
        let left = placed.iter().filter(|(place, state)| !here(place) && serves(state)).count();
        Crowd { kind, name, members, left }
    };
    let mut crowds = Vec::new();
    let mine: BTreeSet<&(String, String)> = placed.iter().filter_map(|(place, _)| place.as_ref()).collect();
    if racks.len() > 1 {
        let names: BTreeSet<&String> = mine.iter().map(|(rack, _)| rack).collect();
        crowds.extend(names.into_iter().map(|name| crowd("rack", name.clone(), &|place| place.0 == *name)));
    }
    crowds.extend(mine.iter().map(|at| crowd("host", at.1.clone(), &|place| place == *at)));
    crowds.retain(|crowd| crowd.members > 1);
    crowds.sort_by_key(|crowd| (crowd.kind != "rack", std::cmp::Reverse(crowd.members)));
    crowds
}

impl Crowd {
    /// `3 of 9 members in rack r1: losing the rack leaves 6 = k`.
    pub fn text(&self, scheme: Scheme) -> String {
        let (needed, name) = (scheme.read_minimum(), if self.name.is_empty() { "(no name)" } else { &self.name });
        let means = match (scheme, self.left.checked_sub(needed)) {
            (Scheme::Erasure { .. }, Some(0)) => " = k, just enough to read".to_string(),
            (Scheme::Erasure { .. }, Some(_)) => format!(", reads need k = {needed}"),
            (Scheme::Erasure { .. }, None) => format!(", fewer than k = {needed}: nothing could be read without it"),
            (Scheme::Replicated(_), Some(_)) => String::new(),
            (Scheme::Replicated(_), None) => ": nothing could be read without it".into(),
        };
        let (members, all, kind, left) = (self.members, scheme.members(), self.kind, self.left);
        format!("{members} of {all} members in {kind} {name}: losing the {kind} leaves {left}{means}")
    }
}

#[cfg(test)]
mod tests;
