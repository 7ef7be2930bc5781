//! The key of this process, for Hadoop to hand it on to the tasks of a job.
use crate::border::{Env, bytes_of, guard, text};
use crate::record;
use cairn_sdk::{ConnectOptions, OwnKey};
use jni_sys::{JNIEnv, jbyteArray, jclass};
use std::ptr::null_mut;

/// The key that is shown to a cluster; empty: none; null if it failed, or the key is not for handing on.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_cairn_hadoop_Native_ownKey(
    env: *mut JNIEnv,
    _class: jclass,
    cluster: jbyteArray,
) -> jbyteArray {
    // SAFETY: as Java calls.
    let env = unsafe { Env::new(env) };
    guard(null_mut(), || {
        let options = ConnectOptions { cluster: text(&env, cluster, "cluster")?, ..ConnectOptions::default() };
        bytes_of(&env, &OwnKey::find(&options)?.map(|own| record::own_key(&own)).unwrap_or_default())
    })
}
