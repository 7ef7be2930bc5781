//! Metrics at scrape time: sources append samples, the registry renders them as Prometheus text.
//!
//! Invariant: a metric name has one kind and one help text; samples of one name are rendered together.
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Something that has metrics: called at each scrape.
pub type MetricSource = Arc<dyn Fn(&mut Samples) + Send + Sync>;

type Labels = Vec<(String, String)>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn metric_type(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
            Self::Histogram => MetricType::Histogram,
        }
    }
}

enum Value {
    Number(f64),
    /// Sum of all values; upper ends of the buckets and how many are in each of them alone.
    Histogram(f64, Vec<(f64, u64)>),
}

struct Family {
    help: &'static str,
    kind: Kind,
    values: Vec<(Labels, Value)>,
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
        self.push(name, help, labels, Value::Number(value as f64), Kind::Counter);
    }
    /// A time that only grows, in seconds; the name ends in `_seconds`, to which `_total` is added.
    pub fn counter_seconds(&mut self, name: &str, help: &'static str, labels: &[(&str, &str)], value: Duration) {
        debug_assert!(name.ends_with("_seconds"), "{name} is in seconds");
        self.push(name, help, labels, Value::Number(value.as_secs_f64()), Kind::Counter);
    }
    /// A value that rises and falls.
    pub fn gauge(&mut self, name: &str, help: &'static str, labels: &[(&str, &str)], value: f64) {
        self.push(name, help, labels, Value::Number(value), Kind::Gauge);
    }
    /// Times in seconds: how many were in each bucket alone, the last of which has no upper end, and their sum.
    pub fn histogram(
        &mut self,
        name: &str,
        help: &'static str,
        labels: &[(&str, &str)],
        (bounds_us, counts, sum_us): (&[u64], &[u64], u64),
    ) {
        debug_assert!(name.ends_with("_seconds"), "{name} is in seconds");
        assert_eq!(counts.len(), bounds_us.len() + 1, "{name}: the last bucket has no upper end");
        let ends = bounds_us.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
        let buckets = ends.zip(counts.iter().copied()).collect();
        self.push(name, help, labels, Value::Histogram(sum_us as f64 / 1e6, buckets), Kind::Histogram);
    }

    fn push(&mut self, name: &str, help: &'static str, labels: &[(&str, &str)], value: Value, kind: Kind) {
        let mut all = self.base.clone();
        all.extend(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        let family = self.families.entry(name.to_owned()).or_insert_with(|| Family { help, kind, values: Vec::new() });
        debug_assert_eq!(family.kind, kind, "metric {name} has two kinds");
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
            let mut metric = encoder.encode_descriptor(name, family.help, None, family.kind.metric_type())?;
            for (labels, value) in &family.values {
                let mut one = metric.encode_family(labels)?;
                match (value, family.kind) {
                    (Value::Number(value), Kind::Counter) => ConstCounter::new(*value).encode(one)?,
                    (Value::Number(value), _) => ConstGauge::new(*value).encode(one)?,
                    (Value::Histogram(sum, buckets), _) => {
                        let count = buckets.iter().map(|(_, count)| count).sum();
                        one.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)?;
                    }
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

    /// Prometheus would not take it for a histogram: no quantile could be asked for.
    #[test]
    fn a_histogram_has_cumulative_buckets_a_sum_and_a_count() {
        let registry = Registry::new();
        registry.register(
            &[("role", "meta")],
            Arc::new(|s| s.histogram("x_seconds", "Times.", &[], (&[1_000, 2_000_000], &[3, 2, 1], 7_500_000))),
        );
        let text = registry.render().expect("rendering to a String cannot fail");
        for line in [
            "# TYPE x_seconds histogram",
            "x_seconds_sum{role=\"meta\"} 7.5",
            "x_seconds_count{role=\"meta\"} 6",
            "x_seconds_bucket{le=\"0.001\",role=\"meta\"} 3",
            "x_seconds_bucket{le=\"2.0\",role=\"meta\"} 5",
            "x_seconds_bucket{le=\"+Inf\",role=\"meta\"} 6",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
