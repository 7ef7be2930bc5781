//! The HTTP port of a process: `/metrics` (Prometheus) and `/healthz` (200 or 503 with a line a role).
use crate::{ProcessUse, Registry};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// One line of `/healthz`: the thing, and `Err` with what is wrong and the next step.
pub type HealthCheck = Arc<dyn Fn() -> (String, Result<(), String>) + Send + Sync>;

#[derive(Clone)]
struct Shared {
    registry: Registry,
    checks: Arc<Mutex<Vec<HealthCheck>>>,
}

/// A running HTTP server; stops when dropped.
pub struct HttpServer {
    address: SocketAddr,
    shared: Shared,
    task: tokio::task::JoinHandle<()>,
}

impl HttpServer {
    /// Binds `address` (port 0 picks one) and serves on the current tokio runtime.
    pub async fn start(address: &str, registry: Registry, checks: Vec<HealthCheck>) -> std::io::Result<HttpServer> {
        let listener = tokio::net::TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        #[allow(clippy::disallowed_methods, reason = "the age of the process for people, not for decisions")]
        let started = Instant::now();
        registry.register(
            &[],
            Arc::new(move |samples| {
                let used = ProcessUse::now();
                let cpu = (used.cpu_user_us + used.cpu_system_us) / 1000;
                samples.counter("cairn_process_cpu_milliseconds", "CPU time used, user and system.", &[], cpu);
                samples.gauge("cairn_process_resident_bytes", "Resident memory.", &[], used.resident_bytes as f64);
                let uptime = started.elapsed().as_secs_f64();
                samples.gauge("cairn_process_uptime_seconds", "Age of the process.", &[], uptime);
            }),
        );
        let shared = Shared { registry, checks: Arc::new(Mutex::new(checks)) };
        let app = axum::Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(health))
            .with_state(shared.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                tracing::error!(%error, "the HTTP port stopped serving; metrics and health are not available until a restart");
            }
        });
        Ok(HttpServer { address, shared, task })
    }
    /// Replaces the lines of `/healthz`: roles that came to run.
    pub fn set_checks(&self, checks: Vec<HealthCheck>) {
        *self.shared.checks.lock() = checks;
    }
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn metrics(State(shared): State<Shared>) -> impl IntoResponse {
    match shared.registry.render() {
        Ok(text) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn health(State(shared): State<Shared>) -> impl IntoResponse {
    let mut text = String::new();
    let mut status = StatusCode::OK;
    let checks = shared.checks.lock().clone();
    for check in &checks {
        let (what, result) = check();
        match result {
            Ok(()) => text.push_str(&format!("{what}: ok\n")),
            Err(why) => {
                status = StatusCode::SERVICE_UNAVAILABLE;
                text.push_str(&format!("{what}: {why}\n"));
            }
        }
    }
    if checks.is_empty() {
        text.push_str("ok\n");
    }
    (status, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn fetch(address: SocketAddr, path: &str) -> String {
        let mut stream = std::net::TcpStream::connect(address).expect("connect");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("send");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("receive");
        text
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn health_is_503_with_the_reason_when_one_role_is_not_well() {
        let checks: Vec<HealthCheck> = vec![
            Arc::new(|| ("meta".into(), Ok(()))),
            Arc::new(|| ("data".into(), Err("disk d1 left service after a failed sync; replace it".into()))),
        ];
        let server = HttpServer::start("127.0.0.1:0", Registry::new(), checks).await.expect("bind");
        let address = server.address();
        let (health, metrics) =
            tokio::task::spawn_blocking(move || (fetch(address, "/healthz"), fetch(address, "/metrics")))
                .await
                .expect("join");
        assert!(health.starts_with("HTTP/1.1 503") && health.contains("d1 left service"), "{health}");
        assert!(metrics.starts_with("HTTP/1.1 200") && metrics.contains("cairn_process_resident_bytes"), "{metrics}");
    }
}
