//! Which port a node answers metrics and health on: the one that is named, or the usual one, 80 above its RPC port.
//!
//! A port that somebody named and that is taken is a mistake, and the node does not start. The usual one is nobody's
//! wish: where it is taken, any other will do, for data matters more than metrics; the log and `cairn admin node ls`
//! say which.
use anyhow::Context;
use cairn_telemetry::{Door, HealthCheck, HttpLimits, HttpServer, Registry};
use std::sync::Arc;

/// The usual HTTP port is so far above the RPC port: 7480 beside 7400.
pub const ABOVE_RPC: u16 = 80;

/// What was said of the HTTP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpPort {
    /// `host:port`; port 0 picks one.
    Named(String),
    /// On the loopback address, above the RPC port.
    Usual,
}

impl HttpPort {
    /// Of the text of a configuration or command line, if there is one.
    pub fn of(text: Option<&str>) -> HttpPort {
        text.map_or(HttpPort::Usual, |text| HttpPort::Named(text.to_owned()))
    }
}

/// The usual address beside an RPC port; port 0 where that picks one itself.
fn usual(listen: &str) -> String {
    let rpc = listen.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok()).unwrap_or(0);
    let port = if rpc == 0 { 0 } else { rpc.checked_add(ABOVE_RPC).unwrap_or(0) };
    format!("127.0.0.1:{port}")
}

/// Opens the port.
pub async fn open(
    port: &HttpPort,
    listen: &str,
    registry: &Registry,
    check: HealthCheck,
    (limits, door): (HttpLimits, Arc<dyn Door>),
) -> anyhow::Result<HttpServer> {
    let start = |address: String| {
        let (registry, check, door) = (registry.clone(), check.clone(), door.clone());
        async move { HttpServer::start(&address, registry, vec![check], limits, door).await }
    };
    let address = match port {
        HttpPort::Named(address) => address.clone(),
        HttpPort::Usual => usual(listen),
    };
    let failed = || format!("the HTTP port {address} cannot be opened; choose another node.http or stop what has it");
    match start(address.clone()).await {
        Err(error) if *port == HttpPort::Usual && error.kind() == std::io::ErrorKind::AddrInUse => {
            let server = start("127.0.0.1:0".into()).await.with_context(failed)?;
            tracing::warn!(
                taken = address, http = %server.address(),
                "somebody else has the usual HTTP port: metrics and health are on another one; name one with node.http"
            );
            Ok(server)
        }
        started => started.with_context(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_telemetry::OpenDoor;

    /// A scrape configuration would ask other ports than the guides say.
    #[test]
    fn the_usual_port_is_above_the_rpc_port() {
        assert_eq!(usual("10.0.0.1:7400"), "127.0.0.1:7480");
        assert_eq!(usual("[::]:7402"), "127.0.0.1:7482");
        assert_eq!(usual("127.0.0.1:0"), "127.0.0.1:0");
        assert_eq!(usual("127.0.0.1:65500"), "127.0.0.1:0");
    }

    /// A node would not serve data because something else has the port for its metrics; or answer on another one than
    /// was named.
    #[test]
    fn only_the_usual_port_gives_way() {
        let runtime = crate::server::http_runtime().expect("a runtime");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("address");
        let Some(rpc) = address.port().checked_sub(ABOVE_RPC) else { return };
        let open = |port: &HttpPort| {
            let check: HealthCheck = Arc::new(|| ("test".to_owned(), Ok(())));
            let listen = format!("127.0.0.1:{rpc}");
            let how = (HttpLimits::default(), Arc::new(OpenDoor) as Arc<dyn Door>);
            runtime.block_on(open(port, &listen, &Registry::new(), check, how))
        };
        let other = open(&HttpPort::Usual).expect("another port");
        assert_ne!(other.address(), address);
        let error = format!("{:#}", open(&HttpPort::Named(address.to_string())).err().expect("it is taken"));
        assert!(error.contains(&address.to_string()) && error.contains("node.http"), "{error}");
    }
}
