//! `cairn doctor`: looks at this machine as a node of the cluster, or as one that is to become one, and changes
//! nothing.
//!
//! Each finding says what was seen, why that matters and what to do. Exit code: 0 nothing is wrong, 10 there are
//! warnings, 1 something keeps a node from working or endangers data. Not here: what is wrong with the cluster
//! (`cairn admin status`).
mod cluster;
mod labels;
mod machine;
mod security;
mod user;

use crate::config::{self, Config, ConfigErrors};
use crate::server::ServeError;
use cairn_cli::{Exit, GlobalArgs};
use cairn_client::key::Key;
use clap::Args;
use std::path::PathBuf;

/// Check this machine as a node: clock, disks, limits, ports, versions, kernel
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// The configuration of the node; without it only the machine and the cluster are looked at
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Good,
    Warning,
    Bad,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Warning => "warning",
            Self::Bad => "bad",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub check: &'static str,
    pub level: Level,
    /// What was seen.
    pub what: String,
    /// Why it matters, and what to do; empty when it is good.
    pub why: &'static str,
    pub todo: String,
}

impl Finding {
    pub fn good(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, level: Level::Good, what: what.into(), why: "", todo: String::new() }
    }
    pub fn warning(check: &'static str, what: impl Into<String>, why: &'static str, todo: impl Into<String>) -> Self {
        Self { check, level: Level::Warning, what: what.into(), why, todo: todo.into() }
    }
    pub fn bad(check: &'static str, what: impl Into<String>, why: &'static str, todo: impl Into<String>) -> Self {
        Self { level: Level::Bad, ..Self::warning(check, what, why, todo) }
    }

    fn print(&self, json: bool) {
        let Self { check, level, what, why, todo } = self;
        if json {
            let value =
                serde_json::json!({ "check": check, "level": level.name(), "what": what, "why": why, "todo": todo });
            println!("{value}");
            return;
        }
        println!("{:<8} {check:<9} {what}", level.name());
        if *level != Level::Good {
            println!("{:18} why: {why}", "");
            println!("{:18} do:  {todo}", "");
        }
    }
}

/// Looks at everything and prints it.
pub fn run(args: &DoctorArgs, global: &GlobalArgs) -> Result<Exit, ServeError> {
    let config = args.config.as_ref().map(read).transpose()?;
    let with_rights_of = args.config.as_deref().zip(config.as_ref()).and_then(|(path, config)| {
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        user::become_the_servers(&path, config)
    });
    let mut findings: Vec<Finding> = with_rights_of.into_iter().collect();
    findings.extend(machine::look(config.as_ref()));
    let managers = config.as_ref().map(|config| config.manager.members.iter().map(|(_, at)| at.clone()).collect());
    let cluster = match (&global.cluster, managers) {
        (Some(text), _) => Some(parse(text)?),
        (None, Some(managers)) => Some(managers),
        (None, None) => Some(parse(cairn_client::uri::DEFAULT_CLUSTER)?),
    };
    let (identity, labels) = config.as_ref().map(labels::look).unwrap_or_default();
    findings.extend(labels);
    findings.extend(config.iter().flat_map(security::look));
    // A node without another key asks with its own.
    let key = match (&global.key, config.as_ref().and_then(|config| config.security.as_ref())) {
        (None, Some(security)) => Key::File(security.key.clone()),
        _ => global.shown_key(),
    };
    findings.extend(cluster::look(&cluster.unwrap_or_default(), config.as_ref(), &identity, key));
    findings.iter().for_each(|finding| finding.print(global.json));
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Good);
    let count = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
    if !global.json {
        let warnings = count(Level::Warning);
        let s = if warnings == 1 { "" } else { "s" };
        println!("{} good, {warnings} warning{s}, {} bad", count(Level::Good), count(Level::Bad));
    }
    Ok(match worst {
        Level::Good => Exit::Done,
        Level::Warning => Exit::Partial,
        Level::Bad => Exit::Other,
    })
}

fn read(path: &PathBuf) -> Result<Config, ServeError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| ServeError::NoConfig { path: name.clone(), source })?;
    let parsed: Result<Config, ConfigErrors> = config::parse(&name, &text);
    Ok(parsed?)
}

fn parse(text: &str) -> Result<Vec<String>, ServeError> {
    cairn_client::uri::parse_addresses(text).map_err(|bad| {
        ServeError::Usage(format!("--cluster: {bad:?} is no host:port; write for example 127.0.0.1:7400"))
    })
}

#[cfg(test)]
mod tests;
