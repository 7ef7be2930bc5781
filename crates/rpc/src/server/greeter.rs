//! Where new connections of a server with a key are looked at first: a thread of its own, on which handshakes of TLS
//! run.
//!
//! A flood of them takes the time of this thread and of no other, and the others go first where the machine is busy.
//! Invariants: at most as many are looked at as may be without a hello. When there are more, an old one goes
//! ([`Crowd`]), since whoever means it goes on at once: at once for those from where few are, at a pace for a site that
//! has most. Its others wait in a line, the newest first, for a time, and are not looked at. So strangers that come
//! again as they are closed come at that pace. Each has the time of a hello, and sends no more than
//! [`HANDSHAKE_BYTES_MAX`]; what leaves for the threads that serve is a plain connection whose first byte is there, or
//! one through TLS whose peer's certificate was checked. Not here: keys (`security`), what a peer may ask
//! (`admission.rs`).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_security::{agreed, explain};
use cairn_wire::protection::Protection;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::MissedTickBehavior;
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::ServerShared;
use super::crowd::Crowd;
use super::stats::CloseReason;
use super::thread::{Accepted, Arrived, ThreadHandle};
use crate::audit::Refusal;
use crate::carrier::Carrier;
use crate::config::{GREETING_PART, HANDSHAKE_BYTES_MAX, LINE_MAX, LINE_PACE};
use crate::stream::left_by_server;

/// What a handshake of TLS begins with.
const TLS_FIRST: u8 = 0x16;

/// How much later than others this thread runs where there are more threads than processors.
const NICE: i32 = 5;

type Threads = Vec<mpsc::UnboundedSender<Accepted>>;

/// Starts the thread. What it was done with goes to one of the others, in turn.
pub(super) fn spawn(
    shared: &Arc<ServerShared>,
    acceptor: TlsAcceptor,
    threads: Threads,
) -> io::Result<(ThreadHandle, mpsc::UnboundedSender<Accepted>)> {
    let (sender, incoming) = mpsc::unbounded_channel();
    let (stop, stopped) = watch::channel(None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let greeter = Greeter { shared: shared.clone(), acceptor, threads };
    let join = std::thread::Builder::new().name(format!("{}-tls", shared.config.thread_name)).spawn(move || {
        // Without it strangers take what there is of a machine that is busy; they are bounded all the same.
        if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE) {
            tracing::debug!(%error, "handshakes run with the priority of the rest");
        }
        runtime.block_on(greeter.run(incoming, stopped));
    })?;
    Ok((ThreadHandle::new(stop, join), sender))
}

struct Greeter {
    shared: Arc<ServerShared>,
    acceptor: TlsAcceptor,
    threads: Threads,
}

/// Those that are looked at, and those that are not yet.
#[derive(Default)]
struct Greeting {
    tasks: JoinSet<u64>,
    crowd: Crowd<AbortHandle>,
    /// The newest is the last one.
    line: VecDeque<(Instant, Accepted)>,
    number: u64,
}

impl Greeter {
    async fn run(
        self,
        mut incoming: mpsc::UnboundedReceiver<Accepted>,
        mut stopped: watch::Receiver<Option<Duration>>,
    ) {
        let mut greeting = Greeting::default();
        let mut pace = tokio::time::interval(LINE_PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // An error means that the server is gone.
                _ = stopped.changed() => return,
                Some(accepted) = incoming.recv() => self.arrived(&mut greeting, accepted),
                Some(ended) = greeting.tasks.join_next() => {
                    match ended {
                        Ok(number) => drop(greeting.crowd.leave(number)),
                        Err(error) if error.is_panic() => {
                            greeting.crowd.forget(AbortHandle::is_finished);
                            tracing::error!(%error, "a handshake panicked; its connection was closed");
                        }
                        Err(_) => {}
                    }
                    self.next_of_line(&mut greeting);
                }
                _ = pace.tick(), if !greeting.line.is_empty() => {
                    self.end_waits(&mut greeting);
                    self.make_room(&mut greeting);
                    self.next_of_line(&mut greeting);
                }
            }
        }
    }

    fn is_full(&self, greeting: &Greeting) -> bool {
        greeting.crowd.len() >= self.shared.seats.greeting_max()
    }

    fn arrived(&self, greeting: &mut Greeting, accepted: Accepted) {
        if self.is_full(greeting) && greeting.crowd.has_few_of(accepted.addr.ip()) {
            self.make_room(greeting);
        }
        if !self.is_full(greeting) {
            return self.look_at(greeting, accepted);
        }
        let line_max = LINE_MAX.min(self.shared.config.connections_max / GREETING_PART);
        if greeting.line.len() >= line_max && greeting.line.pop_front().is_some() {
            self.shared.stats.count_closed(CloseReason::MadeRoom);
        }
        greeting.line.push_back((Instant::now(), accepted));
    }

    fn make_room(&self, greeting: &mut Greeting) {
        if self.is_full(greeting)
            && let Some(goes) = greeting.crowd.make_room()
        {
            goes.abort();
            self.shared.stats.count_closed(CloseReason::MadeRoom);
        }
    }

    fn next_of_line(&self, greeting: &mut Greeting) {
        if !self.is_full(greeting)
            && let Some((_, accepted)) = greeting.line.pop_back()
        {
            self.look_at(greeting, accepted);
        }
    }

    /// Those that wait as long as a hello may take are closed.
    fn end_waits(&self, greeting: &mut Greeting) {
        let timeout = self.shared.config.hello_timeout;
        while greeting.line.front().is_some_and(|(since, _)| since.elapsed() >= timeout) {
            greeting.line.pop_front();
            self.shared.stats.count_closed(CloseReason::HelloTimeout);
        }
    }

    fn look_at(&self, greeting: &mut Greeting, accepted: Accepted) {
        greeting.number += 1;
        let number = greeting.number;
        let to = self.threads[number as usize % self.threads.len()].clone();
        let from = accepted.addr.ip();
        let greet = greet(self.shared.clone(), self.acceptor.clone(), accepted, to);
        let task = greeting.tasks.spawn(async move {
            greet.await;
            number
        });
        greeting.crowd.enter(number, from, task);
    }
}

/// Looks at one connection until it is known what it is.
async fn greet(
    shared: Arc<ServerShared>,
    acceptor: TlsAcceptor,
    accepted: Accepted,
    to: mpsc::UnboundedSender<Accepted>,
) {
    let Accepted { stream, addr, place, full } = accepted;
    let Arrived::New(stream) = stream else { return };
    let (reason, text) = match tokio::time::timeout(shared.config.hello_timeout, look(stream, acceptor)).await {
        Ok(Ok(Some(stream))) => {
            // A thread that has stopped takes no more; the server is about to be gone.
            let _ = to.send(Accepted { stream, addr, place, full });
            return;
        }
        Ok(Ok(None)) => (CloseReason::PeerClosed, String::new()),
        Ok(Err(error)) => match explain(&error) {
            Some(why) => {
                let refusal = Refusal { from: addr.ip(), name: None, operation: "handshake", why: &why };
                shared.config.audit.refused(&refusal);
                (CloseReason::NotAllowed, error.to_string())
            }
            None => (CloseReason::Io, error.to_string()),
        },
        Err(_) => (CloseReason::HelloTimeout, "it did not end its handshake in time".to_owned()),
    };
    let stats = &shared.stats;
    stats.count_closed(reason);
    let kind = reason.name();
    if !reason.is_noteworthy() {
        tracing::debug!(peer = %addr, reason = kind, cause = text, "connection closed");
    } else if let Some(left_out) = stats.log[reason as usize].pass() {
        tracing::warn!(peer = %addr, reason = kind, cause = text, left_out, "connection refused or cut off");
    }
}

/// Waits for the first byte, and does the handshake that it may begin. `None`: the peer closed without a word.
async fn look(stream: std::net::TcpStream, acceptor: TlsAcceptor) -> io::Result<Option<Arrived>> {
    let tcp = TcpStream::from_std(stream)?;
    let mut first = [0];
    if tcp.peek(&mut first).await? == 0 {
        return Ok(None);
    }
    if first[0] != TLS_FIRST {
        return Ok(Some(Arrived::New(tcp.into_std()?)));
    }
    let mut stream = acceptor.accept(Carrier::bounded(tcp, HANDSHAKE_BYTES_MAX)).await?;
    match agreed(stream.get_ref().1.alpn_protocol()) {
        Some(Protection::Private) => {
            stream.get_mut().0.park()?;
            Ok(Some(Arrived::Tls(Box::new(TlsStream::Server(stream)))))
        }
        Some(Protection::Authenticated) => {
            let (tcp, peer) = left_by_server(stream).await?;
            Ok(Some(Arrived::Authenticated(tcp, peer)))
        }
        None => Err(io::Error::other("the caller speaks TLS, but does not say that it speaks Cairn's")),
    }
}
