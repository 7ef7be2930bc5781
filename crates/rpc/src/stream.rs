//! [`Stream`]: a connection's bytes, plain, through TLS, or plain behind a handshake of TLS, behind one face.
//!
//! Invariants: an accepted connection is what its first byte says, and stays it (0x16 begins a handshake of TLS, `C` a
//! frame); nothing of a peer is handed on before its handshake is done and its certificate was checked; frames leave
//! TLS only when both sides have agreed on it in the handshake and the server has said, in its last record, that it has
//! the whole of that: so no byte of a frame is ever taken for one of a record; without a key of this process nothing
//! here costs more than a look at a tag. Not here: keys and their configuration (`security`), where handshakes run and
//! what bounds them (`server/greeter.rs`), what a peer may ask (`conn.rs`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use cairn_security::{FrameKeys, Opener, Sealer, Tls, agreed};
use cairn_wire::holder::Holder;
use cairn_wire::protection::Protection;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream, client, server};

use crate::carrier::Carrier;

/// The bytes of one connection.
pub(crate) enum Stream {
    /// Frames as they are.
    Plain(TcpStream),
    /// Frames inside TLS.
    Tls(Box<TlsStream<Carrier>>),
    /// Frames as they are, each with a code.
    Authenticated(TcpStream, Box<Peer>),
}

/// The other side of a connection that left TLS.
pub(crate) struct Peer {
    holder: Option<Holder>,
    /// Until whoever makes and checks the codes has them.
    keys: Option<FrameKeys>,
}

/// The only byte that is sent inside TLS on a connection which leaves it: from the server, who has the handshake whole.
const LEAVE: u8 = b'>';

/// Why the asking side has no TLS.
pub(crate) enum NoTls {
    /// The other side closed instead of answering: it does not speak TLS, or has no place.
    Silent(io::Error),
    /// The network, or a certificate.
    Failed(io::Error),
}

impl Stream {
    /// The asking side. Callers put a timeout around it.
    pub(crate) async fn connect(tcp: TcpStream, tls: &Tls, needed: Protection) -> Result<Self, NoTls> {
        let connecting = TlsConnector::from(tls.client(needed)).connect(Tls::server_name(), Carrier::new(tcp));
        match connecting.await {
            Ok(stream) => match agreed(stream.get_ref().1.alpn_protocol()) {
                Some(Protection::Private) => Ok(Self::Tls(Box::new(TlsStream::Client(stream)))),
                Some(Protection::Authenticated) => Self::left_by_client(stream).await.map_err(NoTls::Failed),
                None => Err(NoTls::Failed(io::Error::other("the server speaks TLS, but not Cairn's"))),
            },
            Err(error) if error.get_ref().is_some_and(|inner| inner.is::<tokio_rustls::rustls::Error>()) => {
                Err(NoTls::Failed(error))
            }
            Err(error) => Err(NoTls::Silent(error)),
        }
    }

    async fn left_by_client(mut stream: client::TlsStream<Carrier>) -> io::Result<Self> {
        if stream.read_u8().await? != LEAVE {
            return Err(io::Error::other("the server does not say that frames may leave TLS"));
        }
        let (carrier, handshake) = stream.into_inner();
        let keys = FrameKeys::of(&handshake, false).map_err(io::Error::other)?;
        let peer = Peer { holder: Tls::peer(handshake.peer_certificates()), keys: Some(keys) };
        Ok(Self::Authenticated(carrier.into_tcp()?, Box::new(peer)))
    }

    /// Nobody has said anything on it: neither side knows who the other one is.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// What it is good for.
    pub(crate) fn protection(&self) -> Protection {
        match self {
            Self::Authenticated(..) => Protection::Authenticated,
            // Without keys there is nothing that would be served on one way and not on the other.
            Self::Tls(_) | Self::Plain(_) => Protection::Private,
        }
    }

    /// Whom the peer's certificate names.
    pub(crate) fn holder(&self) -> Option<Holder> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => Tls::peer(stream.get_ref().1.peer_certificates()),
            Self::Authenticated(_, peer) => peer.holder.clone(),
        }
    }

    /// For the codes of its frames, if they have any. Given once.
    pub(crate) fn take_keys(&mut self) -> (Option<Sealer>, Option<Opener>) {
        let Self::Authenticated(_, peer) = self else { return (None, None) };
        let keys = peer.keys.take().expect("the keys of a connection are taken once, or a number would be used twice");
        (Some(keys.sealer), Some(keys.opener))
    }

    /// The socket, where its bytes are those of frames.
    pub(crate) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain(tcp) | Self::Authenticated(tcp, _) => Some(tcp),
            Self::Tls(_) => None,
        }
    }

    /// Bytes of frames. Nothing read without an error: the peer closed.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(tcp) | Self::Authenticated(tcp, _) => Pin::new(tcp).poll_read(cx, into),
            Self::Tls(stream) => match ready!(Pin::new(stream.as_mut()).poll_read(cx, into)) {
                // Frames say how long they are, so an end without a farewell cuts nothing off unseen.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
                read => Poll::Ready(read),
            },
        }
    }

    /// Takes bytes of frames: into the kernel, or into the records of TLS, of which [`poll_flush`](Self::poll_flush)
    /// tells when they are in the kernel.
    pub(crate) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(tcp) | Self::Authenticated(tcp, _) => Pin::new(tcp).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, slices),
        }
    }

    /// The same of bytes in one piece.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(tcp) | Self::Authenticated(tcp, _) => Pin::new(tcp).poll_write(cx, bytes),
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

/// The server's side of leaving TLS: says so, and takes the connection out of this runtime, with what is known of the
/// peer.
pub(crate) async fn left_by_server(
    mut stream: server::TlsStream<Carrier>,
) -> io::Result<(std::net::TcpStream, Box<Peer>)> {
    stream.write_u8(LEAVE).await?;
    stream.flush().await?;
    let (carrier, handshake) = stream.into_inner();
    let keys = FrameKeys::of(&handshake, true).map_err(io::Error::other)?;
    let peer = Peer { holder: Tls::peer(handshake.peer_certificates()), keys: Some(keys) };
    Ok((carrier.into_tcp()?.into_std()?, Box::new(peer)))
}
