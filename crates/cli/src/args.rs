//! Options that every command has, and the rewriting of `find`'s classic one-dash tests.
use cairn_client::key::Key;
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser as _};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

/// Options of all commands that talk to a cluster.
#[derive(Args, Clone, Debug, Default)]
pub struct GlobalArgs {
    /// Managers of the cluster, host:port[,host:port]; one that answers is enough
    #[arg(long, global = true, env = "CAIRN_CLUSTER", value_name = "ADDRESSES", help_heading = "Global options")]
    pub cluster: Option<String>,
    /// Refuse to work if the cluster has another id than this (cairn admin status shows it)
    #[arg(long, global = true, env = "CAIRN_CLUSTER_ID", value_name = "UUID", help_heading = "Global options")]
    pub cluster_id: Option<String>,
    /// File with the key that is shown to the cluster; without it the one of this user in ~/.config/cairn/HOST:PORT, if
    /// it is there
    #[arg(
        long,
        global = true,
        env = "CAIRN_KEY",
        value_name = "FILE",
        value_parser = OsStringValueParser::new().map(PathBuf::from),
        help_heading = "Global options"
    )]
    pub key: Option<PathBuf>,
    /// Changes of the cluster go through this socket of a server of this machine; without it through one that servers
    /// name
    #[arg(
        long,
        global = true,
        env = "CAIRN_ADMIN_SOCKET",
        value_name = "PATH",
        help_heading = "Global options",
        hide_short_help = true
    )]
    pub admin_socket: Option<PathBuf>,
    /// Print JSON: one value, or one per line for lists
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
    /// Print no progress and no summary
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub quiet: bool,
    /// Longest time that an operation waits for servers that do not answer
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 30, help_heading = "Global options")]
    pub timeout: u64,
}

/// While nobody at all answers, first contact gives up sooner than later operations, unless --timeout is shorter still.
const CONNECT_SECONDS_MAX: u64 = 5;

impl GlobalArgs {
    /// Which key is shown.
    pub fn shown_key(&self) -> Key {
        Key::named(self.key.clone().filter(|file| !file.as_os_str().is_empty()))
    }
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout.clamp(1, 3600))
    }
    pub fn connect_patience(&self) -> Duration {
        Duration::from_secs(self.timeout.clamp(1, CONNECT_SECONDS_MAX))
    }
}

/// Tests of `find` that people write with one dash.
const FIND_TESTS: &[&str] = &[
    "name", "iname", "path", "type", "size", "newer", "mtime", "mmin", "maxdepth", "mindepth", "empty", "print0",
    "print", "user", "group",
];

/// Rewrites `cairn … fs find … -name X` to `--name X`, so that both spellings work. Other commands stay as they are.
pub fn expand_args(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let args: Vec<OsString> = args.into_iter().collect();
    let is = |arg: &OsString, word: &str| arg == OsStr::new(word);
    let fs = args.iter().position(|arg| is(arg, "fs"));
    let find = fs.and_then(|fs| args.iter().skip(fs).position(|arg| is(arg, "find")).map(|at| fs + at));
    let Some(find) = find else { return args };
    let rewrite = |(at, arg): (usize, OsString)| {
        let test = arg.to_str().and_then(|text| text.strip_prefix('-')).filter(|text| FIND_TESTS.contains(text));
        match test {
            Some(test) if at > find => OsString::from(format!("--{test}")),
            _ => arg,
        }
    };
    args.into_iter().enumerate().map(rewrite).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> String {
        let args = expand_args(text.split(' ').map(OsString::from));
        args.iter().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    /// `find -name` would be refused, or options of other commands changed.
    #[test]
    fn only_the_tests_of_find_are_rewritten() {
        assert_eq!(expanded("cairn fs find / -name *.c -type f"), "cairn fs find / --name *.c --type f");
        assert_eq!(expanded("cairn --json fs find -newer /x --name y"), "cairn --json fs find --newer /x --name y");
        assert_eq!(expanded("cairn fs put -name find"), "cairn fs put -name find");
        assert_eq!(expanded("cairn inspect -type"), "cairn inspect -type");
    }
}
