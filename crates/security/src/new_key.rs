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

/// Where the secret begins in what the library writes, what stands before it behind the length, and what stands before
/// it where the public half is left out.
const SEED_AT: usize = 16;
const BEFORE_SEED_V2: [u8; 14] = [2, 1, 1, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
const BEFORE_SEED_V1: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

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

    /// The private key (PEM), in the form that all programs read: without the public half (RFC 8410, section 7).
    pub fn text(&self) -> String {
        let both = self.pair.serialize_der();
        let seed = both.get(SEED_AT..SEED_AT + 32).filter(|_| both[2..SEED_AT] == BEFORE_SEED_V2);
        let alone = seed.map(|seed| [&BEFORE_SEED_V1[..], seed].concat());
        let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
        pem::encode_config(&pem::Pem::new("PRIVATE KEY", alone.unwrap_or(both)), lines)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Other programs would refuse the private key in a key file, or it would be another one when it is read.
    #[test]
    fn a_private_key_is_written_in_the_usual_form() {
        let key = NewKey::generate().expect("a key");
        let parsed = pem::parse(key.text()).expect("PEM");
        assert_eq!((parsed.tag(), parsed.contents().len()), ("PRIVATE KEY", 48));
        assert_eq!(parsed.contents()[..16], BEFORE_SEED_V1);
        let again = NewKey::parse(&key.text()).expect("read");
        assert_eq!((again.public(), again.text()), (key.public(), key.text()));
        // What earlier builds wrote.
        let before = NewKey::parse(&key.pair.serialize_pem()).expect("read");
        assert_eq!(before.public(), key.public());
        let exported = [7; 32];
        let proof = again.prove(&exported).expect("signed");
        assert!(is_proven(&key.public(), &exported, &proof));
        assert!(!is_proven(&key.public(), &[8; 32], &proof), "it is good on one connection");
        assert!(!is_proven(&NewKey::generate().expect("a key").public(), &exported, &proof));
    }
}
