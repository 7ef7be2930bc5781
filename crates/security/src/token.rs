//! [`TokenFile`]: words that let their holder see what a process tells over HTTP, from a file that is read whenever one
//! is shown.
//!
//! Invariants: the file is nobody's but its owner's; what is shown is compared in a time that tells nothing of what is
//! in the file; a file that cannot be read lets nobody in.
use crate::error::SecurityError;
use crate::secret_file::read_secret;
use ring::hmac;
use ring::rand::SystemRandom;
use std::path::{Path, PathBuf};

/// A shorter one could be guessed.
pub const TOKEN_MIN: usize = 16;
/// Longer than anybody needs.
const TOKEN_MAX: usize = 512;

/// A file with tokens.
pub struct TokenFile {
    path: PathBuf,
    /// Of this process alone: what is compared are codes under it.
    key: hmac::Key,
}

impl TokenFile {
    /// Reads a file: a token a line, `#` begins a comment.
    pub fn open(path: &Path) -> Result<Self, SecurityError> {
        let bad = |why: &str| SecurityError::Token { path: path.to_path_buf(), why: why.to_owned() };
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let key = key.map_err(|_| bad("the system gives no random numbers"))?;
        let file = Self { path: path.to_path_buf(), key };
        file.tokens()?;
        Ok(file)
    }

    /// Whether somebody has shown one of its tokens.
    pub fn has(&self, shown: &[u8]) -> Result<bool, SecurityError> {
        // All are looked at: the time does not tell which one it was.
        let is_one = |token: &Vec<u8>| {
            let code = hmac::sign(&self.key, token);
            hmac::verify(&self.key, shown, code.as_ref()).is_ok()
        };
        Ok(self.tokens()?.iter().filter(|token| is_one(token)).count() > 0)
    }

    fn tokens(&self) -> Result<Vec<Vec<u8>>, SecurityError> {
        let bad = |why: String| SecurityError::Token { path: self.path.clone(), why };
        let bytes = read_secret(&self.path)?;
        let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let tokens: Vec<Vec<u8>> =
            lines.filter(|line| !line.is_empty() && !line.starts_with(b"#")).map(<[u8]>::to_vec).collect();
        if tokens.is_empty() {
            return Err(bad("there is none in it".to_owned()));
        }
        if tokens.iter().any(|token| !(TOKEN_MIN..=TOKEN_MAX).contains(&token.len())) {
            return Err(bad(format!("one of them has fewer than {TOKEN_MIN} or more than {TOKEN_MAX} characters")));
        }
        if tokens.iter().flatten().any(|byte| !byte.is_ascii_graphic()) {
            return Err(bad("one of them has other characters than letters, digits and marks".to_owned()));
        }
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    /// Whoever shows a part of a token, or none, would be let in; or a new token need a restart.
    #[test]
    fn only_a_whole_token_lets_in() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("tokens");
        let write = |text: &str| {
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("a mode");
        };
        let (one, two) = ("0123456789abcdef", "fedcba9876543210fedcba9876543210");
        write(&format!("# of Prometheus\n{one}\n\n  {two}\r\n"));
        let file = TokenFile::open(&path).expect("tokens");
        let has = |shown: &str| file.has(shown.as_bytes()).expect("read");
        assert!(has(one) && has(two));
        let longer = format!("{one}x");
        for shown in ["", &one[..15], &longer, " ", "# of Prometheus", "#", "0123456789abcdeF", "0123456789abcdef\n"] {
            assert!(!has(shown), "{shown:?}");
        }
        write(&format!("{two}\n"));
        assert!(!has(one) && has(two));
        for text in ["", "\n# none\n", "short\n", "0123456789 abcdef\n", &"x".repeat(513)] {
            write(text);
            assert!(matches!(TokenFile::open(&path), Err(SecurityError::Token { .. })), "{text:?}");
            assert!(file.has(two.as_bytes()).is_err(), "{text:?}");
        }
        write(&format!("{two}\n"));
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("a mode");
        assert!(matches!(TokenFile::open(&path), Err(SecurityError::Exposed { .. })));
        assert!(file.has(two.as_bytes()).is_err(), "what others can read is nobody's");
    }
}
