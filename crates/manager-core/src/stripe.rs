//! Stripe groups: k placement groups of copies (*columns*) that were planned together by encoding-aware replication,
//! so that whoever encodes them finds all in one rack and nothing moves afterwards ([`cairn_placement::ear`]).
//!
//! A stripe group never changes while files are written to its columns. Which copies would stay, and where parity would
//! go, is not part of it: that follows from where the members of its columns are now ([`seats`]).
//!
//! Invariants: a column that is in use has its stripe group, which names it at its position; all columns of a group are
//! of its volume, have one number of copies and the group's later scheme. A stripe group is there as long as one of its
//! columns is. Not here: the command ([`crate::apply`]), encoding (data nodes of the core rack do it, with the client
//! library).
pub mod plan;
pub mod seats;
pub mod shards;

use crate::change::ItemKey;
use crate::config::Key;
use crate::pg::Pg;
use crate::state::State;
use cairn_types::{PgClass, PgId, Scheme, StripeGroupId, VolumeId, WallTime};
use prost::Message;
use std::sync::Arc;

/// Feature level from which on there are stripe groups.
pub const STRIPE_LEVEL: u32 = 19;

/// Feature level from which on copies become shards where they lie.
pub const SHARDS_LEVEL: u32 = 20;

/// What a placement group is in a stripe group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    pub group: StripeGroupId,
    /// The data shard that it is to become.
    pub position: u8,
    /// The scheme that it is encoded to.
    pub later: Scheme,
}

/// Columns that were planned together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripeGroup {
    pub id: StripeGroupId,
    pub volume: VolumeId,
    /// The scheme that its columns are encoded to.
    pub later: Scheme,
    /// The rack of all primaries.
    pub core_rack: String,
    /// Most shards in a rack (the paper's c).
    pub rack_capacity: u8,
    /// Column i becomes data shard i.
    pub columns: Vec<PgId>,
    pub created: WallTime,
}

impl Pg {
    /// Whose chunks it takes.
    pub fn class(&self) -> PgClass {
        PgClass { scheme: self.scheme, later: self.column.map(|column| column.later) }
    }
}

impl State {
    pub fn stripe_group(&self, id: StripeGroupId) -> Option<&StripeGroup> {
        self.stripe_groups.get(&id).map(Arc::as_ref)
    }
    pub fn stripe_groups(&self) -> impl Iterator<Item = &StripeGroup> {
        self.stripe_groups.values().map(Arc::as_ref)
    }

    /// Whether clients write new chunks to it if it is writable: to columns not while stripe groups are off.
    pub(crate) fn may_take_chunks(&self, pg: &Pg) -> bool {
        pg.column.is_none() || self.config.number(Key::StripeGroups) == 1
    }

    pub(crate) fn put_stripe_group(&mut self, group: StripeGroup) {
        self.stripe_groups.insert(group.id, Arc::new(group));
    }

    /// Whether columns take new chunks follows from the setting: the map tells it when that changes.
    pub(crate) fn touch_columns_if(&mut self, before: u64) {
        if self.config.number(Key::StripeGroups) == before {
            return;
        }
        let columns: Vec<PgId> = self.pgs().filter(|pg| pg.column.is_some() && !pg.retired).map(|pg| pg.id).collect();
        columns.into_iter().for_each(|pg| self.touch(ItemKey::Pg(pg)));
    }

    /// A column is known no more: its stripe group goes with the last one.
    pub(crate) fn forget_column(&mut self, column: Column) {
        let known =
            self.stripe_group(column.group).is_some_and(|group| group.columns.iter().any(|pg| self.pg(*pg).is_some()));
        if !known {
            self.stripe_groups.remove(&column.group);
        }
    }

    /// What is wrong with stripe groups, if anything.
    pub(crate) fn check_stripe_groups(&self) -> Result<(), String> {
        for group in self.stripe_groups() {
            let Scheme::Erasure { k, m } = group.later else {
                return Err(format!("{} is encoded to {}", group.id, group.later));
            };
            let capacity = usize::from(group.rack_capacity);
            if group.columns.len() != usize::from(k) || !(1..=usize::from(k) + usize::from(m)).contains(&capacity) {
                return Err(format!(
                    "{} has {} columns and {capacity} shards to a rack",
                    group.id,
                    group.columns.len()
                ));
            }
            if group.id.get() >= self.next.stripe_group {
                return Err(format!("{} has an id of the future", group.id));
            }
            if group.columns.iter().all(|pg| self.pg(*pg).is_none()) {
                return Err(format!("{} has lost all its columns", group.id));
            }
        }
        self.pgs().filter(|pg| !pg.retired).try_for_each(|pg| self.check_column(pg))
    }

    fn check_column(&self, pg: &Pg) -> Result<(), String> {
        let Some(column) = pg.column else { return Ok(()) };
        let group = self.stripe_group(column.group).ok_or_else(|| format!("{} is a column of nothing", pg.id))?;
        let named = group.columns.get(usize::from(column.position)) == Some(&pg.id);
        let same = group.volume == pg.volume && group.later == column.later && pg.scheme.is_replicated();
        let others = group.columns.iter().filter_map(|other| self.pg(*other));
        match named && same && others.into_iter().all(|other| other.scheme == pg.scheme) {
            true => Ok(()),
            false => Err(format!("{} and {} do not fit together", pg.id, group.id)),
        }
    }
}

/// What a placement group is in a stripe group, in the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct ColumnRecord {
    #[prost(uint32, tag = "1")]
    pub group: u32,
    #[prost(uint32, tag = "2")]
    pub position: u32,
    #[prost(uint32, tag = "3")]
    pub later: u32,
}

impl From<Column> for ColumnRecord {
    fn from(column: Column) -> Self {
        let Column { group, position, later } = column;
        Self { group: group.get(), position: u32::from(position), later: u32::from(later.code()) }
    }
}

impl TryFrom<ColumnRecord> for Column {
    type Error = &'static str;
    fn try_from(record: ColumnRecord) -> Result<Self, Self::Error> {
        let position = u8::try_from(record.position).map_err(|_| "the position of a column")?;
        let later = scheme_of(record.later).ok_or("the later scheme of a column")?;
        Ok(Self { group: StripeGroupId(record.group), position, later })
    }
}

/// A stripe group in the checkpoint.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StripeGroupRecord {
    #[prost(uint32, tag = "1")]
    pub id: u32,
    #[prost(uint32, tag = "2")]
    pub volume: u32,
    #[prost(uint32, tag = "3")]
    pub later: u32,
    #[prost(string, tag = "4")]
    pub core_rack: String,
    #[prost(uint32, tag = "5")]
    pub rack_capacity: u32,
    #[prost(uint32, repeated, tag = "6")]
    pub columns: Vec<u32>,
    #[prost(uint64, tag = "7")]
    pub created_ns: u64,
}

impl From<&StripeGroup> for StripeGroupRecord {
    fn from(group: &StripeGroup) -> Self {
        Self {
            id: group.id.get(),
            volume: group.volume.get(),
            later: u32::from(group.later.code()),
            core_rack: group.core_rack.clone(),
            rack_capacity: u32::from(group.rack_capacity),
            columns: group.columns.iter().map(|pg| pg.get()).collect(),
            created_ns: group.created.0,
        }
    }
}

impl TryFrom<StripeGroupRecord> for StripeGroup {
    type Error = &'static str;
    fn try_from(record: StripeGroupRecord) -> Result<Self, Self::Error> {
        Ok(Self {
            id: StripeGroupId(record.id),
            volume: VolumeId(record.volume),
            later: scheme_of(record.later).ok_or("the later scheme of a stripe group")?,
            core_rack: record.core_rack,
            rack_capacity: u8::try_from(record.rack_capacity).map_err(|_| "the shards to a rack")?,
            columns: record.columns.into_iter().map(PgId).collect(),
            created: WallTime(record.created_ns),
        })
    }
}

pub(crate) fn scheme_of(code: u32) -> Option<Scheme> {
    u8::try_from(code).ok().and_then(Scheme::from_code)
}

#[cfg(test)]
pub(crate) mod tests;
