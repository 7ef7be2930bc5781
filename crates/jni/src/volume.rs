//! Connecting, and what is done with single files and directories by paths.
use crate::border::{Env, all, bytes_of, done, guard, invalid, path, text};
use crate::record;
use crate::registry::{FILES, VOLUMES};
use cairn_sdk::{ConnectOptions, Key, Rename, Result, SetMetadata, SetTime, Volume};
use jni_sys::{JNIEnv, jbyteArray, jclass, jint, jlong};
use std::ptr::null_mut;
use std::time::Duration;

/// Bits of the flags of `connect`.
const READ_ONLY: jint = 1;
const CLOSE_VISIBLE: jint = 2;
/// "Leave it as it is" of `setMetadata`.
const SAME: jlong = jlong::MIN;

/// The number of a connection, or 0. Modes of what is made are taken as they are: Hadoop has a mask of its own. The key
/// is one that was handed on, and where it was found, or null.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_connect(
    env: *mut JNIEnv,
    _class: jclass,
    cluster: jbyteArray,
    volume: jbyteArray,
    rack: jbyteArray,
    flags: jint,
    timeout_ms: jlong,
    connect_timeout_ms: jlong,
    memory_max: jlong,
    key: jbyteArray,
    key_from: jbyteArray,
) -> jlong {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(0, || {
        let mut options =
            ConnectOptions { cluster: text(&env, cluster, "cluster")?, umask: Some(0), ..ConnectOptions::default() };
        options.rack = text(&env, rack, "rack")?.unwrap_or_default();
        options.read_only = flags & READ_ONLY != 0;
        options.close_visible = flags & CLOSE_VISIBLE != 0;
        let given = |value: jlong| u64::try_from(value).ok().filter(|value| *value > 0);
        options.timeout = given(timeout_ms).map_or(options.timeout, Duration::from_millis);
        options.connect_timeout = given(connect_timeout_ms).map_or(options.connect_timeout, Duration::from_millis);
        options.memory_max = given(memory_max).and_then(|max| max.try_into().ok()).unwrap_or(options.memory_max);
        if !key.is_null() {
            let from = text(&env, key_from, "where the key was found")?.unwrap_or_default();
            options.key = Some(Key::handed_on(&all(&env, key, "the key")?, &from));
        }
        let name = text(&env, volume, "volume")?.unwrap_or_else(|| "default".into());
        Ok(VOLUMES.add(0, Volume::connect(&options, &name)?))
    })
}

/// Writes everything out and ends the session. Files that were left open are closed.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_disconnect(
    _env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
) -> jint {
    done(|| {
        let connected = VOLUMES.remove(volume)?;
        let mut outcome = Ok(());
        for file in FILES.remove_of(volume) {
            outcome = outcome.and(file.close());
        }
        outcome.and(connected.close())
    })
}

/// Metadata, following links or not; null if it failed.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_stat(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    at: jbyteArray,
    follow: u8,
) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(null_mut(), || {
        let (volume, at) = (VOLUMES.get(volume)?, path(&env, at)?);
        let found = if follow != 0 { volume.stat(at)? } else { volume.lstat(at)? };
        bytes_of(&env, &record::metadata(&found))
    })
}

/// Does something with a path.
unsafe fn at(
    env: *mut JNIEnv,
    volume: jlong,
    at: jbyteArray,
    call: impl FnOnce(&Volume, &Env, std::path::PathBuf) -> Result<()>,
) -> jint {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    done(|| {
        let (volume, at) = (VOLUMES.get(volume)?, path(&env, at)?);
        call(&volume, &env, at)
    })
}

/// What a change by path is.
#[derive(Clone, Copy)]
enum Change {
    MakeDirectory = 0,
    RemoveFile = 1,
    RemoveDirectory = 2,
    RemoveTree = 3,
    Access = 4,
}

impl Change {
    fn of(number: jint) -> Result<Change> {
        let all =
            [Change::MakeDirectory, Change::RemoveFile, Change::RemoveDirectory, Change::RemoveTree, Change::Access];
        all.into_iter()
            .find(|change| *change as jint == number)
            .ok_or_else(|| invalid("change", "its number is not known"))
    }
}

/// A [`Change`], with a mode or a mask.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_change(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    path: jbyteArray,
    what: jint,
    mode: jint,
) -> jint {
    // SAFETY: as Java calls.
    unsafe {
        at(env, volume, path, |volume, _, path| match Change::of(what)? {
            Change::MakeDirectory => volume.make_directory(path, mode as u32),
            Change::RemoveFile => volume.remove_file(path),
            Change::RemoveDirectory => volume.remove_directory(path),
            Change::RemoveTree => volume.remove_tree(path),
            Change::Access => volume.access(path, mode as u32),
        })
    }
}

/// Replaces the target, or refuses to.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_rename(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    from: jbyteArray,
    to: jbyteArray,
    replace: u8,
) -> jint {
    let how = if replace != 0 { Rename::Replace } else { Rename::NoReplace };
    // SAFETY: as Java calls.
    unsafe { at(env, volume, from, |volume, env, from| volume.rename(from, path(env, to)?, how)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_symlink(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    target: jbyteArray,
    link: jbyteArray,
) -> jint {
    // SAFETY: as Java calls.
    unsafe { at(env, volume, target, |volume, env, target| volume.symlink(target, path(env, link)?)) }
}

/// What a link says, or null.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_readLink(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    at: jbyteArray,
) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(null_mut(), || bytes_of(&env, &VOLUMES.get(volume)?.read_link(path(&env, at)?)?))
}

/// Mode, uid, gid and size are left as they are if they are negative, times (nanoseconds) if they are the least number.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_setMetadata(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    path: jbyteArray,
    mode: jint,
    uid: jlong,
    gid: jlong,
    size: jlong,
    accessed: jlong,
    modified: jlong,
) -> jint {
    let time = |ns: jlong| (ns != SAME).then_some(SetTime::At(ns));
    let set = SetMetadata {
        mode: u32::try_from(mode).ok(),
        uid: u32::try_from(uid).ok(),
        gid: u32::try_from(gid).ok(),
        size: u64::try_from(size).ok(),
        accessed: time(accessed),
        modified: time(modified),
    };
    // SAFETY: as Java calls.
    unsafe { at(env, volume, path, |volume, _, path| volume.set_metadata(path, set).map(|_| ())) }
}
