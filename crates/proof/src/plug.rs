//! [`Plug`]: how the process in a place hangs on the network: an address that stays the same over its restarts, and
//! nothing of it is heard while the plug is pulled.
//!
//! Not here: faults of the network while it runs ([`crate::links`]).

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cairn_dst::links::set_down;

use crate::links::host_of;

/// The port of every process.
const PORT: u16 = 7000;

/// One place's way to others.
#[derive(Debug)]
pub struct Plug {
    place: usize,
    in_use: AtomicBool,
}

impl Plug {
    /// Of a place in which nothing runs yet.
    pub fn new(place: usize) -> Self {
        Self { place, in_use: AtomicBool::new(false) }
    }

    /// Where the process in this place listens.
    pub fn socket(&self) -> SocketAddr {
        let host = u8::try_from(host_of(self.place)).expect("a cluster has some dozen places");
        SocketAddr::from((Ipv4Addr::new(10, 0, 0, host), PORT))
    }

    /// The same, as others are told.
    pub fn address(&self) -> String {
        self.socket().to_string()
    }

    /// Whether a process runs there.
    pub fn is_in_use(&self) -> bool {
        self.in_use.load(Relaxed)
    }

    /// A process is about to listen.
    pub fn connect(&self) {
        set_down(host_of(self.place), false);
        self.in_use.store(true, Relaxed);
    }

    /// The process is ending: nothing that it says from now on is heard, and its connections end.
    pub fn pull(&self) {
        self.in_use.store(false, Relaxed);
        set_down(host_of(self.place), true);
    }
}
