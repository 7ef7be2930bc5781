//! Where the trash is.

/// Where the trash is.
pub const TRASH_PATH: &[u8] = b"/.trash";

/// Whether a path is in the trash, or the trash itself.
pub fn is_in_trash(path: &[u8]) -> bool {
    path.strip_prefix(TRASH_PATH).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}
