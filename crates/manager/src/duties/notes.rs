//! What only the leader sees and people want to know later: that it leads, bad blocks that nodes tell of, gray disks.
//!
//! Nothing is noted before all managers understand these commands (feature level 1). What was noted last is looked up
//! in the list of events itself: a new leader does not say it again.
use super::repair::LEADER_PATIENCE;
use crate::manager::Manager;
use cairn_manager_core::State;
use cairn_manager_core::command::{Command, Note, SetGray};
use cairn_manager_core::events::{Kind, last_bad_blocks};
use cairn_manager_core::gray::Verdict;
use cairn_types::{DiskId, NodeId, PgId};

/// Most notes of one round.
const ROUND_MAX: usize = 16;

impl Manager {
    /// That it leads, once a term; bad blocks that appeared or are gone.
    pub(super) async fn note(&self) {
        let now = self.now();
        let notes = self.look(|state, leading| {
            if state.cluster().is_none() || state.level() < 1 {
                return Vec::new();
            }
            let mut notes = Vec::new();
            if !std::mem::replace(&mut leading.noted, true) {
                let text = format!("{} leads the managers in term {}", self.config.member, leading.term);
                let (kind, node) = (Kind::Leader as u32, self.config.member.get());
                notes.push(Note { kind, node, text, ..Note::default() });
            }
            if now.since(leading.since) >= LEADER_PATIENCE {
                bad_blocks(state, leading, &mut notes);
            }
            notes
        });
        for note in notes.unwrap_or_default() {
            self.duty("an event", Command::Note(note)).await;
        }
    }

    /// Disks that are far slower than others for long, or lose blocks.
    pub(super) async fn look_for_gray(&self) {
        let now = self.now();
        let verdicts = self.look(|state, leading| {
            if now.since(leading.since) < LEADER_PATIENCE || state.level() < 1 {
                return Vec::new();
            }
            leading.grayness.observe(state, &leading.soft, now)
        });
        for verdict in verdicts.unwrap_or_default() {
            let command = match verdict {
                Verdict::Gray(disk, why) => {
                    tracing::warn!(%disk, why, "a disk is gray: it gets nothing new, and is emptied if drain_gray_disks says so");
                    SetGray { disk: disk.get(), gray: true, why }
                }
                Verdict::Good(disk) => {
                    tracing::info!(%disk, "a gray disk was good for long, and is used like any other again");
                    SetGray { disk: disk.get(), gray: false, why: String::new() }
                }
            };
            self.duty("a gray disk", Command::SetGray(command)).await;
        }
    }
}

fn bad_blocks(state: &State, leading: &crate::leading::Leading, notes: &mut Vec<Note>) {
    let note = |kind: Kind, pg: PgId, disk: DiskId, text: String| {
        let node = state.disk(disk).map_or(NodeId(0), |disk| disk.node);
        Note { kind: kind as u32, node: node.get(), disk: disk.get(), pg: pg.get(), text }
    };
    for ((pg, disk), (blocks, _)) in &leading.soft.unhealed {
        if *blocks > 0 && notes.len() < ROUND_MAX && !last_bad_blocks(state, *pg, *disk) {
            let text = format!("{blocks} blocks of {pg} on {disk} are bad and wait until they can be healed");
            notes.push(note(Kind::BadBlocks, *pg, *disk, text));
        }
    }
    let told = state.events().filter(|event| event.kind == Kind::BadBlocks as u32);
    for (pg, disk) in told.map(|event| (PgId(event.pg), DiskId(event.disk))) {
        let gone = leading.soft.unhealed.get(&(pg, disk)).is_none_or(|(blocks, _)| *blocks == 0);
        // Of a node that is away nothing is known.
        let known = leading.soft.disks.contains_key(&disk) && state.is_able(disk);
        let said = notes.iter().any(|note| note.pg == pg.get() && note.disk == disk.get());
        if gone && known && !said && notes.len() < ROUND_MAX && last_bad_blocks(state, pg, disk) {
            notes.push(note(
                Kind::BlocksHealed,
                pg,
                disk,
                format!("no block of {pg} on {disk} is known to be bad any more"),
            ));
        }
    }
}
