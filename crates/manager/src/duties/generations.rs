//! Generations of disks that rose since they were logged last, in one entry for all of them.
//!
//! They come with heartbeats and wait in the leader's memory: an older copy of a disk is known by what the log has, so
//! what waits is what a copy may be older without being noticed.
use crate::manager::Manager;
use cairn_manager_core::command::{Command, DiskGenerationAt, DiskGenerations, GenerationOf};

impl Manager {
    pub(super) async fn log_generations(&self) {
        let risen = self.look(|state, leading| {
            let risen = std::mem::take(&mut leading.generations);
            // Whoever registered since has told a later one.
            let current = risen.into_iter().filter(|(disk, (incarnation, _))| {
                state.disk(*disk).and_then(|disk| state.node(disk.node)).is_some_and(|n| n.incarnation == *incarnation)
            });
            let at = current.map(|(disk, (incarnation, generation))| DiskGenerationAt {
                disk: disk.get(),
                incarnation: incarnation.get(),
                generation: Some(GenerationOf::from(generation)),
            });
            at.collect::<Vec<_>>()
        });
        let disks = risen.unwrap_or_default();
        if !disks.is_empty() {
            // What is not logged now comes with the next heartbeat.
            self.duty("generations of disks", Command::DiskGenerations(DiskGenerations { disks })).await;
        }
    }
}
