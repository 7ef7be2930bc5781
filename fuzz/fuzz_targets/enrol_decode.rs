//! Feeds hostile requests, answers and tokens of enrolment to their decoders.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| cairn_wire::enrol::fuzz_enrol(data));
