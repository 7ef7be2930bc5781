//! Little-endian numbers in byte slices. Not here: bounds (callers check lengths before).

/// The `u32` at an offset; panics beyond the end.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("the slice has 4 bytes"))
}

/// The `u64` at an offset; panics beyond the end.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("the slice has 8 bytes"))
}
