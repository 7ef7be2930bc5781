//! The socket on which commands ask the supervisor.
use super::messages::{Answer, Request};
use crate::failure::Failure;
use crate::link;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

/// Requests that wait.
const QUEUE_MAX: usize = 16;
/// A command says what it wants within this.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Incoming {
    pub request: Request,
    pub answer: oneshot::Sender<Answer>,
}

/// Takes connections, one request each.
pub fn accept(listener: UnixListener) -> mpsc::Receiver<Incoming> {
    let (sender, receiver) = mpsc::channel(QUEUE_MAX);
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(serve(stream, sender.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting a command");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    receiver
}

async fn serve(mut stream: UnixStream, to: mpsc::Sender<Incoming>) {
    let Ok(Ok(Some(request))) = tokio::time::timeout(PATIENCE, link::receive::<Request>(&mut stream)).await else {
        return;
    };
    let (answer, hears) = oneshot::channel();
    if to.send(Incoming { request, answer }).await.is_err() {
        return;
    }
    let answer = hears.await.unwrap_or_else(|_| Err(Failure::other("the mount ended before it answered")));
    let _asker_may_be_gone = link::send(&mut stream, &answer).await;
}

/// Asks a supervisor, as a command.
pub async fn ask(mut stream: UnixStream, request: &Request, at_most: Duration) -> Answer {
    let io = |error: std::io::Error| Failure::io("asking the mount's supervisor", &error);
    let asked = async {
        link::send(&mut stream, request).await.map_err(io)?;
        link::receive::<Answer>(&mut stream).await.map_err(io)
    };
    match tokio::time::timeout(at_most, asked).await {
        Ok(Ok(Some(answer))) => answer,
        Ok(Ok(None)) => Err(Failure::other("the mount's supervisor ended before it answered")),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Failure::other(format!("the mount's supervisor did not answer within {} s", at_most.as_secs()))),
    }
}
