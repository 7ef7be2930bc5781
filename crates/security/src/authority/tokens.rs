//! Tokens: with each a machine may fetch one key, which was decided on when the token was made.
//!
//! A token is a file below `tokens`, named by the hash of its secret, which is nowhere in the directory. Invariants: a
//! token is bound to the first public key that comes with it, durably and before anybody gets a certificate; the same
//! key gets the same certificate again, another one none; after its end it is good for nobody; what cannot be read is
//! no token.
use super::{Authority, Denied, Given, Issued, Wanted};
use crate::error::SecurityError;
use crate::secret_file::{read_secret, write_secret};
use crate::{moment, now};
use cairn_wire::enrol::{JoinToken, SECRET_LEN, bytes_from_hex, from_hex, to_hex};
use cairn_wire::holder::Holder;
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::CertificateDer;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// Seconds for which a token counts unless somebody says otherwise.
pub const TOKEN_LIFE: u64 = 3600;
/// In the directory of the authority.
const TOKENS: &str = "tokens";
/// Tokens that ended are kept so long: whoever comes too late is told so.
const KEPT: u64 = 7 * super::DAY;
/// Bytes of the hash of a secret that tell tokens apart on one machine.
const PUBLIC_LEN: usize = 8;
/// Tokens that there may be, those that ended lately included.
const TOKENS_MAX: usize = 10_000;
/// What a file begins with.
const FIRST_LINE: &str = "cairn token 1";

/// What is known of a token.
struct Record {
    wanted: Wanted,
    /// Seconds since 1970.
    until: u64,
    used: Option<Used>,
}

struct Used {
    by: [u8; 32],
    at: u64,
    certificate: CertificateDer<'static>,
}

impl Record {
    fn text(&self) -> String {
        let Wanted { name, caller, node, life, rights, again } = &self.wanted;
        let (caller, node, rights) = (*caller, *node, rights.clone());
        let holder = Holder { name: name.clone(), caller, node, until: 0, rights };
        let mut text = format!("{FIRST_LINE}\nholder {holder}\nlife {life}\nagain {again}\nuntil {}\n", self.until);
        if let Some(Used { by, at, certificate }) = &self.used {
            text.push_str(&format!("key {}\nat {at}\ncertificate {}\n", to_hex(by), to_hex(certificate)));
        }
        // Without it the file is not whole.
        text.push_str("end\n");
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut value = |key: &str| lines.next()?.strip_prefix(key)?.strip_prefix(' ');
        // The first line has its version where others have a value.
        if value("cairn")? != FIRST_LINE.strip_prefix("cairn ")? {
            return None;
        }
        let holder = Holder::parse(value("holder")?)?;
        let (life, again) = (value("life")?.parse().ok()?, value("again")?.parse().ok()?);
        let until = value("until")?.parse().ok()?;
        let Holder { name, caller, node, rights, .. } = holder;
        let wanted = Wanted { name, caller, node, life, rights, again };
        let used = match lines.next()? {
            "end" => None,
            line => {
                let by = from_hex(line.strip_prefix("key ")?)?;
                let at = lines.next()?.strip_prefix("at ")?.parse().ok()?;
                let certificate = bytes_from_hex(lines.next()?.strip_prefix("certificate ")?)?.into();
                (lines.next()? == "end").then_some(Some(Used { by, at, certificate }))?
            }
        };
        lines.next().is_none().then_some(Self { wanted, until, used })
    }
}

impl Authority {
    /// Makes a token for a key that is decided on now and made later, where it is used.
    pub fn invite(&self, wanted: &Wanted, life: u64) -> Result<JoinToken, SecurityError> {
        let dir = self.dir.join(TOKENS);
        let _lock = self.lock()?;
        let until = now().saturating_add(life);
        let how = if wanted.again { Given::Again } else { Given::First };
        Self::check_name(&self.issued()?, &wanted.holder(until)?, how)?;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.and_then(|()| fs::File::open(&self.dir)?.sync_all()).map_err(|error| SecurityError::io(&dir, error))?;
        self.forget_old_tokens()?;
        let mut secret = [0; SECRET_LEN];
        SystemRandom::new().fill(&mut secret).map_err(|_| rcgen::Error::RingUnspecified)?;
        let record = Record { wanted: wanted.clone(), until, used: None };
        write_secret(&self.place(&secret), &record.text(), false)?;
        Ok(JoinToken { fingerprint: self.fingerprint(), secret })
    }

    /// Takes back the tokens of a name that nobody has used; how many they were.
    pub fn take_back(&self, name: &str) -> Result<usize, SecurityError> {
        let dir = self.dir.join(TOKENS);
        let io = |error| SecurityError::io(&dir, error);
        let _lock = self.lock()?;
        if !dir.exists() {
            return Ok(0);
        }
        let mut taken = 0;
        for entry in fs::read_dir(&dir).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let record = Record::parse(&fs::read_to_string(&path).unwrap_or_default());
            let is_it = |record: &Record| record.wanted.name == name && record.used.is_none() && record.until > now();
            if record.as_ref().is_some_and(is_it) {
                fs::remove_file(&path).map_err(io)?;
                taken += 1;
            }
        }
        fs::File::open(&dir).and_then(|dir| dir.sync_all()).map_err(io)?;
        Ok(taken)
    }

    /// Makes the certificate for which a token was made, for the first key that comes with it, if what was decided on
    /// is still so and is what who comes needs: a token that is refused for that is as good as before.
    pub fn enrol(
        &self,
        secret: &[u8; SECRET_LEN],
        public_key: &[u8; 32],
        may: impl FnOnce(&Wanted) -> Result<(), String>,
    ) -> Result<Issued, Denied> {
        let path = self.place(secret);
        let unknown = || {
            let why = "this authority knows no such token: it may be another cluster's, or over for more than a week; make one with \
                       cairn key token";
            Denied::Asker(why.to_owned())
        };
        // Who guesses does not keep others waiting.
        if !path.exists() {
            return Err(unknown());
        }
        let _lock = self.lock()?;
        let text = match read_secret(&path) {
            Err(SecurityError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(unknown());
            }
            read => read?,
        };
        let record = std::str::from_utf8(&text).ok().and_then(Record::parse).ok_or_else(|| {
            let why = "it is no whole token; remove it, and make another one".to_owned();
            SecurityError::NotAKey { path: path.clone(), why }
        })?;
        let made = now();
        let name = &record.wanted.name;
        if record.until <= made {
            let until = moment(record.until);
            return Err(Denied::Asker(format!(
                "the token of {name} ended at {until}: make another one with cairn key token"
            )));
        }
        if record.used.is_none() {
            may(&record.wanted).map_err(Denied::Asker)?;
        }
        if let Some(Used { by, at, certificate }) = &record.used {
            if by != public_key {
                let at = moment(*at);
                return Err(Denied::Asker(format!(
                    "the token of {name} was used at {at}, for another private key. If that was not you, somebody else has this key \
                     now: revoke the name {name}, and make a token with another name"
                )));
            }
            // The answer was lost, or this process ended before the list was written.
            let holder = crate::key_file::holder_of(certificate).ok_or_else(unknown)?;
            if !self.issued()?.contains(&holder) {
                self.note_wanted(&holder, &record.wanted)?;
            }
            return Ok(Issued { holder, certificate: certificate.clone() });
        }
        let holder = record.wanted.holder(made)?;
        let how = if record.wanted.again { Given::Again } else { Given::First };
        Self::check_name(&self.issued()?, &holder, how).map_err(asker)?;
        let certificate = self.signer.certificate(&holder, made, public_key).map_err(SecurityError::from)?;
        let used = Used { by: *public_key, at: made, certificate: certificate.clone() };
        let wanted = record.wanted.clone();
        write_secret(&path, &Record { used: Some(used), ..record }.text(), true)?;
        self.note_wanted(&holder, &wanted)?;
        Ok(Issued { holder, certificate })
    }

    fn note_wanted(&self, holder: &Holder, wanted: &Wanted) -> Result<(), Denied> {
        self.note(holder, if wanted.again { Given::Again } else { Given::First }).map_err(asker)
    }

    fn place(&self, secret: &[u8; SECRET_LEN]) -> PathBuf {
        let hash = digest::digest(&digest::SHA256, secret);
        self.dir.join(TOKENS).join(to_hex(hash.as_ref()))
    }

    /// Removes tokens that ended long ago; an error if there are too many others.
    fn forget_old_tokens(&self) -> Result<(), SecurityError> {
        let dir = self.dir.join(TOKENS);
        let io = |error| SecurityError::io(&dir, error);
        let mut left = 0;
        for entry in fs::read_dir(&dir).map_err(io)? {
            let path = entry.map_err(io)?.path();
            // Nobody else writes while the lock is held: it was left half made.
            if path.extension().is_some() {
                fs::remove_file(&path).map_err(io)?;
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            match Record::parse(&text).is_some_and(|record| record.until.saturating_add(KEPT) < now()) {
                true => fs::remove_file(&path).map_err(io)?,
                false => left += 1,
            }
        }
        match left < TOKENS_MAX {
            true => Ok(()),
            false => Err(SecurityError::Name(format!(
                "{} has {left} tokens that ended less than a week ago or count still: remove those that nobody needs",
                dir.display()
            ))),
        }
    }
}

/// What a machine may call the secret of a token where others can read it: a part of its hash.
pub fn public_name(secret: &[u8; SECRET_LEN]) -> String {
    to_hex(&digest::digest(&digest::SHA256, secret).as_ref()[..PUBLIC_LEN])
}

/// A name that is somebody else's by now is the asker's trouble.
pub(super) fn asker(error: SecurityError) -> Denied {
    match error {
        SecurityError::Name(why) => Denied::Asker(why),
        other => Denied::Failed(other),
    }
}

#[cfg(test)]
mod tests;
