//! Systematic Reed–Solomon codes over GF(2^8): parity from data, any lost shards from any k others.
//!
//! A [`Codec`] encodes, verifies and updates parity; [`Codec::decode_plan`] says which shards to read and gives a
//! [`DecodePlan`] that computes any wanted shards from them. Shards of one call are byte strings of one length; byte i
//! of a parity depends on the bytes i of the data alone. Multiplication runs in one of several [`Kernel`]s, chosen when
//! the codec is made by what the processor can do.
//!
//! Invariants owned by this crate: the field (`gf`) and the matrix (`matrix`) are those of all parity on disk and never
//! change; every kernel computes the same bytes; wrong counts and lengths are errors and nothing is written then. What
//! it does not do: no I/O, no threads, no checksums; it cannot tell which shard is wrong when parity does not fit.
//!
//! Unsafe code is in `kernel` alone. See docs/internals/erasure.md.

mod codec;
mod decode_plan;
mod error;
mod gf;
mod kernel;
mod matrix;
mod shard_set;
mod shards;

pub use codec::Codec;
pub use decode_plan::DecodePlan;
pub use error::{ErasureError, Role};
pub use kernel::Kernel;
pub use matrix::coefficient;
pub use shard_set::ShardSet;

/// Data and parity shards of one stripe, at most.
pub const SHARDS_MAX: usize = 32;
