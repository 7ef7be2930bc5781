//! Metrics and health of the nodes that can be reached from here.
//!
//! A port on the loopback address is asked only for nodes of this machine: on another one it would be somebody else's.
//! Others are asked through TLS by whoever has a key, for without it they tell strangers little.
use cairn_security::Tls;
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsConnector;

/// Of one question, from the connection to the end of the answer.
const DEADLINE: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// Nodes that are asked; the first ones of a large cluster.
const NODES_MAX: usize = 32;

/// Node, address, what it answered.
type Answer = (String, String, Result<Vec<u8>, String>);

/// Asks the nodes of `admin node ls --json`, with the key of whoever asks.
pub async fn of_nodes(list: Result<Vec<u8>, String>, key: Result<Option<Arc<Tls>>, String>) -> Vec<Answer> {
    let mut answers = Vec::new();
    let text = String::from_utf8(list.unwrap_or_default()).unwrap_or_default();
    let nodes = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let (with, without): (Vec<Value>, Vec<Value>) = nodes
        .filter(|node| node["up"] == true)
        .partition(|node| node["http_address"].as_str().is_some_and(|address| !address.is_empty()));
    if !without.is_empty() {
        // Several nodes of one process share its port: nothing is missing.
        let names: Vec<String> = without.iter().map(|node| format!("n{}", node["id"])).collect();
        answers.push((names.join(", "), "no HTTP port of their own".into(), Ok(Vec::new())));
    }
    for node in with.into_iter().take(NODES_MAX) {
        let name = format!("n{}", node["id"]);
        let (address, rpc) =
            (node["http_address"].as_str().unwrap_or_default(), node["address"].as_str().unwrap_or_default());
        for path in ["/healthz", "/metrics"] {
            let content = match (reachable(address, rpc), &key) {
                (Ok(at), Ok(key)) => get(at, path, key.as_deref().filter(|_| !at.ip().is_loopback())).await,
                (Err(why), _) => Err(why),
                (Ok(_), Err(why)) => Err(why.clone()),
            };
            answers.push((name.clone(), format!("http://{address}{path}"), content));
        }
    }
    answers
}

/// The address of the port, if it can be the node's.
fn reachable(http: &str, rpc: &str) -> Result<SocketAddr, String> {
    let at: SocketAddr = http.parse().map_err(|_| "the node has no HTTP port that can be asked".to_owned())?;
    let of_here = |ip: IpAddr| std::net::UdpSocket::bind((ip, 0)).is_ok();
    let node: Option<SocketAddr> = rpc.parse().ok();
    match at.ip().is_loopback() && !node.is_some_and(|node| of_here(node.ip())) {
        true => Err("the port is open to the node's own machine only; run the command there".into()),
        false => Ok(at),
    }
}

/// Asks one port, through TLS where there is a key for it.
async fn get(at: SocketAddr, path: &str, key: Option<&Tls>) -> Result<Vec<u8>, String> {
    let ask = async {
        let stream = tokio::net::TcpStream::connect(at).await?;
        match key {
            None => talk(stream, at, path).await,
            Some(key) => {
                let connector = TlsConnector::from(key.web_client());
                talk(connector.connect(Tls::server_name(), stream).await?, at, path).await
            }
        }
    };
    let answer = tokio::time::timeout(DEADLINE, ask).await;
    let answer = answer.map_err(|_| format!("no answer within {} s", DEADLINE.as_secs()))?;
    answer.map_err(|error| cairn_security::explain(&error).unwrap_or_else(|| error.to_string()))
}

async fn talk(mut stream: impl AsyncRead + AsyncWrite + Unpin, at: SocketAddr, path: &str) -> std::io::Result<Vec<u8>> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metrics of this machine would be taken for those of another one.
    #[test]
    fn a_loopback_port_is_only_of_this_machine() {
        assert!(reachable("127.0.0.1:7480", "192.0.2.1:7400").is_err());
        assert!(reachable("127.0.0.1:7480", "127.0.0.1:7400").is_ok());
        assert!(reachable("192.0.2.1:7480", "192.0.2.1:7400").is_ok());
        assert!(reachable("-", "127.0.0.1:7400").is_err());
    }
}
