//! Interrupts: a signal came for a process that waits for an answer.
//!
//! The kernel keeps even a killed process until its request is answered, and it does not say which signal it was. So: a
//! process with a pending SIGKILL (the kernel also makes one of Ctrl-C where the program does not handle it) is let go
//! at once; waits for locks hear of it and end at once, as POSIX wants, but not before it is known whether they got the
//! lock; everything else goes on for a grace, since programs do not expect EINTR from files, and ends after it. The
//! answer of an ended operation is EINTR; a change that was sent may be done.
use super::Session;
use crate::abi::opcode::Opcode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an operation goes on after a signal that does not kill.
const GRACE: Duration = Duration::from_secs(5);
/// How often it is looked whether a kill came.
const LOOK: Duration = Duration::from_millis(50);
/// Bit of SIGKILL in the masks of `/proc/*/status`.
const SIGKILL_BIT: u64 = 1 << 8;

impl Session {
    /// Handles FUSE_INTERRUPT for `target`; `own` is the number of the interrupt itself.
    pub(super) fn interrupt(self: &Arc<Self>, own: u64, target: u64) {
        match self.in_flight.interrupt(target) {
            // It may be that another reader has it and has not noted it yet: the kernel asks again, if it still waits.
            None => _ = self.device.answer_error(own, libc::EAGAIN),
            Some(found) => {
                let session = self.clone();
                tokio::spawn(async move { session.watch(target, found.opcode, found.pid).await });
            }
        }
    }
    async fn watch(&self, target: u64, opcode: u32, pid: u32) {
        let started = Instant::now();
        let by_itself = opcode == Opcode::Setlkw as u32;
        while self.in_flight.contains(target) {
            let over = started.elapsed() > GRACE && !by_itself;
            if (over || is_killed(pid)) && self.in_flight.cancel(target) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Whether a thread has SIGKILL pending, or is gone.
pub(super) fn is_killed(pid: u32) -> bool {
    if pid == 0 {
        return false;
    }
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    has_kill(&status)
}

fn has_kill(status: &str) -> bool {
    status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")))
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|mask| mask & SIGKILL_BIT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A killed process would stay for the whole deadline.
    #[test]
    fn a_pending_kill_is_seen() {
        assert!(has_kill("Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(has_kill("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000102\n"));
        assert!(!has_kill("SigPnd:\t0000000000000002\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000000100\n"));
    }
}
