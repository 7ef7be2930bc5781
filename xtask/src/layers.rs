//! Which crate may use which: the table of layers, enforced on what every `Cargo.toml` declares.
//!
//! Owns the table. A crate uses only crates of lower layers; what is allowed beside that is listed here with its
//! reason. It looks at declared dependencies, so one that is optional or for one platform counts as well.

use crate::cargo::{DependencyKind, Workspace, short_name};
use crate::findings::Findings;
use anyhow::Result;

#[cfg(test)]
mod tests;

/// Where a crate stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Layer(u8),
    /// Never shipped: may use anything, and be used by anything as a dev-dependency.
    TestsOnly,
}
use Place::{Layer, TestsOnly};

/// The highest layer without any I/O: its crates run unchanged in the simulator.
const LAST_PURE_LAYER: u8 = 2;
const SERVERS: u8 = 5;
const CLIENT: u8 = 6;
const VFS: u8 = 7;
const FRONTS: u8 = 8;
const BINARY: u8 = 9;

const CRATES: &[(&str, Place)] = &[
    ("types", Layer(0)),
    ("erasure", Layer(0)),
    ("placement", Layer(0)),
    ("format", Layer(1)),
    ("wire", Layer(1)),
    ("tree", Layer(2)),
    ("meta-core", Layer(2)),
    ("delegate-core", Layer(2)),
    ("chunk-core", Layer(2)),
    ("replica-core", Layer(2)),
    ("manager-core", Layer(2)),
    ("raft", Layer(2)),
    ("env", Layer(3)),
    ("security", Layer(3)),
    ("rpc", Layer(4)),
    ("store", Layer(4)),
    ("telemetry", Layer(4)),
    ("raft-host", Layer(4)),
    ("node-agent", Layer(4)),
    ("rescue", Layer(4)),
    ("meta", Layer(SERVERS)),
    ("data", Layer(SERVERS)),
    ("manager", Layer(SERVERS)),
    ("client", Layer(CLIENT)),
    ("vfs", Layer(VFS)),
    ("bench", Layer(FRONTS)),
    ("cli", Layer(FRONTS)),
    ("jobs", Layer(FRONTS)),
    ("fuse", Layer(FRONTS)),
    ("sdk", Layer(FRONTS)),
    ("libcairn", Layer(FRONTS)),
    ("jni", Layer(FRONTS)),
    ("s3", Layer(FRONTS)),
    ("csi", Layer(FRONTS)),
    ("cairn", Layer(BINARY)),
    ("model", TestsOnly),
    ("history", TestsOnly),
    ("sim", TestsOnly),
    ("dst", TestsOnly),
    ("proof", TestsOnly),
    ("replica-sim", TestsOnly),
    ("ear", TestsOnly),
    ("chaos", TestsOnly),
    ("fuzz", TestsOnly),
    ("xtask", TestsOnly),
];

/// What each layer is for, as it is told to whoever broke it.
const LAYER_NAMES: &[&str] = &[
    "vocabulary",
    "formats",
    "pure cores",
    "environment",
    "foundations of the servers",
    "servers",
    "client",
    "semantics over the client",
    "fronts",
    "the binary",
];

/// Pairs within one layer that are allowed: user, used, why.
const SAME_LAYER: &[(&str, &str, &str)] = &[
    ("placement", "types", "all of the vocabulary speaks in its ids and units"),
    ("erasure", "types", "all of the vocabulary speaks in its ids and units"),
    ("meta-core", "tree", "the namespace is kept in the tree"),
    ("delegate-core", "meta-core", "whoever leads a directory runs the partition's own state machine"),
    (
        "replica-core",
        "chunk-core",
        "its decisions about chunks are those of the servers; it takes them in as they go over",
    ),
    ("raft-host", "rpc", "it carries Raft messages"),
    ("raft-host", "store", "it keeps the Raft log"),
    ("raft-host", "telemetry", "it counts"),
    ("node-agent", "rpc", "it talks to the manager"),
    ("rescue", "store", "it puts states into the directories of nodes that do not run"),
    ("cli", "bench", "`cairn bench` is a subcommand"),
    ("libcairn", "sdk", "C sees what the sdk is"),
    ("jni", "sdk", "Java sees what the sdk is"),
];

/// Crates below `client` in number that nothing above the servers may link: clients and servers meet in `wire`.
const SERVER_CRATES: &[&str] = &["store", "raft-host", "meta", "data", "manager"];

/// Fronts whose sources speak the protocol itself, and why. All others see the types of `client`.
const SPEAK_WIRE: &[(&str, &str)] =
    &[("bench", "its load generators send requests that no client would send, and decode recorded ones")];

/// Packages that do what a pure layer must not do.
const BANNED_IN_PURE: &[(&str, &str)] = &[
    ("tokio", "a core has no tasks: its owner drives it"),
    ("mio", "a core has no sockets"),
    ("socket2", "a core has no sockets"),
    ("rustix", "a core makes no system calls"),
    ("nix", "a core makes no system calls"),
    ("libc", "a core makes no system calls"),
    ("rand", "randomness comes in as an argument"),
    ("getrandom", "randomness comes in as an argument"),
    ("fastrand", "randomness comes in as an argument"),
];

/// Whether the crate's code must be free of I/O, clocks, randomness and threads.
pub fn is_pure(short_name: &str) -> bool {
    matches!(place_of(short_name), Some(Layer(layer)) if layer <= LAST_PURE_LAYER)
}

fn place_of(short_name: &str) -> Option<Place> {
    CRATES.iter().find(|(name, _)| *name == short_name).map(|(_, place)| *place)
}

pub fn check(workspace: &Workspace, findings: &mut Findings) -> Result<()> {
    let members: Vec<&str> = workspace.members().map(|package| package.name.as_str()).collect();
    for package in workspace.members() {
        let user = package.short_name();
        if place_of(user).is_none() {
            findings
                .fail(format!("{user}: has no layer; add it to CRATES in xtask/src/layers.rs and to ARCHITECTURE.md"));
            continue;
        }
        for dependency in &package.dependencies {
            let verdict = if members.contains(&dependency.package.as_str()) {
                judge_inside(user, short_name(&dependency.package), dependency.kind)
            } else {
                judge_outside(user, &dependency.package, dependency.kind)
            };
            if let Err(why) = verdict {
                findings.fail(format!("{}: {why}", package.manifest(&workspace.root).display()));
            }
        }
    }
    Ok(())
}

/// May `user` depend on `used`, both crates of ours? The error says what is allowed instead.
fn judge_inside(user: &str, used: &str, kind: DependencyKind) -> Result<(), String> {
    let (Some(user_place), Some(used_place)) = (place_of(user), place_of(used)) else {
        return Err(format!("{user} → {used}: one of them has no layer; add it to CRATES in xtask/src/layers.rs"));
    };
    let (user_layer, used_layer) = match (user_place, used_place) {
        (TestsOnly, _) => return Ok(()),
        (Layer(_), TestsOnly) if kind == DependencyKind::Dev => return Ok(()),
        (Layer(_), TestsOnly) => {
            return Err(format!(
                "{user} → {used}: {used} is for tests only and never shipped; it may stand in [dev-dependencies] alone"
            ));
        }
        (Layer(user_layer), Layer(used_layer)) => (user_layer, used_layer),
    };
    if matches!(user_layer, CLIENT | VFS | FRONTS) && SERVER_CRATES.contains(&used) {
        return Err(format!(
            "{user} → {used}: the client and the fronts link no server crate ({}); they reach servers through `client`, \
             and read files on disk with `format`",
            SERVER_CRATES.join(", ")
        ));
    }
    if matches!(user_layer, VFS | FRONTS) && used == "wire" && !SPEAK_WIRE.iter().any(|(front, _)| *front == user) {
        return Err(format!(
            "{user} → wire: fronts and semantics see the types of `client`, and no message of the wire; give `client` a \
             type with the conversion beside it"
        ));
    }
    if user_layer == used_layer {
        return judge_same_layer(user, used, user_layer);
    }
    if used_layer > user_layer {
        return Err(format!(
            "{user} → {used}: upwards. {user} is layer {user_layer} ({}), {used} is layer {used_layer} ({}), and a crate \
             uses only lower layers{}; move what both need down, or pass it in from above{}",
            layer_name(user_layer),
            layer_name(used_layer),
            allowed_below(user_layer),
            if kind == DependencyKind::Dev {
                "; a test that needs both belongs to the upper one or to `sim`"
            } else {
                ""
            }
        ));
    }
    Ok(())
}

fn judge_same_layer(user: &str, used: &str, layer: u8) -> Result<(), String> {
    if SAME_LAYER.iter().any(|(allowed_user, allowed_used, _)| (*allowed_user, *allowed_used) == (user, used)) {
        return Ok(());
    }
    if layer == SERVERS {
        return Err(format!(
            "{user} → {used}: servers never import each other; they meet in the messages of `wire`, and only `cairn` \
             puts them together"
        ));
    }
    let allowed: Vec<String> = SAME_LAYER.iter().map(|(user, used, why)| format!("{user} → {used} ({why})")).collect();
    Err(format!(
        "{user} → {used}: both are layer {layer} ({}), and a crate uses only lower layers{}; within one layer there are \
         only {}",
        layer_name(layer),
        allowed_below(layer),
        allowed.join(", ")
    ))
}

/// May `user` depend on the package `used` from outside?
fn judge_outside(user: &str, used: &str, kind: DependencyKind) -> Result<(), String> {
    // A build script runs on the builder's machine and is not part of the crate.
    if !is_pure(user) || kind == DependencyKind::Build {
        return Ok(());
    }
    match BANNED_IN_PURE.iter().find(|(name, _)| *name == used) {
        None => Ok(()),
        Some((_, why)) => Err(format!(
            "{user} → {used}: layers 0-{LAST_PURE_LAYER} run unchanged in the simulator, so {why}; put what needs \
             {used} into `env` (layer 3) or above"
        )),
    }
}

fn layer_name(layer: u8) -> &'static str {
    LAYER_NAMES.get(usize::from(layer)).copied().unwrap_or("unnamed")
}

fn allowed_below(layer: u8) -> String {
    let below: Vec<&str> = CRATES
        .iter()
        .filter(|(_, place)| matches!(place, Layer(other) if *other < layer))
        .map(|(name, _)| *name)
        .collect();
    if below.is_empty() { " (there is none below)".to_string() } else { format!(" ({})", below.join(", ")) }
}
