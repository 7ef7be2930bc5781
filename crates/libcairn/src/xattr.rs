//! Extended attributes.
use crate::border::{buffer, bytes, done, guard, path, text};
use crate::volume::{CVolume, of};
use cairn_sdk::{Error, Result};
use libc::{c_char, c_int, c_void, size_t, ssize_t};

/// Hands a value out if there is room for it; without any, its length alone is asked.
fn fill(value: &[u8], room: &mut [u8]) -> Result<usize> {
    if room.is_empty() {
        return Ok(value.len());
    }
    let Some(room) = room.get_mut(..value.len()) else {
        return Err(Error {
            errno: libc::ERANGE,
            what: "extended attribute".into(),
            cause: format!("it has {} bytes, and the buffer {}", value.len(), room.len()),
            next_step: "ask for the length with size 0".into(),
        });
    };
    room.copy_from_slice(value);
    Ok(value.len())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_getxattr(
    volume: *mut CVolume,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: size_t,
) -> ssize_t {
    // SAFETY: the header's.
    guard(|| unsafe {
        let found = of(volume)?.get_xattr(self::path(path)?, text(name, "name")?)?;
        fill(&found, buffer(value.cast(), size)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_listxattr(
    volume: *mut CVolume,
    path: *const c_char,
    names: *mut c_char,
    size: size_t,
) -> ssize_t {
    // SAFETY: the header's.
    guard(|| unsafe {
        let mut found = Vec::new();
        for name in of(volume)?.list_xattrs(self::path(path)?)? {
            found.extend_from_slice(&name);
            found.push(0);
        }
        fill(&found, buffer(names.cast(), size)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_setxattr(
    volume: *mut CVolume,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: size_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe {
        let value = bytes(value.cast(), size)?;
        of(volume)?.set_xattr(self::path(path)?, text(name, "name")?, value, flags.cast_unsigned())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_removexattr(volume: *mut CVolume, path: *const c_char, name: *const c_char) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { of(volume)?.remove_xattr(self::path(path)?, text(name, "name")?) })
}
