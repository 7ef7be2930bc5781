//! [`Authority`]: makes keys. A directory with the authority's private key, its certificate, a list of what was given
//! out, and the tokens for which machines may fetch a key.
//!
//! Nobody needs it but who makes keys: servers know the certificate alone. Invariants: a name of a client or an
//! administrator is given out once, so that revoking it never hits somebody else; no line of the list is lost that was
//! written whole, and where one is not understood nothing is given out; what changes the directory holds its lock, so
//! several processes may work with it, of the user whose it is: what another one makes there that user could not
//! read. Not here: who may ask over the network (the binary).
mod signing;
mod tokens;

use crate::error::SecurityError;
use crate::new_key::NewKey;
use crate::secret_file::{read_secret, write_secret};
use crate::validity::Validity;
use crate::{moment, now};
use cairn_types::NodeId;
use cairn_wire::audience::Caller;
use cairn_wire::holder::{Holder, MANAGER_ID_MAX, NAME_MAX};
use cairn_wire::rights::Rights;
use ring::digest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use signing::Signer;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub use tokens::{TOKEN_LIFE, public_name};

/// The private key, in the directory.
pub const CA_KEY: &str = "ca.key";
/// The certificate, in the directory.
pub const CA_CERTIFICATE: &str = "ca.crt";
/// What was given out, in the directory.
const ISSUED: &str = "issued";
/// Held while the directory is changed, in the directory.
const LOCK: &str = "lock";
/// Seconds of a day.
pub const DAY: u64 = 86_400;

/// A key to be made.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Of the holder.
    pub name: String,
    /// What it may.
    pub caller: Caller,
    /// The node that it is, 0 where it gets its id later.
    pub node: NodeId,
    /// For how many seconds.
    pub life: u64,
    /// What of the volumes, for a client.
    pub rights: Rights,
    /// It is a server's that had a key of this name before.
    pub again: bool,
}

impl Wanted {
    /// Whoever gets it, if it is made now.
    fn holder(&self, made: u64) -> Result<Holder, SecurityError> {
        let Self { name, caller, node, life, rights, again: _ } = self;
        if !Holder::is_name(name) {
            let text =
                format!("{name:?} is no name: letters, digits, dots, dashes and underscores, at most {NAME_MAX}");
            return Err(SecurityError::Name(text));
        }
        let until = made.saturating_add((*life).min(signing::LIFE_MAX));
        Ok(Holder { name: name.clone(), caller: *caller, node: *node, until, rights: rights.clone() })
    }
}

/// How a name comes to a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    /// It has none.
    First,
    /// A server had one, and gets another.
    Again,
    /// Its holder shows the present one.
    Renewed,
}

/// Why somebody gets no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// What he asks for is not his; he may be told.
    #[error("{0}")]
    Asker(String),
    /// The authority cannot, whoever asks.
    #[error(transparent)]
    Failed(#[from] SecurityError),
}

/// A certificate that was made.
pub struct Issued {
    /// Whose.
    pub holder: Holder,
    /// The certificate.
    pub certificate: CertificateDer<'static>,
}

/// A cluster's authority.
pub struct Authority {
    dir: PathBuf,
    der: CertificateDer<'static>,
    signer: Signer,
}

impl Authority {
    /// Makes one in a directory that is not there yet, or is empty.
    pub fn create(dir: &Path) -> Result<Self, SecurityError> {
        let io = |error| SecurityError::io(dir, error);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
        if fs::read_dir(dir).map_err(io)?.next().is_some() {
            return Err(SecurityError::Exists(dir.to_path_buf()));
        }
        let (key, certificate) = Signer::make()?;
        write_secret(&dir.join(CA_KEY), &key, false)?;
        write_secret(&dir.join(CA_CERTIFICATE), &certificate, false)?;
        Self::open(dir)
    }

    /// Opens one that was made.
    pub fn open(dir: &Path) -> Result<Self, SecurityError> {
        let meta = fs::metadata(dir).map_err(|error| SecurityError::io(dir, error))?;
        let user = rustix::process::geteuid().as_raw();
        if meta.uid() != user {
            let owner = meta.uid();
            let why = format!(
                "this authority belongs to uid {owner}, and what uid {user} writes there is not for that one: say sudo -u '#{owner}' cairn key …"
            );
            return Err(SecurityError::Exposed { path: dir.to_path_buf(), why });
        }
        let not_a_key =
            |path: &Path, why: &str| SecurityError::NotAKey { path: path.to_path_buf(), why: why.to_owned() };
        let text = |name: &str| {
            let path = dir.join(name);
            let bytes = read_secret(&path)?;
            String::from_utf8(bytes).map_err(|_| not_a_key(&path, "it is no text"))
        };
        let signer = Signer::open(&text(CA_KEY)?)?;
        let certificate = text(CA_CERTIFICATE)?;
        let der = CertificateDer::from_pem_slice(certificate.as_bytes());
        let der = der.map_err(|_| not_a_key(&dir.join(CA_CERTIFICATE), "it is no certificate"))?;
        Ok(Self { dir: dir.to_path_buf(), der, signer })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// What a machine that has nothing yet knows the authority by.
    pub fn fingerprint(&self) -> [u8; 32] {
        fingerprint(&self.der)
    }

    /// Makes a key: the text of its file. It is noted in the list before anybody gets it.
    pub fn issue(&self, wanted: &Wanted) -> Result<String, SecurityError> {
        self.issue_at(wanted, now())
    }

    /// The same as at another time, for tests of what comes with time.
    #[doc(hidden)]
    pub fn issue_at(&self, wanted: &Wanted, made: u64) -> Result<String, SecurityError> {
        let _lock = self.lock()?;
        let holder = wanted.holder(made)?;
        self.note(&holder, if wanted.again { Given::Again } else { Given::First })?;
        let key = NewKey::generate()?;
        let certificate = self.signer.certificate(&holder, made, &key.public())?;
        Ok(key.file(&holder, &certificate, std::slice::from_ref(&self.der)))
    }

    /// Makes the next certificate of a server that showed the present one, for another key of its, for as long as the
    /// present one was made for. Whether the name was revoked is the caller's to know. Keys of others end: they were
    /// made for a time, and have nobody who fetches the next one.
    pub fn renew(&self, present: &CertificateDer<'_>, public_key: &[u8; 32]) -> Result<Issued, Denied> {
        let holder = crate::key_file::holder_of(present);
        let (Some(holder), Some(validity)) = (holder, Validity::of(present)) else {
            return Err(Denied::Asker("the certificate names nobody: make a key with cairn key".to_owned()));
        };
        if !matches!(holder.caller, Caller::Node(_)) {
            let (name, kind) = (&holder.name, holder.a_kind());
            let why =
                format!("the key of {name} is that of {kind}, and only servers' are renewed: make it another one");
            return Err(Denied::Asker(why));
        }
        let made = now();
        if made < validity.renewable() {
            let (name, from) = (&holder.name, moment(validity.renewable()));
            return Err(Denied::Asker(format!("the key of {name} is renewed from {from} on, and not before")));
        }
        let _lock = self.lock()?;
        let holder = Holder { until: made.saturating_add(validity.life()), ..holder };
        self.note(&holder, Given::Renewed).map_err(tokens::asker)?;
        let certificate = self.signer.certificate(&holder, made, public_key).map_err(SecurityError::from)?;
        Ok(Issued { holder, certificate })
    }

    pub(crate) fn certificate_of_port(&self, public_key: &[u8; 32]) -> Result<CertificateDer<'static>, SecurityError> {
        Ok(self.signer.certificate_of_port(public_key)?)
    }

    /// Other processes wait meanwhile.
    fn lock(&self) -> Result<File, SecurityError> {
        let path = self.dir.join(LOCK);
        let io = |error| SecurityError::io(&path, error);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(io)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).map_err(|error| io(error.into()))?;
        Ok(file)
    }

    /// Whether a name may have this key, as far as it was given out.
    fn check_name(given: &[Holder], holder: &Holder, how: Given) -> Result<(), SecurityError> {
        // The last one: its node may have been named since.
        let before = given.iter().rfind(|before| before.name == holder.name);
        let is_server = matches!(holder.caller, Caller::Node(_));
        // A server's id may be known only later.
        let is_node_of = |before: &Holder| {
            before.node == holder.node || before.node == NodeId(0) && holder.node.get() > MANAGER_ID_MAX
        };
        let why = match (before, how) {
            (None, Given::First | Given::Again) => return Ok(()),
            (None, Given::Renewed) => format!("this authority gave no key to {}: make it one", holder.name),
            // A server's key is made again when it ends; that of a person or a program gets another name.
            (Some(before), Given::Again) if is_server && before.caller == holder.caller && is_node_of(before) => {
                return Ok(());
            }
            (Some(before), Given::Renewed)
                if before.caller == holder.caller && before.node == holder.node && before.rights == holder.rights =>
            {
                return Ok(());
            }
            (Some(before), Given::Renewed) => format!(
                "the key of {} that was given out last, that of {}, has other rights than the one that is shown: it is not renewed",
                holder.name,
                before.a_kind()
            ),
            (Some(before), _) => format!(
                "the name {} was given out already, for the key of {}; give another one, so that each can be revoked by itself",
                holder.name,
                before.a_kind()
            ),
        };
        Err(SecurityError::Name(why))
    }

    /// Adds a line to the list, unless the name was given to somebody else. A renewed key takes the place of its line:
    /// the list does not grow with time. It is another file each time: a part of a line is never left in it.
    fn note(&self, holder: &Holder, how: Given) -> Result<(), SecurityError> {
        let mut given = self.issued()?;
        Self::check_name(&given, holder, how)?;
        let place = given.iter().rposition(|before| before.name == holder.name);
        match place.filter(|_| how == Given::Renewed) {
            Some(place) => given[place] = holder.clone(),
            None => given.push(holder.clone()),
        }
        let text: String = given.iter().map(|holder| format!("{holder}\n")).collect();
        write_secret(&self.dir.join(ISSUED), &text, true)
    }

    /// What was given out, oldest first.
    pub fn issued(&self) -> Result<Vec<Holder>, SecurityError> {
        let path = self.dir.join(ISSUED);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.map_err(|error| SecurityError::io(&path, error))?,
        };
        let mut given = Vec::new();
        for (number, line) in (1..).zip(text.split_inclusive('\n')) {
            match (Holder::parse(line.trim_end_matches('\n')), line.ends_with('\n')) {
                (Some(holder), _) => given.push(holder),
                // A build of before was stopped while it added a line, before anybody got that key.
                (None, false) => {}
                (None, true) => {
                    let why = format!(
                        "line {number} is none that this version of Cairn understands, and names must not be given out twice: work with \
                         the version that wrote it, or put the line right"
                    );
                    return Err(SecurityError::List { path, why });
                }
            }
        }
        Ok(given)
    }
}

/// SHA-256 of a certificate.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, certificate).as_ref());
    out
}
