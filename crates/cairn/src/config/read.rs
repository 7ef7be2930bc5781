//! Reads `cairn.toml` key by key, collecting mistakes instead of stopping at the first.
use super::{CHECKPOINT_GENERATIONS, Config, ConfigErrors, DataSection, ManagerSection, NodeConfig, REQUEST_LOG_MIB};
use crate::node::http_door::{HttpSpec, Strangers};
use crate::security::SecuritySpec;
use cairn_security::Mode;
use cairn_telemetry::LogConfig;
use cairn_types::{DiskUuid, FEATURE_LEVEL};
use cairn_wire::protection::Protection;
use std::path::PathBuf;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Five managers, and one more while one takes the place of another. Even numbers pass for that time, and survive no
/// more losses than one less.
const MANAGERS_MAX: usize = 6;

/// Checkpoints that may be kept: the log needs two.
const GENERATIONS: std::ops::RangeInclusive<u64> = 2..=64;
/// MiB of memory for metadata: up to 16 tebibytes.
const MEMORY_MIB: std::ops::RangeInclusive<u64> = 1..=1 << 24;
/// MiB of the request log: up to a tebibyte.
const REQUEST_LOG: std::ops::RangeInclusive<u64> = 0..=1 << 20;

pub(super) const SECTIONS: &[(&str, &[&str])] = &[
    (
        "node",
        &[
            "dir",
            "listen",
            "advertise",
            "http",
            "rack",
            "host",
            "checkpoint_generations",
            "request_log_mib",
            "feature_level_max",
            "admin_over_tcp",
        ],
    ),
    ("manager", &["members", "member", "join", "cluster_name"]),
    ("meta", &["enabled", "memory_max_mib"]),
    ("data", &["disks", "replaced_disks", "direct_reads"]),
    ("http", &["token", "strangers"]),
    ("security", &["mode", "key", "revoked", "audit", "audit_removals", "data", "authority"]),
    ("log", &["format", "filter"]),
];

/// Checks the text of a configuration file. `file` is its name, for the messages.
pub fn parse(file: &str, text: &str) -> Result<Config, ConfigErrors> {
    let (table, syntax) = DeTable::parse_recoverable(text);
    let mut reader = Reader { text, mistakes: Vec::new() };
    for error in syntax {
        let at = error.span().map_or(0, |s| s.start);
        reader.mistake(at, error.message().to_owned());
    }
    if !reader.mistakes.is_empty() {
        // What is missing in a file that was read in part may be in the rest.
        reader.mistakes.sort();
        return Err(ConfigErrors { file: file.to_owned(), mistakes: reader.mistakes });
    }
    let config = reader.config(table.get_ref());
    let mut mistakes = reader.mistakes;
    mistakes.sort();
    match config {
        Some(config) if mistakes.is_empty() => Ok(config),
        _ => Err(ConfigErrors { file: file.to_owned(), mistakes }),
    }
}

struct Reader<'a> {
    text: &'a str,
    mistakes: Vec<(usize, String)>,
}

/// One `[section]` of the file, if it is there.
struct Section<'a> {
    name: &'static str,
    at: usize,
    table: Option<&'a DeTable<'a>>,
}

impl<'a> Section<'a> {
    fn get(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.and_then(|t| t.get(key))
    }
}

impl<'a> Reader<'a> {
    fn mistake(&mut self, at: usize, text: String) {
        let line = 1 + self.text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count();
        self.mistakes.push((line, text));
    }

    fn config(&mut self, root: &'a DeTable<'a>) -> Option<Config> {
        self.check_keys(root);
        let node = self.section(root, "node");
        let manager = self.section(root, "manager");
        let meta = self.section(root, "meta");
        let data = self.section(root, "data");
        let log = self.section(root, "log");
        let http = self.section(root, "http");
        let security = self.section(root, "security");
        let node = self.node(&node);
        let manager = self.manager(&manager);
        let meta_on = meta.table.is_some() && self.flag(&meta, "enabled").unwrap_or(true);
        let memory = self.number(&meta, "memory_max_mib", MEMORY_MIB, 0);
        let meta_memory_max = (memory > 0).then_some(memory << 20);
        let data = self.data(&data);
        let log = self.log(&log);
        let http = self.http(&http);
        let security = self.security(&security);
        let (node, manager) = (node?, manager?);
        if manager.member.is_none() && !meta_on && data.is_none() {
            let why = "this process has no role: give [manager] a member, or add a [meta] or a [data] section";
            self.mistake(0, why.into());
        }
        Some(Config { node, manager, meta: meta_on, meta_memory_max, data, log, http, security })
    }

    fn check_keys(&mut self, root: &'a DeTable<'a>) {
        for (name, value) in root.iter() {
            let at = name.span().start;
            let Some((_, keys)) = SECTIONS.iter().find(|(s, _)| *s == name.get_ref().as_ref()) else {
                let known: Vec<&str> = SECTIONS.iter().map(|(s, _)| *s).collect();
                self.mistake(at, unknown("section", name.get_ref(), &known));
                continue;
            };
            let Some(table) = value.get_ref().as_table() else { continue };
            for (key, _) in table.iter() {
                if !keys.contains(&key.get_ref().as_ref()) {
                    self.mistake(key.span().start, unknown("key", key.get_ref(), keys));
                }
            }
        }
    }

    fn section(&mut self, root: &'a DeTable<'a>, name: &'static str) -> Section<'a> {
        let Some(value) = root.get(name) else { return Section { name, at: 0, table: None } };
        let at = value.span().start;
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.mistake(at, format!("{name} is a section: write [{name}] on a line of its own"));
        }
        Section { name, at, table }
    }

    fn text(&mut self, section: &Section<'a>, key: &str) -> Option<String> {
        let value = section.get(key)?;
        match value.get_ref().as_str() {
            Some("") => self.mistake(value.span().start, format!("{}.{key} is empty", section.name)),
            Some(text) => return Some(text.to_owned()),
            None => self.wrong_type(value, section.name, key, "a text in quotes"),
        }
        None
    }

    fn flag(&mut self, section: &Section<'a>, key: &str) -> Option<bool> {
        let value = section.get(key)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            self.wrong_type(value, section.name, key, "true or false");
        }
        flag
    }

    fn texts(&mut self, section: &Section<'a>, key: &str) -> Vec<(usize, String)> {
        let Some(value) = section.get(key) else { return Vec::new() };
        let Some(list) = value.get_ref().as_array() else {
            self.wrong_type(value, section.name, key, "a list of texts: [\"…\", \"…\"]");
            return Vec::new();
        };
        let mut out = Vec::new();
        for item in list.iter() {
            match item.get_ref().as_str() {
                Some(text) => out.push((item.span().start, text.to_owned())),
                None => self.wrong_type(item, section.name, key, "a list of texts: [\"…\", \"…\"]"),
            }
        }
        out
    }

    fn uuids(&mut self, section: &Section<'a>, key: &str) -> Vec<DiskUuid> {
        let mut uuids = Vec::new();
        for (at, text) in self.texts(section, key) {
            match text.parse() {
                Ok(uuid) => uuids.push(uuid),
                Err(_) => self.mistake(
                    at,
                    format!(
                        "{}.{key}: {text:?} is no uuid of a disk; the log and the label of the disk tell it",
                        section.name
                    ),
                ),
            }
        }
        uuids
    }

    fn wrong_type(&mut self, value: &Spanned<DeValue<'a>>, section: &str, key: &str, wanted: &str) {
        let found = value.get_ref().type_str();
        self.mistake(value.span().start, format!("{section}.{key} is {wanted}, not a value of type {found}"));
    }

    fn address(&mut self, section: &Section<'a>, key: &str) -> Option<String> {
        let text = self.text(section, key)?;
        if let Err(why) = check_address(&text) {
            let at = section.get(key).map_or(section.at, |v| v.span().start);
            self.mistake(at, format!("{}.{key}: {why}", section.name));
        }
        Some(text)
    }

    fn node(&mut self, section: &Section<'a>) -> Option<NodeConfig> {
        let dir = self.text(section, "dir");
        let listen = self.address(section, "listen");
        for (key, value) in [("dir", &dir), ("listen", &listen)] {
            if value.is_none() && section.get(key).is_none() {
                self.mistake(section.at, format!("node.{key} is missing; every process needs it"));
            }
        }
        let advertise = self.address(section, "advertise");
        if advertise.is_none() && listen.as_deref().is_some_and(|l| l.starts_with("0.0.0.0:") || l.starts_with("[::]:"))
        {
            self.mistake(section.at, "node.advertise is missing; it is needed when listening on every address".into());
        }
        let http = self.address(section, "http");
        let rack = self.text(section, "rack").unwrap_or_else(|| "default".into());
        let host = self.text(section, "host").unwrap_or_default();
        let checkpoint_generations =
            self.number(section, "checkpoint_generations", GENERATIONS, CHECKPOINT_GENERATIONS as u64) as usize;
        let request_log_mib = self.number(section, "request_log_mib", REQUEST_LOG, REQUEST_LOG_MIB);
        let admin_over_tcp = self.flag(section, "admin_over_tcp").unwrap_or(false);
        let newest = u64::from(FEATURE_LEVEL);
        let feature_level_max = self.number(section, "feature_level_max", 0..=newest, newest) as u32;
        Some(NodeConfig {
            dir: PathBuf::from(dir?),
            listen: listen?,
            advertise,
            http,
            rack,
            host,
            checkpoint_generations,
            feature_level_max,
            request_log_mib,
            admin_over_tcp,
        })
    }

    /// A whole number of a range; the default if the key is absent.
    fn number(&mut self, section: &Section<'a>, key: &str, range: std::ops::RangeInclusive<u64>, default: u64) -> u64 {
        let Some(value) = section.get(key) else { return default };
        let number = value.get_ref().as_integer().and_then(|i| i.as_str().parse::<u64>().ok());
        number.filter(|number| range.contains(number)).unwrap_or_else(|| {
            let text = format!("{}.{key} is a number from {} to {}", section.name, range.start(), range.end());
            self.mistake(value.span().start, text);
            default
        })
    }

    fn manager(&mut self, section: &Section<'a>) -> Option<ManagerSection> {
        let mut members: Vec<(u32, String)> = Vec::new();
        for (at, text) in self.texts(section, "members") {
            match parse_member(&text) {
                Ok((number, _)) if members.iter().any(|(n, _)| *n == number) => {
                    self.mistake(at, format!("manager.members names member {number} twice"));
                }
                Ok(member) => members.push(member),
                Err(why) => self.mistake(at, format!("manager.members: {why}")),
            }
        }
        if members.is_empty() && self.mistakes.is_empty() {
            let why = "manager.members is missing: list every manager as \"1@host:port\", the same on all processes";
            self.mistake(section.at, why.into());
        } else if members.len() > MANAGERS_MAX {
            self.mistake(section.at, format!("manager.members has {} members; use 1, 3 or 5", members.len()));
        }
        let member = section.get("member").and_then(|value| {
            let number = value.get_ref().as_integer().and_then(|i| i.as_str().parse::<u32>().ok());
            if number.is_none() {
                self.wrong_type(value, "manager", "member", "a number from 1 to 15");
            }
            number
        });
        if let Some(number) = member
            && !members.is_empty()
            && !members.iter().any(|(n, _)| *n == number)
        {
            self.mistake(section.at, format!("manager.member is {number}, which manager.members does not name"));
        }
        let cluster_name = self.text(section, "cluster_name").unwrap_or_else(|| "cairn".into());
        let join = self.flag(section, "join").unwrap_or(false);
        if join && member.is_none() {
            self.mistake(section.at, "manager.join is only for a process with manager.member".into());
        }
        Some(ManagerSection { members, member, join, cluster_name })
    }

    fn data(&mut self, section: &Section<'a>) -> Option<DataSection> {
        section.table?;
        let disks = self.texts(section, "disks");
        if disks.is_empty() {
            self.mistake(section.at, "data.disks is missing: list at least one directory, one for each disk".into());
        }
        for (i, (at, disk)) in disks.iter().enumerate() {
            if disks[..i].iter().any(|(_, d)| d == disk) {
                self.mistake(*at, format!("data.disks names {disk} twice"));
            }
        }
        let direct_reads = self.flag(section, "direct_reads").unwrap_or(false);
        let replaced_disks = self.uuids(section, "replaced_disks");
        let disks = disks.into_iter().map(|(_, d)| PathBuf::from(d)).collect();
        Some(DataSection { disks, replaced_disks, direct_reads })
    }

    fn http(&mut self, section: &Section<'a>) -> HttpSpec {
        let token = self.text(section, "token").map(PathBuf::from);
        let strangers = self.text(section, "strangers").and_then(|text| match text.as_str() {
            "all" => Some(Strangers::All),
            "health" => Some(Strangers::Health),
            other => {
                let at = section.get("strangers").map_or(section.at, |value| value.span().start);
                self.mistake(at, format!("http.strangers is \"health\" or \"all\", not {other:?}"));
                None
            }
        });
        HttpSpec { token, strangers }
    }

    /// A section that says nothing of a mode means security, not its absence.
    fn security(&mut self, section: &Section<'a>) -> Option<SecuritySpec> {
        section.table?;
        let mode = match self.text(section, "mode").as_deref() {
            None | Some("required") => Some(Mode::Required),
            Some("permissive") => Some(Mode::Permissive),
            Some("off") => None,
            Some(other) => {
                let at = section.get("mode").map_or(section.at, |value| value.span().start);
                self.mistake(at, format!("security.mode is \"off\", \"permissive\" or \"required\", not {other:?}"));
                return None;
            }
        };
        let key = self.text(section, "key").map(PathBuf::from);
        let revoked = self.text(section, "revoked").map(PathBuf::from);
        let audit = self.text(section, "audit").map(PathBuf::from);
        let audit_removals = self.flag(section, "audit_removals").unwrap_or(false);
        let data = match self.text(section, "data").as_deref() {
            None | Some("authenticated") => Some(Protection::Authenticated),
            Some("private") => Some(Protection::Private),
            Some(other) => {
                let at = section.get("data").map_or(section.at, |value| value.span().start);
                self.mistake(at, format!("security.data is \"authenticated\" or \"private\", not {other:?}"));
                None
            }
        };
        let authority = self.address(section, "authority");
        let mode = mode?;
        if key.is_none() && section.get("key").is_none() {
            let why = "security.key is missing: the file of this process's key; cairn key node makes it";
            self.mistake(section.at, why.into());
        }
        Some(SecuritySpec { mode, key: key?, revoked, audit, audit_removals, data: data?, authority })
    }

    fn log(&mut self, section: &Section<'a>) -> LogConfig {
        let mut log = LogConfig::default();
        if let Some(format) = self.text(section, "format") {
            match format.parse() {
                Ok(format) => log.format = format,
                Err(why) => {
                    self.mistake(section.get("format").map_or(0, |v| v.span().start), format!("log.format: {why}"))
                }
            }
        }
        log.filter = self.text(section, "filter").unwrap_or(log.filter);
        log
    }
}

/// `1@host:port`
fn parse_member(text: &str) -> Result<(u32, String), String> {
    let wrong =
        || format!("{text:?} is no member; write number@host:port with a number from 1 to 15, such as 1@10.0.0.1:7400");
    let (number, address) = text.split_once('@').ok_or_else(wrong)?;
    let number: u32 = number.parse().map_err(|_| wrong())?;
    if !(1..=15).contains(&number) {
        return Err(wrong());
    }
    check_address(address)?;
    Ok((number, address.to_owned()))
}

fn check_address(text: &str) -> Result<(), String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(()),
        _ => Err(format!("{text:?} is no address; write host:port, such as 127.0.0.1:7400")),
    }
}

fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    let near = known.iter().map(|k| (distance(name, k), k)).min().filter(|(d, _)| *d <= 2 && 2 * d <= name.len());
    match near {
        Some((_, near)) => format!("unknown {what} {name:?}; did you mean {near:?}?"),
        None => format!("unknown {what} {name:?}; there are {}", known.join(", ")),
    }
}

/// Levenshtein distance, for suggestions.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let next = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}
