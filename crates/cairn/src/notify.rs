//! What a server tells the service manager that started it: that it serves, that it ends, that it is alive.
//!
//! The protocol is `sd_notify(3)` of systemd: datagrams of lines `KEY=VALUE` to the socket that `NOTIFY_SOCKET` names.
//! Without that variable, and where the socket is gone, nothing happens: a server never depends on who watches it.
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

/// Shorter intervals than this are not asked for by anybody who means it.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// The socket of the service manager, if there is one.
#[derive(Clone)]
pub struct Notify {
    socket: Option<Arc<UnixDatagram>>,
    watchdog: Option<Duration>,
}

/// Ends the signs of life when it is dropped.
pub struct Watchdog(Option<tokio::task::AbortHandle>);

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl Notify {
    pub fn of_environment() -> Notify {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|_| for_us).map(Duration::from_micros);
        Notify { socket: std::env::var_os("NOTIFY_SOCKET").and_then(|name| connect(&name)).map(Arc::new), watchdog }
    }
    pub fn ready(&self, address: &str) {
        self.send(&format!("READY=1\nSTATUS=serves at {address}\n"));
    }
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=ends\n");
    }
    /// Says twice in each interval that the process is alive, if the service manager waits for that. It is said by the
    /// runtime that answers `/healthz`: where that no longer runs, nothing is said.
    pub fn watchdog(&self, runtime: &tokio::runtime::Handle) -> Watchdog {
        let Some(interval) = self.watchdog.filter(|_| self.socket.is_some()) else { return Watchdog(None) };
        let notify = self.clone();
        let alive = async move {
            let mut ticks = tokio::time::interval((interval / 2).max(INTERVAL_MIN));
            loop {
                ticks.tick().await;
                notify.send("WATCHDOG=1\n");
            }
        };
        Watchdog(Some(runtime.spawn(alive).abort_handle()))
    }
    fn send(&self, text: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(text.as_bytes())
        {
            tracing::debug!(%error, "the service manager takes no messages");
        }
    }
}

/// A path, or `@name` for a socket without one.
fn connect(name: &OsStr) -> Option<UnixDatagram> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    };
    let open = || {
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address?)?;
        // A service manager that does not read must not hold a server up.
        socket.set_nonblocking(true)?;
        Ok::<_, std::io::Error>(socket)
    };
    match open() {
        Ok(socket) => Some(socket),
        Err(error) => {
            tracing::warn!(socket = %name.display(), %error, "NOTIFY_SOCKET cannot be used: nobody is told that this server is ready");
            None
        }
    }
}
