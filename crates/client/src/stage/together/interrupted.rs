//! Encoding together that is interrupted at every call that it makes, before it has an effect and after, by the end of
//! each of those who take part: whoever encodes, the member that is asked, another one, the leader of the partition,
//! the manager. All in one process, under a clock that stands still while nothing happens: what is interrupted is the
//! same each time.
//!
//! Whatever was interrupted: every file reads as it was written, at once and when all are there again; another one goes
//! on with what waits; and what came of it is decoded without a member.
use super::tests::{GROUPS, POSITIONS, SHARDS, noise};
use crate::append::SEGMENT_MAX;
use crate::connect::Client;
use crate::fake::FakeCluster;
use crate::file_writer::WriteOptions;
use crate::meta::volume::Volume;
use crate::net::{LocalCall, LocalServers};
use crate::stage::EncodeOutcome;
use cairn_rpc::{CallError, Unknown};
use cairn_types::{ExtentKind, Layout, Stripe, WHOLE_SHARD};
use cairn_wire::Opcode;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Far more than one encoding takes with a member that does not answer.
const HANGS: Duration = Duration::from_secs(600);
/// Of each file: one in each column, of about the same length.
const LENGTHS: [usize; 3] = [150_000, 149_001, 146_000];

/// Who ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// With all that it was about to do.
    Encoder,
    /// Who is asked, if it is a member: what it had not made durable is lost.
    Asked,
    /// The same of a member that has a copy, or a shard, or both.
    Member(u32),
    /// For what concerns files.
    Leader,
    Manager,
}

const ROLES: [Role; 6] = [Role::Encoder, Role::Asked, Role::Member(2), Role::Member(5), Role::Leader, Role::Manager];

/// The way of the one that encodes to all others.
struct Between {
    cluster: Arc<crate::fake::Fake>,
    /// The call at which somebody ends, whether it has its effect before, and who.
    at: Option<(usize, bool, Role)>,
    state: Mutex<State>,
    /// The encoder is no more.
    ended: Notify,
}

#[derive(Default)]
struct State {
    armed: bool,
    /// Calls so far: by operation and address.
    calls: Vec<(&'static str, String)>,
    /// Nobody hears of them any more.
    gone: Vec<Gone>,
    fired: bool,
}

#[derive(Clone, PartialEq, Eq)]
enum Gone {
    All,
    Address(String),
    Operations(u16, u16),
}

impl State {
    fn answers(&self, address: &str, opcode: u16) -> bool {
        let is_gone = |gone: &Gone| match gone {
            Gone::All => true,
            Gone::Address(known) => known == address,
            Gone::Operations(from, to) => (*from..*to).contains(&opcode),
        };
        !self.gone.iter().any(is_gone)
    }
}

fn disk_of(address: &str) -> Option<u32> {
    address.strip_prefix("local:").and_then(|number| number.parse().ok()).filter(|disk| *disk <= 5)
}

impl Between {
    fn new(cluster: &FakeCluster, at: Option<(usize, bool, Role)>) -> Arc<Between> {
        let (state, ended) = (Mutex::default(), Notify::new());
        Arc::new(Between { cluster: cluster.fake.clone(), at, state, ended })
    }

    /// Somebody ends now, if this is the call.
    fn interrupt(&self, number: usize, after: bool, address: &str) -> bool {
        let Some((_, _, role)) = self.at.filter(|(at, late, _)| (*at, *late) == (number, after)) else { return false };
        let gone = match role {
            Role::Encoder => Gone::All,
            Role::Asked if disk_of(address).is_none() => return false,
            Role::Asked => Gone::Address(address.to_owned()),
            Role::Member(disk) => Gone::Address(format!("local:{disk}")),
            Role::Leader => Gone::Operations(0x0400, 0x0600),
            Role::Manager => Gone::Operations(0x0200, 0x0300),
        };
        if let Gone::Address(address) = &gone {
            let disks: BTreeSet<u32> = disk_of(address).into_iter().collect();
            self.cluster.state.lock().crash(&disks);
        }
        let mut state = self.state.lock();
        state.gone.push(gone);
        state.fired = true;
        if role == Role::Encoder {
            self.ended.notify_one();
        }
        true
    }
}

impl LocalServers for Between {
    fn call(&self, address: &str, opcode: u16, message: &[u8], payload: &[u8], deadline: Duration) -> LocalCall {
        let name = Opcode::from_code(opcode).map_or("unknown", Opcode::name);
        let number = {
            let mut state = self.state.lock();
            if state.armed {
                state.calls.push((name, address.to_owned()));
            }
            state.calls.len()
        };
        let armed = self.state.lock().armed;
        if armed {
            self.interrupt(number, false, address);
        }
        let late = CallError::Unknown { addr: address.to_owned(), cause: Unknown::Deadline };
        let unanswered: LocalCall = Box::pin(async move {
            tokio::time::sleep(deadline).await;
            Err(late)
        });
        if !self.state.lock().answers(address, opcode) {
            return unanswered;
        }
        let answer = self.cluster.call(address, opcode, message, payload, deadline);
        // It has had its effect, and nobody hears of it.
        if armed && self.interrupt(number, true, address) && !self.state.lock().answers(address, opcode) {
            return unanswered;
        }
        answer
    }
}

struct World {
    cluster: FakeCluster,
    _client: Client,
    volume: Volume,
    files: Vec<(u64, Vec<u8>, Vec<u8>)>,
}

impl World {
    async fn new() -> World {
        let cluster = FakeCluster::local(5, &GROUPS);
        cluster.raise_level();
        {
            let mut state = cluster.fake.state.lock();
            (state.columns, state.shards) = (POSITIONS.into_iter().collect(), SHARDS);
        }
        let client = cluster.connect_local().await;
        let volume = client.volume("default").await.expect("the volume");
        let mut files = Vec::new();
        for (number, length) in LENGTHS.into_iter().enumerate() {
            let (path, data) = (format!("/f{number}").into_bytes(), noise(length, number as u64));
            let layout = "r3>rs-3-2@2s".parse().expect("a layout");
            let options = WriteOptions { mode: 0o644, mtime_ns: 77, layout, exclusive: false, owner: None };
            let mut writer = volume.write(&path, options).await.expect("begun");
            for part in data.chunks(SEGMENT_MAX) {
                writer.push(part.to_vec().into()).await.expect("pushed");
            }
            let inode = writer.finish().await.expect("finished").inode;
            files.push((inode, path, data));
        }
        World { cluster, _client: client, volume, files }
    }

    async fn check(&self, when: &str) {
        for (_, path, data) in &self.files {
            let mut reader = self.volume.read(path, 0, u64::MAX).await.expect("a reader");
            let mut all = Vec::new();
            while let Some(piece) = reader.next().await.unwrap_or_else(|error| panic!("{when}: {error}")) {
                all.extend_from_slice(&piece.data);
            }
            assert!(all == *data, "{when}: {}", String::from_utf8_lossy(path));
        }
        self.cluster.check_namespace();
    }

    fn inodes(&self) -> Vec<u64> {
        self.files.iter().map(|(inode, _, _)| *inode).collect()
    }

    async fn files_in_shards(&self) -> usize {
        let whole = Stripe::new(3, WHOLE_SHARD).map(ExtentKind::Erasure);
        let mut files = 0;
        for inode in self.inodes() {
            let extents = self.volume.all_extents(inode).await.expect("extents");
            files += usize::from(extents.iter().any(|e| e.chunk.pg.0 == SHARDS && e.kind == whole));
        }
        files
    }

    /// By file, as the leader of a partition has it done with what is left over.
    async fn encode_the_rest(&self, when: &str) {
        for inode in self.inodes() {
            let mut from = 0;
            while let EncodeOutcome::More(next) = self.volume.encode_part(inode, from).await.expect("worked on").outcome
            {
                from = next;
            }
        }
        for (_, path, _) in &self.files {
            let attributes = self.volume.stat(path, true).await.expect("there");
            let stage = Layout::from_bits(attributes.layout).expect("a layout").stage();
            assert!(!stage.waits(), "{when}: {} is {stage:?}", String::from_utf8_lossy(path));
        }
    }

    /// Encodes through `between`, until that ends; what was called, and whether anybody ended.
    async fn encode_through(&self, between: &Arc<Between>) -> (Vec<(&'static str, String)>, bool) {
        let client = self.cluster.connect_through(between.clone()).await;
        let volume = client.volume("default").await.expect("the volume");
        between.state.lock().armed = true;
        let inodes = self.inodes();
        let work = async {
            // An error says that it is to be tried again.
            while let Ok(done) = volume.encode_together(&inodes, true).await {
                if done.outcome != EncodeOutcome::More(0) {
                    break;
                }
            }
        };
        tokio::select! {
            () = work => {}
            () = between.ended.notified() => {}
            () = tokio::time::sleep(HANGS) => panic!("it hangs"),
        }
        let mut state = between.state.lock();
        state.armed = false;
        (std::mem::take(&mut state.calls), state.fired)
    }
}

/// Who ends at the call, before or after its effect. False: nobody, as the call is for no such.
async fn interrupted(number: usize, after: bool, role: Role) -> bool {
    let world = World::new().await;
    let between = Between::new(&world.cluster, Some((number, after, role)));
    let (calls, fired) = world.encode_through(&between).await;
    if !fired {
        return false;
    }
    let call = calls.get(number - 1).map_or("", |(name, _)| name);
    let when = format!("{role:?} ended {} {call}, call {number}", if after { "after" } else { "before" });
    world.check(&when).await;
    // Another one, when all are there again.
    let again = Between::new(&world.cluster, None);
    world.encode_through(&again).await;
    world.check(&when).await;
    let (encoded, all) = (world.files_in_shards().await, LENGTHS.len());
    // Some may name the chunk already, and leave nothing in their columns to go with what the others have.
    let may_be_few = call == "Publish" || calls[..number - 1].iter().any(|(name, _)| *name == "Publish");
    assert!(encoded == all || may_be_few && encoded > 0, "{when}: then {encoded} files were encoded together");
    world.encode_the_rest(&when).await;
    world.check(&when).await;
    for disk in [1, 5] {
        world.cluster.stop(disk);
        world.check(&format!("{when}; without {disk}")).await;
    }
    true
}

/// Bytes would be lost or wrong, or encoding never go on, when somebody ends in the middle of it.
#[tokio::test(start_paused = true)]
async fn at_every_step_whoever_ends_nothing_is_lost() {
    let world = World::new().await;
    let (calls, _) = world.encode_through(&Between::new(&world.cluster, None)).await;
    let names: BTreeSet<&str> = calls.iter().map(|(name, _)| *name).collect();
    for step in ["EnsurePgs", "Allocate", "Read", "Append", "Seal", "GetExtents", "Publish"] {
        assert!(names.contains(step), "{step} is no step any more: {names:?}");
    }
    let mut fired: BTreeMap<String, usize> = BTreeMap::new();
    for number in 1..=calls.len() {
        for after in [false, true] {
            for role in ROLES {
                let count = usize::from(interrupted(number, after, role).await);
                *fired.entry(format!("{role:?}")).or_default() += count;
            }
        }
    }
    println!("{} calls: {fired:?}", calls.len());
    assert_eq!(fired.len(), ROLES.len());
    assert!(fired.values().all(|count| *count >= calls.len() / 2), "{fired:?}");
}
