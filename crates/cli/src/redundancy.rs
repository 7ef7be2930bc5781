//! What is there of files and placement groups: copies and shards present and missing, losses that they survive, and
//! how many members one failure domain has.
//!
//! A member counts as present while it serves and answers, lists the chunk, and has no bad block where the file has
//! bytes: what waits or catches up answers no reads. Not here: any request; the callers bring the cluster map, the
//! extents, and what the members said (`members`).
pub mod members;

use crate::context::Context;
use crate::error::Result;
use cairn_client::RemotePath;
use cairn_client::extent::{Extent, StripeSet};
use cairn_client::view::{ClusterView, PgView};
use cairn_types::{BLOCK_SIZE, ChunkId, ExtentKind, Layout, MemberState, Scheme};
use members::{Chunks, Known, Members};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The cluster map with all placement groups, as the manager's leader has it.
pub async fn whole_view(context: &Context, at: &RemotePath) -> Result<ClusterView> {
    let client = context.client_of(at.cluster.as_deref()).await?;
    Ok(client.whole_view("asking for the state of the cluster").await?)
}

/// The cluster as it is known, and its data nodes, for several files.
pub struct Look {
    pub view: ClusterView,
    members: Members,
}

impl Look {
    pub async fn new(context: &Context, at: &RemotePath) -> Result<Look> {
        let view = whole_view(context, at).await?;
        Ok(Look { view, members: Members::new(context.client_of(at.cluster.as_deref()).await?) })
    }

    /// What is there of a file with these extents, by what its data nodes say now.
    pub async fn of(&mut self, layout: u64, extents: &[Extent], sets: &[StripeSet]) -> Redundancy {
        let mut chunks = Chunks::new();
        for (pg, index) in chunks_of(extents, sets).into_keys() {
            chunks.entry(pg).or_default().insert(index);
        }
        let known = self.members.ask(&self.view, &chunks).await;
        Redundancy::of(&self.view, layout, extents, sets, known)
    }
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
    /// Bad blocks of the file that wait until they can be healed; their copies and shards count as missing.
    pub bad_blocks: u64,
    /// Copies and shards that members in service have not got; they count as missing.
    pub lacking: u64,
    /// Nodes that do not answer although the cluster does not know it yet.
    pub silent: BTreeSet<u32>,
    /// Bytes on all disks.
    pub raw: u64,
    /// Some of it is striped over shards.
    pub has_shards: bool,
}

impl Redundancy {
    /// Of a file with these extents. `layout`: of the file, for extents whose group the map does not have.
    pub fn of(view: &ClusterView, layout: u64, extents: &[Extent], sets: &[StripeSet], known: &Known) -> Redundancy {
        let mut sum =
            Redundancy { raw: extents.iter().map(|e| raw_of(view, layout, e)).sum(), ..Redundancy::default() };
        for (chunk, ranges) in chunks_of(extents, sets) {
            sum.count(view, known, chunk, &ranges);
        }
        sum
    }

    fn count(&mut self, view: &ClusterView, known: &Known, chunk: (u32, u32), ranges: &[Range<u32>]) {
        self.chunks += 1;
        let pg = chunk.0;
        let Some(group) = view.pgs.get(&pg) else {
            self.unreadable.get_or_insert_with(|| format!("the cluster map has no pg{pg}"));
            self.losses = None;
            return;
        };
        self.has_shards |= !group.scheme.is_replicated();
        // A copy is there up to its end. Of a shard the last rows may be nobody's.
        let blocks = match group.scheme.is_replicated() {
            true => ranges.iter().map(|range| range.end).max().unwrap_or(0),
            false => ranges.iter().map(|range| range.start).min().unwrap_or(0).saturating_add(1),
        };
        let in_service = group.serving().filter(|disk| !known.is_out(*disk));
        let (lacking, disks): (Vec<u32>, Vec<u32>) = in_service.partition(|disk| known.lacks(*disk, chunk, blocks));
        self.lacking += lacking.len() as u64;
        self.silent.extend(group.serving().filter_map(|disk| known.silent.get(&disk)));
        let damage = Damage::of(known, chunk, &disks, ranges);
        let serving = disks.len();
        let present = serving - damage.members;
        self.bad_blocks += damage.blocks;
        self.present += present as u64;
        self.missing += group.scheme.members().saturating_sub(present) as u64;
        match losses_survived(group.scheme, serving - damage.worst.1) {
            Some(losses) if self.unreadable.is_none() => {
                if self.weakest.is_none() || self.losses.is_none_or(|least| losses < least) {
                    (self.losses, self.weakest) = (Some(losses), Some(pg));
                }
            }
            Some(_) => {}
            None => {
                let needed = group.scheme.read_minimum();
                let (of, are) = (group.scheme.members(), if needed == 1 { "is" } else { "are" });
                let why = match damage.worst {
                    (block, bad) if serving >= needed => format!(
                        "block {block} of pg{pg}/c{} ({}) is bad on {bad} of {serving} members in service, {needed} intact \
                         {are} needed",
                        chunk.1, group.scheme
                    ),
                    _ if !lacking.is_empty() => format!(
                        "pg{pg}/c{} ({}) is on {serving} of {} members in service, {needed} {are} needed",
                        chunk.1,
                        group.scheme,
                        serving + lacking.len()
                    ),
                    _ => format!(
                        "pg{pg} ({}) has {serving} of {of} members in service, {needed} {are} needed",
                        group.scheme
                    ),
                };
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
        let mut missing = match self.missing {
            0 => String::new(),
            n => format!(", {n} missing"),
        };
        if self.lacking > 0 {
            missing.push_str(&format!(" ({} on members in service)", self.lacking));
        }
        match self.bad_blocks {
            0 => {}
            1 => missing.push_str(" (1 bad block that waits to be healed)"),
            n => missing.push_str(&format!(" ({n} bad blocks that wait to be healed)")),
        }
        if !self.silent.is_empty() {
            let nodes: Vec<String> = self.silent.iter().map(|node| format!("n{node}")).collect();
            let verb = if nodes.len() == 1 { "does" } else { "do" };
            missing.push_str(&format!(" ({} {verb} not answer now)", nodes.join(", ")));
        }
        let fate = match (&self.unreadable, self.losses) {
            (Some(why), _) => format!("cannot be read as a whole now: {why}"),
            (None, Some(losses)) => format!("survives {}", losses_text(losses)),
            (None, None) => "nothing is known of its members".into(),
        };
        format!("{} of {} {kind} present in {chunks}{missing}; {fate}", self.present, self.present + self.missing)
    }
}

/// As data nodes are asked for it.
const fn place(chunk: ChunkId) -> (u32, u32) {
    (chunk.pg.0, chunk.index)
}

/// Chunks with bytes of the file, and the blocks of each member that these bytes, or their parity, lie in.
fn chunks_of(extents: &[Extent], sets: &[StripeSet]) -> BTreeMap<(u32, u32), Vec<Range<u32>>> {
    let named: BTreeMap<(u32, u32), &StripeSet> = sets.iter().map(|set| (place(set.first), set)).collect();
    let mut chunks: BTreeMap<(u32, u32), Vec<Range<u32>>> = BTreeMap::new();
    let block = BLOCK_SIZE as u64;
    let blocks = |from: u64, to: u64| {
        let number = |block: u64| u32::try_from(block).unwrap_or(u32::MAX);
        number(from / block)..number(to.div_ceil(block))
    };
    for extent in extents {
        let (from, to) = (extent.chunk_offset, extent.chunk_offset + extent.length);
        let here = place(extent.chunk);
        match (extent.kind, named.get(&here)) {
            (Some(ExtentKind::Set(stripe)), Some(set)) => {
                for (column, chunk) in (0..).zip(&set.columns) {
                    let part = stripe.part(column, from, to);
                    let ranges = chunks.entry(place(*chunk)).or_default();
                    ranges.extend(part.map(|part| blocks(part.offset, part.offset + part.length)));
                }
            }
            (Some(ExtentKind::Erasure(stripe)), _) if stripe.is_whole_shards() => {
                // The same blocks of the other shards, whoever has something there.
                let parts = (0..stripe.columns()).filter_map(|column| stripe.part(column, from, to));
                chunks
                    .entry(here)
                    .or_default()
                    .extend(parts.map(|part| blocks(part.offset, part.offset + part.length)));
            }
            (Some(ExtentKind::Erasure(stripe)), _) => {
                // Decoding a byte takes the blocks of its row on the other members.
                let (first, end) = (from / stripe.row(), to.div_ceil(stripe.row()));
                chunks.entry(here).or_default().push(blocks(first * stripe.unit(), end * stripe.unit()));
            }
            _ => chunks.entry(here).or_default().push(blocks(from, to)),
        }
    }
    chunks
}

/// Bad blocks of a chunk where a file has bytes.
#[derive(Clone, Copy, Default, Debug)]
struct Damage {
    blocks: u64,
    /// Members with some.
    members: usize,
    /// A block that is bad on the most members, and on how many.
    worst: (u32, usize),
}

impl Damage {
    fn of(known: &Known, chunk: (u32, u32), disks: &[u32], ranges: &[Range<u32>]) -> Damage {
        let mut damage = Damage::default();
        let Some(bad) = known.bad.get(&chunk) else { return damage };
        // The same block of each member belongs together: copies, or a row's.
        let mut members: BTreeMap<u32, usize> = BTreeMap::new();
        for (_, blocks) in bad.iter().filter(|(disk, _)| disks.contains(disk)) {
            let mine: Vec<u32> =
                blocks.iter().copied().filter(|block| ranges.iter().any(|range| range.contains(block))).collect();
            damage.blocks += mine.len() as u64;
            damage.members += usize::from(!mine.is_empty());
            for block in mine {
                *members.entry(block).or_insert(0) += 1;
            }
        }
        let worst = members.into_iter().max_by_key(|(block, bad)| (*bad, std::cmp::Reverse(*block)));
        damage.worst = worst.unwrap_or_default();
        damage
    }
}

/// Bytes that an extent takes on all disks.
fn raw_of(view: &ClusterView, layout: u64, extent: &Extent) -> u64 {
    let known = view.pgs.get(&extent.chunk.pg.0).map(|pg| pg.scheme);
    let assumed = Layout::from_bits(layout).map(|layout| match extent.kind {
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
    // One more is about to take the place of another.
    let members = pg.members.iter().take(pg.scheme.members());
    let placed: Vec<_> = members.map(|(disk, state)| (place(*disk), *state)).collect();
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
