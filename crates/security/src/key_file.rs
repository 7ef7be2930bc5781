//! [`KeyFile`]: a key in one file (PEM): its certificate, the certificates of the authorities that its holder trusts,
//! its private key.
use crate::error::SecurityError;
use crate::secret_file::read_secret;
use crate::shown::pair_of;
use crate::tls::counts_for_others;
use crate::validity::Validity;
use crate::{date, now};
use cairn_wire::holder::Holder;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};

/// A key that was read.
pub struct KeyFile {
    path: PathBuf,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) trusted: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    holder: Holder,
}

impl KeyFile {
    /// Reads a file that is nobody's but its owner's. One whose time is over is refused: everybody else would refuse it
    /// too.
    pub fn read(path: &Path) -> Result<Self, SecurityError> {
        Ok(Self::read_with_text(path)?.0)
    }

    /// The same, with the text of the file: for handing the key on to those whom its holder trusts with it.
    pub fn read_with_text(path: &Path) -> Result<(Self, Vec<u8>), SecurityError> {
        let text = read_secret(path)?;
        let file = Self::parse(path, &text)?;
        match file.holder.until <= now() {
            true => Err(SecurityError::Ended { path: path.to_path_buf(), when: date(file.holder.until) }),
            false => Ok((file, text)),
        }
    }

    /// Reads a file, also one whose time is over.
    pub fn read_any(path: &Path) -> Result<Self, SecurityError> {
        Self::parse(path, &read_secret(path)?)
    }

    /// Reads the text of a file; the path is for messages.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, SecurityError> {
        let not_a_key = |why: &str| SecurityError::NotAKey { path: path.to_path_buf(), why: why.to_owned() };
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
        let mut certificates = certificates.map_err(|_| not_a_key("its certificates cannot be read"))?;
        if certificates.len() < 2 {
            return Err(not_a_key("it has no certificate of its own, or none of an authority"));
        }
        let trusted = certificates.split_off(1);
        let certificate = certificates.swap_remove(0);
        let key = PrivateKeyDer::from_pem_slice(text).map_err(|_| not_a_key("it has no private key"))?;
        let holder = holder_of(&certificate).ok_or_else(|| not_a_key("its certificate names nobody"))?;
        Ok(Self { path: path.to_path_buf(), certificate, trusted, key, holder })
    }

    /// Whether its halves fit, and those who trust the same authorities take it today.
    pub fn check(&self) -> Result<(), SecurityError> {
        let _fits = pair_of(self)?;
        counts_for_others(self)
    }

    /// Where it was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose it is.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// When it was made and when it ends.
    pub fn validity(&self) -> Option<Validity> {
        Validity::of(&self.certificate)
    }

    /// The authorities that its holder trusts.
    pub fn trusted(&self) -> &[CertificateDer<'static>] {
        &self.trusted
    }

    /// Days that are left; 0 on the last one.
    pub fn days_left(&self) -> u64 {
        self.holder.until.saturating_sub(now()) / 86_400
    }
}

/// Who holds a certificate, as it says itself: to be believed where its chain was checked.
pub fn holder_of(certificate: &CertificateDer<'_>) -> Option<Holder> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut names = parsed.valid_uri_names();
    let holder = Holder::parse(names.next()?)?;
    names.next().is_none().then_some(holder)
}
