//! [`Proxy`]: the address of a process as all others know it, which stays the same over its restarts. What goes through
//! it suffers what [`Links`] say.
//!
//! Who connected is read from the hello, the first frame of every connection. Not here: which faults there are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cairn_wire::frame::{FrameHeader, HEADER_LEN};
use cairn_wire::hello::{HELLO_MAX, Hello, PeerKind};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::links::{End, Fate, Links, Way};

/// Bytes of one piece.
const PIECE: usize = 64 << 10;

/// One process's address.
pub struct Proxy {
    place: usize,
    address: SocketAddr,
    links: Arc<Links>,
    /// Where the process listens now; none while it does not run.
    backend: Mutex<Option<SocketAddr>>,
    /// Raised to end all connections.
    generation: watch::Sender<u64>,
}

impl Proxy {
    /// Listens on a free port, on the current runtime.
    pub async fn start(place: usize, links: Arc<Links>) -> std::io::Result<Arc<Self>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let generation = watch::Sender::new(0);
        let proxy = Arc::new(Self { place, address, links, backend: Mutex::new(None), generation });
        let weak = Arc::downgrade(&proxy);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Some(proxy) = weak.upgrade() else { return };
                tokio::spawn(async move {
                    // Whatever ends a connection ends it for both sides.
                    let _ended = proxy.carry(stream).await;
                });
            }
        });
        Ok(proxy)
    }

    /// The address that others know.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Where the process is, without faults on the way.
    pub fn direct(&self) -> Option<String> {
        self.backend.lock().map(|address| address.to_string())
    }

    /// The process listens here from now on, or not any more; connections of before end.
    pub fn lead_to(&self, backend: Option<SocketAddr>) {
        *self.backend.lock() = backend;
        self.end_connections();
    }

    /// Ends all connections.
    pub fn end_connections(&self) {
        self.generation.send_modify(|n| *n += 1);
    }

    async fn carry(&self, mut client: TcpStream) -> std::io::Result<()> {
        let mut generation = self.generation.subscribe();
        let Some(backend) = *self.backend.lock() else { return Ok(()) };
        client.set_nodelay(true)?;
        let (from, hello) = self.who(&mut client).await?;
        if self.links.refuses(from, self.place) {
            return Ok(());
        }
        let server = TcpStream::connect(backend).await?;
        server.set_nodelay(true)?;
        let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
        let there = self.pump(from, Way::There, hello, client_in, server_out);
        let back = self.pump(from, Way::Back, Vec::new(), server_in, client_out);
        tokio::select! {
            ended = there => ended,
            ended = back => ended,
            _ = generation.changed() => Ok(()),
        }
    }

    /// Reads the hello without taking anything from it.
    async fn who(&self, client: &mut TcpStream) -> std::io::Result<(End, Vec<u8>)> {
        let mut bytes = vec![0; HEADER_LEN];
        client.read_exact(&mut bytes).await?;
        let Ok(header) = FrameHeader::decode(bytes[..].try_into().expect("the length of a header")) else {
            return Ok((End::Unknown, bytes));
        };
        let length = (header.message_len as usize).min(HELLO_MAX);
        bytes.resize(HEADER_LEN + length, 0);
        client.read_exact(&mut bytes[HEADER_LEN..]).await?;
        let end = match Hello::decode(&bytes[HEADER_LEN..]) {
            Ok(hello) if hello.kind == PeerKind::Server => self.links.end_of(hello.node.get()),
            Ok(_) => End::Client,
            Err(_) => End::Unknown,
        };
        Ok((end, bytes))
    }

    async fn pump(
        &self,
        from: End,
        way: Way,
        first: Vec<u8>,
        mut source: OwnedReadHalf,
        mut sink: OwnedWriteHalf,
    ) -> std::io::Result<()> {
        let mut rules = self.links.watch();
        let mut piece = first;
        loop {
            if piece.is_empty() {
                piece.resize(PIECE, 0);
                let count = loop {
                    tokio::select! {
                        count = source.read(&mut piece) => break count?,
                        _ = rules.changed() => {
                            if self.links.refuses(from, self.place) {
                                return Ok(());
                            }
                        }
                    }
                };
                if count == 0 {
                    return Ok(());
                }
                piece.truncate(count);
            }
            if !self.settle(from, way, &mut piece, &mut rules).await {
                sink.write_all(&piece).await?;
                return Ok(());
            }
            sink.write_all(&piece).await?;
            piece.clear();
        }
    }

    /// Waits as long as the piece has to, and changes it as it is to be. False: the connection ends behind it.
    async fn settle(&self, from: End, way: Way, piece: &mut Vec<u8>, rules: &mut watch::Receiver<u64>) -> bool {
        let mut again = false;
        loop {
            rules.borrow_and_update();
            match self.links.fate(from, self.place, way, piece.len(), again) {
                Fate::Deliver => return true,
                Fate::Hold => {
                    // An error means that the cluster is gone.
                    if rules.changed().await.is_err() {
                        return false;
                    }
                    again = true;
                }
                Fate::Delay(millis) => {
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                    again = true;
                }
                Fate::Break(at) => {
                    piece.truncate(at);
                    return false;
                }
                Fate::Flip(bit) => {
                    piece[bit / 8] ^= 1 << (bit % 8);
                    return true;
                }
            }
        }
    }
}
