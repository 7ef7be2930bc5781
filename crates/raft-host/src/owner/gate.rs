//! A member that has to be compared with what others know of it: hears its witness, says how it stands.
//!
//! Not here: the comparison ([`cairn_raft::marks`]), and where marks are kept ([`crate::book`]).

use cairn_raft::{GroupCore, Input, Shut, Teller};
use cairn_types::{GroupId, NodeId};

use super::Owner;
use crate::error::HostError;
use crate::pool;
use crate::state_machine::StateMachine;

/// What was said last.
#[derive(Default)]
pub(super) struct GateWatch {
    testimonies: Option<u64>,
    shut: Option<Shut>,
    /// That it has forgotten something is written down.
    forgot: bool,
}

impl GateWatch {
    /// As it starts.
    pub fn new(core: &GroupCore, forgot: bool) -> Self {
        Self { testimonies: None, shut: core.shut(), forgot }
    }
}

impl<S: StateMachine> Owner<S> {
    /// With each tick.
    pub(super) fn look_at_gate(&mut self) {
        self.note_forgotten();
        let testimonies = self.parts.book.testimonies();
        if self.gate.testimonies != Some(testimonies) {
            self.gate.testimonies = Some(testimonies);
            if let Some(testimony) = self.parts.book.testimony(self.parts.group) {
                self.step_quietly(Input::Witnessed(testimony));
            }
        }
        let shut = self.core.shut();
        // The figures change while it is filled: that is said once.
        let same = shut.as_ref().map(std::mem::discriminant) == self.gate.shut.as_ref().map(std::mem::discriminant);
        let before = std::mem::replace(&mut self.gate.shut, shut);
        if same {
            return;
        }
        let group = self.parts.group;
        match shut.and_then(|shut| told(group, self.parts.config.node, &shut)) {
            Some(why) => tracing::error!(%group, why, "this member takes no part in elections"),
            None if shut.is_some() => {}
            None if before == Some(Shut::Checking) => {
                tracing::info!(%group, "nobody knows more of this member than it has: it takes part in elections");
            }
            None => tracing::warn!(%group, "this member has got as far again as it was: it takes part in elections"),
        }
    }

    /// What has come again is forgotten no more. Too late is no harm: it is asked for once more then.
    fn note_forgotten(&mut self) {
        let forgot = self.core.has_forgotten();
        if forgot == self.gate.forgot {
            return;
        }
        self.gate.forgot = forgot;
        if let Err(error) = pool::blocking(|| self.parts.book.set_forgotten(self.parts.group, forgot)) {
            tracing::error!(group = %self.parts.group, forgot, %error, "whether this member has forgotten something cannot be written down; will be repeated");
        }
    }

    /// That it has forgotten something is durable before it takes part in elections: the leader that comes of them must
    /// not serve before what was forgotten is made good, in whichever process.
    pub(super) fn accept_loss(&mut self) -> Result<(), HostError> {
        self.running()?;
        let (group, shut) = (self.parts.group, self.core.shut());
        if shut.is_none() && !self.core.has_forgotten() {
            return Err(HostError::Refused(
                "this member is no older copy of itself: it votes and leads already, there is nothing to accept, and nothing was done"
                    .into(),
            ));
        }
        if shut.is_some() {
            self.gate.forgot = true;
            pool::blocking(|| self.parts.book.set_forgotten(group, true))?;
        }
        tracing::warn!(%group, ?shut, "somebody accepts what this member has forgotten: it takes part in elections");
        self.step_quietly(Input::AcceptLoss);
        self.carry_out();
        self.parts.shared.set_core(self.core.status());
        Ok(())
    }
}

/// For people: what is wrong and what is next; `None`: nothing that anybody has to do.
pub fn told(group: GroupId, node: NodeId, shut: &Shut) -> Option<String> {
    let by = |teller: &Teller| match teller {
        Teller::Member(node) => format!("{node} knows"),
        Teller::Witness if group == GroupId::MANAGER => "nodes of the cluster know".into(),
        Teller::Witness => "the manager knows".into(),
        Teller::Itself => "this node has written down".into(),
    };
    let (name, renew) = match group {
        GroupId::MANAGER => ("the manager's state here".to_owned(), format!("`cairn admin manager renew {}`", node.0)),
        group => (
            format!("the state of partition {} here", group.0),
            format!(
                "`cairn admin partition renew {} n{}` (`all` instead of its number: all of this node)",
                group.0, node.0
            ),
        ),
    };
    match shut {
        Shut::Checking => None,
        Shut::Older { known, have, by: teller } => Some(format!(
            "{name} is an older copy of itself: {} that it had {known}, it has {have}. It neither votes nor leads until it has \
             everything again; have it added anew: {renew}. If no majority of the others is left, docs/guides/recover.md says \
             what can be done",
            by(teller)
        )),
        Shut::Left { at, by: teller } => Some(format!(
            "{name} is of a former member: {} that the group went on without it (entry {at}). It neither votes nor leads. {}",
            by(teller),
            match group {
                GroupId::MANAGER => format!(
                    "If it shall be a member again, `cairn admin manager add {}@HOST:PORT` lets the leader fill it: its directory may \
                     stay. If not, stop it",
                    node.0
                ),
                _ => "Empty its directory, and add it anew if it shall be a member".to_owned(),
            }
        )),
    }
}
