//! [`Watch`]: one timer a connection for all of its timeouts, armed only while something can time out.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::{Sleep, sleep_until};

/// A timer that costs nothing while the deadlines only move away.
#[derive(Default)]
pub(crate) struct Watch {
    sleep: Option<Pin<Box<Sleep>>>,
    armed: Option<Instant>,
}

impl Watch {
    /// Makes sure that the task is woken at `next` or earlier, and says whether a time for which it was armed has come:
    /// then the caller looks at its deadlines and calls again.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, next: Option<Instant>) -> bool {
        if let Some(next) = next
            && self.armed.is_none_or(|armed| next < armed)
        {
            match &mut self.sleep {
                Some(sleep) => sleep.as_mut().reset(next.into()),
                None => self.sleep = Some(Box::pin(sleep_until(next.into()))),
            }
            self.armed = Some(next);
        }
        if self.armed.is_none() {
            return false;
        }
        let Some(sleep) = &mut self.sleep else { return false };
        match sleep.as_mut().poll(cx) {
            Poll::Ready(()) => {
                self.armed = None;
                true
            }
            Poll::Pending => false,
        }
    }
}
