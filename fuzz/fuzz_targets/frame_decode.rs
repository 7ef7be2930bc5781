//! Feeds hostile streams of frames to the decoder.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| cairn_wire::frame::fuzz_frame(data));
