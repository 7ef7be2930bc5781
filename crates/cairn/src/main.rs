//! The `cairn` binary.
mod config;
fn main() {}
