//! `cairn key serve`: the port of an authority, where machines fetch their first key for a token and the next one for
//! the present one.
//!
//! Strangers reach it. Invariants: so many connections at a time, so many of one network, each with a deadline and a
//! number of bytes; of more the oldest goes, since whoever means it is done in a moment; who comes with wrong secrets
//! again and again is not listened to for a while; each that is answered, or refused, is in the audit log. No secret is
//! in any log. Not here: who gets a certificate (`security::Authority`), the other side (`joining.rs`).
mod crowd;
mod visit;

use crate::audit::AuditLog;
use crate::private;
use crate::server::{ServeError, Signals};
use anyhow::Context;
use cairn_security::{Authority, Revoked};
use cairn_telemetry::{LogConfig, init_logging};
use cairn_wire::enrol::to_hex;
use clap::Args;
use crowd::Crowd;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use visit::Desk;

/// Names whose keys are not renewed, in the directory of the authority.
pub(super) const REVOKED: &str = "revoked";
/// In the same.
const AUDIT: &str = "audit.log";
/// Threads that sign and write.
const SIGNING_THREADS: usize = 2;
/// After a failure to take a connection, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Directory of the authority (cairn key init)
    #[arg(long, value_name = "DIR")]
    ca: PathBuf,
    /// Address on which machines of the cluster reach it
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:7390")]
    listen: String,
    /// Names of keys that are not renewed; without it the file revoked of the authority's directory
    #[arg(long, value_name = "FILE")]
    revoked: Option<PathBuf>,
    /// Audit log; without it audit.log of the authority's directory
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
}

pub fn run(args: &ServeArgs) -> Result<(), ServeError> {
    let config = LogConfig::default();
    init_logging(&config).map_err(|why| anyhow::anyhow!("logging: {why}"))?;
    private::for_owner_alone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(SIGNING_THREADS)
        .enable_all()
        .build()
        .context("starting")?;
    let signals = Signals::new(&runtime)?;
    let authority = Authority::open(&args.ca).map_err(anyhow::Error::from)?;
    let port = authority.port().map_err(anyhow::Error::from)?;
    let revoked = revoked(args)?;
    let audit = AuditLog::start(&args.audit.clone().unwrap_or_else(|| args.ca.join(AUDIT)), false)?;
    let listener = runtime.block_on(TcpListener::bind(&args.listen));
    let listener = listener.with_context(|| format!("listening on {}", args.listen))?;
    let address = listener.local_addr().context("the address")?;
    announce(&address.to_string(), &to_hex(&authority.fingerprint())).context("standard output")?;
    let desk = Arc::new(Desk::new(authority, TlsAcceptor::from(port), revoked, audit.desk()));
    let serving = runtime.spawn(serve(listener, desk));
    signals.wait(&runtime);
    tracing::info!("stopping");
    serving.abort();
    drop(runtime);
    drop(audit);
    Ok(())
}

fn announce(address: &str, fingerprint: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready authority={address} fingerprint={fingerprint}")?;
    out.flush()
}

/// The list has to be there, so that it cannot be forgotten, also where the directory comes out of a copy.
fn revoked(args: &ServeArgs) -> anyhow::Result<Revoked> {
    let path = args.revoked.clone().unwrap_or_else(|| args.ca.join(REVOKED));
    Revoked::read(&path).with_context(|| {
        "the list of revoked keys has to be there: without it keys that were taken away are renewed. Put the one of the servers there \
         (security.revoked); an empty file revokes nothing"
    })
}

async fn serve(listener: TcpListener, desk: Arc<Desk>) {
    let mut crowd = Crowd::default();
    loop {
        tokio::select! {
            taken = listener.accept() => match taken {
                Ok((tcp, from)) => {
                    let from = from.ip().to_canonical();
                    crowd.enter(from, desk.clone().receive(tcp, from));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be taken; is the limit of open files too low?");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = crowd.ended() => {
                if let Err(error) = ended && error.is_panic() {
                    tracing::error!(%error, "a connection panicked; it was closed");
                }
            }
        }
    }
}
