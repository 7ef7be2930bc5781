//! [`Codec`]: parity of data, verified and kept up to date.
use crate::error::{ErasureError, Role};
use crate::kernel::{Factors, Kernel, Product, multiply};
use crate::matrix::{coefficient, column};
use crate::shards::{Inputs, Outputs};
use crate::{DecodePlan, SHARDS_MAX, ShardSet};
use cairn_types::Scheme;

/// Bytes of a shard that are verified or differenced at a time, on the stack.
const SCRATCH: usize = 1024;

/// A code with k data and m parity shards, and the kernel that computes it. Shards are numbered 0..k (data) and k..k +
/// m (parity). Cheap to make, `Send` and `Sync`; no call of it but [`decode_plan`](Codec::decode_plan) allocates.
#[derive(Clone, Debug)]
pub struct Codec {
    k: usize,
    m: usize,
    kernel: Kernel,
    factors: Factors,
}

impl Codec {
    /// At least one shard of each kind, at most [`SHARDS_MAX`] together; the best kernel of this processor.
    pub fn new(k: usize, m: usize) -> Result<Codec, ErasureError> {
        Codec::with_kernel(k, m, Kernel::best())
    }

    /// The code of a scheme, which must not be one of copies.
    pub fn for_scheme(scheme: Scheme) -> Result<Codec, ErasureError> {
        match scheme {
            Scheme::Erasure { k, m } => Codec::new(usize::from(k), usize::from(m)),
            Scheme::Replicated(_) => Err(ErasureError::NotErasure(scheme)),
        }
    }

    /// With a kernel of choice, to test or measure it.
    pub fn with_kernel(k: usize, m: usize, kernel: Kernel) -> Result<Codec, ErasureError> {
        if k == 0 || m == 0 || k > SHARDS_MAX || m > SHARDS_MAX || k + m > SHARDS_MAX {
            return Err(ErasureError::Shape { k, m });
        }
        if !kernel.is_available() {
            return Err(ErasureError::KernelUnavailable { kernel });
        }
        let factors = Factors::new(m, k, coefficient);
        Ok(Codec { k, m, kernel, factors })
    }

    /// Data shards.
    pub fn k(&self) -> usize {
        self.k
    }
    /// Parity shards.
    pub fn m(&self) -> usize {
        self.m
    }
    /// k + m.
    pub fn shards(&self) -> usize {
        self.k + self.m
    }
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Computes all parity shards.
    pub fn encode<D: AsRef<[u8]>, P: AsMut<[u8]>>(&self, data: &[D], parity: &mut [P]) -> Result<(), ErasureError> {
        let data = Inputs::gather(Role::Data, data, self.k)?;
        let mut parity = Outputs::gather(Role::Parity, parity, self.m, data.length())?;
        multiply(&self.factors, data.slices(), parity.slices(), self.product(false));
        Ok(())
    }

    /// Parity of one data shard alone, the others counting as zeros: the first of those that come one by one.
    pub fn encode_start<P: AsMut<[u8]>>(
        &self,
        index: usize,
        data: &[u8],
        parity: &mut [P],
    ) -> Result<(), ErasureError> {
        self.encode_one(index, data, parity, false)
    }

    /// Adds a data shard to parity that does not contain it yet. Adding the difference (XOR) of an old and a new
    /// content replaces the old one, and adding a shard twice takes it out.
    pub fn encode_add<P: AsMut<[u8]>>(&self, index: usize, data: &[u8], parity: &mut [P]) -> Result<(), ErasureError> {
        self.encode_one(index, data, parity, true)
    }

    fn encode_one<P: AsMut<[u8]>>(
        &self,
        index: usize,
        data: &[u8],
        parity: &mut [P],
        add: bool,
    ) -> Result<(), ErasureError> {
        self.check_data_index(index)?;
        let mut parity = Outputs::gather(Role::Parity, parity, self.m, data.len())?;
        multiply(&self.column(index), &[data], parity.slices(), self.product(add));
        Ok(())
    }

    /// Makes parity that fits `old` as data shard `index` fit `new`.
    pub fn update_parity<P: AsMut<[u8]>>(
        &self,
        index: usize,
        old: &[u8],
        new: &[u8],
        parity: &mut [P],
    ) -> Result<(), ErasureError> {
        self.check_data_index(index)?;
        let both = [old, new];
        let both = Inputs::gather(Role::Data, &both, 2)?;
        let mut parity = Outputs::gather(Role::Parity, parity, self.m, both.length())?;
        let factors = self.column(index);
        let mut difference = [0; SCRATCH];
        for (i, (old, new)) in old.chunks(SCRATCH).zip(new.chunks(SCRATCH)).enumerate() {
            let at = i * SCRATCH;
            for (d, (o, n)) in difference.iter_mut().zip(old.iter().zip(new)) {
                *d = o ^ n;
            }
            let mut part: [&mut [u8]; SHARDS_MAX] = std::array::from_fn(|_| -> &mut [u8] { &mut [] });
            for (part, whole) in part.iter_mut().zip(parity.slices()) {
                *part = &mut whole[at..at + old.len()];
            }
            multiply(&factors, &[&difference[..old.len()]], &mut part[..self.m], self.product(true));
        }
        Ok(())
    }

    /// Whether the parity is that of the data; [`ErasureError::ParityMismatch`] names the parity shards that are not.
    pub fn verify<D: AsRef<[u8]>, P: AsRef<[u8]>>(&self, data: &[D], parity: &[P]) -> Result<(), ErasureError> {
        let data = Inputs::gather(Role::Data, data, self.k)?;
        let parity = Inputs::gather(Role::Parity, parity, self.m)?;
        parity.check_length(Role::Parity, data.length())?;
        let mut scratch = [[0; SCRATCH]; SHARDS_MAX];
        let (mut wrong, mut first) = (ShardSet::EMPTY, None);
        for at in (0..data.length()).step_by(SCRATCH) {
            let end = data.length().min(at + SCRATCH);
            let mut sources: [&[u8]; SHARDS_MAX] = [&[]; SHARDS_MAX];
            for (part, whole) in sources.iter_mut().zip(data.slices()) {
                *part = &whole[at..end];
            }
            let mut computed = scratch.each_mut().map(|s| &mut s[..end - at]);
            multiply(&self.factors, &sources[..self.k], &mut computed[..self.m], self.product(false));
            for (i, (computed, given)) in computed.iter().zip(parity.slices()).enumerate() {
                let given = &given[at..end];
                if **computed != *given {
                    wrong.insert(self.k + i);
                    let here = computed.iter().zip(given).position(|(c, g)| c != g).map(|offset| at + offset);
                    first = match (first, here) {
                        (Some(a), Some(b)) => Some(std::cmp::min::<usize>(a, b)),
                        (a, b) => a.or(b),
                    };
                }
            }
        }
        match first {
            None => Ok(()),
            Some(offset) => Err(ErasureError::ParityMismatch { parity: wrong, offset }),
        }
    }

    /// How to compute the `wanted` shards (data or parity, in this order, also ones that are present) from k of those
    /// `present`. Data shards are preferred as sources, then the lowest parities: with the first one, a single lost
    /// data shard is a plain XOR. Who does not want a shard to be read leaves it out of `present`.
    pub fn decode_plan(&self, present: ShardSet, wanted: &[usize]) -> Result<DecodePlan, ErasureError> {
        let shards = self.shards();
        if let Some(shard) = present.iter().chain(wanted.iter().copied()).find(|shard| *shard >= shards) {
            return Err(ErasureError::NoSuchShard { shard, shards });
        }
        if wanted.len() > shards {
            return Err(ErasureError::TooManyWanted { wanted: wanted.len(), shards });
        }
        if present.len() < self.k {
            return Err(ErasureError::NotEnoughShards { needed: self.k, have: present.len(), present });
        }
        let sources: ShardSet = present.iter().take(self.k).collect();
        Ok(DecodePlan::new(self.k, sources, wanted, self.kernel))
    }

    fn check_data_index(&self, index: usize) -> Result<(), ErasureError> {
        if index < self.k { Ok(()) } else { Err(ErasureError::NoSuchShard { shard: index, shards: self.k }) }
    }
    fn column(&self, index: usize) -> Factors {
        Factors::column(column(index, self.m))
    }
    fn product(&self, add: bool) -> Product {
        Product { kernel: self.kernel, add }
    }
}
