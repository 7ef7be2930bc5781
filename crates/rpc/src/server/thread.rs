//! The threads of a server: each runs a current-thread runtime, the first also accepts and deals connections out.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_env::buf::POOL_TRIM_EVERY;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::ServerShared;
use super::conn::Conn;
use super::greeter;
use super::recorder::Recorder;
use super::reply::ReplySink;
use super::stats::{CloseReason, add};
use crate::carrier::Carrier;
use crate::config::{REFUSALS_MAX, connections_for_clients};
use crate::hub::Hub;
use crate::log_limit::LogLimit;
use crate::stream::{Peer, Stream};

/// Wait after `accept` failed, which happens when the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections that ask nothing look so often whether the list of revoked keys is another one.
const REVOKED_LOOK: Duration = Duration::from_secs(1);
/// And whether the time of their key is over.
const EXPIRY_LOOK: Duration = Duration::from_secs(10);

/// A connection on its way from the accepting thread to its own. Their number is bounded by `connections_max`.
pub(super) struct Accepted {
    pub(super) stream: Arrived,
    pub(super) addr: SocketAddr,
    pub(super) place: Place,
    pub(super) full: bool,
}

/// What is known of it.
pub(super) enum Arrived {
    New(std::net::TcpStream),
    /// Its handshake is done.
    Tls(Box<TlsStream<Carrier>>),
    /// Its handshake is done, and it has left TLS.
    Authenticated(std::net::TcpStream, Box<Peer>),
}

impl Arrived {
    /// Into the runtime of this thread.
    fn into_stream(self) -> io::Result<Stream> {
        match self {
            Self::New(stream) => Ok(Stream::Plain(TcpStream::from_std(stream)?)),
            Self::Authenticated(stream, peer) => Ok(Stream::Authenticated(TcpStream::from_std(stream)?, peer)),
            Self::Tls(mut stream) => {
                match stream.as_mut() {
                    TlsStream::Server(stream) => stream.get_mut().0.unpark()?,
                    TlsStream::Client(stream) => stream.get_mut().0.unpark()?,
                }
                Ok(Stream::Tls(stream))
            }
        }
    }
}

/// Counts a connection as open as long as it lives.
pub(super) struct Place {
    shared: Arc<ServerShared>,
}

impl Place {
    /// The place, and how many are open with it.
    fn take(shared: &Arc<ServerShared>) -> (Self, usize) {
        let open = shared.open.fetch_add(1, Ordering::Relaxed) + 1;
        add(&shared.stats.connections_open, 1);
        (Self { shared: shared.clone() }, open)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
        self.shared.stats.connections_open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A running thread of a server.
pub(crate) struct ThreadHandle {
    stop: watch::Sender<Option<Duration>>,
    join: JoinHandle<()>,
}

impl ThreadHandle {
    pub(super) fn new(stop: watch::Sender<Option<Duration>>, join: JoinHandle<()>) -> Self {
        Self { stop, join }
    }

    pub(crate) fn stop(&self, grace: Duration) {
        // The thread may have ended; then there is nobody to tell.
        let _ = self.stop.send(Some(grace));
    }

    pub(crate) fn join(self) {
        if self.join.join().is_err() {
            tracing::error!("an RPC server thread panicked");
        }
    }
}

/// Starts all threads of a server.
pub(crate) fn start(shared: &Arc<ServerShared>, listener: std::net::TcpListener) -> io::Result<Vec<ThreadHandle>> {
    let mut senders = Vec::new();
    let mut receivers = Vec::new();
    for _ in 0..shared.config.threads {
        let (sender, receiver) = mpsc::unbounded_channel();
        senders.push(sender);
        receivers.push(receiver);
    }
    let mut handles: Vec<ThreadHandle> = Vec::new();
    // With a key, connections come to their threads when it is known whose they are.
    if let Some(config) = shared.identity.tls().and_then(|tls| tls.server()) {
        let (handle, sender) = greeter::spawn(shared, TlsAcceptor::from(config), std::mem::take(&mut senders))?;
        handles.push(handle);
        senders.push(sender);
    }
    let mut acceptor = Some((listener, senders));
    for (number, incoming) in receivers.into_iter().enumerate() {
        match spawn(number, shared.clone(), incoming, acceptor.take()) {
            Ok(handle) => handles.push(handle),
            Err(e) => {
                handles.iter().for_each(|handle| handle.stop(Duration::ZERO));
                handles.into_iter().for_each(ThreadHandle::join);
                return Err(e);
            }
        }
    }
    Ok(handles)
}

type Acceptor = (std::net::TcpListener, Vec<mpsc::UnboundedSender<Accepted>>);

fn spawn(
    number: usize,
    shared: Arc<ServerShared>,
    incoming: mpsc::UnboundedReceiver<Accepted>,
    acceptor: Option<Acceptor>,
) -> io::Result<ThreadHandle> {
    let (stop, stopped) = watch::channel(None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let name = format!("{}-{number}", shared.config.thread_name);
    let join = std::thread::Builder::new().name(name).spawn(move || {
        runtime.block_on(run(shared, incoming, acceptor, stopped));
    })?;
    Ok(ThreadHandle { stop, join })
}

/// The connections of one thread, to tell them to stop.
#[derive(Default)]
struct Registry {
    sinks: Mutex<Vec<Weak<ReplySink>>>,
}

impl Registry {
    fn add(&self, sink: &Arc<ReplySink>) {
        let mut sinks = self.sinks.lock();
        if sinks.len() == sinks.capacity() {
            sinks.retain(|sink| sink.strong_count() > 0);
        }
        sinks.push(Arc::downgrade(sink));
    }

    /// Each looks whether its key still counts.
    fn look_all(&self) {
        let sinks: Vec<_> = self.sinks.lock().iter().filter_map(Weak::upgrade).collect();
        sinks.iter().for_each(|sink| sink.look());
    }

    fn stop_all(&self) {
        let sinks = std::mem::take(&mut *self.sinks.lock());
        sinks.iter().filter_map(Weak::upgrade).for_each(|sink| sink.stop());
    }
}

async fn run(
    shared: Arc<ServerShared>,
    mut incoming: mpsc::UnboundedReceiver<Accepted>,
    acceptor: Option<Acceptor>,
    mut stopped: watch::Receiver<Option<Duration>>,
) {
    let hub = Hub::new();
    tokio::spawn(hub.clone().run());
    let accepting = acceptor.map(|(listener, threads)| tokio::spawn(accept(shared.clone(), listener, threads)));
    let registry = Registry::default();
    let mut conns = JoinSet::new();
    let revoked_version = || Some(shared.identity.tls()?.revoked()?.version());
    let mut seen = revoked_version();
    let mut look = tokio::time::interval(REVOKED_LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut expiry = tokio::time::interval(EXPIRY_LOOK);
    expiry.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut trim = tokio::time::interval(POOL_TRIM_EVERY);
    trim.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let grace = loop {
        tokio::select! {
            changed = stopped.changed() => {
                let grace = *stopped.borrow();
                match (changed, grace) {
                    (Ok(()), None) => {}
                    (_, grace) => break grace.unwrap_or_default(),
                }
            }
            Some(accepted) = incoming.recv() => {
                serve(&shared, &hub, &registry, &mut conns, accepted);
            }
            Some(ended) = conns.join_next() => report_panic(ended),
            _ = look.tick(), if seen.is_some() => {
                if revoked_version() != seen {
                    seen = revoked_version();
                    registry.look_all();
                }
            }
            _ = expiry.tick(), if shared.identity.tls().is_some() => registry.look_all(),
            _ = trim.tick(), if accepting.is_some() => shared.config.pool.trim(),
        }
    };
    if let Some(accepting) = accepting {
        accepting.abort();
    }
    incoming.close();
    registry.stop_all();
    let drained = async {
        while let Some(ended) = conns.join_next().await {
            report_panic(ended);
        }
    };
    if tokio::time::timeout(grace, drained).await.is_err() {
        conns.shutdown().await;
    }
    hub.stop();
}

/// A panic of the service costs the connection on whose thread it happened; a person has to look.
fn report_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(e) = ended
        && e.is_panic()
    {
        tracing::error!(error = %e, "a request made the service panic; its connection was closed");
    }
}

fn serve(shared: &Arc<ServerShared>, hub: &Arc<Hub>, registry: &Registry, conns: &mut JoinSet<()>, accepted: Accepted) {
    let Accepted { stream, addr, place, full } = accepted;
    let stream = match stream.into_stream() {
        Ok(stream) => stream,
        Err(e) => {
            tracing::debug!(peer = %addr, error = %e, "a new connection could not be registered");
            shared.stats.count_closed(CloseReason::Io);
            return;
        }
    };
    let recorder = shared.config.request_log.clone().map(|sink| {
        let connection = shared.numbered.fetch_add(1, Relaxed) + 1;
        Recorder { sink, connection }
    });
    let tab = shared.accounts.tab(addr.ip());
    let sink = ReplySink::new(hub.clone(), shared.stats.clone(), shared.config.out_queue_hard, recorder, tab);
    registry.add(&sink);
    let conn = Conn::new(shared.clone(), sink, stream, addr, full);
    conns.spawn(async move {
        conn.run().await;
        drop(place);
    });
}

/// Accepts for ever and deals the connections out in turn.
async fn accept(
    shared: Arc<ServerShared>,
    listener: std::net::TcpListener,
    threads: Vec<mpsc::UnboundedSender<Accepted>>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => {
            tracing::error!(error = %e, "cannot accept connections");
            return;
        }
    };
    let failed = LogLimit::default();
    let mut turn = 0usize;
    loop {
        let (stream, addr) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) => {
                add(&shared.stats.accept_errors, 1);
                if let Some(left_out) = failed.pass() {
                    tracing::warn!(error = %e, left_out, "accepting a connection failed; is the limit of open files too low?");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        add(&shared.stats.connections_total, 1);
        let (place, open) = Place::take(&shared);
        if open > shared.config.connections_max + REFUSALS_MAX {
            shared.stats.count_closed(CloseReason::TooManyConnections);
            continue;
        }
        let for_clients = connections_for_clients(shared.config.connections_max);
        let full = open > for_clients && shared.seats.make_room() == 0;
        let Ok(stream) = crate::socket::prepare(&stream).and_then(|()| stream.into_std()) else {
            shared.stats.count_closed(CloseReason::Io);
            continue;
        };
        let to = turn % threads.len();
        turn = turn.wrapping_add(1);
        // A thread that has stopped takes no more; the server is about to be gone.
        let _ = threads[to].send(Accepted { stream: Arrived::New(stream), addr, place, full });
    }
}
