//! [`Call`]: the future of one call's outcome. Dropping it gives the call up.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Response;
use super::error::CallError;
use super::link::Link;

/// The answer to come. The request is on its way already; polling it needs no particular runtime.
#[must_use = "dropping it cancels the call"]
pub struct Call {
    state: State,
}

enum State {
    Waiting(Arc<Link>, u64),
    Failed(CallError),
    Fetched,
}

impl Call {
    pub(crate) fn waiting(link: Arc<Link>, id: u64) -> Self {
        Self { state: State::Waiting(link, id) }
    }

    pub(crate) fn failed(error: CallError) -> Self {
        Self { state: State::Failed(error) }
    }
}

impl Future for Call {
    type Output = Result<Response, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &self.state {
            State::Waiting(link, id) => match link.poll_outcome(*id, cx.waker()) {
                Some(outcome) => outcome,
                None => return Poll::Pending,
            },
            State::Failed(error) => Err(error.clone()),
            State::Fetched => panic!("a call was polled after its outcome was fetched"),
        };
        self.state = State::Fetched;
        Poll::Ready(outcome)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let State::Waiting(link, id) = &self.state {
            link.abandon(*id);
        }
    }
}
