//! How a command ends: by itself or by a signal. Whoever is impatient is heard at every moment, also while sessions are
//! closed and what was written for nothing is freed: the first signal limits what is waited for, the next one ends the
//! waiting.
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What is being closed gets so long after a signal.
const HURRY: Duration = Duration::from_secs(2);

/// Ctrl-C, SIGTERM and SIGHUP. What comes while nobody waits is kept for who waits next.
pub struct EndSignals(Vec<Signal>);

impl EndSignals {
    /// Within a runtime.
    pub fn listen() -> Self {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let caught = kinds.into_iter().filter_map(|kind| match signal(kind) {
            Ok(stream) => Some(stream),
            Err(error) => {
                tracing::warn!(%error, "a signal cannot be caught; temporary files stay if it comes");
                None
            }
        });
        Self(caught.collect())
    }
    /// The next one. May be dropped and called again.
    pub async fn next(&mut self) {
        poll_fn(|waker| match self.0.iter_mut().any(|stream| stream.poll_recv(waker).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await
    }
}

/// Carries `work` out and closes behind it; what came of it. None: a signal ended it, and it was given up, which the
/// next signal ends.
pub async fn carry_out<T>(
    work: impl Future<Output = T>,
    close: impl AsyncFnOnce(),
    give_up: impl AsyncFnOnce(),
    mut signal: impl AsyncFnMut(),
) -> Option<T> {
    let outcome = tokio::select! {
        outcome = work => Some(outcome),
        () = signal() => None,
    };
    if outcome.is_none() {
        tokio::select! {
            () = give_up() => {}
            () = signal() => {}
        }
        return None;
    }
    let impatience = async {
        signal().await;
        tokio::select! {
            () = tokio::time::sleep(HURRY) => {}
            () = signal() => {}
        }
    };
    tokio::select! {
        () = close() => {}
        () = impatience => {}
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::unbounded_channel;
    use tokio::time::{Instant, sleep};

    /// What a command came to, and after how many milliseconds, if signals come at these and closing takes so long.
    async fn ended(work_ms: u64, close_ms: u64, signals_ms: &'static [u64]) -> (Option<u32>, u64) {
        let (sender, mut signals) = unbounded_channel();
        let began = Instant::now();
        tokio::spawn(async move {
            for at in signals_ms {
                tokio::time::sleep_until(began + Duration::from_millis(*at)).await;
                sender.send(()).expect("it listens");
            }
            sender.closed().await;
        });
        let work = async {
            sleep(Duration::from_millis(work_ms)).await;
            7
        };
        let close = async || sleep(Duration::from_millis(close_ms)).await;
        let heard = async || {
            signals.recv().await;
        };
        let outcome = carry_out(work, close, close, heard).await;
        (outcome, began.elapsed().as_millis() as u64)
    }

    /// Ctrl-C would not be heard while a command that is done waits for servers: for 22 seconds.
    #[tokio::test(start_paused = true)]
    async fn signals_are_heard_while_a_command_closes() {
        assert_eq!(ended(10, 20_000, &[]).await, (Some(7), 20_010));
        assert_eq!(ended(10, 20_000, &[500]).await, (Some(7), 2500));
        assert_eq!(ended(10, 20_000, &[500, 900]).await, (Some(7), 900));
        assert_eq!(ended(10, 700, &[500]).await, (Some(7), 710));
    }

    /// A command that is told to end would go on, or what it wrote would not be freed, or nobody could end that.
    #[tokio::test(start_paused = true)]
    async fn a_signal_ends_the_work_and_the_next_one_all() {
        assert_eq!(ended(60_000, 5000, &[100]).await, (None, 5100));
        assert_eq!(ended(60_000, 5000, &[100, 300]).await, (None, 300));
    }

    /// A signal that comes between two waits would be lost.
    #[tokio::test]
    async fn a_signal_is_kept_until_it_is_waited_for() {
        let mut signals = EndSignals::listen();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).expect("a signal");
        signals.next().await;
    }
}
