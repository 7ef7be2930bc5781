//! Compiles the `.proto` files with protox, so that no system `protoc` is needed.
use std::io::{Error, ErrorKind};

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=proto");
    let files = ["common.proto", "raft.proto", "data.proto", "manager.proto", "meta.proto", "enrol.proto"];
    let descriptors =
        protox::compile(files, ["proto"]).map_err(|e| Error::new(ErrorKind::InvalidData, e.to_string()))?;
    let mut config = prost_build::Config::new();
    // Cheap slices of the frame instead of copies, where the bytes are kept or large.
    config.bytes([".cairn.raft.Entry.data"]);
    config.compile_fds(descriptors)
}
