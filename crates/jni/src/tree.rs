//! Listings, and what is asked of the volume: places of bytes, limits, space, names of volumes.
use crate::border::{Env, all, bytes_of, guard, natural, path};
use crate::record;
use crate::registry::VOLUMES;
use jni_sys::{JNIEnv, jbyteArray, jclass, jlong};
use std::ptr::null_mut;

/// The inode of a directory that is to be listed, or 0.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_openDirectory(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    at: jbyteArray,
) -> jlong {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(0, || {
        let found = VOLUMES.get(volume)?.directory(path(&env, at)?)?;
        Ok(found.inode as jlong)
    })
}

/// A part of a directory, behind where another part said that this one begins; `after` is empty for the first. Nothing
/// is kept of it here. Null if it failed.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_listEntries(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    directory: jlong,
    after: jbyteArray,
) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(null_mut(), || {
        let page = VOLUMES.get(volume)?.list(directory as u64, &all(&env, after, "place in the listing")?)?;
        bytes_of(&env, &record::page(&page))
    })
}

/// Where the bytes of a range are, or null.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_places(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    at: jbyteArray,
    offset: jlong,
    length: jlong,
) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(null_mut(), || {
        let (offset, length) = (natural(offset, "offset")? as u64, natural(length, "length")? as u64);
        bytes_of(&env, &record::places(&VOLUMES.get(volume)?.places(path(&env, at)?, offset, length)?))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_quota(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    at: jbyteArray,
) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(null_mut(), || bytes_of(&env, &record::quota(VOLUMES.get(volume)?.quota(path(&env, at)?)?.as_ref())))
}

#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_space(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(null_mut(), || bytes_of(&env, &record::space(&VOLUMES.get(volume)?.space()?)))
}

/// Names of the cluster's volumes, with a zero byte behind each.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_volumes(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(null_mut(), || {
        let names = VOLUMES.get(volume)?.volumes()?;
        bytes_of(&env, names.iter().map(|name| format!("{name}\0")).collect::<String>().as_bytes())
    })
}
