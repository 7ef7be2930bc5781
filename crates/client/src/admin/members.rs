//! Members of the managers' group and of meta partitions.
use crate::connect::Client;
use crate::error::Result;
use cairn_types::{GroupId, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::data::NodeAddress;
use cairn_wire::manager::{ChangeMembersRequest, SplitPartitionRequest, SplitPartitionResponse};
use cairn_wire::raft::AcceptLossRequest;
use std::time::Duration;

/// For a member to answer.
const ACCEPT_DEADLINE: Duration = Duration::from_secs(10);

/// Nodes that become members, and members that leave. A node that is both is added anew.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemberChange {
    pub add: Vec<u32>,
    pub remove: Vec<u32>,
    /// Of managers that are new: number, and `host:port`.
    pub addresses: Vec<(u32, String)>,
    /// Of a partition: the managers choose as many new members as leave.
    pub choose: bool,
}

impl Client {
    /// Has a group change its members; the managers keep that and carry it out step by step.
    pub async fn change_members(&self, what: &str, group: GroupId, change: MemberChange) -> Result<()> {
        let MemberChange { add, remove, addresses, choose } = change;
        let addresses = addresses.into_iter().map(|(node, address)| NodeAddress { node, address }).collect();
        let request = ChangeMembersRequest { group: group.0, add, remove, addresses, choose };
        self.manager::<Empty>(what, Opcode::ChangeMembers, &request).await.map(|_| ())
    }
    /// Gives a volume more partitions: this one, and so many others less one.
    pub async fn split_partition(&self, what: &str, partition: PartitionId, into: u32) -> Result<()> {
        let request = SplitPartitionRequest { partition: partition.0, into };
        self.manager::<SplitPartitionResponse>(what, Opcode::SplitPartition, &request).await.map(|_| ())
    }
    /// Tells the member of a group at an address that what it has forgotten is lost. It is asked itself: without it
    /// there may be nobody who leads.
    pub async fn accept_loss(&self, what: &str, group: GroupId, address: &str) -> Result<()> {
        let request = AcceptLossRequest { group: group.0 };
        self.call::<Empty>(what, address, Opcode::AcceptLoss, &request, ACCEPT_DEADLINE).await.map(|_| ())
    }
}
