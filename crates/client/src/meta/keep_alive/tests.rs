//! Sessions at several partitions of which some never answer. The clock is stopped, the leases are those of servers.
use super::*;
use crate::connect::{Client, ConnectOptions};
use crate::fake::{Fake, FakeCluster};
use crate::meta::volume::Volume;
use crate::net::{LocalCall, LocalServers};
use cairn_rpc::{CallError, Response, Unknown};
use cairn_types::Scheme;
use cairn_wire::error::WireError;
use cairn_wire::manager::{ClusterMap, Node, Partition};
use cairn_wire::meta::AlsoRenewed;
use parking_lot::Mutex;
use prost::Message;
use std::collections::BTreeSet;

const LEASE: Duration = Duration::from_secs(20);

/// The cluster in memory, as if its volume had more partitions, so many on each node.
struct Partitions {
    servers: Arc<Fake>,
    last: u32,
    on_node: u32,
    state: Mutex<State>,
}

/// The same, of servers that wait where they are asked to.
struct Waiting(Arc<Partitions>);

#[derive(Default)]
struct State {
    silent: BTreeSet<u32>,
    /// They are led by another node than the map says.
    moved: BTreeSet<u32>,
    /// Servers of an older release renew one partition with each request.
    are_older: bool,
    /// Keep-alives in all.
    requests: u64,
    /// Keep-alives that each got, answered or not.
    asked: BTreeMap<u32, u64>,
    /// When each heard of the session last, the longest time between, and who has ended it.
    heard: BTreeMap<u32, Instant>,
    longest: BTreeMap<u32, Duration>,
    ended: BTreeSet<u32>,
    /// The servers wait for what is wanted, and this is.
    waits: bool,
    wanted: Vec<u64>,
    /// What was told, and when.
    told: Vec<(Vec<u64>, Instant)>,
}

impl Partitions {
    /// What a partition answers to keep-alives and ends of sessions.
    fn answer(&self, partition: u32, opcode: Opcode) -> Option<std::result::Result<Vec<u8>, CallError>> {
        let mut state = self.state.lock();
        let state = &mut *state;
        *state.asked.entry(partition).or_default() += u64::from(opcode == Opcode::KeepAlive);
        if state.silent.contains(&partition) {
            return None;
        }
        if opcode != Opcode::KeepAlive {
            state.ended.insert(partition);
            return Some(Ok(Vec::new()));
        }
        let (now, longest) = (Instant::now(), state.longest.entry(partition).or_default());
        if let Some(before) = state.heard.insert(partition, now) {
            *longest = (*longest).max(now - before);
        }
        if *longest > LEASE {
            return Some(Err(CallError::Remote(WireError::new(ErrorCode::SessionEnded, "it was silent for a lease"))));
        }
        let lease_ms = LEASE.as_millis() as u32;
        Some(Ok(KeepAliveResponse { lease_ms, ..Default::default() }.encode_to_vec()))
    }

    /// What a node answers to a keep-alive: for the partition that is asked, and for those beside it.
    fn keep_alive(&self, message: &[u8]) -> Option<std::result::Result<Vec<u8>, CallError>> {
        let request = KeepAliveRequest::decode(message).expect("a keep-alive");
        self.state.lock().requests += 1;
        let first = request.header.expect("a header").partition;
        let own = match self.answer(first, Opcode::KeepAlive)? {
            Ok(own) => own,
            refused => return Some(refused),
        };
        let mut answer = KeepAliveResponse::decode(&own[..]).expect("an answer");
        let are_older = self.state.lock().are_older;
        for also in request.also.iter().filter(|_| !are_older) {
            if self.state.lock().moved.contains(&also.partition) {
                continue;
            }
            if let Some(Ok(told)) = self.answer(also.partition, Opcode::KeepAlive) {
                let told = KeepAliveResponse::decode(&told[..]).expect("an answer");
                answer.also.push(AlsoRenewed { partition: also.partition, answer: Some(told) });
            }
        }
        Some(Ok(answer.encode_to_vec()))
    }

    /// What a server answers to a keep-alive that may wait.
    async fn wait(&self, request: KeepAliveRequest) -> KeepAliveResponse {
        let until = Instant::now() + Duration::from_millis(request.wait_ms.into());
        loop {
            let delegations = self.state.lock().wanted.clone();
            if Instant::now() >= until || delegations.iter().any(|number| !request.heard.contains(number)) {
                self.state.lock().told.push((delegations.clone(), Instant::now()));
                let lease_ms = LEASE.as_millis() as u32;
                return KeepAliveResponse { lease_ms, delegations, waits: true, ..Default::default() };
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn widen(&self, map: &mut ClusterMap) {
        for id in 1..=self.last {
            let (inode_first, inode_last) = ((u64::from(id - 1) << 32).max(1), (u64::from(id) << 32) - 1);
            // A node is called after the first of its partitions.
            let first = (id - 1) / self.on_node * self.on_node + 1;
            let node = 3000 + first;
            if first == id {
                map.nodes.push(Node { id: node, address: format!("partition:{id}"), up: true, ..Default::default() });
            }
            let (nodes, leader) = (vec![node], node);
            let partition = Partition { id, volume: 1, inode_first, inode_last, nodes, leader, ..Default::default() };
            map.partitions.retain(|known| known.id != id);
            map.partitions.push(partition);
        }
    }
}

impl LocalServers for Waiting {
    fn call(&self, address: &str, opcode: u16, message: &[u8], payload: &[u8], deadline: Duration) -> LocalCall {
        let answer = self.0.call(address, opcode, message, payload, deadline);
        if opcode != Opcode::KeepAlive.code() || !self.0.state.lock().waits {
            return answer;
        }
        let (partitions, request) = (self.0.clone(), KeepAliveRequest::decode(message).expect("a keep-alive"));
        Box::pin(async move {
            let mut answer = answer.await?;
            answer.message = partitions.wait(request).await.encode_to_vec().into();
            Ok(answer)
        })
    }
}

impl LocalServers for Partitions {
    fn call(&self, address: &str, opcode: u16, message: &[u8], payload: &[u8], deadline: Duration) -> LocalCall {
        let of = address.strip_prefix("partition:").and_then(|n| n.parse::<u32>().ok());
        let known = Opcode::from_code(opcode).expect("a known operation");
        let addr = address.to_owned();
        match of {
            Some(partition) if matches!(known, Opcode::KeepAlive | Opcode::EndSession) => {
                let answer = match known {
                    Opcode::KeepAlive => self.keep_alive(message),
                    _ => self.answer(partition, known),
                };
                Box::pin(async move {
                    tokio::time::sleep(if answer.is_some() { Duration::from_millis(1) } else { deadline }).await;
                    let silence = CallError::Unknown { addr, cause: Unknown::Deadline };
                    answer.unwrap_or(Err(silence)).map(|message| Response { message: message.into(), payload: None })
                })
            }
            Some(partition) if self.state.lock().silent.contains(&partition) => Box::pin(async move {
                tokio::time::sleep(deadline).await;
                Err(CallError::Unknown { addr, cause: Unknown::Deadline })
            }),
            _ => {
                let front = if of.is_some() { "local:1000" } else { address };
                let answer = self.servers.call(front, opcode, message, payload, deadline);
                let mut map = None;
                if known == Opcode::GetMap {
                    let mut wider = ClusterMap::default();
                    self.widen(&mut wider);
                    map = Some(wider);
                }
                Box::pin(async move {
                    let mut answer = answer.await?;
                    if let Some(wider) = map {
                        let mut map = ClusterMap::decode(&answer.message[..]).expect("a map");
                        map.nodes.extend(wider.nodes);
                        map.partitions = wider.partitions;
                        answer.message = map.encode_to_vec().into();
                    }
                    Ok(answer)
                })
            }
        }
    }
}

struct Setup {
    partitions: Arc<Partitions>,
    client: Client,
    volume: Volume,
    session: Arc<Session>,
    _cluster: FakeCluster,
}

/// A session that all of so many partitions know, some of which answer nothing.
async fn setup(last: u32, silent: impl IntoIterator<Item = u32>) -> Setup {
    setup_on(last, 1, State { silent: silent.into_iter().collect(), ..State::default() }).await
}

/// The same with so many of them on each node.
async fn setup_on(last: u32, on_node: u32, state: State) -> Setup {
    let cluster = FakeCluster::local(1, &[Scheme::Replicated(1)]);
    let state = Mutex::new(state);
    let partitions = Arc::new(Partitions { servers: cluster.fake.clone(), last, on_node, state });
    let options = ConnectOptions::new(vec![cluster.manager()]);
    let client = FakeCluster::try_connect(Arc::new(Waiting(partitions.clone())), options).await.expect("connected");
    let volume = client.volume("default").await.expect("the volume");
    let session = volume.caller.session().await.expect("a session");
    for partition in 1..=last {
        session.own_slot(partition).await.expect("a slot").unused();
        partitions.state.lock().heard.insert(partition, Instant::now());
    }
    Setup { partitions, client, volume, session, _cluster: cluster }
}

/// One partition without a leader would end the session everywhere: files that were open would be gone at all others.
#[tokio::test(start_paused = true)]
async fn a_partition_that_never_answers_delays_no_other_one() {
    let s = setup(2, [2]).await;
    tokio::time::sleep(LEASE * 6).await;
    {
        let state = s.partitions.state.lock();
        assert!(state.asked[&2] >= 2 * 6, "twice a lease: {:?}", state.asked);
        assert!(state.longest[&1] <= LEASE / 2, "{:?}", state.longest);
        assert!(!s.session.is_ended());
    }
    // It comes back.
    s.partitions.state.lock().heard.insert(2, Instant::now());
    s.partitions.state.lock().silent.clear();
    tokio::time::sleep(LEASE * 2).await;
    let state = s.partitions.state.lock();
    assert!(state.longest[&2] <= LEASE / 2 && !s.session.is_ended(), "{:?}", state.longest);
}

/// The same where they are more than are asked at once, and one of them is to be told of the session before it writes.
#[tokio::test(start_paused = true)]
async fn many_that_never_answer_delay_no_other_one() {
    let others = AT_ONCE as u32 * 4;
    let s = setup(others + 1, 1..=others).await;
    s.session.note_writer();
    tokio::time::sleep(LEASE * 6).await;
    {
        let state = s.partitions.state.lock();
        assert_eq!(state.asked.len() as u32, others + 1);
        assert!(state.asked.values().all(|asked| *asked >= 6), "{:?}", state.asked);
        assert!(state.longest[&(others + 1)] <= LEASE * 3 / 4, "{:?}", state.longest);
    }
    assert!(s.session.is_unannounced() && !s.session.is_ended());
    s.partitions.state.lock().heard.clear();
    s.partitions.state.lock().silent.clear();
    tokio::time::sleep(LEASE * 2).await;
    assert!(!s.session.is_unannounced() && !s.session.is_ended());
    assert!(s.partitions.state.lock().longest.values().all(|longest| *longest <= LEASE * 3 / 4));
}

/// Requests of one lease time, after the first one in which all of them come together.
async fn requests_of_a_lease(s: &Setup) -> u64 {
    tokio::time::sleep(LEASE).await;
    let before = s.partitions.state.lock().requests;
    tokio::time::sleep(LEASE).await;
    s.partitions.state.lock().requests - before
}

/// A thousand clients of a volume with a thousand partitions would ask servers for nothing but leases.
#[tokio::test(start_paused = true)]
async fn partitions_of_one_node_are_renewed_by_one_request() {
    let s = setup_on(60, 20, State::default()).await;
    let requests = requests_of_a_lease(&s).await;
    // One request in five seconds for each of three nodes.
    assert!((9..=16).contains(&requests), "{requests}");
    let state = s.partitions.state.lock();
    assert!(state.asked.len() == 60 && !s.session.is_ended());
    assert!(state.longest.values().all(|longest| *longest <= LEASE / 2), "{:?}", state.longest);
}

/// The session would end at what a group did not renew.
#[tokio::test(start_paused = true)]
async fn what_a_group_does_not_renew_is_renewed_by_itself() {
    // One is led elsewhere by now, one has no leader at all.
    let state = State { moved: BTreeSet::from([7]), silent: BTreeSet::from([12]), ..State::default() };
    let s = setup_on(20, 20, state).await;
    tokio::time::sleep(LEASE * 4).await;
    {
        let state = s.partitions.state.lock();
        let others = state.longest.iter().filter(|(partition, _)| **partition != 12);
        assert!(others.clone().all(|(_, longest)| *longest <= LEASE / 2), "{:?}", state.longest);
        assert!(!s.session.is_ended());
    }
    // The first of a group answers nothing: nobody has it for the others.
    let s = setup_on(20, 20, State { silent: BTreeSet::from([1]), ..State::default() }).await;
    tokio::time::sleep(LEASE * 4).await;
    let longest = s.partitions.state.lock().longest.clone();
    assert!(longest.iter().all(|(id, longest)| *id == 1 || *longest <= LEASE * 3 / 4), "{longest:?}");
    assert!(!s.session.is_ended());
    let s = setup_on(20, 20, State { are_older: true, ..State::default() }).await;
    let requests = requests_of_a_lease(&s).await;
    assert!(requests >= 20 * 3 && !s.session.is_ended(), "{requests}");
    // One of a group has ended the session.
    let s = setup_on(20, 20, State::default()).await;
    s.partitions.state.lock().longest.insert(9, LEASE * 2);
    tokio::time::sleep(EVERY * 2).await;
    assert!(s.session.is_ended());
}

/// A session that nobody uses would be renewed for ever, or one that the servers ended be taken for a live one.
#[tokio::test(start_paused = true)]
async fn renewing_ends_with_the_session_and_with_its_users() {
    let s = setup(3, [2]).await;
    let session = Arc::downgrade(&s.session);
    let Setup { partitions, client, volume, session: own, _cluster } = s;
    tokio::time::sleep(LEASE).await;
    drop((client, volume, own));
    tokio::time::sleep(EVERY * 2).await;
    assert!(session.upgrade().is_none(), "although partition 2 is being asked");
    let asked = partitions.state.lock().asked.clone();
    tokio::time::sleep(LEASE).await;
    assert_eq!(asked, partitions.state.lock().asked);

    let s = setup(3, [2]).await;
    s.partitions.state.lock().longest.insert(3, LEASE * 2);
    tokio::time::sleep(EVERY * 2).await;
    assert!(s.session.is_ended());
    assert_ne!(s.volume.caller.session().await.expect("another one").id, s.session.id);
}

/// An unmount would wait for each partition that does not answer, and those behind it keep what the session held.
#[tokio::test(start_paused = true)]
async fn a_session_ends_at_all_partitions_at_once() {
    let s = setup(200, (1..=199).filter(|id| id % 50 != 0)).await;
    let ended = s.volume.caller.end_everywhere("ending", s.session.id, (1..=200).collect());
    assert!(ended.await.is_err(), "those that are silent are named");
    assert_eq!(s.partitions.state.lock().ended, BTreeSet::from([50, 100, 150, 200]));
    s.partitions.state.lock().silent = BTreeSet::from([2, 3]);
    let begun = Instant::now();
    s.volume.caller.end_session().await;
    let patience = s.volume.caller.cluster.patience;
    assert!(begun.elapsed() < patience * 2, "{:?}", begun.elapsed());
    assert_eq!(s.partitions.state.lock().ended.len(), 198);
}

/// Who looks into a led directory would wait for the holder's next keep-alive; or keep-alives would follow each other
/// while a directory is being stored, and where servers are older.
#[tokio::test(start_paused = true)]
async fn what_is_wanted_is_heard_at_once_where_servers_wait() {
    let s = setup(1, []).await;
    let asked = || s.partitions.state.lock().asked.get(&1).copied().unwrap_or_default();
    s.session.leases.leads(1);
    tokio::time::sleep(LEASE).await;
    let older = asked();
    assert!((30..=42).contains(&older), "{older}: older servers are asked every half second");
    s.partitions.state.lock().waits = true;
    tokio::time::sleep(LEASE).await;
    let quiet = asked() - older;
    assert!((8..=14).contains(&quiet), "{quiet}: each waits for two seconds, and the next follows");
    for numbers in [vec![7], vec![7, 8]] {
        s.partitions.state.lock().wanted = numbers.clone();
        let wanted_at = Instant::now();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let told = s.partitions.state.lock().told.iter().find(|(told, _)| *told == numbers).map(|(_, at)| *at);
        let took = told.expect("it is told").saturating_duration_since(wanted_at);
        assert!(took < Duration::from_millis(50), "{numbers:?} after {took:?}");
    }
    let before = asked();
    tokio::time::sleep(LEASE).await;
    let again = asked() - before;
    assert!((8..=14).contains(&again), "{again}: what is known is no news");
    s.session.leases.leads_no_more(1);
    tokio::time::sleep(LEASE).await;
    let before = asked();
    tokio::time::sleep(LEASE).await;
    assert!(asked() - before <= 5, "it leads nothing any more");
}
