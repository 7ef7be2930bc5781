//! [`NewKey`]: a private key before it has a certificate, on the machine that will use it.
//!
//! Invariant: what is signed to show that it is there is bound to one connection, and says what it is for.
use crate::date;
use crate::error::SecurityError;
use crate::secret_file::{read_secret, write_secret};
use cairn_wire::holder::Holder;
use pem::{EncodeConfig, LineEnding};
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData, SignatureAlgorithm, SigningKey};
use ring::signature::{ED25519, UnparsedPublicKey};
use rustls::pki_types::CertificateDer;
use std::io::ErrorKind;
use std::path::Path;

/// Comes before what the connection exports, so that the signature is good for nothing else.
const PURPOSE: &[u8] = b"cairn authority: whoever speaks here has this key\0";

/// A public key (Ed25519) as it stands in a certificate.
pub(crate) struct RawKey(pub(crate) [u8; 32]);

impl PublicKeyData for RawKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

/// A private key.
pub struct NewKey {
    pair: KeyPair,
    public: [u8; 32],
}

impl NewKey {
    /// Makes one.
    pub fn generate() -> Result<Self, SecurityError> {
        Self::of(KeyPair::generate_for(&PKCS_ED25519)?)
    }

    /// Reads one (PEM).
    pub fn parse(text: &str) -> Result<Self, SecurityError> {
        Self::of(KeyPair::from_pem(text)?)
    }

    /// The one that a file has, which is made with one where it is not there: durable before anybody is asked for a
    /// certificate, so that the same is asked for again when the answer is lost.
    pub fn kept(path: &Path) -> Result<Self, SecurityError> {
        match read_secret(path) {
            Ok(text) => Self::parse(&String::from_utf8_lossy(&text)),
            Err(SecurityError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                let key = Self::generate()?;
                write_secret(path, &key.text(), false)?;
                Ok(key)
            }
            Err(error) => Err(error),
        }
    }

    fn of(pair: KeyPair) -> Result<Self, SecurityError> {
        let public = pair.public_key_raw().try_into().map_err(|_| rcgen::Error::UnsupportedSignatureAlgorithm)?;
        Ok(Self { pair, public })
    }

    /// The half that others may know.
    pub fn public(&self) -> [u8; 32] {
        self.public
    }

    /// The private key (PEM).
    pub fn text(&self) -> String {
        self.pair.serialize_pem()
    }

    /// Shows whoever exported the same of his side of a connection that the private key is here.
    pub fn prove(&self, exported: &[u8; 32]) -> Result<[u8; 64], SecurityError> {
        let signature = self.pair.sign(&[PURPOSE, exported].concat())?;
        Ok(signature.try_into().map_err(|_| rcgen::Error::UnsupportedSignatureAlgorithm)?)
    }

    /// The text of a key file: the certificate, those of the authorities, the private key.
    pub fn file(&self, holder: &Holder, certificate: &CertificateDer<'_>, trusted: &[CertificateDer<'_>]) -> String {
        let name = &holder.name;
        let mut text = format!(
            "Cairn: key of {} {name}, until {}. Whoever has this file is {name}: keep it secret (0600).\n",
            holder.kind(),
            date(holder.until)
        );
        let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
        for certificate in std::iter::once(certificate).chain(trusted) {
            text.push_str(&pem::encode_config(&pem::Pem::new("CERTIFICATE", certificate.as_ref()), lines));
        }
        text.push_str(&self.text());
        text
    }
}

/// Whether whoever speaks on a connection has the private key.
pub fn is_proven(public_key: &[u8; 32], exported: &[u8; 32], proof: &[u8; 64]) -> bool {
    UnparsedPublicKey::new(&ED25519, public_key).verify(&[PURPOSE, exported].concat(), proof).is_ok()
}
