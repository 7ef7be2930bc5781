//! [`Plain`]: who comes without a key to a server that has one, for whoever takes a cluster to where all need one.
//!
//! Not here: whether they are served (`admission.rs`), the count of connections (`stats.rs`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use cairn_wire::hello::{Hello, PeerKind};
use parking_lot::Mutex;

/// Different ones that are named; others are missing.
const NAMED_MAX: usize = 64;
/// So long it is told of somebody that he was refused.
const REFUSED_FOR: Duration = Duration::from_secs(600);

/// Those who come without a key.
#[derive(Default)]
pub(crate) struct Plain {
    /// Their connections.
    served: Mutex<BTreeMap<String, usize>>,
    /// Who was refused, and when last.
    refused: Mutex<BTreeMap<String, Instant>>,
}

/// Who they are, as they say themselves.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WithoutKey {
    /// Who is served.
    pub served: Vec<String>,
    /// Who was refused lately.
    pub refused: Vec<String>,
}

/// What somebody is called who has no key.
pub(crate) fn name_of(ip: IpAddr, hello: &Hello) -> String {
    let ip = ip.to_canonical();
    match (hello.kind, hello.node.get()) {
        (PeerKind::Server, 0) => format!("a server at {ip}"),
        (PeerKind::Server, node) => format!("n{node} at {ip}"),
        _ => format!("{ip}"),
    }
}

impl Plain {
    pub(crate) fn enter(&self, name: &str) {
        let mut served = self.served.lock();
        if served.len() < NAMED_MAX || served.contains_key(name) {
            *served.entry(name.to_owned()).or_default() += 1;
        }
    }

    pub(crate) fn leave(&self, name: &str) {
        let mut served = self.served.lock();
        if let Some(count) = served.get_mut(name) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                served.remove(name);
            }
        }
    }

    pub(crate) fn refused(&self, name: String, now: Instant) {
        let mut refused = self.refused.lock();
        refused.retain(|_, at| now.duration_since(*at) < REFUSED_FOR);
        if refused.len() < NAMED_MAX || refused.contains_key(&name) {
            refused.insert(name, now);
        }
    }

    pub(crate) fn who(&self, now: Instant) -> WithoutKey {
        let refused = self.refused.lock();
        let lately = refused.iter().filter(|(_, at)| now.duration_since(**at) < REFUSED_FOR);
        let lately = lately.map(|(name, _)| name.clone()).collect();
        WithoutKey { served: self.served.lock().keys().cloned().collect(), refused: lately }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who still has no key would not be named until he is shut out, or be named for ever.
    #[test]
    fn who_is_there_is_named() {
        let (plain, start) = (Plain::default(), Instant::now());
        plain.enter("10.0.0.7");
        plain.enter("10.0.0.7");
        plain.enter("n17 at 10.0.0.8");
        plain.leave("10.0.0.7");
        plain.refused("10.0.0.9".to_owned(), start);
        let served = vec!["10.0.0.7".to_owned(), "n17 at 10.0.0.8".to_owned()];
        assert_eq!(plain.who(start), WithoutKey { served, refused: vec!["10.0.0.9".to_owned()] });
        plain.leave("10.0.0.7");
        plain.leave("n17 at 10.0.0.8");
        plain.leave("never here");
        assert_eq!(plain.who(start + REFUSED_FOR), WithoutKey::default());
        (0..1000).for_each(|number| plain.refused(number.to_string(), start));
        assert_eq!(plain.who(start).refused.len(), NAMED_MAX, "a stranger's addresses take no memory");
    }
}
