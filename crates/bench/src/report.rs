//! Rows of results, printed as a table line each or as JSON lines.
use crate::cpu::CpuUsed;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// Largest latency that is told apart, in microseconds.
const LATENCY_MAX_US: u64 = 60_000_000;

/// Latencies in microseconds.
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).expect("the bounds are valid")
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub what: String,
    pub clients: usize,
    pub in_flight: usize,
    pub operations: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub per_second: f64,
    pub mb_per_second: f64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
    /// CPU microseconds an operation, or CPU seconds a GB when bytes were moved.
    pub client_cpu: f64,
    pub server_cpu: f64,
    pub errors: u64,
}

impl Row {
    pub fn new(
        what: &str,
        (clients, in_flight): (usize, usize),
        (operations, bytes, errors): (u64, u64, u64),
        took: Duration,
        latency: &Histogram<u64>,
        cpu: CpuUsed,
    ) -> Row {
        let seconds = took.as_secs_f64().max(1e-9);
        let scale = if bytes > 0 { 1e3 / bytes as f64 } else { 1.0 / operations.max(1) as f64 };
        Row {
            what: what.into(),
            clients,
            in_flight,
            operations,
            bytes,
            seconds,
            per_second: operations as f64 / seconds,
            mb_per_second: bytes as f64 / seconds / 1e6,
            p50_us: latency.value_at_quantile(0.5),
            p99_us: latency.value_at_quantile(0.99),
            max_us: latency.max(),
            client_cpu: cpu.client_us as f64 * scale,
            server_cpu: cpu.servers_us as f64 * scale,
            errors,
        }
    }

    pub fn print(&self, json: bool) {
        if json {
            println!("{}", serde_json::to_string(self).expect("a row is plain data"));
            return;
        }
        let (rate, unit) = match self.bytes {
            0 => (format!("{:>10.0}/s", self.per_second), "µs/op"),
            _ => (format!("{:>8.0} MB/s {:>8.0}/s", self.mb_per_second, self.per_second), "s/GB"),
        };
        println!(
            "{:<22} {:>4} × {:<4} {rate}  p50 {:>7} µs  p99 {:>8} µs  max {:>8} µs  CPU client {:>6.2} servers {:>6.2} {unit}{}",
            self.what,
            self.clients,
            self.in_flight,
            self.p50_us,
            self.p99_us,
            self.max_us,
            self.client_cpu,
            self.server_cpu,
            if self.errors > 0 { format!("  ERRORS {}", self.errors) } else { String::new() },
        );
    }
}
