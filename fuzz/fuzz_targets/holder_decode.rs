//! Feeds hostile names of certificates to the decoder.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| cairn_wire::holder::fuzz_holder(data));
