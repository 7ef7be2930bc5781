//! What this node's disks know of placement groups, told with registrations: a manager whose state was restored from a
//! copy takes up epochs and members from it.
//!
//! Only what is durable is told: whoever serves has its epoch on the disk. Bound: [`PAGE`] groups a registration; the
//! next one tells the next of them. Not here: what the manager makes of it.

use std::sync::atomic::Ordering;

use cairn_types::DiskId;
use cairn_wire::manager::{RegisterRequest, SeenGroup, SeenNumbers};

use super::Inner;
use super::peer::state_message;

/// Groups that one registration tells: a message has a megabyte, a group some hundred bytes.
const PAGE: usize = 2048;

impl Inner {
    pub(super) fn tell_groups(&self, request: &mut RegisterRequest) {
        let (mut all, mut disks) = (Vec::new(), Vec::new());
        for slot in &self.slots {
            // Also of a disk that no manager has confirmed since the start.
            let Some(store) = slot.store() else { continue };
            disks.push(slot.id().get());
            all.extend(store.pg_files().all());
        }
        all.sort_by_key(|record| (record.disk, record.pg));
        let mut seen = request.seen.take().unwrap_or_default();
        all.iter().for_each(|record| raise(&mut seen, record));
        request.seen = Some(seen);
        let pages = all.len().div_ceil(PAGE).max(1);
        let page = self.told_page.fetch_add(1, Ordering::Relaxed) % pages;
        let group = |record: &std::sync::Arc<cairn_format::pg_state::PgStateRecord>| SeenGroup {
            disk: record.disk.get(),
            state: Some(state_message(record)),
        };
        let things = request.things.get_or_insert_default();
        (things.page, things.pages) = (page as u32, pages as u32);
        things.disks = disks;
        things.groups = all.iter().skip(page * PAGE).take(PAGE).map(group).collect();
    }
}

fn raise(seen: &mut SeenNumbers, record: &cairn_format::pg_state::PgStateRecord) {
    seen.term = seen.term.max(record.term);
    seen.pg = seen.pg.max(record.pg.get());
    seen.volume = seen.volume.max(record.volume.get());
    let disks = record.members.iter().map(|member| member.disk).chain([record.disk]);
    seen.disk = disks.map(DiskId::get).fold(seen.disk, u32::max);
    seen.node = record.members.iter().map(|member| member.node.get()).fold(seen.node, u32::max);
}
