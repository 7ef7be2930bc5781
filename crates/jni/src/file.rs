//! Open files. Bytes go straight between what came from the network, or goes there, and Java's array or buffer.
use crate::border::{Env, bytes_of, count_copy, done, guard, natural, path};
use crate::copies::COPIES;
use crate::record;
use crate::registry::{FILES, VOLUMES};
use bytes::Bytes;
use cairn_sdk::{OpenOptions, Result};
use jni_sys::{JNIEnv, jbyteArray, jclass, jint, jlong, jobject};
use std::ptr::null_mut;

/// Among the flags of open(2): an existing file gives way to a new one.
const REPLACE: jint = 1 << 30;

/// The number of an open file, or 0. `flags` are those of open(2), and [`REPLACE`].
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_open(
    env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    at: jbyteArray,
    flags: jint,
    mode: jint,
) -> jlong {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(0, || {
        // Whoever writes can be shut out.
        let options = OpenOptions::from_flags(flags & !REPLACE, mode as u32).fenced();
        let options = if flags & REPLACE != 0 { options.replacing() } else { options };
        let opened = VOLUMES.get(volume)?.open(path(&env, at)?, options)?;
        Ok(FILES.add(volume, opened))
    })
}

/// The number of a file that is opened for reading by its inode, or 0.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_openInode(
    _env: *mut JNIEnv,
    _class: jclass,
    volume: jlong,
    inode: jlong,
) -> jlong {
    guard(0, || Ok(FILES.add(volume, VOLUMES.get(volume)?.open_inode(inode as u64)?)))
}

/// Reads until `length` bytes are there or the file ends; `put` takes each part at its place behind the first.
fn read(file: jlong, offset: jlong, length: jint, mut put: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<jint> {
    let (file, length, offset) = (FILES.get(file)?, natural(length, "length")?, natural(offset, "offset")? as u64);
    let mut done = 0;
    let read = file.read_parts(length as u64, offset, |part| {
        put(done, part)?;
        count_copy(part.len());
        done += part.len();
        Ok(())
    })?;
    COPIES.read(done);
    // No more than `length`.
    Ok(read as jint)
}

/// How many bytes, fewer only at the end of the file; −1 if it failed.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_read(
    env: *mut JNIEnv,
    _class: jclass,
    file: jlong,
    offset: jlong,
    to: jbyteArray,
    at: jint,
    length: jint,
) -> jint {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(-1, || {
        let at = natural(at, "place in the array")?;
        read(file, offset, length, |done, part| env.put(to, at + done, part, "the array"))
    })
}

/// The same into a direct buffer.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_readDirect(
    env: *mut JNIEnv,
    _class: jclass,
    file: jlong,
    offset: jlong,
    to: jobject,
    at: jint,
    length: jint,
) -> jint {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(-1, || {
        let begin = env.direct(to, natural(at, "place in the buffer")?, natural(length, "length")?)?;
        read(file, offset, length, |done, part| {
            // SAFETY: no more comes than was asked for, for which there is room.
            unsafe { begin.add(done).copy_from_nonoverlapping(part.as_ptr(), part.len()) };
            Ok(())
        })
    })
}

fn write(file: jlong, offset: jlong, data: Vec<u8>) -> Result<()> {
    count_copy(data.len());
    COPIES.written(data.len());
    FILES.get(file)?.write_bytes_at(Bytes::from(data), natural(offset, "offset")? as u64)
}

/// Writes all, behind the end if it was opened for appending.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_write(
    env: *mut JNIEnv,
    _class: jclass,
    file: jlong,
    offset: jlong,
    from: jbyteArray,
    at: jint,
    length: jint,
) -> jint {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    done(|| {
        let (at, length) = (natural(at, "place in the array")?, natural(length, "length")?);
        write(file, offset, env.take(from, at, length, "the array")?)
    })
}

/// What was written is seen by others; with `durable` it is on stable storage as well.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_flush(
    _env: *mut JNIEnv,
    _class: jclass,
    file: jlong,
    durable: u8,
) -> jint {
    done(|| {
        let file = FILES.get(file)?;
        if durable != 0 { file.sync() } else { file.flush() }
    })
}

/// Closes it and gives its number back, also when it fails.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_close(
    _env: *mut JNIEnv,
    _class: jclass,
    file: jlong,
) -> jint {
    done(|| FILES.remove(file)?.close())
}

/// Metadata with what was written here, or null.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_statFile(
    env: *mut JNIEnv,
    _class: jclass,
    file: jlong,
) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(null_mut(), || bytes_of(&env, &record::metadata(&FILES.get(file)?.metadata()?)))
}

/// CRC-32C of the first `length` bytes of an open file, or −1.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_crc32c(
    _env: *mut JNIEnv,
    _class: jclass,
    file: jlong,
    length: jlong,
) -> jlong {
    guard(-1, || {
        let (sum, _) = FILES.get(file)?.crc32c(natural(length, "length")? as u64)?;
        Ok(sum.into())
    })
}

/// Puts what one open file has behind the end of another; how many bytes, or −1.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_appendFrom(
    _env: *mut JNIEnv,
    _class: jclass,
    file: jlong,
    source: jlong,
) -> jlong {
    guard(-1, || Ok(FILES.get(file)?.append_from(&*FILES.get(source)?)? as jlong))
}
