//! Whose key a node has: the leader binds a node to the name in the key that it shows, and lets nobody with another one
//! register or be heard as that node.
//!
//! Another name takes over where the one of before was revoked, or where the authority has put the node's number into
//! the key. Managers have theirs in their keys. Without keys nobody knows.
use crate::manager::Manager;
use cairn_manager_core::command::{BINDING_LEVEL, BindNode, Command};
use cairn_manager_core::{Node, State};
use cairn_types::{DiskUuid, ErrorCode, NodeId};
use cairn_wire::error::WireError;
use cairn_wire::holder::{Holder, MANAGER_ID_MAX};
use cairn_wire::manager::RegisterRequest;

/// What a holder is to a node.
#[derive(PartialEq, Eq, Debug)]
enum Standing {
    Bound,
    /// It may become the node's.
    Free,
    Another,
}

fn standing(node: &Node, holder: &Holder, is_revoked: impl Fn(&str) -> bool) -> Standing {
    if node.id.get() <= MANAGER_ID_MAX || node.holder == holder.name {
        return Standing::Bound;
    }
    match node.holder.is_empty() || holder.node == node.id || is_revoked(&node.holder) {
        true => Standing::Free,
        false => Standing::Another,
    }
}

impl Manager {
    /// Whether whoever registers may be the node that he says, as far as that is bound.
    pub(crate) fn check_registration(
        &self,
        holder: Option<&Holder>,
        request: &RegisterRequest,
    ) -> Result<(), WireError> {
        let by_uuid = |state: &State| {
            let node = DiskUuid::from_slice(&request.node_uuid).and_then(|uuid| state.node_by_uuid(uuid));
            node.or_else(|| state.node(NodeId(request.node))).cloned()
        };
        self.check_bound(holder, by_uuid).map(drop)
    }

    /// The same of whoever is heard as a node, which is bound where it is not yet.
    pub(crate) async fn check_heard(&self, holder: Option<&Holder>, node: NodeId) -> Result<(), WireError> {
        let Some((node, Standing::Free)) = self.check_bound(holder, |state| state.node(node).cloned())? else {
            return Ok(());
        };
        let level = self.look_in_cluster(|state, _| Ok(state.level()))?;
        let Some(holder) = holder.filter(|_| level >= BINDING_LEVEL) else { return Ok(()) };
        let command = BindNode { node: node.id.get(), holder: holder.name.clone(), former: node.holder.clone() };
        // Decided again with the next heartbeat if it fails.
        if self.duty("whose key a node has", Command::BindNode(command)).await {
            tracing::info!(node = %node.id, key = holder.name, former = node.holder, "a node is bound to its key");
        }
        Ok(())
    }

    fn check_bound(
        &self,
        holder: Option<&Holder>,
        find: impl FnOnce(&State) -> Option<Node>,
    ) -> Result<Option<(Node, Standing)>, WireError> {
        let Some(holder) = holder else { return Ok(None) };
        let Some(node) = self.look_in_cluster(|state, _| Ok(find(state)))? else { return Ok(None) };
        let revoked = self.identity.tls().and_then(|tls| tls.revoked());
        let standing = standing(&node, holder, |name| revoked.is_some_and(|list| list.has(name)));
        if standing == Standing::Another {
            let text = format!(
                "{} has the key of {}, and whoever says that it is {0} has that of {}: if that is its new key, put {1} on the list of \
                 revoked keys",
                node.id, node.holder, holder.name
            );
            tracing::warn!(node = %node.id, bound = node.holder, shown = holder.name, "a node comes with another's key");
            return Err(WireError::new(ErrorCode::NotPermitted, text));
        }
        Ok(Some((node, standing)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_manager_core::Roles;
    use cairn_types::{Incarnation, WallTime};
    use cairn_wire::audience::{Caller, Roles as KeyRoles};
    use cairn_wire::rights::Rights;

    fn node(id: u32, holder: &str) -> Node {
        Node {
            id: NodeId(id),
            uuid: DiskUuid([1; 16]),
            roles: Roles::DATA,
            address: String::new(),
            http_address: String::new(),
            rack: String::new(),
            host: String::new(),
            software: String::new(),
            incarnation: Incarnation(1),
            up: true,
            since: WallTime(0),
            holder: holder.to_owned(),
            version: 1,
        }
    }

    /// The key of one data node would speak for another one; or a node whose key was replaced be shut out for ever.
    #[test]
    fn a_node_is_whoever_it_was_bound_to() {
        let of = |name: &str, node| Holder {
            name: name.to_owned(),
            caller: Caller::Node(KeyRoles::DATA),
            node: NodeId(node),
            until: 0,
            rights: Rights::everything(),
        };
        let none = |_: &str| false;
        assert_eq!(standing(&node(17, ""), &of("n4", 0), none), Standing::Free);
        assert_eq!(standing(&node(17, "n4"), &of("n4", 0), none), Standing::Bound);
        assert_eq!(standing(&node(17, "n4"), &of("n5", 0), none), Standing::Another);
        assert_eq!(standing(&node(17, "n4"), &of("n5", 18), none), Standing::Another);
        assert_eq!(standing(&node(17, "n4"), &of("n5", 17), none), Standing::Free);
        assert_eq!(standing(&node(17, "n4"), &of("n5", 0), |name| name == "n4"), Standing::Free);
        assert_eq!(standing(&node(17, "n4"), &of("n5", 0), |name| name == "n5"), Standing::Another);
        assert_eq!(standing(&node(3, ""), &of("m3", 3), none), Standing::Bound, "managers have theirs in the key");
    }
}
