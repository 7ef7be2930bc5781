//! Which placement groups to make: pure planning by the leader, from state and soft loads.
//!
//! A volume and scheme should have (disks in service × `pgs_per_disk` ÷ members) groups that take new chunks, at most
//! `pgs_per_volume_max`; of an erasure scheme at least as many as it has members, so that every disk of a small cluster
//! has every role in turn. Groups that lack members but may be written count (they are complete again soon), unless no
//! group is complete: then some new ones are made, so that new chunks start with full redundancy.
//!
//! A disk that has none of them gets its share all the same, in groups beyond that number (up to [`BEYOND_TARGET`]
//! times as many): a disk that came in the place of another one, or came back after others had replaced it, would stay
//! empty until those are full.
//!
//! Where too few disks have room for an erasure group, up to m - 1 full ones are members that are offline from the
//! beginning: writing goes on with at least k + 1 shards, and the rest is made when there is room.
//!
//! Invariant: whatever clients say and ask for, groups of one volume take a [part](share) of the room for groups that a
//! disk has. Not here: columns of stripe groups ([`crate::stripe::plan`]), the log.
use crate::apply::GROUPS_MAX;
use crate::command::Disks;
use crate::config::{Key, layout_flaw};
use crate::pg::Pg;
use crate::soft::Soft;
use crate::state::State;
use crate::stripe;
use cairn_placement::{Chooser, DiskCandidate, Domains};
use cairn_types::{ByteCount, DiskId, ErrorCode, Layout, MemberState, PgClass, Scheme, VolumeId};
use cairn_wire::error::WireError;
use std::collections::BTreeSet;

/// So many times the wanted number of groups there may be before disks without any are left as they are.
const BEYOND_TARGET: usize = 4;

/// Groups to make for a volume and scheme now: at most [`GROUPS_MAX`], none if there are enough.
/// The error says why none can be made although the volume has none that may be written.
pub fn plan(state: &State, soft: &Soft, volume: VolumeId, scheme: Scheme, seed: u64) -> Result<Vec<Disks>, WireError> {
    if state.volume(volume).is_none_or(|v| v.deleted) {
        let text = format!("there is no volume {volume}; `cairn admin volume ls` shows those that exist");
        return Err(WireError::new(ErrorCode::UnknownVolume, text));
    }
    let Need { missing, writable, .. } = need(state, volume, scheme);
    let idle = idle(state, soft, volume, scheme);
    if missing == 0 && idle.is_empty() {
        return Ok(Vec::new());
    }
    let candidates = candidates(state, soft, volume);
    let full: Vec<DiskCandidate> = candidates.iter().copied().filter(|d| d.free_bytes == 0 && d.room > 0).collect();
    let mut chooser = Chooser::new(candidates, seed);
    let mut groups = Vec::new();
    // Groups without the full disks, if there would be too few to write to; never beside others just to be complete.
    let short = target(state, scheme).saturating_sub(writable);
    while groups.len() < missing.min(GROUPS_MAX) {
        let chosen = match scheme {
            Scheme::Replicated(copies) => chooser.choose(usize::from(copies)),
            Scheme::Erasure { k, m } if groups.len() < short => {
                chooser.choose_shards_with(usize::from(k), usize::from(m), &full)
            }
            Scheme::Erasure { k, m } => chooser.choose_shards(usize::from(k), usize::from(m)),
        };
        match chosen {
            Ok(disks) => {
                let lacks = disks.iter().filter(|disk| full.iter().any(|d| d.disk == **disk));
                let lacks = lacks.map(|disk| disk.get()).collect();
                groups.push(Disks { disks: disks.into_iter().map(|d| d.get()).collect(), full: lacks });
            }
            Err(_) if writable > 0 || !groups.is_empty() => break,
            Err(few) => return Err(too_few(state, scheme, few.have)),
        }
    }
    if missing == 0 {
        groups.extend(on_idle(state, &mut chooser, scheme, &idle));
    }
    Ok(groups)
}

/// Groups beyond the wanted number that give disks without any what they would have got as additional ones.
fn on_idle(state: &State, chooser: &mut Chooser, scheme: Scheme, idle: &[DiskId]) -> Vec<Disks> {
    let share = idle.len() * state.config().number(Key::PgsPerDisk) as usize;
    let mut groups = Vec::new();
    while groups.len() < share.div_ceil(scheme.members()).min(GROUPS_MAX) {
        let chosen = match scheme {
            Scheme::Replicated(copies) => chooser.choose(usize::from(copies)),
            Scheme::Erasure { k, m } => chooser.choose_shards(usize::from(k), usize::from(m)),
        };
        match chosen {
            Ok(disks) if disks.iter().any(|disk| idle.contains(disk)) => {
                groups.push(Disks { disks: disks.into_iter().map(DiskId::get).collect(), full: Vec::new() });
            }
            _ => break,
        }
    }
    groups
}

/// Disks with no group of this volume and scheme that have room for one: at least for as much as a group gets
/// elsewhere.
pub fn idle(state: &State, soft: &Soft, volume: VolumeId, scheme: Scheme) -> Vec<DiskId> {
    let ours = || state.pgs().filter(|pg| pg.volume == volume && pg.class() == scheme.into() && !pg.retired);
    let (wanted, most) = (target(state, scheme), state.config().number(Key::PgsPerVolumeMax) as usize);
    let writable = ours().filter(|pg| pg.is_writable()).count();
    // With the most groups that may be there are disks without one.
    if writable == 0 || writable >= most.min(wanted * BEYOND_TARGET) || wanted >= most {
        return Vec::new();
    }
    let used: BTreeSet<DiskId> = ours().flat_map(Pg::disks).collect();
    // What is free is known from a heartbeat.
    let able: Vec<DiskId> = state.disks().map(|disk| disk.id).filter(|disk| state.takes_more(*disk)).collect();
    let free = |disk: DiskId| if soft.disks.contains_key(&disk) { state.free_above_reserve(disk, soft) } else { 0 };
    let average = able.iter().map(|disk| free(*disk)).sum::<u64>() / able.len().max(1) as u64;
    let enough = (average / state.config().number(Key::PgsPerDisk).max(1)).max(1);
    let has_room = |disk: DiskId| free(disk) >= enough && room(state, disk, volume) > 0;
    able.into_iter().filter(|disk| !used.contains(disk) && has_room(*disk)).collect()
}

/// Groups of one volume that a disk takes, closed ones among them: a quarter of what it takes of all where there are
/// other volumes, so that none takes the room of the others.
fn share(state: &State) -> usize {
    let number = |key: Key| state.config().number(key) as usize;
    if state.volumes().filter(|volume| !volume.deleted).nth(1).is_none() {
        return number(Key::PgsPerDiskMax);
    }
    (number(Key::PgsPerDiskMax) / 4).max(4 * number(Key::PgsPerDisk)).min(number(Key::PgsPerDiskMax))
}

/// Groups that may still be made on a disk for a volume.
fn room(state: &State, disk: DiskId, volume: VolumeId) -> usize {
    let carried = || state.pgs_of(disk).filter(|pg| !pg.retired);
    let left = (state.config().number(Key::PgsPerDiskMax) as usize).saturating_sub(carried().count());
    left.min(share(state).saturating_sub(carried().filter(|pg| pg.volume == volume).count()))
}

/// Whether a group can be as full as somebody says who writes to it: a disk of it has little room, or is not known; or
/// a member says that its indices are used up.
pub fn may_be_full(state: &State, soft: &Soft, pg: &Pg) -> bool {
    let mut serving = pg.members.iter().filter(|member| member.state == MemberState::Serving);
    is_used_up(soft, pg)
        || serving
            .any(|m| !soft.disks.contains_key(&m.disk) || state.free_above_reserve(m.disk, soft) < WRITTEN_AT_ONCE)
}

/// Whether a serving member knows that all indices were given out: that never changes again.
fn is_used_up(soft: &Soft, pg: &Pg) -> bool {
    let mut serving = pg.members.iter().filter(|member| member.state == MemberState::Serving);
    serving.any(|member| soft.used_up.contains(&(pg.id, member.disk)))
}

/// From this mark on a group counts as used up if a writer says so: what primaries reserve at a time is less than what
/// is left.
pub const INDICES_END: u32 = u32::MAX - (1 << 20);

/// More than is written to a disk from one heartbeat to the next.
const WRITTEN_AT_ONCE: u64 = 8 << 30;

/// What a volume and scheme lack.
pub struct Need {
    /// Groups to make.
    pub missing: usize,
    /// Groups that may be written.
    pub writable: usize,
    /// Those of them that lack nobody.
    pub complete: usize,
    /// Groups that there should be.
    pub target: usize,
}

impl Need {
    /// Enough for writers, though more may be made: with a few left of many, all writers would meet on these.
    pub fn suffices(&self) -> bool {
        self.complete > 0 && self.complete >= self.target.div_ceil(4)
    }
}

/// What the data nodes keep of each disk before they tell what is free; named in errors only.
const DISK_OWN_RESERVE: u64 = 256 << 20;

/// Counts the groups of a volume and class: cheap beside planning.
pub fn need(state: &State, volume: VolumeId, class: impl Into<PgClass>) -> Need {
    let class = class.into();
    let ours = || state.pgs().filter(|pg| pg.volume == volume && pg.class() == class);
    let writable = ours().filter(|pg| pg.is_writable()).count();
    let complete = ours().filter(|pg| pg.is_writable() && pg.is_complete()).count();
    let target = target_of(state, class);
    let mut missing = target.saturating_sub(writable);
    if complete == 0 {
        missing = missing.max(target.div_ceil(4));
    }
    Need { missing, writable, complete, target }
}

/// Closed groups that are opened before new ones are made: all their serving members have room again, if only a little.
/// Else a disk around its reserve would get new groups each time that some space comes back. Complete ones first.
pub fn reopen(state: &State, soft: &Soft, volume: VolumeId, class: impl Into<PgClass>, but_for: &[u32]) -> Vec<u32> {
    let class = class.into();
    let has_room = |pg: &Pg| {
        let mut serving = pg.members.iter().filter(|m| m.state == MemberState::Serving);
        serving.all(|m| state.free_above_reserve(m.disk, soft) > 0)
    };
    let closed = state.pgs().filter(|pg| pg.volume == volume && pg.class() == class && !pg.open && !pg.retired);
    let able = closed.filter(|pg| {
        pg.has_write_minimum() && has_room(pg) && !is_used_up(soft, pg) && !but_for.contains(&pg.id.get())
    });
    let mut found: Vec<&Pg> = able.collect();
    found.sort_by_key(|pg| !pg.is_complete());
    found.truncate(need(state, volume, class).missing.min(GROUPS_MAX));
    found.into_iter().map(|pg| pg.id.get()).collect()
}

/// The classes whose groups files of a class need: its own, and that of what is too short for a row.
pub fn classes_for(class: PgClass) -> impl Iterator<Item = PgClass> {
    let short = Some(class.short()).filter(|short| *short != class);
    std::iter::once(class).chain(short)
}

/// Whether files of this layout can be written in this cluster as it is.
pub fn check_layout(state: &State, layout: Layout) -> Result<(), WireError> {
    if let Some(flaw) = layout_flaw(layout, state.level()) {
        return Err(WireError::new(ErrorCode::BadLayout, flaw));
    }
    let have = state.disks_that_take_more();
    // Of a staged layout both.
    let short = std::iter::once(layout.fresh().scheme()).chain(layout.staged()).find(|scheme| have < scheme.members());
    short.map_or(Ok(()), |scheme| Err(too_few(state, scheme, have)))
}

/// Groups of one volume and scheme that should take new chunks.
fn target_of(state: &State, class: PgClass) -> usize {
    match class.later {
        Some(_) => stripe::plan::columns_wanted(state, class),
        None => target(state, class.scheme),
    }
}

/// The same of a scheme, of groups of no class.
pub fn target(state: &State, scheme: Scheme) -> usize {
    let per_disk = state.config().number(Key::PgsPerDisk) as usize;
    let most = state.config().number(Key::PgsPerVolumeMax) as usize;
    let wanted = (state.disks_that_take_more() * per_disk).div_ceil(scheme.members());
    let least = if scheme.is_replicated() { 1 } else { scheme.members() };
    wanted.max(least).clamp(1, most)
}

fn candidates(state: &State, soft: &Soft, volume: VolumeId) -> Vec<DiskCandidate> {
    candidates_for(state, soft, volume, &mut Domains::new())
}

/// Disks that may carry new groups of a volume.
pub(crate) fn candidates_for(
    state: &State,
    soft: &Soft,
    volume: VolumeId,
    domains: &mut Domains,
) -> Vec<DiskCandidate> {
    let mut candidates = candidates_in(state, soft, domains, |disk| state.takes_more(disk));
    for candidate in &mut candidates {
        candidate.room = room(state, candidate.disk, volume) as u32;
    }
    candidates
}

/// Disks that may carry groups, of those that are asked for.
pub(crate) fn candidates_in(
    state: &State,
    soft: &Soft,
    domains: &mut Domains,
    able: impl Fn(DiskId) -> bool,
) -> Vec<DiskCandidate> {
    let most = state.config().number(Key::PgsPerDiskMax) as usize;
    let able = state.disks().filter(|disk| able(disk.id));
    let mut candidates = Vec::new();
    for disk in able {
        let Some(node) = state.node(disk.node) else { continue };
        let (rack, host) = domains.host(&node.rack, &node.host);
        let pgs = || state.pgs_of(disk.id).filter(|pg| !pg.retired);
        let room = most.saturating_sub(pgs().count()) as u32;
        candidates.push(DiskCandidate {
            disk: disk.id,
            node: disk.node,
            rack,
            host,
            free_bytes: state.free_above_reserve(disk.id, soft),
            open_pgs: pgs().filter(|pg| pg.open).count() as u32,
            primaries: pgs().filter(|pg| pg.open && pg.members.first().is_some_and(|m| m.disk == disk.id)).count()
                as u32,
            parities: pgs().filter(|pg| pg.open && pg.keeps_parity(disk.id)).count() as u32,
            room,
        });
    }
    candidates
}

fn too_few(state: &State, scheme: Scheme, usable: usize) -> WireError {
    let (wanted, have) = (scheme.members(), state.disks_that_take_more());
    if have < wanted {
        let text = format!(
            "{scheme} needs {wanted} disks; this cluster has {have} in service: each copy or shard is on a disk of its \
             own. Start data nodes with more disks, or use {}",
            what_fits(have)
        );
        return WireError::new(ErrorCode::NotEnoughDisks, text);
    }
    let (reserve, own) = (ByteCount(state.config().number(Key::DiskReserve)), ByteCount(DISK_OWN_RESERVE));
    let text = format!(
        "{scheme} needs {wanted} disks with space, and {usable} of {have} can take more: disk_reserve keeps {reserve} of \
         each free, the disk itself {own}, and it holds pgs_per_disk_max groups at most, a quarter of that of one volume"
    );
    WireError::new(ErrorCode::NoSpace, text)
}

/// The layouts that so many disks can store, the most redundant copies and the largest erasure schemes.
fn what_fits(disks: usize) -> String {
    let copies = Scheme::all().filter(|scheme| scheme.is_replicated() && scheme.members() <= disks).last();
    let erasure = Scheme::all().filter(|scheme| !scheme.is_replicated() && scheme.members() <= disks);
    let mut fitting: Vec<Scheme> = erasure.collect();
    fitting.sort_by_key(|scheme| scheme.members());
    let named = |scheme: &Scheme| format!("{scheme} ({} disks)", scheme.members());
    match (copies, fitting.last()) {
        (Some(copies), Some(erasure)) => {
            format!("a layout that fits, such as {} or {}", named(erasure), named(&copies))
        }
        (Some(copies), None) => format!("a layout that fits, at most {copies}"),
        (None, _) => "nothing until then: no disk is in service".into(),
    }
}

#[cfg(test)]
mod tests;
