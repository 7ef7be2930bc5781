//! [`Carrier`]: the TCP connection below TLS. It can be carried from one runtime to another, and bounds what a stranger
//! may send.
//!
//! Invariant: until the bound is lifted, no more than it is read, however much has come.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A TCP connection.
pub struct Carrier {
    tcp: Tcp,
    /// Bytes that may still be read.
    left: Option<usize>,
}

enum Tcp {
    Here(TcpStream),
    /// On its way to another runtime.
    Parked(std::net::TcpStream),
    Gone,
}

fn not_connected() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl Carrier {
    pub(crate) fn new(tcp: TcpStream) -> Self {
        Self { tcp: Tcp::Here(tcp), left: None }
    }

    /// Of which no more than so many bytes are read before the bound is lifted.
    pub fn bounded(tcp: TcpStream, bytes: usize) -> Self {
        Self { tcp: Tcp::Here(tcp), left: Some(bytes) }
    }

    /// Whatever comes is read from now on.
    pub fn unbound(&mut self) {
        self.left = None;
    }

    /// Takes it out of this runtime. From then on there is no bound.
    pub(crate) fn park(&mut self) -> io::Result<()> {
        if let Tcp::Here(tcp) = std::mem::replace(&mut self.tcp, Tcp::Gone) {
            self.tcp = Tcp::Parked(tcp.into_std()?);
        }
        self.left = None;
        Ok(())
    }

    /// Puts it into this runtime.
    pub(crate) fn unpark(&mut self) -> io::Result<()> {
        if let Tcp::Parked(tcp) = std::mem::replace(&mut self.tcp, Tcp::Gone) {
            self.tcp = Tcp::Here(TcpStream::from_std(tcp)?);
        }
        Ok(())
    }

    /// The connection itself, in the runtime in which it is.
    pub(crate) fn into_tcp(self) -> io::Result<TcpStream> {
        match self.tcp {
            Tcp::Here(tcp) => Ok(tcp),
            Tcp::Parked(_) | Tcp::Gone => Err(not_connected()),
        }
    }

    fn tcp(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        match &mut self.tcp {
            Tcp::Here(tcp) => Ok(Pin::new(tcp)),
            Tcp::Parked(_) | Tcp::Gone => Err(not_connected()),
        }
    }
}

impl AsyncRead for Carrier {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(left) = self.left else { return self.tcp()?.poll_read(cx, into) };
        if left == 0 {
            return Poll::Ready(Err(io::Error::other("it sent more than a handshake takes")));
        }
        let most = left.min(into.remaining());
        let mut part = ReadBuf::new(into.initialize_unfilled_to(most));
        ready!(self.tcp()?.poll_read(cx, &mut part))?;
        let count = part.filled().len();
        into.advance(count);
        self.left = Some(left - count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.tcp()?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.tcp()?.poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp()?.poll_shutdown(cx)
    }
}
