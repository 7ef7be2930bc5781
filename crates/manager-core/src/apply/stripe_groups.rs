//! Stripe groups are made: k columns at once, or none.
use super::{GROUPS_MAX, Outcome};
use crate::command::{CreateStripeGroups, Disks, StripeGroupOf};
use crate::items::clip;
use crate::pg::Pg;
use crate::state::State;
use crate::stripe::{Column, StripeGroup, scheme_of};
use cairn_types::{DiskId, ErrorCode, PgId, Scheme, StripeGroupId, VolumeId, WallTime};
use cairn_wire::error::WireError;
use std::collections::BTreeSet;

impl State {
    /// All or nothing: the plan is void if the cluster changed under it.
    pub(super) fn create_stripe_groups(
        &mut self,
        time: WallTime,
        command: &CreateStripeGroups,
        raised: &mut Vec<PgId>,
    ) -> Result<Outcome, WireError> {
        let volume = VolumeId(command.volume);
        if self.volume(volume).is_none_or(|v| v.deleted) {
            return Err(WireError::new(ErrorCode::UnknownVolume, format!("there is no volume {volume}")));
        }
        let (copies, later) = (scheme_of(command.scheme), scheme_of(command.later));
        let (Some(scheme @ Scheme::Replicated(2..)), Some(later @ Scheme::Erasure { k, m })) = (copies, later) else {
            return Err(WireError::new(
                ErrorCode::BadLayout,
                "copies that are encoded to these are not of this version",
            ));
        };
        if command.groups.iter().map(|group| group.columns.len()).sum::<usize>() > GROUPS_MAX {
            return Err(WireError::new(ErrorCode::BadRequest, "too many placement groups at once"));
        }
        let shards = u32::from(k) + u32::from(m);
        let fits = |group: &StripeGroupOf| {
            group.columns.len() == usize::from(k)
                && (1..=shards).contains(&group.rack_capacity)
                && group.columns.iter().all(|column| self.is_column(column, scheme, &group.core_rack))
        };
        if !command.groups.iter().all(fits) {
            return Err(WireError::new(
                ErrorCode::Conflict,
                "a disk went out of service meanwhile, or to another rack; repeat",
            ));
        }
        let mut made = Vec::new();
        for group in &command.groups {
            made.extend(self.make_stripe_group(time, volume, (scheme, later), group));
        }
        raised.extend(&made);
        Ok(Outcome::Pgs(made))
    }

    /// The primary in the core rack, the others outside, on disks of their own that are in service.
    fn is_column(&self, column: &Disks, scheme: Scheme, core_rack: &str) -> bool {
        let distinct: BTreeSet<u32> = column.disks.iter().copied().collect();
        let placed = |(at, disk): (usize, &u32)| {
            let node = self.disk(DiskId(*disk)).and_then(|disk| self.node(disk.node));
            self.is_able(DiskId(*disk)) && node.is_some_and(|node| (node.rack == core_rack) == (at == 0))
        };
        distinct.len() == scheme.members()
            && column.disks.len() == scheme.members()
            && column.full.is_empty()
            && column.disks.iter().enumerate().all(placed)
    }

    fn make_stripe_group(
        &mut self,
        time: WallTime,
        volume: VolumeId,
        (scheme, later): (Scheme, Scheme),
        group: &StripeGroupOf,
    ) -> Vec<PgId> {
        let id = StripeGroupId(self.next.stripe_group);
        self.next.stripe_group += 1;
        let mut columns = Vec::with_capacity(group.columns.len());
        for (position, column) in (0..).zip(&group.columns) {
            let pg = PgId(self.next.pg);
            self.next.pg += 1;
            let disks: Vec<DiskId> = column.disks.iter().copied().map(DiskId).collect();
            let column = Some(Column { group: id, position, later });
            self.put_pg(Pg { column, ..Pg::new(pg, volume, scheme, &disks, time) });
            columns.push(pg);
        }
        let made = columns.clone();
        let core_rack = clip(&group.core_rack);
        let rack_capacity = group.rack_capacity as u8;
        let group = StripeGroup { id, volume, later, core_rack, rack_capacity, columns, created: time };
        self.put_stripe_group(group);
        made
    }
}
