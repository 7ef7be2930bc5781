//! How to connect, and how to open.
use crate::error::{Error, Result};
use crate::key::Key;
use cairn_client::uri::{DEFAULT_CLUSTER, parse_addresses};
use std::time::Duration;

/// How to connect. The defaults are those of the command line and of a mount.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Managers, `host:port[,host:port]`. `None`: `$CAIRN_CLUSTER`, or else 127.0.0.1:7400, where `cairn dev` listens.
    pub cluster: Option<String>,
    /// Longest time of a call.
    pub timeout: Duration,
    /// Longest time that connecting takes while nobody answers.
    pub connect_timeout: Duration,
    pub read_only: bool,
    /// Closing a file makes it visible when all members have it in memory, and durable behind; else durable before it
    /// returns.
    pub close_visible: bool,
    /// Bytes of written data that is not yet stored and of read-ahead, together.
    pub memory_max: usize,
    /// Rack of this process, for reading and writing nearby.
    pub rack: String,
    /// Taken off the modes of what is made. `None`: the process's own, as it is when it connects.
    pub umask: Option<u32>,
    /// The key that is shown. `None`: the one in the file that `$CAIRN_KEY` names, or else that of this user for the
    /// cluster, or else none.
    pub key: Option<Key>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            cluster: None,
            timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(30),
            read_only: false,
            close_visible: false,
            memory_max: 256 << 20,
            rack: String::new(),
            umask: None,
            key: None,
        }
    }
}

impl ConnectOptions {
    /// Addresses of the managers.
    pub(crate) fn addresses(&self) -> Result<Vec<String>> {
        let from_environment = || std::env::var("CAIRN_CLUSTER").ok().filter(|text| !text.is_empty());
        let named = self.cluster.clone().filter(|text| !text.is_empty()).or_else(from_environment);
        let text = named.unwrap_or_else(|| DEFAULT_CLUSTER.to_owned());
        let bad = |part| format!("{part:?} is no host:port");
        parse_addresses(&text).map_err(|part| {
            let next = "name the managers, for example 127.0.0.1:7400, in the call or in $CAIRN_CLUSTER";
            Error::new(libc::EINVAL, &format!("cluster {text}"), &bad(part), next)
        })
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    pub(crate) flags: i32,
    pub(crate) mode: u32,
    pub(crate) fenced: bool,
    pub(crate) replace: bool,
}

impl OpenOptions {
    pub fn reading() -> Self {
        Self::from_flags(libc::O_RDONLY, 0)
    }
    /// Flags of open(2), and the mode of a file that is made, from which the process's umask is taken off.
    pub fn from_flags(flags: i32, mode: u32) -> Self {
        Self { flags, mode, fenced: false, replace: false }
    }
    /// With O_CREAT: an existing file gives way to a new one, with a mode, an owner and attributes of its own, instead
    /// of being cut. Whoever has the old one open keeps that. A symbolic link is followed, and the file that it leads
    /// to is cut.
    pub fn replacing(self) -> Self {
        Self { replace: self.has(libc::O_CREAT), ..self }
    }
    /// For writing, until [`Volume::fence`](crate::Volume::fence) shuts the writer out: from then on writes, `flush`,
    /// `sync` and `close` fail with ESTALE, and nothing that was not published before is added to the file. The same if
    /// the file lost its name. Each of them takes one request more if something was written, `close` two. All writers
    /// of a file through one connection should be fenced: what others of them have not flushed is dropped as well.
    pub fn fenced(self) -> Self {
        Self { fenced: self.flags & libc::O_ACCMODE != libc::O_RDONLY, ..self }
    }
    pub(crate) fn has(self, flag: i32) -> bool {
        self.flags & flag == flag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mistyped address would be a server that is down.
    #[test]
    fn addresses_are_checked_before_anything_is_asked() {
        let of = |text: &str| ConnectOptions { cluster: Some(text.into()), ..Default::default() }.addresses();
        assert_eq!(of("a:1, b:2"), Ok(vec!["a:1".into(), "b:2".into()]));
        let error = of("a:1,b").expect_err("no port");
        assert_eq!(
            (error.errno, error.what.as_str(), error.cause.as_str()),
            (22, "cluster a:1,b", "\"b\" is no host:port")
        );
    }
}
