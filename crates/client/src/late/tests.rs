//! Leaders that stand still, and leaders that are only slow. The clock is stopped: no time here depends on the machine.
use crate::connect::Client;
use crate::fake::FakeCluster;
use crate::net::{LocalCall, LocalServers};
use cairn_rpc::late::{AFTER, EVERY};
use cairn_rpc::{CallError, Unknown};
use cairn_types::Scheme;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::manager::{ClusterMap, GetMapRequest, Node};
use prost::Message as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const HEADS: u32 = 3;
/// What the goal is for a client whose leader stands still.
const GOAL: Duration = Duration::from_secs(2);
/// When another head leads.
const ELECTION: Duration = Duration::from_millis(1300);

/// Heads that are managers and members of the partition, before the one namespace of the fake cluster.
struct Heads {
    servers: Arc<dyn LocalServers>,
    front: String,
    leader: AtomicUsize,
    /// Gives no answers.
    still: AtomicUsize,
    /// What each answer of the leader takes, in milliseconds.
    slow: AtomicUsize,
    /// Calls of the heads.
    calls: [AtomicUsize; HEADS as usize],
}

fn name(head: usize) -> String {
    format!("head:{head}")
}

impl Heads {
    /// Another one leads after an election.
    fn stop_leader(self: &Arc<Self>) {
        let stopped = self.leader.load(Ordering::SeqCst);
        self.still.store(stopped, Ordering::SeqCst);
        let heads = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(ELECTION).await;
            heads.leader.store(stopped % HEADS as usize + 1, Ordering::SeqCst);
        });
    }
    /// Calls of others than the first one.
    fn questions(&self) -> usize {
        self.calls[1..].iter().map(|calls| calls.load(Ordering::SeqCst)).sum()
    }
}

impl LocalServers for Heads {
    fn call(&self, address: &str, opcode: u16, message: &[u8], payload: &[u8], deadline: Duration) -> LocalCall {
        let head = address.strip_prefix("head:").and_then(|n| n.parse::<usize>().ok());
        let Some(head) = head else { return self.servers.call(address, opcode, message, payload, deadline) };
        self.calls[head - 1].fetch_add(1, Ordering::SeqCst);
        let (addr, leader) = (address.to_owned(), self.leader.load(Ordering::SeqCst));
        if self.still.load(Ordering::SeqCst) == head {
            return Box::pin(async move {
                tokio::time::sleep(deadline).await;
                Err(CallError::Unknown { addr, cause: Unknown::Deadline })
            });
        }
        if leader != head {
            return Box::pin(async move { Err(CallError::Remote(WireError::not_leader(Some(name(leader))))) });
        }
        let answer = self.servers.call(&self.front, opcode, message, payload, deadline);
        let slow = Duration::from_millis(self.slow.load(Ordering::SeqCst) as u64);
        Box::pin(async move {
            tokio::time::sleep(slow).await;
            let mut answer = answer.await?;
            if opcode == Opcode::GetMap.code() {
                let mut map = ClusterMap::decode(&answer.message[..]).expect("a map");
                map.nodes.iter_mut().for_each(|node| node.roles.retain(|role| role != "manager"));
                let node = |n: u32| Node {
                    id: 2000 + n,
                    address: name(n as usize),
                    roles: vec!["manager".into(), "meta".into()],
                    up: true,
                    ..Node::default()
                };
                map.nodes.extend((1..=HEADS).map(node));
                for partition in &mut map.partitions {
                    (partition.nodes, partition.leader) = ((2001..=2000 + HEADS).collect(), 2001);
                }
                answer.message = map.encode_to_vec().into();
            }
            Ok(answer)
        })
    }
}

async fn begin() -> (FakeCluster, Arc<Heads>, Client) {
    let cluster = FakeCluster::local(1, &[Scheme::Replicated(1)]);
    let heads = Arc::new(Heads {
        servers: cluster.fake.clone(),
        front: cluster.manager(),
        leader: AtomicUsize::new(1),
        still: AtomicUsize::new(0),
        slow: AtomicUsize::new(0),
        calls: Default::default(),
    });
    let client = FakeCluster::connect_to(heads.clone(), (1..=HEADS as usize).map(name).collect()).await;
    (cluster, heads, client)
}

/// Every call would wait for the whole deadline of an attempt, 5 s, although another member leads after 1.3 s.
#[tokio::test(start_paused = true)]
async fn a_leader_that_stands_still_costs_less_than_two_seconds() {
    let (cluster, heads, client) = begin().await;
    let volume = client.volume("default").await.expect("the volume");
    volume.mkdir(b"/before", 0o755, 0).await.expect("made");
    heads.stop_leader();
    let started = tokio::time::Instant::now();
    let calls = (0..20).map(|i| {
        let volume = volume.clone();
        tokio::spawn(async move {
            match i % 2 {
                0 => volume.mkdir(format!("/d{i}").as_bytes(), 0o755, 0).await.map(drop),
                _ => volume.stat(b"/before", true).await.map(drop),
            }
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("no panic").expect("done once, or it would be there already");
    }
    assert!(started.elapsed() >= ELECTION && started.elapsed() < GOAL, "{:?}", started.elapsed());
    // From then on nobody waits.
    let started = tokio::time::Instant::now();
    volume.mkdir(b"/after", 0o755, 0).await.expect("made");
    assert!(started.elapsed() < AFTER, "{:?}", started.elapsed());
    cluster.check_namespace();
}

async fn map(client: &Client) -> ClusterMap {
    client.manager("the map", Opcode::GetMap, &GetMapRequest::default()).await.expect("the map")
}

/// The same for what managers are asked.
#[tokio::test(start_paused = true)]
async fn so_does_a_manager() {
    let (_cluster, heads, client) = begin().await;
    heads.stop_leader();
    let started = tokio::time::Instant::now();
    map(&client).await;
    assert!(started.elapsed() >= ELECTION && started.elapsed() < GOAL, "{:?}", started.elapsed());
    let started = tokio::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    map(&client).await;
    assert!(started.elapsed() < Duration::from_secs(1) + AFTER, "it is known who leads");
}

/// A cluster that is slow because it is busy would be asked everything twice; or who is slow would never be waited for.
#[tokio::test(start_paused = true)]
async fn a_slow_leader_is_waited_for() {
    const CALLS: usize = 50;
    let (cluster, heads, client) = begin().await;
    let volume = client.volume("default").await.expect("the volume");
    volume.mkdir(b"/before", 0o755, 0).await.expect("made");
    heads.slow.store(3000, Ordering::SeqCst);
    let (before, started) = (heads.questions(), tokio::time::Instant::now());
    let calls = (0..CALLS).map(|i| {
        let volume = volume.clone();
        tokio::spawn(async move { volume.mkdir(format!("/d{i}").as_bytes(), 0o755, 0).await.map(drop) })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("no panic").expect("made");
    }
    // One question each time, for all of them, whose hint is not followed: it names who is waited for.
    let (questions, most) = (heads.questions() - before, started.elapsed().div_duration_f64(EVERY) as usize + 1);
    assert!((5..=most).contains(&questions), "{questions} of at most {most}");
    assert!(most < CALLS * 2, "it was asked again from the beginning");
    cluster.check_namespace();
}
