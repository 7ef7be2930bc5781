//! [`Stream`]: a connection's bytes, plain or through TLS, behind one face.
//!
//! Invariants: an accepted connection is what its first byte says, and stays it (0x16 begins a handshake of TLS, `C` a frame); nothing of a
//! peer is handed on before its handshake is done and its certificate was checked; without a key of this process nothing here costs more
//! than a look at a tag. A handshake runs as far as its bytes allow whenever the connection is read, so it is bounded by what bounds
//! connections without a hello: their number and their time.
//! Not here: keys and their configuration (`security`), what a peer may ask (`conn.rs`).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use cairn_security::{ALPN, Tls};
use cairn_wire::holder::Holder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{Accept, TlsAcceptor, TlsConnector, TlsStream};

/// What a handshake of TLS begins with.
const TLS_FIRST: u8 = 0x16;

/// The bytes of one connection.
pub(crate) enum Stream {
    /// Frames as they are.
    Plain(TcpStream),
    /// Accepted by a process with a key: nothing has come yet.
    Fresh(Fresh),
    /// The accepting side of a handshake.
    Shaking(Box<Accept<TcpStream>>),
    /// Frames inside TLS.
    Tls(Box<TlsStream<TcpStream>>),
    /// What became of it failed.
    Broken,
}

/// See [`Stream::Fresh`].
pub(crate) struct Fresh {
    tcp: TcpStream,
    acceptor: TlsAcceptor,
}

/// Why the asking side has no TLS.
pub(crate) enum NoTls {
    /// The other side closed instead of answering: it does not speak TLS, or has no place.
    Silent(io::Error),
    /// The network, or a certificate.
    Failed(io::Error),
}

impl Stream {
    /// The accepting side; with a key of a server it takes both kinds.
    pub(crate) fn accepted(tcp: TcpStream, tls: Option<&Tls>) -> Self {
        match tls.and_then(Tls::server) {
            Some(config) => Self::Fresh(Fresh { tcp, acceptor: TlsAcceptor::from(config) }),
            None => Self::Plain(tcp),
        }
    }

    /// The asking side. Callers put a timeout around it.
    pub(crate) async fn connect(tcp: TcpStream, tls: &Tls) -> Result<Self, NoTls> {
        let connecting = TlsConnector::from(tls.client()).connect(Tls::server_name(), tcp);
        match connecting.await {
            Ok(stream) if stream.get_ref().1.alpn_protocol() == Some(ALPN) => {
                Ok(Self::Tls(Box::new(TlsStream::Client(stream))))
            }
            Ok(_) => Err(NoTls::Failed(io::Error::other("the server speaks TLS, but not Cairn's"))),
            Err(error) if error.get_ref().is_some_and(|inner| inner.is::<tokio_rustls::rustls::Error>()) => {
                Err(NoTls::Failed(error))
            }
            Err(error) => Err(NoTls::Silent(error)),
        }
    }

    /// Whether its frames can be read by anybody on the way; `false` while that is open.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Whether a handshake has begun and is not done.
    pub(crate) fn is_shaking(&self) -> bool {
        matches!(self, Self::Shaking(_) | Self::Broken)
    }

    /// Whom the peer's certificate names.
    pub(crate) fn holder(&self) -> Option<Holder> {
        let Self::Tls(stream) = self else { return None };
        Tls::peer(stream.get_ref().1.peer_certificates())
    }

    /// Bytes of frames. Nothing read without an error: the peer closed.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            match self {
                Self::Plain(tcp) => return Pin::new(tcp).poll_read(cx, into),
                Self::Tls(stream) => {
                    return match ready!(Pin::new(stream.as_mut()).poll_read(cx, into)) {
                        // Frames say how long they are, so an end without a farewell cuts nothing off unseen.
                        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
                        read => Poll::Ready(read),
                    };
                }
                Self::Fresh(fresh) => {
                    let mut first = [0];
                    let mut peeked = ReadBuf::new(&mut first);
                    ready!(fresh.tcp.poll_peek(cx, &mut peeked))?;
                    self.decide(first[0] == TLS_FIRST);
                }
                Self::Shaking(accept) => {
                    let shaken = ready!(Pin::new(accept.as_mut()).poll(cx));
                    *self = Self::Broken;
                    let stream = shaken?;
                    if stream.get_ref().1.alpn_protocol() != Some(ALPN) {
                        return Poll::Ready(Err(io::Error::other(
                            "the caller speaks TLS, but does not say that it speaks Cairn's",
                        )));
                    }
                    *self = Self::Tls(Box::new(TlsStream::Server(stream)));
                }
                Self::Broken => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
            }
        }
    }

    fn decide(&mut self, is_tls: bool) {
        let Self::Fresh(fresh) = std::mem::replace(self, Self::Broken) else { return };
        let Fresh { tcp, acceptor } = fresh;
        *self = match is_tls {
            true => Self::Shaking(Box::new(acceptor.accept(tcp))),
            false => Self::Plain(tcp),
        };
    }

    /// Takes bytes of frames: into the kernel, or into the records of TLS, of which [`poll_flush`](Self::poll_flush) tells when they
    /// are in the kernel.
    pub(crate) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, slices),
            _ => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// The same of bytes in one piece.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, bytes),
            _ => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Whether what was taken is in the kernel.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }
}

/// The key of a process that may have none.
pub(crate) fn key_of(tls: Option<&Arc<Tls>>) -> Option<&Tls> {
    tls.map(Arc::as_ref)
}
