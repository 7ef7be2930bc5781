//! TLS between the authority of a cluster and those who want a key of it: both sides' settings, and what a key is
//! proven with.
//!
//! Invariants: a machine without a key tells its secret to nobody but who has the private key of the very authority
//! whose
//! fingerprint it was given; what shows itself as the authority's port is taken for no server of the cluster, and no
//! server for the authority; only a certificate that the authority signed, and that has not ended, asks for the next
//! one. Not here: sockets and bounds (the binary), who gets a certificate (`authority.rs`).
use crate::authority::{Authority, fingerprint};
use crate::error::SecurityError;
use crate::new_key::NewKey;
use crate::tls::{Tls, provider};
use rustls::client::Resumption;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ConnectionCommon, DigitallySignedStruct, RootCertStore, ServerConfig, SideData,
    SignatureScheme,
};
use std::sync::Arc;

/// A name that the certificate of an authority's port has, and no other.
pub(crate) const AUTHORITY_NAME: &str = "authority.cairn";
/// What is spoken there.
const JOINING: &[u8] = b"cairn-authority/1";
/// What both sides of one connection export, and nobody else can.
const LABEL: &[u8] = b"EXPORTER-cairn-authority-proof";

/// The name under which an authority shows itself.
pub fn authority_name() -> ServerName<'static> {
    ServerName::try_from(AUTHORITY_NAME).expect("it is a name of the DNS")
}

/// What the private key is shown to be there with, on a connection whose handshake is done.
pub fn exported<S: SideData>(connection: &ConnectionCommon<S>) -> Result<[u8; 32], rustls::Error> {
    connection.export_keying_material([0; 32], LABEL, None)
}

/// Whether both sides speak what is spoken with an authority.
pub fn is_joining(alpn: Option<&[u8]>) -> bool {
    alpn == Some(JOINING)
}

impl Authority {
    /// For its port. Its key there is made anew each time, and is in no file.
    pub fn port(&self) -> Result<Arc<ServerConfig>, SecurityError> {
        let to = |error: rustls::Error| SecurityError::Tls(error.to_string());
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate().clone()).map_err(to)?;
        // Who renews shows his certificate; who enrols has none.
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier = verifier.allow_unauthenticated().build();
        let verifier = verifier.map_err(|error| SecurityError::Tls(error.to_string()))?;
        let key = NewKey::generate()?;
        let chain = vec![self.certificate_of_port(&key.public())?, self.certificate().clone()];
        let private = PrivateKeyDer::from_pem_slice(key.text().as_bytes());
        let private = private.map_err(|error| SecurityError::Tls(error.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(to)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, private)
            .map_err(to)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        config.alpn_protocols = vec![JOINING.to_vec()];
        Ok(Arc::new(config))
    }
}

/// For a machine without a key, that was told the fingerprint of the authority.
pub fn enrolling(fingerprint: [u8; 32]) -> Result<Arc<ClientConfig>, SecurityError> {
    let verifier = Arc::new(Known { fingerprint, provider: provider() });
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| SecurityError::Tls(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(Arc::new(joining(config)))
}

/// The certificate of the authority with this fingerprint, of those that its port showed.
pub fn authority_of(shown: &[CertificateDer<'_>], wanted: &[u8; 32]) -> Option<CertificateDer<'static>> {
    let found = shown.iter().skip(1).find(|certificate| fingerprint(certificate) == *wanted)?;
    Some(found.clone().into_owned())
}

impl Tls {
    /// For a connection on which the next key is asked for.
    pub fn renewing(&self) -> Arc<ClientConfig> {
        Arc::new(joining(ClientConfig::clone(&self.web_client())))
    }
}

fn joining(mut config: ClientConfig) -> ClientConfig {
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    config.alpn_protocols = vec![JOINING.to_vec()];
    config
}

/// Takes the port of one authority, whose fingerprint is known and nothing else.
#[derive(Debug)]
struct Known {
    fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        beside: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let authority = beside.iter().find(|one| fingerprint(one) == self.fingerprint).ok_or_else(unknown)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone()).build();
        verifier.map_err(|_| unknown())?.verify_server_cert(shown, &[], name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
