//! [`Watch`]: what nodes say to each other for all their groups that sleep.
//!
//! A group that sleeps sends nothing ([`cairn_raft::Slumber`]). Instead the node of its leader sends a beat to each
//! node that has a member of such a group, one for all of them, and names the groups now and then. A node that hears no
//! beat for twice the shortest election timeout, or those of another life, takes the leaders there for lost: their
//! groups wake here and elect others. A group that is not named any more is woken, so that it looks itself.
//!
//! Invariants: only what sleeps is watched, so a node that dies wakes those groups alone that it led; nobody is taken
//! for lost after this process itself stood still. Not here: what a group does when it wakes (cairn-raft). Nothing that
//! is safe depends on this.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_env::Clock;
use cairn_raft::Slumber;
use cairn_store::Wal;
use cairn_types::{GroupId, NodeId, Time, WallTime};
use cairn_wire::raft::{NodeBeat, RaftBatch};
use parking_lot::Mutex;

use crate::clocks::Clocks;
use crate::config::HostConfig;
use crate::host::Groups;
use crate::mailbox::Event;
use crate::pool::{After, Task, Waker};
use crate::transport::RaftTransport;

/// Every so many beats the groups are named.
const ROLL: u64 = 10;
/// A group that was not named so often is woken.
const MISSED_MAX: u32 = 2;
/// No group has this number.
const NUMBER: u64 = u64::MAX;

/// Groups under a leader's node.
struct Followed {
    heard: Time,
    /// 0: not known yet.
    life: u64,
    /// With the term, and how often it was not named.
    groups: BTreeMap<GroupId, (u64, u32)>,
}

#[derive(Default)]
struct Book {
    /// By node that has a member: groups that this one leads, with the term.
    led: BTreeMap<NodeId, BTreeMap<GroupId, u64>>,
    followed: BTreeMap<NodeId, Followed>,
    asleep: BTreeMap<GroupId, (Slumber, Vec<NodeId>)>,
    /// When the last beat was, and how many there were.
    beaten: Time,
    beats: u64,
}

/// What the watch works with.
pub(crate) struct Parts {
    pub life: u64,
    pub clock: Arc<dyn Clock>,
    pub transport: Arc<dyn RaftTransport>,
    pub clocks: Arc<Clocks>,
    pub wal: Arc<Wal>,
    pub groups: Groups,
    pub waker: Waker,
}

pub(crate) struct Watch {
    node: NodeId,
    /// Between two beats.
    pause: Duration,
    /// A node that was not heard for so long is gone.
    patience: Duration,
    segments_max: u64,
    parts: Parts,
    own: Weak<Watch>,
    ready: AtomicBool,
    book: Mutex<Book>,
}

/// What is to be done once the book is free again.
#[derive(Default)]
struct News {
    beats: Vec<(NodeId, NodeBeat)>,
    events: Vec<(GroupId, Event)>,
}

impl Watch {
    pub fn new(config: &HostConfig, parts: Parts) -> Arc<Self> {
        let ticks = |count: usize| config.tick * u32::try_from(count).unwrap_or(u32::MAX);
        Arc::new_cyclic(|own| Self {
            node: config.node,
            pause: ticks(config.heartbeat_ticks),
            patience: ticks(2 * config.election_ticks),
            segments_max: config.segments_max,
            parts,
            own: own.clone(),
            ready: AtomicBool::new(false),
            book: Mutex::default(),
        })
    }

    /// What a group's member relies on from now on, and where the other members are.
    pub fn note(&self, group: GroupId, slumber: Option<Slumber>, members: impl IntoIterator<Item = NodeId>) {
        let now = self.parts.clock.now();
        let mut book = self.book.lock();
        book.strike(group);
        if let Some(slumber) = slumber {
            let others: Vec<NodeId> = members.into_iter().filter(|node| *node != self.node).collect();
            book.enter(group, slumber, others, now);
        }
        let begins = !book.asleep.is_empty() && !self.ready.swap(true, Ordering::SeqCst);
        drop(book);
        if begins && let Some(own) = self.own.upgrade() {
            self.parts.waker.ready(own);
        }
    }

    /// Groups that sleep, or are about to.
    pub fn count(&self) -> usize {
        self.book.lock().asleep.len()
    }

    /// Another node's beat came.
    pub fn heard(&self, beat: &NodeBeat) {
        let now = self.parts.clock.now();
        let from = NodeId(beat.node);
        self.parts.clocks.heard(from, WallTime(beat.wall_ns), now);
        let mut news = News::default();
        if let Some(followed) = self.book.lock().followed.get_mut(&from) {
            followed.hear(beat, now, &mut news);
        }
        self.tell(news);
    }

    fn beat(&self, now: Time) -> News {
        let mut book = self.book.lock();
        let mut news = News::default();
        // What others said meanwhile is not read yet.
        let stood_still = now.since(book.beaten) > self.patience / 2;
        book.beaten = now;
        book.beats += 1;
        let roll = book.beats % ROLL == 1;
        let wall_ns = self.parts.clock.wall().0;
        // Who leads what sleeps here hears that this node is there, and its clock.
        let peers: BTreeSet<NodeId> = book.led.keys().chain(book.followed.keys()).copied().collect();
        for to in &peers {
            let mut beat = NodeBeat { node: self.node.0, life: self.parts.life, wall_ns, ..NodeBeat::default() };
            if let Some(led) = book.led.get(to).filter(|_| roll) {
                beat.roll = true;
                beat.groups = led.keys().map(|group| group.0).collect();
                beat.terms = led.values().copied().collect();
            }
            news.beats.push((*to, beat));
        }
        for (leader, followed) in &mut book.followed {
            if stood_still {
                followed.heard = now;
            } else if now.since(followed.heard) >= self.patience {
                tracing::info!(%leader, groups = followed.groups.len(), "a node is not heard: groups that it led wake");
                followed.heard = now;
                followed.lose(&mut news);
            }
        }
        if roll && self.parts.wal.stats().segments() > self.segments_max {
            let holder = self.parts.wal.oldest_holder().filter(|group| book.asleep.contains_key(group));
            news.events.extend(holder.map(|group| (group, Event::Release)));
        }
        news
    }

    fn tell(&self, news: News) {
        for (to, beat) in news.beats {
            self.parts.transport.send(to, RaftBatch { beat: Some(beat), ..RaftBatch::default() });
        }
        for (group, event) in news.events {
            let port = self.parts.groups.lock().get(&group).cloned();
            if let Some(port) = port {
                port.post(event);
            }
        }
    }
}

impl Book {
    fn strike(&mut self, group: GroupId) {
        let Some((slumber, others)) = self.asleep.remove(&group) else { return };
        match slumber {
            Slumber::Leads { .. } => others.iter().for_each(|node| {
                if let Some(led) = self.led.get_mut(node) {
                    led.remove(&group);
                }
            }),
            Slumber::Follows { leader, .. } => {
                if let Some(followed) = self.followed.get_mut(&leader) {
                    followed.groups.remove(&group);
                }
            }
        }
        self.led.retain(|_, groups| !groups.is_empty());
        self.followed.retain(|_, followed| !followed.groups.is_empty());
    }

    fn enter(&mut self, group: GroupId, slumber: Slumber, others: Vec<NodeId>, now: Time) {
        match slumber {
            Slumber::Leads { term } => {
                for node in &others {
                    self.led.entry(*node).or_default().insert(group, term);
                }
            }
            Slumber::Follows { leader, term } => {
                let new = || Followed { heard: now, life: 0, groups: BTreeMap::new() };
                self.followed.entry(leader).or_insert_with(new).groups.insert(group, (term, 0));
            }
        }
        self.asleep.insert(group, (slumber, others));
    }
}

impl Followed {
    fn hear(&mut self, beat: &NodeBeat, now: Time, news: &mut News) {
        self.heard = now;
        let before = std::mem::replace(&mut self.life, beat.life);
        if before != 0 && before != beat.life {
            // It started anew, and leads nothing of that any more.
            return self.lose(news);
        }
        if !beat.roll || beat.groups.len() != beat.terms.len() {
            return;
        }
        let named: BTreeMap<u32, u64> = beat.groups.iter().copied().zip(beat.terms.iter().copied()).collect();
        for (group, (term, missed)) in &mut self.groups {
            *missed = if named.get(&group.0) == Some(term) { 0 } else { *missed + 1 };
            if *missed >= MISSED_MAX {
                *missed = 0;
                news.events.push((*group, Event::Wake));
            }
        }
    }

    fn lose(&self, news: &mut News) {
        news.events.extend(self.groups.iter().map(|(group, (term, _))| (*group, Event::LeaderLost(*term))));
    }
}

impl Task for Watch {
    fn number(&self) -> u64 {
        NUMBER
    }

    fn run(&self) -> After {
        let now = self.parts.clock.now();
        let due = {
            let book = self.book.lock();
            if book.asleep.is_empty() {
                // Under the lock: whoever enters the next one finds it at rest.
                self.ready.store(false, Ordering::SeqCst);
                return After::Rest(None);
            }
            book.beaten + self.pause
        };
        if now < due {
            self.ready.store(false, Ordering::SeqCst);
            return After::Rest(Some(due));
        }
        self.tell(self.beat(now));
        self.ready.store(false, Ordering::SeqCst);
        After::Rest(Some(now + self.pause))
    }

    fn due(&self) -> bool {
        !self.ready.swap(true, Ordering::SeqCst)
    }

    fn panicked(&self) {
        tracing::error!("what watches sleeping groups panicked; it goes on");
        self.ready.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests;
