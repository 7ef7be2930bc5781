//! Whether the threads that serve requests get on, seen from a thread that serves none.
//!
//! An operation that goes round in circles, or waits for a lock for ever, holds its thread: no timer of that thread
//! fires and no interrupt is read. Then callers that were killed are let go here, the mount's limit for operations is
//! kept from here, and a worker whose threads stood still for that long is replaced. Invariants owned here: time is
//! counted in own looks, so a process that was stopped as a whole blames nobody; what is answered here is answered
//! once.
use super::Session;
use super::in_flight::{InFlight, Old};
use super::interrupt::is_killed;
use crate::abi::opcode::Opcode;
use crate::device::Device;
use crate::suspects::{Suspects, THREADS};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

const LOOK: Duration = Duration::from_millis(500);
/// A thread that did not get on for so many looks stands still.
const STILL: u32 = 4;
/// After the worker was told that it hangs it has so many looks to write out what it can.
const LAST_LOOKS: u32 = 60;
/// Callers that are looked at each time.
const CALLERS_MAX: usize = 256;
/// Exit status of a worker that hangs.
const HUNG_STATUS: i32 = 75;

static THREADS_SEEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD: usize = THREADS_SEEN.fetch_add(1, Ordering::Relaxed);
    static LANE: Cell<usize> = const { Cell::new(0) };
}

/// Requests that are read on this thread go to that lane.
pub(super) fn reads_for(lane: usize) {
    LANE.set(lane);
}
pub(super) fn lane() -> usize {
    LANE.get()
}

/// What threads tell of themselves.
pub struct Pulse {
    /// The request that each thread polls; 0: none.
    polled: [AtomicU64; THREADS],
    /// Raised by each lane as long as it gets on.
    beats: [AtomicU64; THREADS],
    /// Somebody starts another worker if this one ends.
    pub supervised: AtomicBool,
}

impl Default for Pulse {
    fn default() -> Self {
        Pulse {
            polled: std::array::from_fn(|_| AtomicU64::new(0)),
            beats: std::array::from_fn(|_| AtomicU64::new(0)),
            supervised: AtomicBool::new(true),
        }
    }
}

/// A request is being polled by this thread as long as this is there.
pub(super) struct Polled<'a>(&'a Session);

impl Session {
    pub(super) fn polls(&self, number: u64) -> Polled<'_> {
        self.note_poll(number);
        Polled(self)
    }
    fn note_poll(&self, number: u64) {
        if self.is_abandoned() {
            return;
        }
        let thread = THREAD.with(|thread| *thread);
        if let Some(slot) = self.pulse.polled.get(thread) {
            slot.store(number, Ordering::Release);
            if let Some(suspects) = self.table.suspects() {
                suspects.polls(thread, number);
            }
        }
    }
    /// Starts looking. The receiver hears when this process has to be replaced.
    pub fn start_watchdog(self: &Arc<Self>, lanes: &[Handle]) -> std::io::Result<watch::Receiver<bool>> {
        for (number, lane) in lanes.iter().enumerate().take(THREADS) {
            let weak = Arc::downgrade(self);
            lane.spawn(async move {
                while let Some(session) = weak.upgrade() {
                    session.pulse.beats[number].fetch_add(1, Ordering::Relaxed);
                    drop(session);
                    tokio::time::sleep(LOOK / 2).await;
                }
            });
        }
        let (tell, told) = watch::channel(false);
        let (weak, lanes) = (Arc::downgrade(self), lanes.len().min(THREADS));
        let body = move || {
            let mut watchdog = Watchdog::new(lanes);
            while let Some(session) = weak.upgrade().filter(|session| !session.is_abandoned()) {
                let limit = looks(session.deadline());
                let seen = Seen {
                    pulse: &session.pulse,
                    in_flight: &session.in_flight,
                    device: &session.device,
                    suspects: session.table.suspects(),
                };
                let hangs = watchdog.look(&seen, limit);
                session.stats.timed_out.fetch_add(std::mem::take(&mut watchdog.timed_out), Ordering::Relaxed);
                if hangs > limit && session.pulse.supervised.load(Ordering::Acquire) {
                    tell.send_replace(true);
                    if hangs > limit + LAST_LOOKS {
                        tracing::error!(
                            "the mount's worker hangs and cannot write out; it ends, and another one is started"
                        );
                        session.hung_ends();
                        // SAFETY: ends the process at once; nothing of it is used afterwards.
                        unsafe { libc::_exit(HUNG_STATUS) };
                    }
                }
                drop(session);
                std::thread::sleep(LOOK);
            }
        };
        std::thread::Builder::new().name("fuse-watch".into()).spawn(body)?;
        Ok(told)
    }
    /// What hangs was answered: the next worker does not get it, and what else it gets is not to blame.
    pub fn hung_ends(&self) {
        if let Some(suspects) = self.table.suspects() {
            suspects.clear();
        }
    }
}

impl Drop for Polled<'_> {
    fn drop(&mut self) {
        self.0.note_poll(0);
    }
}

fn looks(time: Duration) -> u32 {
    u32::try_from(time.as_millis().div_ceil(LOOK.as_millis())).unwrap_or(u32::MAX / 2).max(STILL)
}

/// What is looked at.
struct Seen<'a> {
    pulse: &'a Pulse,
    in_flight: &'a InFlight,
    device: &'a Device,
    suspects: Option<&'a Suspects>,
}

/// A value and for how many looks it has been the same.
#[derive(Clone, Copy, Default)]
struct Still {
    value: u64,
    looks: u32,
}

impl Still {
    fn look(&mut self, value: u64) -> u32 {
        self.looks = if value == self.value { self.looks.saturating_add(1) } else { 0 };
        self.value = value;
        self.looks
    }
}

struct Watchdog {
    polled: Vec<Still>,
    beats: Vec<Still>,
    was_still: bool,
    timed_out: u64,
}

impl Watchdog {
    fn new(lanes: usize) -> Self {
        Self {
            polled: vec![Still::default(); THREADS],
            beats: vec![Still::default(); lanes],
            was_still: false,
            timed_out: 0,
        }
    }
    /// For how many looks some thread has stood still. Lets callers go that wait for it, those that were killed at
    /// once, all others after `limit` looks.
    fn look(&mut self, seen: &Seen<'_>, limit: u32) -> u32 {
        seen.in_flight.next_look();
        let mut still = 0;
        let mut polled_still = Vec::new();
        for (state, slot) in self.polled.iter_mut().zip(&seen.pulse.polled) {
            let number = slot.load(Ordering::Acquire);
            let looks = state.look(number);
            if number != 0 {
                still = still.max(looks);
                polled_still.extend((looks >= STILL).then_some(number));
            }
        }
        let mut lanes_still = Vec::new();
        for (lane, (state, beats)) in self.beats.iter_mut().zip(&seen.pulse.beats).enumerate() {
            let looks = state.look(beats.load(Ordering::Relaxed));
            still = still.max(looks);
            lanes_still.extend((looks >= STILL).then_some((lane, looks)));
        }
        if still < STILL {
            if std::mem::take(&mut self.was_still) {
                seen.suspects.into_iter().for_each(|suspects| suspects.are_stuck(std::iter::empty()));
            }
            return still;
        }
        let old = seen.in_flight.older_than(STILL);
        let waits = |old: &&Old| lanes_still.iter().any(|(lane, looks)| *lane == old.lane && old.looks >= *looks);
        if !std::mem::replace(&mut self.was_still, true) {
            tracing::warn!(waiting = old.len(), "a thread of the mount's worker does not get on");
        }
        if let Some(suspects) = seen.suspects {
            let stuck = old.iter().filter(waits).map(|old| old.unique & !crate::abi::header::UNIQUE_RESEND);
            suspects.are_stuck(polled_still.into_iter().chain(stuck));
        }
        self.let_go(seen, &old, limit);
        still
    }
    fn let_go(&mut self, seen: &Seen<'_>, old: &[Old], limit: u32) {
        for old in old {
            if old.looks >= limit && old.opcode != Opcode::Setlkw as u32 && seen.in_flight.end(old.unique) {
                let operation = Opcode::of(old.opcode).map(Opcode::name).unwrap_or_default();
                tracing::error!(
                    operation,
                    pid = old.pid,
                    "an operation holds a thread or waits for one that is held; EIO was sent"
                );
                seen.device.answer_error(old.unique, libc::EIO);
                self.timed_out += 1;
            }
        }
        for old in old.iter().filter(|old| old.looks < limit).take(CALLERS_MAX) {
            if is_killed(old.pid) && seen.in_flight.end(old.unique) {
                seen.device.answer_error(old.unique, libc::EINTR);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::header::OutHeader;
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
    use std::os::fd::OwnedFd;
    use zerocopy::FromBytes;

    struct Scene {
        pulse: Pulse,
        in_flight: InFlight,
        device: Device,
        kernel: OwnedFd,
        suspects: Suspects,
        watchdog: Watchdog,
    }

    impl Scene {
        fn new() -> Scene {
            let (flags, kind) = (SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, SocketType::SEQPACKET);
            let (ours, kernel) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).expect("sockets");
            // SAFETY: all fields are atomic integers, for which zeros are values.
            let suspects: Suspects = unsafe { std::mem::zeroed() };
            suspects.take_over();
            let (pulse, in_flight, device) = (Pulse::default(), InFlight::default(), Device::new(ours));
            Scene { pulse, in_flight, device, kernel, suspects, watchdog: Watchdog::new(2) }
        }
        /// The lanes that get on do so between two looks.
        fn look(&mut self, getting_on: &[usize], limit: u32) -> u32 {
            getting_on.iter().for_each(|lane| _ = self.pulse.beats[*lane].fetch_add(1, Ordering::Relaxed));
            let seen = Seen {
                pulse: &self.pulse,
                in_flight: &self.in_flight,
                device: &self.device,
                suspects: Some(&self.suspects),
            };
            self.watchdog.look(&seen, limit)
        }
        /// What the kernel was answered since it was asked last.
        fn answers(&self) -> Vec<(u64, i32)> {
            let mut found = Vec::new();
            let mut bytes = [0; 256];
            while let Ok((count, _)) = rustix::net::recv(&self.kernel, &mut bytes[..], RecvFlags::empty()) {
                let (header, _) = OutHeader::read_from_prefix(&bytes[..count]).expect("a header");
                found.push((header.unique, -header.error));
            }
            found.sort_unstable();
            found
        }
    }

    /// One endless loop would hang the mount for everybody: the limit would not fire, and killed callers would stay.
    #[test]
    fn a_thread_that_stands_still_keeps_nobody() {
        let mut scene = Scene::new();
        let own = std::process::id();
        let gone = {
            let mut child = std::process::Command::new("true").spawn().expect("a process");
            child.wait().expect("ended");
            child.id()
        };
        reads_for(0);
        scene.in_flight.begin(10, Opcode::Lseek as u32, own);
        scene.in_flight.begin(12, Opcode::Read as u32, gone);
        scene.in_flight.begin(14, Opcode::Setlkw as u32, own);
        scene.pulse.polled[7].store(10, Ordering::Release);
        for _ in 0..STILL {
            assert!(scene.look(&[0, 1], 20) < STILL && scene.answers().is_empty());
        }
        assert!(scene.look(&[0, 1], 20) >= STILL);
        assert_eq!(scene.answers(), [(12, libc::EINTR)], "its caller is gone");
        scene.in_flight.begin(16, Opcode::Read as u32, own);
        while scene.watchdog.polled[7].looks < 18 {
            scene.look(&[0, 1], 20);
            assert_eq!(scene.answers(), []);
        }
        scene.look(&[0, 1], 20);
        assert_eq!(
            scene.answers(),
            [(10, libc::EIO)],
            "the limit, and no lock that is waited for, and nothing younger"
        );
        assert!(!scene.in_flight.contains(10) && scene.in_flight.contains(14) && scene.in_flight.contains(16));
        assert_eq!(scene.suspects.left(), [10], "no other worker gets it twice");
    }

    /// A loop in what a request started behind it would be blamed on nobody, or on requests of other threads.
    #[test]
    fn requests_of_a_lane_that_stands_still_are_suspects() {
        let mut scene = Scene::new();
        let own = std::process::id();
        reads_for(1);
        scene.in_flight.begin(20, Opcode::Fallocate as u32, own);
        reads_for(0);
        scene.in_flight.begin(22, Opcode::Read as u32, own);
        scene.look(&[0, 1], 20);
        for _ in 0..STILL {
            scene.look(&[0], 20);
        }
        assert_eq!(scene.suspects.left(), [20]);
        reads_for(1);
        scene.in_flight.begin(24, Opcode::Read as u32, own);
        for _ in 0..STILL {
            scene.look(&[0], 20);
        }
        assert_eq!(scene.suspects.left(), [20], "it came when the lane stood still already");
        scene.look(&[0, 1], 20);
        assert_eq!((scene.suspects.left(), scene.answers()), (vec![], vec![]), "it gets on again");
    }
}
