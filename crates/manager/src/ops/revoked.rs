//! RevokeKeys: names whose keys count no more. They are in the managers' log, and answers to heartbeats tell servers,
//! which keep them.
//!
//! Invariants: nobody takes away the key that he shows, nor that of this manager: with it he could not go on; a name
//! that was revoked once stays so. Not here: what servers do with a name (`security::Revoked`, `rpc`).
use crate::manager::Manager;
use cairn_manager_core::State;
use cairn_manager_core::command::{Command, RevokeKeys};
use cairn_types::{ErrorCode, NodeId, WallTime};
use cairn_wire::error::WireError;
use cairn_wire::holder::Holder;
use cairn_wire::manager::{RevokeKeysRequest, RevokeKeysResponse, RevokedKey};

/// Names of one request.
const NAMES_MAX: usize = 1000;

impl Manager {
    pub(crate) async fn revoke_keys(
        &self,
        asker: Option<&Holder>,
        request: RevokeKeysRequest,
    ) -> Result<RevokeKeysResponse, WireError> {
        self.permit()?;
        let names = request.names;
        if !names.is_empty() {
            let own = self.identity.tls().map(|tls| tls.holder().name.as_str());
            may_revoke(&names, asker.map(|asker| asker.name.as_str()), own)?;
            tracing::warn!(names = names.join(", "), "keys are taken away");
            self.execute(Command::RevokeKeys(RevokeKeys { names })).await?;
        }
        self.look_in_cluster(|state, leading| {
            let key = |(name, since): (&str, WallTime)| RevokedKey { name: name.to_owned(), since_ns: since.0 };
            let sum = state.revoked_sum();
            let heard = |node| leading.soft.revoked.get(&node).is_some_and(|(told, _)| *told == sum);
            Ok(RevokeKeysResponse { keys: state.revoked().map(key).collect(), unheard: unheard(state, heard) })
        })
    }
}

/// Nodes that are up and do not know the list.
fn unheard(state: &State, heard: impl Fn(NodeId) -> bool) -> Vec<u32> {
    state.nodes().filter(|node| node.up && !heard(node.id)).map(|node| node.id.get()).collect()
}

fn may_revoke(names: &[String], asker: Option<&str>, own: Option<&str>) -> Result<(), WireError> {
    let Some(own) = own else {
        let text = "this cluster has no keys, so there is none to take away (docs/guides/security.md)";
        return Err(WireError::new(ErrorCode::Conflict, text));
    };
    if names.len() > NAMES_MAX {
        return Err(WireError::new(ErrorCode::BadRequest, format!("at most {NAMES_MAX} names at once")));
    }
    if let Some(bad) = names.iter().find(|name| !Holder::is_name(name)) {
        let text = format!("{bad:?} is no name of a key; `cairn key ls` and `cairn admin node ls` show names");
        return Err(WireError::new(ErrorCode::BadRequest, text));
    }
    if names.iter().any(|name| asker == Some(name)) {
        let text = "that is the key with which you ask, and none after it would be yours; ask with another one";
        return Err(WireError::new(ErrorCode::Conflict, text));
    }
    if names.iter().any(|name| own == name) {
        let text =
            "that is the key of the manager that leads: end that manager, and ask again, or the cluster would stand";
        return Err(WireError::new(ErrorCode::Conflict, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An administrator would lock himself out, or the cluster from its leader, and nobody could take it back.
    #[test]
    fn nobody_takes_away_what_he_needs_to_go_on() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let judge = |of: &[&str], own| may_revoke(&names(of), Some("ops-1"), own).map_err(|error| error.message);
        assert_eq!(judge(&["alice", "ops-2"], Some("m1")), Ok(()));
        assert!(judge(&["alice", "ops-1"], Some("m1")).is_err_and(|text| text.contains("with which you ask")));
        assert!(judge(&["m1"], Some("m1")).is_err_and(|text| text.contains("manager that leads")));
        assert!(judge(&["no name"], Some("m1")).is_err_and(|text| text.contains("is no name")));
        assert!(judge(&["alice"], None).is_err_and(|text| text.contains("no keys")));
    }
}
