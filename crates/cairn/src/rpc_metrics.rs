//! Metrics of the RPC port.
use cairn_rpc::{CloseReason, ServerStats};
use cairn_telemetry::Samples;
use std::sync::atomic::Ordering::Relaxed;

/// Appends the samples of a server.
pub fn sample(stats: &ServerStats, samples: &mut Samples) {
    let open = stats.connections_open.load(Relaxed);
    samples.gauge("cairn_rpc_connections_open", "Connections open now.", &[], open as f64);
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
}
