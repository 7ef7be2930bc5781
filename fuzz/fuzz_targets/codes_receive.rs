//! Sends frames with codes past somebody hostile.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| cairn_rpc::fuzz_codes(data));
