//! The request log of a node: records of its RPC port go into a ring of files in its directory.
use super::NodeSpec;
use anyhow::Context;
use cairn_rpc::RequestSink;
use cairn_telemetry::{Registry, RequestRing, Samples};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

struct Sink(Arc<RequestRing>);

impl RequestSink for Sink {
    fn put(&self, records: &mut Vec<u8>) {
        self.0.put(records);
    }
}

pub(super) fn start(spec: &NodeSpec) -> anyhow::Result<Option<Arc<RequestRing>>> {
    if spec.request_log_bytes == 0 {
        return Ok(None);
    }
    let dir = spec.dir.join("requests");
    let ring = RequestRing::start(&dir, spec.request_log_bytes).with_context(|| {
        format!(
            "the request log in {} cannot be begun; mend the directory, or write request_log_mib = 0",
            dir.display()
        )
    })?;
    Ok(Some(Arc::new(ring)))
}

pub(super) fn sink(ring: Arc<RequestRing>) -> Arc<dyn RequestSink> {
    Arc::new(Sink(ring))
}

pub(super) fn register(registry: &Registry, ring: &RequestRing) {
    let stats = ring.stats();
    registry.register(
        &[],
        Arc::new(move |samples: &mut Samples| {
            let (written, dropped) = (stats.written_bytes.load(Relaxed), stats.dropped_batches.load(Relaxed));
            samples.counter("cairn_request_log_bytes", "Bytes of records of requests written.", &[], written);
            samples.counter(
                "cairn_request_log_dropped",
                "Times that records of requests were dropped, because the disk was too slow, full or broken.",
                &[],
                dropped,
            );
        }),
    );
}
