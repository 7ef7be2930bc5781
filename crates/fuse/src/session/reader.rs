//! Threads that read requests from the device.
//!
//! The kernel wakes one of them for a request, so there is no herd. Data of a write is read straight into a
//! page-aligned buffer that `vfs` keeps: header and structure, which have a fixed length, go to another place with the
//! same system call. A thread that waits for a request is ended by a signal, sent until it is gone; it never ends
//! between reading a request and handing it on.
use super::Session;
use super::handshake::IO_MAX;
use super::request::Request;
use crate::abi::file::WriteIn;
use crate::abi::header::InHeader;
use crate::abi::opcode::Opcode;
use crate::device::{Device, Received};
use bytes::Bytes;
use cairn_env::buf::{AlignedBuf, BufPool, POOL_TRIM_EVERY};
use std::os::unix::thread::JoinHandleExt;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use zerocopy::FromBytes;

/// Header and structure of a write.
const HEAD: usize = size_of::<InHeader>() + size_of::<WriteIn>();
/// Writes of at least this keep the buffer that they were read into. Smaller ones are copied into one of their size:
/// `vfs` counts bytes that were written, and the buffers that it keeps must not be much larger.
const KEEP_MIN: usize = IO_MAX / 4 * 3;
/// Smaller ones than this are not aligned either: `vfs` copies them together.
const ALIGN_MIN: usize = 64 << 10;
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
    /// Starts reading, with one thread for each lane that requests are handed to. The receiver hears when the file
    /// system is unmounted.
    pub fn start(session: &Arc<Session>, lanes: &[Handle]) -> std::io::Result<(Readers, watch::Receiver<bool>)> {
        install_wake_handler()?;
        let (ended, hears) = watch::channel(false);
        let pool = BufPool::new(POOL);
        tokio::spawn(trim(pool.clone(), Arc::downgrade(session)));
        let mut threads = Vec::with_capacity(lanes.len());
        for (number, lane) in lanes.iter().cloned().enumerate() {
            let device = device_of_thread(session, number);
            let (session, pool, ended) = (session.clone(), pool.clone(), ended.clone());
            let body = move || {
                cairn_client::belong_to(number);
                cairn_client::hand_on();
                super::watchdog::reads_for(number);
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

/// Where the kernel can send again what a dead worker had, all threads share one descriptor; elsewhere each has its
/// own, so that these requests fail at once.
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

/// Gives back buffers that nobody needs any more, as long as requests are served.
async fn trim(pool: BufPool, session: Weak<Session>) {
    while session.strong_count() > 0 {
        tokio::time::sleep(POOL_TRIM_EVERY).await;
        pool.trim();
    }
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
    let data = match in_body >= ALIGN_MIN {
        true => Bytes::from_owner(kept(body, pool)),
        false => Bytes::copy_from_slice(body),
    };
    Some(Request { header, args, data })
}

/// What was read, in a buffer about as large.
fn kept(body: &mut AlignedBuf, pool: &BufPool) -> AlignedBuf {
    if body.len() >= KEEP_MIN {
        return std::mem::replace(body, take_buffer(pool));
    }
    let mut own = pool.try_take(body.len()).unwrap_or_else(|_| AlignedBuf::unpooled(body.len()));
    own.extend_from_slice(body);
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount that is told to use 512 MiB would use 8 GiB: each write of 64 KiB would keep a buffer for 1 MiB.
    #[test]
    fn writes_keep_about_as_much_as_is_counted() {
        let pool = BufPool::new(POOL);
        let mut body = take_buffer(&pool);
        for length in [ALIGN_MIN, ALIGN_MIN + 1, 100_000, 128 << 10, 300_001, 512 << 10, KEEP_MIN - 1, KEEP_MIN, IO_MAX]
        {
            body.clear();
            body.spare_mut()[..length].fill(length as u8);
            body.advance(length);
            let kept = kept(&mut body, &pool);
            assert!(kept.len() == length && kept.iter().all(|byte| *byte == length as u8));
            assert!(kept.capacity() * 3 <= (length + 4096) * 4, "{length} bytes keep {}", kept.capacity());
        }
    }
}
