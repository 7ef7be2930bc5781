//! Who gets in at the hello, and [`Admission`]: what a peer with a certificate may ask, held against every request
//! before the service sees it.
//!
//! Invariants: a peer without a certificate is served only where this process takes both kinds, and then as without
//! security; nobody says in a hello that it is a server, or a node, whose key says otherwise; a key that was revoked,
//! or whose time is over, asks nothing more, on connections that it has as on new ones, and those that it has are
//! closed; what needs TLS is not served outside of it. Not here: certificates' chains and dates in the handshake, who
//! may ask what (`wire::audience`).

use std::sync::Arc;

use cairn_security::{Tls, moment, now};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::audience::Caller;
use cairn_wire::error::WireError;
use cairn_wire::hello::{Hello, PeerKind};
use cairn_wire::holder::Holder;
use cairn_wire::protection::Protection;

use super::PeerInfo;
use crate::stream::Stream;

/// Whose connection this is: nobody's who has to have a key, or the holder of the certificate. The error is what to
/// answer.
pub(crate) fn holder(stream: &Stream, hello: &Hello, tls: Option<&Arc<Tls>>) -> Result<Option<Holder>, WireError> {
    let refused = |text: String| WireError::new(ErrorCode::NotPermitted, text);
    let Some(tls) = tls else { return Ok(None) };
    if stream.is_plain() {
        return match tls.is_required() {
            false => Ok(None),
            true => Err(refused(
                "this cluster serves only holders of a key (its security is required): name the file of yours with --key FILE or \
                 $CAIRN_KEY; who runs the cluster makes one with cairn key client, and that of a cairn dev is keys/client.key in its \
                 directory"
                    .to_owned(),
            )),
        };
    }
    let Some(holder) = stream.holder() else {
        return Err(refused("the certificate of the caller names nobody; make a key with cairn key".to_owned()));
    };
    if let Some(text) = is_revoked(tls, &holder) {
        return Err(refused(text));
    }
    check(&holder, hello).map_err(refused)?;
    Ok(Some(holder))
}

/// What a peer says of itself has to be what its key says.
fn check(holder: &Holder, hello: &Hello) -> Result<(), String> {
    let Holder { name, node, .. } = holder;
    let is_node = matches!(holder.caller, Caller::Node(_));
    if hello.kind == PeerKind::Server && !is_node {
        return Err(format!("the key of {name} is that of {}, and no server has it", holder.a_kind()));
    }
    if !is_node && hello.node.get() != 0 {
        return Err(format!("the key of {name} is that of {}, and no node has it", holder.a_kind()));
    }
    let says = hello.node.get();
    if says != 0 && !holder.may_be(hello.node) {
        let of = if node.get() == 0 { "of no manager".to_owned() } else { format!("of node {}", node.get()) };
        return Err(format!("the key of {name} is {of}, and its holder says that it is node {says}"));
    }
    Ok(())
}

fn is_revoked(tls: &Tls, holder: &Holder) -> Option<String> {
    let revoked = tls.revoked()?.has(&holder.name);
    revoked.then(|| format!("the key of {} was revoked; ask who runs the cluster for another one", holder.name))
}

/// What one peer may ask.
pub(crate) enum Admission {
    /// No certificate: what the service itself does not refuse.
    Open,
    Held(Box<Held>),
}

pub(crate) struct Held {
    tls: Arc<Tls>,
    holder: Holder,
    /// Of the list of revoked keys, when this one was last looked up there.
    version: u64,
    /// Why it asks nothing more.
    ended: Option<String>,
    /// What the connection is good for.
    protection: Protection,
}

impl Admission {
    pub(crate) fn of(peer: &PeerInfo, tls: Option<&Arc<Tls>>) -> Self {
        match (&peer.holder, tls) {
            (Some(holder), Some(tls)) => {
                let protection = peer.protection;
                let held = Held { tls: tls.clone(), holder: holder.clone(), version: 0, ended: None, protection };
                Self::Held(Box::new(held))
            }
            _ => Self::Open,
        }
    }

    /// Why nothing is answered to the peer any more: its key was revoked, or its time is over.
    pub(crate) fn ended(&mut self) -> Option<&str> {
        match self {
            Self::Open => None,
            Self::Held(held) => held.ended(now()),
        }
    }

    /// Why a request is not for the service, if it is not.
    pub(crate) fn refusal(&mut self, opcode: u16) -> Option<WireError> {
        let Self::Held(held) = self else { return None };
        held.refusal(opcode)
    }
}

impl Held {
    fn ended(&mut self, now: u64) -> Option<&str> {
        if let Some(list) = self.tls.revoked()
            && list.version() != self.version
        {
            self.version = list.version();
            self.ended = is_revoked(&self.tls, &self.holder);
        }
        if self.ended.is_none() && now > self.holder.until && !self.renews_itself() {
            let (name, when) = (&self.holder.name, moment(self.holder.until));
            let next = "ask who runs the cluster for another one";
            self.ended = Some(format!("the key of {name} ended at {when}; {next}"));
        }
        self.ended.as_deref()
    }

    /// Servers get their next key by themselves, and go on with the connections that they have.
    fn renews_itself(&self) -> bool {
        matches!(self.holder.caller, Caller::Node(_))
    }

    fn refusal(&mut self, opcode: u16) -> Option<WireError> {
        let refused = |text: String| Some(WireError::new(ErrorCode::NotPermitted, text));
        if let Some(text) = self.ended(now()) {
            return refused(text.to_owned());
        }
        // Of an operation that is not in the table nobody knows for whom it is; the service would not know it either.
        let opcode = Opcode::from_code(opcode)?;
        if self.protection == Protection::Authenticated && opcode.protection() == Protection::Private {
            return refused(format!(
                "{} needs a connection that is private, and this one is for file data",
                opcode.name()
            ));
        }
        let audience = opcode.audience();
        if audience.has(self.holder.caller) {
            return None;
        }
        let (name, kind) = (&self.holder.name, self.holder.a_kind());
        refused(format!(
            "{} is for {audience}, and the key of {name} is that of {kind}; changes of the cluster need a key of cairn key admin, or \
             the admin socket of a manager",
            opcode.name()
        ))
    }
}

#[cfg(test)]
mod tests;
