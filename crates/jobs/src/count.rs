//! [`Count`]: how far a job is: what became of each file, and how much of those that are worked on is done.
//!
//! Directories and links are no files: they are counted only where they fail.
use cairn_client::job::JobProgress;
use cairn_client::{ClientError, Conversion, ConversionControl, EncodeOutcome, EncodedPart, TreeNode};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Shared by all that work on a job.
#[derive(Default)]
pub(crate) struct Count {
    state: Mutex<State>,
    /// Told to stop.
    control: ConversionControl,
}

#[derive(Default)]
struct State {
    progress: JobProgress,
    /// Files that are worked on, by the order in which they were begun.
    under_way: BTreeMap<u64, ConversionControl>,
    begun: u64,
}

/// A file that is worked on.
pub(crate) struct Begun {
    number: u64,
    is_file: bool,
    bytes: u64,
    pub(crate) control: ConversionControl,
}

fn is_file(node: &TreeNode) -> bool {
    node.attributes.is_regular()
}

impl Count {
    /// For a report.
    pub(crate) fn progress(&self) -> JobProgress {
        let state = self.state.lock();
        let bytes_under_way = state.under_way.values().map(ConversionControl::written).sum();
        JobProgress { bytes_under_way, ..state.progress.clone() }
    }

    pub(crate) fn stop(&self) {
        self.control.stop();
    }
    pub(crate) fn is_stopped(&self) -> bool {
        self.control.is_stopped()
    }
    /// Told to stop with the job.
    pub(crate) fn control(&self) -> ConversionControl {
        self.control.of_another()
    }

    /// A thing that the job will come to.
    pub(crate) fn found(&self, node: &TreeNode) {
        if is_file(node) {
            let mut state = self.state.lock();
            state.progress.files_total += 1;
            state.progress.bytes_total += node.attributes.stored_bytes;
        }
    }
    /// Everything was found.
    pub(crate) fn total_known(&self) {
        self.state.lock().progress.total_known = true;
    }

    pub(crate) fn begin(&self, node: &TreeNode) -> Begun {
        let mut state = self.state.lock();
        state.begun += 1;
        let (number, control) = (state.begun, self.control.of_another());
        state.under_way.insert(number, control.clone());
        state.progress.at.clone_from(&node.path);
        Begun { number, is_file: is_file(node), bytes: node.attributes.stored_bytes, control }
    }

    /// What became of it. What is gone meanwhile needs no conversion.
    pub(crate) fn end(&self, begun: &Begun, path: &[u8], outcome: &Result<Conversion, ClientError>) {
        if let Err(error) = outcome {
            tracing::info!(path = ?String::from_utf8_lossy(path), ?error, "not converted");
        }
        let mut state = self.state.lock();
        state.under_way.remove(&begun.number);
        let progress = &mut state.progress;
        match outcome {
            Ok(Conversion::Stopped) => {}
            Err(error) if !(error.is_not_found() || error.errno() == 116) => {
                progress.bytes_passed += begun.bytes;
                failed(progress, error);
            }
            _ if !begun.is_file => {}
            Ok(Conversion::Done { bytes }) => {
                progress.files_seen += 1;
                progress.files_done += 1;
                progress.bytes_done += bytes;
            }
            Ok(Conversion::Kept) | Err(_) => {
                progress.files_seen += 1;
                progress.files_kept += 1;
                progress.bytes_passed += begun.bytes;
            }
        }
    }

    /// What encoding came to, in the words of a conversion.
    pub(crate) fn encoded(&self, path: &[u8], part: EncodedPart) -> Result<Conversion, ClientError> {
        self.state.lock().progress.bytes_freed += part.freed;
        match part.outcome {
            EncodeOutcome::Done => Ok(Conversion::Done { bytes: part.moved }),
            EncodeOutcome::NotWaiting | EncodeOutcome::Kept | EncodeOutcome::Shared => Ok(Conversion::Kept),
            EncodeOutcome::Left | EncodeOutcome::More(_) if self.is_stopped() => Ok(Conversion::Stopped),
            EncodeOutcome::Left | EncodeOutcome::More(_) => {
                Err(ClientError::Changed { what: String::from_utf8_lossy(path).into_owned() })
            }
        }
    }

    /// A directory could not be read.
    pub(crate) fn not_seen(&self, error: &ClientError) {
        if !(error.is_not_found() || error.errno() == 116) {
            failed(&mut self.state.lock().progress, error);
        }
    }
}

fn failed(progress: &mut JobProgress, error: &ClientError) {
    progress.files_seen += 1;
    progress.files_failed += 1;
    progress.last_failure = error.to_string();
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::attributes::Attributes;

    fn node(mode: u32, bytes: u64) -> TreeNode {
        let attributes = Attributes { mode, stored_bytes: bytes, ..Attributes::default() };
        TreeNode { path: b"/x".to_vec(), depth: 1, parent: 1, attributes }
    }

    /// Directories would be called files, and a job of one large file would stand at nothing from its beginning to its
    /// end.
    #[test]
    fn files_are_counted_and_their_parts_as_well() {
        let count = Count::default();
        let nodes = [node(0o040_755, 0), node(0o100_644, 500), node(0o100_644, 300), node(0o120_777, 0)];
        nodes.iter().for_each(|node| count.found(node));
        let begun: Vec<Begun> = nodes.iter().map(|node| count.begin(node)).collect();
        let is = |count: &Count| {
            let p = count.progress();
            (p.files_done, p.files_kept, p.files_failed, p.bytes_done, p.bytes_passed)
        };
        assert_eq!((count.progress().files_total, count.progress().bytes_total), (2, 800));
        assert!(!count.progress().total_known);
        count.end(&begun[0], b"/x", &Ok(Conversion::Done { bytes: 0 }));
        count.end(&begun[3], b"/x", &Ok(Conversion::Kept));
        assert_eq!(is(&count), (0, 0, 0, 0, 0));
        count.end(&begun[1], b"/x", &Ok(Conversion::Done { bytes: 500 }));
        count.end(&begun[2], b"/x", &Ok(Conversion::Kept));
        assert_eq!(is(&count), (1, 1, 0, 500, 300));
        let directory = count.begin(&nodes[0]);
        count.end(&directory, b"/x", &Err(ClientError::protocol("/x", "no")));
        assert_eq!(is(&count), (1, 1, 1, 500, 300));
        count.stop();
        let last = count.begin(&nodes[1]);
        assert!(last.control.is_stopped() && count.is_stopped());
        count.end(&last, b"/x", &Ok(Conversion::Stopped));
        assert_eq!((is(&count), count.progress().files_seen), ((1, 1, 1, 500, 300), 3));
    }
}
