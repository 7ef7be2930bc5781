//! [`Client`]: calls to many addresses over a few connections each.
//!
//! A call is encoded when it is made, so its future borrows nothing; it can be awaited in any executor, for deadlines
//! and sockets are the business of the connection's own task. Small calls and calls with payloads (bulk) use different
//! connections, so that a small one never waits behind megabytes.
//!
//! Not here: choosing whom to ask, retries, leader hints (the client crate); one connection's life (`link.rs`).

mod call;
mod driver;
mod error;
mod link;
pub mod near;
mod slots;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_env::buf::{AlignedBuf, BufPool, POOL_TRIM_EVERY};
use cairn_wire::Opcode;
use cairn_wire::hello::Hello;
use cairn_wire::protection::Protection;
use parking_lot::RwLock;
use prost::Message;

pub use call::Call;
pub use error::{CallError, NotSent, SendError, Unknown};
use link::Link;

use crate::config::{ClientConfig, POOL_BYTES_MIN};
use crate::hub::Hub;
use crate::identity::Identity;
use crate::payload::Payload;

/// Which connection a call takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Lane {
    /// Bulk if the call sends a payload, small otherwise.
    #[default]
    Auto,
    /// With the small calls.
    Small,
    /// With payloads; for calls whose answer brings one.
    Bulk,
}

/// How a call is made. Every call has a deadline.
#[derive(Debug)]
pub struct CallOptions {
    /// How long the answer is waited for, from now.
    pub deadline: Duration,
    /// Goes along for the logs of all processes concerned.
    pub trace_id: u64,
    /// Which connection.
    pub lane: Lane,
    /// Calls of the same stream take the same connection of their lane, so they arrive in the order of their making:
    /// those of one thread, where threads have connections of their own ([`near`]).
    pub stream: Option<u32>,
    /// Calls of no stream that could take several connections are dealt out by this.
    pub spread: u32,
    /// Where the answer's payload goes, if it fits; otherwise it goes into a buffer of the pool.
    pub into: Option<AlignedBuf>,
    /// The least that keeps it on its way, where there are keys. An operation that needs more, and the other side, get
    /// more.
    pub protection: Protection,
}

impl CallOptions {
    /// Only the deadline is given.
    pub fn new(deadline: Duration) -> Self {
        let protection = Protection::Private;
        Self { deadline, trace_id: 0, lane: Lane::Auto, stream: None, spread: 0, into: None, protection }
    }

    /// Sets how it is kept on its way: what nobody says so of goes through TLS.
    pub fn protected(mut self, protection: Protection) -> Self {
        self.protection = protection;
        self
    }

    /// Sets the trace id.
    pub fn trace(mut self, trace_id: u64) -> Self {
        self.trace_id = trace_id;
        self
    }

    /// Takes the connection for payloads.
    pub fn bulk(mut self) -> Self {
        self.lane = Lane::Bulk;
        self
    }

    /// Sets the stream.
    pub fn stream(mut self, stream: u32) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Sets what deals out calls of no stream.
    pub fn spread(mut self, spread: u32) -> Self {
        self.spread = spread;
        self
    }

    /// Gives the buffer for the answer's payload.
    pub fn into_buf(mut self, buf: AlignedBuf) -> Self {
        self.into = Some(buf);
        self
    }
}

/// An answer.
#[derive(Debug)]
pub struct Response {
    /// The protobuf message.
    pub message: Bytes,
    /// The raw bytes that came along.
    pub payload: Option<AlignedBuf>,
}

impl Response {
    /// Decodes the message. Failing that, the server did something, but what it says is not understood.
    pub fn decode<M: Message + Default>(&self) -> Result<M, CallError> {
        M::decode(self.message.clone()).map_err(|e| CallError::bad_answer(e.to_string()))
    }
}

/// Where the connection tasks of a client run.
struct Home {
    runtime: tokio::runtime::Handle,
    hub: Arc<Hub>,
}

/// Connections to one address that are protected alike.
struct Lanes {
    small: Vec<Arc<Link>>,
    bulk: Vec<Arc<Link>>,
}

/// The connections to one address.
struct Links {
    /// For everything, where file data has none of its own.
    private: Lanes,
    authenticated: Option<Lanes>,
    /// Number `i` of each kind is at home in runtime `i % near`; 0: they are at home anywhere.
    near: usize,
}

impl Links {
    fn all(&self) -> impl Iterator<Item = &Arc<Link>> {
        let lanes = std::iter::once(&self.private).chain(&self.authenticated);
        lanes.flat_map(|lanes| lanes.small.iter().chain(&lanes.bulk))
    }

    fn pick(&self, opcode: u16, payload: &Payload, options: &CallOptions) -> &Arc<Link> {
        let bulk = match options.lane {
            Lane::Auto => !payload.is_empty(),
            lane => lane == Lane::Bulk,
        };
        let lanes = match &self.authenticated {
            Some(lanes) if options.protection == Protection::Authenticated && is_file_data(opcode) => lanes,
            _ => &self.private,
        };
        let links = if bulk { &lanes.bulk } else { &lanes.small };
        let which = options.stream.unwrap_or(options.spread) as usize;
        let index = match near::runtime() {
            Some(runtime) if runtime < self.near => runtime + self.near * (which % (links.len() / self.near)),
            _ => which,
        };
        &links[index % links.len()]
    }
}

fn is_file_data(opcode: u16) -> bool {
    Opcode::from_code(opcode).is_some_and(|opcode| opcode.protection() == Protection::Authenticated)
}

struct Inner {
    config: Arc<ClientConfig>,
    identity: Identity,
    homes: Vec<Home>,
    /// Every home has connections of its own to every address.
    each_home: bool,
    next_home: AtomicUsize,
    /// By address. Grows with the addresses ever called; an idle one is some hundred bytes.
    links: RwLock<HashMap<Arc<str>, Arc<Links>>>,
    /// Ends the threads of `with_threads`.
    _threads: Vec<tokio::sync::oneshot::Sender<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for links in self.links.get_mut().values() {
            links.all().for_each(|link| link.close());
        }
        for home in &self.homes {
            home.hub.stop();
        }
    }
}

/// Makes calls. Clones share connections; the last one dropped closes them.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// A client whose connection tasks run on the runtime in whose context this is called.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(config: ClientConfig, identity: Identity) -> Self {
        let runtime = tokio::runtime::Handle::current();
        Self::with_homes(config, identity, vec![home(runtime)], false, Vec::new())
    }

    /// A client for tasks of several runtimes of one thread each, which say so by [`near::belong_to`]: each has as many
    /// connections of its own as the configuration says.
    pub fn with_runtimes(runtimes: &[tokio::runtime::Handle], config: ClientConfig, identity: Identity) -> Self {
        assert!(!runtimes.is_empty(), "a client needs a runtime");
        Self::with_homes(config, identity, runtimes.iter().cloned().map(home).collect(), true, Vec::new())
    }

    /// A client with its own threads, usable from anywhere.
    pub fn with_threads(threads: usize, config: ClientConfig, identity: Identity) -> io::Result<Self> {
        assert!(threads > 0, "a client needs a thread");
        let (mut homes, mut stops) = (Vec::new(), Vec::new());
        for number in 0..threads {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            homes.push(home(runtime.handle().clone()));
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            stops.push(stop);
            std::thread::Builder::new().name(format!("rpc-client-{number}")).spawn(move || {
                // An error means that the client was dropped, which is the signal.
                let _ = runtime.block_on(stopped);
                runtime.shutdown_background();
            })?;
        }
        Ok(Self::with_homes(config, identity, homes, false, stops))
    }

    fn with_homes(
        config: ClientConfig,
        identity: Identity,
        homes: Vec<Home>,
        each_home: bool,
        threads: Vec<tokio::sync::oneshot::Sender<()>>,
    ) -> Self {
        assert!(config.pool.limit() >= POOL_BYTES_MIN, "the pool has to hold the largest payload: {POOL_BYTES_MIN}");
        assert!(config.small_connections > 0 && config.bulk_connections > 0 && config.in_flight_max > 0);
        homes[0].runtime.spawn(trim(config.pool.clone(), homes[0].hub.clone()));
        let inner = Inner {
            config: Arc::new(config),
            identity,
            homes,
            each_home,
            next_home: AtomicUsize::new(0),
            links: RwLock::default(),
            _threads: threads,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Its bounds.
    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// Who this client says it is.
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// The process at `addr` ("host:port"; the name is resolved when a connection is made). Costs no network.
    pub fn peer(&self, addr: &str) -> Peer {
        Peer { links: self.links(addr), _client: self.clone() }
    }

    /// Calls the process at `addr`; see [`Peer::call`].
    pub fn call(
        &self,
        addr: &str,
        opcode: u16,
        message: &impl Message,
        payload: impl Into<Payload>,
        options: CallOptions,
    ) -> Call {
        let payload = payload.into();
        self.links(addr).pick(opcode, &payload, &options).call(opcode, message, payload, options)
    }

    /// Sends without waiting for anything; see [`Peer::send`].
    pub fn send(
        &self,
        addr: &str,
        opcode: u16,
        message: &impl Message,
        payload: impl Into<Payload>,
    ) -> Result<(), SendError> {
        let payload = payload.into();
        self.links(addr).pick(opcode, &payload, &CallOptions::new(Duration::ZERO)).send(opcode, message, payload)
    }

    fn links(&self, addr: &str) -> Arc<Links> {
        if let Some(links) = self.inner.links.read().get(addr) {
            return links.clone();
        }
        let (config, addr) = (&self.inner.config, Arc::<str>::from(addr));
        let near = if self.inner.each_home { self.inner.homes.len() } else { 0 };
        let new = |number: usize, needed: Protection| {
            let turn = if near > 0 { number } else { self.inner.next_home.fetch_add(1, Ordering::Relaxed) };
            let home = &self.inner.homes[turn % self.inner.homes.len()];
            let identity = self.inner.identity.clone();
            let home = (home.runtime.clone(), home.hub.clone());
            Link::new(addr.clone(), config.clone(), identity, needed, home)
        };
        let lanes = |needed: Protection| {
            let some = |number: usize| (0..number * near.max(1)).map(|number| new(number, needed)).collect();
            Lanes { small: some(config.small_connections), bulk: some(config.bulk_connections) }
        };
        let ways = self.inner.identity.tls().is_some_and(|tls| tls.has_ways());
        let mut links = self.inner.links.write();
        let entry = links.entry(addr.clone()).or_insert_with(|| {
            let authenticated = ways.then(|| lanes(Protection::Authenticated));
            Arc::new(Links { private: lanes(Protection::Private), authenticated, near })
        });
        entry.clone()
    }
}

/// Gives memory of payloads back that is not needed any more, as long as the client is there.
async fn trim(pool: BufPool, hub: Arc<Hub>) {
    while !hub.is_stopped() {
        tokio::time::sleep(POOL_TRIM_EVERY).await;
        pool.trim();
    }
}

fn home(runtime: tokio::runtime::Handle) -> Home {
    let hub = Hub::new();
    runtime.spawn(hub.clone().run());
    Home { runtime, hub }
}

/// One remote process, with its connections looked up once.
#[derive(Clone)]
pub struct Peer {
    links: Arc<Links>,
    _client: Client,
}

impl Peer {
    /// Its address as given.
    pub fn addr(&self) -> &str {
        self.links.private.small[0].addr()
    }

    /// Sends a request and returns the future of its answer. The request is on its way when this returns; dropping the
    /// future cancels the waiting, and the request too if it was not sent yet.
    pub fn call(&self, opcode: u16, message: &impl Message, payload: impl Into<Payload>, options: CallOptions) -> Call {
        let payload = payload.into();
        self.links.pick(opcode, &payload, &options).call(opcode, message, payload, options)
    }

    /// As [`call`](Self::call), and `then` gets the outcome, on the thread of the connection: it must not block.
    pub fn call_then(
        &self,
        opcode: u16,
        message: &impl Message,
        payload: impl Into<Payload>,
        options: CallOptions,
        then: impl FnOnce(Result<Response, CallError>) + Send + 'static,
    ) {
        let payload = payload.into();
        self.links.pick(opcode, &payload, &options).call_then(opcode, message, payload, options, Box::new(then));
    }

    /// Sends a message that gets no answer. It may get lost at any time; when too much waits already, or the peer
    /// cannot be reached at the moment, it is dropped here. Never blocks.
    pub fn send(&self, opcode: u16, message: &impl Message, payload: impl Into<Payload>) -> Result<(), SendError> {
        let payload = payload.into();
        let link = self.links.pick(opcode, &payload, &CallOptions::new(Duration::ZERO));
        link.send(opcode, message, payload)
    }

    /// What the server said about itself when the present connection for small calls was made.
    pub fn hello(&self) -> Option<Hello> {
        self.links.private.small[0].hello()
    }
}
