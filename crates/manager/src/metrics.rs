//! Counters of a member, and gauges read from the state when somebody scrapes.
use crate::manager::Manager;
use cairn_telemetry::Samples;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only rises.
#[derive(Default, Debug)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What this process counted.
#[derive(Default, Debug)]
pub(crate) struct Metrics {
    pub requests: Counter,
    pub refused: Counter,
    pub overloaded: Counter,
    pub heartbeats: Counter,
    pub registrations: Counter,
    pub sessions: Counter,
    pub reports: Counter,
    pub reports_true: Counter,
    pub reports_false: Counter,
    pub slow_members: Counter,
    pub probes: Counter,
    pub probes_failed: Counter,
    pub nodes_marked_down: Counter,
    pub members_replaced: Counter,
    pub moves_begun: Counter,
    pub epochs_raised: Counter,
    pub pushes: Counter,
    pub pushes_failed: Counter,
    pub leaderships: Counter,
}

impl Manager {
    /// Appends all samples.
    pub(crate) fn sample(&self, out: &mut Samples) {
        let m = &self.metrics;
        let counters: [(&str, &'static str, &Counter); 19] = [
            ("cairn_manager_requests", "Requests served.", &m.requests),
            ("cairn_manager_requests_refused", "Requests answered with an error.", &m.refused),
            ("cairn_manager_requests_overloaded", "Requests refused because too many were under way.", &m.overloaded),
            ("cairn_manager_heartbeats", "Heartbeats taken.", &m.heartbeats),
            ("cairn_manager_registrations", "Nodes registered.", &m.registrations),
            ("cairn_manager_sessions", "Client sessions opened.", &m.sessions),
            ("cairn_manager_member_reports", "Reports about members that failed or stalled.", &m.reports),
            ("cairn_manager_member_reports_confirmed", "Reports that a probe confirmed.", &m.reports_true),
            ("cairn_manager_member_reports_unconfirmed", "Reports about members that answered.", &m.reports_false),
            ("cairn_manager_slow_members", "Members removed because several writers found them slow.", &m.slow_members),
            ("cairn_manager_probes", "Probes of nodes and members.", &m.probes),
            ("cairn_manager_probes_failed", "Probes that failed.", &m.probes_failed),
            ("cairn_manager_nodes_marked_down", "Nodes marked down.", &m.nodes_marked_down),
            ("cairn_manager_members_replaced", "Members in whose places other disks were put.", &m.members_replaced),
            ("cairn_manager_moves", "Members that began to leave their disks for others.", &m.moves_begun),
            ("cairn_manager_epochs_raised", "New epochs of placement groups, new groups included.", &m.epochs_raised),
            ("cairn_manager_pushes", "Messages that told nodes new epochs.", &m.pushes),
            ("cairn_manager_pushes_failed", "Such messages that were not acknowledged.", &m.pushes_failed),
            ("cairn_manager_leaderships", "Times this member began to lead.", &m.leaderships),
        ];
        for (name, help, counter) in counters {
            out.counter(name, help, &[], counter.get());
        }
        let leads = self.permit().is_ok();
        out.gauge("cairn_manager_leads", "1 on the member that leads.", &[], f64::from(u8::from(leads)));
        for (severity, count) in self.problem_counts().into_iter().flatten() {
            let help = "Things that are wrong with the cluster, by how bad they are.";
            out.gauge("cairn_manager_problems", help, &[("severity", severity.name())], count as f64);
        }
        let state = self.replica.read();
        out.gauge("cairn_manager_map_version", "Version of the cluster map.", &[], state.version() as f64);
        if !leads {
            return;
        }
        let pgs = state.pg_counts();
        let states = [
            ("complete", pgs.complete),
            ("degraded", pgs.degraded),
            ("read_only", pgs.read_only),
            ("waiting", pgs.waiting),
        ];
        for (name, count) in states {
            let help = "Placement groups by what they can do.";
            out.gauge("cairn_cluster_placement_groups", help, &[("state", name)], f64::from(count));
        }
        let up = state.servers().filter(|n| n.up).count();
        let down = state.servers().count() - up;
        for (name, count) in [("up", up), ("down", down)] {
            out.gauge("cairn_cluster_nodes", "Registered nodes.", &[("state", name)], count as f64);
        }
        let filling = state.pgs().filter(|pg| !pg.retired).flat_map(|pg| pg.filling()).count();
        let help = "Members that are being filled in the places of lost ones.";
        out.gauge("cairn_cluster_members_filling", help, &[], filling as f64);
        let disks = state.disks_in_service();
        let help = "Disks that are far slower than others, or lose blocks.";
        out.gauge("cairn_cluster_disks_gray", help, &[], state.grays().count() as f64);
        out.gauge("cairn_cluster_disks_in_service", "Disks in service on nodes that are up.", &[], disks as f64);
    }
}
