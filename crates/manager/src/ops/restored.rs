//! A manager whose state is older than what it once gave: it hears what the nodes know, and takes that up before it
//! does anything else.
//!
//! | it finds out by | then |
//! |---|---|
//! | a person who accepted what it has forgotten (`accept-loss`) | it waits |
//! | a node that knows a higher number, or epoch, than it ever gave | it waits |
//! | a node that was told something in a higher term | it gives up leading, and leads again in a higher term |
//!
//! With keys a node's word counts once a node of another key has said something of the kind too ([`Doubts`]).
//!
//! While it waits nodes are asked to register, tell with it what they know, and are refused. When all have told, or a
//! person says to go on, that is logged. An ordinary fail-over has forgotten nothing, so it waits for nobody. Not here:
//! what is taken up and how (manager-core's `take_up`), what the state refuses meanwhile (its `restored`).
use super::binding::is_managers;
use super::register::{HEARD_WITHIN, is_heard};
use crate::doubts::Doubts;
use crate::leading::Leading;
use crate::manager::{Manager, doubted};
use cairn_manager_core::restored::{RESTORED_LEVEL, nonsense, waiting};
use cairn_manager_core::take_up::{Awaited, TakeUp, awaited, commands, is_within, last, late};
use cairn_manager_core::wording::names_up_to;
use cairn_manager_core::{Command, State};
use cairn_types::{DiskUuid, ErrorCode, NodeId, PgId, Time};
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::holder::{Holder, MANAGER_ID_MAX};
use cairn_wire::manager::{self as wire, GoOnRequest, RegisterRequest, SeenNumbers};
use std::time::Duration;

/// A node that is heard tells what it knows within this.
const TELL_WITHIN: Duration = Duration::from_secs(15);
/// Nodes that run were heard by a leader within this.
const HEARD_BY: Duration = Duration::from_secs(5);
/// Groups that a line of the log names.
const GROUPS_LOGGED: usize = 10;

/// How what a node knows compares with the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// The state has all of it.
    Known,
    /// The state waits for what nodes know.
    Awaited,
}

enum Verdict {
    Known,
    Awaited,
    Behind,
    Term(u64),
}

fn judge(state: &State, leading: &Leading, seen: &SeenNumbers, behind: bool) -> Verdict {
    match () {
        () if state.cluster().is_none() || state.level() < RESTORED_LEVEL => Verdict::Known,
        () if seen.term > leading.term => Verdict::Term(seen.term),
        () if state.waits() => Verdict::Awaited,
        () if behind || state.is_behind(seen) => Verdict::Behind,
        () => Verdict::Known,
    }
}

/// Whether a person gave up all that is awaited. Nodes that are heard will tell in a moment, whatever he said.
fn is_given_up(leading: &Leading, now: Time) -> bool {
    let Some((given_up, since)) = &leading.given_up else { return false };
    let awaited = &leading.soft.awaited;
    let heard =
        now.since(leading.since) < HEARD_WITHIN || awaited.nodes.iter().any(|node| is_heard(leading, *node, now));
    awaited.is_within(given_up) && (!heard || now.since(*since) >= TELL_WITHIN)
}

/// Whoever is given up once more has had the time since the first word.
fn give_up(leading: &mut Leading, given_up: wire::Awaited, now: Time) {
    let before = leading.given_up.take().filter(|(before, _)| is_within(&given_up, before));
    leading.given_up = Some((given_up, before.map_or(now, |(_, since)| since)));
}

/// Whether no node of another key is there that could say the same: all have a while to be heard by a new leader. Those
/// of managers may have been put back with them.
fn is_alone(state: &State, leading: &Leading, (own, name): (NodeId, &str), now: Time) -> bool {
    let is_new = now.since(leading.since) < HEARD_BY;
    let others = state.nodes().filter(|node| node.up && node.id != own && node.holder != name);
    !others.filter(|node| node.id.get() > MANAGER_ID_MAX).any(|node| is_new || is_heard(leading, node.id, now))
}

impl Manager {
    /// Holds what a node knows against the state; `behind`: it knows of something else that the state never gave.
    pub(super) async fn hold_against(
        &self,
        node: NodeId,
        holder: Option<&Holder>,
        seen: Option<&SeenNumbers>,
        behind: impl FnOnce(&State) -> bool,
    ) -> Result<Seen, WireError> {
        let seen = seen.copied().unwrap_or_default();
        if let Some(why) = self.look(|state, leading| nonsense(state, leading.term, &seen))? {
            return Err(WireError::new(ErrorCode::BadRequest, why));
        }
        let must = self.must_compare();
        let verdict = self.look(|state, leading| judge(state, leading, &seen, must || behind(state)))?;
        if !must {
            self.is_believed(node, holder, &verdict).await?;
        }
        match verdict {
            Verdict::Known => Ok(Seen::Known),
            Verdict::Awaited => Ok(Seen::Awaited),
            Verdict::Term(term) => {
                tracing::warn!(%node, term, "a node was told something in a later term than this manager leads in: it goes on in a higher one");
                self.log()?.raise_term(term);
                Err(WireError::new(ErrorCode::Unavailable, "this manager goes on in a later term; repeat"))
            }
            Verdict::Behind => {
                tracing::error!(%node, ?seen, "this manager's state is older than what was once given (it was restored from a copy): \
                    it does nothing before all nodes have said what they know");
                self.begin_waiting().await?;
                Ok(Seen::Awaited)
            }
        }
    }

    /// An error: what the node knows is not believed, at least not yet.
    async fn is_believed(&self, node: NodeId, holder: Option<&Holder>, verdict: &Verdict) -> Result<(), WireError> {
        // Without keys nobody can be told from another; and managers may have been put back together.
        let Some(holder) = holder.filter(|holder| !is_managers(holder)) else { return Ok(()) };
        let (now, name) = (self.now(), holder.name.as_str());
        let on_hold = self.look(|state, leading| match verdict {
            Verdict::Awaited => None,
            Verdict::Known => {
                leading.doubts.agree(name);
                None
            }
            Verdict::Behind | Verdict::Term(_) => {
                let is_alone = is_alone(state, leading, (node, name), now);
                (!leading.doubts.doubt(name, is_alone)).then(|| leading.doubts.hold())
            }
        })?;
        match on_hold {
            None => Ok(()),
            Some(true) => Err(doubted()),
            Some(false) => {
                let text = format!(
                    "{node} says that it knows of what the managers never gave, and nodes with other keys than {name} know of nothing: it \
                     is not believed; if that key may be in other hands, put it on the list of revoked keys"
                );
                self.tell_refused(node, holder, &text).await;
                Err(WireError::new(ErrorCode::NotPermitted, text))
            }
        }
    }

    async fn begin_waiting(&self) -> Result<(), WireError> {
        let log = self.log()?;
        let term = log.status().core.term;
        self.execute(Command::TakeUp(TakeUp { begin: true, ..TakeUp::default() })).await?;
        self.remember(term, |leading| leading.doubts = Doubts::default());
        log.recalled(term);
        self.wake.notify_one();
        Ok(())
    }

    /// What comes with a registration; an error: it is heard, and refused.
    pub(super) async fn hear_registration(
        &self,
        holder: Option<&Holder>,
        request: &RegisterRequest,
    ) -> Result<(), WireError> {
        let node = NodeId(request.node);
        let (seen, things) = (request.seen.as_ref(), request.things.as_ref());
        // What the disks of a newcomer know may be of another cluster: that is looked at later, and stops nobody.
        let is_known = self.look(|state, _| {
            let by_uuid = DiskUuid::from_slice(&request.node_uuid).and_then(|uuid| state.node_by_uuid(uuid));
            by_uuid.is_some() || node.get() != 0
        })?;
        if self.hold_against(node, holder, seen.filter(|_| is_known), |_| false).await? == Seen::Awaited {
            self.look(|state, leading| {
                let by_uuid = DiskUuid::from_slice(&request.node_uuid).and_then(|uuid| state.node_by_uuid(uuid));
                // One that is new in the cluster knows nothing.
                let known = by_uuid.map(|node| node.id).or(Some(node).filter(|node| node.get() != 0));
                if let Some(node) = known {
                    leading.told.entry(node).or_default().take(seen, things);
                }
            })?;
            self.wake.notify_one();
            return Err(waiting());
        }
        let news = self.look(|state, _| state.restored().and_then(|_| late(state, things)))?;
        match news {
            Some(command) => self.execute(Command::TakeUp(command)).await.map(drop),
            None => Ok(()),
        }
    }

    /// A duty. True: nothing else is to be done now.
    pub(crate) async fn take_up(&self) -> bool {
        if self.must_compare() {
            tracing::error!(
                "this manager has forgotten what it gave since its state was copied: it does nothing before all nodes have said \
                what they know"
            );
            // Tried again with the next round.
            let _ = self.begin_waiting().await;
            return true;
        }
        let ready = self.look(|state, leading| {
            if !state.waits() {
                leading.told.clear();
                leading.soft.awaited = Awaited::default();
                leading.given_up = None;
                return None;
            }
            leading.soft.awaited = awaited(state, &leading.told);
            let all = leading.soft.awaited.is_empty() || is_given_up(leading, self.now());
            Some(all.then(|| commands(state, &leading.told)))
        });
        let Ok(ready) = ready else { return true };
        let Some(ready) = ready else { return false };
        let Some(commands) = ready else { return true };
        for command in commands {
            if !self.duty("what nodes know", Command::TakeUp(command)).await {
                return true;
            }
        }
        let Ok(last) = self.look(|state, leading| last(state, &leading.told)) else { return true };
        if !last.uncertain.is_empty() {
            let groups = names_up_to(GROUPS_LOGGED, last.uncertain.iter().map(|id| PgId(*id).to_string()));
            tracing::error!(
                groups,
                "disks that may know more of these groups were given up, or what they said makes \
                no sense: their members are compared before they serve, and what was written last may be lost"
            );
        }
        if self.duty("what nodes know", Command::TakeUp(last)).await {
            tracing::warn!("what the nodes know was taken up: this manager goes on");
        }
        true
    }

    /// A person gives up what has not been told.
    pub(crate) async fn go_on(&self, request: GoOnRequest) -> Result<Empty, WireError> {
        let invalid = |text: &str| WireError::new(ErrorCode::InvalidArgument, text);
        let given_up = request.given_up.ok_or_else(|| invalid("the request names nobody who is given up"))?;
        self.look(|state, leading| {
            if !state.waits() {
                return Err(invalid("the managers wait for no node: there is nothing to go on from"));
            }
            leading.soft.awaited = awaited(state, &leading.told);
            if !leading.soft.awaited.is_within(&given_up) {
                let text = "the managers wait for more than was given up (they have just begun to wait, or somebody told them of others): \
                            look at `cairn admin status` and repeat";
                return Err(invalid(text));
            }
            tracing::warn!(?given_up, "somebody gives up what has not been told");
            give_up(leading, given_up, self.now());
            Ok(())
        })??;
        self.wake.notify_one();
        Ok(Empty {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(0) + Duration::from_secs(seconds)
    }

    /// Whoever repeats `go-on` because nothing happens would put it off each time.
    #[test]
    fn a_repeated_word_is_not_put_off() {
        let mut leading = Leading::new(1, at(0));
        let given_up = |nodes: &[u32]| wire::Awaited { nodes: nodes.to_vec(), ..wire::Awaited::default() };
        let heard = |leading: &mut Leading, seconds: u64| {
            // All are heard for a while after it has begun to lead.
            leading.since = at(seconds);
            is_given_up(leading, at(seconds))
        };
        leading.soft.awaited.nodes = [NodeId(3)].into();
        give_up(&mut leading, given_up(&[3, 4]), at(100));
        give_up(&mut leading, given_up(&[3, 4]), at(110));
        give_up(&mut leading, given_up(&[3]), at(112));
        assert!(!heard(&mut leading, 114), "it may tell within 15 s");
        assert!(heard(&mut leading, 115), "15 s after the first word");
        give_up(&mut leading, given_up(&[3, 5]), at(116));
        assert!(!heard(&mut leading, 120), "nobody has given up the other one before");
        assert!(heard(&mut leading, 131));
    }
}
