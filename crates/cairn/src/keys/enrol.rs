//! `cairn key enrol`: fetches the key of this machine from the authority, for a token.
//!
//! Invariants: the private key is made here, is durable before anybody is asked, and leaves the machine never; the
//! token's secret goes to nobody but the authority whose fingerprint is in the token; what is put in place is a key
//! that others take, and that fits the configuration.
use super::{Target, tell};
use crate::config::{self, Config};
use crate::joining::{self, Answered};
use crate::security::{Expected, NotItsKey, fits};
use crate::server::ServeError;
use anyhow::Context;
use cairn_cli::GlobalArgs;
use cairn_security::{KeyFile, NewKey, authority_of, enrolling, forget_secret, holder_of, public_name, write_secret};
use cairn_wire::enrol::{Asked, JoinToken, Place};
use clap::Args;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Beside the file of a key, with a part of the hash of the token behind it: the private key, until it has a
/// certificate. One that was made for another token may be known to others.
const PENDING: &str = ".pending-";
/// Longer than any token.
const TOKEN_MAX: u64 = 4096;

#[derive(Args, Debug)]
pub struct EnrolArgs {
    /// File with the token that cairn key token printed; - reads it from standard input. On a command line others of
    /// this machine could read it
    #[arg(long, value_name = "FILE|-")]
    token: String,
    /// Where cairn key serve listens; without it what security.authority of the configuration says
    #[arg(long, value_name = "HOST:PORT")]
    at: Option<String>,
    /// Configuration of the server whose key it is; the key goes to the file that security.key names
    #[arg(value_name = "CONFIG", required_unless_present = "out")]
    config: Option<PathBuf>,
    /// File for the key, instead of the one that a configuration names
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace a key that is there
    #[arg(long)]
    replace: bool,
}

/// Where a private key waits for its certificate.
fn pending(file: &Path, token: &JoinToken) -> PathBuf {
    let mut name = file.as_os_str().to_os_string();
    name.push(PENDING);
    name.push(public_name(&token.secret));
    PathBuf::from(name)
}

pub fn run(args: EnrolArgs, global: &GlobalArgs) -> Result<(), ServeError> {
    let token = token_of(&args.token)?;
    let config = args.config.as_deref().map(read_config).transpose()?;
    let security = config.as_ref().and_then(|config| config.security.as_ref());
    let file = args.out.clone().or_else(|| security.map(|security| security.key.clone()));
    let file = file.ok_or_else(|| {
        let why = "the configuration has no [security] section with a key: add one, or say where the key goes with --out FILE";
        ServeError::Usage(why.to_owned())
    })?;
    let at = args.at.clone().or_else(|| security.and_then(|security| security.authority.clone()));
    let at = at.ok_or_else(|| {
        let why = "nobody says where the authority is: give --at HOST:PORT, or security.authority in the configuration";
        ServeError::Usage(why.to_owned())
    })?;
    if !args.replace && file.exists() {
        let why = format!("{} is there already; say --replace for a new key in its place", file.display());
        return Err(ServeError::Usage(why));
    }
    let text = fetch(&token, &at, &file, config.as_ref())?;
    write_secret(&file, &text, args.replace).map_err(anyhow::Error::from)?;
    forget_secret(&pending(&file, &token)).map_err(anyhow::Error::from)?;
    let written = KeyFile::read(&file).context("the key that was just fetched")?;
    give_to_owner_of_directory(&file)?;
    tell(&file, written.holder(), Target::Written, global);
    Ok(())
}

/// The text of a key file for this machine, which was checked.
fn fetch(token: &JoinToken, at: &str, file: &Path, config: Option<&Config>) -> anyhow::Result<String> {
    let key = NewKey::kept(&pending(file, token))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let secret = token.secret;
    let place = config.map(|config| {
        let Expected { roles, member } = config.key();
        Place { roles, member }
    });
    let asking = joining::ask(at, enrolling(token.fingerprint)?, &key, |proven| Asked::Enrol(secret, proven, place));
    let Answered { certificate, shown } = runtime.block_on(asking)?;
    let authority =
        authority_of(&shown, &token.fingerprint).context("the authority showed no certificate of its own")?;
    let holder = holder_of(&certificate).context("the authority's certificate names nobody")?;
    let text = key.file(&holder, &certificate, &[authority]);
    let got = KeyFile::parse(file, text.as_bytes())?;
    got.check()?;
    if let Some(config) = config {
        // An authority of an earlier build did not look at what the key is for.
        if let Err(error) = fits(&config.key(), &got) {
            forget_secret(&pending(file, token))?;
            let name = &holder.name;
            let why = format!(
                "{error}; the token was for another server, and is used up: make one for this server with cairn key token, and another one for \
                 {name} (--replace); nobody has the key of {name}"
            );
            return Err(NotItsKey(why).into());
        }
    }
    Ok(text)
}

fn token_of(from: &str) -> Result<JoinToken, ServeError> {
    if JoinToken::parse(from.trim()).is_some() {
        let why = "whoever works on this machine can read a token on a command line: make another one, and say --token - (it is read from \
                   standard input) or --token FILE";
        return Err(ServeError::Usage(why.to_owned()));
    }
    let mut text = String::new();
    let read = match from {
        "-" => std::io::stdin().lock().take(TOKEN_MAX).read_to_string(&mut text),
        file => File::open(file).and_then(|file| file.take(TOKEN_MAX).read_to_string(&mut text)),
    };
    read.with_context(|| {
        if from == "-" { "reading the token".to_owned() } else { format!("reading the token from {from}") }
    })?;
    JoinToken::parse(text.trim()).ok_or_else(|| {
        let why = "that is no token: copy all of what cairn key token printed, cairn1_ and two rows of digits";
        ServeError::Usage(why.to_owned())
    })
}

fn read_config(path: &Path) -> Result<Config, ServeError> {
    let shown = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|source| ServeError::NoConfig { path: shown.clone(), source })?;
    Ok(config::parse(&shown, &text)?)
}

/// Root makes a key for whom the directory is: the user of the server, who has to read it. That user may have put
/// something else in its place meanwhile: only a file of root's that is nowhere else is given away.
fn give_to_owner_of_directory(file: &Path) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let above = file.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let owner = fs::metadata(above).with_context(|| above.display().to_string())?;
    let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(file);
    let opened = opened.with_context(|| file.display().to_string())?;
    let found = opened.metadata().with_context(|| file.display().to_string())?;
    anyhow::ensure!(
        found.is_file() && found.nlink() == 1 && found.uid() == 0,
        "{} is not the file that was just written: somebody else changes {}",
        file.display(),
        above.display()
    );
    let given = std::os::unix::fs::fchown(&opened, Some(owner.uid()), Some(owner.gid()));
    given.with_context(|| format!("giving {} to uid {}, whose directory it is in", file.display(), owner.uid()))
}
