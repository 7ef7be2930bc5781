//! [`serve`]: the connections of an HTTP port. Anybody may connect and say nothing, or half of something: each
//! connection answers one request and has a limit of time for each part of it, and when there are too many, the oldest
//! goes. Whoever means it has its answer in milliseconds.
//!
//! Not here: what is answered (`http.rs`), who may see what (`http_door.rs`).
use crate::Samples;
use crate::http_door::Door;
use axum::Router;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Connections unless said otherwise.
pub const CONNECTIONS_MAX: usize = 128;
/// Time for the head of the request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for all of it: the answer has to be read, too.
const WHOLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Wait after `accept` failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bounds of a port.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Connections; with one more the oldest goes.
    pub connections_max: usize,
    /// Time for the head of a request.
    pub head_timeout: Duration,
    /// Time for a whole connection.
    pub whole_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self { connections_max: CONNECTIONS_MAX, head_timeout: HEAD_TIMEOUT, whole_timeout: WHOLE_TIMEOUT }
    }
}

/// What a port counts.
#[derive(Default)]
pub(crate) struct HttpStats {
    pub(crate) open: AtomicU64,
    pub(crate) total: AtomicU64,
    /// The oldest ones of too many.
    pub(crate) made_room: AtomicU64,
    /// Not done in time.
    pub(crate) timed_out: AtomicU64,
}

/// Counts a connection as open as long as it lives.
struct Open(Arc<HttpStats>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// What is served, and to whom.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) app: Router,
    pub(crate) door: Arc<dyn Door>,
    pub(crate) limits: HttpLimits,
}

/// Serves for ever.
pub(crate) async fn serve(listener: TcpListener, served: Served, stats: Arc<HttpStats>) {
    let limits = served.limits;
    let mut running = JoinSet::new();
    // Oldest first; those that ended are taken out when there are too many.
    let mut ages: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "a connection of the HTTP port could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            Some(_) = running.join_next() => continue,
        };
        stats.total.fetch_add(1, Relaxed);
        stats.open.fetch_add(1, Relaxed);
        let open = Open(stats.clone());
        if ages.len() >= limits.connections_max {
            ages.retain(|connection| !connection.is_finished());
        }
        if ages.len() >= limits.connections_max
            && let Some(oldest) = ages.pop_front()
        {
            oldest.abort();
            stats.made_room.fetch_add(1, Relaxed);
        }
        ages.push_back(running.spawn(connection(accepted, served.clone(), open)));
    }
}

async fn connection((stream, from): (TcpStream, SocketAddr), served: Served, open: Open) {
    let Served { app, door, limits } = served;
    let answered = async {
        let entered = match tokio::time::timeout(limits.head_timeout, door.enter(stream, from)).await {
            Ok(entered) => entered,
            Err(_) => {
                open.0.timed_out.fetch_add(1, Relaxed);
                return;
            }
        };
        let (wire, visitor) = match entered {
            Ok(entered) => entered,
            Err(error) => return tracing::debug!(%error, "a connection was not let in at the HTTP port"),
        };
        let app = TowerToHyperService::new(app);
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(visitor.clone());
            app.call(request)
        });
        let answered = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_timeout)
            .max_buf_size(HEAD_BYTES_MAX)
            // One request each: there is no connection that waits for the next one.
            .keep_alive(false)
            .serve_connection(TokioIo::new(wire), service);
        match answered.await {
            Ok(()) => {}
            Err(error) if error.is_timeout() => {
                open.0.timed_out.fetch_add(1, Relaxed);
            }
            Err(error) => tracing::debug!(%error, "a connection of the HTTP port ended"),
        }
    };
    if tokio::time::timeout(limits.whole_timeout, answered).await.is_err() {
        open.0.timed_out.fetch_add(1, Relaxed);
    }
}

impl HttpStats {
    pub(crate) fn sample(&self, samples: &mut Samples) {
        let open = self.open.load(Relaxed);
        samples.gauge("cairn_http_connections_open", "Connections of the HTTP port open now.", &[], open as f64);
        let counters = [
            ("cairn_http_connections", "Connections of the HTTP port accepted.", &self.total),
            ("cairn_http_connections_made_room", "Of them closed because there were too many.", &self.made_room),
            ("cairn_http_connections_timed_out", "Of them closed because they were not done in time.", &self.timed_out),
        ];
        for (name, help, counter) in counters {
            samples.counter(name, help, &[], counter.load(Relaxed));
        }
    }
}
