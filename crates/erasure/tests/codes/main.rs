//! The codes against an independent implementation, in every kernel that this machine runs.

mod golden;
mod hostile;
mod kernels;
mod oracle;
mod patterns;
mod updates;

use cairn_erasure::Codec;
use cairn_types::Scheme;

/// Data and parity shards of every erasure scheme.
fn schemes() -> Vec<(usize, usize)> {
    let shape = |scheme| match scheme {
        Scheme::Erasure { k, m } => Some((usize::from(k), usize::from(m))),
        Scheme::Replicated(_) => None,
    };
    Scheme::all().filter_map(shape).collect()
}

fn codec(k: usize, m: usize) -> Codec {
    Codec::new(k, m).unwrap_or_else(|error| panic!("{error}"))
}
