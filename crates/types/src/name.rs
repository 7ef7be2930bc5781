//! Rules for names and paths: names up to 255 bytes, any bytes but NUL and `/`; paths up to 4,096 bytes.

/// Longest name of a directory entry in bytes.
pub const NAME_MAX: usize = 255;
/// Longest path in bytes.
pub const PATH_MAX: usize = 4096;
/// Longest name of an extended attribute in bytes.
pub const XATTR_NAME_MAX: usize = 255;
/// Longest value of an extended attribute in bytes.
pub const XATTR_VALUE_MAX: usize = 64 << 10;
/// Longest target of a symbolic link in bytes.
pub const SYMLINK_MAX: usize = 4095;

/// Why a name was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NameError {
    #[error("the name is empty")]
    Empty,
    #[error("the name is longer than 255 bytes")]
    TooLong,
    #[error("the name is \".\" or \"..\"")]
    Dots,
    #[error("the name contains NUL or '/'")]
    BadByte,
}

/// Checks the name of a directory entry.
pub fn check_name(name: &[u8]) -> Result<(), NameError> {
    match name {
        b"" => Err(NameError::Empty),
        b"." | b".." => Err(NameError::Dots),
        _ if name.len() > NAME_MAX => Err(NameError::TooLong),
        _ if name.iter().any(|b| matches!(b, 0 | b'/')) => Err(NameError::BadByte),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(check_name(b"a"), Ok(()));
        assert_eq!(check_name(&[0xff; 255]), Ok(()));
        assert_eq!(check_name(&[b'a'; 256]), Err(NameError::TooLong));
        assert_eq!(check_name(b".."), Err(NameError::Dots));
        assert_eq!(check_name(b"..."), Ok(()));
        assert_eq!(check_name(b"a/b"), Err(NameError::BadByte));
        assert_eq!(check_name(b""), Err(NameError::Empty));
    }
}
