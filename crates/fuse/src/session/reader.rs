//! Threads that read requests from the device.
//!
//! The kernel wakes one of them for a request, so there is no herd. Data of a write is read straight into a page-aligned
//! buffer that `vfs` keeps: header and structure, which have a fixed length, go to another place with the same system
//! call. A thread that waits for a request is ended by a signal, sent until it is gone; it never ends between reading a
//! request and handing it on.
use super::Session;
use super::handshake::IO_MAX;
use super::request::Request;
use crate::abi::file::WriteIn;
use crate::abi::header::InHeader;
use crate::abi::opcode::Opcode;
use crate::device::{Device, Received};
use bytes::Bytes;
use cairn_env::buf::{AlignedBuf, BufPool};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use zerocopy::FromBytes;

/// Header and structure of a write.
const HEAD: usize = size_of::<InHeader>() + size_of::<WriteIn>();
/// Writes of at least this keep the buffer that they were read into; smaller ones are copied into one of their size.
const KEEP_MIN: usize = 64 << 10;
/// Idle buffers that are kept for the next requests; more are allocated as needed, since `vfs` bounds what it keeps.
const POOL: usize = 64 << 20;
/// Ends a thread's wait. Not used by anything else of the process.
const WAKE: libc::c_int = libc::SIGUSR2;
const WAKE_APART: Duration = Duration::from_millis(2);

/// The threads of a session.
pub struct Readers {
    threads: Vec<JoinHandle<()>>,
    session: Arc<Session>,
}

impl Readers {
    /// Starts reading, with one thread for each lane that requests are handed to. The receiver hears when the file system
    /// is unmounted.
    pub fn start(session: &Arc<Session>, lanes: &[Handle]) -> std::io::Result<(Readers, watch::Receiver<bool>)> {
        install_wake_handler()?;
        let (ended, hears) = watch::channel(false);
        let pool = BufPool::new(POOL);
        let mut threads = Vec::with_capacity(lanes.len());
        for (number, lane) in lanes.iter().cloned().enumerate() {
            let device = device_of_thread(session, number);
            let (session, pool, ended) = (session.clone(), pool.clone(), ended.clone());
            let body = move || {
                cairn_client::belong_to(number);
                let _inside = lane.enter();
                read_requests(&session, &device, &pool);
                if !session.is_stopping() {
                    ended.send_replace(true);
                }
            };
            threads.push(std::thread::Builder::new().name(format!("fuse-{number}")).spawn(body)?);
        }
        Ok((Readers { threads, session: session.clone() }, hears))
    }
    /// No request is read any more when this returns. What was read is still under way.
    pub fn stop(self) {
        self.session.stopping.store(true, std::sync::atomic::Ordering::Release);
        for thread in self.threads {
            while !thread.is_finished() {
                // SAFETY: the thread was not joined, so its id is valid; the handler of the signal does nothing.
                unsafe { libc::pthread_kill(thread.as_pthread_t(), WAKE) };
                std::thread::sleep(WAKE_APART);
            }
            let _a_panic_was_logged = thread.join();
        }
    }
}

/// Where the kernel can send again what a dead worker had, all threads share one descriptor; elsewhere each has its own,
/// so that these requests fail at once.
fn device_of_thread(session: &Session, number: usize) -> Device {
    if session.agreed.has(crate::abi::init::HAS_RESEND) {
        return session.device.clone();
    }
    session.device.separate().unwrap_or_else(|error| {
        tracing::warn!(number, %error, "no separate descriptor for a reader");
        session.device.clone()
    })
}

extern "C" fn nothing(_: libc::c_int) {}

fn install_wake_handler() -> std::io::Result<()> {
    // SAFETY: all-zero bytes are a valid sigaction (no flags, so that reads are interrupted, and an empty mask).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the structure is complete, and the handler does nothing.
    let result = unsafe { libc::sigaction(WAKE, &action, std::ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn take_buffer(pool: &BufPool) -> AlignedBuf {
    pool.try_take(IO_MAX).unwrap_or_else(|_| AlignedBuf::unpooled(IO_MAX))
}

fn read_requests(session: &Arc<Session>, device: &Device, pool: &BufPool) {
    let mut head = [0u8; HEAD];
    let mut body = take_buffer(pool);
    while !session.is_stopping() {
        session.in_flight.wait_for_room();
        body.clear();
        match device.receive(&mut head, body.spare_mut()) {
            Ok(Received::Request(count)) => {
                if let Some(request) = take(&head, &mut body, count, pool) {
                    session.dispatch(request);
                }
            }
            Ok(Received::Nothing) => {}
            Ok(Received::Ended) => return,
            Err(error) => {
                tracing::error!(%error, "reading /dev/fuse failed; unmount and mount again");
                return;
            }
        }
    }
}

/// Makes a request of what was read.
fn take(head: &[u8; HEAD], body: &mut AlignedBuf, count: usize, pool: &BufPool) -> Option<Request> {
    let (header, _) = InHeader::read_from_prefix(head).ok()?;
    let (in_head, in_body) = (count.min(HEAD), count.saturating_sub(HEAD));
    let first = &head[size_of::<InHeader>()..in_head];
    body.advance(in_body);
    if header.opcode != Opcode::Write as u32 {
        let args = [first, &body[..]].concat();
        return Some(Request { header, args: Bytes::from(args), data: Bytes::new() });
    }
    let args = Bytes::copy_from_slice(first);
    let data = match in_body >= KEEP_MIN {
        true => Bytes::from_owner(std::mem::replace(body, take_buffer(pool))),
        false => Bytes::copy_from_slice(body),
    };
    Some(Request { header, args, data })
}
