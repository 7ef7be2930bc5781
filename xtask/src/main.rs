//! Project checks (being written)
fn main() {}
