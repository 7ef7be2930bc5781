//! [`DecodePlan`]: what to read and by what to multiply it, for one pattern of losses.
use crate::ShardSet;
use crate::error::{ErasureError, Role};
use crate::kernel::{Factors, Kernel, Product, multiply};
use crate::matrix::Decoder;
use crate::shards::{Inputs, Outputs};

/// Made by [`Codec::decode_plan`](crate::Codec::decode_plan). Keep it for all stripes with the same losses: only making
/// it inverts a matrix.
#[derive(Clone, Debug)]
pub struct DecodePlan {
    sources: Box<[usize]>,
    wanted: Box<[usize]>,
    factors: Factors,
    product: Product,
}

impl DecodePlan {
    pub(crate) fn new(k: usize, sources: ShardSet, wanted: &[usize], kernel: Kernel) -> Self {
        let decoder = Decoder::new(k, sources);
        let rows: Vec<Vec<u8>> = wanted.iter().map(|shard| decoder.row(*shard)).collect();
        DecodePlan {
            sources: sources.iter().collect(),
            wanted: wanted.into(),
            factors: Factors::new(wanted.len(), k, |row, source| rows[row][source]),
            product: Product { kernel, add: false },
        }
    }

    /// The k shards to read, ascending.
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }
    /// The shards that are computed, as they were asked for.
    pub fn wanted(&self) -> &[usize] {
        &self.wanted
    }

    /// Computes the wanted shards. `sources` are in the order of [`sources`](Self::sources), `outputs` in that of
    /// [`wanted`](Self::wanted).
    pub fn run<D: AsRef<[u8]>, P: AsMut<[u8]>>(&self, sources: &[D], outputs: &mut [P]) -> Result<(), ErasureError> {
        let sources = Inputs::gather(Role::Source, sources, self.sources.len())?;
        let mut outputs = Outputs::gather(Role::Output, outputs, self.wanted.len(), sources.length())?;
        multiply(&self.factors, sources.slices(), outputs.slices(), self.product);
        Ok(())
    }
}
