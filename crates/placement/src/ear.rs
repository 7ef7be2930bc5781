//! Encoding-aware replication (EAR): copies that lie so that encoding them later downloads nothing across racks and
//! moves nothing afterwards. Li, Hu, Lee: "Enabling Efficient and Reliable Transition from Replication to Erasure
//! Coding for Clustered File Systems", DSN 2015, sections III and IV.
//!
//! All k blocks of a stripe have one copy in one rack, its *core rack*; the others of a block are on distinct nodes of
//! one other rack. Whoever encodes sits in the core rack and reads there alone. Of each block one copy stays, its
//! *survivor*; a maximum flow ([`SurvivorFlow`]) says whether survivors on distinct nodes, at most c of them in a rack,
//! exist.
//!
//! Two ways in: [`StripeBuilder`] draws copies block by block, as the paper does; [`Chooser::choose_stripe_group`]
//! plans a whole stripe group of placement groups and *chooses* distinct remote racks. [`Chooser::ear_successor`] is
//! for repair, [`StripeSeats::arrange`] says who keeps what as the members of a stripe group are now.
//!
//! Not here: when a group is encoded, and by whom.
//!
//! [`Chooser::choose_stripe_group`]: crate::Chooser::choose_stripe_group
//! [`Chooser::ear_successor`]: crate::Chooser::ear_successor
pub mod arrange;
pub mod flow;
pub mod group;
pub mod repair;
pub mod shape;
pub mod stripe;

pub use flow::{Slot, SurvivorFlow};
pub use group::{Column, GroupPlan};
pub use repair::{ColumnSeats, EarMember, EarSuccessor, NoEarSuccessor, StripeSeats};
pub use shape::{EarRefusal, EarShape};
pub use stripe::{EarCluster, StripeBuilder, StripePlan, place_stripe};
