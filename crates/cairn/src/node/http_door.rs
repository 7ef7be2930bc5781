//! [`HttpDoor`]: who sees more of a node's HTTP port than whether all is well.
//!
//! Everybody on the node's own machine does, as he could look at its processes too. From elsewhere it is whoever shows
//! the key of an administrator or of a server, or a token of `http.token`; a node that takes requests without keys asks
//! for that only if it has a token, or was told so. Invariants: a key that was revoked is none; where keys are required
//! a token counts through TLS alone, for others read it outside. Not here: what is shown (`telemetry`), keys
//! (`security`).
use anyhow::Context;
use cairn_rpc::carrier::Carrier;
use cairn_rpc::{Audit, HANDSHAKE_BYTES_MAX, Refusal};
use cairn_security::{Tls, TokenFile, explain};
use cairn_telemetry::{Door, Entered, Visitor, Wire};
use cairn_wire::audience::Caller;
use cairn_wire::holder::Holder;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// What a handshake of TLS begins with.
const TLS_FIRST: u8 = 0x16;
/// How a token is shown.
const BEARER: &[u8] = b"bearer ";

/// `[http]` of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpSpec {
    /// File with tokens.
    pub token: Option<PathBuf>,
    /// `None`: all where nobody needs a key and there is no token, else health.
    pub strangers: Option<Strangers>,
}

/// What those see who show nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strangers {
    /// Everything.
    All,
    /// Whether all is well.
    Health,
}

/// The door of one node's port.
pub struct HttpDoor {
    rules: Arc<Rules>,
    acceptor: Option<TlsAcceptor>,
}

/// Who may what.
struct Rules {
    strangers: Strangers,
    token: Option<TokenFile>,
    tls: Option<Arc<Tls>>,
    audit: Audit,
    /// That the tokens cannot be read is in the log.
    told: AtomicBool,
}

/// Whoever is at the other end of a connection.
struct Guest {
    from: IpAddr,
    is_private: bool,
    holder: Option<Holder>,
}

impl HttpDoor {
    /// Of a node with these settings and this key.
    pub fn new(spec: &HttpSpec, tls: Option<Arc<Tls>>, audit: Audit) -> anyhow::Result<HttpDoor> {
        let token = spec.token.as_deref().map(TokenFile::open).transpose().context("http.token")?;
        let is_required = tls.as_ref().is_some_and(|tls| tls.is_required());
        let usual = if is_required || token.is_some() { Strangers::Health } else { Strangers::All };
        let strangers = spec.strangers.unwrap_or(usual);
        let acceptor = tls.as_ref().and_then(|tls| tls.web_server()).map(TlsAcceptor::from);
        Ok(HttpDoor { rules: Arc::new(Rules { strangers, token, tls, audit, told: AtomicBool::new(false) }), acceptor })
    }
}

impl Door for HttpDoor {
    fn enter(&self, stream: TcpStream, from: SocketAddr) -> Pin<Box<dyn Future<Output = Entered> + Send + '_>> {
        Box::pin(async move {
            let mut guest = Guest { from: from.ip().to_canonical(), is_private: false, holder: None };
            let mut first = [0];
            let begins = stream.peek(&mut first).await? == 1 && first[0] == TLS_FIRST;
            let wire: Box<dyn Wire> = match self.acceptor.as_ref().filter(|_| begins) {
                None => Box::new(stream),
                Some(acceptor) => {
                    let bounded = Carrier::bounded(stream, HANDSHAKE_BYTES_MAX);
                    let mut stream =
                        acceptor.accept(bounded).await.inspect_err(|error| self.rules.note(&guest, error))?;
                    stream.get_mut().0.unbound();
                    guest.holder = Tls::peer(stream.get_ref().1.peer_certificates());
                    guest.is_private = true;
                    Box::new(stream)
                }
            };
            let rules = self.rules.clone();
            Ok((wire, Visitor::judged(move |shown| rules.judge(&guest, shown))))
        })
    }
}

impl Rules {
    /// A handshake that failed for a key is written down, as on the RPC port.
    fn note(&self, guest: &Guest, error: &std::io::Error) {
        if let Some(why) = explain(error) {
            self.audit.refused(&Refusal { from: guest.from, name: None, operation: "handshake", why: &why });
        }
    }

    /// Whether somebody sees everything, or why not.
    fn judge(&self, guest: &Guest, shown: Option<&[u8]>) -> Result<(), String> {
        if self.strangers == Strangers::All || guest.from.is_loopback() {
            return Ok(());
        }
        let of_key = guest.holder.as_ref().map(|holder| self.of_key(holder));
        if let Some(Ok(())) = of_key {
            return Ok(());
        }
        let why = match (shown.and_then(token_of), of_key) {
            (Some(token), _) => match self.of_token(guest, token) {
                Ok(()) => return Ok(()),
                Err(why) => why,
            },
            (None, Some(Err(why))) => why,
            (None, _) => return Err(self.wanted()),
        };
        let name = guest.holder.as_ref().map(|holder| holder.name.as_str());
        self.audit.refused(&Refusal { from: guest.from, name, operation: "HTTP", why: &why });
        Err(why)
    }

    fn of_key(&self, holder: &Holder) -> Result<(), String> {
        let Holder { name, .. } = holder;
        if self.tls.as_ref().and_then(|tls| tls.revoked()).is_some_and(|list| list.has(name)) {
            return Err(format!("the key of {name} was revoked"));
        }
        match holder.caller {
            Caller::Admin | Caller::Node(_) => Ok(()),
            Caller::Client => {
                Err(format!("the key of {name} is that of a client; this is for administrators and servers"))
            }
        }
    }

    fn of_token(&self, guest: &Guest, token: &[u8]) -> Result<(), String> {
        let Some(file) = &self.token else { return Err("this node takes no tokens: http.token is not set".to_owned()) };
        if !guest.is_private && self.tls.as_ref().is_some_and(|tls| tls.is_required()) {
            return Err(
                "a token is taken through TLS alone (https): others could read this one, so make another".to_owned()
            );
        }
        match file.has(token) {
            Ok(true) => {
                self.told.store(false, Relaxed);
                Ok(())
            }
            Ok(false) => Err("the token is none of this node's: compare it with the file of its http.token".to_owned()),
            Err(error) => {
                // Strangers can make it come as often as they like.
                if !self.told.swap(true, Relaxed) {
                    tracing::error!(%error, "the tokens for HTTP cannot be read, so none counts");
                }
                Err("this node cannot read its tokens; its log says why".to_owned())
            }
        }
    }

    /// What would let somebody in.
    fn wanted(&self) -> String {
        let key = self.tls.as_ref().map(|_| "https with the key of an administrator or a server");
        let token = Some(match &self.token {
            Some(_) => "a token of http.token (Authorization: Bearer)",
            None => "a token, once http.token is set in this node's configuration",
        });
        let all: Vec<&str> = token.into_iter().chain(key).collect();
        format!("strangers see /healthz alone; the rest needs {}", all.join(", or "))
    }
}

/// The token in the value of `Authorization`.
fn token_of(shown: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = shown.split_at_checked(BEARER.len())?;
    scheme.eq_ignore_ascii_case(BEARER).then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_security::{Authority, DAY, KeyFile, Mode, Revoked, Wanted, write_secret};
    use cairn_types::NodeId;
    use cairn_wire::audience::Roles;
    use cairn_wire::rights::Rights;

    const TOKEN: &str = "0123456789abcdef0123";

    struct Given {
        dir: tempfile::TempDir,
        tls: Arc<Tls>,
    }

    fn given(mode: Mode) -> Given {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
        let wanted = Wanted {
            name: "node".into(),
            caller: Caller::Node(Roles::DATA),
            node: NodeId(0),
            life: 10 * DAY,
            rights: Rights::everything(),
            again: false,
        };
        let path = dir.path().join("node.key");
        write_secret(&path, &authority.issue(&wanted).expect("a key"), false).expect("written");
        write_secret(&dir.path().join("tokens"), TOKEN, false).expect("written");
        std::fs::write(dir.path().join("revoked"), "gone\n").expect("written");
        let revoked = Arc::new(Revoked::read(&dir.path().join("revoked")).expect("a list"));
        let tls = Tls::of_server(&KeyFile::read(&path).expect("a key"), mode, Some(revoked)).expect("a server");
        Given { dir, tls: Arc::new(tls) }
    }

    fn door(given: &Given, token: bool, strangers: Option<Strangers>, key: bool) -> HttpDoor {
        let spec = HttpSpec { token: token.then(|| given.dir.path().join("tokens")), strangers };
        HttpDoor::new(&spec, key.then(|| given.tls.clone()), Audit::default()).expect("a door")
    }

    fn guest(from: &str, is_private: bool, holder: Option<(&str, Caller)>) -> Guest {
        let holder = holder.map(|(name, caller)| Holder {
            name: name.into(),
            caller,
            node: NodeId(0),
            until: u64::MAX,
            rights: Rights::everything(),
        });
        Guest { from: from.parse::<IpAddr>().expect("an address").to_canonical(), is_private, holder }
    }

    /// Strangers would read what a node tells, or a stolen, revoked or tenant's key would let them.
    #[test]
    fn who_sees_everything_is_decided_by_what_he_shows() {
        let given = given(Mode::Required);
        let open = door(&given, true, None, true);
        let bearer = format!("Bearer {TOKEN}");
        let lower = format!("bearer   {TOKEN}  ");
        let sees = |guest: &Guest, shown: &str| {
            let shown = Some(shown.as_bytes()).filter(|shown| !shown.is_empty());
            open.rules.judge(guest, shown).is_ok()
        };
        for (from, here) in [
            ("127.0.0.1", true),
            ("127.8.0.1", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", false),
            ("::ffff:10.0.0.1", false),
            ("fe80::1", false),
            ("0.0.0.0", false),
        ] {
            assert_eq!(sees(&guest(from, false, None), ""), here, "{from}");
        }
        let plain = guest("10.0.0.1", false, None);
        let private = guest("10.0.0.1", true, None);
        assert!(!sees(&plain, &bearer), "others have read it");
        assert!(sees(&private, &bearer) && sees(&private, &lower));
        for shown in ["", "Bearer", "Bearer ", TOKEN, "Bearer 0123456789abcdef012", "Basic 0123456789abcdef0123"] {
            assert!(!sees(&private, shown), "{shown:?}");
        }
        let with = |name, caller| guest("10.0.0.1", true, Some((name, caller)));
        assert!(sees(&with("ops", Caller::Admin), "") && sees(&with("n1", Caller::Node(Roles::META)), ""));
        assert!(!sees(&with("alice", Caller::Client), "") && sees(&with("alice", Caller::Client), &bearer));
        assert!(!sees(&with("gone", Caller::Admin), "") && !sees(&with("gone", Caller::Node(Roles::ALL)), ""));
    }

    /// A cluster without keys would lose its monitoring; or one that asked for a token stay open.
    #[test]
    fn what_strangers_see_is_as_configured() {
        let (required, permissive) = (given(Mode::Required), given(Mode::Permissive));
        let stranger = guest("10.0.0.1", false, None);
        let all = |door: HttpDoor| door.rules.judge(&stranger, None).is_ok();
        assert!(all(door(&required, false, None, false)), "without keys as ever");
        assert!(all(door(&permissive, false, None, true)), "on the way to keys as before");
        assert!(!all(door(&required, false, None, true)));
        assert!(!all(door(&required, true, None, false)) && !all(door(&permissive, true, None, true)));
        assert!(all(door(&required, true, Some(Strangers::All), true)));
        assert!(!all(door(&required, false, Some(Strangers::Health), false)));
        // Where there is no TLS, or strangers are served without, a token counts as it comes.
        let bearer = format!("Bearer {TOKEN}");
        for door in [door(&required, true, None, false), door(&permissive, true, None, true)] {
            assert!(door.rules.judge(&stranger, Some(bearer.as_bytes())).is_ok());
        }
        let none = door(&required, false, Some(Strangers::Health), false).rules.judge(&stranger, None);
        assert!(none.expect_err("nothing helps").contains("http.token"));
    }
}
