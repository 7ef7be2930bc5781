//! What servers and mounts may say while they are treated like this: every ERROR and WARN that is not listed here fails
//! the run.
//!
//! A line is listed by a part of its text, as the program has it, with the reason why a fault of this run leads to it.
//! What would mean lost or wrong bytes, a broken promise between processes, or a panic, is not listed.

use std::collections::BTreeMap;

/// A line that is expected, and why.
pub struct Expected {
    pub part: &'static str,
    pub why: &'static str,
}

const fn line(part: &'static str, why: &'static str) -> Expected {
    Expected { part, why }
}

pub const EXPECTED: &[Expected] = &[
    // Of managers.
    line("setting changed", "this run sets them"),
    line("volume put into the trash", "a volume of several partitions takes the place of the first one"),
    line("volume deleted out of the trash", "the same"),
    line("nobody listens at this node's address: it is marked down", "processes are killed"),
    line("nodes were silent and failed their probes: they are marked down", "processes stand still, links are cut"),
    line("several writers found it slow: it leaves this group for a time", "links are slow, processes stand still"),
    line("a node refused states of placement groups", "disks fill up"),
    line("disks that are lost for long are replaced", "disks are lost, or away for longer than the repair delay"),
    line("a disk that was to take a member's place gives up", "it dies while it is filled"),
    line("a disk came back as an older copy of itself", "a disk is put back to what it had before"),
    line("the disk that is being filled in the place of another one is full", "disks fill up"),
    // Of nodes.
    line("the manager cannot be reached; will be repeated", "managers die, links are cut"),
    line("the manager asks this node to register again", "it was away for longer than the time-out"),
    line("still waiting to be registered", "it is started while managers are away"),
    line("chunks are here that the primary lacks", "files were removed while the member was away"),
    line("this server has no [security] in its configuration", "its network is of this run alone"),
    line("this process stood still; all sessions get a new lease", "processes are stopped"),
    line("the disk has no room for what its journal keeps", "disks fill up"),
    line("how far the disk was scrubbed could not be kept", "disks fill up"),
    line("an offered checkpoint could not be fetched", "who offers it dies or is cut off"),
    // Of connections, with their reasons.
    line("\"hello_timeout\"", "links are cut, and processes stand still, right behind a connect"),
    line("\"frame_timeout\"", "links are slow or cut"),
    line("\"payload_stalled\"", "links are slow or cut while a large answer or write is under way"),
    line("\"write_timeout\"", "links are slow or cut, processes stand still"),
    // Of mounts, and the client library in them.
    line("going on in another chunk", "a member of the chunk's group dies, stands still or is full"),
    line("the manager did not take the report of a failed member", "managers die, the mount's own link is cut"),
    line("the session could not be renewed; trying again", "metas die, the mount's own link is cut"),
    line("the session ended; files that it held open may be gone", "the mount was cut off for longer than its lease"),
    line("the session was lost: opening files again under a new one", "the same"),
    line("an open file is gone", "it was renamed over while the mount was cut off"),
    line("a file that is open here was removed and is gone", "the same"),
    line("written data could not be stored yet; it is kept and tried again", "nobody takes it for a while"),
    line("a file was closed with data that could not be written; it is lost", "the program was told, and closed it"),
    line("an operation was not done in time; EIO was sent", "servers cannot be reached for longer than the limit"),
    line("an operation failed", "the same; the program was told"),
];

/// What was said that is not expected, and how often what is expected.
#[derive(Default)]
pub struct Said {
    pub unexpected: Vec<String>,
    pub expected: BTreeMap<&'static str, u64>,
}

impl Said {
    /// Looks through a log.
    pub fn scan(&mut self, whose: &str, log: &str) {
        for line in log.lines() {
            let level = line.split_whitespace().nth(1);
            if !matches!(level, Some("ERROR" | "WARN")) && !line.contains("panicked at") {
                continue;
            }
            match EXPECTED.iter().find(|known| line.contains(known.part)) {
                Some(known) => *self.expected.entry(known.part).or_default() += 1,
                None => self.unexpected.push(format!("{whose}: {line}")),
            }
        }
    }
    /// Says what was expected, how often, and why.
    pub fn tell(&self) {
        for known in EXPECTED {
            if let Some(times) = self.expected.get(known.part) {
                println!("{times:>6} × {:?}: {}", known.part, known.why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// All source texts below a directory, with broken lines of literals put together.
    fn sources(dir: &Path, out: &mut String) {
        for entry in fs::read_dir(dir).expect("sources").map(|entry| entry.expect("entry").path()) {
            if entry.is_dir() {
                sources(&entry, out);
            } else if entry.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&entry).expect("text");
                let mut parts = text.split("\\\n");
                out.push_str(parts.next().unwrap_or_default());
                parts.for_each(|part| out.push_str(part.trim_start()));
            }
        }
    }

    /// A line that nobody says any more would hide another one that has its words by chance.
    #[test]
    fn what_is_expected_is_still_said() {
        let mut all = String::new();
        for dir in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).expect("crates") {
            sources(&dir.expect("entry").path().join("src"), &mut all);
        }
        for known in EXPECTED {
            assert!(all.contains(known.part), "nobody says {:?}", known.part);
        }
    }

    /// An error, a warning or a panic that nobody listed would pass.
    #[test]
    fn what_is_not_listed_is_found() {
        let mut said = Said::default();
        said.scan("x", "2026-11-21T00:00:00.0Z  INFO a: b\n2026-11-21T00:00:00.0Z  WARN a: setting changed key=1\n");
        assert!(said.unexpected.is_empty() && said.expected.len() == 1, "{:?}", said.unexpected);
        said.scan(
            "x",
            "2026-11-21T00:00:00.0Z ERROR a: b\n2026-11-21T00:00:00.0Z  WARN a: c\nthread 'y' panicked at z",
        );
        assert_eq!(said.unexpected.len(), 3, "{:?}", said.unexpected);
    }
}
