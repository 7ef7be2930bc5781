//! Keys that were taken away.
use crate::connect::Client;
use crate::error::Result;
use cairn_types::NodeId;
use cairn_wire::Opcode;
use cairn_wire::manager::{RevokeKeysRequest, RevokeKeysResponse};

/// Keys that count no more, as the managers know them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RevokedKeys {
    /// Names, and since when.
    pub keys: Vec<(String, u64)>,
    /// Nodes that are up and were not told all of them.
    pub unheard: Vec<NodeId>,
}

impl Client {
    /// Takes the keys of these names away, and tells which were ever taken away. Without names nothing is changed.
    pub async fn revoke_keys(&self, what: &str, names: &[String]) -> Result<RevokedKeys> {
        let request = RevokeKeysRequest { names: names.to_vec() };
        let answer: RevokeKeysResponse = self.manager(what, Opcode::RevokeKeys, &request).await?;
        Ok(RevokedKeys {
            keys: answer.keys.into_iter().map(|key| (key.name, key.since_ns)).collect(),
            unheard: answer.unheard.into_iter().map(NodeId).collect(),
        })
    }
}
