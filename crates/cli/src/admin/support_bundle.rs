//! `cairn admin support-bundle FILE`: what somebody needs who is to help, as one text file that its owner reads before
//! it is sent.
//!
//! Owns: which commands are asked, that each ends in time, and that nothing secret is written: no contents of files, no
//! environment, no logs, and of configurations only keys that are known to be harmless. Each part is a command that its
//! reader could have typed; one that fails says so in its place, and the others go on.
mod config_text;
mod web;

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use clap::Args;
use std::fs::OpenOptions;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// A part that takes longer is cut off.
const PART_DEADLINE: Duration = Duration::from_secs(60);
/// Between two looks whether a part has ended.
const POLL: Duration = Duration::from_millis(20);
/// Bytes of one part; what is beyond is left out, and that is said.
const PART_BYTES_MAX: usize = 4 << 20;
/// Where packages keep configurations.
const CONFIG_DIR: &str = "/etc/cairn";

/// What is asked of the cluster, as it is typed.
const COMMANDS: &[&[&str]] = &[
    &["admin", "status"],
    &["admin", "status", "--json"],
    &["admin", "node", "ls"],
    &["admin", "disk", "ls"],
    &["admin", "volume", "ls"],
    &["admin", "partition", "ls"],
    &["admin", "manager", "ls"],
    &["admin", "pg", "ls", "--unhealthy"],
    &["admin", "repair"],
    &["admin", "drain", "ls"],
    &["admin", "hibernate", "ls"],
    &["admin", "scrub", "status"],
    &["admin", "config", "get"],
    &["admin", "events", "--meaning"],
    &["fs", "df"],
];

/// What the machine says of itself.
const MACHINE: &[&str] =
    &["/proc/version", "/proc/uptime", "/proc/loadavg", "/proc/meminfo", "/proc/mounts", "/etc/os-release"];

#[derive(Args, Debug)]
#[command(
    after_help = "The file is text, for you to read before you send it. It has no contents of files, no logs, no environment and \
    no keys. It names hosts, addresses, disks, volumes, and the paths of conversions.\n\
    Examples:\n  cairn admin support-bundle cairn-support.txt\n  \
    cairn admin support-bundle --config /etc/cairn/data.toml cairn-support.txt"
)]
pub struct SupportBundleArgs {
    /// The file, which must not exist
    file: PathBuf,
    /// Configuration of a server of this machine; can be given several times. Without it, those in /etc/cairn
    #[arg(long = "config", value_name = "FILE")]
    configs: Vec<PathBuf>,
}

/// The file, part by part.
struct Bundle {
    file: std::fs::File,
    path: PathBuf,
    parts: u32,
    failed: u32,
}

impl Bundle {
    fn create(path: &Path) -> Result<Bundle> {
        // For its owner alone, and never over something that is there.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| CliError::local(path, "making the file", error))?;
        Ok(Bundle { file, path: path.to_owned(), parts: 0, failed: 0 })
    }
    fn part(&mut self, title: &str, content: std::result::Result<Vec<u8>, String>) -> Result<()> {
        self.parts += 1;
        let (text, left_out) = match content {
            Ok(mut bytes) => {
                let more = bytes.len() > PART_BYTES_MAX;
                bytes.truncate(PART_BYTES_MAX);
                (bytes, more)
            }
            Err(why) => {
                self.failed += 1;
                (format!("FAILED: {why}").into_bytes(), false)
            }
        };
        let note =
            if left_out { format!("\n(what is beyond {PART_BYTES_MAX} bytes is left out)") } else { String::new() };
        let head = format!("\n==== {title} ====\n");
        let wrote =
            [head.as_bytes(), &text, note.as_bytes(), b"\n"].iter().try_for_each(|part| self.file.write_all(part));
        wrote.map_err(|error| CliError::local(&self.path, "writing the bundle", error))
    }
}

impl SupportBundleArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let mut bundle = Bundle::create(&self.file)?;
        bundle.part("cairn --version", command(context, &["--version"]).await)?;
        for words in COMMANDS {
            bundle.part(&format!("cairn {}", words.join(" ")), command(context, words).await)?;
        }
        let nodes = command(context, &["admin", "node", "ls", "--json"]).await;
        let key = context.key().map_err(|error| error.to_string());
        for (node, address, content) in web::of_nodes(nodes, key).await {
            bundle.part(&format!("{node}: {address}"), content)?;
        }
        for path in self.configs() {
            let shown = path.display().to_string();
            let content = std::fs::read_to_string(&path).map(|text| config_text::harmless(&text).into_bytes());
            bundle.part(&shown, content.map_err(|error| error.to_string()))?;
            bundle.part(&format!("cairn doctor --config {shown}"), doctor(context, Some(&path)).await)?;
        }
        bundle.part("cairn doctor", doctor(context, None).await)?;
        for path in MACHINE {
            bundle.part(path, std::fs::read(path).map_err(|error| error.to_string()))?;
        }
        bundle.file.sync_all().map_err(|error| CliError::local(&self.file, "writing the bundle", error))?;
        let (file, parts, failed) = (self.file.display(), bundle.parts, bundle.failed);
        if context.out.is_json() {
            return context.out.json(&serde_json::json!({
                "file": self.file.to_string_lossy(), "parts": parts, "failed": failed,
            }));
        }
        context.out.line(format!(
            "{file}: {parts} parts, {failed} of them could not be had. Read the file before you send it to somebody: it names hosts, \
             addresses, disks and volumes"
        ))
    }

    /// Those that were named, or all of the package's directory.
    fn configs(&self) -> Vec<PathBuf> {
        if !self.configs.is_empty() {
            return self.configs.clone();
        }
        let entries = std::fs::read_dir(CONFIG_DIR).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        let mut found: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
        found.sort();
        found
    }
}

async fn doctor(context: &Context, config: Option<&Path>) -> std::result::Result<Vec<u8>, String> {
    match config.and_then(Path::to_str) {
        Some(path) => command(context, &["doctor", "--config", path]).await,
        None if config.is_none() => command(context, &["doctor"]).await,
        None => Err("its name is no UTF-8".into()),
    }
}

/// What this program says to a command line, with the cluster of this command. A finding is an answer too: whatever it
/// printed counts.
async fn command(context: &Context, words: &[&str]) -> std::result::Result<Vec<u8>, String> {
    let program = std::env::current_exe().map_err(|error| format!("the program is not found: {error}"))?;
    let mut command = std::process::Command::new(program);
    if let Some(cluster) = &context.args.cluster {
        command.args(["--cluster", cluster]);
    }
    if let Some(key) = &context.args.key {
        command.arg("--key").arg(key);
    }
    if let Some(id) = &context.args.cluster_id {
        command.args(["--cluster-id", id]);
    }
    command.args(["--timeout", &context.args.timeout.to_string(), "--quiet"]).args(words);
    let (code, mut text) = said(command).await.map_err(|error| error.to_string())?;
    match code {
        Some(0) => Ok(text),
        // Doctor and lists of problems tell with their exit code what they found.
        Some(code) if code == Exit::Partial as i32 || code == Exit::Other as i32 => {
            text.extend_from_slice(format!("(exit code {code})").as_bytes());
            Ok(text)
        }
        _ => Err(String::from_utf8_lossy(&text).trim_end().to_owned()),
    }
}

/// Runs a program to its end, or to the deadline: its exit code and all that it printed.
async fn said(mut command: std::process::Command) -> std::io::Result<(Option<i32>, Vec<u8>)> {
    // Memory, not a pipe: nobody has to read while it runs. Both share one place in the file.
    let memory = std::fs::File::from(rustix::fs::memfd_create("said", rustix::fs::MemfdFlags::CLOEXEC)?);
    command.stdin(Stdio::null()).stdout(memory.try_clone()?).stderr(memory.try_clone()?);
    let mut child = command.spawn()?;
    let ended = tokio::time::timeout(PART_DEADLINE, async {
        loop {
            match child.try_wait() {
                Ok(None) => tokio::time::sleep(POLL).await,
                ended => return ended,
            }
        }
    });
    let status = match ended.await {
        Ok(status) => status?,
        Err(_) => {
            child.kill()?;
            child.wait()?;
            return Err(std::io::Error::other(format!("it did not end within {} s", PART_DEADLINE.as_secs())));
        }
    };
    let mut text = Vec::new();
    let mut memory = memory;
    memory.rewind()?;
    memory.take(PART_BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
    Ok((status.and_then(|status| status.code()), text))
}
