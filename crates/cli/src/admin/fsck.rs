//! `cairn admin fsck`: proof that a volume is whole, by path: names, links, totals, quotas, and for every extent the
//! chunk with the redundancy of its layout, as data nodes list it.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use cairn_client::fsck::{FsckFinding, FsckProgress, FsckSeverity, FsckState};
use cairn_client::map::{Disk, Node};
use cairn_client::{RemotePath, Volume};
use clap::Args;
use serde_json::json;
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::time::Duration;

/// Between two questions how the check goes on.
const POLL: Duration = Duration::from_millis(300);
/// Findings that are listed for people; the rest is summed up.
const SHOWN_MAX: usize = 50;
const WORST_FIRST: [&str; 5] = ["lost", "unavailable", "wrong", "degraded", "note"];
/// Nodes and disks named in one line.
const NAMED_MAX: usize = 8;

#[derive(Args, Debug)]
pub struct FsckArgs {
    /// The volume
    #[arg(default_value = "default")]
    volume: String,
    /// Mend what can be mended: totals, quotas, numbers of links; what nothing leads to goes to /lost+found
    #[arg(long)]
    repair: bool,
}

/// Of all partitions.
#[derive(Default)]
struct Sum {
    inodes: u64,
    directories: u64,
    chunks: u64,
    found: u64,
}

impl FsckArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        if self.volume.contains('/') {
            let name = self.volume.split(':').next().filter(|name| !name.is_empty() && !name.contains('/'));
            let text = format!(
                "{:?} is a path, and whole volumes are checked: write cairn admin fsck {}",
                self.volume,
                name.unwrap_or("default")
            );
            return Err(CliError::usage(text));
        }
        let at = RemotePath { cluster: None, volume: self.volume.clone(), path: b"/".to_vec() };
        let volume = context.volume(&at).await?;
        let mut runs = Vec::new();
        for partition in volume.partitions().await? {
            runs.push((partition, volume.start_fsck(partition, self.repair).await?));
        }
        let (mut end, mut findings, mut notes) = (Sum::default(), Vec::new(), Vec::new());
        for (partition, run) in runs {
            let (part, found) = outcome(&volume, partition, run).await?;
            end.inodes += part.inodes;
            end.directories += part.directories;
            end.chunks += part.chunks;
            end.found += part.found;
            findings.extend(found);
            if !part.message.is_empty() {
                notes.push(format!("p{partition}: {}", part.message));
            }
        }
        show(context, &self.volume, &end, &findings)?;
        let away = match findings.iter().any(|finding| finding.severity == FsckSeverity::Unavailable) {
            true => away(context).await,
            false => String::new(),
        };
        verdict(&self.volume, &end, &findings, &notes, &away)
    }
}

/// How the check of a partition ended, and all that it found.
async fn outcome(volume: &Volume, partition: u32, run: u64) -> Result<(FsckProgress, Vec<FsckFinding>)> {
    let mut end = wait(volume, partition, run).await?;
    let mut findings = std::mem::take(&mut end.findings);
    let mut more = end.more;
    while more {
        let findings_from = u32::try_from(findings.len()).unwrap_or(u32::MAX);
        let page = volume.fsck_progress(partition, run, findings_from).await?;
        more = page.more && !page.findings.is_empty();
        findings.extend(page.findings);
    }
    Ok((end, findings))
}

/// Nodes that are down and disks that are out of service. Who says so may be down too: the check itself has ended.
async fn away(context: &Context) -> String {
    let Ok((_, map)) = super::status(context).await else { return String::new() };
    let is_data = |node: &&Node| node.roles.iter().any(|role| role == "data");
    let down = map.nodes.iter().filter(|node| !node.up && !node.removed).filter(is_data);
    let runs = |disk: &&Disk| map.nodes.iter().any(|node| node.id == disk.node && node.up);
    let failed = map.disks.iter().filter(|disk| !disk.is_in_service() && disk.pgs > 0).filter(runs);
    let names: Vec<String> = down
        .map(|node| format!("n{}", node.id))
        .chain(failed.map(|disk| format!("d{} on n{}", disk.id, disk.node)))
        .collect();
    let more = names.len().saturating_sub(NAMED_MAX);
    let mut text = names.into_iter().take(NAMED_MAX).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// How many files have findings of this kind. One may have several, in several placement groups.
fn files(findings: &[FsckFinding], severity: FsckSeverity) -> usize {
    findings
        .iter()
        .filter(|finding| finding.severity == severity)
        .map(|finding| finding.inode)
        .collect::<BTreeSet<u64>>()
        .len()
}

/// Waits for the end of a check.
async fn wait(volume: &Volume, partition: u32, run: u64) -> Result<FsckProgress> {
    let shown = std::io::stderr().is_terminal();
    loop {
        let now = volume.fsck_progress(partition, run, 0).await?;
        match now.state {
            FsckState::Running => {
                if shown {
                    eprint!(
                        "\rp{partition}: {}: {} entries, {} chunks, {} findings\x1b[K",
                        now.stage, now.steps, now.chunks, now.found
                    );
                }
                tokio::time::sleep(POLL).await;
            }
            FsckState::Done => {
                if shown {
                    eprint!("\r\x1b[K");
                }
                return Ok(now);
            }
            FsckState::Failed => {
                let (name, why) = (volume.name(), now.message);
                let text = format!("the check of volume {name} was not finished by partition p{partition}: {why}");
                return Err(CliError::refused(Exit::Other, text));
            }
        }
    }
}

fn severity(finding: &FsckFinding) -> &'static str {
    match finding.severity {
        FsckSeverity::Lost => "lost",
        FsckSeverity::Unavailable => "unavailable",
        FsckSeverity::Degraded => "degraded",
        FsckSeverity::Note => "note",
        FsckSeverity::Wrong => "wrong",
    }
}

/// The findings that a person is shown: the worst of all, then a sum of the rest for each severity.
fn shown(findings: &[FsckFinding], all: bool) -> (Vec<&FsckFinding>, Vec<String>) {
    let mut sorted: Vec<&FsckFinding> = findings.iter().collect();
    if all || findings.len() <= SHOWN_MAX {
        return (sorted, Vec::new());
    }
    let rank = |finding: &FsckFinding| {
        WORST_FIRST.iter().position(|one| *one == severity(finding)).unwrap_or(WORST_FIRST.len())
    };
    // What people use comes before what they threw away.
    sorted.sort_by_key(|finding| (rank(finding), in_trash(finding)));
    let rest = sorted.split_off(SHOWN_MAX);
    let sums = WORST_FIRST.iter().filter_map(|name| {
        let count = rest.iter().filter(|finding| severity(finding) == *name).count();
        (count > 0).then(|| match *name {
            "note" => format!("{count} more notes"),
            name => format!("{count} more that are {name}"),
        })
    });
    (sorted, sums.collect())
}

fn in_trash(finding: &FsckFinding) -> bool {
    finding.path.starts_with(b"/.trash/")
}

fn show(context: &Context, volume: &str, end: &Sum, findings: &[FsckFinding]) -> Result<()> {
    let (findings_shown, sums) = shown(findings, context.out.is_json());
    for finding in findings_shown {
        let path = String::from_utf8_lossy(&finding.path);
        if context.out.is_json() {
            context.out.json(&json!({
                "volume": volume, "path": path, "inode": finding.inode, "severity": severity(finding),
                "finding": finding.text, "mended": finding.mended,
            }))?;
            continue;
        }
        let name = match (finding.path.is_empty(), finding.inode) {
            (false, _) => context.out.name(&finding.path),
            (true, 0) => b"(the volume)".to_vec(),
            (true, inode) => format!("(inode {inode}, without a name)").into_bytes(),
        };
        let mended = if finding.mended { " (mended)" } else { "" };
        let text = format!(": {}: {}{mended}", severity(finding), finding.text);
        context.out.line([name.as_slice(), text.as_bytes()].concat())?;
    }
    if context.out.is_json() {
        return context.out.json(&json!({
            "volume": volume, "inodes": end.inodes, "directories": end.directories, "chunks": end.chunks,
            "findings": end.found, "listed": findings.len(),
        }));
    }
    if !sums.is_empty() {
        context.out.line(format!("… and {}; cairn --json admin fsck {volume} lists all", sums.join(", ")))?;
    }
    context.out.line(format!(
        "volume {volume}: {} inodes ({} directories), {} chunks looked at, {} findings",
        end.inodes, end.directories, end.chunks, end.found
    ))
}

fn verdict(volume: &str, end: &Sum, findings: &[FsckFinding], notes: &[String], away: &str) -> Result<()> {
    if end.found == 0 && notes.is_empty() {
        return Ok(());
    }
    // A very long list is cut.
    let listed = findings.iter().filter(|finding| finding.severity != FsckSeverity::Note).count();
    let least = if end.found > listed as u64 { "at least " } else { "" };
    let (lost, unread) = (files(findings, FsckSeverity::Lost), files(findings, FsckSeverity::Unavailable));
    let open = findings.iter().filter(|finding| finding.severity == FsckSeverity::Wrong && !finding.mended).count();
    let count = |files: usize| if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    let has = if lost == 1 { "has" } else { "have" };
    let mut texts = Vec::new();
    if lost > 0 {
        texts.push(format!("{least}{} {has} lost bytes; restore from elsewhere, or remove, what is lost", count(lost)));
    }
    if open > 0 {
        texts.push(format!("{open} things are wrong; cairn admin fsck --repair mends what can be mended"));
    }
    if unread > 0 {
        let why = match away {
            "" => "too few members of their placement groups serve, see cairn admin status".to_owned(),
            one if !one.contains(", ") && !one.contains(" more") => {
                format!("{one} is away; start or mend it, the data comes back with it")
            }
            names => format!("{names} are away; start or mend them, the data comes back with them"),
        };
        texts.push(format!("{least}{} cannot be read now: {why}", count(unread)));
    }
    let exit = match (lost + open, unread) {
        (0, 0) if files(findings, FsckSeverity::Degraded) == 0 && notes.is_empty() => return Ok(()),
        (0, 0) => Exit::Partial,
        (0, _) => Exit::Unavailable,
        _ => Exit::Damaged,
    };
    texts.extend_from_slice(notes);
    if exit == Exit::Partial && files(findings, FsckSeverity::Degraded) > 0 {
        texts.push(
            "everything can be read; some files have fewer copies than they should, see cairn admin status".to_owned(),
        );
    }
    Err(CliError::refused(exit, format!("volume {volume}: {}", texts.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding_of(inode: u64, severity: FsckSeverity) -> FsckFinding {
        FsckFinding { inode, path: Vec::new(), text: String::new(), severity, mended: false }
    }

    /// Thousands of lines about copies that are missing would hide the file that is lost.
    #[test]
    fn many_findings_are_summed_up_the_worst_first() {
        let finding = |inode, severity| finding_of(inode, severity);
        let mut findings: Vec<FsckFinding> = (0..3000).map(|inode| finding(inode, FsckSeverity::Degraded)).collect();
        findings.push(finding(9000, FsckSeverity::Lost));
        let (some, sums) = shown(&findings, false);
        assert_eq!(
            (some.len(), some[0].inode, sums),
            (SHOWN_MAX, 9000, vec!["2951 more that are degraded".to_owned()])
        );
        let path = |inode, path: &str| FsckFinding { path: path.into(), ..finding(inode, FsckSeverity::Degraded) };
        let mut named: Vec<FsckFinding> = (0..90).map(|inode| path(inode, "/.trash/0/a")).collect();
        named.push(path(7000, "/home/a"));
        assert_eq!(shown(&named, false).0[0].inode, 7000, "what was thrown away would hide it");
        assert_eq!(shown(&findings, true).0.len(), 3001, "programs get all");
        assert_eq!(shown(&findings[..10], false).0.len(), 10);
    }

    /// A person would look for files that are whole.
    #[test]
    fn a_file_that_lacks_several_chunks_is_one_file() {
        let lost = |inode, severity| finding_of(inode, severity);
        let findings = [
            lost(7, FsckSeverity::Lost),
            lost(7, FsckSeverity::Lost),
            lost(8, FsckSeverity::Degraded),
            lost(9, FsckSeverity::Lost),
        ];
        let said = |found, findings: &[FsckFinding]| {
            let end = Sum { found, ..Sum::default() };
            verdict("v", &end, findings, &[], "").expect_err("damaged").to_string()
        };
        assert!(said(4, &findings).contains("volume v: 2 files have lost bytes"), "{}", said(4, &findings));
        assert!(said(1, &findings[..1]).contains("1 file has lost bytes"));
        assert!(said(20_000, &findings).contains("at least 2 files"));
    }

    /// A check that left something out would count as one that found nothing.
    #[test]
    fn what_was_not_checked_is_said() {
        let end = Sum::default();
        verdict("v", &end, &[], &[], "").expect("whole");
        let error = verdict("v", &end, &[], &["p7: not checked".to_owned()], "").expect_err("something was left out");
        assert_eq!((error.exit(), error.to_string().contains("p7: not checked")), (Exit::Partial, true), "{error}");
    }

    /// A script would go on with files that nobody can read; or take nodes that are away for lost data.
    #[test]
    fn what_cannot_be_read_now_is_said() {
        let finding = |inode, severity| finding_of(inode, severity);
        let said = |findings: &[FsckFinding], away: &str| {
            let end = Sum { found: findings.len() as u64, ..Sum::default() };
            let error = verdict("v", &end, findings, &[], away).expect_err("a finding");
            (error.exit(), error.to_string())
        };
        let (degraded, away, lost) =
            (finding(8, FsckSeverity::Degraded), finding(7, FsckSeverity::Unavailable), finding(9, FsckSeverity::Lost));
        let (exit, text) = said(&[away.clone(), away.clone(), degraded.clone()], "n17, d3 on n18");
        assert_eq!(exit, Exit::Unavailable);
        assert!(text.contains("volume v: 1 file cannot be read now: n17, d3 on n18 are away"), "{text}");
        assert!(!text.contains("everything"), "{text}");
        assert!(said(std::slice::from_ref(&away), "").1.contains("see cairn admin status"));
        let (exit, text) = said(&[lost, away], "n17");
        assert!(
            exit == Exit::Damaged && text.contains("1 file has lost bytes") && text.contains("1 file cannot"),
            "{text}"
        );
        let (exit, text) = said(&[degraded], "");
        assert!(exit == Exit::Partial && text.contains("everything can be read"), "{text}");
    }
}
