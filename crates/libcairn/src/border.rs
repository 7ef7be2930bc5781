//! The border between C and Rust: pointers in, negative errnos and texts out, panics caught.
use cairn_sdk::{Error, Result};
use libc::{c_char, c_int, ssize_t};
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Does a call; its value, or a negative errno and a text.
pub(crate) fn guard(call: impl FnOnce() -> Result<usize>) -> ssize_t {
    // What a panic leaves half done is behind locks that are poisoned by it, or in a value that nobody uses again.
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return ssize_t::try_from(value).unwrap_or(ssize_t::MAX),
        Ok(Err(error)) => error,
        Err(panic) => {
            defect(panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str)))
        }
    };
    note(&error);
    -(error.errno as ssize_t)
}

/// The same of calls that have no value.
pub(crate) fn done(call: impl FnOnce() -> Result<()>) -> c_int {
    // An errno fits.
    guard(|| call().map(|()| 0)) as c_int
}

fn defect(said: Option<&str>) -> Error {
    Error {
        errno: libc::EIO,
        what: "libcairn".into(),
        cause: format!("a defect: {}", said.unwrap_or("it panicked")),
        next_step: "report it with what the program did".into(),
    }
}

fn note(error: &Error) {
    let text = error.to_string().replace('\0', "\\0");
    let text = CString::new(text).unwrap_or_default();
    // A thread that ends has nobody who asks.
    let _gone = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// The text for this thread.
#[unsafe(no_mangle)]
pub extern "C" fn cairn_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn cairn_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

pub(crate) fn invalid(what: &str, cause: &str) -> Error {
    Error {
        errno: libc::EINVAL,
        what: what.into(),
        cause: cause.into(),
        next_step: "cairn.h says what the call expects".into(),
    }
}

/// What a pointer points at.
///
/// # Safety
/// It is null, or valid for as long as the reference is used.
pub(crate) unsafe fn at<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: as above.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid(what, "the pointer is NULL"))
}

/// Where an answer goes.
///
/// # Safety
/// It is null, or valid for writing, and nobody else uses it.
pub(crate) unsafe fn put<T>(pointer: *mut T, what: &str, value: T) -> Result<()> {
    if pointer.is_null() {
        return Err(invalid(what, "the pointer is NULL"));
    }
    // SAFETY: as above; what was there may be no value.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Takes back what was handed out by [`hand_out`].
///
/// # Safety
/// It is null, or was handed out and not taken back yet.
pub(crate) unsafe fn take<T>(pointer: *mut T, what: &str) -> Result<Box<T>> {
    if pointer.is_null() {
        return Err(invalid(what, "the pointer is NULL"));
    }
    // SAFETY: as above.
    Ok(unsafe { Box::from_raw(pointer) })
}

/// Gives C something to hold.
///
/// # Safety
/// As of [`put`].
pub(crate) unsafe fn hand_out<T>(to: *mut *mut T, make: impl FnOnce() -> Result<T>) -> Result<()> {
    // SAFETY: as of `put`. Whoever does not look at the outcome finds no pointer.
    unsafe { put(to, "the answer", std::ptr::null_mut())? };
    let made = Box::into_raw(Box::new(make()?));
    // SAFETY: as before.
    unsafe { put(to, "the answer", made) }
}

/// # Safety
/// It is null, or a string that ends with a zero byte and is valid for as long as the reference is used.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a [u8]> {
    if pointer.is_null() {
        return Err(invalid(what, "the pointer is NULL"));
    }
    // SAFETY: as above.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// # Safety
/// As of [`text`].
pub(crate) unsafe fn path<'a>(pointer: *const c_char) -> Result<&'a Path> {
    // SAFETY: as above.
    unsafe { text(pointer, "path") }.map(|bytes| Path::new(OsStr::from_bytes(bytes)))
}

/// # Safety
/// As of [`text`].
pub(crate) unsafe fn utf8(pointer: *const c_char, what: &str) -> Result<Option<String>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as above.
    let bytes = unsafe { text(pointer, what)? };
    let text = std::str::from_utf8(bytes).map_err(|_| invalid(what, "it is no UTF-8 text"))?;
    Ok(Some(text.to_owned()))
}

/// A buffer of C.
///
/// # Safety
/// It is valid for so many bytes for as long as the reference is used; null only if there are none.
pub(crate) unsafe fn bytes<'a>(pointer: *const u8, size: usize) -> Result<&'a [u8]> {
    check_buffer(pointer, size)?;
    // SAFETY: as above.
    Ok(if size == 0 { &[] } else { unsafe { std::slice::from_raw_parts(pointer, size) } })
}

/// # Safety
/// As of [`bytes`], and nobody else uses it. It may never have been written: the sdk only writes to it.
pub(crate) unsafe fn buffer<'a>(pointer: *mut u8, size: usize) -> Result<&'a mut [u8]> {
    check_buffer(pointer, size)?;
    // SAFETY: as above.
    Ok(if size == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(pointer, size) } })
}

fn check_buffer(pointer: *const u8, size: usize) -> Result<()> {
    if size > isize::MAX as usize {
        return Err(invalid("the buffer", "it is larger than any memory"));
    }
    if pointer.is_null() && size > 0 {
        return Err(invalid("the buffer", "the pointer is NULL"));
    }
    Ok(())
}
