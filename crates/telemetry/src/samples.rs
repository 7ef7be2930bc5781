//! Metrics at scrape time: sources append samples, the registry renders them as Prometheus text.
//!
//! Invariant: a metric name has one kind and one help text; samples of one name are rendered together.
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Something that has metrics: called at each scrape.
pub type MetricSource = Arc<dyn Fn(&mut Samples) + Send + Sync>;

type Labels = Vec<(String, String)>;

struct Family {
    help: &'static str,
    counter: bool,
    values: Vec<(Labels, f64)>,
}

/// The samples of one scrape.
#[derive(Default)]
pub struct Samples {
    families: BTreeMap<String, Family>,
    base: Labels,
}

impl Samples {
    /// A value that only rises; `_total` is added to the name.
    pub fn counter(&mut self, name: &str, help: &'static str, labels: &[(&str, &str)], value: u64) {
        self.push(name, help, labels, value as f64, true);
    }
    /// A value that rises and falls.
    pub fn gauge(&mut self, name: &str, help: &'static str, labels: &[(&str, &str)], value: f64) {
        self.push(name, help, labels, value, false);
    }

    fn push(&mut self, name: &str, help: &'static str, labels: &[(&str, &str)], value: f64, counter: bool) {
        let mut all = self.base.clone();
        all.extend(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        let family =
            self.families.entry(name.to_owned()).or_insert_with(|| Family { help, counter, values: Vec::new() });
        debug_assert_eq!(family.counter, counter, "metric {name} has two kinds");
        family.values.push((all, value));
    }
}

/// All metric sources of a process.
#[derive(Clone, Default)]
pub struct Registry {
    sources: Arc<Mutex<Vec<(Labels, MetricSource)>>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({} sources)", self.sources.lock().len())
    }
}

impl Registry {
    pub fn new() -> Self {
        Self::default()
    }
    /// Adds a source; `labels` go on every sample of it (such as the role and the node).
    pub fn register(&self, labels: &[(&str, &str)], source: MetricSource) {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        self.sources.lock().push((labels, source));
    }
    /// The Prometheus (OpenMetrics) text of this moment.
    pub fn render(&self) -> Result<String, fmt::Error> {
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut out = String::new();
        text::encode(&mut out, &registry)?;
        Ok(out)
    }
}

impl Collector for Registry {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let sources = self.sources.lock().clone();
        let mut samples = Samples::default();
        for (labels, source) in sources {
            samples.base = labels;
            source(&mut samples);
        }
        for (name, family) in &samples.families {
            let kind = if family.counter { MetricType::Counter } else { MetricType::Gauge };
            let mut metric = encoder.encode_descriptor(name, family.help, None, kind)?;
            for (labels, value) in &family.values {
                let one = metric.encode_family(labels)?;
                if family.counter {
                    ConstCounter::new(*value).encode(one)?;
                } else {
                    ConstGauge::new(*value).encode(one)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_of_several_sources_are_rendered_together() {
        let registry = Registry::new();
        for node in ["a", "b"] {
            registry.register(
                &[("node", node)],
                Arc::new(|s| {
                    s.counter("cairn_data_appends", "Appends taken.", &[("disk", "d1")], 7);
                    s.gauge("cairn_data_free_bytes", "Free.", &[], 1.5);
                }),
            );
        }
        let text = registry.render().expect("rendering to a String cannot fail");
        assert_eq!(text.matches("# TYPE cairn_data_appends counter").count(), 1, "{text}");
        assert!(text.contains("cairn_data_appends_total{node=\"a\",disk=\"d1\"} 7"), "{text}");
        assert!(text.contains("cairn_data_free_bytes{node=\"b\"} 1.5"), "{text}");
    }
}
