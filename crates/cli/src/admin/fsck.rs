//! `cairn admin fsck`: proof that a volume is whole, by path: names, links, totals, quotas, and for every extent the
//! chunk with the redundancy of its layout, as data nodes list it.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use cairn_client::{RemotePath, Volume};
use cairn_wire::meta::{FsckFinding, FsckRequest, FsckResponse};
use clap::Args;
use serde_json::json;
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::time::Duration;

/// Between two questions how the check goes on.
const POLL: Duration = Duration::from_millis(300);
const RUNNING: u32 = 1;
const DONE: u32 = 2;
/// Severities of findings.
const DEGRADED: u32 = 2;
const LOST: u32 = 3;

#[derive(Args, Debug)]
pub struct FsckArgs {
    /// The volume
    #[arg(default_value = "default")]
    volume: String,
    /// Mend what can be mended: totals, quotas, numbers of links; what nothing leads to goes to /lost+found
    #[arg(long)]
    repair: bool,
}

impl FsckArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let at = RemotePath { cluster: None, volume: self.volume.clone(), path: b"/".to_vec() };
        let volume = context.volume(&at).await?;
        let started = volume.fsck(FsckRequest { start: true, repair: self.repair, ..Default::default() }).await?;
        let end = wait(&volume, started.run).await?;
        let mut findings = end.findings.clone();
        let mut more = end.more;
        while more {
            let findings_from = u32::try_from(findings.len()).unwrap_or(u32::MAX);
            let page = volume.fsck(FsckRequest { run: started.run, findings_from, ..Default::default() }).await?;
            more = page.more && !page.findings.is_empty();
            findings.extend(page.findings);
        }
        show(context, &self.volume, &end, &findings)?;
        verdict(&self.volume, &end, &findings)
    }
}

/// Waits for the end of a check.
async fn wait(volume: &Volume, run: u64) -> Result<FsckResponse> {
    let shown = std::io::stderr().is_terminal();
    loop {
        let now = volume.fsck(FsckRequest { run, ..Default::default() }).await?;
        match now.state {
            RUNNING => {
                if shown {
                    eprint!(
                        "\r{}: {} entries, {} chunks, {} findings\x1b[K",
                        now.stage, now.steps, now.chunks, now.found
                    );
                }
                tokio::time::sleep(POLL).await;
            }
            DONE => {
                if shown {
                    eprint!("\r\x1b[K");
                }
                return Ok(now);
            }
            _ => {
                let text = format!("the check of volume {} was not finished: {}", volume.name(), now.message);
                return Err(CliError::refused(Exit::Other, text));
            }
        }
    }
}

fn severity(finding: &FsckFinding) -> &'static str {
    match finding.severity {
        LOST => "lost",
        DEGRADED => "degraded",
        _ => "wrong",
    }
}

fn show(context: &Context, volume: &str, end: &FsckResponse, findings: &[FsckFinding]) -> Result<()> {
    for finding in findings {
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
    context.out.line(format!(
        "volume {volume}: {} inodes ({} directories), {} chunks looked at, {} findings",
        end.inodes, end.directories, end.chunks, end.found
    ))
}

fn verdict(volume: &str, end: &FsckResponse, findings: &[FsckFinding]) -> Result<()> {
    if end.found == 0 {
        return Ok(());
    }
    // A file may lack bytes in several placement groups, and a very long list is cut.
    let inodes = findings.iter().filter(|finding| finding.severity == LOST).map(|finding| finding.inode);
    let lost = inodes.collect::<BTreeSet<u64>>().len();
    let least = if end.found > findings.len() as u64 { "at least " } else { "" };
    let open = findings.iter().filter(|finding| finding.severity < DEGRADED && !finding.mended).count();
    let files = if lost == 1 { "1 file has".to_owned() } else { format!("{lost} files have") };
    let (exit, text) = if lost > 0 {
        (Exit::Damaged, format!("{least}{files} lost bytes; restore from elsewhere, or remove, what is lost"))
    } else if open > 0 {
        (Exit::Damaged, format!("{open} things are wrong; cairn admin fsck --repair mends what can be mended"))
    } else if findings.iter().any(|finding| finding.severity == DEGRADED) {
        let text = "everything can be read; some files have fewer copies than they should, see cairn admin status";
        (Exit::Partial, text.to_owned())
    } else {
        return Ok(());
    };
    Err(CliError::refused(exit, format!("volume {volume}: {text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A person would look for files that are whole.
    #[test]
    fn a_file_that_lacks_several_chunks_is_one_file() {
        let lost = |inode, severity| FsckFinding { inode, severity, ..FsckFinding::default() };
        let findings = [lost(7, LOST), lost(7, LOST), lost(8, DEGRADED), lost(9, LOST)];
        let said = |found, findings: &[FsckFinding]| {
            verdict("v", &FsckResponse { found, ..FsckResponse::default() }, findings).expect_err("damaged").to_string()
        };
        assert!(said(4, &findings).contains("volume v: 2 files have lost bytes"), "{}", said(4, &findings));
        assert!(said(1, &findings[..1]).contains("1 file has lost bytes"));
        assert!(said(20_000, &findings).contains("at least 2 files"));
    }
}
