//! Whose key a node has: the leader binds a node to the name in the key that it shows, and lets nobody with another one
//! register or be heard as that node.
//!
//! Another name takes over where the one of before was revoked, or where the authority has put the node's number into
//! the key. Managers have theirs in their keys. Without keys nobody knows. Invariants: a node is bound by a heartbeat
//! of its present start alone, and a new one as it registers; a name is bound to one node: where a second one shows it
//! that was there before, that one is served and stays unbound; a new one comes in the place of the one that is
//! bound, once that is down, which then comes back only in the place of the new one (its name is kept as
//! [`replaced`]); so a key is one new node at a time; where the managers wait for what nodes know, whoever may be a
//! node by its key is heard, and none is bound. Not here: what others hold against each other (`rpc::NodeKeys`).
use crate::manager::Manager;
use cairn_manager_core::command::{BINDING_LEVEL, BindNode, Command, NodeAt, NodesDown, Note};
use cairn_manager_core::events::Kind;
use cairn_manager_core::{Key, Node, State};
use cairn_types::{DiskUuid, ErrorCode, Incarnation, NodeId};
use cairn_wire::error::WireError;
use cairn_wire::holder::{Holder, MANAGER_ID_MAX};
use cairn_wire::manager::{HeartbeatRequest, RegisterRequest};
use tokio::sync::MutexGuard;

/// What a holder is to a node.
#[derive(PartialEq, Eq, Debug)]
enum Standing {
    Bound,
    /// It may become the node's.
    Free,
    /// It is another node's already, and nothing says that it is not this one's too.
    Shared,
    Another,
}

/// What a node is bound to whose key came with another one while it was down: no key has such a name, and each node has
/// one of its own.
fn replaced(key: &str, node: NodeId) -> String {
    format!("{key}/replaced-{node}")
}

/// The name of the key that a node has, or had when another one came in its place.
pub(super) fn key_of(bound: &str) -> &str {
    bound.split_once('/').map_or(bound, |(key, _)| key)
}

fn standing(node: &Node, holder: &Holder, is_elsewhere: bool, is_revoked: impl FnOnce(&str) -> bool) -> Standing {
    if node.id.get() <= MANAGER_ID_MAX {
        return if holder.may_be(node.id) { Standing::Bound } else { Standing::Another };
    }
    if node.holder == holder.name {
        return Standing::Bound;
    }
    match holder.may_have(node.id, key_of(&node.holder), is_revoked) {
        true if !is_elsewhere => Standing::Free,
        true if node.holder.is_empty() || holder.node == node.id => Standing::Shared,
        _ => Standing::Another,
    }
}

/// Whether it is a manager's key: it has the number in it.
pub(super) fn is_managers(holder: &Holder) -> bool {
    (1..=MANAGER_ID_MAX).contains(&holder.node.get())
}

/// The node that registers, as far as it is known.
pub(super) fn registering(state: &State, request: &RegisterRequest) -> Option<Node> {
    let node = DiskUuid::from_slice(&request.node_uuid).and_then(|uuid| state.node_by_uuid(uuid));
    node.or_else(|| state.node(NodeId(request.node))).cloned()
}

impl Manager {
    /// Whether whoever registers may be the node that he says, as far as that is bound, at the address that he says. A
    /// new server gets the turn of new servers: it is let in and [bound](Self::bind_newcomer) before the next one is
    /// looked at.
    pub(crate) async fn check_registration(
        &self,
        holder: Option<&Holder>,
        request: &RegisterRequest,
    ) -> Result<Option<MutexGuard<'_, ()>>, WireError> {
        let Some(holder) = holder else { return Ok(None) };
        let is_new = request.node == 0 && self.look(|state, _| registering(state, request).is_none())?;
        let turn = if is_new { Some(self.newcomers.lock().await) } else { None };
        self.make_way(holder, request).await?;
        self.check_bound(Some(holder), |state| registering(state, request)).await?;
        self.check_place(holder, request).await?;
        Ok(turn)
    }

    async fn check_place(&self, holder: &Holder, request: &RegisterRequest) -> Result<(), WireError> {
        let Some(holder) = Some(holder).filter(|_| !request.address.is_empty()) else { return Ok(()) };
        let must = self.must_compare();
        let taken = self.look(|state, _| {
            // Nobody is let in then, and who has moved since is unknown.
            if must || state.waits() {
                return None;
            }
            let node = registering(state, request);
            // What was let in once is.
            let moves = node.as_ref().is_none_or(|node| node.address != request.address);
            let id = node.map(|node| node.id);
            Some(()).filter(|()| moves).and_then(|()| state.other_at(id, &request.address, &holder.name))
        })?;
        let Some(other) = taken else { return Ok(()) };
        let text = format!(
            "{} is the place of {other}, which serves there and has another key than {}: if it is gone, this is let in as soon as it is \
             known to be down",
            request.address, holder.name
        );
        self.tell_refused(other, holder, &text).await;
        Err(WireError::new(ErrorCode::NotPermitted, text))
    }

    /// Nobody becomes a second node while the first one of his key runs: it would be awaited, be given jobs, and be one
    /// of those that count, as often as he likes. Where that one is down it makes way for who comes, and the
    /// other way round: machines are set up anew with the key that they have.
    ///
    /// A server that is new where its node was, and was not heard for the time after which nodes are probed, is that
    /// machine set up anew: a probe would be answered by the new one, so nobody would ever find the node down.
    ///
    /// No healthy node is refused for long: one that is known comes back as itself whatever else shows its key, but for
    /// one in whose place a new one came, and that is let in as soon as the new one is down or was removed.
    async fn make_way(&self, holder: &Holder, request: &RegisterRequest) -> Result<(), WireError> {
        let now = self.now();
        let other = self.look(|state, leading| {
            let node = registering(state, request);
            let comes = match &node {
                None => request.node == 0,
                Some(node) => node.holder == replaced(&holder.name, node.id),
            };
            let own = node.map_or(NodeId(0), |node| node.id);
            let other = state.other_holder(own, &holder.name).filter(|_| comes);
            let other = other.and_then(|other| state.node(other));
            let silent = |id| leading.liveness.silence(id, now) >= state.config().duration(Key::NodeTimeout);
            other.map(|other| (other.clone(), other.address == request.address && silent(other.id)))
        })?;
        let Some((other, gone)) = other else { return Ok(()) };
        if other.up && gone {
            self.note_gone(&other).await?;
        }
        if !other.up || gone {
            return self.replace(other.id, holder).await;
        }
        let other = other.id;
        let text = format!(
            "{} is the key of {other}, which runs, and another server comes with it: give it a key of its own (cairn key token, cairn key node), \
             or wait until {other} is known to be down if this is its machine, set up anew",
            holder.name
        );
        self.tell_refused(other, holder, &text).await;
        Err(WireError::new(ErrorCode::NotPermitted, text))
    }

    /// Somebody else has come where the node was.
    async fn note_gone(&self, node: &Node) -> Result<(), WireError> {
        let at = NodeAt { node: node.id.get(), incarnation: node.incarnation.get() };
        if !self.duty("nodes down", Command::NodesDown(NodesDown { nodes: vec![at] })).await {
            let text = format!("the managers could not note that {} is gone; repeat", node.id);
            return Err(WireError::new(ErrorCode::Unavailable, text));
        }
        tracing::warn!(node = %node.id, address = %node.address, "a node was silent, and a new server with its key is where it was: it is marked down");
        self.metrics.nodes_marked_down.add(1);
        Ok(())
    }

    /// The key of a node that is down is free for the one that comes with it.
    async fn replace(&self, other: NodeId, holder: &Holder) -> Result<(), WireError> {
        if !self.binds() {
            return Ok(());
        }
        let (name, of) = (holder.name.clone(), replaced(&holder.name, other));
        let command = BindNode { node: other.get(), holder: of, former: name.clone() };
        if !self.duty("that another server came with a node's key", Command::BindNode(command)).await {
            let text = format!("the managers could not note that a server comes in the place of {other}; repeat");
            return Err(WireError::new(ErrorCode::Unavailable, text));
        }
        tracing::warn!(node = %other, key = name, "a node is down, and another server comes with its key");
        Ok(())
    }

    /// A new server is the node of its key from its registration on.
    pub(crate) async fn bind_newcomer(&self, holder: Option<&Holder>, node: NodeId) {
        let Some(holder) = holder.filter(|_| node.get() > MANAGER_ID_MAX && self.binds()) else { return };
        let command = BindNode { node: node.get(), holder: holder.name.clone(), former: String::new() };
        // Its first heartbeat does it otherwise.
        if self.duty("whose key a new node has", Command::BindNode(command)).await {
            tracing::info!(%node, key = holder.name, "a new node is bound to its key");
        }
    }

    /// The same of whoever is heard as a node, which is bound where it is not yet.
    pub(crate) async fn check_heard(&self, holder: Option<&Holder>, heard: &HeartbeatRequest) -> Result<(), WireError> {
        let found = self.check_bound(holder, |state| state.node(NodeId(heard.node)).cloned()).await?;
        let Some((node, Standing::Free)) = found else { return Ok(()) };
        // Whoever has a server's key and did not register as this node does not get to be it.
        if !node.up || node.incarnation != Incarnation(heard.incarnation) {
            return Ok(());
        }
        let Some(holder) = holder.filter(|_| self.binds()) else { return Ok(()) };
        let command = BindNode { node: node.id.get(), holder: holder.name.clone(), former: node.holder.clone() };
        // Decided again with the next heartbeat if it fails.
        if self.duty("whose key a node has", Command::BindNode(command)).await {
            tracing::info!(node = %node.id, key = holder.name, former = node.holder, "a node is bound to its key");
        }
        Ok(())
    }

    pub(super) fn is_revoked(&self, name: &str) -> bool {
        self.identity.tls().and_then(|tls| tls.revoked()).is_some_and(|list| list.has(name))
    }

    fn binds(&self) -> bool {
        self.look_in_cluster(|state, _| Ok(state.level() >= BINDING_LEVEL)).unwrap_or(false)
    }

    async fn check_bound(
        &self,
        holder: Option<&Holder>,
        find: impl FnOnce(&State) -> Option<Node>,
    ) -> Result<Option<(Node, Standing)>, WireError> {
        let Some(holder) = holder else { return Ok(None) };
        // Also where the state waits for what nodes know: they are heard then, and nothing of them is changed.
        let found = self.look(|state, _| {
            let node = find(state);
            let elsewhere = node.as_ref().filter(|node| node.holder != holder.name);
            let elsewhere = elsewhere.and_then(|node| state.other_holder(node.id, &holder.name));
            node.map(|node| (node, elsewhere))
        })?;
        let Some((node, elsewhere)) = found else { return Ok(None) };
        let standing = standing(&node, holder, elsewhere.is_some(), |name| self.is_revoked(name));
        let (id, name) = (node.id, &holder.name);
        match (&standing, elsewhere) {
            (Standing::Another, _) if id.get() <= MANAGER_ID_MAX => {
                let text = format!("{id} is a manager, whose key has its number, and the key of {name} has not");
                self.tell_refused(id, holder, &text).await;
                return Err(WireError::new(ErrorCode::NotPermitted, text));
            }
            (Standing::Another, Some(other)) => {
                let text = format!(
                    "{id} has the key of {}, and whoever says that it is {id} has that of {name}, which {other} has: if {other} came in its \
                     place, this is let in once {other} is down or removed (cairn admin node remove {other})",
                    key_of(&node.holder)
                );
                self.tell_refused(id, holder, &text).await;
                return Err(WireError::new(ErrorCode::NotPermitted, text));
            }
            (Standing::Another, None) => {
                let text = format!(
                    "{id} has the key of {}, and whoever says that it is {id} has that of {name}: if that is its new key, put {0} on the \
                     list of revoked keys",
                    node.holder
                );
                self.tell_refused(id, holder, &text).await;
                return Err(WireError::new(ErrorCode::NotPermitted, text));
            }
            (Standing::Shared, Some(other)) => {
                let text = format!(
                    "{id} shows the key of {name}, which is that of {other}: it is bound to none; give it a key of its own"
                );
                self.tell_refused(id, holder, &text).await;
            }
            _ => {}
        }
        Ok(Some((node, standing)))
    }

    pub(super) async fn tell_refused(&self, node: NodeId, holder: &Holder, text: &str) {
        let now = self.now();
        if !self.look(|_, leading| leading.told_keys.is_new(node, &holder.name, now)).unwrap_or(false) {
            return;
        }
        tracing::warn!(%node, shown = holder.name, text, "a node comes with another's key");
        if self.binds() {
            let note =
                Note { kind: Kind::KeyRefused as u32, node: node.get(), text: text.to_owned(), ..Note::default() };
            self.duty("that a key was refused", Command::Note(note)).await;
        }
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
        let (none, own) = (|_: &str| false, false);
        let of_n4 = |name: &str| name == "n4";
        assert_eq!(standing(&node(17, ""), &of("n4", 0), own, none), Standing::Free);
        assert_eq!(standing(&node(17, "n4"), &of("n4", 0), own, none), Standing::Bound);
        assert_eq!(standing(&node(17, "n4"), &of("n5", 0), own, none), Standing::Another);
        assert_eq!(standing(&node(17, "n4"), &of("n5", 18), own, none), Standing::Another);
        assert_eq!(standing(&node(17, "n4"), &of("n5", 17), own, none), Standing::Free);
        assert_eq!(standing(&node(17, "n4"), &of("n5", 0), own, of_n4), Standing::Free);
        assert_eq!(standing(&node(17, "n4"), &of("n5", 0), own, |name| name == "n5"), Standing::Another);
        assert_eq!(standing(&node(3, ""), &of("m3", 3), own, none), Standing::Bound, "managers have theirs in the key");
        assert_eq!(standing(&node(3, ""), &of("n5", 0), own, none), Standing::Another, "whoever knows its uuid");
        assert_eq!(standing(&node(3, ""), &of("m2", 2), own, none), Standing::Another);
        // Another server came with its key while it was down.
        let gone = replaced("n4", NodeId(17));
        assert!(!Holder::is_name(&gone) && key_of(&gone) == "n4" && key_of("n4") == "n4" && key_of("").is_empty());
        assert_ne!(gone, replaced("n4", NodeId(18)), "each has one of its own");
        assert_eq!(standing(&node(17, &gone), &of("n4", 0), true, none), Standing::Another, "while that is there");
        assert_eq!(standing(&node(17, &gone), &of("n4", 0), own, none), Standing::Free);
        assert_eq!(standing(&node(17, &gone), &of("n5", 0), own, none), Standing::Another);
        assert_eq!(standing(&node(17, &gone), &of("n5", 0), own, of_n4), Standing::Free);
        // A stolen key would get all nodes that are not bound yet, and those whose key was revoked.
        assert_eq!(standing(&node(17, ""), &of("n5", 0), true, none), Standing::Shared);
        assert_eq!(standing(&node(17, "n4"), &of("n5", 0), true, of_n4), Standing::Another);
        assert_eq!(standing(&node(17, "n4"), &of("n5", 17), true, none), Standing::Shared);
    }
}
