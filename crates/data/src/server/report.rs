//! The node's talk with the manager, as a contributor of the node's agent: disks, groups, suspicions, the map.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_node_agent::{Contributor, Registration, Settings};
use cairn_types::{DiskId, FEATURE_LEVEL, MemberState, NodeId, PgId};
use cairn_wire::manager::{ClusterMap, DiskReport, HeartbeatRequest, PgReport, RegisterRequest};

use super::epochs::Teller;
use super::member::Member;
use super::retired::has_dropped;
use super::{DataServer, Inner};

/// Characters of what a member says that it waits for.
const WAITS_FOR_MAX: usize = 300;

impl DataServer {
    /// The cluster that the disks' labels name, if any does.
    pub fn cluster(&self) -> cairn_types::ClusterId {
        let known = self.inner.slots.iter().map(|slot| slot.cluster()).find(|cluster| !cluster.is_none());
        known.unwrap_or(cairn_types::ClusterId::NONE)
    }

    /// The node that the disks' labels name; 0 if none does.
    pub fn node(&self) -> NodeId {
        self.inner.slots.iter().map(|slot| slot.node()).find(|node| node.get() != 0).unwrap_or(NodeId(0))
    }
}

impl Contributor for DataServer {
    fn disks(&self) -> Vec<DiskReport> {
        // A directory whose label cannot be read has no identity to report: the node serves without it, `health` names
        // it.
        self.inner.slots.iter().filter(|slot| !slot.uuid().is_none()).map(|slot| slot.report()).collect()
    }

    fn registered(&self, registration: &Registration) -> Result<(), String> {
        let inner = &self.inner;
        // A disk that the manager refuses is nobody's member any more, or another server's.
        inner.by_id.write().retain(|id, _| registration.disks.iter().any(|(_, given)| given == id));
        for slot in &inner.slots {
            let uuid = slot.uuid();
            let found = registration.disks.iter().find(|(of, id)| *of == uuid && !uuid.is_none() && id.get() != 0);
            let Some((_, id)) = found else { continue };
            slot.register(registration.cluster, registration.node, *id, &inner.parts)?;
            slot.generation_confirmed();
            if let Some(store) = slot.store() {
                inner.by_id.write().insert(*id, slot.clone());
                inner.start_scrub(*id, &store);
                inner.remember_bad_blocks(*id, &store);
            }
        }
        inner.incarnation.store(registration.incarnation.get(), Ordering::Relaxed);
        Ok(())
    }

    fn map_changed(&self, change: &ClusterMap, term: u64) {
        self.inner.volume_names.apply(change);
        self.inner.privacy.apply(change);
        {
            let mut addresses = self.inner.addresses.write();
            for node in change.nodes.iter().filter(|node| !node.address.is_empty()) {
                addresses.insert(NodeId(node.id), node.address.clone());
            }
        }
        for state in change.pgs.iter().filter_map(|pg| pg.state.as_ref()) {
            self.inner.take_state(state, term, Teller::Manager, |_, _| {});
        }
    }

    fn register(&self, request: &mut RegisterRequest) {
        self.inner.tell_groups(request);
    }

    fn heartbeat(&self, heartbeat: &mut HeartbeatRequest) {
        self.inner.word.asked(self.inner.clock.now());
        self.inner.store_told();
        self.inner.drop_retired();
        self.inner.parts.pool.trim();
        // A meta role in the same process says what its configuration lets it.
        if heartbeat.feature_level == 0 {
            heartbeat.feature_level = FEATURE_LEVEL;
        }
        for store in self.inner.slots.iter().filter_map(|slot| slot.store()) {
            store.rise_later();
        }
        for disk in &mut heartbeat.disks {
            // Where it came from was told with the registration.
            let before = disk.generations.len().saturating_sub(1);
            disk.generations.drain(..before);
        }
        heartbeat.pgs.extend(self.inner.pg_reports());
        heartbeat.unhealed.extend(self.inner.unhealed_reports());
        heartbeat.missing.extend(self.inner.missing_reports());
        heartbeat.refused.extend(self.inner.refused_reports());
        heartbeat.problem =
            self.inner.left_out().into_iter().fold(std::mem::take(&mut heartbeat.problem), |said, more| {
                if said.is_empty() { more } else { format!("{said}; {more}") }
            });
        let mut suspects = self.inner.suspects.lock();
        suspects.sent = suspects.waiting.len();
        heartbeat.suspects.extend(suspects.waiting.iter().cloned());
    }

    fn settings(&self, settings: &Settings) {
        self.inner.pace.set(settings);
        self.inner.scrubs.set(settings);
    }

    fn heartbeat_taken(&self) {
        // Not those that came after it was filled.
        let mut suspects = self.inner.suspects.lock();
        let sent = std::mem::take(&mut suspects.sent);
        suspects.waiting.drain(..sent);
    }

    fn up_to_date(&self) {
        self.inner.word.came(self.inner.clock.now());
    }
}

impl Inner {
    /// Directories that are used for nothing and have no identity under which they could be reported: only the log
    /// would say it.
    fn left_out(&self) -> Vec<String> {
        let unnamed = self.slots.iter().filter(|slot| slot.uuid().is_none());
        let problems = unnamed.filter_map(|slot| slot.problem());
        problems
            .chain(self.config.left_out.iter().cloned())
            .map(|why| format!("it goes on without a disk of its configuration until it is restarted: {why}"))
            .collect()
    }

    /// Groups whose state changed or that caught up, and a sample of the rest in turn.
    fn pg_reports(&self) -> Vec<PgReport> {
        let slots: Vec<_> = self.by_id.read().iter().map(|(id, slot)| (*id, slot.clone())).collect();
        let mut all: Vec<(DiskId, PgId)> = Vec::new();
        for (disk, slot) in slots {
            let Some(store) = slot.store() else { continue };
            all.extend(store.pg_files().all().iter().map(|pg| (disk, pg.pg)));
        }
        let start = *self.report_at.lock();
        let turn = all.partition_point(|at| *at <= start);
        all.rotate_left(turn);
        let mut reports = Vec::new();
        let mut sampled = 0;
        for (disk, pg) in all {
            let Ok(member) = self.member(disk.get(), pg.get(), 0) else { continue };
            let urgent = {
                let mut state = member.runtime.state.lock();
                // How far a member that catches up has come is told each time.
                std::mem::take(&mut state.changed) || state.role == Some(MemberState::Syncing)
            };
            if !urgent && sampled >= self.config.report_sample {
                continue;
            }
            if !urgent {
                sampled += 1;
                *self.report_at.lock() = (disk, pg);
            }
            reports.push(report(&member));
        }
        reports
    }
}

/// A text of bounded length.
fn clip(text: &str) -> String {
    text.chars().take(WAITS_FOR_MAX).collect()
}

fn report(member: &Member) -> PgReport {
    let mut used = 0;
    let mut open = 0;
    let mut from = 0;
    loop {
        let page = member.store.list(member.pg.pg, from, 1000);
        for chunk in &page {
            used += chunk.used_bytes();
            open += u32::from(!chunk.is_sealed());
        }
        match page.last() {
            Some(last) if page.len() == 1000 => from = last.info().id.index.saturating_add(1),
            _ => break,
        }
    }
    let (caught_up, waits_for) = {
        let state = member.runtime.state.lock();
        let current = state.epoch == member.pg.epoch;
        (state.caught_up && current, if current { clip(&state.waits_for) } else { String::new() })
    };
    let syncing = cairn_chunk_core::fence::state_of(&member.pg, member.disk) == Ok(MemberState::Syncing);
    PgReport {
        disk: member.disk.get(),
        pg: member.pg.pg.get(),
        epoch: member.pg.epoch.get(),
        used_bytes: used,
        open_chunks: open,
        high_water: member.pg.high_water,
        caught_up: caught_up && (syncing || member.pg.comparing),
        waits_for: if syncing { waits_for } else { String::new() },
        dropped: has_dropped(member),
    }
}

/// Keeps a server as a contributor without a cycle of owners.
impl DataServer {
    /// The server as the agent takes it.
    pub fn contributor(&self) -> Arc<dyn Contributor> {
        Arc::new(self.clone())
    }
}
