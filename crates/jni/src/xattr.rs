//! Extended attributes, ACLs among them, and the mark that shuts writers out.
use crate::border::{Env, all, bytes_of, done, guard, path};
use crate::registry::VOLUMES;
use jni_sys::{JNIEnv, jbyteArray, jclass, jint, jlong};
use std::ptr::null_mut;

/// The value, or null.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_getXattr(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    at: jbyteArray,
    name: jbyteArray,
) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(null_mut(), || {
        let (at, name) = (path(&env, at)?, all(&env, name, "name")?);
        bytes_of(&env, &VOLUMES.get(volume)?.get_xattr(at, &name)?)
    })
}

/// `flags` of setxattr(2).
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_setXattr(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    at: jbyteArray,
    name: jbyteArray,
    value: jbyteArray,
    flags: jint,
) -> jint {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    done(|| {
        let (at, name, value) = (path(&env, at)?, all(&env, name, "name")?, all(&env, value, "value")?);
        VOLUMES.get(volume)?.set_xattr(at, &name, &value, flags as u32)
    })
}

/// Names with a zero byte behind each, or null.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_listXattrs(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    at: jbyteArray,
) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(null_mut(), || {
        let mut names = VOLUMES.get(volume)?.list_xattrs(path(&env, at)?)?;
        names.iter_mut().for_each(|name| name.push(0));
        bytes_of(&env, &names.concat())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_removeXattr(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    at: jbyteArray,
    name: jbyteArray,
) -> jint {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    done(|| {
        let (at, name) = (path(&env, at)?, all(&env, name, "name")?);
        VOLUMES.get(volume)?.remove_xattr(at, &name)
    })
}

/// Shuts out who has a file open for writing.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_fence(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    at: jbyteArray,
    mark: jbyteArray,
) -> jint {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    done(|| {
        let (at, mark) = (path(&env, at)?, all(&env, mark, "mark")?);
        VOLUMES.get(volume)?.fence(at, &mark)
    })
}
