//! [`Rooms`]: places for the requests that a manager works on.
//!
//! Invariants: requests of clients have places of their own, so servers and administrators are let in however many
//! clients ask; those of one client, which is all that have its key, or its host where nobody has keys, take a quarter
//! of them. Of what clients ask and is answered from memory a few are worked on at a time, and of one client fewer:
//! whoever else asks waits for no more than these. The same of what needs a plan where data is to lie. Not here: who
//! may ask for what (`wire::audience`).
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use cairn_rpc::PeerInfo;
use cairn_wire::audience::Caller;
use cairn_wire::hello::PeerKind;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests of servers and administrators at a time; more are refused as overload.
const REQUESTS_MAX: usize = 16_384;
/// Requests of clients.
const CLIENTS_MAX: usize = 8_192;
/// Requests of one client.
const OF_ONE_MAX: usize = CLIENTS_MAX / 4;
/// Answers from memory that are made at a time.
const TURNS: usize = 16;
/// Those of one client.
const TURNS_OF_ONE: usize = 4;
/// Requests of one client for which placement is planned at a time: all plans come one after the other.
const PLANS_OF_ONE: usize = 1;

/// Whose requests count together.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Asker {
    Key(String),
    Host(IpAddr),
}

/// `None`: a server or an administrator, which without keys is whoever says that he is one.
fn client(peer: &PeerInfo) -> Option<Asker> {
    match &peer.holder {
        Some(holder) => (holder.caller == Caller::Client).then(|| Asker::Key(holder.name.clone())),
        None => (peer.hello.kind != PeerKind::Server).then(|| Asker::Host(peer.site())),
    }
}

/// All places.
pub(crate) struct Rooms {
    counts: Mutex<Counts>,
    turns: Arc<Semaphore>,
}

#[derive(Default)]
struct Counts {
    others: usize,
    clients: usize,
    of: BTreeMap<Asker, Client>,
}

struct Client {
    requests: usize,
    turns: Turns,
}

/// Of one client.
#[derive(Clone)]
struct Turns {
    answers: Arc<Semaphore>,
    plans: Arc<Semaphore>,
}

/// Counts a request while it lives.
pub(crate) struct Place {
    rooms: Arc<Rooms>,
    client: Option<(Asker, Turns)>,
}

/// An answer is being made.
pub(crate) type Turn = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Rooms {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { counts: Mutex::default(), turns: Arc::new(Semaphore::new(TURNS)) })
    }

    /// A place; `None`: there are too many requests.
    pub(crate) fn enter(self: &Arc<Self>, peer: &PeerInfo) -> Option<Place> {
        self.take(client(peer))
    }

    fn take(self: &Arc<Self>, client: Option<Asker>) -> Option<Place> {
        let counts = &mut *self.counts.lock();
        let Some(asker) = client else {
            let has_room = counts.others < REQUESTS_MAX;
            counts.others += usize::from(has_room);
            return has_room.then(|| Place { rooms: self.clone(), client: None });
        };
        if counts.clients >= CLIENTS_MAX || counts.of.get(&asker).is_some_and(|of| of.requests >= OF_ONE_MAX) {
            return None;
        }
        counts.clients += 1;
        let semaphore = |turns| Arc::new(Semaphore::new(turns));
        let turns = || Turns { answers: semaphore(TURNS_OF_ONE), plans: semaphore(PLANS_OF_ONE) };
        let fresh = || Client { requests: 0, turns: turns() };
        let of = counts.of.entry(asker.clone()).or_insert_with(fresh);
        of.requests += 1;
        Some(Place { rooms: self.clone(), client: Some((asker, of.turns.clone())) })
    }
}

impl Place {
    /// Whether it is a client's.
    pub(crate) fn is_clients(&self) -> bool {
        self.client.is_some()
    }

    /// Waits until a client's answer may be made; others wait for nothing.
    pub(crate) async fn turn(&self) -> Option<Turn> {
        let (_, own) = self.client.as_ref()?;
        let own = own.answers.clone().acquire_owned().await.ok()?;
        Some((own, self.rooms.turns.clone().acquire_owned().await.ok()?))
    }

    /// Waits until placement may be planned for a client.
    pub(crate) async fn plan(&self) -> Option<OwnedSemaphorePermit> {
        let (_, own) = self.client.as_ref()?;
        own.plans.clone().acquire_owned().await.ok()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let counts = &mut *self.rooms.counts.lock();
        let Some((asker, _)) = &self.client else {
            counts.others -= 1;
            return;
        };
        counts.clients -= 1;
        let Some(of) = counts.of.get_mut(asker) else { return };
        of.requests -= 1;
        if of.requests == 0 {
            counts.of.remove(asker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn key(name: &str) -> Option<Asker> {
        Some(Asker::Key(name.to_owned()))
    }

    /// A client that asks without end would keep nodes from being heard, and other clients from answers.
    #[test]
    fn clients_take_no_place_of_others() {
        let rooms = Rooms::new();
        let flood: Vec<Place> = (0..OF_ONE_MAX + 100).map_while(|_| rooms.take(key("a"))).collect();
        assert_eq!(flood.len(), OF_ONE_MAX);
        let more: Vec<Place> = (0..CLIENTS_MAX).filter_map(|i| rooms.take(key(&format!("k{}", i % 8)))).collect();
        assert_eq!(more.len(), CLIENTS_MAX - OF_ONE_MAX);
        assert!(rooms.take(key("another")).is_none());
        let servers: Vec<Place> = (0..REQUESTS_MAX + 1).map_while(|_| rooms.take(None)).collect();
        assert_eq!(servers.len(), REQUESTS_MAX);
        drop(flood);
        assert!(rooms.take(key("another")).is_some_and(|place| place.is_clients()));
        drop((more, servers));
        let counts = rooms.counts.lock();
        assert_eq!((counts.others, counts.clients, counts.of.len()), (0, 0, 0));
    }

    /// All answers of a flood would be made before that of another client.
    #[test]
    fn one_client_has_a_few_turns() {
        let rooms = Rooms::new();
        let flood: Vec<Place> = (0..100).filter_map(|_| rooms.take(key("a"))).collect();
        let turns: Vec<Turn> = flood.iter().filter_map(|place| place.turn().now_or_never().flatten()).collect();
        assert_eq!(turns.len(), TURNS_OF_ONE);
        let other = rooms.take(key("b")).expect("a place");
        assert!(other.turn().now_or_never().flatten().is_some());
        drop(turns);
        assert!(flood[99].turn().now_or_never().flatten().is_some(), "and then the next ones");
    }

    /// A volume that gets no groups would keep all others waiting for theirs.
    #[test]
    fn one_client_has_one_plan() {
        let rooms = Rooms::new();
        let flood: Vec<Place> = (0..100).filter_map(|_| rooms.take(key("a"))).collect();
        let plans: Vec<_> = flood.iter().filter_map(|place| place.plan().now_or_never().flatten()).collect();
        assert_eq!(plans.len(), PLANS_OF_ONE);
        let other = rooms.take(key("b")).expect("a place");
        assert!(other.plan().now_or_never().flatten().is_some());
        let server = rooms.take(None).expect("a place");
        assert!(server.plan().now_or_never().is_some_and(|plan| plan.is_none()), "others wait for nothing");
        drop(plans);
        assert!(flood[99].plan().now_or_never().flatten().is_some(), "and then the next one");
    }
}
