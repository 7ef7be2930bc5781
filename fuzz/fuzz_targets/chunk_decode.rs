//! Feeds hostile headers, states and tables of chunk files to their decoders.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    cairn_format::fuzz::fuzz_chunk(data);
});
