//! The slices of one call, checked and gathered without allocation.
use crate::SHARDS_MAX;
use crate::error::{ErasureError, Role};

/// Inputs of one length. Unused places hold empty slices.
pub(crate) struct Inputs<'a> {
    slices: [&'a [u8]; SHARDS_MAX],
    count: usize,
}

impl<'a> Inputs<'a> {
    pub fn gather<T: AsRef<[u8]>>(role: Role, shards: &'a [T], expected: usize) -> Result<Self, ErasureError> {
        check_count(role, expected, shards.len())?;
        let mut slices: [&[u8]; SHARDS_MAX] = [&[]; SHARDS_MAX];
        for (slice, shard) in slices.iter_mut().zip(shards) {
            *slice = shard.as_ref();
        }
        let inputs = Inputs { slices, count: shards.len() };
        inputs.check_length(role, inputs.length())?;
        Ok(inputs)
    }
    pub fn check_length(&self, role: Role, expected: usize) -> Result<(), ErasureError> {
        self.slices().iter().enumerate().try_for_each(|(i, s)| check_length(role, i, expected, s.len()))
    }
    pub fn slices(&self) -> &[&'a [u8]] {
        &self.slices[..self.count]
    }
    /// Of the first; all have it.
    pub fn length(&self) -> usize {
        self.slices().first().map_or(0, |s| s.len())
    }
}

/// Outputs of one length.
pub(crate) struct Outputs<'a> {
    slices: [&'a mut [u8]; SHARDS_MAX],
    count: usize,
}

impl<'a> Outputs<'a> {
    pub fn gather<T: AsMut<[u8]>>(
        role: Role,
        shards: &'a mut [T],
        expected: usize,
        length: usize,
    ) -> Result<Self, ErasureError> {
        check_count(role, expected, shards.len())?;
        let count = shards.len();
        let mut slices: [&mut [u8]; SHARDS_MAX] = std::array::from_fn(|_| -> &mut [u8] { &mut [] });
        for (i, (slice, shard)) in slices.iter_mut().zip(shards).enumerate() {
            *slice = shard.as_mut();
            check_length(role, i, length, slice.len())?;
        }
        Ok(Outputs { slices, count })
    }
    pub fn slices(&mut self) -> &mut [&'a mut [u8]] {
        &mut self.slices[..self.count]
    }
}

fn check_count(role: Role, expected: usize, got: usize) -> Result<(), ErasureError> {
    // The second can only be if the first is: no code has more shards. It guards the arrays above.
    if got != expected || got > SHARDS_MAX {
        return Err(ErasureError::Count { role, expected, got });
    }
    Ok(())
}

fn check_length(role: Role, index: usize, expected: usize, got: usize) -> Result<(), ErasureError> {
    if got == expected { Ok(()) } else { Err(ErasureError::Length { role, index, expected, got }) }
}
