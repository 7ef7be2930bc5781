//! [`Stream`]: a connection's bytes, plain or through TLS, behind one face.
//!
//! Invariants: an accepted connection is what its first byte says, and stays it (0x16 begins a handshake of TLS, `C` a frame); nothing of a
//! peer is handed on before its handshake is done and its certificate was checked; without a key of this process nothing here costs more
//! than a look at a tag.
//! Not here: keys and their configuration (`security`), where handshakes run and what bounds them (`server/greeter.rs`), what a peer may ask
//! (`conn.rs`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use cairn_security::{ALPN, Tls};
use cairn_wire::holder::Holder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};

use crate::carrier::Carrier;

/// The bytes of one connection.
pub(crate) enum Stream {
    /// Frames as they are.
    Plain(TcpStream),
    /// Frames inside TLS.
    Tls(Box<TlsStream<Carrier>>),
}

/// Why the asking side has no TLS.
pub(crate) enum NoTls {
    /// The other side closed instead of answering: it does not speak TLS, or has no place.
    Silent(io::Error),
    /// The network, or a certificate.
    Failed(io::Error),
}

impl Stream {
    /// The asking side. Callers put a timeout around it.
    pub(crate) async fn connect(tcp: TcpStream, tls: &Tls) -> Result<Self, NoTls> {
        let connecting = TlsConnector::from(tls.client()).connect(Tls::server_name(), Carrier::new(tcp));
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

    /// Whether its frames can be read by anybody on the way.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Whom the peer's certificate names.
    pub(crate) fn holder(&self) -> Option<Holder> {
        let Self::Tls(stream) = self else { return None };
        Tls::peer(stream.get_ref().1.peer_certificates())
    }

    /// Bytes of frames. Nothing read without an error: the peer closed.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, into),
            Self::Tls(stream) => match ready!(Pin::new(stream.as_mut()).poll_read(cx, into)) {
                // Frames say how long they are, so an end without a farewell cuts nothing off unseen.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
                read => Poll::Ready(read),
            },
        }
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
        }
    }

    /// The same of bytes in one piece.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, bytes),
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
