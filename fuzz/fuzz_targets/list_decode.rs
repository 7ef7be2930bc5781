//! Feeds hostile labels, group states and lists of disks and partitions to their decoders.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    cairn_format::fuzz::fuzz_lists(data);
});
