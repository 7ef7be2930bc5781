//! Feeds hostile requests of keys with limits to those who judge them.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| cairn_meta::fuzz_requests(data));
