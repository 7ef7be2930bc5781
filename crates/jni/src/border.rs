//! The border between Java and Rust: arrays and buffers in, numbers and arrays out, panics caught.
//!
//! Not the whole of Java's interface, but the six functions of it that are needed. None of them runs Java code, throws
//! (lengths are checked before), or keeps what it was given.
use crate::copies::COPIES;
use cairn_sdk::{Error, Result};
use jni_sys::{JNIEnv, jbyteArray, jclass, jint, jobject};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

thread_local! {
    static LAST: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Does a call. Its value, or `failed` and words for the thread.
pub(crate) fn guard<T>(failed: T, call: impl FnOnce() -> Result<T>) -> T {
    // What a panic leaves half done is behind locks that are poisoned by it, or in a value that nobody uses again.
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => error,
        Err(panic) => {
            defect(panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str)))
        }
    };
    // A thread that ends has nobody who asks.
    let _gone = LAST.try_with(|last| *last.borrow_mut() = Some(error));
    failed
}

/// The same of calls that have no value: 0, or −1.
pub(crate) fn done(call: impl FnOnce() -> Result<()>) -> jint {
    guard(-1, || call().map(|()| 0))
}

fn defect(said: Option<&str>) -> Error {
    Error {
        errno: libc::EIO,
        what: "the native library".into(),
        cause: format!("a defect: {}", said.unwrap_or("it panicked")),
        next_step: "report it with what the program did".into(),
    }
}

pub(crate) fn invalid(what: &str, cause: &str) -> Error {
    Error {
        errno: libc::EINVAL,
        what: what.into(),
        cause: cause.into(),
        next_step: "check what the call was given".into(),
    }
}

/// Errno (32 bits), and the thing, the cause and the next step with zero bytes between them, of the thread's last
/// failure.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_lastError(env: *mut JNIEnv, _class: jclass) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    let told = LAST.try_with(|last| last.borrow_mut().take()).ok().flatten();
    let error = told.unwrap_or_else(|| invalid("the native library", "no call of this thread failed"));
    let text = [&error.what, &error.cause, &error.next_step].map(|part| part.replace('\0', "\\0")).join("\0");
    guard(std::ptr::null_mut(), || bytes_of(&env, &[&error.errno.to_le_bytes(), text.as_bytes()].concat()))
}

#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_version(env: *mut JNIEnv, _class: jclass) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(std::ptr::null_mut(), || bytes_of(&env, env!("CARGO_PKG_VERSION").as_bytes()))
}

/// Panics, for the test that no panic crosses the border.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_panic(_env: *mut JNIEnv, _class: jclass) -> jint {
    done(|| panic!("asked for"))
}

/// What Java handed to the call for calling back, on this thread and while the call lasts.
pub(crate) struct Env(*mut JNIEnv);

impl Env {
    /// # Safety
    /// It is what Java handed to a native method that has not returned.
    pub(crate) unsafe fn new(env: *mut JNIEnv) -> Env {
        Env(env)
    }
    fn length(&self, array: jbyteArray) -> usize {
        // SAFETY: a byte array that Java handed over or made, which lives until the call returns.
        let length = unsafe { ((**self.0).v1_1.GetArrayLength)(self.0, array) };
        usize::try_from(length).unwrap_or(0)
    }
    fn check(&self, array: jbyteArray, at: usize, length: usize, what: &str) -> Result<()> {
        if array.is_null() {
            return Err(invalid(what, "the array is null"));
        }
        match at.checked_add(length).is_some_and(|end| end <= self.length(array)) {
            true => Ok(()),
            false => Err(invalid(what, "the range is not within the array")),
        }
    }
    /// Copies bytes of Java's array. One copy.
    pub(crate) fn take(&self, array: jbyteArray, at: usize, length: usize, what: &str) -> Result<Vec<u8>> {
        self.check(array, at, length, what)?;
        let mut taken: Vec<u8> = Vec::with_capacity(length);
        // SAFETY: the range is within the array, and there is room for it; afterwards it is filled.
        unsafe {
            let to = taken.as_mut_ptr().cast();
            ((**self.0).v1_1.GetByteArrayRegion)(self.0, array, at as jint, length as jint, to);
            taken.set_len(length);
        }
        Ok(taken)
    }
    /// Copies bytes into Java's array. One copy.
    pub(crate) fn put(&self, array: jbyteArray, at: usize, bytes: &[u8], what: &str) -> Result<()> {
        self.check(array, at, bytes.len(), what)?;
        // SAFETY: the range is within the array.
        unsafe {
            let from = bytes.as_ptr().cast();
            ((**self.0).v1_1.SetByteArrayRegion)(self.0, array, at as jint, bytes.len() as jint, from);
        }
        Ok(())
    }
    /// The memory of a direct buffer, of which a range is asked for.
    pub(crate) fn direct(&self, buffer: jobject, at: usize, length: usize) -> Result<*mut u8> {
        const WHAT: &str = "the buffer";
        if buffer.is_null() {
            return Err(invalid(WHAT, "it is null"));
        }
        // SAFETY: a buffer that Java handed over, which lives until the call returns.
        let (address, capacity) = unsafe {
            let address = ((**self.0).v1_4.GetDirectBufferAddress)(self.0, buffer);
            (address.cast::<u8>(), ((**self.0).v1_4.GetDirectBufferCapacity)(self.0, buffer))
        };
        if address.is_null() {
            return Err(invalid(WHAT, "it is no direct buffer"));
        }
        let capacity = usize::try_from(capacity).unwrap_or(0);
        match at.checked_add(length).is_some_and(|end| end <= capacity) {
            // SAFETY: within the buffer.
            true => Ok(unsafe { address.add(at) }),
            false => Err(invalid(WHAT, "the range is not within it")),
        }
    }
}

/// An array for Java.
pub(crate) fn bytes_of(env: &Env, bytes: &[u8]) -> Result<jbyteArray> {
    let length = jint::try_from(bytes.len()).map_err(|_| invalid("the answer", "no array is that long"))?;
    // SAFETY: on the thread that was called, during the call.
    let array = unsafe { ((**env.0).v1_1.NewByteArray)(env.0, length) };
    if array.is_null() {
        return Err(Error {
            errno: libc::ENOMEM,
            what: "the answer".into(),
            cause: "Java has no memory for it".into(),
            next_step: "raise the limit of the heap (-Xmx)".into(),
        });
    }
    env.put(array, 0, bytes, "the answer")?;
    Ok(array)
}

/// All of an array: a path, a name, a value.
pub(crate) fn all(env: &Env, array: jbyteArray, what: &str) -> Result<Vec<u8>> {
    match array.is_null() {
        true => Err(invalid(what, "it is null")),
        false => env.take(array, 0, env.length(array), what),
    }
}

pub(crate) fn path(env: &Env, array: jbyteArray) -> Result<PathBuf> {
    all(env, array, "path").map(|bytes| PathBuf::from(OsStr::from_bytes(&bytes)))
}

/// `None` for null and for an empty text.
pub(crate) fn text(env: &Env, array: jbyteArray, what: &str) -> Result<Option<String>> {
    if array.is_null() {
        return Ok(None);
    }
    let text = String::from_utf8(all(env, array, what)?).map_err(|_| invalid(what, "it is no UTF-8 text"))?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// A number of Java that must not be negative.
pub(crate) fn natural(number: impl TryInto<usize>, what: &str) -> Result<usize> {
    number.try_into().map_err(|_| invalid(what, "it is negative"))
}

/// Bytes of a file on their way in either direction.
pub(crate) fn count_copy(bytes: usize) {
    COPIES.copied(bytes);
}
