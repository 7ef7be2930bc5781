//! How many bytes data nodes encoded file by file, as the metrics of partitions' leaders tell. What they encoded
//! together is in chunks of whole shards, which files name.

use std::sync::Arc;

use cairn_meta::MetaServer;
use cairn_telemetry::Registry;

use crate::cluster::Cluster;

const ALL: &str = "cairn_meta_encoded_bytes_total{";
const TOGETHER: &str = "cairn_meta_encoded_together_bytes_total{";

/// Bytes that became rows file by file, since the role started.
pub fn by_file(meta: &Arc<MetaServer>) -> u64 {
    let registry = Registry::new();
    registry.register(&[("node", "this")], meta.metrics());
    let text = registry.render().expect("text has room");
    value(&text, ALL).saturating_sub(value(&text, TOGETHER))
}

/// The value of a counter, which has to be there.
fn value(text: &str, begins: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(begins));
    let number = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    number.unwrap_or_else(|| panic!("no number is behind {begins} in {text}")) as u64
}

impl Cluster {
    /// What was encoded file by file so far.
    pub fn encoded_by_file(&self) -> u64 {
        self.heads.iter().map(|head| head.lock().encoded_by_file()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A count would be that of another counter, or always nothing.
    #[test]
    fn a_counter_is_found_by_its_whole_name() {
        let registry = Registry::new();
        let source = |samples: &mut cairn_telemetry::Samples| {
            samples.counter("cairn_meta_encoded_bytes", "All.", &[], 7);
            samples.counter("cairn_meta_encoded_together_bytes", "Of them.", &[], 5);
        };
        registry.register(&[("node", "this")], Arc::new(source));
        let text = registry.render().expect("text has room");
        assert_eq!((value(&text, ALL), value(&text, TOGETHER)), (7, 5));
    }
}
