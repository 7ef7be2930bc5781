//! [`Door`]: who comes in at an HTTP port, and what each visitor may see.
//!
//! Invariant: a request is answered only with the [`Visitor`] of its own connection at hand. Not here: keys and tokens
//! (the binary brings them), what is answered (`http.rs`).
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The bytes of a connection, plain or through TLS.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// A connection that came in, and who is there.
pub type Entered = io::Result<(Box<dyn Wire>, Visitor)>;

/// Lets connections in.
pub trait Door: Send + Sync + 'static {
    /// Looks at a new connection. It may take as long as the head of a request.
    fn enter(&self, stream: TcpStream, from: SocketAddr) -> Pin<Box<dyn Future<Output = Entered> + Send + '_>>;
}

/// Tells what the `Authorization` of a request makes of a visitor: `Err` with why he may see no more than whether all
/// is well.
type Judge = dyn Fn(Option<&[u8]>) -> Result<(), String> + Send + Sync;

/// Whoever is at the other end of one connection.
#[derive(Clone)]
pub struct Visitor(Arc<Judge>);

impl Visitor {
    /// One who is judged by what his request shows.
    pub fn judged(judge: impl Fn(Option<&[u8]>) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(judge))
    }

    /// Whether he sees everything.
    pub(crate) fn may_see(&self, authorization: Option<&[u8]>) -> Result<(), String> {
        (self.0)(authorization)
    }
}

/// A port that is open to everybody.
#[derive(Clone, Copy, Debug)]
pub struct OpenDoor;

impl Door for OpenDoor {
    fn enter(&self, stream: TcpStream, _from: SocketAddr) -> Pin<Box<dyn Future<Output = Entered> + Send + '_>> {
        Box::pin(async move { Ok((Box::new(stream) as Box<dyn Wire>, Visitor::judged(|_| Ok(())))) })
    }
}
