//! What happened in the cluster, for people: a bounded list in the replicated state, one line an event.
//!
//! Events are made by `apply` from what a command changed, so all members have the same ones and a new leader has them
//! too. What only the leader sees (that it leads, bad blocks that nodes tell of) it [notes](crate::command::Note) in
//! the log. One command is one event of a kind: a node that is lost raises many epochs, in one line. The newest
//! [`EVENTS_MAX`] are kept. Invariant: nothing depends on events. Not here: the texts of what is wrong now
//! ([`crate::problems`]).
use crate::apply::Outcome;
use crate::command::{BindNode, Command, CreateVolume, MemberAt, Note, PutManager, Register};
use crate::items::{DiskState, clip_to};
use crate::job::JobState;
use crate::maintenance::Target;
use crate::state::State;
use crate::wording::{groups, names_up_to};
use cairn_types::{DiskId, DiskUuid, NodeId, PartitionId, PgId, WallTime};
use cairn_wire::manager::Event;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Events that are kept.
pub const EVENTS_MAX: usize = 4096;
/// Longest text of one, in bytes.
const TEXT_MAX: usize = 400;
/// Things named in one line.
const NAMED_MAX: usize = 6;

macro_rules! kinds {
    ($($kind:ident = $code:literal, $name:literal, $meaning:literal;)*) => {
        /// What happened. The codes are in checkpoints and on the wire: add, never edit.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
        pub enum Kind { $(#[doc = $meaning] $kind = $code,)* }

        impl Kind {
            pub const ALL: &'static [Kind] = &[$(Kind::$kind,)*];
            pub fn name(self) -> &'static str { match self { $(Kind::$kind => $name,)* } }
            /// What it means for data and for whoever operates the cluster.
            pub fn meaning(self) -> &'static str { match self { $(Kind::$kind => $meaning,)* } }
            pub fn from_code(code: u32) -> Option<Kind> { Kind::ALL.iter().copied().find(|kind| *kind as u32 == code) }
        }
    };
}

kinds! {
    NodeUp = 1, "node-up", "a node started and serves";
    NodeDown = 2, "node-down", "a node fell silent and did not answer a probe: its groups go on without it";
    DiskAdded = 3, "disk-added", "a new disk: new placement groups and repair use it";
    DiskLost = 4, "disk-lost", "a disk left service: its groups go on without it";
    DiskBack = 5, "disk-back", "a disk is in service again and catches up";
    Removed = 6, "removed", "an operator took a disk or node out of the cluster for good";
    DiskGray = 7, "disk-gray", "a disk is far slower than others or loses blocks: it gets nothing new and is emptied";
    DiskGood = 8, "disk-good", "a gray disk is used like any other again";
    Epochs = 9, "epochs", "placement groups go on under new epochs: whoever was left out is fenced off";
    GroupsMade = 10, "groups-made", "new placement groups take new chunks";
    RepairBegun = 11, "repair-begun", "disks that are lost for long are replaced by others, which copy or rebuild";
    GroupsWhole = 12, "groups-whole", "placement groups have all their members again";
    MoveBegun = 13, "move-begun", "members leave their disks for others: drain, rebalance or a better failure domain";
    MoveEnded = 14, "move-ended", "a disk that was to take a member's place gives up: the member stays";
    DrainBegun = 15, "drain-begun", "an operator empties a disk, node or rack";
    DrainCancelled = 16, "drain-cancelled", "what has not left stays";
    DrainDone = 17, "drain-done", "what was drained is empty and may be taken away";
    HibernationBegun = 18, "hibernation-begun", "nothing is repaired for a node or rack for a time";
    HibernationEnded = 19, "hibernation-ended", "it is repaired as usual";
    VolumeMade = 20, "volume-made", "a volume was made";
    VolumeDeleted = 21, "volume-deleted", "a volume was deleted with all that was in it";
    Leader = 22, "leader", "another manager leads, or the same one anew";
    BadBlocks = 23, "bad-blocks", "blocks are bad and too few other copies are in service to heal them now";
    BlocksHealed = 24, "blocks-healed", "blocks that could not be healed are good, or gone";
    JobQueued = 25, "job-queued", "long work on a tree was asked for";
    JobEnded = 26, "job-ended", "it is done, failed or was cancelled";
    Settings = 27, "settings", "settings of the cluster or of a volume were changed";
    GivenUp = 28, "given-up", "an operator gave up disks that a placement group waited for: what only they had is lost";
    Members = 29, "members", "the members of a meta partition or of the managers change";
    FeatureLevel = 30, "feature-level", "all managers understand more than before: what needs it works from now on, and older builds cannot come back";
    DiskOlder = 31, "disk-older", "a disk came back as an older copy of itself: it serves nothing before it was compared with others";
    Compared = 32, "compared", "all disks that held everything of placement groups came back as older copies of themselves: what only they had and was written since is lost";
    Known = 33, "loss-known", "an operator knows that a placement group may have lost what was acknowledged";
    VolumeTrashed = 34, "volume-trashed", "an operator put a volume into the trash: it serves nobody, and can be restored for a time";
    VolumeRestored = 35, "volume-restored", "a volume is out of the trash again, as it was";
    NodeBound = 36, "node-bound", "a node is bound to the key that it shows: nobody with another one is that node";
    KeyRefused = 37, "key-refused", "somebody said that he is a node whose key has another name, or whose place is another's: a key at the wrong place, or a stolen one";
    KeyRevoked = 38, "key-revoked", "an operator took keys away: they count no more at any server";
}

/// What has to be known from before a command.
#[derive(Default)]
pub(crate) struct Before {
    /// Of a node that registers: whether it was up.
    node: Option<bool>,
    /// Nodes that are named and were up.
    up: Vec<NodeId>,
    /// What is wished for was so already.
    stood: bool,
    disks: Vec<(DiskUuid, Option<DiskState>)>,
    states: Vec<(DiskId, DiskState)>,
    incomplete: BTreeSet<PgId>,
    busy_drains: Vec<Target>,
    job: Option<JobState>,
}

impl Before {
    pub(crate) fn of(state: &State, command: &Command) -> Self {
        let mut before = Self::default();
        let incomplete = |members: &[MemberAt]| -> BTreeSet<PgId> {
            let pgs = members.iter().filter_map(|at| state.pg(PgId(at.pg)));
            pgs.filter(|pg| !pg.is_complete()).map(|pg| pg.id).collect()
        };
        match command {
            Command::Register(register) => {
                let uuid = |bytes: &[u8]| DiskUuid::from_slice(bytes).unwrap_or_default();
                let known = state.node_by_uuid(uuid(&register.uuid));
                before.node = known.map(|node| node.up);
                let of = |bytes: &[u8]| (uuid(bytes), state.disk_by_uuid(uuid(bytes)).map(|disk| disk.state));
                before.disks = register.disks.iter().map(|disk| of(&disk.uuid)).collect();
                before.states = known
                    .map_or_else(Vec::new, |node| state.disks_of(node.id).map(|disk| (disk.id, disk.state)).collect());
            }
            Command::NodesDown(command) => {
                let named = command.nodes.iter().filter_map(|at| state.node(NodeId(at.node)));
                before.up = named.filter(|node| node.up).map(|node| node.id).collect();
            }
            Command::SetDrain(command) => {
                let target = command.target.as_ref().and_then(Target::from_command);
                before.stood = state.drains().any(|(drained, _)| Some(drained) == target.as_ref());
            }
            Command::SetGray(command) => before.stood = state.is_gray(DiskId(command.disk)),
            Command::BindNode(command) => {
                let node = state.node(NodeId(command.node));
                before.stood = node.is_some_and(|node| node.holder == command.holder);
            }
            Command::DiskStates(command) => {
                let known = command.disks.iter().filter_map(|at| state.disk(DiskId(at.disk)));
                before.states = known.map(|disk| (disk.id, disk.state)).collect();
            }
            Command::CaughtUp(command) => before.incomplete = incomplete(&command.members),
            Command::Rejoin(at) | Command::TakeBack(at) => before.incomplete = incomplete(std::slice::from_ref(at)),
            Command::ReportJob(report) => before.job = state.job(report.job).map(|job| job.state),
            Command::CancelJob(cancel) => before.job = state.job(cancel.job).map(|job| job.state),
            _ => {}
        }
        if matches!(command, Command::CaughtUp(_) | Command::ReplaceMembers(_) | Command::DeleteVolume(_)) {
            let drained = state.drains().map(|(target, _)| target);
            before.busy_drains = drained.filter(|target| !state.is_empty_target(target)).cloned().collect();
        }
        before
    }
}

fn named(items: impl IntoIterator<Item = String>) -> String {
    names_up_to(NAMED_MAX, items)
}

impl State {
    /// Those that are kept, the oldest first.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.events.iter().map(Arc::as_ref)
    }

    /// No group in use has a member there.
    pub fn is_empty_target(&self, target: &Target) -> bool {
        let disks = self.disks().filter(|disk| self.is_in(target, disk.id));
        !disks.into_iter().any(|disk| self.pgs_of(disk.id).any(|pg| !pg.retired))
    }

    fn event(&mut self, at: WallTime, kind: Kind, subject: (NodeId, DiskId, PgId), text: &str) {
        let (node, disk, pg) = subject;
        let node = if node.get() == 0 { self.disk(disk).map_or(0, |disk| disk.node.get()) } else { node.get() };
        self.next.event += 1;
        let (number, text) = (self.next.event, clip_to(text, TEXT_MAX));
        let event = Event { number, time_ns: at.0, kind: kind as u32, node, disk: disk.get(), pg: pg.get(), text };
        self.events.push_back(Arc::new(event));
        while self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    /// What the leader saw and nothing in the state shows.
    pub(crate) fn note(&mut self, time: WallTime, note: &Note) -> Outcome {
        if let Some(kind) = Kind::from_code(note.kind) {
            self.event(time, kind, (NodeId(note.node), DiskId(note.disk), PgId(note.pg)), &note.text);
        }
        Outcome::Done
    }

    /// Enters what a command that was not refused came to.
    pub(crate) fn enter_events(
        &mut self,
        time: WallTime,
        command: &Command,
        before: &Before,
        outcome: &Outcome,
        raised: &[PgId],
    ) {
        let mut found: Vec<(Kind, (NodeId, DiskId, PgId), String)> = Vec::new();
        self.of_nodes_and_disks(command, before, outcome, &mut found);
        self.of_wishes(command, before, outcome, &mut found);
        self.of_groups(command, before, raised, &mut found);
        for target in &before.busy_drains {
            if self.is_empty_target(target) && self.drains().any(|(drained, _)| drained == target) {
                found.push((Kind::DrainDone, subject(target), format!("{target} is empty: it may be taken away")));
            }
        }
        found.into_iter().for_each(|(kind, subject, text)| self.event(time, kind, subject, &text));
    }

    fn of_nodes_and_disks(
        &self,
        command: &Command,
        before: &Before,
        outcome: &Outcome,
        found: &mut Vec<(Kind, (NodeId, DiskId, PgId), String)>,
    ) {
        let of_node = |node: NodeId| (node, DiskId(0), PgId(0));
        let of_disk = |disk: DiskId| (NodeId(0), disk, PgId(0));
        match command {
            Command::Register(register) => {
                let Outcome::Registered(registered) = outcome else { return };
                let node = registered.node;
                found.push((Kind::NodeUp, of_node(node), self.arrival(node, register, before)));
                for (disk, (uuid, known)) in registered.disks.iter().zip(&before.disks) {
                    let Some(now) = self.disk_by_uuid(*uuid).filter(|now| now.id == *disk) else { continue };
                    let place = format!("{} ({} on {node})", now.id, now.path);
                    let serves = now.state == DiskState::InService;
                    match known {
                        None => found.push((Kind::DiskAdded, of_disk(now.id), format!("{place} is new"))),
                        Some(before) if *before != DiskState::InService && serves => {
                            found.push((Kind::DiskBack, of_disk(now.id), format!("{place} is in service again")));
                        }
                        Some(_) => {}
                    }
                }
                for disk in registered.older.iter().filter_map(|disk| self.disk(*disk)) {
                    let text = format!("{} ({} on {node}) is an older copy of itself", disk.id, disk.path);
                    found.push((Kind::DiskOlder, of_disk(disk.id), text));
                }
                self.lost_disks(before, found);
            }
            Command::NodesDown(command) => {
                let named = command.nodes.iter().filter_map(|at| self.node(NodeId(at.node)));
                for node in named.filter(|node| !node.up && before.up.contains(&node.id)) {
                    let text =
                        format!("{} ({}, rack {:?}) fell silent and failed its probe", node.id, node.host, node.rack);
                    found.push((Kind::NodeDown, of_node(node.id), text));
                }
            }
            Command::DiskStates(_) => self.lost_disks(before, found),
            Command::BindNode(command) => {
                let BindNode { node, holder, former } = command;
                let id = NodeId(*node);
                if self.node(id).is_some_and(|node| node.holder == *holder) && !before.stood {
                    let instead =
                        if former.is_empty() { String::new() } else { format!(", and not that of {former} any more") };
                    found.push((Kind::NodeBound, of_node(id), format!("{id} has the key of {holder}{instead}")));
                }
            }
            Command::RevokeKeys(command) => {
                let names = names_up_to(8, command.names.iter().cloned());
                found.push((Kind::KeyRevoked, of_node(NodeId(0)), format!("revoked: {names}")));
            }
            Command::SetGray(command) => {
                let disk = DiskId(command.disk);
                match (command.gray, self.is_gray(disk)) {
                    (true, true) if !before.stood => {
                        found.push((Kind::DiskGray, of_disk(disk), format!("{disk}: {}", command.why)))
                    }
                    (false, false) => found.push((Kind::DiskGood, of_disk(disk), format!("{disk} is good again"))),
                    _ => {}
                }
            }
            Command::Remove(command) => {
                let target = command.target.as_ref().and_then(Target::from_command);
                found.extend(target.map(|target| {
                    (Kind::Removed, subject(&target), format!("{target} is no part of the cluster any more"))
                }));
            }
            _ => {}
        }
    }

    fn arrival(&self, node: NodeId, register: &Register, before: &Before) -> String {
        let place = format!("{node} ({}, rack {:?}, {} disks)", register.host, register.rack, register.disks.len());
        match before.node {
            None => format!("{place} is new"),
            Some(true) => format!("{place} started anew"),
            Some(false) => format!("{place} is back"),
        }
    }

    fn lost_disks(&self, before: &Before, found: &mut Vec<(Kind, (NodeId, DiskId, PgId), String)>) {
        for (disk, was) in &before.states {
            let Some(now) = self.disk(*disk).filter(|now| now.state != *was && *was == DiskState::InService) else {
                continue;
            };
            let text = format!("{disk} ({} on {}) is {}: {}", now.path, now.node, now.state.name(), now.problem);
            found.push((Kind::DiskLost, (now.node, *disk, PgId(0)), text));
        }
    }

    /// What operators and clients asked for.
    fn of_wishes(
        &self,
        command: &Command,
        before: &Before,
        outcome: &Outcome,
        found: &mut Vec<(Kind, (NodeId, DiskId, PgId), String)>,
    ) {
        let nobody = (NodeId(0), DiskId(0), PgId(0));
        let mut say = |kind: Kind, about, text: String| found.push((kind, about, text));
        match command {
            Command::SetDrain(command) => {
                let Some(target) = command.target.as_ref().and_then(Target::from_command) else { return };
                match command.cancel {
                    true => say(Kind::DrainCancelled, subject(&target), format!("{target} keeps what it has")),
                    false if before.stood => {}
                    false => say(Kind::DrainBegun, subject(&target), format!("everything leaves {target}")),
                }
            }
            Command::Hibernate(command) => {
                let Some(target) = command.target.as_ref().and_then(Target::from_command) else { return };
                match command.end {
                    true => {
                        say(Kind::HibernationEnded, subject(&target), format!("{target} does not hibernate any more"))
                    }
                    false => say(Kind::HibernationBegun, subject(&target), format!("{target} hibernates")),
                }
            }
            Command::CreateVolume(command) => say(Kind::VolumeMade, nobody, volume_made(command)),
            Command::DeleteVolume(command) => {
                say(Kind::VolumeDeleted, nobody, format!("volume {} was deleted", command.name));
            }
            Command::TrashVolume(c) => say(Kind::VolumeTrashed, nobody, format!("volume {} is in the trash", c.name)),
            Command::RestoreVolume(c) => say(Kind::VolumeRestored, nobody, format!("volume {} was restored", c.name)),
            Command::StartJob(_) => {
                let Outcome::Job(job) = outcome else { return };
                say(Kind::JobQueued, nobody, format!("job {job} was queued"));
            }
            Command::ReportJob(_) | Command::CancelJob(_) => {
                let job = match command {
                    Command::ReportJob(report) => report.job,
                    Command::CancelJob(cancel) => cancel.job,
                    _ => return,
                };
                let Some(job) = self.job(job).filter(|job| before.job != Some(job.state)) else { return };
                let how = match job.state {
                    JobState::Done => "is done",
                    JobState::Failed => "failed",
                    JobState::Cancelled => "was cancelled",
                    _ => return,
                };
                say(Kind::JobEnded, nobody, format!("job {} {how}", job.id));
            }
            Command::SetConfig(command) if *outcome == Outcome::Done => {
                let items = command.items.iter().map(|item| format!("{}={}", item.key, item.value));
                say(Kind::Settings, nobody, named(items));
            }
            Command::SetVolume(command) if *outcome == Outcome::Done => {
                let items = command.items.iter().map(|item| format!("{}={}", item.key, item.value));
                say(Kind::Settings, nobody, format!("volume {}: {}", command.name, named(items)));
            }
            Command::ActivateLevel(command) => {
                let text = format!("all managers understand feature level {}", command.level);
                say(Kind::FeatureLevel, nobody, text);
            }
            Command::SetPartitionMembers(command) => {
                let members = named(command.members.iter().map(|node| NodeId(*node).to_string()));
                let text = format!("{} gets the members {members}", PartitionId(command.partition));
                say(Kind::Members, nobody, text);
            }
            Command::PutManager(command) => {
                let node = NodeId(command.node);
                say(Kind::Members, (node, DiskId(0), PgId(0)), format!("{node} is {}", standing(command)));
            }
            _ => {}
        }
    }

    /// What became of placement groups.
    fn of_groups(
        &self,
        command: &Command,
        before: &Before,
        raised: &[PgId],
        found: &mut Vec<(Kind, (NodeId, DiskId, PgId), String)>,
    ) {
        if let Command::ForcePg(command) = command
            && command.lost.is_empty()
        {
            let pg = PgId(command.pg);
            let text =
                format!("an operator knows that {pg} may have lost what was written after its disks were copied");
            found.push((Kind::Known, (NodeId(0), DiskId(0), pg), text));
            return;
        }
        if raised.is_empty() {
            return;
        }
        let all_older = |pg: &&PgId| self.pg(**pg).is_some_and(|pg| pg.older.unconfirmed && pg.older.epoch == pg.epoch);
        if matches!(command, Command::Register(_)) && raised.iter().any(|pg| all_older(&pg)) {
            let which: Vec<String> = raised.iter().filter(all_older).map(PgId::to_string).collect();
            let text =
                format!("{} ({}): no disk was left that held everything for sure", groups(which.len()), named(which));
            found.push((Kind::Compared, (NodeId(0), DiskId(0), raised[0]), text));
        }
        let first = raised.first().copied().unwrap_or_default();
        let about = (NodeId(0), DiskId(0), first);
        let (count, names) = (groups(raised.len()), named(raised.iter().map(PgId::to_string)));
        let swaps = |command: &crate::command::ReplaceMembers| {
            let of = command.groups.iter().filter(|group| raised.contains(&PgId(group.pg)));
            named(of.flat_map(|group| {
                group.swaps.iter().map(|s| format!("{}: {} to {}", PgId(group.pg), DiskId(s.old), DiskId(s.new)))
            }))
        };
        match command {
            Command::CreatePgs(_) => found.push((Kind::GroupsMade, about, format!("{count} made: {names}"))),
            Command::ReplaceMembers(command) => found.push((Kind::RepairBegun, about, swaps(command))),
            Command::BeginMoves(command) => found.push((Kind::MoveBegun, about, swaps(command))),
            Command::CancelMoves(command) => {
                let at = command.members.iter().map(|at| format!("{} in {}", DiskId(at.disk), PgId(at.pg)));
                found.push((Kind::MoveEnded, about, named(at)));
            }
            Command::ForcePg(command) => {
                let lost = named(command.lost.iter().map(|disk| DiskId(*disk).to_string()));
                found.push((Kind::GivenUp, about, format!("{first} goes on without {lost}")));
            }
            other => {
                if let Some(why) = reason(other) {
                    found.push((Kind::Epochs, about, format!("{count} ({names}): {why}")));
                }
            }
        }
        let whole = before.incomplete.iter().filter_map(|pg| self.pg(*pg)).filter(|pg| pg.is_complete() && !pg.retired);
        let whole: Vec<String> = whole.map(|pg| pg.id.to_string()).collect();
        if !whole.is_empty() {
            let text = format!("{} ({}) have all members serving", groups(whole.len()), named(whole));
            found.push((Kind::GroupsWhole, about, text));
        }
    }
}

/// Why a command raises epochs.
fn reason(command: &Command) -> Option<&'static str> {
    Some(match command {
        Command::Register(_) => "a node started, and its members catch up",
        Command::NodesDown(_) => "a node is down",
        Command::DiskStates(_) => "a disk left service",
        Command::MemberFailed(_) => "a member failed or was too slow",
        Command::Rejoin(_) => "a member that had to leave answers again",
        Command::CaughtUp(_) => "members have caught up",
        Command::TakeBack(_) => "a disk that was replaced has its place again",
        Command::SetDrain(_) => "a drain was cancelled",
        Command::DeleteVolume(_) => "their volume was deleted",
        _ => return None,
    })
}

fn subject(target: &Target) -> (NodeId, DiskId, PgId) {
    match target {
        Target::Disk(disk) => (NodeId(0), *disk, PgId(0)),
        Target::Node(node) => (*node, DiskId(0), PgId(0)),
        Target::Rack(_) => (NodeId(0), DiskId(0), PgId(0)),
    }
}

/// The last thing that was said about a member's bad blocks: how many there are, if any.
pub fn last_bad_blocks(state: &State, pg: PgId, disk: DiskId) -> bool {
    let kinds = [Kind::BadBlocks as u32, Kind::BlocksHealed as u32];
    let mut newest = state.events().rev().filter(|event| kinds.contains(&event.kind));
    let last = newest.find(|event| event.pg == pg.get() && event.disk == disk.get());
    last.is_some_and(|event| event.kind == Kind::BadBlocks as u32)
}

fn volume_made(command: &CreateVolume) -> String {
    let of = match command.partitions {
        0 | 1 => String::new(),
        count => format!(" of {count} partitions"),
    };
    format!("volume {} was made{of}", command.name)
}

/// What somebody is by it.
fn standing(command: &PutManager) -> String {
    if command.removed { "no manager any more".into() } else { format!("a manager ({})", command.address) }
}

#[cfg(test)]
mod tests;
