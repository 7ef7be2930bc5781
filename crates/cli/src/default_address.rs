//! The address that is taken when none is given: whoever has not started or named a cluster yet is told so at once.
use crate::args::GlobalArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use cairn_client::uri::DEFAULT_CLUSTER;
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// A server that is being restarted may be back within this; with the last try it stays below a second.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(100);
const CONNECT_WITHIN: Duration = Duration::from_millis(300);

/// Fails if nobody listens at the default address and the options name no other. May block for half a second.
pub fn check_default_address(args: &GlobalArgs) -> Result<()> {
    match args.cluster.as_deref().is_none_or(str::is_empty) {
        true => check(DEFAULT_CLUSTER),
        false => Ok(()),
    }
}

fn check(address: &str) -> Result<()> {
    let mut last = None;
    for number in 0..TRIES {
        if number > 0 {
            std::thread::sleep(PAUSE);
        }
        match connect(address) {
            Ok(()) => return Ok(()),
            // Whoever is slow to answer is there, and worth the patience of every other address.
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => return Ok(()),
            Err(error) => last = Some(error),
        }
    }
    let cause = last.map_or_else(|| "no answer".to_owned(), |error| error.kind().to_string());
    let text = format!(
        "no cluster answers at {address}, the address that is taken when none is given ({cause}); start one with cairn dev, \
         or name the managers of yours with --cluster HOST:PORT or $CAIRN_CLUSTER"
    );
    Err(CliError::refused(Exit::Unreachable, text))
}

fn connect(address: &str) -> std::io::Result<()> {
    let address = address.to_socket_addrs()?.next().ok_or(ErrorKind::AddrNotAvailable)?;
    TcpStream::connect_timeout(&address, CONNECT_WITHIN).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Whoever tries the first command before `cairn dev` would wait, and not learn what to do.
    #[test]
    fn nobody_at_the_default_address_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        assert!(check(&address).is_ok());
        drop(listener);
        let error = check(&address).expect_err("nobody listens");
        assert_eq!(error.exit(), Exit::Unreachable);
        let text = error.to_string();
        assert!(text.contains("cairn dev") && text.contains("--cluster") && text.contains(&address), "{text}");
    }

    /// A cluster that was named is waited for.
    #[test]
    fn other_addresses_are_not_tried() {
        let args = GlobalArgs { cluster: Some("127.0.0.1:1".into()), ..GlobalArgs::default() };
        assert!(check_default_address(&args).is_ok());
    }
}
