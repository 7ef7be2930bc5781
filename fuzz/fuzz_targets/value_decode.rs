//! Feeds hostile values of the namespace's tree (extents, stripe sets, inodes) to their decoders.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    cairn_meta_core::fuzz::fuzz_values(data);
});
