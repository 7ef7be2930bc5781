//! [`Encoded`]: how many bytes data nodes encoded for a leader of partitions, as its metrics tell.

use std::fmt;
use std::ops::Add;
use std::sync::Arc;

use cairn_meta::MetaServer;
use cairn_telemetry::Registry;

use crate::cluster::Cluster;

const ALL: &str = "cairn_meta_encoded_bytes_total{";
const TOGETHER: &str = "cairn_meta_encoded_together_bytes_total{";

/// Bytes that became rows or shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Encoded {
    /// In stripe groups, where they lay.
    pub together: u64,
    /// File by file.
    pub by_file: u64,
}

impl Encoded {
    /// Since the role started.
    pub fn of(meta: &Arc<MetaServer>) -> Self {
        let registry = Registry::new();
        registry.register(&[("node", "this")], meta.metrics());
        let text = registry.render().expect("text has room");
        let together = value(&text, TOGETHER);
        Self { together, by_file: value(&text, ALL).saturating_sub(together) }
    }
}

/// The value of a counter, which has to be there.
fn value(text: &str, begins: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(begins));
    let number = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    number.unwrap_or_else(|| panic!("no number is behind {begins} in {text}")) as u64
}

impl Add for Encoded {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { together: self.together + other.together, by_file: self.by_file + other.by_file }
    }
}

impl fmt::Display for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes encoded together {}, bytes encoded by file {}", self.together, self.by_file)
    }
}

impl Cluster {
    /// What was encoded so far.
    pub fn encoded(&self) -> Encoded {
        self.heads.iter().map(|head| head.lock().encoded()).fold(Encoded::default(), Add::add)
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
