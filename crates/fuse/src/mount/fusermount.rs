//! `fusermount3`: mounts for those who are not root, and hands the connection over a socket.
use super::direct::busy;
use crate::device::Device;
use crate::failure::{Failure, Kind, Result};
use crate::link::receive_descriptors;
use crate::session::handshake::IO_MAX;
use crate::spec::MountSpec;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = "fusermount3";
/// Names the descriptor of the socket; 0 is the program's standard input.
const SOCKET: (&str, &str) = ("_FUSE_COMMFD", "0");

pub fn mount(spec: &MountSpec) -> Result<Device> {
    let (ours, theirs) = UnixStream::pair().map_err(|error| Failure::io("a socket", &error))?;
    let output = run(Command::new(PROGRAM)
        .args(["-o", &options(spec), "--"])
        .arg(&spec.dir)
        .env(SOCKET.0, SOCKET.1)
        .stdin(Stdio::from(OwnedFd::from(theirs))))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let hint = match said.contains("user_allow_other") {
            true => "; an administrator has to write user_allow_other into /etc/fuse.conf, or leave allow_other out",
            false => "",
        };
        let kind = if said.contains("ermission") { Kind::Permission } else { Kind::Other };
        return Err(Failure::new(kind, format!("mounting at {}: {said}{hint}", spec.dir.display())));
    }
    let received = receive_descriptors(&ours, 1).map_err(|error| Failure::io("the mount's descriptor", &error))?;
    let fd = received.into_iter().next().ok_or_else(|| Failure::other(format!("{PROGRAM} sent no descriptor")))?;
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
        .map_err(|error| Failure::io("the mount's descriptor", &error.into()))?;
    Ok(Device::new(fd))
}

pub fn unmount(dir: &Path, lazy: bool) -> Result<()> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = run(command.arg("--").arg(dir).stdin(Stdio::null()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match said.contains("busy") {
        true => Err(busy(dir)),
        false => Err(Failure::other(format!("unmounting {}: {said}", dir.display()))),
    }
}

fn run(command: &mut Command) -> Result<Output> {
    command.env("LC_ALL", "C").stdout(Stdio::null()).stderr(Stdio::piped()).output().map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::NotFound => " (mounting without root needs it: install the package fuse3)",
            _ => "",
        };
        Failure::io(&format!("{PROGRAM}{hint}"), &error)
    })
}

fn options(spec: &MountSpec) -> String {
    let options = &spec.options;
    let source = spec.source().replace('\\', "\\\\").replace(',', "\\,");
    let mut list = vec![
        format!("fsname={source}"),
        "subtype=cairn".into(),
        "nosuid".into(),
        "nodev".into(),
        "default_permissions".into(),
        format!("max_read={IO_MAX}"),
        if options.read_only { "ro" } else { "rw" }.into(),
    ];
    let flags = [(options.noexec, "noexec"), (options.sync, "sync"), (options.others(false), "allow_other")];
    list.extend(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| (*flag).to_owned()));
    list.join(",")
}
