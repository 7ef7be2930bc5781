//! Messages between the processes of a mount: a length, then JSON; descriptors travel beside one byte of their own.
//!
//! Both ends are the same user's, on one machine. Lengths are bounded all the same.
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// Longest message.
const MESSAGE_MAX: usize = 4 << 20;
/// Descriptors in one message.
const DESCRIPTORS_MAX: usize = 4;
/// The byte beside descriptors.
const MARK: [u8; 1] = [0xfd];

fn too_long(length: usize) -> Error {
    Error::new(ErrorKind::InvalidData, format!("a message of {length} bytes; at most {MESSAGE_MAX} are allowed"))
}

/// Sends one message. Not to be dropped half way.
pub async fn send(to: &mut (impl AsyncWriteExt + Unpin), message: &impl Serialize) -> Result<()> {
    let body = serde_json::to_vec(message)?;
    if body.len() > MESSAGE_MAX {
        return Err(too_long(body.len()));
    }
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    to.write_all(&frame).await
}

/// Receives one message; `None` when the other end is gone. Not to be dropped half way.
pub async fn receive<T: DeserializeOwned>(from: &mut (impl AsyncReadExt + Unpin)) -> Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length).await {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_MAX {
        return Err(too_long(length));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    Ok(Some(serde_json::from_slice(&body)?))
}

/// Sends descriptors, between two messages.
pub async fn send_descriptors(to: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    assert!(descriptors.len() <= DESCRIPTORS_MAX, "{} descriptors in one message", descriptors.len());
    to.async_io(Interest::WRITABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Error::other("the descriptors do not fit into a message"));
        }
        rustix::net::sendmsg(to, &[IoSlice::new(&MARK)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    })
    .await
}

/// Takes descriptors that were sent between two messages.
pub async fn take_descriptors(from: &UnixStream, count: usize) -> Result<Vec<OwnedFd>> {
    from.async_io(Interest::READABLE, || receive_descriptors(from, count)).await
}

/// The same on any socket.
pub fn receive_descriptors(from: impl AsFd, count: usize) -> Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let received =
        rustix::net::recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut found = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            found.extend(descriptors);
        }
    }
    if received.bytes == 0 || found.len() != count {
        return Err(Error::new(ErrorKind::InvalidData, format!("{} descriptors came instead of {count}", found.len())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker would get another descriptor than it was sent, or messages after it would be lost.
    #[tokio::test]
    async fn messages_and_descriptors_keep_their_order() {
        let (mut one, mut two) = UnixStream::pair().expect("pair");
        let file = tempfile::tempfile().expect("file");
        rustix::io::write(&file, b"hello").expect("write");
        send(&mut one, &"first").await.expect("send");
        send_descriptors(&one, &[file.as_fd()]).await.expect("send descriptors");
        send(&mut one, &"second").await.expect("send");
        drop(one);
        assert_eq!(receive::<String>(&mut two).await.expect("receive").as_deref(), Some("first"));
        let got = take_descriptors(&two, 1).await.expect("descriptors");
        let mut text = [0; 5];
        rustix::io::pread(&got[0], &mut text, 0).expect("read");
        assert_eq!(&text, b"hello");
        assert_eq!(receive::<String>(&mut two).await.expect("receive").as_deref(), Some("second"));
        assert_eq!(receive::<String>(&mut two).await.expect("end"), None);
    }

    /// A broken peer would make this process allocate gigabytes.
    #[tokio::test]
    async fn long_messages_are_refused() {
        let (mut one, mut two) = UnixStream::pair().expect("pair");
        one.write_all(&u32::MAX.to_le_bytes()).await.expect("send");
        assert!(receive::<String>(&mut two).await.is_err());
    }
}
