//! [`Signer`]: the private key of an authority, and what its certificates look like.
use crate::joining::AUTHORITY_NAME;
use crate::new_key::RawKey;
use crate::now;
use crate::tls::SERVER_NAME;
use crate::validity::BEFORE;
use cairn_wire::audience::Caller;
use cairn_wire::holder::Holder;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ED25519, SanType,
};
use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;

/// Seconds for which a key is made at most, and for which an authority counts.
pub(super) const LIFE_MAX: u64 = 36_500 * super::DAY;

/// Signs certificates.
pub(super) struct Signer(Issuer<'static, KeyPair>);

impl Signer {
    /// Makes another authority: its private key and its certificate, both PEM.
    pub(super) fn make() -> Result<(String, String), rcgen::Error> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let certificate = params_of_ca(now()).self_signed(&key)?.pem();
        Ok((key.serialize_pem(), certificate))
    }

    pub(super) fn open(key: &str) -> Result<Self, rcgen::Error> {
        Ok(Self(Issuer::new(params_of_ca(now()), KeyPair::from_pem(key)?)))
    }

    /// The certificate of a holder for the key that he has.
    pub(super) fn certificate(
        &self,
        holder: &Holder,
        made: u64,
        public_key: &[u8; 32],
    ) -> Result<CertificateDer<'static>, rcgen::Error> {
        let mut params = params(&holder.name, made, holder.until);
        params.subject_alt_names.push(SanType::URI(holder.to_string().try_into()?));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if matches!(holder.caller, Caller::Node(_)) {
            params.subject_alt_names.push(SanType::DnsName(SERVER_NAME.to_owned().try_into()?));
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        Ok(params.signed_by(&RawKey(*public_key), &self.0)?.der().clone())
    }

    /// The certificate of the authority's own port. It names nobody, and no server of the cluster.
    pub(super) fn certificate_of_port(&self, public_key: &[u8; 32]) -> Result<CertificateDer<'static>, rcgen::Error> {
        let made = now();
        let mut params = params("Cairn authority", made, made + LIFE_MAX);
        params.subject_alt_names.push(SanType::DnsName(AUTHORITY_NAME.to_owned().try_into()?));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        Ok(params.signed_by(&RawKey(*public_key), &self.0)?.der().clone())
    }
}

fn params(name: &str, made: u64, until: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (at(made.saturating_sub(BEFORE)), at(until));
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params
}

fn at(seconds: u64) -> OffsetDateTime {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// The same for the certificate and, later, for the issuer: a chain is found by the name and the key's identifier.
fn params_of_ca(now: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (at(now.saturating_sub(BEFORE)), at(now + LIFE_MAX + super::DAY));
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "Cairn cluster authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}
