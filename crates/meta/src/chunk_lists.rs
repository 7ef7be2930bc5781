//! [`GroupLists`]: the chunks of one placement group as its members list them, merged by index, a page of each at a
//! time.
//!
//! A member that does not answer, or whose node is away, is not waited for: what it has is unknown, and whoever judges
//! has to take unknown for "in use" and "there". Not here: what is concluded (`garbage.rs`).

use std::collections::VecDeque;
use std::time::Duration;

use cairn_node_agent::MapView;
use cairn_rpc::{Call, CallOptions, Client};
use cairn_types::{DiskId, MemberState, NodeId};
use cairn_wire::Opcode;
use cairn_wire::data::{ChunkSummary, ListChunksRequest, ListChunksResponse, PgState};

/// Chunks of one page.
const PAGE: u32 = 500;

/// A member's list, as far as it came.
struct MemberList {
    disk: u32,
    /// Where to ask; `None`: not now.
    address: Option<String>,
    is_serving: bool,
    page: VecDeque<ChunkSummary>,
    /// The last index that was listed.
    after: Option<u32>,
    ended: bool,
}

/// A chunk and who has it.
pub(crate) struct Listed {
    pub(crate) index: u32,
    /// Position of the member in the group, and what it says.
    pub(crate) copies: Vec<(usize, ChunkSummary)>,
}

impl Listed {
    /// What a member says.
    pub(crate) fn copy(&self, member: usize) -> Option<&ChunkSummary> {
        self.copies.iter().find(|(number, _)| *number == member).map(|(_, chunk)| chunk)
    }
}

/// The lists of a group's members.
pub(crate) struct GroupLists {
    pg: u32,
    client: Client,
    deadline: Duration,
    members: Vec<MemberList>,
}

impl GroupLists {
    pub(crate) fn new(state: &PgState, map: &MapView, client: Client, deadline: Duration) -> Self {
        let member = |member: &cairn_wire::data::PgMember| {
            let node = map.node(NodeId(member.node)).filter(|node| node.up && !node.address.is_empty());
            let in_service = map.disk(DiskId(member.disk)).is_none_or(|disk| disk.state == 0);
            MemberList {
                disk: member.disk,
                address: node.filter(|_| in_service).map(|node| node.address.clone()),
                is_serving: u8::try_from(member.state).ok().and_then(MemberState::from_code)
                    == Some(MemberState::Serving),
                page: VecDeque::new(),
                after: None,
                ended: false,
            }
        };
        Self { pg: state.pg, client, deadline, members: state.members.iter().map(member).collect() }
    }

    /// The chunk with the next index that any member lists.
    pub(crate) async fn next(&mut self) -> Option<Listed> {
        self.fill().await;
        let next = |list: &MemberList| list.page.front().map(|chunk| chunk.index);
        let index = self.members.iter().filter_map(next).min()?;
        let mut copies = Vec::new();
        for (number, list) in self.members.iter_mut().enumerate() {
            copies.extend(list.page.pop_front_if(|chunk| chunk.index == index).map(|chunk| (number, chunk)));
        }
        Some(Listed { index, copies })
    }

    /// From this index on.
    pub(crate) fn starting_at(mut self, index: u32) -> Self {
        self.members.iter_mut().for_each(|list| list.after = index.checked_sub(1));
        self
    }

    /// Whether the member serves and has listed everything up to what `next` gave last: what it does not list it lacks.
    pub(crate) fn is_known(&self, member: usize) -> bool {
        self.members.get(member).is_some_and(|list| list.is_serving && list.address.is_some())
    }

    /// Whether that can be said of every member that serves, and there is one.
    pub(crate) fn all_serving_are_known(&self) -> bool {
        let mut serving = self.members.iter().filter(|list| list.is_serving).peekable();
        serving.peek().is_some() && serving.all(|list| list.address.is_some())
    }

    /// Members of which that cannot be said.
    pub(crate) fn unknown(&self) -> usize {
        (0..self.len()).filter(|member| !self.is_known(*member)).count()
    }

    /// The disks of these members.
    pub(crate) fn unknown_disks(&self) -> impl Iterator<Item = DiskId> {
        let unknown = self.members.iter().enumerate().filter(|(member, _)| !self.is_known(*member));
        unknown.map(|(_, list)| DiskId(list.disk))
    }

    /// Which member a disk is.
    pub(crate) fn member_on(&self, disk: u32) -> Option<usize> {
        self.members.iter().position(|list| list.disk == disk)
    }

    /// Members of the group.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Fetches the next page of each member whose page is used up, all at the same time.
    async fn fill(&mut self) {
        let asked: Vec<(usize, Call)> = self
            .members
            .iter()
            .enumerate()
            .filter(|(_, list)| list.page.is_empty() && !list.ended)
            .filter_map(|(number, list)| Some((number, self.ask(list)?)))
            .collect();
        for (number, call) in asked {
            let answer = call.await.and_then(|response| response.decode::<ListChunksResponse>());
            let list = &mut self.members[number];
            match answer {
                Ok(answer) => list.take(answer),
                Err(error) => {
                    tracing::debug!(pg = self.pg, disk = list.disk, %error, "a member does not list its chunks");
                    list.address = None;
                }
            }
        }
    }

    fn ask(&self, list: &MemberList) -> Option<Call> {
        let request = ListChunksRequest {
            disk: list.disk,
            pg: self.pg,
            after_index: list.after.unwrap_or(0),
            from_start: list.after.is_none(),
            count_max: PAGE,
            used: true,
            ..ListChunksRequest::default()
        };
        let options = CallOptions::new(self.deadline);
        Some(self.client.call(list.address.as_deref()?, Opcode::ListChunks.code(), &request, (), options))
    }
}

impl MemberList {
    fn take(&mut self, answer: ListChunksResponse) {
        let ascends = answer.chunks.is_sorted_by(|a, b| a.index < b.index);
        let connects = self.after.is_none_or(|after| answer.chunks.first().is_none_or(|first| first.index > after));
        if !ascends || !connects || (answer.chunks.is_empty() && !answer.end) {
            tracing::warn!(disk = self.disk, "a member lists its chunks out of order; its list is not used");
            self.address = None;
            return;
        }
        self.ended = answer.end;
        self.after = answer.chunks.last().map(|last| last.index).or(self.after);
        self.page = answer.chunks.into();
    }
}
