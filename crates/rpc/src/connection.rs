//! Connecting and the hello of the asking side; [`Connection`], a bare connection for one task that wants no more.
//!
//! Not here: deadlines, reconnecting, sharing between tasks (`client.rs`).

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;

use cairn_env::buf::{AlignedBuf, BufError, BufPool};
use cairn_security::{Sealer, Tls, explain};
use cairn_types::ErrorCode;
use cairn_wire::audience::Caller;
use cairn_wire::common::ErrorInfo;
use cairn_wire::error::WireError;
use cairn_wire::frame::{CallHeader, Flags, FrameError, OPCODE_HELLO};
use cairn_wire::hello::{Hello, HelloError};
use cairn_wire::protection::Protection;
use prost::Message;
use tokio::net::TcpStream;

use crate::client::NotSent;
use crate::identity::Identity;
use crate::out::{OutBuf, Writer};
use crate::payload::Payload;
use crate::reader::{Next, Reader, Step};
use crate::socket;
use crate::stream::{NoTls, Stream};

/// A connection on which both sides have said hello.
pub(crate) struct Handshaken {
    pub(crate) stream: Stream,
    pub(crate) reader: Reader,
    pub(crate) hello: Hello,
    /// For the next frame, where frames have codes.
    pub(crate) sealer: Option<Sealer>,
}

/// Connects to "host:port", trying all addresses of a name in turn, for operations that need this much. Callers put a
/// timeout around it.
pub(crate) async fn connect(addr: &str, identity: &Identity, needed: Protection) -> Result<Handshaken, NotSent> {
    let stream = open(addr).await.map_err(fault)?;
    let stream = match identity.tls() {
        None => Stream::Plain(stream),
        Some(tls) => secure(addr, stream, tls, needed).await?,
    };
    handshake(stream, identity, addr).await
}

/// Goes on with TLS. Where the configuration of this process says that some of its cluster may not speak it yet, and
/// the other side does not, it goes on without.
async fn secure(addr: &str, stream: TcpStream, tls: &Tls, needed: Protection) -> Result<Stream, NotSent> {
    match Stream::connect(stream, tls, needed).await {
        Ok(stream) => Ok(stream),
        Err(NoTls::Failed(error)) => Err(of_tls(error)),
        Err(NoTls::Silent(_)) if !tls.is_required() => Ok(Stream::Plain(open(addr).await.map_err(fault)?)),
        Err(NoTls::Silent(error)) => Err(fault(format!(
            "the server closed the connection instead of speaking TLS ({error}); has its cluster no security yet? Whoever has a key never speaks without TLS"
        ))),
    }
}

/// An error of a stream with TLS: what is about keys does not get better by waiting.
fn of_tls(error: io::Error) -> NotSent {
    match explain(&error) {
        // One server among several; others may be as they should.
        Some(text) if is_about_server(&error) => fault(text),
        Some(text) => NotSent::Refused(WireError::new(ErrorCode::NotPermitted, text)),
        None => fault(error),
    }
}

fn fault(error: impl ToString) -> NotSent {
    NotSent::Connect { why: error.to_string(), retry_in: std::time::Duration::ZERO }
}

async fn open(addr: &str) -> io::Result<TcpStream> {
    let stream = match addr.parse::<SocketAddr>() {
        Ok(addr) => TcpStream::connect(addr).await?,
        Err(_) => TcpStream::connect(addr).await?,
    };
    socket::prepare(&stream)?;
    Ok(stream)
}

async fn handshake(mut stream: Stream, identity: &Identity, addr: &str) -> Result<Handshaken, NotSent> {
    let ours = identity.hello();
    let (sealer, opener) = stream.take_keys();
    let mut out = OutBuf::default();
    out.seal_with(sealer);
    out.push(Flags::REQUEST, OPCODE_HELLO, 0, Payload::None, |out| ours.encode(out))?;
    let mut writer = Writer::default();
    writer.take(&mut out);
    let mut reader = Reader::new(opener).of_answers();
    let hello = poll_fn(|cx| {
        loop {
            if let Err(e) = writer.flush(cx, &mut stream) {
                return Poll::Ready(Err(fault(e)));
            }
            match reader.next() {
                Ok(Next::Frame(header, message, _)) => return Poll::Ready(judge(&ours, header.flags, message)),
                Ok(Next::NeedBuf(_)) => return Poll::Ready(Err(fault("a hello with a payload"))),
                Ok(Next::More) => {}
                Err(e) => return Poll::Ready(Err(fault(e))),
            }
            match reader.fill(cx, &mut stream) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(fault("the server closed the connection at the hello"))),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(e)) => return Poll::Ready(Err(of_tls(e))),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await?;
    check_holder(&stream, &hello, identity, addr)?;
    learn_cluster(&stream, &hello, identity)?;
    reader.hello_done();
    Ok(Handshaken { stream, reader, hello, sealer: out.take_sealer() })
}

fn is_about_server(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::InvalidCertificate(_)))
}

/// Takes the server's cluster for one's own, where that is not known yet. A process that has a key learns it from
/// nobody without one.
fn learn_cluster(stream: &Stream, hello: &Hello, identity: &Identity) -> Result<(), NotSent> {
    let is_vouched_for = identity.tls().is_none() || !stream.is_plain();
    if hello.cluster.is_none() || (identity.cluster().is_none() && !is_vouched_for) {
        return Ok(());
    }
    match identity.set_cluster(hello.cluster) {
        true => Ok(()),
        false => Err(HelloError::WrongCluster { ours: identity.cluster(), theirs: hello.cluster }.into()),
    }
}

/// A server is the node that its certificate names, where it names one.
fn check_holder(stream: &Stream, hello: &Hello, identity: &Identity, addr: &str) -> Result<(), NotSent> {
    if stream.is_plain() {
        return Ok(());
    }
    let holder = stream.holder();
    let is_server = holder.as_ref().is_some_and(|holder| matches!(holder.caller, Caller::Node(_)));
    let is_that_node = holder.as_ref().is_some_and(|holder| hello.node.get() == 0 || holder.may_be(hello.node));
    let is_revoked = |name: &str| identity.tls().and_then(|tls| tls.revoked()).is_some_and(|list| list.has(name));
    if let Some(holder) = holder.as_ref().filter(|holder| is_revoked(&holder.name)) {
        return Err(fault(format!(
            "whoever answers as node {} has the key of {}, which was revoked",
            hello.node.get(),
            holder.name
        )));
    }
    if let (Some(holder), true) = (&holder, is_server && is_that_node) {
        let keys = identity.node_keys();
        // What stands at an address is what the map names there, and who says that it is a node has that node's key.
        let other = keys.other_at(addr, holder).or_else(|| keys.other_of_node(hello.node, holder));
        return match other {
            None => Ok(()),
            Some(other) => Err(fault(format!(
                "whoever answers at {addr} has the key of {}, and the map says that it is {other}'s place",
                holder.name
            ))),
        };
    }
    let name = holder.map_or_else(|| "nobody".to_owned(), |holder| holder.name);
    let text = format!("whoever answers as node {} has the key of {name}: its key is not its own", hello.node.get());
    Err(fault(text))
}

/// Accepts or refuses the answer to the hello.
fn judge(ours: &Hello, flags: Flags, message: &[u8]) -> Result<Hello, NotSent> {
    if flags.is_error() {
        let info = ErrorInfo::decode(message).map_err(fault)?;
        return Err(NotSent::Refused(WireError::from_info(info)));
    }
    if !flags.is_response() {
        return Err(fault("the server sent a request before its hello"));
    }
    let theirs = Hello::decode(message)?;
    ours.common_version(&theirs)?;
    ours.check_cluster(&theirs)?;
    Ok(theirs)
}

/// Why a bare connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// It did not come about.
    #[error("{0}")]
    NotConnected(#[from] NotSent),
    /// It broke.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// What came is not a frame.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// The pool cannot give a buffer for a payload.
    #[error("{0}")]
    Buffer(#[from] BufError),
}

/// An answer on a bare connection.
pub struct Incoming<'a> {
    /// That of the request.
    pub request_id: u64,
    /// `message` is an `ErrorInfo`.
    pub error: bool,
    /// The protobuf message.
    pub message: &'a [u8],
    /// The raw bytes that came along.
    pub payload: Option<AlignedBuf>,
}

/// One connection, owned by one task: requests are gathered by [`send`](Self::send) and written by
/// [`recv`](Self::recv) or [`flush`](Self::flush). No deadlines; meant for benchmarks and tools.
pub struct Connection {
    stream: Stream,
    reader: Reader,
    out: OutBuf,
    writer: Writer,
    pool: BufPool,
    hello: Hello,
    next_id: u64,
}

impl Connection {
    /// Connects and says hello.
    pub async fn connect(addr: &str, identity: &Identity, pool: BufPool) -> Result<Self, ConnectionError> {
        let Handshaken { stream, reader, hello, sealer } = connect(addr, identity, Protection::Private).await?;
        let mut out = OutBuf::default();
        out.seal_with(sealer);
        Ok(Self { stream, reader, out, writer: Writer::default(), pool, hello, next_id: 1 })
    }

    /// What the server said about itself.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Adds a request to those that are written next, and returns its id.
    pub fn send(
        &mut self,
        opcode: u16,
        call: CallHeader,
        message: &impl Message,
        payload: impl Into<Payload>,
    ) -> Result<u64, ConnectionError> {
        let id = self.next_id;
        self.next_id += 1;
        self.out.push(Flags::REQUEST, opcode, id, payload.into(), |out| {
            call.encode(out);
            message.encode(out).expect("a Vec grows as needed");
        })?;
        Ok(id)
    }

    fn poll_flush(&mut self, cx: &mut std::task::Context<'_>) -> io::Result<bool> {
        loop {
            if self.writer.pending() == 0 {
                if self.out.is_empty() {
                    return Ok(true);
                }
                self.writer.take(&mut self.out);
            }
            if !self.writer.flush(cx, &mut self.stream)?.done {
                return Ok(false);
            }
        }
    }

    /// Writes all requests added so far.
    pub async fn flush(&mut self) -> Result<(), ConnectionError> {
        poll_fn(|cx| match self.poll_flush(cx) {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(e) => Poll::Ready(Err(e)),
        })
        .await?;
        Ok(())
    }

    /// The next answer that was received already, without waiting.
    pub fn try_recv(&mut self) -> Result<Option<Incoming<'_>>, ConnectionError> {
        loop {
            match self.reader.advance()? {
                Step::More => return Ok(None),
                Step::NeedBuf(header) => self.reader.give(self.pool.try_take(header.payload_len as usize)?),
                Step::Frame(header, message, payload) => {
                    return Ok(Some(Incoming {
                        request_id: header.request_id,
                        error: header.flags.is_error(),
                        message: self.reader.message(message),
                        payload,
                    }));
                }
            }
        }
    }

    /// Writes what waits and reads once from the socket.
    pub async fn fill(&mut self) -> Result<(), ConnectionError> {
        let count = poll_fn(|cx| {
            if let Err(e) = self.poll_flush(cx) {
                return Poll::Ready(Err(e));
            }
            self.reader.fill(cx, &mut self.stream)
        })
        .await?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(())
    }
}
