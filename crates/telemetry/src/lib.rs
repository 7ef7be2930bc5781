//! What a process tells about itself: structured logs, `/metrics`, `/healthz`, resource use, the request log.
//!
//! Servers keep plain atomic counters and describe them through [`Samples`] when somebody scrapes; nothing here but the
//! handing over of records of requests ([`RequestRing::put`]) is on a hot path. It knows no rules of the file system.
pub mod http;
pub mod http_conns;
pub mod http_door;
pub mod logging;
pub mod process;
pub mod request_ring;
pub mod samples;

pub use http::{HealthCheck, HttpServer};
pub use http_conns::HttpLimits;
pub use http_door::{Door, Entered, OpenDoor, Visitor, Wire};
pub use logging::{LogConfig, LogFormat, init_logging};
pub use process::ProcessUse;
pub use request_ring::{REQUEST_RING_MIN, RequestRing, RequestRingStats};
pub use samples::{MetricSource, Registry, Samples};
