//! The HTTP port of a process: `/metrics` (Prometheus) and `/healthz` (200 or 503 with a line a role).
//!
//! Invariant: who may not see everything (`http_door.rs`) is told whether all is well, and nothing else.
use crate::http_conns::{HttpLimits, HttpStats, Served, serve};
use crate::http_door::{Door, Visitor};
use crate::{ProcessUse, Registry};
use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

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
    pub async fn start(
        address: &str,
        registry: Registry,
        checks: Vec<HealthCheck>,
        limits: HttpLimits,
        door: Arc<dyn Door>,
    ) -> std::io::Result<HttpServer> {
        let listener = tokio::net::TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        #[allow(clippy::disallowed_methods, reason = "the age of the process for people, not for decisions")]
        let started = Instant::now();
        let start = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        registry.register(
            &[],
            Arc::new(move |samples| {
                let used = ProcessUse::now();
                let cpu = Duration::from_micros(used.cpu_user_us + used.cpu_system_us);
                samples.counter_seconds("cairn_process_cpu_seconds", "CPU time used, user and system.", &[], cpu);
                samples.gauge("cairn_process_threads", "Threads.", &[], used.threads as f64);
                samples.gauge("cairn_process_start_time_seconds", "Start, in seconds since 1970.", &[], start);
                samples.gauge("cairn_process_resident_bytes", "Resident memory.", &[], used.resident_bytes as f64);
                let uptime = started.elapsed().as_secs_f64();
                samples.gauge("cairn_process_uptime_seconds", "Age of the process.", &[], uptime);
            }),
        );
        let stats = Arc::new(HttpStats::default());
        let counted = stats.clone();
        registry.register(&[], Arc::new(move |samples| counted.sample(samples)));
        let shared = Shared { registry, checks: Arc::new(Mutex::new(checks)) };
        let app = axum::Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(health))
            .with_state(shared.clone());
        let task = tokio::spawn(serve(listener, Served { app, door, limits }, stats));
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

/// Whether whoever sent a request sees everything.
fn may_see(visitor: &Visitor, headers: &HeaderMap) -> Result<(), String> {
    visitor.may_see(headers.get(header::AUTHORIZATION).map(|value| value.as_bytes()))
}

async fn metrics(
    State(shared): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    headers: HeaderMap,
) -> impl IntoResponse {
    if let Err(why) = may_see(&visitor, &headers) {
        let asked = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, asked, format!("{why}\n")).into_response();
    }
    match shared.registry.render() {
        Ok(text) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn health(
    State(shared): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    headers: HeaderMap,
) -> impl IntoResponse {
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
    if may_see(&visitor, &headers).is_err() {
        text = if status == StatusCode::OK { "ok\n" } else { "not ok\n" }.to_owned();
    }
    (status, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_door::{Entered, OpenDoor, Wire};
    use std::future::Future;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

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
        let server =
            HttpServer::start("127.0.0.1:0", Registry::new(), checks, HttpLimits::default(), Arc::new(OpenDoor))
                .await
                .expect("bind");
        let address = server.address();
        let (health, metrics) =
            tokio::task::spawn_blocking(move || (fetch(address, "/healthz"), fetch(address, "/metrics")))
                .await
                .expect("join");
        assert!(health.starts_with("HTTP/1.1 503") && health.contains("d1 left service"), "{health}");
        assert!(metrics.starts_with("HTTP/1.1 200") && metrics.contains("cairn_process_resident_bytes"), "{metrics}");
    }

    /// Lets in whoever shows the word.
    struct WordDoor;

    impl Door for WordDoor {
        fn enter(
            &self,
            stream: tokio::net::TcpStream,
            _from: SocketAddr,
        ) -> std::pin::Pin<Box<dyn Future<Output = Entered> + Send + '_>> {
            let judge = |shown: Option<&[u8]>| match shown {
                Some(b"Bearer word") => Ok(()),
                _ => Err("show the word".to_owned()),
            };
            Box::pin(async move { Ok((Box::new(stream) as Box<dyn Wire>, Visitor::judged(judge))) })
        }
    }

    /// A stranger would read names of disks and errors, or a probe without a key restart what is well.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn strangers_are_told_whether_all_is_well_and_nothing_else() {
        let bad: HealthCheck = Arc::new(|| ("data".into(), Err("the secret disk is full".into())));
        let limits = HttpLimits::default();
        let server = HttpServer::start("127.0.0.1:0", Registry::new(), vec![bad], limits, Arc::new(WordDoor)).await;
        let server = server.expect("bind");
        let address = server.address();
        let ask = move |path: &'static str, shown: &'static str| {
            tokio::task::spawn_blocking(move || {
                let mut stream = TcpStream::connect(address).expect("connect");
                let line = if shown.is_empty() { String::new() } else { format!("Authorization: {shown}\r\n") };
                write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{line}Connection: close\r\n\r\n").expect("send");
                let mut text = String::new();
                stream.read_to_string(&mut text).expect("receive");
                text
            })
        };
        for shown in ["", "Bearer other", "word", "Basic word"] {
            let metrics = ask("/metrics", shown).await.expect("join");
            assert!(metrics.starts_with("HTTP/1.1 401") && metrics.ends_with("\r\n\r\nshow the word\n"), "{metrics}");
            assert!(metrics.to_lowercase().contains("www-authenticate: bearer"), "{metrics}");
            let health = ask("/healthz", shown).await.expect("join");
            assert!(health.starts_with("HTTP/1.1 503") && health.ends_with("\r\n\r\nnot ok\n"), "{health}");
        }
        let health = ask("/healthz", "Bearer word").await.expect("join");
        assert!(health.contains("the secret disk is full"), "{health}");
        assert!(ask("/metrics", "Bearer word").await.expect("join").contains("cairn_process_resident_bytes"));
        server.set_checks(vec![Arc::new(|| ("data".into(), Ok(())))]);
        let health = ask("/healthz", "").await.expect("join");
        assert!(health.starts_with("HTTP/1.1 200") && health.ends_with("\r\n\r\nok\n"), "{health}");
    }

    /// What the peer of a cut connection reads: nothing more, or that it was reset.
    fn is_cut(mut stream: TcpStream) -> bool {
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    /// Requests that are never completed would stay open for ever, until the process has no descriptors left.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn requests_that_are_not_completed_end() {
        let limits = HttpLimits { head_timeout: Duration::from_millis(200), ..HttpLimits::default() };
        let server = HttpServer::start("127.0.0.1:0", Registry::new(), Vec::new(), limits, Arc::new(OpenDoor))
            .await
            .expect("bind");
        let address = server.address();
        let cut = tokio::task::spawn_blocking(move || {
            let parts = ["", "GET /met", "GET /metrics HTTP/1.1\r\nHost: x\r\n", "\x16\x03\x01"];
            let streams = parts.map(|part| {
                let mut stream = TcpStream::connect(address).expect("connect");
                stream.write_all(part.as_bytes()).expect("send");
                stream
            });
            streams.map(is_cut)
        });
        assert_eq!(cut.await.expect("join"), [true; 4]);
    }

    /// An answer that nobody reads would keep its connection for ever.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn answers_that_are_not_read_end() {
        let limits = HttpLimits { whole_timeout: Duration::from_millis(300), ..HttpLimits::default() };
        let large: HealthCheck = Arc::new(|| ("x".repeat(64 << 20), Ok(())));
        let server = HttpServer::start("127.0.0.1:0", Registry::new(), vec![large], limits, Arc::new(OpenDoor))
            .await
            .expect("bind");
        let address = server.address();
        let received = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).expect("connect");
            write!(stream, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").expect("send");
            std::thread::sleep(Duration::from_millis(1500));
            let mut rest = Vec::new();
            // Reset, or ended early: either way not all of it.
            let _ended = stream.read_to_end(&mut rest);
            rest.len()
        });
        assert!(received.await.expect("join") < 64 << 20);
    }

    /// Whoever opens many connections would keep everybody else from the metrics.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_oldest_of_too_many_connections_goes() {
        let hour = Duration::from_secs(3600);
        let limits = HttpLimits { connections_max: 8, head_timeout: hour, whole_timeout: hour };
        let server = HttpServer::start("127.0.0.1:0", Registry::new(), Vec::new(), limits, Arc::new(OpenDoor))
            .await
            .expect("bind");
        let address = server.address();
        let (metrics, cut) = tokio::task::spawn_blocking(move || {
            let mut silent: Vec<_> = (0..100).map(|_| TcpStream::connect(address).expect("connect")).collect();
            let metrics = fetch(address, "/metrics");
            (metrics, is_cut(silent.remove(0)))
        })
        .await
        .expect("join");
        assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
        assert!(cut);
        let made_room = metrics.lines().find(|line| line.starts_with("cairn_http_connections_made_room"));
        let count = made_room.and_then(|line| line.rsplit(' ').next()).and_then(|count| count.parse::<f64>().ok());
        assert!(count.is_some_and(|count| count >= 92.0), "{metrics}");
    }
}
