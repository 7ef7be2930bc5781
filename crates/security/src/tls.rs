//! [`Tls`]: how a process that has a key speaks: its side of both kinds of handshake.
use crate::error::SecurityError;
use crate::key_file::{KeyFile, holder_of};
use crate::revoked::Revoked;
use crate::shown::Shown;
use crate::validity::Validity;
use cairn_wire::audience::Caller;
use cairn_wire::holder::Holder;
use cairn_wire::protection::Protection;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;

/// Names the way in which everything between two parties is protected: TLS all through.
const PRIVATE: &[u8] = b"cairn-private/1";
/// The other way: after the handshake frames can be read by anybody, and their heads have codes.
const AUTHENTICATED: &[u8] = b"cairn-authenticated/1";
/// HTTP, for metrics and health.
const WEB: &[u8] = b"http/1.1";
/// A name that certificates of servers have, and no other: a client's key cannot pass for a server.
pub const SERVER_NAME: &str = "node.cairn";

/// How strict a server is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Whoever has no key is served as without security; who shows one is held to it. Between the two other states of a
    /// cluster.
    Permissive,
    /// Nobody is served without a key.
    Required,
}

/// What a handshake agreed on, if it is a way of Cairn's.
pub fn agreed(alpn: Option<&[u8]>) -> Option<Protection> {
    match alpn? {
        PRIVATE => Some(Protection::Private),
        AUTHENTICATED => Some(Protection::Authenticated),
        _ => None,
    }
}

/// A process's key, ready for handshakes.
pub struct Tls {
    client: Arc<ClientConfig>,
    /// For file data.
    data_client: Arc<ClientConfig>,
    server: Option<(Arc<ServerConfig>, Mode)>,
    web_server: Option<Arc<ServerConfig>>,
    holder: Holder,
    /// What all of them show to the other side.
    shown: Arc<Shown>,
    revoked: Option<Arc<Revoked>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tls({})", self.holder)
    }
}

impl Tls {
    /// Of a process that serves nobody: it never speaks without TLS.
    pub fn of_client(file: &KeyFile) -> Result<Self, SecurityError> {
        let shown = Arc::new(Shown::of(file)?);
        Ok(Self::new(client_config(file, &shown)?, None, (file, shown), None))
    }

    /// Of a server.
    pub fn of_server(file: &KeyFile, mode: Mode, revoked: Option<Arc<Revoked>>) -> Result<Self, SecurityError> {
        let Caller::Node(_) = file.holder().caller else {
            let found = format!("the {} {}", file.holder().kind(), file.holder().name);
            let wanted = "that of a server".to_owned();
            return Err(SecurityError::WrongKind { path: file.path().to_path_buf(), found, wanted });
        };
        let shown = Arc::new(Shown::of(file)?);
        let mut web = server_config(file, &shown, Strangers::Greeted)?;
        web.alpn_protocols = vec![WEB.to_vec()];
        let server = server_config(file, &shown, Strangers::Refused)?;
        let own = Self::new(client_config(file, &shown)?, Some((server, mode)), (file, shown), revoked);
        Ok(Self { web_server: Some(Arc::new(web)), ..own })
    }

    fn new(
        client: ClientConfig,
        server: Option<(ServerConfig, Mode)>,
        (file, shown): (&KeyFile, Arc<Shown>),
        revoked: Option<Arc<Revoked>>,
    ) -> Self {
        let mut data_client = client.clone();
        data_client.alpn_protocols = vec![AUTHENTICATED.to_vec(), PRIVATE.to_vec()];
        let server = server.map(|(mut config, mode)| {
            config.alpn_protocols = vec![AUTHENTICATED.to_vec(), PRIVATE.to_vec()];
            (Arc::new(config), mode)
        });
        let (client, data_client) = (Arc::new(client), Arc::new(data_client));
        Self { client, data_client, server, web_server: None, holder: file.holder().clone(), shown, revoked }
    }

    /// The same with file data inside TLS too, in both directions, whatever others say.
    pub fn with_private_data(mut self) -> Self {
        self.data_client = self.client.clone();
        self.server = self.server.map(|(config, mode)| {
            let mut config = Arc::unwrap_or_clone(config);
            config.alpn_protocols = vec![PRIVATE.to_vec()];
            (Arc::new(config), mode)
        });
        self
    }

    /// For connections that it makes for operations that need this much. The other side may insist on more.
    pub fn client(&self, needed: Protection) -> Arc<ClientConfig> {
        match needed {
            Protection::Private => self.client.clone(),
            Protection::Authenticated => self.data_client.clone(),
        }
    }

    /// Whether connections for file data are others than those for the rest.
    pub fn has_ways(&self) -> bool {
        !Arc::ptr_eq(&self.client, &self.data_client)
    }

    /// For connections that it takes.
    pub fn server(&self) -> Option<Arc<ServerConfig>> {
        self.server.as_ref().map(|(config, _)| config.clone())
    }

    /// For HTTP that it answers: also to those without a key, who are strangers then.
    pub fn web_server(&self) -> Option<Arc<ServerConfig>> {
        self.web_server.clone()
    }

    /// For HTTP that it asks for.
    pub fn web_client(&self) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.client);
        config.alpn_protocols = vec![WEB.to_vec()];
        Arc::new(config)
    }

    /// Whether it speaks to nobody without TLS.
    pub fn is_required(&self) -> bool {
        self.server.as_ref().is_none_or(|(_, mode)| *mode == Mode::Required)
    }

    /// Whose key it is.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// When the certificate ends that it shows now, in seconds since 1970.
    pub fn until(&self) -> u64 {
        self.shown.until()
    }

    /// When that was made and when it ends, as far as it can be read.
    pub fn validity(&self) -> Option<Validity> {
        self.shown.validity()
    }

    /// Shows a later key of the same holder from now on; connections that there are stay as they are. `false`: it is
    /// the one that is shown already.
    pub fn renew(&self, file: &KeyFile) -> Result<bool, SecurityError> {
        self.shown.renew(file)
    }

    /// Keys that count no more.
    pub fn revoked(&self) -> Option<&Revoked> {
        self.revoked.as_deref()
    }

    /// Whom the certificate of a finished handshake names.
    pub fn peer(certificates: Option<&[CertificateDer<'_>]>) -> Option<Holder> {
        holder_of(certificates?.first()?)
    }

    /// The name that all servers have.
    pub fn server_name() -> ServerName<'static> {
        ServerName::try_from(SERVER_NAME).expect("it is a name of the DNS")
    }
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    // The one with the shorter key first: as safe for what one connection carries, and faster.
    provider.cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(provider)
}

fn roots(file: &KeyFile) -> Result<Arc<RootCertStore>, SecurityError> {
    let mut roots = RootCertStore::empty();
    for trusted in &file.trusted {
        roots.add(trusted.clone()).map_err(|error| bad(file, &error.to_string()))?;
    }
    Ok(Arc::new(roots))
}

/// Whether those who trust the same authorities take this certificate, today: as a server's where it is one.
pub(crate) fn counts_for_others(file: &KeyFile) -> Result<(), SecurityError> {
    let roots = roots(file)?;
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(crate::now()));
    let others = |error: rustls::Error| bad(file, &format!("others would not take it: {error}"));
    if !matches!(file.holder().caller, Caller::Node(_)) {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
        let verifier = verifier.map_err(|error| bad(file, &error.to_string()))?;
        return verifier.verify_client_cert(&file.certificate, &[], now).map(|_| ()).map_err(others);
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
    let verifier = verifier.map_err(|error| bad(file, &error.to_string()))?;
    verifier.verify_server_cert(&file.certificate, &[], &Tls::server_name(), &[], now).map(|_| ()).map_err(others)
}

fn bad(file: &KeyFile, why: &str) -> SecurityError {
    SecurityError::NotAKey { path: file.path().to_path_buf(), why: why.to_owned() }
}

fn client_config(file: &KeyFile, shown: &Arc<Shown>) -> Result<ClientConfig, SecurityError> {
    let to = |error: rustls::Error| bad(file, &error.to_string());
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(to)?
        .with_root_certificates(roots(file)?)
        .with_client_cert_resolver(shown.clone());
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    config.alpn_protocols = vec![PRIVATE.to_vec()];
    Ok(config)
}

/// What becomes of those who show no certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strangers {
    Refused,
    Greeted,
}

fn server_config(file: &KeyFile, shown: &Arc<Shown>, strangers: Strangers) -> Result<ServerConfig, SecurityError> {
    let to = |error: rustls::Error| bad(file, &error.to_string());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(file)?, provider());
    let verifier = match strangers {
        Strangers::Refused => verifier,
        Strangers::Greeted => verifier.allow_unauthenticated(),
    };
    let verifier = verifier.build().map_err(|error| bad(file, &error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(to)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(shown.clone());
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(config)
}

/// What a failed handshake means for whoever has the key, if it is about keys; `None`: the network, which may damage
/// and cut, or a peer that speaks no TLS.
pub fn explain(error: &std::io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let theirs = "the server does not take the key of this side";
    let ours = "the server's certificate is not taken here";
    let text = match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!(
                "{ours}: it is of another cluster's authority than the key of this side; check the address and the key"
            )
        }
        rustls::Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => format!(
            "{ours}: it is over, or not valid yet; check both clocks, and make a new key for the server if it ended"
        ),
        rustls::Error::InvalidCertificate(why) => format!("{ours}: {why}"),
        // A record that was damaged on its way never looks like this: its bytes cannot be read at all.
        rustls::Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            format!("{theirs}: it was made by another cluster's authority; check the address and the key")
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            format!(
                "{theirs}: it is over, or not valid yet; check both clocks, and make a new one (cairn key) if it ended"
            )
        }
        rustls::Error::AlertReceived(
            alert @ (AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::AccessDenied
            | AlertDescription::NoApplicationProtocol),
        ) => format!("{theirs}: {alert:?}"),
        // A record that was damaged on its way looks like this, and the next attempt may go well.
        _ => return None,
    };
    Some(text)
}
