//! Placement: which disks carry a placement group, which group gets a new chunk, who is near whom. Layer 0, pure.
//!
//! The manager plans placement groups with [`Chooser`] and meta partitions with [`MemberChooser`]; the client picks a
//! group for each new chunk with [`pick::pick`]; client and data nodes order members with [`nearness`]. Everything is a
//! function of its arguments: equal input and seed, equal answer.
//!
//! Not here: the state that the numbers come from (manager-core), epochs and member states.
pub mod choose;
pub mod domain;
pub mod ear;
pub mod members;
pub mod nearness;
pub mod pick;

pub use choose::{Chooser, DiskCandidate, NoSuccessor, Seat, TooFewDisks, Vacancy};
pub use domain::Domains;
pub use members::{MemberChooser, MetaCandidate, TooFewNodes};
pub use nearness::{Nearness, Place, sort_by_nearness};
pub use pick::{PgCandidate, pick, pick_near};
