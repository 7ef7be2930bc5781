//! [`ask`]: how a machine asks the authority of its cluster for a key.
//!
//! Invariants: nothing is sent before the handshake showed that it is the authority; an answer is awaited for a bounded
//! time and has a bounded length. Not here: the authority's side (`keys/serve.rs`), where the key goes
//! (`keys/enrol.rs`, `security/renewal.rs`).
use anyhow::{Context, anyhow};
use cairn_rpc::carrier::Carrier;
use cairn_security::{NewKey, authority_name, explain, exported, is_joining};
use cairn_wire::enrol::{self, Asked, LENGTH_LEN, MESSAGE_MAX, Proven};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;

/// All of it takes no longer.
const DEADLINE: Duration = Duration::from_secs(20);
/// Bytes that the other side may send: a handshake and an answer.
const BYTES_MAX: usize = 2 * MESSAGE_MAX;

/// The authority said no.
#[derive(Debug, thiserror::Error)]
#[error("the authority refused: {0}")]
pub struct Refused(pub String);

/// What an authority answered.
pub struct Answered {
    pub certificate: CertificateDer<'static>,
    /// What it showed of itself.
    pub shown: Vec<CertificateDer<'static>>,
}

/// Asks for a certificate for a key: the request is made of the proof that the key is here.
pub async fn ask(
    address: &str,
    config: Arc<ClientConfig>,
    key: &NewKey,
    request: impl FnOnce(Proven) -> Asked,
) -> anyhow::Result<Answered> {
    let asking = talk(address, config, key, request);
    match tokio::time::timeout(DEADLINE, asking).await {
        Ok(answered) => answered,
        Err(_) => Err(anyhow!("the authority at {address} gave no answer within {} s", DEADLINE.as_secs())),
    }
}

async fn talk(
    address: &str,
    config: Arc<ClientConfig>,
    key: &NewKey,
    request: impl FnOnce(Proven) -> Asked,
) -> anyhow::Result<Answered> {
    let tcp = TcpStream::connect(address).await.with_context(|| {
        format!("nobody answers at {address}: is cairn key serve running there, and is the address right?")
    })?;
    let carrier = Carrier::bounded(tcp, BYTES_MAX);
    let connected = TlsConnector::from(config).connect(authority_name(), carrier).await;
    let mut stream = connected.map_err(|error| not_it(address, &error))?;
    let (_, handshake) = stream.get_ref();
    if !is_joining(handshake.alpn_protocol()) {
        return Err(anyhow!("{address} is no authority's port (cairn key serve)"));
    }
    let shown = handshake.peer_certificates().unwrap_or_default().iter().map(|one| one.clone().into_owned()).collect();
    let proof = key.prove(&exported(handshake)?)?;
    let asked = enrol::encode_asked(&request(Proven { public_key: key.public(), proof }));
    let answer = exchange(&mut stream, &asked).await.map_err(|error| match explain(&error) {
        Some(why) => anyhow!("the authority at {address}: {why}"),
        None => anyhow!("the authority at {address} closed the connection: {error}; its log says why"),
    })?;
    let answer = enrol::decode_answer(&answer).with_context(|| format!("what {address} answered is no answer"))?;
    let certificate = answer.map_err(Refused)?.into();
    Ok(Answered { certificate, shown })
}

async fn exchange(stream: &mut TlsStream<Carrier>, asked: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(asked).await?;
    stream.flush().await?;
    let mut head = [0; LENGTH_LEN];
    stream.read_exact(&mut head).await?;
    let length = enrol::length(head).ok_or_else(|| io::Error::other("its answer is too long"))?;
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// The other side is not the authority that was meant.
fn not_it(address: &str, error: &io::Error) -> anyhow::Error {
    match explain(error) {
        Some(_) => anyhow!(
            "{address} is not the authority that the token or the key is of ({error}); nothing was told to it. Check the address, and \
             that the token was copied whole"
        ),
        None => anyhow!("{address} speaks no TLS, or closed the connection: {error}"),
    }
}
