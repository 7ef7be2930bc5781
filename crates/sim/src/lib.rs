//! A simulated environment: clock, randomness, disk and network that a test controls and that fail on purpose.
//!
//! Used by tests alone (as a dev-dependency); nothing of it is in the product. Everything is a function of a seed
//! and the calls made: the same seed twice gives the same run.
//!
//! Not here: the rules of any server (the tests of each crate drive its core through these).

pub mod clock;
pub mod conformance;
pub mod disk;
pub mod net;
pub mod rng;
pub mod simulation;
pub mod trace;

pub use clock::SimClock;
pub use disk::{CrashMix, CrashPolicy, DiskImage, FaultCounts, FaultRule, FaultWhen, SimDisk, SimDiskOptions};
pub use net::{LinkOptions, NetCounts, Outbox, SimNet};
pub use rng::SimRng;
pub use simulation::{Ctx, Envelope, EventId, Simulation};
pub use trace::Trace;
