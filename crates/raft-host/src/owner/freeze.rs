//! [`Image`]: the state at one moment, on its way into a checkpoint; and images of a moment that somebody names, for
//! backups of several groups at once ([`crate::GroupHandle::freeze`]).
//!
//! An image costs nothing to take: the state machine goes on with a version of its own. One is written at a time; the
//! last one that somebody froze waits behind it. Its file is kept for [`KEPT`], however many newer ones come.
//!
//! Invariants: an image is of the entry that was applied last; what is frozen was led, with a lease that lasts, at that
//! moment, so all that was ever acknowledged before is in it. Bounds: one image waits, a later one takes its place.

use std::time::Duration;

use cairn_format::checkpoint::CheckpointHeader;
use cairn_raft::{Position, SnapshotMeta};
use cairn_types::ClusterId;

use super::Owner;
use crate::error::HostError;
use crate::handle::Frozen;
use crate::jobs::CheckpointJob;
use crate::mailbox::Event;
use crate::state_machine::{CheckpointWriter, StateMachine};

/// How long the file of a frozen image stays at least, for whoever fetches it.
const KEPT: Duration = Duration::from_secs(3600);

/// See the module.
pub(super) struct Image {
    meta: SnapshotMeta,
    header: CheckpointHeader,
    state: CheckpointWriter,
}

impl<S: StateMachine> Owner<S> {
    /// Of now.
    pub(super) fn image(&self) -> Image {
        let (at, members) = (self.applied, self.core.members());
        assert!(self.outputs.is_empty() && at == self.core.applied(), "the state is that of the core's last entry");
        let ids = |nodes: &[cairn_types::NodeId]| nodes.iter().map(|node| u64::from(node.0)).collect();
        let header = CheckpointHeader {
            cluster: self.parts.cluster.get().copied().unwrap_or(ClusterId::NONE),
            group: self.parts.group,
            index: at.index,
            term: at.term,
            time: self.log_clock.last(),
            voters: ids(&members.voters),
            learners: ids(&members.learners),
        };
        Image { meta: SnapshotMeta { at, members, bytes: 0 }, header, state: self.sm.checkpoint() }
    }

    /// Begins to write one; nothing else is being written.
    pub(super) fn write(&mut self, Image { meta, header, state }: Image) {
        let (mailbox, at) = (self.mailbox.clone(), meta.at);
        // A closed group needs the outcome no more.
        let done = Box::new(move |result| {
            mailbox.post(Event::Checkpointed(meta, result));
        });
        self.checkpoints.log_bytes = 0;
        let sent = self.parts.jobs.send(CheckpointJob { header, state, done });
        self.checkpoints.writing = sent.is_ok().then_some(at);
    }

    /// For all who wait for one of this moment.
    pub(super) fn freeze(&mut self) {
        if self.checkpoints.freezers.is_empty() {
            return;
        }
        let outcome = self.running().and_then(|()| self.freeze_now());
        for answer in std::mem::take(&mut self.checkpoints.freezers) {
            answer(outcome.clone());
        }
    }

    fn freeze_now(&mut self) -> Result<Frozen, HostError> {
        if !self.leads_or_wakes() {
            self.carry_out();
            return Err(HostError::Refused(
                "this member does not lead the group, or has just been woken; repeat".into(),
            ));
        }
        let members = self.core.members();
        if members.joint || members.voters.is_empty() {
            return Err(HostError::Refused("the members of the group are being changed; repeat".into()));
        }
        let at = self.applied;
        let known = [self.checkpoints.kept.first().copied(), self.checkpoints.writing];
        if !known.contains(&Some(at)) {
            let image = self.image();
            match self.checkpoints.writing {
                None => self.write(image),
                Some(_) => self.checkpoints.frozen = Some(image),
            }
        }
        self.checkpoints.pinned = Some((at, self.parts.clock.now() + KEPT));
        Ok(Frozen { node: self.parts.config.node, index: at.index, term: at.term })
    }

    /// The checkpoint of an entry, if its file is there.
    pub(super) fn begun(&self, index: u64) -> Option<Position> {
        let checkpoints = &self.checkpoints;
        let waits = checkpoints.frozen.as_ref().map(|image| image.meta.at);
        let pinned = checkpoints.pinned.map(|(at, _)| at);
        let pinned = pinned.filter(|at| checkpoints.writing != Some(*at) && waits != Some(*at));
        checkpoints.kept.iter().copied().chain(pinned).find(|at| index > 0 && at.index == index)
    }
}
