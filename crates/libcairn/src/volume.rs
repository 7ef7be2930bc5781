//! Connecting, and what is done by paths.
use crate::border::{at, buffer, done, guard, hand_out, invalid, path, put, take, utf8};
use crate::layout::{
    CLOSE_VISIBLE, COptions, CPlace, CSpace, CStat, READ_ONLY, RENAME_EXCHANGE, RENAME_NOREPLACE, TIME_NOW, TIME_OMIT,
};
use cairn_sdk::{ConnectOptions, Rename, Result, SetMetadata, SetTime, Volume};
use libc::{c_char, c_int, c_uint, gid_t, mode_t, size_t, ssize_t, uid_t};
use std::time::Duration;

/// `cairn_volume`.
pub struct CVolume(pub(crate) Volume);

/// # Safety
/// As of the header.
pub(crate) unsafe fn of<'a>(volume: *const CVolume) -> Result<&'a Volume> {
    // SAFETY: as above.
    unsafe { at(volume, "cairn_volume") }.map(|volume| &volume.0)
}

/// # Safety
/// As of the header.
unsafe fn options(cluster: *const c_char, given: *const COptions) -> Result<ConnectOptions> {
    // SAFETY: as above.
    let mut options = ConnectOptions { cluster: unsafe { utf8(cluster, "cluster")? }, ..ConnectOptions::default() };
    if given.is_null() {
        return Ok(options);
    }
    // SAFETY: as above. A program of a later header has a longer one, of which the size is the first field, too.
    let size = unsafe { given.cast::<u64>().read() };
    if size != size_of::<COptions>() as u64 {
        let cause = format!("its size is {size}, and this library's is {}", size_of::<COptions>());
        return Err(invalid("struct cairn_options", &cause));
    }
    // SAFETY: it is as long as ours.
    let given = unsafe { at(given, "struct cairn_options")? };
    if given.flags & !(READ_ONLY | CLOSE_VISIBLE) != 0 || given.reserved != 0 {
        return Err(invalid("struct cairn_options", "a flag is not known, or what is reserved is not 0"));
    }
    options.read_only = given.flags & READ_ONLY != 0;
    options.close_visible = given.flags & CLOSE_VISIBLE != 0;
    if given.timeout_ms != 0 {
        options.timeout = Duration::from_millis(given.timeout_ms.into());
    }
    if given.connect_timeout_ms != 0 {
        options.connect_timeout = Duration::from_millis(given.connect_timeout_ms.into());
    }
    if given.memory_max != 0 {
        options.memory_max = usize::try_from(given.memory_max).unwrap_or(usize::MAX);
    }
    // SAFETY: as above.
    options.rack = unsafe { utf8(given.rack, "rack")? }.unwrap_or_default();
    Ok(options)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_connect(
    cluster: *const c_char,
    volume: *const c_char,
    options: *const COptions,
    connected: *mut *mut CVolume,
) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe {
        hand_out(connected, || {
            let options = self::options(cluster, options)?;
            let name = utf8(volume, "volume")?.unwrap_or_else(|| "default".into());
            Volume::connect(&options, &name).map(CVolume)
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_disconnect(volume: *mut CVolume) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { take(volume, "cairn_volume") }?.0.close())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_sync(volume: *mut CVolume) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { of(volume) }?.sync())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_statfs(volume: *mut CVolume, space: *mut CSpace) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { put(space, "struct cairn_space", CSpace::of(&of(volume)?.space()?)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_stat(volume: *mut CVolume, path: *const c_char, found: *mut CStat) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { put(found, "struct cairn_stat", CStat::of(&of(volume)?.stat(self::path(path)?)?)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_lstat(volume: *mut CVolume, path: *const c_char, found: *mut CStat) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { put(found, "struct cairn_stat", CStat::of(&of(volume)?.lstat(self::path(path)?)?)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_mkdir(volume: *mut CVolume, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { of(volume)?.make_directory(self::path(path)?, mode) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_mkdirs(volume: *mut CVolume, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { of(volume)?.make_directories(self::path(path)?, mode) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_unlink(volume: *mut CVolume, path: *const c_char) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { of(volume)?.remove_file(self::path(path)?) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_rmdir(volume: *mut CVolume, path: *const c_char) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { of(volume)?.remove_directory(self::path(path)?) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_rename(
    volume: *mut CVolume,
    from: *const c_char,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    done(|| {
        let how = match flags {
            0 => Rename::Replace,
            RENAME_NOREPLACE => Rename::NoReplace,
            RENAME_EXCHANGE => Rename::Exchange,
            _ => return Err(invalid("cairn_rename", "the flags are not known")),
        };
        // SAFETY: the header's.
        unsafe { of(volume)?.rename(path(from)?, path(to)?, how) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_symlink(volume: *mut CVolume, target: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { of(volume)?.symlink(self::path(target)?, self::path(path)?) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_link(volume: *mut CVolume, existing: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: the header's.
    done(|| unsafe { of(volume)?.hard_link(self::path(existing)?, self::path(path)?) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_readlink(
    volume: *mut CVolume,
    path: *const c_char,
    buffer: *mut c_char,
    size: size_t,
) -> ssize_t {
    // SAFETY: the header's.
    guard(|| unsafe {
        let says = of(volume)?.read_link(self::path(path)?)?;
        let room = self::buffer(buffer.cast(), size)?;
        let fits = says.len().min(room.len());
        room[..fits].copy_from_slice(&says[..fits]);
        Ok(says.len())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_chmod(volume: *mut CVolume, path: *const c_char, mode: mode_t) -> c_int {
    let set = SetMetadata { mode: Some(mode), ..SetMetadata::default() };
    // SAFETY: the header's.
    done(|| unsafe { of(volume)?.set_metadata(self::path(path)?, set) }.map(|_| ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_chown(volume: *mut CVolume, path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    let set = SetMetadata { uid: given(uid), gid: given(gid), ..SetMetadata::default() };
    // SAFETY: the header's.
    done(|| unsafe { of(volume)?.set_metadata(self::path(path)?, set) }.map(|_| ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_utimens(
    volume: *mut CVolume,
    path: *const c_char,
    atime_ns: i64,
    mtime_ns: i64,
) -> c_int {
    let time = |ns| match ns {
        TIME_OMIT => None,
        TIME_NOW => Some(SetTime::Now),
        ns => Some(SetTime::At(ns)),
    };
    let set = SetMetadata { accessed: time(atime_ns), modified: time(mtime_ns), ..SetMetadata::default() };
    // SAFETY: the header's.
    done(|| unsafe { of(volume)?.set_metadata(self::path(path)?, set) }.map(|_| ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_truncate(volume: *mut CVolume, path: *const c_char, size: u64) -> c_int {
    let set = SetMetadata { size: Some(size), ..SetMetadata::default() };
    // SAFETY: the header's.
    done(|| unsafe { of(volume)?.set_metadata(self::path(path)?, set) }.map(|_| ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_locate(
    volume: *mut CVolume,
    path: *const c_char,
    offset: u64,
    place: *mut CPlace,
) -> c_int {
    // SAFETY: the header's.
    let located = guard(|| unsafe {
        match of(volume)?.place_at(self::path(path)?, offset)? {
            Some(found) => put(place, "struct cairn_place", CPlace::of(&found)).map(|()| 1),
            None => Ok(0),
        }
    });
    // 1, 0 or an errno.
    located as c_int
}
