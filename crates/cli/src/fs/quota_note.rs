//! After a command that met a used-up quota: which directory, or volume, has it, and how much it allows. Servers refuse
//! without a path, since only its number is known where changes are decided.
use crate::context::Context;
use crate::fs::quota::paths_of;
use crate::human;
use crate::output::printable;
use cairn_client::volume_counts::Quota;
use std::io::Write;
use std::time::Duration;

/// A line more is not worth waiting longer for.
const PATIENCE: Duration = Duration::from_secs(3);
/// Quotas of a volume that are looked at, the fullest ones.
const LOOKED_AT_MAX: usize = 256;

/// Says what the quotas around something allow that had no room. Where that cannot be had, nothing is said.
pub async fn say(context: &Context, what: &str) {
    // The command has failed with its own message already.
    let lines = tokio::time::timeout(PATIENCE, lines(context, what)).await.unwrap_or_default();
    for line in lines {
        drop(writeln!(std::io::stderr(), "cairn: {line}"));
    }
}

async fn lines(context: &Context, what: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for volume in context.open_volumes().await {
        let Ok(mut quotas) = volume.quotas().await else { continue };
        quotas.sort_by(|one, other| fill(other).total_cmp(&fill(one)));
        quotas.truncate(LOOKED_AT_MAX);
        let inodes = quotas.iter().map(|quota| quota.inode).filter(|inode| *inode != 0);
        let Ok(paths) = paths_of(&volume, inodes).await else { continue };
        for quota in &quotas {
            let of = match paths.get(&quota.inode) {
                _ if quota.inode == 0 => format!("volume {}", volume.name()),
                Some(path) if around(&String::from_utf8_lossy(path), what) => {
                    printable(&String::from_utf8_lossy(path), false)
                }
                _ => continue,
            };
            lines.push(text(&of, quota));
        }
    }
    lines
}

/// Whether the directory is, or has in it, what a message names.
fn around(directory: &str, what: &str) -> bool {
    let directory = directory.trim_end_matches('/');
    what.match_indices(directory)
        .any(|(at, _)| matches!(what.as_bytes().get(at + directory.len()), None | Some(b'/' | b':' | b' ')))
}

/// The part of the tighter limit that is in use.
fn fill(quota: &Quota) -> f64 {
    let part = |used: u64, max: u64| if max == 0 { 0.0 } else { used as f64 / max as f64 };
    part(quota.bytes_used, quota.bytes_max).max(part(quota.inodes_used, quota.inodes_max))
}

fn text(of: &str, quota: &Quota) -> String {
    let mut parts = Vec::new();
    if quota.bytes_max > 0 {
        parts.push(format!("{} of {}", human::bytes(quota.bytes_used), human::bytes(quota.bytes_max)));
    }
    if quota.inodes_max > 0 {
        parts.push(format!("{} of {} files and directories", quota.inodes_used, quota.inodes_max));
    }
    format!("the quota of {of} has {} in use", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A person would have to search for the limit that was met, or be told of one that has room.
    #[test]
    fn the_limit_is_named_with_its_use() {
        let quota =
            Quota { bytes_used: 1 << 30, bytes_max: 1 << 30, inodes_used: 5, inodes_max: 1000, ..Quota::default() };
        assert_eq!(
            text("/home/ann", &quota),
            "the quota of /home/ann has 1.0 GiB of 1.0 GiB, 5 of 1000 files and directories in use"
        );
        assert_eq!(
            (fill(&quota), fill(&Quota { bytes_used: 7, ..Quota::default() })),
            (1.0, 0.0),
            "one of them has no limit"
        );
        assert!(around("/home/ann", "/home/ann/file") && around("/home/ann", "default:/home/ann") && around("/", "/x"));
        assert!(!around("/home/ann", "/home/anna/file") && !around("/home/ann", "/home"));
    }
}
