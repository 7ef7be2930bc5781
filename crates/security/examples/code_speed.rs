//! How fast the code of a frame is made, by the length of what it covers: what a code over payloads would cost.
//! cargo run --release -p cairn-security --example code_speed

use std::time::{Duration, Instant};

use cairn_security::FrameKeys;

const SECONDS: Duration = Duration::from_secs(1);

fn main() {
    for length in [64, 256, 4 << 10, 64 << 10, 1 << 20] {
        let (mut sealer, bytes) = (FrameKeys::of_secret([7; 32], true).sealer, vec![7; length]);
        let (began, mut count) = (Instant::now(), 0u64);
        while began.elapsed() < SECONDS {
            for _ in 0..16 {
                std::hint::black_box(sealer.seal(std::hint::black_box(&bytes)));
            }
            count += 16;
        }
        let each = began.elapsed().as_secs_f64() / count as f64;
        println!("{length:>8} bytes: {:>8.2} µs, {:.2} GB/s", each * 1e6, length as f64 / each / 1e9);
    }
}
