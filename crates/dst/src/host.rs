//! [`Host`]: a machine of the run: a clock that may run fast or slow, and threads that may all stand still.
//!
//! A thread belongs to the host of the thread that made it; [`enter`] changes that for a while. Links between hosts are
//! in [`crate::links`].

use std::time::Duration;

use crate::sched;
use crate::world::{Tid, World, managed, with};

/// 2026-01-01T00:00:00Z, where the calendar of a run begins.
const WALL_START: u64 = 1_767_225_600_000_000_000;
/// Clocks count from a machine's start, which was some time before the run's.
const BOOT: u64 = 1_000_000_000_000;

/// A machine.
pub struct Host {
    /// By how many millionths its clock is fast.
    drift_ppm: i64,
    /// The point at which the present rate began: time of the world, time of the host.
    anchor: (u64, u64),
    /// None of its threads runs.
    pub paused: bool,
    /// Those that could.
    pub parked: Vec<Tid>,
}

impl Host {
    /// One whose clock is right.
    pub fn new(now: u64) -> Self {
        Self { drift_ppm: 0, anchor: (now, now + BOOT), paused: false, parked: Vec::new() }
    }

    /// What its clock shows.
    pub fn local(&self, now: u64) -> u64 {
        let (world, local) = self.anchor;
        let passed = now.saturating_sub(world);
        local + (i128::from(passed) + i128::from(passed) * i128::from(self.drift_ppm) / 1_000_000) as u64
    }

    /// When its clock will show `local`.
    pub fn moment(&self, local: u64) -> u64 {
        let (world, base) = self.anchor;
        let ahead = i128::from(local.saturating_sub(base));
        world + (ahead * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm))) as u64
    }

    fn set_drift(&mut self, now: u64, ppm: i64) {
        self.anchor = (now, self.local(now));
        self.drift_ppm = ppm;
    }
}

impl World {
    /// There are hosts up to this one.
    fn add_hosts(&mut self, last: usize) {
        while self.hosts.len() <= last {
            self.hosts.push(Host::new(self.now));
        }
    }
}

/// What the calendar shows when the clock shows `local`.
pub fn wall(local: u64) -> u64 {
    WALL_START + (local - BOOT)
}

/// Goes back to the former host when it is dropped.
#[must_use = "the thread goes back to its former host at once"]
pub struct Entered(Option<usize>);

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(before) = self.0
            && managed()
        {
            with(|world| world.threads[world.running as usize].host = before);
        }
    }
}

/// The calling thread, and those that it starts, belong to a host from now on. Outside of a run it does nothing.
pub fn enter(host: usize) -> Entered {
    if !managed() {
        return Entered(None);
    }
    Entered(Some(with(|world| {
        world.add_hosts(host);
        std::mem::replace(&mut world.threads[world.running as usize].host, host)
    })))
}

/// The host of the calling thread; 0 outside of a run.
pub fn current() -> usize {
    if managed() { with(|world| world.threads[world.running as usize].host) } else { 0 }
}

/// A host's clock goes faster (or, below zero, slower) by so many millionths from now on.
pub fn drift(host: usize, ppm: i64) {
    if managed() {
        with(|world| {
            world.add_hosts(host);
            let now = world.now;
            world.hosts[host].set_drift(now, ppm);
        });
    }
}

/// A host stands still, or goes on. Who pauses its own stands still at once, until another one lets it go on.
pub fn pause(host: usize, paused: bool) {
    if !managed() {
        return;
    }
    with(|world| {
        let Some(host) = world.hosts.get_mut(host) else { return };
        host.paused = paused;
        if !paused {
            let parked = std::mem::take(&mut host.parked);
            world.ready.extend(parked);
        }
    });
    sched::pass();
}

/// Time since the run began.
pub fn elapsed() -> Duration {
    if managed() { with(|world| Duration::from_nanos(world.now)) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait on a host with a wrong clock would end too early or never.
    #[test]
    fn a_drifting_clock_goes_both_ways() {
        for ppm in [0, 500, -500, 200_000] {
            let mut host = Host::new(5);
            host.set_drift(1_000, ppm);
            let local = host.local(3_000_001_000);
            assert_eq!(local - host.local(1_000), (3_000_000_000 + 3_000 * ppm) as u64);
            assert!(host.moment(local).abs_diff(3_000_001_000) <= 2);
        }
    }
}
