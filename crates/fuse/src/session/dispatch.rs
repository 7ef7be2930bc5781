//! From a request to its answer: the operation is polled where it was read, and goes on as a task if it is not done.
//!
//! Invariant owned here: every request that wants an answer gets exactly one, also if its operation panics.
use super::Session;
use super::reply::{Outcome, Reply};
use super::request::Request;
use crate::abi::names::{BatchForgetIn, ForgetOne};
use crate::abi::notify::InterruptIn;
use crate::abi::opcode::Opcode;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use zerocopy::FromBytes;

type Work = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// Owes the kernel an answer; if nothing else was said when it goes, it says EIO.
struct Owed {
    session: Arc<Session>,
    unique: u64,
    opcode: u32,
    started: Instant,
    answered: bool,
}

impl Owed {
    fn answer(mut self, reply: &Reply) {
        self.send(reply);
    }
    fn send(&mut self, reply: &Reply) {
        self.answered = true;
        let (device, unique) = (&self.session.device, self.unique);
        // The entry goes before the answer: the kernel may use the number again as soon as it has it.
        if !self.session.in_flight.end(unique) {
            // The watchdog answered it: this thread stood still.
            return;
        }
        self.session.stats.note(self.opcode, self.started.elapsed(), reply.is_error());
        if self.session.is_abandoned() {
            return;
        }
        match reply {
            Reply::Errno(errno) => _ = device.answer_error(unique, *errno),
            Reply::Lost(handle) => {
                // Not before: who dies between the two leaves it to the next worker.
                if device.answer_error(unique, libc::EIO) {
                    self.session.table.lost_was_told(*handle);
                }
            }
            Reply::Done => _ = device.answer(unique, &[]),
            Reply::Small(bytes) => _ = device.answer(unique, &[bytes]),
            Reply::Data(parts) => {
                let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
                device.answer(unique, &parts);
            }
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if !self.answered {
            tracing::error!(opcode = self.opcode, "an operation ended without an answer; EIO was sent");
            self.send(&Reply::Errno(libc::EIO));
        }
    }
}

impl Session {
    /// Starts whatever the request asks for.
    pub(super) fn dispatch(self: &Arc<Self>, request: Request) {
        match request.opcode() {
            Some(Opcode::Forget) => self.forget(request.header.nodeid),
            Some(Opcode::BatchForget) => self.forget_many(&request),
            Some(Opcode::Interrupt) => {
                if let Ok(interrupt) = request.arg::<InterruptIn>() {
                    self.interrupt(request.header.unique, interrupt.unique);
                }
            }
            Some(Opcode::NotifyReply) => {}
            _ => self.start(request),
        }
    }
    fn forget_many(&self, request: &Request) {
        let Ok(batch) = request.arg::<BatchForgetIn>() else { return };
        let list = request.args.get(size_of::<BatchForgetIn>()..).unwrap_or_default();
        for one in list.chunks_exact(size_of::<ForgetOne>()).take(batch.count as usize) {
            if let Ok(one) = ForgetOne::read_from_bytes(one) {
                self.forget(one.nodeid);
            }
        }
    }
    /// Inodes of the volume are not counted: what is known of them has its own limits.
    fn forget(&self, node: u64) {
        if let (true, Some(dir)) = (crate::virtual_dir::is_virtual(node), &self.virtual_dir) {
            dir.forget(node);
        }
    }

    fn start(self: &Arc<Self>, request: Request) {
        if self.is_given_up(&request) {
            return;
        }
        let (unique, opcode, number) = (request.header.unique, request.header.opcode, request.number());
        self.in_flight.begin(unique, opcode, request.header.pid);
        let owed = Owed { session: self.clone(), unique, opcode, started: Instant::now(), answered: false };
        let session = self.clone();
        let mut work: Work = Box::pin(async move { session.serve(&request).await });
        let mut context = Context::from_waker(Waker::noop());
        let first = std::panic::AssertUnwindSafe(|| {
            let _noted = self.polls(number);
            work.as_mut().poll(&mut context)
        });
        match std::panic::catch_unwind(first) {
            Ok(Poll::Ready(reply)) => owed.answer(&reply),
            Ok(Poll::Pending) => self.go_on(owed, number, work),
            Err(_) => drop(owed),
        }
    }
    /// A request that ended several workers ends no other one.
    fn is_given_up(&self, request: &Request) -> bool {
        let number = request.number();
        let guilty = request.is_resent() && self.table.suspects().is_some_and(|suspects| suspects.is_guilty(number));
        if guilty {
            let operation = request.opcode().map(Opcode::name).unwrap_or_default();
            let (inode, pid) = (request.header.nodeid, request.header.pid);
            tracing::error!(
                operation,
                inode,
                pid,
                "a request ended several workers of the mount; it is answered EIO and not tried again"
            );
            self.device.answer_error(request.header.unique, libc::EIO);
        }
        guilty
    }
    fn go_on(&self, owed: Owed, number: u64, mut work: Work) {
        let session = owed.session.clone();
        let work = std::future::poll_fn(move |context| {
            let _noted = session.polls(number);
            work.as_mut().poll(context)
        });
        let cancelled = self.in_flight.make_cancellable(owed.unique);
        let (deadline, waits) = (self.deadline(), owed.opcode == Opcode::Setlkw as u32);
        tokio::spawn(async move {
            let reply = tokio::select! {
                biased;
                reply = work => reply,
                Ok(()) = cancelled => {
                    owed.session.stats.interrupted.fetch_add(1, Ordering::Relaxed);
                    Reply::Errno(libc::EINTR)
                }
                () = tokio::time::sleep(deadline), if !waits => {
                    owed.session.stats.timed_out.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(opcode = owed.opcode, seconds = deadline.as_secs(),
                        "an operation was not done in time; EIO was sent; see cairn admin status");
                    Reply::Errno(libc::EIO)
                }
            };
            owed.answer(&reply);
        });
    }
    async fn serve(&self, request: &Request) -> Reply {
        if request.is_resent() {
            self.stats.resent.fetch_add(1, Ordering::Relaxed);
        }
        let outcome = match crate::virtual_dir::is_virtual(request.header.nodeid) {
            true => self.serve_virtual(request).await,
            false => self.serve_real(request).await,
        };
        match outcome {
            Ok(reply) => reply,
            Err(error) => {
                if error.errno == libc::ESTALE {
                    // The kernel looks all names up again that led there.
                    self.vfs.is_gone(self.ino(request.header.nodeid));
                }
                if error.is_trouble() {
                    let operation = request.opcode().map(Opcode::name).unwrap_or_default();
                    tracing::warn!(operation, inode = request.header.nodeid, %error, "an operation failed");
                }
                Reply::Errno(error.errno)
            }
        }
    }
    async fn serve_real(&self, request: &Request) -> Outcome {
        use Opcode as O;
        let Some(opcode) = request.opcode() else { return Ok(Reply::Errno(libc::ENOSYS)) };
        match opcode {
            O::Lookup | O::Readlink => self.names_read(opcode, request).await,
            O::Symlink | O::Mknod | O::Mkdir | O::Unlink | O::Rmdir | O::Rename | O::Rename2 | O::Link => {
                self.names_change(opcode, request).await
            }
            O::Getattr | O::Setattr | O::Statx | O::Access | O::Statfs => self.attributes(opcode, request).await,
            O::Open | O::Create | O::Tmpfile => self.opens(opcode, request).await,
            O::Read => self.read(request).await,
            O::Write => self.write(request).await,
            O::Flush | O::Fsync | O::Release | O::Syncfs => self.closes(opcode, request).await,
            O::Fallocate | O::Lseek | O::CopyFileRange | O::CopyFileRange64 => self.space(opcode, request).await,
            O::Opendir | O::Readdir | O::Readdirplus | O::Releasedir | O::Fsyncdir => {
                self.directories(opcode, request).await
            }
            O::Getlk | O::Setlk | O::Setlkw => self.locks(opcode, request).await,
            O::Setxattr | O::Getxattr | O::Listxattr | O::Removexattr => self.xattrs(opcode, request).await,
            O::Ioctl => Ok(Reply::Errno(libc::ENOTTY)),
            O::Destroy => Ok(Reply::Done),
            O::Bmap | O::Poll | O::Init | O::Forget | O::BatchForget | O::Interrupt | O::NotifyReply => {
                Ok(Reply::Errno(libc::ENOSYS))
            }
        }
    }
}
