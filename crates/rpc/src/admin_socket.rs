//! The admin socket: what changes the cluster comes in on a Unix socket of a server, from root or the server's own
//! user, and is passed on to whom it is for.
//!
//! A connection carries one request, without a hello: the frame of a [`Opcode::Relay`], answered by one frame. The
//! server looks at the peer's credentials as the kernel tells them, and makes the call over its own connections, as a
//! server of the cluster: one hop, with the deadline of the request. Invariants: nothing is read from others than root
//! and the server's user; nothing but changes of [`Opcode::is_admin_change`] is passed on; at most [`UNDER_WAY_MAX`] at
//! a time. Not here: who refuses such requests over TCP (the binary's router), who finds the socket (the client crate).

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::{ErrorInfo, RelayRequest, RelayResponse};
use cairn_wire::error::WireError;
use cairn_wire::frame::{CallHeader, Flags, FrameHeader, HEADER_LEN, begin_frame, check_frame, finish_frame};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};

use crate::client::{CallError, CallOptions, Client, Lane, NotSent, Unknown};
use crate::payload::Payload;

/// Name of the socket in the directory of a node.
pub const SOCKET_FILE: &str = "admin.sock";
/// Requests that are passed on at a time; others wait.
pub const UNDER_WAY_MAX: usize = 16;
/// Whoever connects says what he wants within this time, and takes the answer within it.
const TALK_MAX: Duration = Duration::from_secs(5);
/// Longest time that a request takes, whatever it asks for.
const DEADLINE_MAX: Duration = Duration::from_secs(60);
/// Longest path that fits an address of a Unix socket (108 bytes with its end).
const PATH_MAX: usize = 107;
/// Wait after `accept` failed, which happens when the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// `RelayResponse.outcome`
const ANSWERED: u32 = 1;
const REFUSED: u32 = 2;
const NOT_DONE: u32 = 3;
const UNKNOWN: u32 = 4;

/// The socket of a running server; dropping it ends it.
pub struct AdminSocket {
    path: PathBuf,
    stop: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl AdminSocket {
    /// Listens in a directory that is this process's alone, under its lock; what a process before it left there is
    /// replaced. `uid` is who may, beside root.
    pub fn start(dir: &Path, uid: u32, client: Client) -> io::Result<Self> {
        let path = std::path::absolute(dir)?.join(SOCKET_FILE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let (short, _held) = short_path(&path)?;
        let listener = std::os::unix::net::UnixListener::bind(short)?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("admin-socket".to_owned()).spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    () = accept(listener, uid, client) => {}
                    // An error means that the socket was dropped, which is the signal as well.
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { path, stop: Some((stop, thread)) })
    }

    /// Where it is, from the root on.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        let Some((stop, thread)) = self.stop.take() else { return };
        drop(stop);
        if thread.join().is_err() {
            tracing::error!("the thread of the admin socket panicked");
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "the admin socket stays; the next start replaces it");
        }
    }
}

/// A path that fits an address, valid as long as the directory behind it is held.
fn short_path(path: &Path) -> io::Result<(PathBuf, Option<File>)> {
    if path.as_os_str().len() <= PATH_MAX {
        return Ok((path.to_path_buf(), None));
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let held = File::open(dir)?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&held);
    Ok((Path::new("/proc/self/fd").join(number.to_string()).join(name), Some(held)))
}

async fn accept(listener: std::os::unix::net::UnixListener, uid: u32, client: Client) {
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the admin socket takes no connections"),
    };
    let places = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "accepting a connection of the admin socket failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let client = client.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(stream, uid, client).await {
                tracing::debug!(%error, "a connection of the admin socket broke");
            }
            drop(place);
        });
    }
}

/// Who may change the cluster.
fn may(peer: u32, server: u32) -> bool {
    peer == 0 || peer == server
}

async fn serve(mut stream: UnixStream, server: u32, client: Client) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    let answer = match may(peer, server) {
        true => {
            let request = timely(receive(&mut stream)).await?;
            pass_on(&client, peer, request).await
        }
        false => {
            let text = format!(
                "this server takes changes from root and from its own user (uid {server}), not from uid {peer}; become one of them (sudo)"
            );
            refused(&WireError::new(ErrorCode::NotPermitted, text))
        }
    };
    timely(send(&mut stream, Flags::RESPONSE, &answer)).await
}

async fn timely<T>(talk: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(TALK_MAX, talk).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn refused(error: &WireError) -> RelayResponse {
    RelayResponse { outcome: REFUSED, error: Some(error.to_info()), ..RelayResponse::default() }
}

async fn pass_on(client: &Client, uid: u32, request: RelayRequest) -> RelayResponse {
    let RelayRequest { address, opcode, message, deadline_ms } = request;
    let known = u16::try_from(opcode).ok().and_then(Opcode::from_code).filter(|opcode| opcode.is_admin_change());
    let Some(opcode) = known else {
        let text = format!("operation {opcode:#06x} is no change of the cluster: it goes to its server directly");
        return refused(&WireError::new(ErrorCode::BadRequest, text));
    };
    tracing::info!(uid, operation = opcode.name(), address, "a user of this machine changes the cluster");
    let deadline = Duration::from_millis(deadline_ms.into()).min(DEADLINE_MAX);
    let options = CallOptions { lane: Lane::Small, ..CallOptions::new(deadline) };
    let told = |outcome: u32, text: String| RelayResponse { outcome, text, ..RelayResponse::default() };
    match client.call(&address, opcode.code(), &EncodedMessage(message), Payload::None, options).await {
        Ok(response) => {
            RelayResponse { outcome: ANSWERED, message: response.message.to_vec(), ..RelayResponse::default() }
        }
        Err(CallError::Remote(error)) => refused(&error),
        // Waiting does not mend it.
        Err(CallError::NotSent { cause: NotSent::Hello(hello), .. }) => {
            let text = format!("{address}, as the server of the admin socket sees it: {hello}");
            refused(&WireError::new(ErrorCode::WrongCluster, text))
        }
        Err(CallError::NotSent { cause: NotSent::Refused(error), .. }) => refused(&error),
        Err(error @ CallError::NotSent { .. }) => told(NOT_DONE, error.to_string()),
        Err(error @ CallError::Unknown { .. }) => told(UNKNOWN, error.to_string()),
    }
}

/// Whether somebody listens at a socket and lets this user in.
pub async fn is_reachable(socket: &Path) -> bool {
    match short_path(socket) {
        Ok((short, _held)) => UnixStream::connect(short).await.is_ok(),
        Err(_) => false,
    }
}

/// Passes a request on through a server of this machine. An error of the system: there is nobody at the socket, or not
/// for this user, and nothing was done.
pub async fn relay(
    socket: &Path,
    address: &str,
    opcode: Opcode,
    message: Vec<u8>,
    deadline: Duration,
) -> io::Result<Result<Bytes, CallError>> {
    let (short, _held) = short_path(socket)?;
    let mut stream = UnixStream::connect(short).await?;
    let deadline_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
    let (to, opcode) = (address.to_owned(), u32::from(opcode.code()));
    let request = RelayRequest { address: to, opcode, message, deadline_ms };
    let talk = async {
        let sent = send(&mut stream, Flags::REQUEST, &request).await;
        // Whoever is refused may be told so before all was read.
        let answer = receive::<RelayResponse>(&mut stream).await;
        answer.map_err(|error| sent.err().unwrap_or(error))
    };
    let via = || socket.display().to_string();
    let unknown = |cause| CallError::Unknown { addr: via(), cause };
    let answer = match tokio::time::timeout(deadline + TALK_MAX, talk).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Ok(Err(unknown(Unknown::Disconnected { why: error.to_string() }))),
        Err(_) => return Ok(Err(unknown(Unknown::Deadline))),
    };
    Ok(match answer.outcome {
        ANSWERED => Ok(answer.message.into()),
        REFUSED => Err(CallError::Remote(WireError::from_info(answer.error.unwrap_or_default()))),
        NOT_DONE => Err(CallError::NotSent { addr: via(), cause: NotSent::Disconnected { why: answer.text } }),
        _ => Err(unknown(Unknown::Disconnected { why: answer.text })),
    })
}

async fn send(stream: &mut UnixStream, flags: Flags, message: &impl Message) -> io::Result<()> {
    let mut out = Vec::new();
    let start = begin_frame(&mut out);
    if flags == Flags::REQUEST {
        CallHeader::default().encode(&mut out);
    }
    message.encode(&mut out).map_err(io::Error::other)?;
    finish_frame(&mut out, start, flags, Opcode::Relay.code(), 1, 0).map_err(io::Error::other)?;
    stream.write_all(&out).await
}

/// One whole frame of the operation, with its message.
async fn receive<M: Message + Default>(stream: &mut UnixStream) -> io::Result<M> {
    let bad = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut frame = vec![0; HEADER_LEN];
    stream.read_exact(&mut frame).await?;
    let raw = frame.first_chunk().expect("it is as long as a header");
    let header = FrameHeader::decode(raw).map_err(|error| bad(error.to_string()))?;
    if header.opcode != Opcode::Relay.code() || header.payload_len != 0 {
        return Err(bad(format!("operation {:#06x} is not served on the admin socket", header.opcode)));
    }
    // Decoding has held the length against the limit of a message.
    frame.resize(header.head_len(), 0);
    stream.read_exact(&mut frame[HEADER_LEN..]).await?;
    check_frame(&header, &mut frame).map_err(|error| bad(error.to_string()))?;
    let message = match header.has_call_header() {
        true => CallHeader::split(&frame[HEADER_LEN..]).map_err(|error| bad(error.to_string()))?.1,
        false => &frame[HEADER_LEN..],
    };
    if header.flags.is_error() {
        let info = ErrorInfo::decode(message).map_err(|error| bad(error.to_string()))?;
        return Err(bad(info.message));
    }
    M::decode(message).map_err(|error| bad(error.to_string()))
}

/// A message that was encoded by somebody else.
#[derive(Debug, Default)]
struct EncodedMessage(Vec<u8>);

impl Message for EncodedMessage {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.0);
    }
    fn merge_field(
        &mut self,
        _tag: u32,
        _wire_type: WireType,
        _buf: &mut impl Buf,
        _context: DecodeContext,
    ) -> Result<(), DecodeError> {
        unreachable!("it is only sent")
    }
    fn encoded_len(&self) -> usize {
        self.0.len()
    }
    fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests;
