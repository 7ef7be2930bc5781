//! Listings, and what is asked of the volume: places of bytes, limits, space, names of volumes.
use crate::border::{Env, bytes_of, done, guard, natural, path};
use crate::record;
use crate::registry::{DIRECTORIES, VOLUMES};
use jni_sys::{JNIEnv, jbyteArray, jclass, jint, jlong};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

/// A page of a listing ends behind so many bytes.
const PAGE: usize = 64 << 10;

/// The number of a listing, or 0.
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
        let opened = VOLUMES.get(volume)?.open_directory(path(&env, at)?)?;
        Ok(DIRECTORIES.add(volume, Mutex::new(opened)))
    })
}

/// The next entries; none at the end; null if it failed.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_nextEntries(
    env: *mut JNIEnv,
    _class: jclass,
    directory: jlong,
) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(null_mut(), || {
        let directory = DIRECTORIES.get(directory)?;
        let mut directory = directory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut page = Vec::new();
        while page.len() < PAGE {
            match directory.next_entry()? {
                Some(entry) => record::entry(&entry, &mut page),
                None => break,
            }
        }
        bytes_of(&env, &page)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_closeDirectory(
    _env: *mut JNIEnv,
    _class: jclass,
    directory: jlong,
) -> jint {
    done(|| DIRECTORIES.remove(directory).map(|_| ()))
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
