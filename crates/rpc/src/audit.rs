//! [`AuditSink`]: where a server tells who came in, who was refused, and who changed or removed what. Where to and in
//! what form is the owner's.
//!
//! Not here: the log (the binary).

use std::net::IpAddr;
use std::sync::Arc;

use cairn_wire::Opcode;

use crate::server::PeerInfo;

/// Somebody who was refused.
pub struct Refusal<'a> {
    /// From where.
    pub from: IpAddr,
    /// Whose key it is, where one was shown.
    pub name: Option<&'a str>,
    /// What was asked for.
    pub operation: &'a str,
    /// What was answered.
    pub why: &'a str,
}

/// Takes what is told. Called on threads that serve: must not block.
pub trait AuditSink: Send + Sync + 'static {
    /// A connection of the holder of a key begins.
    fn entered(&self, peer: &PeerInfo);
    /// Somebody is refused. Whoever writes it down bounds how often.
    fn refused(&self, refusal: &Refusal<'_>);
    /// Whether it is told who asks for this.
    fn heeds(&self, opcode: Opcode) -> bool;
    /// Somebody asks for what is heeded, with this message.
    fn asked(&self, peer: &PeerInfo, opcode: Opcode, message: &[u8]);
}

/// A sink, or none.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<dyn AuditSink>>);

impl Audit {
    /// To this sink.
    pub fn to(sink: Option<Arc<dyn AuditSink>>) -> Self {
        Self(sink)
    }

    pub(crate) fn sink(&self) -> Option<&dyn AuditSink> {
        self.0.as_deref()
    }

    /// Somebody was refused.
    pub fn refused(&self, refusal: &Refusal<'_>) {
        if let Some(sink) = &self.0 {
            sink.refused(refusal);
        }
    }
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Audit" } else { "no Audit" })
    }
}
