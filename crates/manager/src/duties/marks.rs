//! Logs how far members of meta partitions got, so that the next leader of the managers knows it too.
//!
//! At most every [`LOG_PAUSE`], and only what changed; nothing before all managers understand it (feature level 5).
use crate::manager::Manager;
use cairn_manager_core::command::{Command, PartitionMarks};
use cairn_manager_core::marks::{MARKS_PER_COMMAND, MarkOf};
use std::time::Duration;

/// Between two looks at what changed.
pub(super) const LOG_PAUSE: Duration = Duration::from_secs(10);

impl Manager {
    pub(crate) async fn log_marks(&self) {
        let changed = self.look(|state, leading| {
            let member = |id, node| state.partition(id).is_some_and(|p| !p.removed && p.members.contains(&node));
            leading.marks.retain(|(id, node), _| member(*id, *node));
            if state.level() < 5 {
                return Vec::new();
            }
            let news = leading.marks.iter().filter(|((id, node), mark)| state.mark(*id, *node) < Some(**mark));
            let of = |(&(id, node), &(term, index)): (&(_, _), &(u64, u64))| {
                let (partition, node) = (cairn_types::PartitionId::get(id), cairn_types::NodeId::get(node));
                MarkOf { partition, node, term, index }
            };
            news.map(of).collect::<Vec<_>>()
        });
        for marks in changed.unwrap_or_default().chunks(MARKS_PER_COMMAND) {
            self.duty("marks of members", Command::PartitionMarks(PartitionMarks { marks: marks.to_vec() })).await;
        }
    }
}
