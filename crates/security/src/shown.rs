//! [`Shown`]: the certificate that a process shows, and its private key; a later one of the same holder takes its place
//! while the process runs.
//!
//! Invariants: what is shown is always a pair that fits; it never becomes another holder's, one with other roles, or
//! one of other authorities than the process trusts.
use crate::error::SecurityError;
use crate::key_file::KeyFile;
use crate::tls::{counts_for_others, provider};
use crate::validity::Validity;
use cairn_wire::holder::Holder;
use parking_lot::RwLock;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::sync::Arc;

/// What a process shows.
#[derive(Debug)]
pub(crate) struct Shown {
    pair: RwLock<Pair>,
    holder: Holder,
    trusted: Vec<CertificateDer<'static>>,
}

#[derive(Debug)]
struct Pair {
    certified: Arc<CertifiedKey>,
    until: u64,
    validity: Option<Validity>,
}

impl Pair {
    fn of(file: &KeyFile) -> Result<Self, SecurityError> {
        Ok(Self { certified: pair_of(file)?, until: file.holder().until, validity: file.validity() })
    }
}

impl Shown {
    pub(crate) fn of(file: &KeyFile) -> Result<Self, SecurityError> {
        let pair = RwLock::new(Pair::of(file)?);
        Ok(Self { pair, holder: file.holder().clone(), trusted: file.trusted.clone() })
    }

    pub(crate) fn until(&self) -> u64 {
        self.pair.read().until
    }

    pub(crate) fn validity(&self) -> Option<Validity> {
        self.pair.read().validity
    }

    pub(crate) fn renew(&self, file: &KeyFile) -> Result<bool, SecurityError> {
        let (holder, until) = (file.holder(), file.holder().until);
        let not_its = |why: &str| {
            let found = format!("{} {}", holder.a_kind(), holder.name);
            let wanted = format!("a later key of {}, {why},", self.holder.name);
            Err(SecurityError::WrongKind { path: file.path().to_path_buf(), found, wanted })
        };
        if (Holder { until, ..self.holder.clone() }) != *holder {
            return not_its("with the same roles and node");
        }
        if until < self.until() {
            return not_its("that ends no earlier (an earlier one needs a restart)");
        }
        if self.trusted != file.trusted {
            return not_its("with the same authorities (others need a restart)");
        }
        counts_for_others(file)?;
        let pair = Pair::of(file)?;
        let mut shown = self.pair.write();
        if shown.certified.cert == pair.certified.cert {
            return Ok(false);
        }
        *shown = pair;
        Ok(true)
    }

    fn now(&self) -> Arc<CertifiedKey> {
        self.pair.read().certified.clone()
    }
}

pub(crate) fn pair_of(file: &KeyFile) -> Result<Arc<CertifiedKey>, SecurityError> {
    let pair = CertifiedKey::from_der(vec![file.certificate.clone()], file.key.clone_key(), &provider());
    let why = |error: rustls::Error| SecurityError::NotAKey { path: file.path().to_path_buf(), why: error.to_string() };
    pair.map(Arc::new).map_err(why)
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.now())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now())
    }
}
