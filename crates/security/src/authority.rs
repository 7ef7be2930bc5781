//! [`Authority`]: makes keys. A directory with the authority's private key, its certificate, and a list of what was
//! given out.
//!
//! Nobody needs it but who makes keys: servers know the certificate alone. Invariant: a name of a client or an
//! administrator is given out once, so that revoking it never hits somebody else.
use crate::error::SecurityError;
use crate::secret_file::{read_secret, write_secret};
use crate::tls::SERVER_NAME;
use crate::{date, now};
use cairn_types::NodeId;
use cairn_wire::audience::Caller;
use cairn_wire::holder::{Holder, MANAGER_ID_MAX, NAME_MAX};
use cairn_wire::rights::Rights;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ED25519, SanType,
};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use time::OffsetDateTime;

/// The private key, in the directory.
pub const CA_KEY: &str = "ca.key";
/// The certificate, in the directory.
pub const CA_CERTIFICATE: &str = "ca.crt";
/// What was given out, in the directory.
const ISSUED: &str = "issued";
const CA_DAYS: u64 = 36_500;
const DAY: u64 = 86_400;
/// Clocks of a cluster differ: a certificate counts from the day before.
const BEFORE: u64 = DAY;

/// A key to be made.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Of the holder.
    pub name: String,
    /// What it may.
    pub caller: Caller,
    /// The node that it is, 0 where it gets its id later.
    pub node: NodeId,
    /// For how long.
    pub days: u64,
    /// What of the volumes, for a client.
    pub rights: Rights,
    /// It is a server's that had a key of this name before.
    pub again: bool,
}

/// A cluster's authority.
pub struct Authority {
    dir: PathBuf,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes one in a directory that is not there yet, or is empty.
    pub fn create(dir: &Path) -> Result<Self, SecurityError> {
        let io = |error| SecurityError::io(dir, error);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
        if fs::read_dir(dir).map_err(io)?.next().is_some() {
            return Err(SecurityError::Exists(dir.to_path_buf()));
        }
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let certificate = params_of_ca(now())?.self_signed(&key)?.pem();
        write_secret(&dir.join(CA_KEY), &key.serialize_pem(), false)?;
        write_secret(&dir.join(CA_CERTIFICATE), &certificate, false)?;
        Ok(Self { dir: dir.to_path_buf(), certificate, issuer: Issuer::new(params_of_ca(now())?, key) })
    }

    /// Opens one that was made.
    pub fn open(dir: &Path) -> Result<Self, SecurityError> {
        let text = |name: &str| {
            let path = dir.join(name);
            let bytes = read_secret(&path)?;
            let why = || "it is no text".to_owned();
            String::from_utf8(bytes).map_err(|_| SecurityError::NotAKey { path, why: why() })
        };
        let key = KeyPair::from_pem(&text(CA_KEY)?)?;
        let certificate = text(CA_CERTIFICATE)?;
        Ok(Self { dir: dir.to_path_buf(), certificate, issuer: Issuer::new(params_of_ca(now())?, key) })
    }

    /// Makes a key: the text of its file. It is noted in the list before anybody gets it.
    pub fn issue(&self, wanted: &Wanted) -> Result<String, SecurityError> {
        let Wanted { name, caller, node, days, rights, again } = wanted;
        if !Holder::is_name(name) {
            let text =
                format!("{name:?} is no name: letters, digits, dots, dashes and underscores, at most {NAME_MAX}");
            return Err(SecurityError::Name(text));
        }
        let begin = now();
        let until = begin.saturating_add(days.saturating_mul(DAY)).min(begin + CA_DAYS * DAY);
        let holder = Holder { name: name.clone(), caller: *caller, node: *node, until, rights: rights.clone() };
        self.note(&holder, *again)?;
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (at(begin.saturating_sub(BEFORE)), at(until));
        params.distinguished_name.push(DnType::CommonName, name.as_str());
        params.subject_alt_names.push(SanType::URI(holder.to_string().try_into()?));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        if matches!(caller, Caller::Node(_)) {
            params.subject_alt_names.push(SanType::DnsName(SERVER_NAME.to_owned().try_into()?));
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        let about = format!(
            "Cairn: key of {} {name}, until {}. Whoever has this file is {name}: keep it secret (0600).",
            holder.kind(),
            date(until)
        );
        Ok(format!("{about}\n{certificate}{}{}", self.certificate, key.serialize_pem()))
    }

    /// Adds a line to the list, unless the name was given to somebody else.
    fn note(&self, holder: &Holder, again: bool) -> Result<(), SecurityError> {
        let path = self.dir.join(ISSUED);
        let io = |error| SecurityError::io(&path, error);
        let given = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            given => given.map_err(io)?,
        };
        // The last one: its node may have been named since.
        let before = given.lines().filter_map(Holder::parse).rfind(|before| before.name == holder.name);
        if let Some(before) = before {
            // A server's key is made again when it ends; that of a person or a program gets another name.
            let is_same = matches!(before.caller, Caller::Node(_))
                && before.caller == holder.caller
                // A server's id may be known only later.
                && (before.node == holder.node || before.node == NodeId(0) && holder.node.get() > MANAGER_ID_MAX);
            if !(again && is_same) {
                let text = format!(
                    "the name {} was given out already, for the key of {}; give another one, so that each can be revoked by itself",
                    holder.name,
                    before.a_kind()
                );
                return Err(SecurityError::Name(text));
            }
        }
        let mut list = OpenOptions::new().append(true).create(true).mode(0o600).open(&path).map_err(io)?;
        writeln!(list, "{holder}").and_then(|()| list.sync_all()).map_err(io)
    }

    /// What was given out, oldest first.
    pub fn issued(&self) -> Result<Vec<Holder>, SecurityError> {
        let path = self.dir.join(ISSUED);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.lines().filter_map(Holder::parse).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(SecurityError::io(path, error)),
        }
    }
}

fn at(seconds: u64) -> OffsetDateTime {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// The same for the certificate and, later, for the issuer: a chain is found by the name and the key's identifier.
fn params_of_ca(now: u64) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (at(now.saturating_sub(BEFORE)), at(now + CA_DAYS * DAY + DAY));
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "Cairn cluster authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    Ok(params)
}
