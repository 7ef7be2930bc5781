//! `cairn key enrol`: fetches the key of this machine from the authority, for a token.
//!
//! Invariants: the private key is made here, is durable before anybody is asked, and leaves the machine never; the
//! token's secret goes to nobody but the authority whose fingerprint is in the token; what is put in place is a key
//! that others take, and that fits the configuration.
use super::{Target, tell};
use crate::config::{self, Config};
use crate::joining::{self, Answered, pending};
use crate::security::{NotItsKey, fits};
use crate::server::ServeError;
use anyhow::Context;
use cairn_cli::GlobalArgs;
use cairn_security::{KeyFile, NewKey, authority_of, enrolling, holder_of, write_secret};
use cairn_wire::enrol::{Asked, JoinToken};
use clap::Args;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Longer than any token.
const TOKEN_MAX: u64 = 4096;

#[derive(Args, Debug)]
pub struct EnrolArgs {
    /// The token that cairn key token printed; - reads it from standard input
    #[arg(long, value_name = "TOKEN|-")]
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
    let pending = pending(&file);
    fs::remove_file(&pending).with_context(|| format!("removing {}", pending.display()))?;
    let written = KeyFile::read(&file).context("the key that was just fetched")?;
    give_to_owner_of_directory(&file)?;
    tell(&file, written.holder(), Target::Written, global);
    Ok(())
}

/// The text of a key file for this machine, which was checked.
fn fetch(token: &JoinToken, at: &str, file: &Path, config: Option<&Config>) -> anyhow::Result<String> {
    let key = NewKey::kept(&pending(file))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let secret = token.secret;
    let asking = joining::ask(at, enrolling(token.fingerprint)?, &key, |proven| Asked::Enrol(secret, proven));
    let Answered { certificate, shown } = runtime.block_on(asking)?;
    let authority =
        authority_of(&shown, &token.fingerprint).context("the authority showed no certificate of its own")?;
    let holder = holder_of(&certificate).context("the authority's certificate names nobody")?;
    let text = key.file(&holder, &certificate, &[authority]);
    let got = KeyFile::parse(file, text.as_bytes())?;
    got.check()?;
    if let Some(config) = config {
        fits(&config.key(), &got).map_err(|error| {
            NotItsKey(format!("{error}; the token is for another server: make one for this one with cairn key token"))
        })?;
    }
    Ok(text)
}

fn token_of(text: &str) -> Result<JoinToken, ServeError> {
    let mut read = String::new();
    let text = match text {
        "-" => {
            std::io::stdin().take(TOKEN_MAX).read_to_string(&mut read).context("reading the token")?;
            read.as_str()
        }
        text => text,
    };
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
