//! Keys of a cluster: who may speak, and TLS 1.3 between those who may.
//!
//! A cluster has a certificate authority of its own ([`Authority`], a directory that no server needs). It signs keys of
//! servers, clients and administrators, each of which is one file ([`KeyFile`]). A process makes a [`Tls`] of its file;
//! `rpc` does the rest.
//!
//! Invariants: private keys are written 0600 into directories that others cannot write, and are not read from anywhere
//! else; both sides of a connection show a certificate of an authority that the other trusts; only servers are taken
//! for servers. TLS 1.3 alone, no resumption, no tickets, no early data. File data may go outside of its records, with
//! codes made of its handshake ([`FrameKeys`]). Randomness and time come from the C library, in whose place a scheduler
//! stands where runs are deterministic. Not here: what a holder may ask (`wire::audience`), sockets (`rpc`).
mod authority;
mod error;
mod frames;
mod joining;
mod key_file;
mod new_key;
mod revoked;
mod secret_file;
mod shown;
mod tls;
mod token;
mod validity;

pub use authority::{Authority, CA_CERTIFICATE, CA_KEY, DAY, Denied, Issued, TOKEN_LIFE, Wanted, public_name};
pub use error::SecurityError;
pub use frames::{CODE_LEN, FrameKeys, Opener, Sealer};
pub use joining::{authority_name, authority_of, enrolling, exported, is_joining};
pub use key_file::{KeyFile, holder_of};
pub use new_key::{NewKey, is_proven};
pub use revoked::{Change, Revoked};
pub use secret_file::{check_secret, forget_secret, write_secret};
pub use tls::{Mode, SERVER_NAME, Tls, agreed, explain};
pub use token::{TOKEN_MIN, TokenFile};
pub use validity::Validity;

/// A certificate that ends within so many days is spoken of.
pub const WARN_DAYS: u64 = 30;

/// Seconds since 1970.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `2031-05-09` (UTC)
pub fn date(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok().and_then(|at| time::OffsetDateTime::from_unix_timestamp(at).ok());
    at.map_or_else(
        || "in a far future".to_owned(),
        |at| {
            let (year, month, day) = at.to_calendar_date();
            format!("{year:04}-{:02}-{day:02}", u8::from(month))
        },
    )
}

/// `2031-05-09T12:00:59Z`
pub fn moment(seconds: u64) -> String {
    let of_day = seconds % 86_400;
    format!("{}T{:02}:{:02}:{:02}Z", date(seconds), of_day / 3600, of_day / 60 % 60, of_day % 60)
}

#[cfg(test)]
mod tests;
