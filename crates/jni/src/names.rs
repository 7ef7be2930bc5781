//! Names of users and groups, as this machine's system knows them (passwd, LDAP, whatever it is set up with).
use crate::border::{Env, bytes_of, guard, invalid, text};
use cairn_sdk::Result;
use jni_sys::{JNIEnv, jbyteArray, jclass, jint, jlong};
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Room for what an entry has beside numbers; groups of thousands of members need more.
const ROOM: usize = 4 << 10;
const ROOM_MAX: usize = 4 << 20;

/// Asks with more and more room. `None`: there is no such entry, or nobody who knows it.
fn ask<E, T>(
    call: impl Fn(*mut E, &mut [libc::c_char], *mut *mut E) -> libc::c_int,
    take: impl Fn(&E) -> T,
) -> Option<T> {
    let mut room = vec![0; ROOM];
    loop {
        let (mut entry, mut found) = (MaybeUninit::<E>::uninit(), null_mut());
        match call(entry.as_mut_ptr(), &mut room, &mut found) {
            libc::ERANGE if room.len() < ROOM_MAX => room.resize(room.len() * 4, 0),
            // SAFETY: a pointer that is not null points at `entry`, which was filled and whose texts lie in `room`.
            0 if !found.is_null() => return Some(take(unsafe { &*found })),
            _ => return None,
        }
    }
}

fn of_c(pointer: *const libc::c_char) -> Vec<u8> {
    // SAFETY: a text of an entry that was found.
    unsafe { CStr::from_ptr(pointer) }.to_bytes().to_vec()
}

pub fn user_name(uid: u32) -> Option<Vec<u8>> {
    // SAFETY: all pointers are valid for the call.
    ask(
        |entry, room, found| unsafe { libc::getpwuid_r(uid, entry, room.as_mut_ptr(), room.len(), found) },
        |entry: &libc::passwd| of_c(entry.pw_name),
    )
}

pub fn group_name(gid: u32) -> Option<Vec<u8>> {
    // SAFETY: as before.
    ask(
        |entry, room, found| unsafe { libc::getgrgid_r(gid, entry, room.as_mut_ptr(), room.len(), found) },
        |entry: &libc::group| of_c(entry.gr_name),
    )
}

pub fn user_id(name: &CStr) -> Option<u32> {
    // SAFETY: as before.
    ask(
        |entry, room, found| unsafe { libc::getpwnam_r(name.as_ptr(), entry, room.as_mut_ptr(), room.len(), found) },
        |entry: &libc::passwd| entry.pw_uid,
    )
}

pub fn group_id(name: &CStr) -> Option<u32> {
    // SAFETY: as before.
    ask(
        |entry, room, found| unsafe { libc::getgrnam_r(name.as_ptr(), entry, room.as_mut_ptr(), room.len(), found) },
        |entry: &libc::group| entry.gr_gid,
    )
}

fn c_text(env: &Env, array: jbyteArray) -> Result<CString> {
    let name = text(env, array, "name")?.unwrap_or_default();
    CString::new(name).map_err(|_| invalid("name", "it has a zero byte"))
}

/// The name, or an empty array.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_nameOf(
    env: *mut JNIEnv,
    _class: jclass,
    id: jint,
    group: u8,
) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    let name = || if group != 0 { group_name(id as u32) } else { user_name(id as u32) };
    guard(null_mut(), || bytes_of(&env, &name().unwrap_or_default()))
}

/// The number, or −1.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_idOf(
    env: *mut JNIEnv,
    _class: jclass,
    name: jbyteArray,
    group: u8,
) -> jlong {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(-1, || {
        let name = c_text(&env, name)?;
        let id = if group != 0 { group_id(&name) } else { user_id(&name) };
        Ok(id.map_or(-1, jlong::from))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Owners would be shown as numbers, or set to somebody else.
    #[test]
    fn names_and_numbers_lead_to_each_other() {
        assert_eq!(user_name(0).as_deref(), Some(b"root".as_slice()));
        assert_eq!((user_id(c"root"), group_id(c"root")), (Some(0), Some(0)));
        assert_eq!(group_name(0).as_deref(), Some(b"root".as_slice()));
        assert_eq!((user_name(3_999_999_999), user_id(c"no such user: here")), (None, None));
    }
}
