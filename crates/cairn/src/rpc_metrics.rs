//! Metrics of the RPC port.
use cairn_rpc::{CloseReason, LATENCY_BOUNDS_US, ServerStats};
use cairn_telemetry::Samples;
use std::sync::atomic::Ordering::Relaxed;

/// Appends the samples of a server.
pub fn sample(stats: &ServerStats, samples: &mut Samples) {
    let open = stats.connections_open.load(Relaxed);
    samples.gauge("cairn_rpc_connections_open", "Connections open now.", &[], open as f64);
    let plain = stats.connections_plain.load(Relaxed);
    samples.gauge("cairn_rpc_connections_plain", "Of them those without TLS.", &[], plain as f64);
    let counters = [
        ("cairn_rpc_connections", "Connections accepted.", &stats.connections_total),
        ("cairn_rpc_requests", "Requests taken.", &stats.requests),
        ("cairn_rpc_error_answers", "Requests answered with an error.", &stats.error_answers),
        ("cairn_rpc_received_bytes", "Bytes received.", &stats.bytes_in),
        ("cairn_rpc_sent_bytes", "Bytes sent.", &stats.bytes_out),
        ("cairn_rpc_accept_errors", "Connections that could not be accepted.", &stats.accept_errors),
    ];
    for (name, help, counter) in counters {
        samples.counter(name, help, &[], counter.load(Relaxed));
    }
    for reason in CloseReason::ALL {
        let labels = [("reason", reason.name())];
        samples.counter("cairn_rpc_connections_closed", "Connections ended, by reason.", &labels, stats.closed(reason));
    }
    for of in stats.latency.all() {
        let (labels, measured) =
            ([("operation", of.opcode.name())], (&LATENCY_BOUNDS_US[..], &of.buckets[..], of.sum_us));
        let help = "Time from the arrival of a request to its answer.";
        samples.histogram("cairn_rpc_request_seconds", help, &labels, measured);
    }
}

/// Which build this is: always 1, what counts is in the labels.
pub fn sample_build(samples: &mut Samples) {
    let level = cairn_types::FEATURE_LEVEL.to_string();
    let labels =
        [("version", env!("CARGO_PKG_VERSION")), ("commit", env!("CAIRN_COMMIT")), ("feature_level", level.as_str())];
    samples.gauge("cairn_build_info", "The build of this process.", &labels, 1.0);
}
