//! Maintenance of a node: it hibernates for a time of which the manager knows, its process ends, and some steps later
//! it starts again. As long as the time lasts, nobody takes its places.

use std::time::{Duration, Instant};

use cairn_types::MemberState;
use cairn_wire::Opcode;
use cairn_wire::manager::{HibernateRequest, Target};

use crate::cluster::Cluster;
use crate::data_node::End;
use crate::members::groups;

/// Kind of target.
const NODE: u32 = 2;
/// Of a window for which nothing is replaced for certain: clocks differ.
const SURE: f64 = 0.9;

/// A node that hibernates.
pub struct Sleep {
    place: usize,
    number: u32,
    begun: Instant,
    window: Duration,
    /// Groups that it served in, which nobody was about to join and no former member could come back to. None of a node
    /// that is drained: its members leave as long as it is not known to be away.
    served: Vec<(u32, u32)>,
}

impl Cluster {
    fn hibernate(&self, number: u32, window: Duration, end: bool) -> Result<(), String> {
        let target = Some(Target { kind: NODE, id: number, ..Target::default() });
        let request = HibernateRequest { target, window_ms: window.as_millis() as u64, end };
        self.runtime.block_on(self.ask_manager(Opcode::Hibernate, &request)).map(|_| ())
    }

    /// Asks for a hibernation of a data node, and ends its process if that is granted.
    pub fn fall_asleep(&self, place: usize, window: Duration) -> Option<Sleep> {
        let mut node = self.node(place).lock();
        let number = node.number()?;
        let begun = Instant::now();
        let granted = self.hibernate(number, window, false);
        tracing::info!(place, number, ?window, ?granted, "a node is to hibernate");
        granted.ok()?;
        let serving = u32::from(MemberState::Serving.code());
        let mut served = Vec::new();
        if let Some(map) = self.map().filter(|_| !self.is_drained(number)) {
            let places = self.places(&map);
            for (pg, state) in groups(&map) {
                let quiet = state.joining.is_none() && state.formers.is_empty() && !state.retired;
                let here = |member: &&cairn_wire::data::PgMember| places.get(&member.disk) == Some(&place);
                let here = state.members.iter().filter(here).filter(|member| quiet && member.state == serving);
                served.extend(here.map(|member| (pg, member.disk)));
            }
        }
        node.end(End::Kill);
        Some(Sleep { place, number, begun, window, served })
    }

    /// While a node hibernates nobody took its places.
    pub fn nothing_was_replaced(&self, sleep: &Sleep) -> Result<(), String> {
        let Some(map) = self.map() else { return Ok(()) };
        if sleep.begun.elapsed() > sleep.window.mul_f64(SURE) || self.is_drained(sleep.number) {
            return Ok(());
        }
        let groups = groups(&map);
        let left = |(pg, disk): &&(u32, u32)| {
            let state = groups.get(pg).filter(|state| !state.retired);
            state.is_some_and(|state| !state.members.iter().any(|member| member.disk == *disk))
        };
        match sleep.served.iter().find(left) {
            None => Ok(()),
            Some((pg, disk)) => Err(format!("disk {disk} hibernates, and has lost its place in pg{pg}")),
        }
    }

    /// The process starts again; `ends`: and the manager is told that it is over, which it is after the time anyway.
    pub fn wake_up(&self, sleep: &Sleep, ends: bool) -> Result<(), String> {
        let mut node = self.node(sleep.place).lock();
        if !node.is_up() {
            node.start().map_err(|why| format!("place {} does not start again: {why}", sleep.place))?;
        }
        if ends {
            // It may be over already.
            let ended = self.hibernate(sleep.number, Duration::ZERO, true);
            tracing::info!(place = sleep.place, ?ended, "a hibernation ends");
        }
        Ok(())
    }

    /// Whether a node is drained, or nobody can say.
    fn is_drained(&self, number: u32) -> bool {
        let of_node = |target: &Target| target.kind == NODE && target.id == number;
        self.status().is_none_or(|status| status.drains.iter().any(|drain| drain.target.as_ref().is_some_and(of_node)))
    }

    /// Ends all hibernations; false: some are left.
    pub fn end_hibernations(&self) -> bool {
        let Some(status) = self.status() else { return false };
        for hibernation in &status.hibernations {
            let number = hibernation.target.as_ref().map_or(0, |target| target.id);
            // It is asked for again until none is left.
            let _refused = self.hibernate(number, Duration::ZERO, true);
        }
        status.hibernations.is_empty()
    }
}
