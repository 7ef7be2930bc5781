//! Answers EIO to everything while no worker serves, so that nobody waits for ever.
use crate::abi::header::{InHeader, READ_BUFFER_MIN};
use crate::abi::opcode::Opcode;
use crate::device::{Device, Received};
use crate::session::handshake::IO_MAX;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::FromBytes;

const LOOK: Duration = Duration::from_millis(50);

/// The thread that answers.
pub struct Errors {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Errors {
    /// Starts with what the dead worker had not answered.
    pub fn start(device: Device) -> std::io::Result<Errors> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        if let Err(error) = device.resend() {
            tracing::debug!(%error, "requests of the dead worker are not handed out again");
        }
        let thread = std::thread::Builder::new().name("fuse-eio".into()).spawn(move || answer(&device, &stopped))?;
        Ok(Errors { stop, thread: Some(thread) })
    }
}

impl Drop for Errors {
    /// Nothing is read any more when this returns.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _a_panic_was_logged = thread.join();
        }
    }
}

fn answer(device: &Device, stop: &AtomicBool) {
    let mut head = [0; size_of::<InHeader>()];
    let mut body = vec![0; IO_MAX + READ_BUFFER_MIN];
    while !stop.load(Ordering::Acquire) {
        if !device.wait(LOOK) {
            continue;
        }
        match device.receive(&mut head, &mut body) {
            Ok(Received::Request(_)) => {
                let Ok(header) = InHeader::read_from_bytes(&head) else { continue };
                match Opcode::of(header.opcode) {
                    Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply) => {}
                    _ => _ = device.answer_error(header.unique, libc::EIO),
                }
            }
            Ok(Received::Nothing) => {}
            Ok(Received::Ended) | Err(_) => return,
        }
    }
}
