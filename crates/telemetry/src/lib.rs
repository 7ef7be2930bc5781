//! What a process tells about itself: structured logs, `/metrics`, `/healthz`, resource use.
//!
//! Servers keep plain atomic counters and describe them through [`Samples`] when somebody scrapes; nothing here is on a
//! hot path. It knows no rules of the file system.
pub mod http;
pub mod logging;
pub mod process;
pub mod samples;

pub use http::{HealthCheck, HttpServer};
pub use logging::{LogConfig, LogFormat, init_logging};
pub use process::ProcessUse;
pub use samples::{MetricSource, Registry, Samples};
