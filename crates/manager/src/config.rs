//! [`ManagerConfig`]: what a member of the manager's group is told by its process. Settings of the cluster are in the
//! replicated state (`cairn admin config`).
use cairn_types::NodeId;
use std::time::Duration;

/// When the default volume is made in a new cluster.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    /// With at least this many meta nodes and this many data nodes registered: at once.
    pub meta_nodes: usize,
    pub data_nodes: usize,
    /// Else, with at least one of each, when nobody registered for this long.
    pub quiet: Duration,
    /// With fewer copies and members of its partition than the settings want, where there are no nodes for them.
    pub smaller: bool,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self { meta_nodes: 3, data_nodes: 3, quiet: Duration::from_secs(3), smaller: false }
    }
}

/// One member of the manager's group.
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// This member's number, 1 to 15.
    pub member: NodeId,
    /// Every member with its host:port, the same on all members.
    pub members: Vec<(NodeId, String)>,
    /// This member is added to a cluster that runs: without a log it begins nothing by itself and has no vote until the
    /// leader has added it.
    pub join: bool,
    /// Name of a new cluster, for people.
    pub cluster_name: String,
    pub bootstrap: Bootstrap,
    /// How often the leader looks after things.
    pub tick: Duration,
}

impl ManagerConfig {
    /// The only member, at this address.
    pub fn single(address: impl Into<String>) -> Self {
        Self::new(NodeId(1), vec![(NodeId(1), address.into())])
    }

    pub fn new(member: NodeId, members: Vec<(NodeId, String)>) -> Self {
        Self {
            member,
            members,
            join: false,
            cluster_name: "cairn".into(),
            bootstrap: Bootstrap::default(),
            tick: Duration::from_millis(200),
        }
    }
}
