//! What `cairn --version` says: enough to tell whether two builds understand each other, and which sources one is of.
use cairn_types::FEATURE_LEVEL;
use cairn_wire::hello::{PROTOCOL_VERSION, PROTOCOL_VERSION_MIN};
use std::sync::LazyLock;

static TEXT: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{}\ncommit {}\nprotocol {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION}\nfeature level {FEATURE_LEVEL}",
        env!("CARGO_PKG_VERSION"),
        env!("CAIRN_COMMIT"),
    )
});

/// Behind the program's name.
pub fn long() -> &'static str {
    &TEXT
}
