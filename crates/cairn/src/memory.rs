//! How much memory this process may use: the machine's, or what its cgroup leaves of it.
use std::fs;
use std::path::Path;

/// Of a process's memory metadata gets five eighths: pages that a checkpoint still reads, logs, sessions and what the
/// allocator holds come on top.
const METADATA: (u64, u64) = (5, 8);

/// Bytes that this process may use; `None`: nothing says so.
pub fn limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let read = |path: &str| fs::read_to_string(Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/'))).ok();
    let total = of_machine(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    total.into_iter().chain(of_group(&groups, read)).min()
}

/// Bytes for metadata if nothing else is configured.
pub fn for_metadata() -> u64 {
    limit().map_or(u64::MAX, |limit| limit / METADATA.1 * METADATA.0)
}

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// The least limit of the groups that the process is in, from its own up to the root.
fn of_group(groups: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let mut least = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (base, file) = match controllers {
            "" => ("", "memory.max"),
            several if several.split(',').any(|one| one == "memory") => ("memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let mut at = path.trim_end_matches('/');
        loop {
            // A word (`max`) is no limit.
            let said = read(&format!("{base}{at}/{file}")).and_then(|text| text.trim().parse::<u64>().ok());
            least = said.into_iter().chain(least).min();
            let Some((above, _)) = at.rsplit_once('/') else { break };
            at = above;
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel would end the process below the bound of its metadata.
    #[test]
    fn the_least_limit_of_all_groups_counts() {
        assert_eq!(of_machine("MemFree: 1 kB\nMemTotal:       16384 kB\n"), Some(16 << 20));
        let second = |path: &str| match path {
            "/a/b/memory.max" => Some("max\n".to_owned()),
            "/a/memory.max" => Some("5000\n".to_owned()),
            _ => None,
        };
        assert_eq!(of_group("0::/a/b\n", second), Some(5000));
        assert_eq!(of_group("0::/\n", second), None);
        let first = |path: &str| match path {
            "memory/x/memory.limit_in_bytes" => Some("7000".to_owned()),
            "memory/memory.limit_in_bytes" => Some("9000".to_owned()),
            _ => None,
        };
        assert_eq!(of_group("5:cpu,cpuacct:/y\n4:memory:/x\n", first), Some(7000));
    }
}
