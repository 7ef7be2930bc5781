//! [`Holder`]: who holds a key, as its certificate says in one name (a URI among the certificate's alternative names).
//!
//! `cairn:2:client:NAME:VOLUMES:USERS:UNTIL`, `cairn:1:admin:NAME:UNTIL` or `cairn:1:node:NAME:ROLES:NODE:UNTIL`;
//! `cairn:1:client:NAME:UNTIL` is a client that may everything. A process that does not know a version takes its holder
//! for nobody. Invariants: what decodes is written again as it was; a text has one meaning or none. It is believed only
//! where the certificate's chain was checked. Not here: certificates (`security`).

use crate::audience::{Caller, Roles};
use crate::rights::Rights;
use cairn_types::NodeId;

/// What every such name begins with, the version included.
const PREFIX: &str = "cairn:1:";
/// The same of a client whose rights are named.
const PREFIX_OF_RIGHTS: &str = "cairn:2:";
/// Longest name of a holder.
pub const NAME_MAX: usize = 64;

/// Ids up to this one are managers', which have them from the configuration and in their keys; others get theirs when
/// they register.
pub const MANAGER_ID_MAX: u32 = 15;

/// Which list of names this is, for two who compare theirs: of the same names in order it is the same. Nobody's proof.
pub fn sum_of_names<'a>(names: impl Iterator<Item = &'a str>) -> u64 {
    let (mut count, mut text) = (0u64, String::new());
    for name in names {
        count += 1;
        text.push_str(name);
        text.push('\n');
    }
    (count << 32) | u64::from(cairn_types::crc32c(text.as_bytes()))
}

/// Who holds a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// For people and for the list of revoked keys.
    pub name: String,
    /// What it may.
    pub caller: Caller,
    /// The node that it is, where that is fixed (managers); 0: a node gets its id when it registers.
    pub node: NodeId,
    /// Seconds since 1970 when the certificate ends; the same is in its own field, which is what is checked.
    pub until: u64,
    /// What of the volumes; only a client's are ever less than everything.
    pub rights: Rights,
}

impl Holder {
    /// Whether a name can be one: letters, digits, `.`, `_`, `-`, at most [`NAME_MAX`].
    pub fn is_name(text: &str) -> bool {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        !text.is_empty() && text.len() <= NAME_MAX && text.bytes().all(fits)
    }

    /// Reads what [`Display`](std::fmt::Display) writes; anything else is nobody.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix(PREFIX_OF_RIGHTS) {
            return Self::parse_client(rest).filter(|holder| holder.to_string() == text);
        }
        let parts: Vec<&str> = text.strip_prefix(PREFIX)?.splitn(7, ':').collect();
        let (name, caller, node, until) = match parts[..] {
            ["client", name, until] => (name, Caller::Client, 0, until),
            ["admin", name, until] => (name, Caller::Admin, 0, until),
            ["node", name, roles, node, until] => (name, Caller::Node(Roles::parse(roles)?), node.parse().ok()?, until),
            _ => return None,
        };
        let (until, rights) = (until.parse().ok()?, Rights::everything());
        let holder = Self { name: name.to_owned(), caller, node: NodeId(node), until, rights };
        // "007", "+7" and roles in another order are other texts for the same.
        (Self::is_name(name) && holder.to_string() == text).then_some(holder)
    }

    fn parse_client(rest: &str) -> Option<Self> {
        let parts: Vec<&str> = rest.splitn(6, ':').collect();
        let ["client", name, volumes, users, until] = parts[..] else { return None };
        let (until, rights) = (until.parse().ok()?, Rights::parse(volumes, users)?);
        let holder = Self { name: name.to_owned(), caller: Caller::Client, node: NodeId(0), until, rights };
        Self::is_name(name).then_some(holder)
    }

    /// What a server has to hold its requests against; `None`: nothing.
    pub fn limits(&self) -> Option<&Rights> {
        Some(&self.rights).filter(|rights| self.caller == Caller::Client && !rights.is_everything())
    }

    /// Whether its holder can be this node: the one that it names, or one that is no manager if it names none.
    pub fn may_be(&self, node: NodeId) -> bool {
        let is_free = self.node.get() == 0 && node.get() > MANAGER_ID_MAX;
        matches!(self.caller, Caller::Node(_)) && (node == self.node || is_free)
    }

    /// Whether it may speak for a node that is bound to the key of this name (empty: to nobody's): it has that name, or
    /// the authority put the node's number into its key, or the key of that name counts no more.
    pub fn may_have(&self, node: NodeId, bound: &str, is_revoked: impl FnOnce(&str) -> bool) -> bool {
        bound.is_empty() || bound == self.name || self.node == node || is_revoked(bound)
    }

    /// The kind of a key, for people.
    pub fn kind(&self) -> &'static str {
        match self.caller {
            Caller::Client => "client",
            Caller::Admin => "admin",
            Caller::Node(_) => "node",
        }
    }

    /// The same, as it stands in a sentence.
    pub fn a_kind(&self) -> &'static str {
        match self.caller {
            Caller::Client => "a client",
            Caller::Admin => "an admin",
            Caller::Node(_) => "a node",
        }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, caller, node, until, rights } = self;
        match caller {
            Caller::Client if !rights.is_everything() => {
                let (volumes, users) = rights.texts();
                write!(f, "{PREFIX_OF_RIGHTS}client:{name}:{volumes}:{users}:{until}")
            }
            Caller::Client => write!(f, "{PREFIX}client:{name}:{until}"),
            Caller::Admin => write!(f, "{PREFIX}admin:{name}:{until}"),
            Caller::Node(roles) => write!(f, "{PREFIX}node:{name}:{roles}:{}:{until}", node.get()),
        }
    }
}

/// Decodes a name from hostile bytes, for fuzzing: must not panic, and what decodes has one text.
#[doc(hidden)]
pub fn fuzz_holder(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some(holder) = Holder::parse(text) else { return };
    assert_eq!(holder.to_string(), text, "a holder has one text");
    assert!(Holder::is_name(&holder.name), "a name is letters, digits and a few marks");
    if let Caller::Node(roles) = holder.caller {
        assert!(!roles.is_none(), "a server has a role");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate would make somebody else of its holder than it was made for.
    #[test]
    fn a_holder_is_read_as_it_was_written_and_nothing_else_is() {
        for text in [
            "cairn:1:client:alice:1800000000",
            "cairn:2:client:alice:docs=rw+media=ro:root:1800000000",
            "cairn:2:client:alice:*=ro:only=1000/100+1000:1",
            "cairn:1:admin:ops-1.example:1",
            "cairn:1:node:m1:manager+meta:3:1800000000",
            "cairn:1:node:d:data:0:0",
        ] {
            assert_eq!(Holder::parse(text).map(|holder| holder.to_string()).as_deref(), Some(text));
        }
        for text in [
            "",
            "cairn:2:client:alice:1",
            "cairn:2:client:alice:docs=rw:root:1:1",
            "cairn:2:client:alice:*=rw:none:1",
            "cairn:2:client:alice:media=rw+docs=ro:root:1",
            "cairn:2:client:alice:docs=rw:only=2+1/1:1",
            "cairn:2:client::docs=rw:root:1",
            "cairn:2:admin:alice:docs=rw:root:1",
            "cairn:3:client:alice:docs=rw:root:1",
            "cairn:1:client::1",
            "cairn:1:client:a b:1",
            "cairn:1:client:alice:01",
            "cairn:1:client:alice:+1",
            "cairn:1:client:alice:1:admin",
            "cairn:1:node:m1::0:1",
            "cairn:1:node:m1:meta+manager:0:1",
            "cairn:1:node:m1:meta+meta:0:1",
            "cairn:1:node:m1:client:0:1",
            "cairn:1:node:m1:meta:4294967296:1",
            "cairn:1:root:m1:1",
        ] {
            assert_eq!(Holder::parse(text), None, "{text}");
        }
    }

    /// A committed input would bring the decoder down.
    #[test]
    fn the_corpus_of_holders_is_decoded() {
        let corpus: [&[u8]; 12] = [
            include_bytes!("holder/corpus/admin"),
            include_bytes!("holder/corpus/client"),
            include_bytes!("holder/corpus/colons"),
            include_bytes!("holder/corpus/far"),
            include_bytes!("holder/corpus/long"),
            include_bytes!("holder/corpus/node"),
            include_bytes!("holder/corpus/not_text"),
            include_bytes!("holder/corpus/order"),
            include_bytes!("holder/corpus/overflow"),
            include_bytes!("holder/corpus/rights"),
            include_bytes!("holder/corpus/rights_only"),
            include_bytes!("holder/corpus/rights_twice"),
        ];
        corpus.into_iter().for_each(fuzz_holder);
        // And what is near to it.
        for (at, input) in corpus.iter().flat_map(|input| (0..input.len()).map(move |at| (at, *input))) {
            let mut bent = input.to_vec();
            bent[at] ^= 0x11;
            fuzz_holder(&bent);
            fuzz_holder(&input[..at]);
        }
    }
}
