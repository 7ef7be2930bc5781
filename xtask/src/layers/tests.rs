//! The layer rules on pairs of crates that would break the architecture if they were let through.

use super::*;
use DependencyKind::{Build, Dev, Normal};

#[test]
fn a_crate_may_use_lower_layers() {
    for (user, used) in
        [("wire", "types"), ("meta", "meta-core"), ("client", "rpc"), ("cairn", "manager"), ("cli", "client")]
    {
        assert_eq!(judge_inside(user, used, Normal), Ok(()), "{user} → {used}");
    }
}

#[test]
fn a_crate_may_not_use_higher_layers_even_in_tests() {
    for kind in [Normal, Dev, Build] {
        let why = judge_inside("chunk-core", "env", kind).expect_err("a core that could reach the disk");
        assert!(why.contains("upwards") && why.contains("(types, erasure, placement, format, wire)"), "{why}");
    }
}

#[test]
fn a_crate_may_not_use_its_own_layer_unless_listed() {
    assert!(judge_inside("format", "wire", Normal).is_err(), "disk formats that follow the wire's");
    assert!(judge_inside("tree", "meta-core", Normal).is_err(), "the listed pair the other way round");
    assert!(judge_inside("rpc", "raft-host", Normal).is_err());
    assert!(judge_inside("bench", "cli", Normal).is_err());
    for (user, used, _) in SAME_LAYER {
        assert_eq!(judge_inside(user, used, Normal), Ok(()), "{user} → {used}");
    }
}

#[test]
fn servers_never_import_each_other() {
    let why = judge_inside("meta", "data", Normal).expect_err("two servers in one");
    assert!(why.contains("never import each other"), "{why}");
}

#[test]
fn client_and_fronts_link_no_server() {
    for user in ["client", "vfs", "bench", "cli", "fuse", "s3", "csi"] {
        for used in SERVER_CRATES {
            let why = judge_inside(user, used, Dev).expect_err("a front that links a server");
            assert!(why.contains("link no server crate"), "{why}");
        }
    }
}

#[test]
fn fronts_see_no_message_of_the_wire() {
    for user in ["vfs", "cli", "jobs", "fuse", "sdk", "libcairn", "jni"] {
        for kind in [Normal, Dev] {
            let why = judge_inside(user, "wire", kind).expect_err("a front that decodes messages");
            assert!(why.contains("types of `client`"), "{why}");
        }
    }
    for user in ["bench", "client", "meta"] {
        assert_eq!(judge_inside(user, "wire", Normal), Ok(()), "{user}");
    }
}

#[test]
fn crates_for_tests_are_dev_dependencies_only() {
    assert_eq!(judge_inside("tree", "model", Dev), Ok(()));
    assert_eq!(judge_inside("sim", "manager", Normal), Ok(()));
    let why = judge_inside("meta", "sim", Normal).expect_err("a simulator in the product");
    assert!(why.contains("[dev-dependencies]"), "{why}");
}

#[test]
fn pure_layers_take_no_runtime_and_no_system_calls() {
    for used in ["tokio", "rustix", "libc"] {
        for user in ["types", "wire", "raft"] {
            assert!(judge_outside(user, used, Normal).is_err(), "{user} → {used}");
            assert!(judge_outside(user, used, Dev).is_err(), "{user} → {used} in tests");
        }
        assert_eq!(judge_outside("env", used, Normal), Ok(()));
    }
    assert_eq!(judge_outside("wire", "bytes", Normal), Ok(()));
    assert_eq!(judge_outside("wire", "libc", Build), Ok(()));
}

#[test]
fn a_crate_without_a_layer_is_refused() {
    assert!(judge_inside("newcomer", "types", Normal).is_err());
    assert!(judge_inside("meta", "newcomer", Normal).is_err());
}

#[test]
fn the_table_is_sound() {
    for (index, (name, place)) in CRATES.iter().enumerate() {
        assert!(CRATES[..index].iter().all(|(other, _)| other != name), "{name} stands twice");
        if let Layer(layer) = place {
            assert_ne!(layer_name(*layer), "unnamed", "{name}");
        }
    }
    for (user, used, _) in SAME_LAYER {
        assert_eq!(place_of(user), place_of(used), "{user} → {used} is not within one layer");
    }
}
